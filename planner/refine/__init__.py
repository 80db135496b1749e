"""Plans that no configuration says, made of the best configurations; each is judged by the evaluator's price.

| module | what it changes |
|---|---|
| `refine` | puts the others together: a configuration made to fit its cluster |
| `placement/` | which rank of the cluster takes which place |
| `stages` | how many layers each stage runs |
| `heterogeneous` | meshes of stages that differ |
| `uneven` | shares of the batch, and of what ZeRO cuts, on unlike devices |
| `partial_recompute` | of every stage the first few layers computed again, or waiting in the host's memory |
| `offload` | the optimizer's state in the host's memory |
| `candidate` | a plan that may become the answer; climbing from one to a better one |
| `operators` | what every axis does in every operator, by the block solver; `kept`: all else that a body plan says |
| `schedule` | a pipeline schedule of the plan's own |
| `interfaces` | what bodies have to do with each other: values handed on, parameters shared |
| `waiting` | ranks that wait for each other may all do the same work instead |
"""
