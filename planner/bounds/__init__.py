"""Lower bounds on time and memory: they prove a search's answer, and `benchmarks.bound_check` holds them against
prices.

| module | what it has |
|---|---|
| `coarse` | bounds of a base that is not priced yet, from a few that are (`anchors`) |
| `common` | what all bounds of one setting share |
| `bases` | what one micro-batch costs and keeps, priced once for all configurations that share it |
| `bounds` | bounds of a shape of a priced base, in time and memory |
| `in_flight` | what groups of a pipeline hold at once, at the fullest moments of a schedule |
"""
