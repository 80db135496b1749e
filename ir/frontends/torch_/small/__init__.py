"""The small twin of a model: the same code with small numbers.

| module | what it has |
|---|---|
| `twin` | the twin, and what is told of it |
| `trial` | a model built of settings on the meta device, and one step of it watched |
| `batch_sizes` | sizes of batches |
"""
