"""The torch backend: DTensor, FSDP2 and `torch.distributed.pipelining`.

| module | what it has |
|---|---|
| `door` | what the planner asks of this backend |
| `capabilities` | what stock PyTorch can be made to do, as data |
| `emit/` | a plan as a training script |
| `measure/` | kernels and collectives, measured |
| `verify/` | the script against the model on one device; one of its ranks alone |
| `parallel` | the script's functions, called in a loop of one's own |
"""
