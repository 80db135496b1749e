"""Lowering: from the fold of a model and Decisions to the Program that every rank runs.

Bodies are lowered one by one (`meshwright.ir.program.lower_body`) and once each, however often they run. Here they are
strung together: per stage the runs of body programs, the values that cross from stage to stage, and every group's list
of actions.

A value that is needed several stages further on is sent hop by hop, in the placement in which each stage itself
reads it, or as copies where a stage only passes it on. Partial sums never cross: the reduction would span two stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from meshwright.ir.decisions.decisions import BodyPlan, Decisions, StagePlan, verify_decisions, verify_plan
from meshwright.ir.decisions.offload import NOTHING, offloaded, waiting_calls
from meshwright.ir.errors import BoundaryMismatch, PartialAcross, PlanRepeated, WorkloadImpossible, within
from meshwright.ir.graph.fold import Call, Fold, FromInput, FromPrevious, Source
from meshwright.ir.graph.graph import Graph, Op
from meshwright.ir.program.crossing import Transfer
from meshwright.ir.program.lower_body import Lowering, lower_body
from meshwright.ir.program.program import BodyProgram, Entry, Program, Run, Stage, Tie
from meshwright.ir.program.ties import casts_in_units, with_added
from meshwright.ir.same import Same
from meshwright.ir.schedules import ActionList, Shape, verify_work, work_lists
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement
from meshwright.ir.target.workload import Stack, Workload

CUDA = Lowering()


BodyCache = dict[tuple[Same[Graph], Same[BodyPlan], Mesh, Lowering], BodyProgram]
"""Body programs that were made before. Who prices thousands of decisions with few body plans keeps one, and gives it to
every `lower`; graphs and plans are known in it by identity."""


def lower(
    fold: Fold,
    decisions: Decisions,
    lowering: Lowering = CUDA,
    workload: Workload | None = None,
    cache: BodyCache | None = None,
) -> Program:
    """The Program that carries out `decisions` on the model `fold`, for `workload`, whose stack names the kernels."""
    verify_decisions(decisions, fold)
    lowering = _for_workload(lowering, decisions.style, workload)
    if workload is not None and lowering.reduces_last and len(decisions.groups) > 1:
        workload = replace(workload, stack=_reducing_last(workload.stack))
    made = {} if cache is None else cache
    program = _lowered(fold, decisions, lowering, workload, made)
    if lowering.in_turn and program.microbatches > 1:
        cut = frozenset(shard.axis for entry in program.entries for shard in entry.placement.dims[0])
        program = _lowered(fold, decisions, replace(lowering, waiting=tuple(sorted(cut))), workload, made)
    return program


def _lowered(
    fold: Fold, decisions: Decisions, lowering: Lowering, workload: Workload | None, made: BodyCache
) -> Program:
    wired = _wired(Same(fold))
    bodies: dict[str, BodyProgram] = {}
    for stage in decisions.stages:
        for name in stage.plans:
            if name not in bodies:
                plan = decisions.plan[name]
                graph = fold.body[plan.body].graph
                graph = without_loops(Same(graph)) if len(decisions.stages) > 1 else graph
                bodies[name] = _body(graph, plan, stage.mesh, lowering, made)
    boundaries = _Boundaries(wired, decisions, bodies)
    transfers = boundaries.transfers()
    bodies, stages = stages_of(fold, decisions, bodies, workload)
    return Program(
        bodies=tuple(bodies.values()),
        stages=stages,
        transfers=transfers,
        actions=_actions(decisions, transfers),
        ties=_ties(stages, fold),
        entries=boundaries.entries(),
        microbatches=decisions.schedule.microbatches,
        workload=workload,
    )


@lru_cache(maxsize=64)
def _reducing_last(stack: Stack) -> Stack:
    """The stack where nothing hides what gradients' reductions take."""
    return replace(stack, hides=tuple(name for name in stack.hides if name != "gradients"))


@lru_cache(maxsize=64)
def without_loops(held: Same[Graph]) -> Graph:
    """A body as a stage runs it: products of experts over which a module loops are grouped, as they are where ranks
    exchange values (`cost_models.memory.routing`)."""
    graph = held.of
    if not any(op.attr("looped") for op in graph.ops):
        return graph
    return replace(graph, ops=tuple(_unlooped(op) if op.attr("looped") else op for op in graph.ops))


def _unlooped(op: Op) -> Op:
    return replace(op, attrs=tuple(pair for pair in op.attrs if pair[0] != "looped"))


