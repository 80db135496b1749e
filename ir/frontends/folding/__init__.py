"""Folding: from traced operators to a fold, shared by all front ends.

| module | what it has |
|---|---|
| `terms` | constants of a traced model, evaluated lazily at single points |
| `handles` | what a traced name denotes, and where its operator was traced |
| `emit` | emitting operators of our vocabulary; `sections`, `masks`, `layout` and `storage` recognise and renew |
| `stacks` | lists of blocks, and the short walks that are traced for them |
| `segment`, `assemble` | from the trace of a few blocks to a fold of all of them |
| `captured` | what comes out: the fold, and how its constants are made |
"""
