"""torch as the oracle of rules and programs, on simulated devices.

| module | what it has |
|---|---|
| `eager`, `layers`, `kernels` | every kind on whole tensors, and on shards |
| `simulate` | torch for the interpreter |
| `compare`, `step` | a body, or a step, against autograd on the whole |
| `rules` | is a registered rule true? |
"""
