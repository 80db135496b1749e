"""Verification: emitted scripts against the model on one device, and torch as the oracle of the interpreter.

| module | what it has |
|---|---|
| `emitted` | a script against the model it was written for, on this machine |
| `run/` | the processes of a script, and what is counted in them |
| `alone` | one rank of every group under a process group that communicates nothing |
| `reference`, `apart` | the user's model on one device; micro-batches that mean something else to it |
| `groups`, `predicted` | what groups of ranks hold, and the collectives that a Program has |
| `equal` | when tensors of a run are those of the model |
| `interpreted/` | rules and programs on simulated devices, against autograd: it shares nothing with what it judges |
"""
