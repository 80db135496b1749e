"""An emitted script, run on host devices of one process and held against the model on one device.

| module | what it has |
|---|---|
| `emitted` | scripts in, verdicts out: starts the process, compares what it left |
| `hlo` | the collectives of a compiled program, by kind, mesh axes and bytes, as often as they run |
| `predicted` | the collectives of a Program, as XLA executes them |
| `bodies` | the moves of a body that XLA executes otherwise than they are planned |
| `run` | what the process does: it alone imports JAX |
| `apart` | micro-batches that mean something else to the model |
"""
