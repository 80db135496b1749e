"""The files of a plan as text.

| module | what it has |
|---|---|
| `files` | all of them, by name |
| `script` | the training script: `parts` says everything that it says |
| `launch`, `hosts`, `needed` | how it is started, on which hosts, with which torch |
| `initial` | where weights come from |
| `frame/` | what every script has: imports, entry, model, checkpoints |
| `steps/` | a step: batch, losses, gradients, clipping |
| `stages/` | pipelines |
| `memory/` | what is computed again, or waits on the host |
"""
