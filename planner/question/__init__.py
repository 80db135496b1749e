"""What is asked: read from options and files, checked, and held against plans.

    command line, files → `Ask` (model, cluster, workload, target), `Asked` (constraints) → `Setting` → prices

| module | what it has |
|---|---|
| `ask` | what the command line asks of a model on a cluster |
| `knobs` | what is said of a name that can be pinned: kind of value, meaning, what follows |
| `pins`, `pin_schema` | the table of knobs; what is fixed of them; how the rest is filled in; the same in files |
| `annotated` | the mesh of a model's own shardings |
| `module_pins` | what is asked of single modules, by pattern |
| `constraints` | --fix, --allow and --forbid: the only values of names, and those that must not be |
| `held` | constraints read back from what was decided |
| `objective` | what plans are compared by |
| `pricing` | a `Setting`: the model at every batch, and the way from a configuration to its price |
| `changed/` | what may be changed of a question, and its arguments then |
| `inspection`, `clusters` | what is seen in a model, and in a cluster, before anything is planned |
"""
