"""The facts of a report, as plain data.

| module | what it has |
|---|---|
| `report` | all of it: `Report`, from a plan that was priced again |
| `summary` | what the plan is, takes, holds and is worth, in sentences |
| `timeline` | what every group of ranks does in a step, and when |
| `memory` | what ranks hold at their fullest instant, stage by stage |
| `traffic` | what is sent in a step, by purpose, mesh axes and tier; hosts and their seats |
| `placements` | what every mesh axis does to the operators of a body |
| `priced` | step time and memory of the plan and of those it is held against |
"""
