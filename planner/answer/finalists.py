"""Finalists: the best configurations of a search, and what becomes of them.

configurations -> improvements in their order (`planner.refine.order`) -> a schedule of their own
               -> the best that code is written for, if it beats the search's answer
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshwright.ir.errors import ScheduleImpossible
from meshwright.ir.schedules import CUSTOM
from meshwright.planner.question.constraints import Asked
from meshwright.planner.question.pins import Config
from meshwright.planner.refine.candidate import Candidate
from meshwright.planner.refine.improvement import Bench
from meshwright.planner.refine.order import CHOOSING, FITTING, PLACING, improved
from meshwright.planner.refine.schedule import OwnSchedule
from meshwright.planner.search.search import Found, Search

FINALISTS = 3
HETEROGENEOUS_FINALISTS = 4
IDLE = 6
"""Pipelines beside the finalists that get a schedule of their own, where that was asked for."""
CLOSE = 1.05
"""Times the best: what is slower than that is refined only on different clusters."""
PINNED_CLOSE = 1.25
"""The same where something is asked of modules: what templates lose by that differs from kind to kind, and the block
solver wins it back."""


def finalists(search: Search) -> list[Config]:
    """The best configuration of every kind, the best kinds first; where nothing fits, those that lack least."""
    heterogeneous = search.prices.cluster.heterogeneous
    ranked = sorted(search.found.values(), key=lambda one: (one.prediction.lacks_bytes, one.step_s, str(one.config)))
    kinds: dict[tuple[int, ...], Found] = {}
    for one in ranked:
        kinds.setdefault((one.config.tp, one.config.pp, one.config.cp, one.config.ep), one)
    chosen = list(kinds.values())
    if not heterogeneous and search.best:
        close_s = (PINNED_CLOSE if search.setting.modules else CLOSE) * search.best.step_s
        chosen = [one for one in chosen if one.fits and one.step_s <= close_s]
    return [one.config for one in chosen[: HETEROGENEOUS_FINALISTS if heterogeneous else FINALISTS]]


def finished(
    search: Search, asked: Asked, stop: Callable[[], bool], *, any_fits: bool = False
) -> tuple[Candidate | None, tuple[str, ...]]:
    """The best plan that becomes of the finalists, if it is better than the search's answer, or was asked for; and
    notes on what was left untried. `any_fits`: the first that fits will do, and nothing is made better."""
    bench, only = Bench(search, asked, stop), asked.constraints.made_only
    plans = [] if stop() else [bench.as_is(config) for config in finalists(search)]
    plans = improved(plans, PLACING if bench.layers_asked else FITTING, bench)
    if any_fits and not only:
        return bench.written(one for one in plans if one.prediction.fits), ()
    if not bench.layers_asked:
        plans = improved(plans, CHOOSING, bench)
    best = bench.written(plans)
    if only:
        plans += [bench.as_is(config) for config in _idle(search, plans)]
    behind = [one for one in plans if best is None or one.worth >= best.worth]
    schedule = OwnSchedule(tuple(behind))
    if behind and schedule.accepts(behind[0], bench):
        made = next(schedule.neighbours(behind[0], bench), None)
        best = _granted(plans, made, bench) if only else made or best
    if best and (not best.prediction.fits or (best.step_s >= search.upper_s and not (best.custom and only))):
        best = None
    return best, tuple(bench.notes)


def _granted(plans: Sequence[Candidate], made: Candidate | None, bench: Bench) -> Candidate | None:
    """The best plan among those with a schedule of their own and those that need none. Raises `ScheduleImpossible`
    where the search has an answer, and it is neither."""
    alone = [one for one in plans if len(one.decisions.groups) == 1]
    best, answer = bench.written([*alone, *([made] if made else [])]), bench.search.best
    if best is None and answer and answer.config.pp > 1:
        raise ScheduleImpossible(
            place=f"--fix schedule={CUSTOM}",
            cause="; ".join(bench.notes) or "the target runs no such lists",
            fix="name a schedule, or have fewer micro-batches or stages",
        )
    return best


def _idle(search: Search, plans: Sequence[Candidate]) -> list[Config]:
    """Pipelines that none of these plans was made of, by what they would take without idle time; before them the answer
    of the search."""
    taken = {one.origin for one in plans}
    waits = {one.config: dict(one.prediction.shares)["bubble"] for one in search.found.values()}
    others = [one for one in search.found.values() if one.fits and one.config.pp > 1 and one.config not in taken]
    others.sort(key=lambda one: (one is not search.best, one.step_s - waits[one.config], str(one.config)))
    return [one.config for one in others[:IDLE]]
