"""The torch front end: torch models as folds.

| module | what it has |
|---|---|
| `door` | what the planner asks of this front end |
| `sources/` | what MODEL may be: files with factories, configurations, shapes, modules; and models as files again |
| `tracing/` | a source and a workload → one traced training step, through a few blocks where there are many |
| `operators/` | ATen → our vocabulary, by table, by decomposition, or by trying |
| `constants/` | constants of traces as code |
| `small/` | the small twin of a model |
"""
