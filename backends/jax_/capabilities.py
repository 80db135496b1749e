"""What JAX can be made to do by shardings of parameters and of values: one `jit`, which XLA partitions.

Tried with jax 0.10.2 on eight host devices of one process, gradients and one optimizer step compared with one device.
XLA's partitioner for CPUs has no reduce-scatter: it reduces the whole and takes a part. Where a value is read by
several products, CPUs reduce the gradient of each apart (`adds_first`). A scan of micro-batches reduces gradients in
every one, but along axes that are manual (`jax.shard_map`), which those are that cut the batch (`in_turn`).

`several_uses` is left out: products whose operands are cut in unlike ways XLA partitions as it finds it cheaper, not as
planned. Whatever else is left out is not written yet: pipelines, recomputation of parts of a block, attention in a
ring, offloading, precisions other than fp32, layouts other than even runs.
"""

from __future__ import annotations

from meshwright.ir.target.capabilities import Capabilities, Line
from meshwright.ir.target.precisions import PrecisionLine

_TRIED = "tried on 8 host devices, jax 0.10.2: gradients exact"
_SPECS = f"PartitionSpec of parameters and values; {_TRIED}"

JAX_CPU = Capabilities(
    target="jax-cpu",
    device="cpu",
    layouts=(Line("contiguous", _SPECS), Line("nested", f"what is flattened is cut as it was before; {_TRIED}")),
    attention=(
        Line("all_gather", f"keys and values by PartitionSpec where attention meets them; {_TRIED}"),
        Line("ulysses", f"heads by PartitionSpec where attention meets them; {_TRIED}"),
    ),
    storage=(Line("params", _SPECS), Line("grads", _SPECS), Line("optimizer", _SPECS)),
    schedules=(),
    recompute=(
        Line("none", f"a model's own jax.checkpoint is left out; {_TRIED}"),
        Line("full", f"jax.checkpoint around blocks, and the body of a scan of them; {_TRIED}; collectives run again"),
    ),
    moves=(
        Line("slice", _TRIED),
        Line("mask", _TRIED),
        Line("all_gather", _TRIED),
        Line("all_reduce", _TRIED),
        Line("all_to_all", f"XLA moves a cut from one dimension to another so; {_TRIED}"),
        Line("reduce_scatter", f"{_TRIED}; CPUs reduce the whole", executes="all_reduce"),
    ),
    styles=(Line("xla", _TRIED),),
    precisions=(PrecisionLine("fp32", _TRIED, ("fp32",)),),
    in_turn=True,  # along other axes XLA sums the gradients of a micro-batch before the next begins (jax 0.10.2)
    adds_first=False,  # compiled for CPUs, the gradient of what q, k and v read is three all-reduces
    regathers=False,  # one all-gather of every parameter is compiled, before both passes
)

TARGETS = {one.target: one for one in (JAX_CPU,)}
LOCAL = "jax-cpu"
"""The target whose ranks are devices of one process of this machine."""
