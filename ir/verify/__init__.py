"""Verifiers: each checks an artefact without trusting who made it.

| module | what it has |
|---|---|
| `graphs` | what a graph, a rule or a fold must be |
| `programs` | statement by statement, does a program do what it says? |
| `actions` | do its action lists make a step? |
| `gradients` | does a backward list differentiate the forward list? |
| `meaning` | does a program compute its model? `tied`: also where several bodies hold a parameter |
"""
