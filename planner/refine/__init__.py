"""Plans that no configuration says, made of the best configurations; each is judged by the evaluator's price.

    Candidate -> improvements, in their order -> a better Candidate

Everything that makes plans better is an `Improvement`: a frozen dataclass whose fields are its options, with `accepts`
and `neighbours`. The order in which they are tried is a tuple in `order`.

| module | what it has |
|---|---|
| `candidate` | a plan that may become the answer |
| `improvement` | the shape of improvements, what they work with, and climbing from a plan to a better one |
| `order` | which improvements are tried, in which order, on which plans |
| `fitted` | a configuration made to fit its cluster: placement and layers, and a mesh of its own for every pool |
| `placement/` | which rank of the cluster takes which place |
| `stages` | how many layers each stage runs |
| `heterogeneous` | meshes of stages that differ |
| `empty_stages` | other micro-batches and schedules for plans that leave a stage without layers |
| `uneven` | shares of the batch, and of what ZeRO cuts, on heterogeneous devices |
| `operators/` | what every axis does in every operator, by the block solver |
| `schedule` | a pipeline schedule of the plan's own |
| `partial_recompute` | the first few layers of every stage computed again, or waiting in the host's memory |
| `offload` | the optimizer's state in the host's memory |
"""
