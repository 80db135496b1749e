"""One training step of a torch model, traced.

| module | what it has |
|---|---|
| `capture` | the door: a source and a workload in, a fold out |
| `export` | one step as `torch.export` sees it |
| `reduce` | a deep model traced through a few of its blocks |
| `places` | whether it treats blocks by their place |
| `functions` | which autograd functions of users are operators of the trace |
| `recorder`, `unsaid` | how buffers came about; what of a step its graph does not say |
| `mapped`, `stand_ins` | `torch.vmap`, and what stands in for parts of torch meanwhile |
| `calls` | which modules a forward pass calls |
| `stack_traces` | stack traces that hold no more than is read of them |
"""
