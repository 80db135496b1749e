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
                *free interfaces*: all bodies are one problem (`joint`), in which differentiable values that go between
                them lie as is best for all. Only where all stages have one mesh

The block solver adds up parts; what the step makes of them (pipeline, what hides behind what) only the evaluator knows.
So every body is solved under both extremes of what hides (`Terms.hides`), and the evaluator judges each change: changes
are taken body by body as long as the plan gets better, then all are tried together. Where a change is faster and too
large, the body is solved again within what is left of memory, or a part of it (`LEANER`). The plan that came in is
always among the answers: none is worse.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from meshwright.ir.decisions.decisions import BodyPlan, Decisions
from meshwright.ir.errors import MeshwrightError
from meshwright.ir.graph.fold import Fold
from meshwright.ir.target.combined import contexts
from meshwright.planner.block.plan import Block, body_plan, chosen_of, neighbours
from meshwright.planner.question.constraints import Asked
from meshwright.planner.refine.candidate import Candidate
from meshwright.planner.refine.improvement import Bench
from meshwright.planner.refine.operators.bodies import MOST_AXES, Bodies, Built, differentiated
from meshwright.planner.refine.operators.kept import interface_of
from meshwright.planner.refine.operators.waiting import parts_badly

LEAST_GAIN = 1e-4
"""Of the step: a change that gains less is not worth a plan that no person would write."""

LEANER = (1.0, 0.5, 0.0)
"""Of what is left of memory, shares that a body may take where its best plan is too large."""

FEW_AXES = 2
"""Of a mesh, for which operators are chosen anew unasked: more take seconds."""

MOST_POLISHED = 60
"""Operators of all bodies together whose choices are changed one by one: the time of models of many small bodies went
there (14 of 27 s for a ResNeXt of 101 layers on 64 H100, whose plan got no faster; two cores, 2026-11)."""

MOST_NEAR = 200
"""Plans that are one choice away from a body's, for which all are priced: a few seconds for bodies of five operators;
blocks of a real model, which have some thousand, are left to the solver."""


@dataclass(frozen=True, slots=True)
class Operators:
    """What every axis does in every operator, chosen anew by the block solver.

    - `limit_s` is when to start nothing more; without it the answer depends on nothing but the arguments.
    - `built` may be shared among plans of one setting: what their bodies have in common is priced once.
    """

    limit_s: float = inf
    built: Built | None = None

    def accepts(self, plan: Candidate, bench: Bench) -> bool:
        """Whether the plan was made of one configuration, on few enough axes."""
        most = MOST_AXES if bench.asked.operators or bench.asked.modules else FEW_AXES
        return plan.origin is not None and 0 < _axes(plan) <= most

    def neighbours(self, plan: Candidate, bench: Bench) -> Iterator[Candidate]:
        """The best plan that code is written for, with the operators of this plan chosen anew, or those of the same
        plan with nothing stored in shards."""
        found, fold = [plan], bench.fold(plan)
        free_interfaces, free_copies = free_of(bench)
        for start in (plan, *_whole(plan, bench)):
            best = self.chosen(start, bench, free_interfaces=free_interfaces, free_copies=free_copies)
            if best.changed and attends_as_asked(best.decisions, fold, bench.asked):
                found.append(best)
        yield bench.written(found) or plan

    def chosen(
        self, start: Candidate, bench: Bench, *, free_interfaces: bool = True, free_copies: bool = True
    ) -> Candidate:
        """The plan with its operators chosen anew, or as it is: all of them together, and body by body where that
        cannot be, or something is asked of modules, which no arrangement is for. Without `free_interfaces` values
        between bodies stay as they lie: where someone pinned that, sequence parallelism for instance; without
        `free_copies` copies of the model have data, and what they store, of their own."""
        built = Built() if self.built is None else self.built
        work = Work(bench, bench.fold(start), start, time.monotonic() + self.limit_s, built)
        best = start
        if bench.asked.modules or not free_interfaces or _axes(start) > FEW_AXES:
            best = work.climbed(start, work.same_interfaces())
        if free_interfaces and not work.late():
            best = work.freed(best)
        badly = any(parts_badly(one.decisions, one.prediction) for one in (start, best))
        if free_interfaces and free_copies and not work.late() and badly:
            best = work.alike(work.freed(best, data=True))
        return work.polished(best) if free_copies and badly else best


