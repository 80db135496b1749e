"""Front ends: models of users as folds. What needs no framework stands here, torch's in `torch_`, JAX's in `jax_`.

| module | what it has |
|---|---|
| `load` | what MODEL means on the command line: which front end reads it |
| `contract` | the hooks of a user's file |
| `foreign` | running code of users: nothing that it raises, prints or waits for escapes |
| `emit` | emitting operators of our vocabulary; `sections`, `masks`, `layout` and `storage` recognise and renew |
| `segment`, `assemble` | from the trace of a few blocks to a fold of all of them |
| `recognise/` | composites that a model wrote out (attention, norms, losses), as one operator each |
| `shape` | decoders as numbers: which keys a shape file has |
"""
