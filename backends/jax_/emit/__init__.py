"""A plan as a script of JAX: from the Program to tables of shardings, and from these to text.

| module | what it has |
|---|---|
| `files` | the files of a plan, and what is refused |
| `shardings` | where parameters and values lie, as PartitionSpecs |
| `accumulation` | how gradients of several micro-batches are added up |
| `pipeline/` | stages that run in step |
| `recompute` | blocks that the backward pass computes again |
| `script` | train.py, from top to bottom |
| `evaluated` | the user's loss, run as it is traced, with values where the plan has them |
| `printed` | the model as every device computes it, where shardings of values cannot say a plan |
| `tables` | shardings as tables of the script |
| `model` | how the user's model is made and called there |
"""
