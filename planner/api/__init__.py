"""The Python API: the questions of the command line, asked and answered in Python.

| module | what it has |
|---|---|
| `asking` | `plan`, `estimate`: a model, a cluster and a workload → a `Plan`, an `Estimate` |
| `explaining` | `explain`: a plan → what it is, and why it is not another one |
| `model` | a model as Python has it (a reference, a factory, an existing module) → a source |

What is asked is read by the rules of the command line, and refused by its errors.
"""
