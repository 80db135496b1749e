"""Inputs of the command line, drawn by seed, and what a command may do with them.

    case.py       a command line, its files, a signal; what its run is to be judged by
    documents.py  JSON and TOML with one thing changed, and whether that is nonsense
    files.py      kinds of cases about files: paths, models, shapes, configurations, clusters, plans, logs
    words.py      kinds of cases about words of the command line, and signals
    running.py    a case -> how it ended, in a forked process or, with a signal, in one of its own

``python -m benchmarks.fuzz`` puts them together. A generator marks what is *nonsense by construction*: a command must
not take it. Of anything else a command may say yes or no.
"""
