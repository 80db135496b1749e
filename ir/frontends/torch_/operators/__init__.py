"""Translation of ATen operators to our vocabulary.

| module | what it has |
|---|---|
| `translate` | the walk over an exported program |
| `aten` | one line per operator; `lowerings`, `kernels` and `moe` have what is more than a line |
| `writing` | which operators share or overwrite storage |
| `values` | what a traced name denotes |
| `decompose` | operators that torch writes as other operators |
| `discover`, `trials`, `aside` | rules found by trying, in a process of their own where that may crash |
| `invoked` | calls of operators as attributes, and calls made of those again |
"""