def lower_one(
    graph: Graph, plan: BodyPlan, mesh: Mesh, lowering: Lowering, workload: Workload, cache: BodyCache
) -> BodyProgram:
    """The program of one body by itself, in the style of the workload's stack, for pricing bodies apart."""
    verify_plan(Same(plan), Same(graph), mesh)
    return _body(graph, plan, mesh, _for_workload(lowering, workload.stack.style, workload), cache)


def _for_workload(lowering: Lowering, style: str, workload: Workload | None) -> Lowering:
    lowering = replace(lowering, style=style)
    if workload is None:
        return lowering
    return replace(_on_stack(lowering, workload.stack), copied=workload.copied, casts=workload.states.casts)


def _on_stack(lowering: Lowering, stack: Stack) -> Lowering:
    if lowering.style != stack.style:
        raise WorkloadImpossible(
            place="workload, stack",
            cause=f"a {stack.style} stack for a plan in style {lowering.style}",
            fix="plan in the style of the stack",
        )
    return lowering.for_stack(stack)


def _body(graph: Graph, plan: BodyPlan, mesh: Mesh, lowering: Lowering, made: BodyCache) -> BodyProgram:
    key = Same(graph), Same(plan), mesh, lowering
    if key not in made:
        with within(f"plan {plan.name}"):
            made[key] = lower_body(graph, plan, mesh, lowering)
    return made[key]


def stages_of(
    fold: Fold, decisions: Decisions, bodies: dict[str, BodyProgram], workload: Workload | None
) -> tuple[dict[str, BodyProgram], tuple[Stage, ...]]:
    """The runs of every stage, given the body programs of plans; and those programs, with variants for gradients that
    other calls reduce, and for offloading. The stages need not cover the model."""
    calls = _wired(Same(fold)).calls
    names = [_names(index, plan, calls, decisions) for index, plan in enumerate(decisions.stages)]
    on = [(plan.first, plan.ranks) for plan in decisions.stages]
    bodies, names = with_added(fold, bodies, names, on, casts=casts_in_units(workload))
    if decisions.offload != NOTHING:
        stateless = workload is not None and not workload.states.master and not workload.moments
        bodies, names = _offloaded(fold, decisions, bodies, names, calls, stateless)
    return bodies, tuple(
        Stage(plan.mesh, plan.ranks, _runs(own, calls, plan.first), plan.first, plan.last)
        for plan, own in zip(decisions.stages, names, strict=True)
    )


def _names(index: int, plan: StagePlan, calls: Sequence[Call], decisions: Decisions) -> list[str]:
    """The body program of every call of a stage."""
    return [one.name for one in decisions.plans_for(index, (c.body.name for c in calls[plan.first : plan.last]))]


def _offloaded(
    fold: Fold,
    decisions: Decisions,
    bodies: Mapping[str, BodyProgram],
    names: Sequence[Sequence[str]],
    calls: Sequence[Call],
    stateless: bool,
) -> tuple[dict[str, BodyProgram], list[list[str]]]:
    """The body programs with offloading. Where only the first blocks of a stage offload, they have programs of their
    own, named so. An optimizer without state has nothing to offload."""
    offload, named = decisions.offload, []
    made: dict[str, dict[str, BodyProgram]] = {name: {} for name in bodies}
    for plan, own in zip(decisions.stages, names, strict=True):
        waiting = waiting_calls(offload, fold, calls[plan.first : plan.last])
        theirs = [f"{n}.host" if offload.blocks and waits else n for n, waits in zip(own, waiting, strict=True)]
        for name, program, waits in zip(theirs, own, waiting, strict=True):
            if name != program and name in bodies:
                fix = "name the plan otherwise"
                raise PlanRepeated(place=f"plan {name}", cause="offload names a body program so", fix=fix)
            if name not in made[program]:
                optimizer = offload.optimizer and not stateless
                made[program][name] = offloaded(Same(bodies[program]), name, waits, optimizer)
        named.append(theirs)
    return {name: body for variants in made.values() for name, body in variants.items()}, named


def _runs(names: Sequence[str], calls: Sequence[Call], first: int) -> tuple[Run, ...]:
    """Join whole periods of one segment into runs; calls that do not fill a period run once, by themselves."""
    runs: list[tuple[tuple[str, ...], int, int]] = []
    at = 0
    while at < len(names):
        call, left = calls[first + at], len(names) - at
        length = call.period if call.position == 0 and call.period <= left else 1
        period = tuple(names[at : at + length])
        if runs and runs[-1][0] == period and calls[runs[-1][2]].segment == call.segment:
            runs[-1] = (period, runs[-1][1] + 1, runs[-1][2])
        else:
            runs.append((period, 1, first + at))
        at += length
    return tuple(Run(*run) for run in runs)


