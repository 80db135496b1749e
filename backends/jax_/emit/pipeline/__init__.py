"""Pipelines: how the loss is divided over stages, the ticks in which they run, and the file that does it.

| module | what it has |
|---|---|
| `ticks` | the turns of every stage, tick by tick, of the schedules that run in step |
| `cuts` | where the traced loss is cut: the values that go from block to block |
| `stages` | which parameters and blocks every stage has; what is refused |
| `step` | what train.py has of it |
| `code` | `train_pipeline.py`, put together |
| `parts` | its code that divides parameters and the loss |
| `passes` | its code that runs both passes, tick by tick |
"""
