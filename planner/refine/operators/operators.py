"""Operators chosen anew: what every axis does in every operator of a plan, by the block solver, body by body.

    Decisions -> the interfaces, storage and recomputation of each body plan -> `solve_block` -> Decisions, priced

A plan by names treats all operators by one table (`ir.names`): tensor parallelism cuts heads, ffn and vocabulary and
leaves the rest, data parallelism cuts the batch. The block solver knows no names; here it may choose for every body of
a plan that the named search found, on the mesh of its stages, within what the plan says otherwise:

    storage     the same level of ZeRO over the same axes (`Kept.of`); which dimension is cut may change
    again       the same values computed again in the backward pass
    layouts     zigzag on the axes that use it
    pins        what is asked of single modules (`ir.names.pinned`): only options that do it are offered
    ties        what several bodies hold, an embedding that is the head too, is read and stored alike by all
    interfaces  *same interfaces*: values enter and leave bodies as before, so that each body can change by itself.
                *free interfaces*: differentiable values that go between bodies lie as the block that is called most
                wants them, closed to itself, and all other bodies follow. Only where all stages have one mesh

The block solver adds up parts; what the step makes of them (pipeline, what hides behind what) only the evaluator knows.
So every body is solved under both extremes of what hides (`Terms.hides`), and the evaluator judges each change: changes
are taken body by body as long as the plan gets better, then all are tried together. Where a change is faster and too
large, the body is solved again within what is left of memory, or a part of it (`LEANER`). The plan that came in is
always among the answers: none is worse.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from meshwright.ir.decisions.decisions import BodyPlan, Decisions, StagePlan
from meshwright.ir.errors import MeshwrightError
from meshwright.ir.graph.fold import Fold
from meshwright.ir.graph.graph import Graph
from meshwright.ir.program.spread import compute_placements
from meshwright.ir.same import Same
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import State
from meshwright.ir.target.combined import contexts
from meshwright.planner.block import Space, Terms, cost_of_plan
from meshwright.planner.block.build import build
from meshwright.planner.block.plan import Block, body_plan, chosen_of, neighbours
from meshwright.planner.block_solver.elimination import elimination
from meshwright.planner.question.constraints import Asked
from meshwright.planner.question.module_pins import resolved
from meshwright.planner.refine.candidate import Candidate
from meshwright.planner.refine.improvement import Bench
from meshwright.planner.refine.operators.interfaces import End, handed_on, tied
from meshwright.planner.refine.operators.kept import Kept, interface_of
from meshwright.planner.refine.operators.waiting import parts_badly

LEAST_GAIN = 1e-4
"""Of the step: a change that gains less is not worth a plan that no person would write."""

LEANER = (1.0, 0.5, 0.0)
"""Of what is left of memory, shares that a body may take where its best plan is too large."""

MOST_AXES = 3
"""Of a mesh on which every body is solved. On more, states are so many that a block of Llama takes minutes; there only
bodies of at most `FEW` operators are, which is the embedding: it takes half a second (two cores, 2026-11)."""

FEW = 3

FEW_AXES = 2
"""Of a mesh, for which operators are chosen anew unasked: more take seconds."""

MOST_NEAR = 200
"""Plans that are one choice away from a body's, for which all are priced: a few seconds for bodies of five operators;
blocks of a real model, which have some thousand, are left to the solver."""

Blocks = dict[tuple[object, ...], Block]
"""Block problems built before, by fold, body, mesh, ranks and layouts."""


@dataclass(frozen=True, slots=True)
class Operators:
    """What every axis does in every operator, chosen anew by the block solver.

    - `limit_s` is when to start nothing more; without it the answer depends on nothing but the arguments.
    - `blocks` may be shared among plans of one setting: what their bodies have in common is priced once.
    """

    limit_s: float = inf
    blocks: Blocks | None = None

    def accepts(self, plan: Candidate, bench: Bench) -> bool:
        """Whether the plan was made of one configuration, on few enough axes."""
        axes = max(len(stage.mesh.axes) for stage in plan.decisions.stages)
        most = MOST_AXES if bench.asked.operators or bench.asked.modules else FEW_AXES
        return plan.origin is not None and 0 < axes <= most

    def neighbours(self, plan: Candidate, bench: Bench) -> Iterator[Candidate]:
        """The best plan that code is written for, with the operators of this plan chosen anew, or those of the same
        plan with nothing stored in shards."""
        found, fold, asks = [plan], bench.fold(plan), bench.asks
        free_interfaces = not asks("sp", "cp", "tp")
        free_copies = not asks("dp", "ep", "shard") and bench.asked.constraints.grants("zero", 0)
        for start in (plan, *_whole(plan, bench)):
            best = self.chosen(start, bench, free_interfaces=free_interfaces, free_copies=free_copies)
            if best.changed and _attends_as_asked(best.decisions, fold, bench.asked):
                found.append(best)
        yield bench.written(found) or plan

    def chosen(
        self, start: Candidate, bench: Bench, *, free_interfaces: bool = True, free_copies: bool = True
    ) -> Candidate:
        """The plan with its operators chosen anew, or as it is. Without `free_interfaces` values between bodies stay as
        they lie: where someone pinned that, sequence parallelism for instance; without `free_copies` copies of the
        model have data, and what they store, of their own."""
        blocks = {} if self.blocks is None else self.blocks
        work = _Work(bench, bench.fold(start), start, time.monotonic() + self.limit_s, blocks)
        best = work.climbed(start, work.same_interfaces())
        if free_interfaces and not work.late():
            best = work.freed(best)
        badly = any(parts_badly(one.decisions, one.prediction) for one in (start, best))
        if free_interfaces and free_copies and not work.late() and badly:
            best = work.alike(work.freed(best, data=True))
        return work.polished(best) if free_copies and badly else best


def _whole(plan: Candidate, bench: Bench) -> list[Candidate]:
    """The plan with nothing stored in shards, where collectives take long: ranks that do the same on the same data
    exchange nothing."""
    if plan.config is None or not plan.config.zero or not parts_badly(plan.decisions, plan.prediction):
        return []
    config = replace(plan.config, zero=0, shard=0, regather=True)
    found = bench.search.price(config) if bench.search.space.grants(config) else None
    return [bench.as_is(config)] if found and found.fits else []


def _attends_as_asked(decisions: Decisions, fold: Fold, asked: Asked) -> bool:
    """Whether attention of cut sequences runs only in ways that the constraints allow."""
    return all(asked.constraints.grants("context", way) for way in contexts(decisions, fold))


def problems(bench: Bench, plan: Candidate) -> dict[str, Block]:
    """Block problems of all body plans in use, each by itself and with free interfaces; none for bodies without
    operators, nor for one rank."""
    work = _Work(bench, bench.fold(plan), plan, inf, {})
    return {name: work.block(name, {}, hides=True) for name in work.open}


Constraints = Mapping[str, Sequence[BodyPlan]]
"""For body plans, by name, others that may take their place."""


@dataclass(slots=True)
class _Work:
    """The search for better operators of one plan."""

    bench: Bench
    fold: Fold
    start: Candidate
    until_s: float
    blocks: Blocks
    calls: list[Counter[str]] = field(default_factory=list)
    """Of every body plan, stage by stage."""
    kept: dict[str, Kept] = field(init=False)
    """Body plans in use, those that are called most first; at the end those that only hand values on."""
    tied: list[tuple[End, ...]] = field(init=False)
    """Parameters that several bodies hold, and lay alike when the plan came in."""

    def __post_init__(self) -> None:
        bodies = [call.body.name for call in self.fold.calls()]
        stage_of: dict[str, StagePlan] = {}
        for number, stage in enumerate(self.decisions.stages):
            plans = self.decisions.plans_for(number, bodies[stage.first : stage.last])
            self.calls.append(Counter(plan.name for plan in plans))
            stage_of = {plan.name: stage for plan in plans} | stage_of
        calls = sum(self.calls, Counter[str]())
        kept: dict[str, Kept] = {}
        usual: dict[Mesh, Space] = {}
        asked = resolved(self.bench.setting.modules, self.fold)
        for name, _ in sorted(calls.items(), key=lambda pair: (self.hands_on(pair[0]), -pair[1])):
            plan, stage = self.decisions.plan[name], stage_of[name]
            graph, pins = self.fold.body[plan.body].graph, asked.of(plan.body)
            kept[name] = Kept.of(plan, graph, stage, pins, usual.get(stage.mesh))
            usual.setdefault(stage.mesh, kept[name].space)
        self.kept = kept
        self.tied = [held for held in tied(self.fold) if len(self.places(self.decisions.plan, held)) == 1]

    @property
    def decisions(self) -> Decisions:
        return self.start.decisions

    def late(self) -> bool:
        return time.monotonic() >= self.until_s

    def hands_on(self, name: str) -> bool:
        """Whether a plan's body has no operators: its inputs go on to blocks as they are."""
        return not self.fold.body[self.decisions.plan[name].body].graph.ops

    @property
    def open(self) -> list[str]:
        """The body plans that have anything to choose."""
        return [name for name, kept in self.kept.items() if kept.stage.mesh.names and not self.hands_on(name)]

    # the evaluator

    def judged(self, instead: Mapping[str, BodyPlan]) -> Candidate:
        """The plan with some body plans replaced, priced."""
        plans = tuple(instead.get(plan.name, plan) for plan in self.decisions.plans)
        changed = tuple(new.name for old, new in zip(self.decisions.plans, plans, strict=True) if not _same(old, new))
        trial = self.bench.setting.allowed(replace(self.decisions, plans=plans), self.fold)
        return replace(self.start, decisions=trial, prediction=self.bench.judged(trial, self.fold), changed=changed)

    def tried(self, best: Candidate, instead: Mapping[str, BodyPlan]) -> Candidate | None:
        """The best plan so far with some body plans replaced; None if they do not fit together, or the target
        refuses."""
        whole = {plan.name: plan for plan in best.decisions.plans} | dict(instead)
        if all(_same(plan, best.decisions.plan[name]) for name, plan in instead.items()):
            return None
        if any(len(self.places(whole, held)) > 1 for held in self.tied):
            return None
        try:
            return self.judged(whole)
        except MeshwrightError:
            return None

    def places(self, plans: Mapping[str, BodyPlan], held: Sequence[End]) -> set[tuple[object, ...]]:
        """The placements in which holders of a tied parameter read and store it: there is one tensor, and no price for
        two."""
        found = set[tuple[object, ...]]()
        for name in self.kept:
            plan, stage = plans[name], self.kept[name].stage
            for body, path in held:
                if plan.body == body:
                    at = compute_placements(self.kept[name].graph, plan, stage.mesh)[path]
                    stored = [(item.params, item.grads, item.optimizer) for item in plan.storage if item.path == path]
                    found.add((at, *(stored or [(at, at, at)])))
        return found

    def climbed(self, best: Candidate, constraints: Constraints) -> Candidate:
        """Change one body after the other as long as that is better, those that are called least first: what they
        leave of memory others can use. Then all of them together."""
        for name, plans in reversed(list(constraints.items())):
            before = best
            trials = [self.tried(before, {name: plan}) for plan in plans]
            best = _best(best, trials)
            if best is before and any(trial and _is_too_large(trial, best) for trial in trials):
                best = self.leaner(best, name, plans[0])
        return _best(best, [self.tried(best, {name: plans[0] for name, plans in constraints.items() if plans})])

    def leaner(self, best: Candidate, name: str, plan: BodyPlan) -> Candidate:
        """The plan with the first change of a body that is better within the memory that is left."""
        own, room = self.used(best, name), self.room(best, name)
        for share in LEANER if room else LEANER[-1:]:
            found = self.solutions(name, dict(plan.states), own + share * room)
            trial = _best(best, [self.tried(best, {name: lean}) for lean in found])
            if trial is not best:
                return trial
        return best

    # the block solver

    def solutions(self, name: str, interface: Mapping[str, State], within: float = inf) -> list[BodyPlan]:
        """The best plans of a body with these interfaces and within these bytes: where everything hides that can, and
        where nothing does."""
        kept, found = self.kept[name], list[BodyPlan]()
        if self.hands_on(name):
            return [
                replace(kept.plan, states=tuple((value, interface.get(value, own)) for value, own in kept.plan.states))
            ]
        if not kept.stage.mesh.names:  # one rank has nothing to choose
            return []
        if len(kept.stage.mesh.names) > MOST_AXES and _operators(kept.graph) > FEW:
            return []
        boundary = {value: interface[value] for value in interface_of(kept.graph) if value in interface}
        for hides in (True, False):
            if self.late():
                break
            limit_s = None if self.until_s == inf else max(0.0, self.until_s - time.monotonic())
            try:
                block = self.block(name, boundary, hides=hides)
                problem = block.problem if within == inf else block.within(within, self.flying)
                answer = elimination.solve(problem, limit_s=limit_s)
            except MeshwrightError:  # no choice is legal with these interfaces, or too many are for a quick answer
                continue
            if answer.objective is None:
                continue
            plan = body_plan(block, answer.states, name)
            # What comes in or goes out untouched (a constant) is no part of the problem.
            open_ = tuple((value, state) for value, state in kept.interface.items() if value not in dict(plan.states))
            plan = replace(plan, states=(*plan.states, *open_), first=kept.plan.first)
            if not any(_same(plan, other) for other in found):
                found.append(plan)
        return found

    def block(self, name: str, boundary: Mapping[str, State], *, hides: bool) -> Block:
        """The block problem of a body, built on one of an earlier call where possible."""
        kept = self.kept[name]
        body, stage, space = kept.plan.body, kept.stage, kept.space
        key = Same(self.fold), body, stage.mesh, stage.ranks, space.zigzag
        self.blocks[key] = build(
            self.fold, body, stage.mesh, self.terms(name, hides=hides), space, boundary, self.blocks.get(key)
        )
        return self.blocks[key]

    def terms(self, name: str, *, hides: bool) -> Terms:
        setting, count = self.bench.setting, self.decisions.schedule.microbatches
        workload = replace(setting.workload, global_batch=self.bench.global_batch)
        return Terms.of(self.bench.prices, workload, self.kept[name].stage.ranks, setting.target, count, hides)

    @property
    def flying(self) -> int:
        """The most micro-batches between forward and backward on the first ranks."""
        return min(self.decisions.schedule.microbatches, len(self.decisions.groups))

    def used(self, best: Candidate, name: str) -> float:
        """Bytes that one call of a body takes in the best plan."""
        kept = self.kept[name]
        cost = cost_of_plan(kept.graph, best.decisions.plan[name], kept.stage.mesh, self.terms(name, hides=True))
        return self.flying * cost.saved_bytes + cost.state_bytes

    def room(self, best: Candidate, name: str) -> float:
        """Bytes that are left for each call of a body on the ranks that have least."""
        calls, left = Counter[tuple[int, ...]](), dict[tuple[int, ...], float]()
        for number, stage in enumerate(self.decisions.stages):
            memory = best.prediction.stages[number].memory
            calls[stage.ranks] += self.calls[number][name]
            left[stage.ranks] = max(0.0, memory.left_bytes)
        return min(left[ranks] / count for ranks, count in calls.items() if count)

    def same_interfaces(self) -> Constraints:
        """Alternatives to every body plan with the same interfaces."""
        return {name: self.solutions(name, kept.interface) for name, kept in self.kept.items()}

    def freed(self, best: Candidate, *, data: bool = False) -> Candidate:
        """The plan with free interfaces: the body that is called most has its way, and all others follow. Only all
        changes together fit; from there on bodies change one by one. `data`: inputs of the model may change, too."""
        if len({stage.mesh for stage in self.decisions.stages}) > 1:
            return best
        groups, settled = handed_on(self.fold), dict[End, State]()
        moved: dict[str, Sequence[BodyPlan]] = {}
        for name, kept in self.kept.items():
            fixed, open_ = dict[str, State](), dict[str, End]()
            for value, state in kept.interface.items():
                group = groups.get((kept.plan.body, value))
                if group is None or value not in kept.graph.differentiable:
                    if not (data and group is None and value in kept.inputs):
                        fixed[value] = state
                elif group in settled:
                    fixed[value] = settled[group]
                else:
                    open_[value] = group
            found = self.solutions(name, fixed)
            loose = {*open_, *(value for value in kept.inputs - fixed.keys() if data)}
            other = [
                plan
                for plan in found
                if any(dict(plan.states).get(v, kept.interface[v]) != kept.interface[v] for v in loose)
            ]
            if not found or not (other or moved):
                return best  # nothing to be had, or nothing but the same interfaces
            chosen = dict((other or found)[0].states)
            settled |= {group: chosen[value] for value, group in open_.items()}
            moved[name] = [plan for plan in found if all(dict(plan.states)[value] == chosen[value] for value in open_)]
        together = self.tried(best, {name: plans[0] for name, plans in moved.items()})
        return _best(best, [self.climbed(together, moved)]) if together else best

    def polished(self, best: Candidate) -> Candidate:
        """The plan with single choices of small bodies changed as long as the evaluator finds that faster: block
        problems ignore launch times, which may matter most there."""
        for name in self.open:
            improved = True
            while improved and not self.late():
                before = best
                for plan in self.near(best.decisions.plan[name]):
                    best = _best(best, [self.tried(best, {name: plan})])
                improved = best is not before
        return best

    def near(self, plan: BodyPlan) -> Iterator[BodyPlan]:
        """Plans that differ in one choice, for a body with few choices."""
        kept = self.kept[plan.name]
        boundary = {value: state for value, state in plan.states if value in interface_of(kept.graph)}
        try:
            block = self.block(plan.name, boundary, hides=True)
        except MeshwrightError:
            return
        chosen = chosen_of(block, plan)
        if chosen is not None and sum(len(one.costs) - 1 for one in block.problem.variables) <= MOST_NEAR:
            for near in neighbours(block, chosen):
                made = body_plan(block, near, plan.name)
                open_ = tuple((value, state) for value, state in plan.states if value not in dict(made.states))
                yield replace(made, states=(*made.states, *open_), first=plan.first)

    def alike(self, best: Candidate) -> Candidate:
        """The plan with nothing split: all ranks do the same; from there on bodies change one by one, between
        replicated interfaces."""
        whole = {
            name: replace(
                kept.plan,
                strategies=(),
                states=tuple((value, State.replicated(len(state.dims))) for value, state in kept.plan.states),
                storage=(),
            )
            for name, kept in self.kept.items()
        }
        together = self.tried(best, whole)
        if together is None:
            return best
        constraints = {name: self.solutions(name, dict(plan.states)) for name, plan in whole.items()}
        return _best(best, [together, self.climbed(together, constraints)])


