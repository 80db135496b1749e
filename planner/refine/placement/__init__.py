"""Placement: the rank of the cluster for every place of a plan.

| module | what it has |
|---|---|
| `placement` | orders of a plan's places, and exchanges between units that differ |
| `symmetry` | which units of a cluster are alike, and one name for arrangements that cost the same |
| `idle` | which ranks to leave idle |
"""
