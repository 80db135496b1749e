"""The PyTorch dialect: operators and moves between ranks in torch, and the functions that torch lacks.

| module | what it has |
|---|---|
| `dialect` | the dialect as `backends.printing` asks for it |
| `operators`, `layers`, `attention`, `experts` | the expression of every kind of operator |
| `expressions` | what expressions are made of |
| `moves`, `rows`, `ring` | the functions that printed code calls and torch lacks |
"""
