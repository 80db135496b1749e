"""Capabilities: what a target can be made to do, as data.

A backend declares, line by line, which layouts, attention algorithms, storage, schedules, recomputation and overlap
its emitted code can express, which reshard steps it can execute and what its library really runs for each. The search
looks only at plans that these lines allow, lowering uses only these steps, and the prices are those of the executed
collectives. So a limit of a backend is one line of data here, not an `if` in the planner.

Every line carries its evidence. `ANY` allows everything that can be priced, lowered as NCCL; it is not a target to
emit for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from meshwright.ir.analysis.fused import cut_apart
from meshwright.ir.analysis.loops import Loops, stem
from meshwright.ir.decisions.decisions import BodyPlan, Decisions
from meshwright.ir.decisions.offload import KINDS as OFFLOAD
from meshwright.ir.decisions.sharding import ZERO
from meshwright.ir.errors import (
    AttentionNotExpressible,
    CapabilityUnknown,
    CombinationNotExpressible,
    EmissionSoftware,
    LayoutNotExpressible,
    MicrobatchesNotExpressible,
    NotExpressible,
    OffloadNotExpressible,
    RecomputeNotExpressible,
    ScheduleNotExpressible,
    StorageNotExpressible,
)
from meshwright.ir.errors.capability import CUTS
from meshwright.ir.errors.capability import RECOMPUTE as AGAIN
from meshwright.ir.errors.capability import STORAGE as STORED
from meshwright.ir.graph.fold import Fold
from meshwright.ir.graph.graph import Graph, Op
from meshwright.ir.names import CONTEXT, CONTEXTS, name_of
from meshwright.ir.names.cache import loops_of
from meshwright.ir.names.degrees import BATCH
from meshwright.ir.names.pinned import of_weights
from meshwright.ir.names.storage import without_padding
from meshwright.ir.program.lower_body import Lowering
from meshwright.ir.program.spread import compute_placements
from meshwright.ir.rules.registry import rule_of
from meshwright.ir.same import Same
from meshwright.ir.schedules import SCHEDULES
from meshwright.ir.sharding.adjoint import Split, Strategy
from meshwright.ir.sharding.layouts import CONTIGUOUS, Contiguous, Layout, Nested, Padded, Sections, Zigzag
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.reshard import MOVES
from meshwright.ir.target.combined import CAST, COMBINED, DEPENDS
from meshwright.ir.target.precisions import PrecisionLine, unwritten
from meshwright.ir.target.workload import PRECISIONS, RECIPES, STYLES, Workload

LAYOUTS = ("contiguous", "nested", "sections", "joined", "zigzag", "shares", "uneven", "padded")
"""How a dimension may be cut. Sections are those of fused products (`ir.analysis.fused`); those of anything else,
and weights in nested runs, are joined. Shares are uneven parts of a batch, whole sequences each. Padded is what is
stored where its shards do not divide it."""
STORAGE = ("params", "grads", "optimizer")
RECOMPUTE = ("none", "full", "selective")
OVERLAP = ("data_parallel", "parameters", "ring", "tensor")


@dataclass(frozen=True, slots=True)
class Line:
    """One ability of a target, with its evidence. `executes` names what its library runs instead, where that
    differs."""

    name: str
    evidence: str
    executes: str = ""


@dataclass(frozen=True, slots=True)
class ScheduleLine:
    """A schedule that a target can run, with its conditions on micro-batches m, groups p and virtual stages v."""

    name: str
    evidence: str
    min_microbatches_per_group: int = 1
    """m must be at least this many times p."""
    multiple_of_groups: bool = False


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The abilities of one target.

    - Names must be of the IR's own vocabulary (`LAYOUTS`, `MOVES`, `SCHEDULES`, …): a line that means nothing is
      refused.
    - What is not listed cannot be done.
    """

    target: str
    device: str
    """Whose kernels decide what is saved for backward: "cuda" or "cpu"."""
    layouts: tuple[Line, ...]
    attention: tuple[Line, ...]
    storage: tuple[Line, ...]
    schedules: tuple[ScheduleLine, ...]
    recompute: tuple[Line, ...]
    moves: tuple[Line, ...]
    combined: tuple[Line, ...] = ()
    """What it can have together (`ir.target.combined`)."""
    overlap: tuple[Line, ...] = ()
    offload: tuple[Line, ...] = ()
    styles: tuple[Line, ...] = ()
    """Execution styles, of stacks, that code is written for."""
    precisions: tuple[PrecisionLine, ...] = ()
    """What that code computes in."""
    sums_first: bool = False
    """How its library reduces gradients that are sums over several axes (`Lowering.sums_first`)."""
    adds_first: bool = True
    """Whether gradients that several operators leave of one value are added before they are reduced
    (`Lowering.adds_first`)."""
    regathers: bool = True
    """Whether all parameters that are stored in shards can be gathered again for the backward pass, of every
    micro-batch. If not, those of repeated blocks can in steps of one micro-batch, and all others are kept as they were
    gathered."""
    keeps_whole: bool = True
    """Whether parameters can stay whole between steps while states or gradients alone are sharded. If not, plans with
    one micro-batch have them sharded, too, and gathered from before the forward to after the backward pass."""

    accumulates: bool = True
    """Whether a step of one stage can add up the gradients of several micro-batches."""
    in_turn: bool = False
    """Whether it then sums them in every micro-batch over axes that do not cut the batch (`Lowering.in_turn`)."""

    reduces_last: bool = False
    """Whether the gradients of a pipeline's stages are reduced once all their backward passes are done, behind none of
    them (`Lowering.reduces_last`)."""

    names_numbers: bool = False
    """Whether code of a body is given the numbers in which its calls differ (`ir.graph.numbers`). If not, every set of
    them needs a body of its own (`ir.decisions.apart`)."""

    most_cuts: int | None = None
    """By how many axes operators may cut a parameter that is stored in shards besides."""

    def __post_init__(self) -> None:
        for field, lines, known in (
            ("layouts", self.layouts, LAYOUTS),
            ("attention", self.attention, CONTEXT),
            ("overlap", self.overlap, OVERLAP),
            ("offload", self.offload, OFFLOAD),
            ("storage", self.storage, STORAGE),
            ("recompute", self.recompute, RECOMPUTE),
            ("moves", self.moves, MOVES),
            ("combined", self.combined, (*COMBINED, *CAST)),
            ("schedules", self.schedules, (*SCHEDULES, "custom")),
            ("styles", self.styles, STYLES),
            ("precisions", self.precisions, PRECISIONS),
        ):
            for line in lines:
                if line.name not in known:
                    raise CapabilityUnknown(
                        place=f"capabilities of {self.target}",
                        cause=f"{field}: {line.name!r}",
                        fix=f"use {', '.join(known)}",
                    )
        for line in self.precisions:
            for recipe in (one for one in line.recipes if one not in RECIPES):
                raise CapabilityUnknown(
                    place=f"capabilities of {self.target}, {line.name}",
                    cause=f"recipes: {recipe!r}",
                    fix=f"use {', '.join(RECIPES)}",
                )
        for line in self.moves:
            if line.executes and line.executes not in MOVES:
                raise CapabilityUnknown(
                    place=f"capabilities of {self.target}, {line.name}",
                    cause=f"it executes {line.executes!r}",
                    fix=f"use {', '.join(MOVES)}",
                )

    def lowering(self) -> Lowering:
        """The way in which programs for this target are lowered."""
        return Lowering(
            moves=tuple(line.name for line in self.moves),
            device=self.device,
            sums_first=self.sums_first,
            adds_first=self.adds_first,
            in_turn=self.in_turn,
            reduces_last=self.reduces_last,
        )

    @property
    def usual_schedule(self) -> str:
        """The schedule of pipelines that nobody named one for."""
        names = [line.name for line in self.schedules]
        return next((name for name in ("1f1b", "eager-1f1b", *names) if name in names), "1f1b")

    def executed(self, move: str) -> str:
        """The collective that the target's library runs for a reshard step."""
        return next((line.executes or line.name for line in self.moves if line.name == move), move)

    @property
    def pads(self) -> bool:
        """Whether storage is padded that its shards do not divide; it stays whole otherwise."""
        return "padded" in _names(self.layouts)

    def stored(self, decisions: Decisions, fold: Fold) -> Decisions:
        """The plan with storage as the target has it."""
        plans = decisions.plans if self.pads else tuple(map(without_padding, decisions.plans))
        if not self.regathers:
            blocks = {name for segment in fold.segments if not segment.glue for name in segment.period}
            plans = tuple(
                replace(plan, regather=False) if plan.regather and plan.storage and plan.body not in blocks else plan
                for plan in plans
            )
        same = all(one is other for one, other in zip(plans, decisions.plans, strict=True))
        return decisions if same else replace(decisions, plans=plans)

    def ran(self, zero: int, microbatches: int) -> dict[str, Any]:
        """Named degrees that differ when the target runs them (`keeps_whole`, `regathers`)."""
        if not self.regathers and ZERO[zero].params and microbatches > 1:
            return {"regather": False}
        if self.keeps_whole or not ZERO[zero].publishes or microbatches > 1:
            return {}
        return {"zero": 3, "regather": False}

    def waits(self, *, again: bool) -> bool:
        """Whether activations of blocks can wait in the host's memory; `again`: of those that are computed again."""
        can = _names(self.combined)
        return "activations" in _names(self.offload) and ("waiting_blocks" if again else "waiting_whole") in can

    def refusals(self, decisions: Decisions, fold: Fold, workload: Workload | None = None) -> Iterator[NotExpressible]:
        """Everything in a plan, for this model and this workload, that the target cannot express."""
        meshes = {name: stage.mesh for stage in decisions.stages for name in stage.plans}
        found = loops_of(Same(fold))
        for plan in decisions.plans:
            yield from self.body_refusals(plan, fold.body[plan.body].graph, found[plan.body], meshes.get(plan.name))
        yield from self._schedule_refusals(decisions)
        casts = workload is not None and workload.states.casts
        for name, found_in in {**COMBINED, **(CAST if casts else {})}.items():
            what = "" if name in _names(self.combined) else found_in(decisions, fold)
            if what:
                refusal = self._refuse(
                    CombinationNotExpressible, "the plan", what, "pin one of them otherwise with --fix"
                )
                yield refusal.depending(DEPENDS.get(name))
        for kind in decisions.offload.kinds:
            if kind not in _names(self.offload):
                yield self._refuse(OffloadNotExpressible, "offload", f"{kind} on the host", "keep them on the device")

    def body_refusals(
        self, plan: BodyPlan, graph: Graph, found: Loops, mesh: Mesh | None
    ) -> tuple[NotExpressible, ...]:
        """The refusals of one body's plan, found once; without a mesh, of a plan that no stage runs."""
        return _of_body(Same(self), Same(plan), Same(graph), Same(found), mesh)

    def _body_refusals(self, plan: BodyPlan, graph: Graph, found: Loops, mesh: Mesh | None) -> Iterator[NotExpressible]:
        yield from (one.depending((CUTS,)) for one in self._layout_refusals(plan, graph, found))
        yield from (one.depending((AGAIN,)) for one in self._recompute_refusals(plan, graph))
        if mesh is not None:
            yield from (one.depending((CUTS,)) for one in self._attention_refusals(plan, graph, found, mesh))
            yield from (one.depending((CUTS, STORED)) for one in self._storage_refusals(plan, graph, mesh))

    def unwritten(self, workload: Workload, fold: Fold) -> tuple[EmissionSoftware, ...]:
        """Refusals of a workload's precision, for which no code is written, where there is code for its stack."""
        if workload.stack.style not in _names(self.styles):
            return ()
        return tuple(unwritten(self.precisions, workload, fold))

    def check(self, decisions: Decisions, fold: Fold, workload: Workload | None = None) -> None:
        """Raise the first refusal."""
        for refusal in self.refusals(decisions, fold, workload):
            raise refusal

    def _layout_refusals(self, plan: BodyPlan, graph: Graph, loops: Loops) -> Iterator[NotExpressible]:
        """Refusals of layouts that operators are split by, or that values or parameters lie in."""
        known, weights, strategies = _names(self.layouts), of_weights(Same(graph)), dict(plan.strategies)
        found = [
            (
                f"%{op.name}",
                choice.layout,
                _cuts_any(op, graph, choice, weights),
                cut_apart(graph, op, choice.layout),
                loops.factors[op.name][choice.factors[0]],
            )
            for op in graph.ops
            for _, choice in strategies.get(op.name, Strategy()).choices
            if isinstance(choice, Split) and choice.layout != CONTIGUOUS
        ]
        values = [(f"%{v}", state.value, v in weights, False, loops.dims[v]) for v, state in plan.states]
        stored = [
            (item.path, where, True, True, ((),) * len(where.dims))
            for item in plan.storage
            for where in (item.params, item.grads, item.optimizer)
        ]
        found += [
            (name, shard.layout, held, apart, names)
            for name, placed, held, apart, runs in (*values, *stored)  # parameters in sections are as they are read
            for dim, names in zip(placed.dims, runs, strict=True)
            for shard in dim
        ]
        for name, layout, weight, apart, over in dict.fromkeys(found):
            names = layout_names(layout, weight=weight, apart=apart, over=over)
            for unknown in (one for one in names if one not in known):
                yield self._refuse(LayoutNotExpressible, f"{plan.name}, {name}", f"layout {unknown}", _use(known))

    def _attention_refusals(self, plan: BodyPlan, graph: Graph, found: Loops, mesh: Mesh) -> Iterator[NotExpressible]:
        known = _names(self.attention)
        for axis in mesh.names:
            name = name_of(plan, graph, found, axis).removesuffix("+ep")
            wanted = next((word for word, kind in CONTEXTS.items() if kind.called == name), None)
            if wanted and wanted not in known:
                yield self._refuse(
                    AttentionNotExpressible, f"{plan.name}, axis {axis}", f"{wanted} attention", _use(known)
                )

    def _storage_refusals(self, plan: BodyPlan, graph: Graph, mesh: Mesh) -> Iterator[NotExpressible]:
        """Refusals of storage: what is stored otherwise than its operators want it needs a line of its kind."""
        if not plan.storage:
            return
        known, compute = _names(self.storage), compute_placements(graph, plan, mesh)
        for item in plan.storage:
            if self.most_cuts is not None and len(cutting := compute[item.path].axes) > self.most_cuts:
                yield self._refuse(
                    StorageNotExpressible,
                    f"{plan.name}, {item.path}",
                    f"shards of what {' and '.join(cutting)} cut",
                    "store it whole (--fix zero=0), or cut it along fewer axes",
                )
            for kind, placement in zip(STORAGE, (item.params, item.grads, item.optimizer), strict=True):
                if placement != compute[item.path] and kind not in known:
                    yield self._refuse(
                        StorageNotExpressible,
                        f"{plan.name}, {item.path}",
                        f"{kind} as {placement}",
                        f"store them as {compute[item.path]}",
                    )

    def _recompute_refusals(self, plan: BodyPlan, graph: Graph) -> Iterator[NotExpressible]:
        known, chosen = _names(self.recompute), set(plan.recompute)
        made = {value for op in graph.ops for value in op.results}
        kind = "full" if chosen >= made else ("selective" if chosen else "none")
        if kind not in known:
            yield self._refuse(RecomputeNotExpressible, plan.name, f"recompute {kind}", _use(known))

    def _schedule_refusals(self, decisions: Decisions) -> Iterator[NotExpressible]:
        schedule, groups = decisions.schedule, len(decisions.groups)
        if len(decisions.stages) == 1:
            if schedule.microbatches > 1 and not self.accumulates:
                given = f"{schedule.microbatches} micro-batches"
                yield self._refuse(MicrobatchesNotExpressible, "schedule", given, "use one, of all sequences of a copy")
            return
        line = next((line for line in self.schedules if line.name == schedule.name), None)
        if line is None:
            yield self._refuse(ScheduleNotExpressible, "schedule", schedule.name, _use(_names(self.schedules)))
            return
        least, given = line.min_microbatches_per_group * groups, f"{schedule.microbatches} micro-batches"
        if schedule.microbatches < least:
            yield self._refuse(MicrobatchesNotExpressible, "schedule", given, f"use at least {least}")
        if line.multiple_of_groups and schedule.microbatches % groups:
            yield self._refuse(MicrobatchesNotExpressible, "schedule", given, f"use a multiple of {groups}")

    def _refuse(self, kind: type[NotExpressible], place: str, what: str, fix: str) -> NotExpressible:
        return kind(place=place, cause=f"target {self.target} cannot express {what}", fix=fix)


