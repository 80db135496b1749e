"""The closed loop: plans predicted, emitted, run on this machine, and compared.

| module | what it has |
|---|---|
| `plans` | plans of a model: priced by two profiles, emitted |
| `figures` | rank correlation, regret, errors |
"""