def _axes(plan: Candidate) -> int:
    return max(len(stage.mesh.axes) for stage in plan.decisions.stages)


def free_of(bench: Bench) -> tuple[bool, bool]:
    """Whether constraints leave open what bodies hand to each other, and whether copies have data of their own."""
    copies = not bench.asks("dp", "ep", "shard") and bench.asked.constraints.grants("zero", 0)
    return not bench.asks("sp", "cp", "tp"), copies


def _whole(plan: Candidate, bench: Bench) -> list[Candidate]:
    """The plan with nothing stored in shards, where collectives take long: ranks that do the same on the same data
    exchange nothing."""
    if plan.config is None or not plan.config.zero or not parts_badly(plan.decisions, plan.prediction):
        return []
    config = replace(plan.config, zero=0, shard=0, regather=True)
    found = bench.search.price(config) if bench.search.space.grants(config) else None
    return [bench.as_is(config)] if found and found.fits else []


def attends_as_asked(decisions: Decisions, fold: Fold, asked: Asked) -> bool:
    """Whether attention of cut sequences runs only in ways that the constraints allow."""
    return all(asked.constraints.grants("context", way) for way in contexts(decisions, fold))


def problems(bench: Bench, plan: Candidate) -> dict[str, Block]:
    """Block problems of all body plans in use, each by itself and with free interfaces; none for bodies without
    operators, nor for one rank."""
    work = Work(bench, bench.fold(plan), plan, inf, Built())
    return {name: work.block(name, {}, hides=True) for name in work.open}


Constraints = Mapping[str, Sequence[BodyPlan]]
"""For body plans, by name, others that may take their place."""


class Work(Bodies):
    """The search for better operators of one plan."""

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

    def same_interfaces(self) -> Constraints:
        """Alternatives to every body plan with the same interfaces."""
        return {name: self.solutions(name, kept.interface) for name, kept in self.kept.items()}

    def freed(self, best: Candidate, *, data: bool = False) -> Candidate:
        """The plan with all bodies, and what they hand to each other, chosen together. `data`: inputs of the model may
        change, too."""
        if len({stage.mesh for stage in self.decisions.stages}) > 1:
            return best
        for hides in (True, False):
            joint = self.joint(hides=hides, data=data)
            answer = self.answer(joint) if joint else None
            trial = self.planned(best, joint, answer) if joint and answer else None
            if joint and trial and _is_too_large(trial, best):
                answer = self.leaner_answer(joint, trial)
                trial = self.planned(best, joint, answer) if answer else None
            best = _best(best, [trial])
        return best

    def polished(self, best: Candidate) -> Candidate:
        """The plan with single choices of small bodies changed as long as the evaluator finds that faster: block
        problems ignore launch times, which may matter most there."""
        if sum(differentiated(self.kept[name].graph) for name in self.open) > MOST_POLISHED:
            return best
        for name in self.open:
            improved = True
            while improved and not self.late():
                before = best
                for plan in self.near(best.decisions.plan[name]):
                    if not self.takes_as_long(best, name, plan):
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
        """The plan with nothing split: all ranks do the same, and share at most what they store; where something is
        asked of modules, bodies change from there on one by one, between replicated interfaces."""
        whole = {name: kept.unsplit(sharded=False) for name, kept in self.kept.items()}
        sharded = {name: kept.unsplit(sharded=True) for name, kept in self.kept.items()}
        together = self.tried(best, whole)
        best = _best(best, [together, self.tried(best, sharded)])
        if together is None or not self.bench.asked.modules:
            return best
        constraints = {name: self.solutions(name, dict(plan.states)) for name, plan in whole.items()}
        return _best(best, [self.climbed(together, constraints)])


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
