"""The price of a published run: the same path as any plan's, from its shape to a Prediction.

run -> Shape -> Fold at the run's batch -> Degrees -> Decisions -> Program -> evaluate
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from benchmarks.models import adapted, fold_of
from benchmarks.runs import Run
from benchmarks.scores import Priced
from benchmarks.stacks import Stack as Public
from meshwright.cost_models.evaluate import Evaluator
from meshwright.cost_models.memory.peak import allocated_bytes
from meshwright.cost_models.prediction import Held, Prediction
from meshwright.cost_models.profile import Profile, published
from meshwright.ir.analysis.rebatch import with_batch
from meshwright.ir.frontends.shape import Shape
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.lower import lower
from meshwright.ir.program.program import Program
from meshwright.ir.same import Same
from meshwright.ir.target.workload import Stack, Workload, traced_in

TRACED_BATCH = 2
SCHEDULES = {"zb-1p": "zb-h1", "zb-2p": "zb-h2", "zb-v": "zbv"}
"""The paper's automatic schedules under a limit of memory, by the hand-made ones that they improve on."""


class Pricer:
    """Prices runs under a profile; programs do not depend on it and are kept. No margin of memory is asked for."""

    def __init__(self, profile: Profile | None = None) -> None:
        given = profile or published()
        self.profile = replace(given, memory=replace(given.memory, margin_share=0.0))
        self.evaluators: dict[str, Evaluator] = {}

    def __call__(self, run: Run) -> Priced:
        found = self.predicted(run)
        held = [stage.memory for stage in found.stages]
        return Priced(
            step_time_s=found.step_time_s,
            peak_bytes=max(one.peak_bytes for one in held),
            fits=all(one.fits for one in held),
            reserved_bytes=max(map(reserved_bytes, held)),
            allocated_bytes=max(map(allocated_bytes, held)),
        )

    def predicted(self, run: Run) -> Prediction:
        return self.evaluator(run)(program_of(run))

    def evaluator(self, run: Run) -> Evaluator:
        """That of its cluster."""
        where = repr(run.cluster)
        if where not in self.evaluators:
            self.evaluators[where] = Evaluator(run.cluster, self.profile)
        return self.evaluators[where]


def reserved_bytes(held: Held) -> float:
    """What torch's allocator took: without communicators and the CUDA context."""
    return sum(size for name, size in held.parts if name not in ("communicators", "context"))


def program_of(run: Run) -> Program:
    """The program that a run carried out."""
    shape = replace(run.shape, dropout=run.stack.dropout)
    fold = _fold(shape, run.seq, run.micro_batch * run.dp, traced_in(run.precision), run.task == "lora")
    return _program(Same(fold), degrees_of(run), workload_of(run))


@lru_cache(maxsize=2048)
def _program(held: Same[Fold], degrees: Degrees, workload: Workload) -> Program:
    fold = held.of
    decisions = replace(template(fold, degrees), style=workload.stack.style)
    return lower(fold, decisions, workload=workload)


@lru_cache(maxsize=2048)
def _fold(shape: Shape, seq: int, batch: int, dtype: str, adapters: bool) -> Fold:
    fold = with_batch(fold_of(shape, seq=seq, batch=TRACED_BATCH, dtype=dtype).fold, batch)
    return adapted(fold) if adapters else fold


def degrees_of(run: Run) -> Degrees:
    shard = {-1: min(run.gpus_per_host, run.dp * run.cp)}.get(run.zero.within, run.zero.within)
    return Degrees(
        dp=run.dp,
        tp=run.tp,
        cp=run.cp,
        ep=run.ep,
        etp=run.etp if run.model.routed else 0,
        pp=run.pp,
        vp=run.vp,
        sequence_parallel=run.sequence_parallel,
        context="ring" if run.cp > 1 and run.stack.style == "fused" else "all_gather",
        zigzag=run.cp > 1,
        zero=_zero(run),
        shard=0 if shard >= run.dp * run.cp else shard,
        regather=run.zero.regather,
        recompute=recompute_of(run),
        schedule=SCHEDULES.get(run.schedule, run.schedule),
        microbatches=run.micro_batches,
        stage_blocks=run.partition or (run.stage_layers if run.pp > 1 else ()),
        offload=offload_of(run),
    )


def offload_of(run: Run) -> str:
    """All that is kept waits on the host, or that of the first layers of every stage."""
    if run.recompute.on_host:
        return "activations"
    return f"activations:{run.offload_layers}" if run.offload_layers else "none"


def _zero(run: Run) -> int:
    """In a pipeline ZeRO-2 adds gradients up as they are and reduces them once a step: what ZeRO-1 does in ours. So
    does ZeRO-3 where parameters stay gathered (arXiv 2407.21783, section 3.3.2: gradients of several micro-batches add
    up in fp32)."""
    once = run.zero.stage == 2 or (run.zero.stage == 3 and not run.zero.regather)
    return 1 if once and run.pp > 1 else run.zero.stage


def recompute_of(run: Run) -> str:
    """By our names. Every other layer is as many as the first half of them, and a share as many as the first ones."""
    what = run.recompute
    if what.kind == "selective":
        modules = tuple(_MODULES.get(name, name) for name in what.modules)
        return f"selective:{'+'.join(modules)}" if modules else "selective"
    layers = what.layers
    if what.kind == "selective_layer" and not layers:
        layers = -(-run.shape.layers // run.pp // 2)
    return f"full_layers:{layers}" if layers else what.kind


_MODULES = {"core_attention": "core_attn"}


def workload_of(run: Run) -> Workload:
    return Workload(
        global_batch=run.global_batch,
        seq=run.seq,
        precision=run.precision,
        optimizer=run.optimizer,
        stack=stack_of_run(run),
    )


def stack_of_run(run: Run) -> Stack:
    public = run.stack
    hides = [
        *(("gradients",) if public.overlap_grads else ()),
        *(("parameters", "publish") if public.overlap_params else ()),
        *(("tensor",) if public.overlap_tp or "async_tp" in run.options else ()),
        *(("ring", "pipeline") if public.overlap_grads else ()),
        *(("expert",) if run.overlaps_experts else ()),
    ]
    return Stack(
        name=public.name,
        style=run.style,
        attention=public.attention,
        hides=tuple(hides),
        recipe=recipe_of(public, run.precision, run.grad_bytes),
        regathers=public.style == "fused" and (run.sequence_parallel or public.sequence_parallel),
        fused_loss=public.fused_loss,
        dedupes=run.dedupes,
        padded=run.padded,
        graphs=run.graphs,
        piecewise=public.piecewise,
        broadcasts=public.broadcasts,
        rolling=public.rolling,
        placeholders=public.placeholders,
    )


def recipe_of(public: Public, precision: str, grad_bytes: int) -> str:
    """A framework's recipe is of mixed precision; in fp32 nothing is held in fewer bytes."""
    if traced_in(precision) == "fp32":
        return "fp32"
    if public.states == "fsdp":
        return "fsdp" if grad_bytes == 4 else "fsdp-bf16-reduce"
    if public.states == "xla":
        return "fsdp-bf16-reduce" if grad_bytes == 2 else "fsdp"
    if public.states == "deepspeed":
        return "megatron" if precision == "bf16" and grad_bytes == 4 else "megatron-bf16-grads"
    return "megatron" if grad_bytes == 4 else "megatron-bf16-grads"
