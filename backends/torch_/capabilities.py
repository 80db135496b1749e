"""What stock PyTorch can be made to do, on CUDA with NCCL and on CPU with gloo.

The gloo lines were tried with torch 2.13 on processes of one machine, gradients compared with a single device. The
CUDA lines name the PyTorch feature they rest on; where the same feature was executed on gloo, they say so. Nothing is
listed that was not tried or is not a documented feature: uneven head counts fail, so they do not appear. Tokens in
nested runs need nothing: a block of experts works on the local tokens of its rank, in whatever order, as
Megatron-Core's and torchtitan's do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.ir.target.capabilities import PROCESSOR, Capabilities, Line, ScheduleLine
from meshwright.ir.target.precisions import PrecisionLine

_TRIED = "tried on gloo, torch 2.13: gradients exact"
_PRINTED = f"printed code on shards; {_TRIED}"
_FSDP = f"fully_shard; {_TRIED}"
_PIPELINING = f"torch.distributed.pipelining; {_TRIED}"
_LISTS = f"_PipelineScheduleRuntime action lists, a private interface; {_TRIED}"

_LAYOUTS = (
    Line("contiguous", _PRINTED),
    Line(
        "sections",
        "products that are cut apart (q|k|v, gate|up): weights put in an order in which shards are parts of every "
        f"section, read by {_PRINTED}",
    ),
    Line(
        "nested",
        "local tensors inside a module: tokens, cut along the sequence, are flattened as they are; to move them is to "
        f"move what was flattened; experts apart and experts cut, {_TRIED}",
    ),
    Line("joined", f"printed code reads weights put in an order in which shards are parts of every section, {_TRIED}"),
    Line("zigzag", f"tokens are cut so where a script takes its part of a batch; attention in runs of them, {_TRIED}"),
    Line("padded", f"fully_shard pads dimension 0; {_TRIED}, parameters of fewer rows than ranks too"),
    Line("shares", f"ranks take parts of a batch of sizes of their own, and losses weigh by targets; {_TRIED}"),
)
_STORAGE = (Line("params", _FSDP), Line("grads", _FSDP), Line("optimizer", _FSDP))
_RECOMPUTE = (
    Line("none", _TRIED),
    Line("full", f"torch.utils.checkpoint; {_TRIED}; collectives run again"),
    Line("selective", f"torch.utils.checkpoint around modules; {_TRIED}; emit refuses what is across modules"),
)
_SCHEDULES = (
    ScheduleLine("gpipe", _PIPELINING),
    ScheduleLine("1f1b", f"{_PIPELINING}; needs as many micro-batches as stages"),
    ScheduleLine("interleaved", _PIPELINING, multiple_of_groups=True),
    ScheduleLine("zbv", f"ScheduleZBVZeroBubble, the same lists action by action; {_PIPELINING}"),
    ScheduleLine(
        "dualpipev",
        f"ScheduleDualPipeV, the same lists action by action; {_PIPELINING}",
        min_microbatches_per_group=2,
    ),
    *(ScheduleLine(name, _LISTS) for name in ("zb-h1", "zb-h2", "v-half", "v-min", "custom")),
)
_CASTS = ("bf16", "fsdp", "fsdp-bf16-reduce")
_POLICY = "MixedPrecisionPolicy of fully_shard; tried on gloo, torch 2.13"
_PRECISIONS = (
    PrecisionLine("fp32", _TRIED, ("fp32",)),
    PrecisionLine("bf16", _POLICY, _CASTS, traced="bf16"),
    PrecisionLine("fp16", f"{_POLICY}; losses are scaled in the script itself", ("fsdp",), traced="f16"),
    PrecisionLine(
        "fp8_tensorwise",
        "convert_to_float8_training; tried by hand on gloo with torchao 0.18, emulated: losses within 0.1 % of fp32",
        _CASTS,
        traced="bf16",
        linear_only=True,
    ),
)
_GATHER = Line("all_gather", f"functional all_gather_tensor of keys and values; {_TRIED}")
_ULYSSES = Line("ulysses", f"functional all_to_all_single around attention; {_TRIED}")
_RING = Line("ring", f"isend and irecv of keys and values around calls of torch's fused kernel; {_TRIED}")

TORCH_GLOO = Capabilities(
    target="torch-gloo",
    device="cpu",
    layouts=_LAYOUTS,
    attention=(_GATHER, _RING, _ULYSSES),
    storage=_STORAGE,
    schedules=_SCHEDULES,
    recompute=_RECOMPUTE,
    moves=(
        Line("slice", _TRIED),
        Line("mask", _TRIED),
        Line("pad", _TRIED),
        Line("all_gather", _TRIED),
        Line("all_reduce", _TRIED),
        Line("reduce_scatter", f"{_TRIED}; gloo runs it as an all-reduce", executes="all_reduce"),
        Line("all_to_all", f"functional all_to_all_single; {_TRIED}"),
    ),
    offload=(
        Line("optimizer", f"copies that the host steps, in the script itself; {_TRIED}"),
        Line("activations", f"hooks of saved tensors around blocks, in the script itself; {_TRIED}"),
    ),
    combined=(
        Line("different_meshes", f"isend and recv of parts between stages, in the script itself; {_TRIED}"),
        Line("several_uses", _PRINTED),
        Line("waiting_whole", f"all that a block saves, and in pipelines; {_TRIED}"),
    ),
    styles=(Line("eager", _TRIED), Line("compiled", f"torch.compile of each block; {_TRIED}")),
    precisions=_PRECISIONS,
    sums_first=True,
    most_cuts=2,  # torch 2.13: FSDPParam takes meshes of FSDP+EP+TP or HSDP+TP at most
    names_numbers=True,
    keeps_whole=False,
    # torch 2.13: PipelineStage calls fully_shard's post_backward after its last backward (`perform_reduce_grad`), and
    # scripts sum copies of stages when the schedule is done
    reduces_last=True,
)

TORCH_CUDA = replace(
    TORCH_GLOO,
    target="torch-cuda",
    device="cuda",
    moves=(
        Line("slice", _TRIED),
        Line("mask", _TRIED),
        Line("pad", _TRIED),
        Line("all_gather", "NCCL all_gather"),
        Line("all_reduce", "NCCL all_reduce"),
        Line("reduce_scatter", "NCCL reduce_scatter"),
        Line("all_to_all", "NCCL grouped send and receive"),
    ),
    overlap=(
        Line("data_parallel", "fully_shard reduces gradients on its own stream behind later backward"),
        Line("parameters", "fully_shard prefetches the next group's parameters"),
        Line("tensor", "compiled blocks: torch._inductor cuts products into pieces beside what is sent (async TP)"),
    ),
)

TARGETS = {capabilities.target: capabilities for capabilities in (TORCH_CUDA, TORCH_GLOO)}
DEVICE = {"torch-gloo": "cpu", "torch-cuda": "cuda"}
"""What the targets that code is written for run on."""
MEASURED = ("torch-gloo",)
"""Targets that a machine is measured for."""
LOCAL = "torch-gloo"
"""The target whose ranks are processes of one machine."""


def usual(devices: Sequence[str]) -> str:
    """The target that is meant on devices of these names."""
    return TORCH_GLOO.target if all(one == PROCESSOR for one in devices) else TORCH_CUDA.target
