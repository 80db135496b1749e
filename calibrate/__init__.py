"""Calibration: a machine measured, and the profile that is fitted to what was found.

    what is asked -> cases -> samples, kept line by line -> `Measured` -> a profile file

| module | what it has |
|---|---|
| `cases` | what is measured: a grid, and what a model runs |
| `machine` | which machine this is, and whether it is idle |
| `kept` | where profiles are kept, and which is this machine's |
| `samples` | raw samples in a file that grows by lines, is compacted whole, and taken up again |
| `fit` | samples as times, curves and constants |
| `run` | all of it in order |
| `detect/` | the cluster file of machines, from what their tools print |

How cases are measured is the backends' (`backends.door.measurer`); nothing here names a framework.
"""