@dataclass(frozen=True, slots=True, order=True)
class Port:
    """An output of a numbered call."""

    call: int
    output: int


def sources_of(calls: Sequence[Call]) -> tuple[tuple[Port | str, ...], ...]:
    """The source of each input, for every call: a numbered call's output, or a model input by name."""
    last_of: dict[tuple[int, int], int] = {}
    found = []
    for number, call in enumerate(calls):
        found.append(tuple(port_of(source, number, last_of) for source in call.sources))
        last_of[call.segment, call.position] = number
    return tuple(found)


def port_of(source: Source, number: int, last_of: Mapping[tuple[int, int], int]) -> Port | str:
    """The source of an input as seen by the call of this number, given the latest call of every position so far."""
    if isinstance(source, FromInput):
        return source.name
    if isinstance(source, FromPrevious):
        return Port(number - 1, source.output)
    return Port(last_of[source.segment, source.position], source.output)


@dataclass(frozen=True, slots=True)
class _Wired:
    """Facts that all decisions on a fold share: its calls, and the sources of their inputs."""

    calls: tuple[Call, ...]
    sources: tuple[tuple[Port | str, ...], ...]


@lru_cache(maxsize=64)
def _wired(fold: Same[Fold]) -> _Wired:
    calls = tuple(fold.of.calls())
    return _Wired(calls, sources_of(calls))


