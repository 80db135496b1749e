"""Arrangements: numbers of stages and micro-batches, and meshes of a stage, on which operators are chosen from scratch.

    space -> arrangements, by the least that any plan of operators takes -> joint problems -> plans, priced

What names can say of a mesh ranks it badly for models with tables, towers or convolutions: of two meshes the one whose
named plans are slower may have the faster plan of operators. So the order is by bounds that hold for all of them
(`bounds`), the least first; an arrangement whose turn comes is bounded by the sum of its parts, and gets plans if it
still promises any.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

from meshwright.ir.names import uses
from meshwright.planner.question.pins import Config
from meshwright.planner.refine.candidate import WORTH, Candidate
from meshwright.planner.refine.improvement import Bench
from meshwright.planner.refine.operators.bodies import Built
from meshwright.planner.refine.operators.bounds import Arrangement, Bounded, named
from meshwright.planner.refine.operators.operators import LEAST_GAIN, Work, attends_as_asked, free_of
from meshwright.planner.refine.operators.waiting import parts_badly

MOST_SOLVED = 12
"""Arrangements whose parts are added up."""

MOST_STATES = 6000
"""States of all problems of their bodies, for bounds and plans of other storage counted once, after which no more are:
about three seconds. On two axes the bodies of a decoder have a thousand, those of a network of two hundred unlike
blocks 16,000 (two cores, 2026-11)."""

PATIENCE = 4
"""Of those that got plans, how many in a row may gain nothing. With 6, and without `NEAR`, no answer to the 30
questions of `benchmarks.unusual` was faster by a ten-thousandth (2026-11-28), and searches took a quarter longer."""

NEAR = 1.1
"""Times the best plan so far: what is slower where everything hides that can is not solved again where nothing
does."""

TIGHT = 0.92
"""Of the best plan: a bound that is as near is not raised for its own sake."""


@dataclass(frozen=True, slots=True)
class Arranged:
    """Plans whose operators are chosen from scratch, on the arrangements that may have the fastest, each faster than
    the one before."""

    def accepts(self, plan: Candidate, bench: Bench) -> bool:
        """Whether there is anything to choose. Pins of modules are for the plans of names that were searched under
        them."""
        return not bench.asked.modules and bench.cluster.ranks > 1

    def neighbours(self, plan: Candidate, bench: Bench) -> Iterator[Candidate]:
        best, idle, every = plan, 0, Bounded(bench)
        bench.search.more_axes_s = every.more_axes_s
        while not bench.stop():
            bench.search.operators_s, least = every.least_s, every.next()
            if least is None or least.bound_s >= best.step_s * (1 - LEAST_GAIN):
                return
            if every.solved >= MOST_SOLVED or every.built.states >= MOST_STATES:
                return
            if idle >= PATIENCE and least.bound_s >= TIGHT * best.step_s:
                return
            one = every.tightened(least)
            if idle < PATIENCE and one.bound_s < best.step_s * (1 - LEAST_GAIN):
                made = self.fastest(one, bench, best, every.built)
                best, idle = made or best, 0 if made else idle + 1
                if made:
                    yield made

    def fastest(self, one: Arrangement, bench: Bench, best: Candidate, built: Built) -> Candidate | None:
        """The best plan of an arrangement, if it is better than the one so far and may be had."""
        for made in sorted(solved(one, bench, best.step_s, built), key=WORTH):
            for plan in (polished(made, bench), made) if made.worth < best.worth else ():
                if attends_as_asked(plan.decisions, bench.fold(plan), bench.asked) and bench.writes(plan):
                    return plan
        return None


def polished(plan: Candidate, bench: Bench) -> Candidate:
    """A plan made from scratch with single choices changed, as `Operators` does, where its parts wait."""
    if not all(free_of(bench)) or not parts_badly(plan.decisions, plan.prediction):
        return plan
    work = Work(bench, bench.fold(plan), plan, inf, Built())
    best = work.polished(work.alike(plan))
    return plan if best is plan else replace(best, changed=tuple(dict.fromkeys((*plan.changed, *best.changed))))


def solved(one: Arrangement, bench: Bench, below_s: float, built: Built) -> Iterator[Candidate]:
    """Plans of an arrangement, priced; none where block problems say that nothing is faster than `below_s`."""
    made = named(one.config, bench)
    if made is None:
        return
    config, start = made
    work = Work(bench, bench.setting.fold(config), start, inf, built)
    axes = tuple(use.name for use in uses(config.degrees()) if use.stores and use.holds_copies(expert=False))
    for stored in _stored(bench, config):
        ran = bench.setting.ran(stored)
        work.storing(ran.zero, axes, regather=ran.regather)
        for free, data in dict.fromkeys(((True, True), free_of(bench))):
            # Constraints judge whatever is found; as they often mean the plans of names, those come after.
            plans = _both(work, start, below_s, free=free, data=data)
            yield from (replace(plan, config=stored, origin=stored) for plan in plans)
            if plans:
                break


def _both(work: Work, start: Candidate, below_s: float, *, free: bool, data: bool) -> list[Candidate]:
    """The best plans where everything hides that can, and where nothing does, within memory."""
    found, each = list[Candidate](), start.named.microbatches / start.named.pp
    for hides in (True, False):
        joint = work.joint(hides=hides, data=data, free=free)
        answer = work.answer(joint) if joint else None
        if joint is None or answer is None or answer.objective is None:
            break
        if hides and answer.objective * each >= below_s:
            break
        plan = work.planned(start, joint, answer)
        if plan is not None and plan.worth.lacks_bytes and plan.step_s < below_s:
            answer = work.leaner_answer(joint, plan)
            plan = work.planned(start, joint, answer) if answer else None
        if plan is None:
            break
        found.append(plan)
        if plan.step_s > NEAR * below_s:
            break
    return found


def _stored(bench: Bench, config: Config) -> list[Config]:
    """The configuration under every storage option that the target runs as another one."""
    found: dict[tuple[object, ...], Config] = {}
    for storage in bench.search.space.storages(config):
        if not storage.shard:
            stored = storage.on(config)
            ran = bench.setting.ran(stored)
            found.setdefault((ran.zero, ran.regather), stored)
    return list(found.values())
