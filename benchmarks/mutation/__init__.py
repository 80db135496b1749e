"""Mutation testing: faults planted in the five rooms, one at a time, and the tests that notice them.

    sites.py    source -> the places where a fault can be planted, each with the faulty tree
    serving.py  an import hook: modules come from a folder of compiled code, in child processes too; no file is changed
    blocks.py   source -> the blocks that a test enters, and code that records them
    reach.py    test files -> what every test enters, and what it costs: one run of every test file, remembered
    nearest.py  a fault -> the tests that enter its block, cheapest first, within a budget of CPU time
    trial.py    a fault and its tests -> noticed, not noticed, or out of time: one forked process each

``python -m benchmarks.mutants`` puts them together.
"""
