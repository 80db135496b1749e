"""The configurations that a search is about.

| module | what it has |
|---|---|
| `declared` | the space: bases (what a micro-batch does) and shapes (copies, stages, schedule, storage) |
| `baselines` | the plans that a person would write: where a search starts, and what its answer is held against |
"""
