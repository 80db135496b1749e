"""Arrangements: numbers of stages and micro-batches, and meshes of a stage, on which operators are chosen from scratch.

    space -> arrangements, by the least that any plan of operators takes -> joint problems -> plans, priced

What names can say of a mesh ranks it badly for models with tables, towers or convolutions: of two meshes the one whose
named plans are slower may have the faster plan of operators. So the order is by a bound that holds for all of them:
kernels alone, shared out evenly over all ranks, with nothing exchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

from meshwright.ir.errors import MeshwrightError
from meshwright.ir.names import uses
from meshwright.planner.question.pins import Config
from meshwright.planner.refine.candidate import WORTH, Candidate
from meshwright.planner.refine.improvement import Bench
from meshwright.planner.refine.operators.operators import (
    FEW_AXES,
    LEAST_GAIN,
    Work,
    attends_as_asked,
    free_of,
)
from meshwright.planner.search.search import Search

MOST_SOLVED = 12
"""Arrangements whose operators are chosen."""

PATIENCE = 4
"""Of these, how many in a row may gain nothing. With 6, and without `NEAR`, no answer to the 30 questions of
`benchmarks.unusual` was faster by a ten-thousandth (2026-11-28), and searches took a quarter longer."""

NEAR = 1.1
"""Times the best plan so far: what is slower where everything hides that can is not solved again where nothing
does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """One arrangement: the first configuration that has it, and the least time of any plan of it."""

    bound_s: float
    config: Config


def arrangements(search: Search) -> list[Arrangement]:
    """All arrangements of a search's space, the least bound first; of equal bounds those with fewer axes."""
    found: dict[tuple[object, ...], Arrangement] = {}
    space, bounds = search.space, dict[tuple[int, int, str], float]()
    for base in space.bases():
        for sized in space.pipelined(base):
            sizes = tuple(axis.size for axis in sized.degrees().mesh().axes)
            key = sized.pp, sizes, sized.microbatches, sized.recompute, sized.zigzag
            if key in found:
                continue
            same = sized.pp, sized.microbatches, sized.recompute
            if same not in bounds:
                bounds[same] = search.coarse.kernels_s(sized)
            found[key] = Arrangement(bound_s=bounds[same], config=sized)
    return sorted(found.values(), key=lambda one: (one.bound_s, len(one.config.degrees().mesh().axes)))


@dataclass(frozen=True, slots=True)
class Arranged:
    """Plans whose operators are chosen from scratch, on the arrangements that may have the fastest, each faster than
    the one before."""

    def accepts(self, plan: Candidate, bench: Bench) -> bool:
        """Whether there is anything to choose. Pins of modules are for the plans of names that were searched under
        them."""
        return not bench.asked.modules and bench.cluster.ranks > 1

    def neighbours(self, plan: Candidate, bench: Bench) -> Iterator[Candidate]:
        best, idle, tried = plan, 0, 0
        every = arrangements(bench.search)
        bench.search.operators_s = min((one.bound_s for one in every), default=0.0)
        for one in every:
            promises = one.bound_s < best.step_s * (1 - LEAST_GAIN)
            if not promises or tried >= MOST_SOLVED or idle >= PATIENCE or bench.stop():
                return
            if len(one.config.degrees().mesh().axes) > FEW_AXES:
                continue
            tried, idle = tried + 1, idle + 1
            for made in sorted(solved(one, bench, best.step_s), key=WORTH):
                fold = bench.fold(made)
                if (
                    made.worth < best.worth
                    and attends_as_asked(made.decisions, fold, bench.asked)
                    and bench.writes(made)
                ):
                    best, idle = made, 0
                    yield made
                    break


def solved(one: Arrangement, bench: Bench, below_s: float) -> Iterator[Candidate]:
    """Plans of an arrangement, priced; none where block problems say that nothing is faster than `below_s`."""
    made = named(one.config, bench)
    if made is None:
        return
    config, start = made
    work = Work(bench, bench.setting.fold(config), start, inf, {})
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


def named(sized: Config, bench: Bench) -> tuple[Config, Candidate] | None:
    """The first configuration with these sizes that names can say, which gives stages and schedule; None if there is
    none."""
    space = bench.search.space
    for schedule, vp in space.schedules(sized.pp, sized.microbatches):
        for split, blocks in space.shares(sized.pp * vp):
            config = replace(sized, schedule=schedule, vp=vp, split=split, stage_blocks=blocks)
            try:
                decisions, fold = bench.decisions(config), bench.setting.fold(config)
                return config, bench.candidate(decisions, bench.judged(decisions, fold), fold, config, config)
            except MeshwrightError:
                continue
    return None


def _stored(bench: Bench, config: Config) -> list[Config]:
    """The configuration under every storage option that the target runs as another one."""
    found: dict[tuple[object, ...], Config] = {}
    for storage in bench.search.space.storages(config):
        if not storage.shard:
            stored = storage.on(config)
            ran = bench.setting.ran(stored)
            found.setdefault((ran.zero, ran.regather), stored)
    return list(found.values())
