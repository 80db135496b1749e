"""The torch backend: DTensor, FSDP2 and `torch.distributed.pipelining`.

| module | what it has |
|---|---|
| `capabilities` | what stock PyTorch can be made to do, as data |
| `emit/` | a plan as a training script |
| `verify/` | the script against the model on one device |
"""
