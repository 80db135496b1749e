"""The reference interpreter: programs on simulated devices, with local kernels injected.

| module | what it has |
|---|---|
| `bodies` | one body on N devices in one process |
| `steps` | whole training steps over stages and micro-batches |
"""