def _operators(graph: Graph) -> int:
    """The number of operators that gradients pass through."""
    return sum(not graph.differentiable.isdisjoint(op.results) for op in graph.ops)


def _same(one: BodyPlan, other: BodyPlan) -> bool:
    """Whether two plans of a body decide the same, in whatever order they list it."""
    if one is other:
        return True
    storage = [{item.path: item for item in plan.storage} for plan in (one, other)]
    return (
        dict(one.strategies) == dict(other.strategies)
        and dict(one.states) == dict(other.states)
        and storage[0] == storage[1]
    )


def _best(best: Candidate, trials: Sequence[Candidate | None]) -> Candidate:
    """The best of several trials; the plan so far, unless one is clearly faster and lacks no more memory, or fits where
    it does not."""
    for trial in trials:
        if trial is None:
            continue
        lacks, least = trial.worth.lacks_bytes, best.worth.lacks_bytes
        if (lacks <= least and trial.step_s < best.step_s * (1 - LEAST_GAIN)) or (lacks == 0 < least):
            best = trial
    return best


def _is_too_large(trial: Candidate, best: Candidate) -> bool:
    """Whether a plan would be better if more memory were there."""
    return trial.worth.lacks_bytes > best.worth.lacks_bytes and trial.step_s < best.step_s * (1 - LEAST_GAIN)
