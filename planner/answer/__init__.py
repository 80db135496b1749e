"""Answers: to searches, about single configurations, and about plans that exist.

| module | in → out |
|---|---|
| `solve` | a question → an answered search |
| `finalists` | the best configurations of a search → the best refined plan |
| `kept` | a question → its answer: that of an earlier run, or a search |
| `report` | an answered search → a `Plan`, with what it is held against and what binds it |
| `relax`, `remedies` | where nothing fits, or nothing can be expressed or emitted → what would help, tried out |
| `estimate`, `estimates` | one configuration, or many → what they cost |
| `explain`, `diff` | a plan and pins, or two plans → why not, and what differs |
| `compare` | a plan and the log of a run → measured beside predicted |
| `changed/` | a question with something changed, or on other numbers of devices → its answers beside each other |
| `traced/` | traces that profilers measured → one step, and where its time goes, beside a plan |
| `measured/` | what a calibration takes from the planner |
| `workers` | work shared out among forked processes |
"""
