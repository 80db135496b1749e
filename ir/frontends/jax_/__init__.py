"""JAX models as folds: a factory's model in, bodies and wires out.

    factory → `models` → make_jaxpr → `flat` → `rooms` → `primitives` → recognise → segment → fold

| module | what it has |
|---|---|
| `door` | what the planner asks of this front end; whether a file is written in JAX |
| `models` | what a factory may return, as parameters by path and a function of them |
| `source` | the hooks beside a factory, and one training step as a jaxpr |
| `flat` | a jaxpr as one list of equations; scans over parameters become stacks of blocks |
| `rooms` | which block every equation of an unrolled model lies in |
| `primitives` | the walk from equations to operators, by tables |
| `capture` | a source and a workload in, a fold out |
| `annotated` | the mesh that a model's own shardings are traced on, and what they say |
| `sites` | where equations stand in a jaxpr |
| `calls` | how a model is made and called, and where its values are made, for code that runs it |
| `small/` | the small twin of a model |
| `dtypes` | JAX's dtypes in our words |
"""