class _Boundaries:
    """Values that cross between calls and stages, with their placements."""

    def __init__(self, wired: _Wired, decisions: Decisions, bodies: Mapping[str, BodyProgram]) -> None:
        self.calls, self.sources = wired.calls, wired.sources
        self.agreed: set[tuple[str, str, int, int]] = set()
        """(maker, reader, output, input) of neighbours in a stage that were found to agree; repeats do too."""
        self.meshes = [stage.mesh for stage in decisions.stages]
        self.stage_of = [index for index, stage in enumerate(decisions.stages) for _ in range(stage.first, stage.last)]
        self.program = [
            bodies[plan.name]
            for index, stage in enumerate(decisions.stages)
            for plan in decisions.plans_for(index, (c.body.name for c in self.calls[stage.first : stage.last]))
        ]

    def transfers(self) -> tuple[Transfer, ...]:
        """Every hop of every value that crosses stages, by the call that makes it."""
        needed: dict[Port, int] = {}
        for number, sources in enumerate(self.sources):
            for slot, port in enumerate(sources):
                if not isinstance(port, Port):
                    continue
                self.check(port, number, slot)
                if self.stage_of[number] > self.stage_of[port.call]:
                    needed[port] = max(needed.get(port, 0), self.stage_of[number])
        return tuple(
            self.hop(port, stage)
            for port, until in sorted(needed.items())
            for stage in range(self.stage_of[port.call], until)
        )

    def entries(self) -> tuple[Entry, ...]:
        """The model's inputs that are read."""
        found: dict[str, Entry] = {}
        for number, sources in enumerate(self.sources):
            for slot, source in enumerate(sources):
                if isinstance(source, str) and source not in found:
                    body = self.program[number]
                    local = body.locals[body.inputs[slot]]
                    found[source] = Entry(source, local.type, local.placement, body.mesh)
        return tuple(found.values())

    def hop(self, port: Port, stage: int) -> Transfer:
        graph = self.calls[port.call].body.graph
        value = graph.outputs[port.output]
        return Transfer(
            call=port.call,
            output=port.output,
            from_stage=stage,
            to_stage=stage + 1,
            type=graph.types[value],
            source=self.on(port, stage),
            target=self.on(port, stage + 1),
            differentiable=value in graph.differentiable,
            waiting=self.waiting(port),
        )

    def left(self, port: Port) -> Placement:
        """The placement in which a value leaves the body that makes it."""
        body = self.program[port.call]
        return body.locals[body.outputs[port.output]].placement

    def waiting(self, port: Port) -> tuple[str, ...]:
        """The axes over which the gradient of a value is still to be added up where its maker is given it."""
        maker = self.program[port.call]
        gradient = maker.output_grads[port.output]
        return tuple(one.axis for one in maker.locals[gradient].placement.partial) if gradient else ()

    def arrives(self, number: int, slot: int) -> Placement:
        """The placement in which a call expects one of its inputs."""
        body = self.program[number]
        return body.locals[body.inputs[slot]].placement

    def on(self, port: Port, stage: int) -> Placement:
        """The placement of a value on a stage: as its maker leaves it, as its first reader wants it, or copies on a
        stage that only relays it."""
        if stage == self.stage_of[port.call]:
            return self.left(port)
        for number, sources in enumerate(self.sources):
            if self.stage_of[number] == stage and port in sources:
                return self.arrives(number, sources.index(port))
        return Placement.replicated(self.left(port).rank)

    def check(self, port: Port, number: int, slot: int) -> None:
        """Check that within a stage a value leaves one body as the next expects it, and that across stages neither it
        nor its gradient is partial, or only the gradient, between ranks that stand alike."""
        maker, reader = self.program[port.call], self.program[number]
        here = self.stage_of[port.call] == self.stage_of[number]
        pair = (maker.name, reader.name, port.output, slot)
        if here and pair in self.agreed:
            return
        left, arrives = self.left(port), self.arrives(number, slot)
        place = f"call {port.call} ({maker.name}) -> call {number} ({reader.name})"
        if not here:
            gradients = self.gradients_of(port, number, slot)
            sums = {gradient.partial for gradient in gradients} - {()}
            if left.partial or arrives.partial or (sums and not self.alike(port, number, gradients)):
                ends = " -> ".join(map(str, (left, arrives, *gradients)))
                raise PartialAcross(place=place, cause=ends, fix="reduce value and gradient at the boundary")
            if self.on(port, self.stage_of[number]) != arrives:
                raise BoundaryMismatch(
                    place=place,
                    cause=f"it arrives as {self.on(port, self.stage_of[number])} and is expected as {arrives}",
                    fix="give all its readers on a stage one state",
                )
            return
        if left != arrives:
            raise BoundaryMismatch(
                place=place, cause=f"it leaves as {left} and is expected as {arrives}", fix="give both plans one state"
            )
        if len(set(self.gradients_of(port, number, slot))) > 1:
            expected, given = self.gradients_of(port, number, slot)
            raise BoundaryMismatch(
                place=place,
                cause=f"its gradient comes back as {given}, not {expected}",
                fix="give both plans one state",
            )
        self.agreed.add(pair)

    def alike(self, port: Port, number: int, gradients: Sequence[Placement]) -> bool:
        """Whether these gradients at both ends of a crossing are placed alike, and so is the value on every stage from
        its maker to this reader."""
        first, last = self.stage_of[port.call], self.stage_of[number]
        lies = {(self.meshes[stage], self.on(port, stage)) for stage in range(first, last + 1)}
        return len(lies) == len(set(gradients)) == 1

    def gradients_of(self, port: Port, number: int, slot: int) -> tuple[Placement, ...]:
        """The placements of the gradient at the maker and at the reader, where one flows."""
        maker, reader = self.program[port.call], self.program[number]
        out, into = maker.output_grads[port.output], reader.input_grads[slot]
        return (maker.locals[out].placement, reader.locals[into].placement) if out and into else ()


def _ties(stages: Sequence[Stage], fold: Fold) -> tuple[Tie, ...]:
    """Trained parameters that more than one call holds."""
    stage_of = [index for index, stage in enumerate(stages) for _ in range(stage.first, stage.last)]
    return tuple(Tie(path, tuple((stage_of[number], number) for number, _ in held)) for path, held in fold.tied)


def _actions(decisions: Decisions, transfers: Sequence[Transfer]) -> tuple[tuple[tuple[int, ...], ActionList], ...]:
    """Every group's work, with sends and receives where values cross to another group."""
    groups = decisions.groups
    held = tuple(tuple(i for i, stage in enumerate(decisions.stages) if stage.ranks == ranks) for ranks in groups)
    group_of = {stage: index for index, stages in enumerate(held) for stage in stages}
    crossing = [hop for hop in transfers if group_of[hop.from_stage] != group_of[hop.to_stage]]
    forward = frozenset((hop.from_stage, hop.to_stage) for hop in crossing)
    backward = frozenset((hop.from_stage, hop.to_stage) for hop in crossing if hop.differentiable)
    schedule = decisions.schedule
    work = work_lists(schedule.name, Shape(held, schedule.microbatches), schedule.actions)
    verify_work(work)
    return tuple((ranks, ActionList(work, group, forward, backward)) for group, ranks in enumerate(groups))
