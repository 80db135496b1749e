"""What each target can run, and the code that is written for it.

| module | what it has |
|---|---|
| `door` | backends by name, and what the planner asks of each |
| `subject`, `turns` | a plan as it is emitted: which bodies run where, and the blocks that stages have |
| `counting`, `lines` | counts of what a loss is a mean over, as code; layout of lines of code |
| `measuring` | what a target is asked to measure, and what it answers |
| `results` | what comes back: files, and what came of running them |
| `printing/` | a Program as source code, for any framework |
| `torch_/` | stock PyTorch |
| `jax_/` | stock JAX |
"""
