"""Finalists: what becomes of the best configurations of a search.

    configurations -> refined (`planner.refine.refine`) -> other micro-batches where a stage was left without layers
                   -> operators chosen anew (`planner.refine.operators`)
                   -> a schedule of their own (`planner.refine.schedule`)
                   -> the best, if it beats the search's answer

Each step keeps what the evaluator finds faster. What becomes of them may be beyond what names can say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import inf

from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.errors import MeshwrightError, ScheduleImpossible
from meshwright.ir.graph.fold import Fold
from meshwright.ir.schedules import CUSTOM
from meshwright.ir.target.combined import contexts
from meshwright.planner.question.constraints import Asked
from meshwright.planner.question.pins import Config
from meshwright.planner.refine.candidate import WORTH, Candidate
from meshwright.planner.refine.operators import MOST_AXES, sharpened
from meshwright.planner.refine.placement.placement import MOST_PRICED as MOST_PLACED
from meshwright.planner.refine.placement.placement import idle_ranks
from meshwright.planner.refine.refine import improved
from meshwright.planner.refine.schedule import customised
from meshwright.planner.refine.stages import counts_of
from meshwright.planner.refine.uneven import unevenly
from meshwright.planner.refine.waiting import parts_badly, silent_s
from meshwright.planner.search.search import Found, Search
from meshwright.planner.space.declared import LAYERS

Stop = Callable[[], bool]

FINALISTS = 3
UNLIKE_FINALISTS = 4
UNLIKE_PRICED = 60
"""On unlike devices and links prices of even shares in plain order say less, and bounds little: fewer of them are asked
for, and more is left to refining."""
FEW_AXES = 2
"""Of a mesh, for which operators are chosen anew unasked: more take seconds."""
IDLE = 6
"""Pipelines beside the finalists that get a schedule of their own, where that was asked for."""
CLOSE = 1.05
"""Times the best: what is slower than that is refined only on unlike clusters."""
PINNED_CLOSE = 1.25
"""The same where something is asked of modules: what templates lose by that differs from kind to kind, and the block
solver wins it back."""
MOST_SHARED = 24
"""Configurations that are looked at for unequal shares of the batch."""
MOST_EMPTIED = 60
"""Prices, for every plan that leaves a stage without layers: a second or less, with few layers as such plans have."""


def finalists(search: Search) -> list[Config]:
    """The best configuration of every kind, the best kinds first; where nothing fits, those that lack least."""
    unlike = search.prices.cluster.unlike
    ranked = sorted(search.found.values(), key=lambda one: (one.prediction.lacks_bytes, one.step_s, str(one.config)))
    kinds: dict[tuple[int, ...], Found] = {}
    for one in ranked:
        kinds.setdefault((one.config.tp, one.config.pp, one.config.cp, one.config.ep), one)
    chosen = list(kinds.values())
    if not unlike and search.best:
        close_s = (PINNED_CLOSE if search.setting.modules else CLOSE) * search.best.step_s
        chosen = [one for one in chosen if one.fits and one.step_s <= close_s]
    return [one.config for one in chosen[: UNLIKE_FINALISTS if unlike else FINALISTS]]


def finished(
    search: Search, asked: Asked, stop: Stop, *, any_fits: bool = False
) -> tuple[Candidate | None, tuple[str, ...]]:
    """The best that becomes of the finalists, if it is better than what the search found, or was asked for; and what
    was left untried. `any_fits`: the first that fits will do, and nothing is made better."""
    chosen = finalists(search)
    if set(LAYERS) & set(asked.constraints.only):
        plans, sharp = [_as_is(search, config) for config in chosen], 0
    else:
        sharp = 1
        plans = improved(
            search.setting,
            chosen,
            search.space.global_batch,
            search.prices,
            limit=UNLIKE_PRICED if search.prices.cluster.unlike else MOST_PLACED,
            mixing=not {"tp", "pp", "dp"} & set(asked.constraints.only),
            stop=stop,
        )
        plans += _emptied(search, plans, stop)
        plans += _unequal(search, plans, stop)
        plans.sort(key=WORTH)
    if any_fits and not asked.constraints.made_only:
        return written(search, [one for one in plans if one.prediction.fits]), ()
    if asked.modules:  # templates have more to gain, each another share of it
        sharp = FINALISTS
    plans[:sharp] = [_sharpened(search, asked, stop, one) for one in plans[:sharp]]
    if sharp:
        plans += [_sharpened(search, asked, stop, one) for one in _talkative(search, plans)]
    best = written(search, plans)
    notes: tuple[str, ...] = ()
    if asked.constraints.grants("schedule", CUSTOM) and CUSTOM in {line.name for line in search.space.target.schedules}:
        only = asked.constraints.made_only
        plans += [_as_is(search, config) for config in _idle(search, plans)] if only else []
        setting, global_batch = search.setting, search.space.global_batch
        free = not set(LAYERS) & set(asked.constraints.only)
        made, notes = customised(
            setting,
            _behind(best, plans),
            global_batch,
            search.prices,
            asked=only,
            layers=free,
            stop=stop,
            writes=lambda one: _writes(search, one),
        )
        if only:
            best = _granted(search, plans, made, notes)
        elif made is not None:
            best = made
    if best is None or not best.prediction.fits:
        return None, notes
    if best.prediction.step_time_s >= search.upper_s and not (best.custom and asked.constraints.made_only):
        return None, notes
    return best, notes


def written(search: Search, plans: Iterable[Candidate]) -> Candidate | None:
    """The best of these plans that code is written for. What is no better than the search's answer is not asked about:
    it is not taken."""
    for one in sorted(plans, key=WORTH):
        if not one.prediction.fits or one.step_s >= search.upper_s or _writes(search, one):
            return one
    return None


def _writes(search: Search, plan: Candidate) -> bool:
    config = plan.config or plan.origin
    assert config is not None, "it was made of one"
    return search.writes(config, plan.decisions, plan.prediction)


def _behind(best: Candidate | None, plans: Sequence[Candidate]) -> list[Candidate]:
    """These plans without those that were passed over."""
    return [one for one in plans if best is None or one.worth >= best.worth]


def _talkative(search: Search, plans: Sequence[Candidate]) -> list[Candidate]:
    """Of what was priced, the fastest without what its ranks tell each other, if that would be faster than all
    plans: its ranks may all do the same instead."""
    if not plans:
        return []
    taken = {one.origin for one in plans}
    least_s = min(one.step_s for one in plans)
    ranked = sorted(search.found.values(), key=lambda one: (silent_s(one.prediction), str(one.config)))
    for one in ranked:
        copies = one.config.tp * one.config.cp * one.config.dp
        if one.fits and copies > 1 and one.config not in taken and silent_s(one.prediction) < least_s:
            made = _as_is(search, one.config)
            return [made] if parts_badly(made.decisions, made.prediction) else []
    return []


def _unequal(search: Search, plans: Sequence[Candidate], stop: Stop) -> list[Candidate]:
    """The best plan in which copies on unlike devices take unequal shares of the batch. It has no origin that operators
    could be chosen anew for."""
    ranked = sorted(search.found.values(), key=lambda one: (one.step_s, str(one.config)))
    made = unevenly(
        search.setting,
        [one.config for one in ranked[:MOST_SHARED]],
        search.space.global_batch,
        search.prices,
        below_s=min((one.step_s for one in plans if one.prediction.fits), default=inf),
        grants=search.space.grants,
        stop=stop,
    )
    if made is None:
        return []
    assert made.config is not None, "it was made of one"
    counts = counts_of(made.decisions, search.setting.fold(made.config))
    return [replace(made, counts=counts, idle=idle_ranks(made.decisions, search.prices.cluster))]


def _emptied(search: Search, plans: Sequence[Candidate], stop: Stop) -> list[Candidate]:
    """Where a stage was left without layers, the same shares under all else that was priced of the kind: what made one
    micro-batch or schedule the better one, transfers between stages above all, may be gone."""
    found: list[Candidate] = []
    for one in plans:
        start = one.config
        if start is None or 0 not in one.counts:
            continue
        ranked = sorted(search.found.values(), key=lambda other: (other.step_s, str(other.config)))
        alike = [other.config for other in ranked if _kind(other.config) == _kind(start) and other.config != one.origin]
        for config in alike[:MOST_EMPTIED]:
            if not stop():
                shared = replace(config, split="even", stage_blocks=one.counts)
                found += _recut(search, shared, config, one)
    return found


def _kind(config: Config) -> tuple[object, ...]:
    """What a change of micro-batches, schedule or storage leaves as it is."""
    return config.tp, config.pp, config.vp, config.cp, config.ep, config.dp


def _recut(search: Search, config: Config, origin: Config, like: Candidate) -> list[Candidate]:
    """A configuration with its layers shared out as in a plan, on the same ranks; nothing if it cannot be."""
    setting, global_batch = search.setting, search.space.global_batch
    needed = config.tp * config.pp * config.cp * config.dp
    try:
        made = replace(setting, ranks=needed).decisions(config, global_batch)
    except MeshwrightError:
        return []
    seats = dict(zip(made.groups, like.decisions.groups, strict=True))
    stages = tuple(replace(stage, ranks=seats[stage.ranks]) for stage in made.stages)
    decisions = replace(made, stages=stages)
    prediction = setting.price(setting.lowered(setting.fold(config), decisions, global_batch))
    return [Candidate(decisions, prediction, like.counts, like.idle, config=config, origin=origin)]


def _granted(
    search: Search, plans: Sequence[Candidate], made: Candidate | None, notes: Sequence[str]
) -> Candidate | None:
    """The best of what has a schedule of its own, and of what needs none. Raises `ScheduleImpossible` where the search
    has an answer, and it is neither."""
    alone = [one for one in plans if len(one.decisions.groups) == 1]
    best = written(search, [*alone, *([made] if made else [])])
    if best is None and search.best and search.best.config.pp > 1:
        raise ScheduleImpossible(
            place=f"--fix schedule={CUSTOM}",
            cause="; ".join(notes) or "the target runs no such lists",
            fix="name a schedule, or have fewer micro-batches or stages",
        )
    return best


def _idle(search: Search, plans: Sequence[Candidate]) -> list[Config]:
    """Pipelines that these plans were not made of and that would be fast if they never waited, the best first; before
    them the answer of the search."""
    taken = {one.origin for one in plans}
    waits = {one.config: dict(one.prediction.shares)["bubble"] for one in search.found.values()}
    others = [one for one in search.found.values() if one.fits and one.config.pp > 1 and one.config not in taken]
    others.sort(key=lambda one: (one is not search.best, one.step_s - waits[one.config], str(one.config)))
    return [one.config for one in others[:IDLE]]


def _as_is(search: Search, config: Config) -> Candidate:
    """A configuration as it was priced."""
    fold = search.setting.fold(config)
    decisions = search.setting.decisions(config, search.space.global_batch)
    idle = idle_ranks(decisions, search.prices.cluster)
    prediction = search.found[config].prediction
    return Candidate(decisions, prediction, counts_of(decisions, fold), idle, config=config, origin=config)


def _sharpened(search: Search, asked: Asked, stop: Stop, best: Candidate) -> Candidate:
    """A plan with what every axis does in every operator chosen anew, where that is faster."""
    setting, global_batch = search.setting, search.space.global_batch
    if best.origin is None or stop():
        return best
    axes = max(len(stage.mesh.axes) for stage in best.decisions.stages)
    if not 0 < axes <= (MOST_AXES if asked.operators or asked.modules else FEW_AXES):
        return best
    fold, answers = setting.fold(best.origin), [best]
    free = not {"sp", "cp", "tp"} & set(asked.constraints.only)
    pinned = {"dp", "ep", "shard"} & set(asked.constraints.only) or not asked.constraints.grants("zero", 0)
    for start in (best, *_whole(search, best)):
        first = sharpened(
            setting, start.decisions, fold, global_batch, search.prices, free_ends=free, free_copies=not pinned
        )[0]
        if first.changed and _attends_as_asked(first.decisions, fold, asked):
            answers.append(
                replace(start, decisions=first.decisions, prediction=first.prediction, changed=first.changed)
            )
    return written(search, answers) or best


def _attends_as_asked(decisions: Decisions, fold: Fold, asked: Asked) -> bool:
    """Whether attention of cut sequences runs in no way that was not asked for."""
    return all(asked.constraints.grants("context", way) for way in contexts(decisions, fold))


def _whole(search: Search, best: Candidate) -> list[Candidate]:
    """Where collectives take long: the same with nothing stored in shards. Ranks that do the same on the same data have
    nothing to tell each other then."""
    if best.config is None or not best.config.zero or not parts_badly(best.decisions, best.prediction):
        return []
    config = replace(best.config, zero=0, shard=0, regather=True)
    found = search.price(config) if search.space.grants(config) else None
    return [_as_is(search, config)] if found and found.fits else []
