"""The small twin of a model in JAX: the same code with small numbers.

| module | what it has |
|---|---|
| `twin` | the twin, and what is told of it |
| `trial` | a model built of settings, and the trace of one step of it |
"""
