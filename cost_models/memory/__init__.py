"""Memory of a rank: everything that it holds, at every instant.

| module | what it has |
|---|---|
| `peak` | the fullest instant of every stage |
| `stage`, `body` | the calls of a stage put together; one call |
| `liveness`, `storages`, `walk`, `fullest` | what names take, and the walk over statements |
| `in_flight` | what lies there beside the action that runs |
| `stage_buffers` | what torch's pipelines hold of what crosses stages |
| `extras`, `losses`, `routing` | what operators, losses and experts hold of their own |
"""
