"""A model's own shardings as a plan: what its code says of values and parameters in, decisions out.

| module | what it has |
|---|---|
| `annotations` | what is said of the values and parameters of a fold, as a front end reads it |
| `plan` | the decisions that follow: every other operator as XLA would find it |
"""
