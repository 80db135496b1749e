"""Programs: everything that a rank executes, written out, and the lowering from decisions.

| module | what it has |
|---|---|
| `program` | statements of one rank with every collective explicit, stages, transfers, action lists |
| `lower` | fold, decisions → the program; `lower_body` one body, `spread` its forward and backward pass |
| `kept` | what a body keeps on a rank for its backward pass |
| `ties`, `units` | parameters that several calls hold; what is gathered once |
| `crossing` | what crosses between two stages, message by message |
| `split_backward` | input gradients first, weight gradients later |
| `routes` | the ways that values of a body take, for who prints code |
| `text`, `reading` | the text form |
"""
