"""From flat equations to a graph of our operators: a table of primitives, and the walk that reads it.

| module | what it has |
|---|---|
| `translate` | the walk, values that are only repeated, and what is opaque |
| `constants` | what depends on no input and no parameter, as terms |
| `elementwise` | elementwise primitives, reductions, dropout, and what changes no value |
| `shapes` | reshapes, transposes, cuts and joins |
| `indexing` | look-ups by index, scatters, sorts |
| `products` | products, linear layers, convolutions, windows |
| `loops` | scans that are not written out, each as one operator with a rule |

To add a primitive: add its line to the `TABLE` of its module, and a model that uses it to `tests/ir/frontends/jax_zoo`.
"""