def _names(lines: Iterable[Line | ScheduleLine | PrecisionLine]) -> tuple[str, ...]:
    return tuple(line.name for line in lines)


def _use(names: tuple[str, ...]) -> str:
    return f"use {', '.join(names)}" if names else "leave it out"


@lru_cache(maxsize=8192)
def _of_body(
    target: Same[Capabilities], plan: Same[BodyPlan], graph: Same[Graph], found: Same[Loops], mesh: Mesh | None
) -> tuple[NotExpressible, ...]:
    return tuple(target.of._body_refusals(plan.of, graph.of, found.of, mesh))


def _cuts_any(op: Op, graph: Graph, choice: Split, weights: frozenset[str]) -> bool:
    """Whether a choice cuts a weight of the operator."""
    dims = rule_of(op, graph.types).operands
    held = [dims[slot] for slot, value in enumerate(op.operands) if value in weights]
    return any(factor in names for own in held for names in own for factor in choice.factors)


def layout_names(
    layout: Layout, *, weight: bool = False, apart: bool = False, over: Sequence[str] = ()
) -> tuple[str, ...]:
    """The names of a layout in capabilities, all of which a target must have. The runs of a value are a view of it, in
    local tensors too; a weight is stored in them. `apart`: of a product that is separated; `over`: the loops that are
    cut."""
    if isinstance(layout, Nested):
        return ("joined" if weight else "nested", *layout_names(layout.layout))
    if isinstance(layout, Contiguous):
        return ("contiguous",)
    if isinstance(layout, Sections):
        return ("sections" if apart else "joined",)
    if isinstance(layout, Zigzag):
        return ("zigzag",)
    if isinstance(layout, Padded):
        return ("padded",)
    return ("shares",) if over and stem(over[0]) == BATCH else ("uneven",)


_PRICED = "whatever the evaluator can price"

PROCESSOR = "CPU"
"""The device whose ranks are processes of a host, without accelerators."""
ANY = Capabilities(
    target="any",
    device="cuda",
    layouts=tuple(Line(name, _PRICED) for name in LAYOUTS),
    attention=tuple(Line(name, _PRICED) for name in CONTEXT),
    storage=tuple(Line(name, _PRICED) for name in STORAGE),
    schedules=(
        *(ScheduleLine(name, _PRICED, max(1, own.least_per_group), own.multiple) for name, own in SCHEDULES.items()),
        ScheduleLine("custom", _PRICED),
    ),
    recompute=tuple(Line(name, _PRICED) for name in RECOMPUTE),
    moves=tuple(Line(name, _PRICED) for name in MOVES),
    combined=tuple(Line(name, _PRICED) for name in (*COMBINED, *CAST)),
    overlap=tuple(Line(name, _PRICED) for name in OVERLAP),
    offload=tuple(Line(name, _PRICED) for name in OFFLOAD),
    styles=tuple(Line(name, _PRICED) for name in STYLES),
    precisions=tuple(PrecisionLine(name, _PRICED, tuple(RECIPES)) for name in PRECISIONS),
)
