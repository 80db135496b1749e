"""The bodies of a plan whose operators are chosen anew: their block problems, one by one and together, and the plans
that answers stand for, priced.

    Candidate -> what of every body plan stays (`Kept`) -> block problems -> answers -> Candidate, by the evaluator
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from meshwright.cost_models.prices import Costs
from meshwright.ir.decisions.decisions import BodyPlan, Decisions, StagePlan
from meshwright.ir.decisions.offload import NOTHING
from meshwright.ir.errors import MeshwrightError
from meshwright.ir.graph.fold import Fold
from meshwright.ir.graph.graph import Graph
from meshwright.ir.program.lower import without_loops
from meshwright.ir.program.program import Stage
from meshwright.ir.program.spread import compute_placements
from meshwright.ir.same import Same
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import State
from meshwright.planner.block import Space, Terms, cost_of_plan
from meshwright.planner.block.build import Building, Ends, build
from meshwright.planner.block.plan import Block, body_plan
from meshwright.planner.block_solver.elimination import elimination
from meshwright.planner.block_solver.problem import Assignment
from meshwright.planner.question.module_pins import resolved
from meshwright.planner.refine.candidate import Candidate
from meshwright.planner.refine.improvement import Bench
from meshwright.planner.refine.operators.interfaces import End, handed_on, tied
from meshwright.planner.refine.operators.joint import Joint, joined
from meshwright.planner.refine.operators.kept import Kept, interface_of

MOST_AXES = 3
"""Of a mesh on which every body is solved. On more, states are so many that a block of Llama takes minutes; there only
bodies of at most `FEW` operators are, which is the embedding: it takes half a second (two cores, 2026-11)."""

FEW = 3


@dataclass(slots=True)
class Built:
    """Problems built before, of blocks and of all bodies together."""

    blocks: dict[tuple[object, ...], Block] = field(default_factory=dict)
    """By fold, body, mesh, ranks and layouts."""
    joint: dict[frozenset[tuple[object, ...]], int] = field(default_factory=dict)
    """By their blocks, the number of states that all variables have: they differ in storage and in what hides."""

    @property
    def states(self) -> int:
        """The states of all joint problems, a measure of the time that they took."""
        return sum(self.joint.values())


@dataclass(slots=True)
class Bodies:
    """The bodies of one plan, each with what of its plan stays."""

    bench: Bench
    fold: Fold
    start: Candidate
    until_s: float
    built: Built
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
        changed = tuple(
            new.name for old, new in zip(self.decisions.plans, plans, strict=True) if not same_plan(old, new)
        )
        setting = self.bench.setting
        trial = setting.allowed(setting.target.stored(replace(self.decisions, plans=plans), self.fold), self.fold)
        return replace(self.start, decisions=trial, prediction=self.bench.judged(trial, self.fold), changed=changed)

    def tried(self, best: Candidate, instead: Mapping[str, BodyPlan]) -> Candidate | None:
        """The best plan so far with some body plans replaced; None if they do not fit together, or the target
        refuses."""
        whole = {plan.name: plan for plan in best.decisions.plans} | dict(instead)
        if all(same_plan(plan, best.decisions.plan[name]) for name, plan in instead.items()):
            return None
        if any(len(self.places(whole, held)) > 1 for held in self.tied):
            return None
        try:
            return self.judged(whole)
        except MeshwrightError:
            return None

    def takes_as_long(self, best: Candidate, name: str, plan: BodyPlan) -> bool:
        """Whether every part of every phase of a body takes as long under a plan as under its plan in the best one that
        fits, between the same ends: then no step with it is faster. Of bodies that hold what others hold, or wait for
        hosts, steps have other programs."""
        if best.worth.lacks_bytes or self.fold.tied or best.decisions.offload != NOTHING:
            return False
        try:
            old, new = (self.costs(name, one) for one in (best.decisions.plan[name], plan))
        except MeshwrightError:
            return False
        return bool(old) and all(
            mine >= theirs
            for here, there in zip(new, old, strict=True)
            for phase in here
            for mine, theirs in zip(here[phase].parts, there[phase].parts, strict=True)
        )

    def costs(self, name: str, plan: BodyPlan) -> list[Costs]:
        """The costs of a body under a plan, on all stages that call it; none where ranks hold different shares."""
        setting, prices, kept = self.bench.setting, self.bench.prices, self.kept[name]
        graph = without_loops(Same(kept.graph)) if len(self.decisions.stages) > 1 else kept.graph
        body = setting.lowered_body(graph, plan, kept.stage.mesh)
        if body.uneven:
            return []
        book = prices.ledger(body, setting.workload, self.decisions.schedule.microbatches > 1)
        stages = [one for one, calls in zip(self.decisions.stages, self.calls, strict=True) if calls[name]]
        return [prices.costs(book, Stage(one.mesh, one.ranks, (), 0, 0), setting.workload) for one in stages]

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
        if len(kept.stage.mesh.names) > MOST_AXES and differentiated(kept.graph) > FEW:
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
            plan = self.whole(body_plan(block, answer.states, name))
            if not any(same_plan(plan, other) for other in found):
                found.append(plan)
        return found

    def block(self, name: str, boundary: Mapping[str, State], *, hides: bool) -> Block:
        """The block problem of a body, built on one of an earlier call where possible."""
        kept = self.kept[name]
        body, stage, space = kept.plan.body, kept.stage, kept.space
        key = self.key(name)
        self.built.blocks[key] = build(
            self.fold, body, stage.mesh, self.terms(name, hides=hides), space, boundary, self.built.blocks.get(key)
        )
        return self.built.blocks[key]

    def key(self, name: str) -> tuple[object, ...]:
        """What a block problem is known by."""
        kept = self.kept[name]
        return Same(self.fold), kept.plan.body, kept.stage.mesh, kept.stage.ranks, kept.space.zigzag

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

    def joint(self, *, hides: bool, data: bool = False, free: bool = True) -> Joint | None:
        """The problem of all bodies together; None where some body has no legal choice, or too many for a quick answer.
        Without `free` what goes between them stays as it lies; with `data` what comes into the model may lie
        otherwise."""
        groups, opened = handed_on(self.fold), dict[str, Building]()
        places, fixed = dict[End, Hashable](), dict[str, Ends]()
        tied = self.holders()
        later = {end for held in tied for end in held[1:]}
        for name in self.open:
            kept = self.kept[name]
            if len(kept.stage.mesh.names) > MOST_AXES and differentiated(kept.graph) > FEW:
                return None
            ends = dict[str, Sequence[State]]()
            for value, state in kept.interface.items():
                group = groups.get((kept.plan.body, value))
                if free and group is not None and value in kept.graph.differentiable:
                    places[name, value] = group
                elif not (data and group is None and value in kept.inputs):
                    ends[value] = (state,)
            fixed[name] = ends
            terms, like = self.terms(name, hides=hides), self.built.blocks.get(self.key(name))
            try:
                counted = frozenset(path for holder, path in later if holder == name)
                opened[name] = Building(self.fold, kept.plan.body, kept.stage.mesh, terms, kept.space, like, counted)
            except MeshwrightError:
                return None
        calls = {name: sum(counts[name] for counts in self.calls) for name in opened}
        joint = joined(opened, calls, places, tied, fixed)
        made = {self.key(name): block for name, block in joint.blocks.items()}
        self.built.blocks |= made
        self.built.joint[frozenset(made)] = sum(len(variable.costs) for variable in joint.problem.variables)
        return joint

    def holders(self) -> list[list[End]]:
        """Of every tied parameter, the body plans that hold it, with its path there."""
        return [
            [(name, path) for body, path in held for name in self.open if self.kept[name].plan.body == body]
            for held in self.tied
        ]

    def answer(self, joint: Joint, within: float = inf) -> Assignment | None:
        """The solver's answer to a joint problem, within so many bytes; None where there is none, or no quick one."""
        limit_s = None if self.until_s == inf else max(0.0, self.until_s - time.monotonic())
        try:
            found = elimination.solve(
                joint.problem if within == inf else joint.within(within, self.flying), limit_s=limit_s
            )
        except MeshwrightError:
            return None
        return found if found.states else None

    def planned(self, best: Candidate, joint: Joint, answer: Assignment) -> Candidate | None:
        """The plan that an answer stands for, priced; None where the target refuses it, or it is no other plan."""
        groups, settled = handed_on(self.fold), dict[End, State]()
        plans = dict[str, BodyPlan]()
        for name, block in joint.blocks.items():
            plan = plans[name] = self.whole(body_plan(block, joint.chosen(name, answer.states), name))
            settled |= {groups[end]: state for value, state in plan.states if (end := (plan.body, value)) in groups}
        for name, kept in self.kept.items():
            if name not in plans:  # it hands on what comes in
                ends = [(value, groups.get((kept.plan.body, value)), state) for value, state in kept.plan.states]
                states = tuple((value, settled.get(end, state) if end else state) for value, end, state in ends)
                plans[name] = replace(kept.plan, states=states)
        return self.tried(best, plans)

    def leaner_answer(self, joint: Joint, plan: Candidate) -> Assignment | None:
        """The answer to a joint problem that takes as much less than this plan as that lacks."""
        held = sum(joint.calls[name] * self.used(plan, name) for name in joint.blocks)
        return self.answer(joint, held - plan.worth.lacks_bytes)

    def storing(self, level: int | None, axes: tuple[str, ...] | None, *, regather: bool) -> None:
        """Store parameters as this level of ZeRO says, over these axes; without a level as is cheapest."""
        for name, kept in self.kept.items():
            space = replace(kept.space, zero=level, storing=() if level == 0 else axes, regather=regather)
            self.kept[name] = replace(kept, space=space)

    def whole(self, plan: BodyPlan) -> BodyPlan:
        """A solved plan with the states of what comes in or goes out untouched, which is no part of the problem."""
        kept, known = self.kept[plan.name], dict(plan.states)
        open_ = tuple((value, state) for value, state in kept.interface.items() if value not in known)
        return replace(plan, states=(*plan.states, *open_), first=kept.plan.first)


def differentiated(graph: Graph) -> int:
    """The number of operators that gradients pass through."""
    return sum(not graph.differentiable.isdisjoint(op.results) for op in graph.ops)


def same_plan(one: BodyPlan, other: BodyPlan) -> bool:
    """Whether two plans of a body decide the same, in whatever order they list it."""
    if one is other:
        return True
    storage = [{item.path: item for item in plan.storage} for plan in (one, other)]
    return (
        dict(one.strategies) == dict(other.strategies)
        and dict(one.states) == dict(other.states)
        and storage[0] == storage[1]
    )
