"""Decisions: everything that a plan decides, and nothing that follows from it.

| module | what it has |
|---|---|
| `decisions` | strategies per operator, states at the ends, storage, stages, schedule |
| `sharding` | what copies share out: ZeRO as data |
| `offload` | what waits in the memory of the host |
| `apart` | a plan with a body for every set of numbers, as code needs it |
| `project` | a plan for a big model as one for its small twin |
| `json`, `text` | the two written forms; `scan` has their words |
"""
