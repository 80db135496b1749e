"""What JAX can be made to do by shardings of parameters and of values: one `jit`, which XLA partitions.

Tried with jax 0.10.2 on eight host devices of one process, gradients and one optimizer step compared with one device.
XLA's partitioner for CPUs has no reduce-scatter: it reduces the whole and takes a part. Where a value is read by
several products, CPUs reduce the gradient of each apart (`adds_first`). A scan of micro-batches reduces gradients in
every one, but along axes that are manual (`jax.shard_map`), which those are that cut the batch (`in_turn`).

What shardings of values cannot say is printed: every device runs code of its own on its parts, in `jax.shard_map`
(`emit.printed`). Zero bubble is left out as gradients of weights and of values come of one `jax.vjp`, and stages of
unlike meshes as all devices run one program. Whatever else is left out is not written yet: recomputation of parts of a
block, the optimizer's step on the host, other precisions, uneven parts: storage that would be padded stays whole.

No GPU or TPU was at hand. What is listed for GPUs rests on the same scripts run on host devices, of two processes too,
and on XLA's passes by name; for TPUs, on the same scripts compiled for eight of v5e (`jax.experimental.topologies`,
libtpu 0.0.52), and not run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.ir.target.capabilities import PROCESSOR, Capabilities, Line, ScheduleLine
from meshwright.ir.target.precisions import PrecisionLine

_TRIED = "tried on 8 host devices, jax 0.10.2: gradients exact"
_PRINTED = f"printed, in jax.shard_map; {_TRIED}"
_SPECS = f"PartitionSpec of parameters and values; {_TRIED}"
_TICKS = f"jax.shard_map along the stages, which run in step (emit/pipeline/ticks.py); {_TRIED}"

JAX_CPU = Capabilities(
    target="jax-cpu",
    device="cpu",
    layouts=(
        Line("contiguous", _SPECS),
        Line("nested", f"what is flattened is cut as it was before; {_TRIED}"),
        Line("zigzag", f"tokens are cut so where a device takes its part of a batch; {_PRINTED}"),
    ),
    attention=(
        Line("all_gather", f"keys and values by PartitionSpec where attention meets them; {_TRIED}"),
        Line("ulysses", f"heads by PartitionSpec where attention meets them; {_TRIED}"),
        Line("ring", f"keys and values by ppermute, their gradients, too; {_PRINTED}"),
    ),
    storage=(Line("params", _SPECS), Line("grads", _SPECS), Line("optimizer", _SPECS)),
    schedules=(
        ScheduleLine("gpipe", _TICKS),
        ScheduleLine("eager-1f1b", f"{_TICKS}, so that a stage s of p keeps 2 (p - s) - 1 micro-batches"),
        ScheduleLine("interleaved", _TICKS, multiple_of_groups=True),
    ),
    recompute=(
        Line("none", f"blocks keep what compilers do, by a policy; a model's own jax.checkpoint is left out; {_TRIED}"),
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
    combined=(
        Line("several_uses", _PRINTED),
        Line("norms_of_one_value", "their variance is 0 there, as on one device"),
        Line("waiting_blocks", f"what blocks read that are computed again; {_TRIED}"),
    ),
    offload=(
        Line(
            "activations",
            "a policy of jax.checkpoint, to pinned_host; on CPUs XLA leaves them where they are; not run on others",
        ),
    ),
    styles=(Line("xla", _TRIED),),
    precisions=(PrecisionLine("fp32", _TRIED, ("fp32",)),),
    in_turn=True,  # along other axes XLA sums the gradients of a micro-batch before the next begins (jax 0.10.2)
    adds_first=False,  # compiled for CPUs, the gradient of what q, k and v read is three all-reduces
    regathers=False,  # blocks do, under jax.checkpoint; what stands once is gathered once, before both passes
)

_CAST = "parameters in fp32, cast as the loss reads them; on host devices gradients within 5 % of fp32 (test_hosts.py)"
_HIDES = (
    Line("data_parallel", "XLA's latency-hiding scheduler moves reductions behind what does not need them; not run"),
    Line("parameters", "the same scheduler moves gathers ahead; not run"),
)
_COMPILED = "compiled for TPUs, not run"

JAX_CUDA = replace(
    JAX_CPU,
    target="jax-cuda",
    device="cuda",
    moves=tuple(
        Line("reduce_scatter", "XLA's ReduceScatterCreator: a sum of which a part is taken; not run")
        if one.name == "reduce_scatter"
        else one
        for one in JAX_CPU.moves
    ),
    overlap=_HIDES,
    precisions=(*JAX_CPU.precisions, PrecisionLine("bf16", _CAST, ("fsdp-bf16-reduce",), traced="bf16")),
)

JAX_TPU = replace(
    JAX_CUDA,
    target="jax-tpu",
    moves=tuple(
        Line("reduce_scatter", f"a fusion, all-reduce-scatter; {_COMPILED}") if one.name == "reduce_scatter" else one
        for one in JAX_CPU.moves
    ),
    adds_first=True,  # the gradient of what q, k and v read is one sum (compiled for v5e)
)

TARGETS = {one.target: one for one in (JAX_CUDA, JAX_TPU, JAX_CPU)}
MEASURED: tuple[str, ...] = ()
"""Targets that a machine is measured for."""
LOCAL = "jax-cpu"
"""The target whose ranks are devices of one process of this machine."""


def usual(devices: Sequence[str]) -> str:
    """The target that is meant on devices of these names."""
    kinds = {"TPU": "jax-tpu", PROCESSOR: "jax-cpu"}
    return next((target for kind, target in kinds.items() if all(kind in one.upper() for one in devices)), "jax-cuda")
