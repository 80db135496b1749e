"""Stock JAX: one process whose devices XLA partitions a program over (GSPMD).

| module | what it has |
|---|---|
| `capabilities` | what its targets can run, as data |
| `door` | what the planner asks of this backend |
| `emit/` | a plan as a script of JAX |
| `verify/` | the script, run here and compared with the model on one device |
"""
