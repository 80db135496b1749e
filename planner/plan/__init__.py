"""Plans as values: saved, reloaded, reduced to a twin, and called.

| module | what it has |
|---|---|
| `types` | `Plan`: what a search answers, what that was made for, what it costs, how good it is |
| `schema`, `file` | `plan.json`: its schema, and `Plan` as text and back |
| `reload` | a saved plan, lowered and priced again |
| `emitted` | the same as the emitter takes it |
| `twin` | the plan of a small model of the same structure, on a few processes |
| `parallelize` | `meshwright.parallelize`: a plan's part of a model on this rank |
| `needs` | the memory and time that a verification takes, held against what there is |
| `notes` | what tells notes of a plan apart |
| `words`, `units` | a plan in words; numbers as people read them |
"""
