"""Relaxations where nothing fits: the configuration that lacks least, and the smallest changes under which something
fits, each tried out.

    constraints take back what was asked of one name, or by one pin of modules
    margin      keep half as much of the memory free
    batch       a smaller global batch, halved and halved again
    sequence    shorter sequences, halved and halved again
    hosts       more hosts of the same kind, from as many as would hold what lacks least: the least number that does, to
                an eighth

Every change is verified by a search of its own, under everything else that was asked for, which ends with the first
plan that fits; what it found is told with the change. A change that does not help is left out. The list begins with
what costs nothing but a constraint, and ends with what costs hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil
from operator import itemgetter
from typing import Any

from meshwright.cost_models.evaluate import Evaluator
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.profile import Profile
from meshwright.ir.errors import (
    ClusterError,
    MeshwrightError,
)
from meshwright.planner.answer.report import shortest
from meshwright.planner.answer.solve import Solved, Stop, solve
from meshwright.planner.bounds.bounds import Bounds
from meshwright.planner.question.ask import Ask
from meshwright.planner.question.constraints import Asked
from meshwright.planner.question.pins import Config, word
from meshwright.planner.question.pricing import Folds, Setting
from meshwright.planner.search.search import Found

MOST_HALVINGS = 6
MOST_TIMES = 64
"""Hosts that are tried, as a multiple of those that there are."""
ENOUGH = 8
"""One part in so many of a number of hosts is not asked about: each number costs a search of its own."""
LEAST_SEQ = 128
"""Tokens: nobody trains on less to make a model fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """A change under which something fits: `kind` in a word, `what` in a sentence, `found` the plan that shows it."""

    kind: str
    what: str
    found: Found


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """The answer where nothing fits.

    - `nearest` is, of the plans with the least memory of every kind, the one that lacks least; None if there is none.
    """

    solved: Solved
    nearest: Found | None
    relaxations: tuple[Relaxation, ...]

    @property
    def short(self) -> tuple[int, float]:
        """The stage that lacks most in the configuration that lacks least, and the bytes."""
        return shortest(self.nearest.prediction) if self.nearest else (-1, 0.0)


def relax(solved: Solved) -> Nothing:
    """Find the changes that help. Must: a complete search that has found nothing."""
    found = nearest(solved)
    return Nothing(solved=solved, nearest=found, relaxations=tuple(relaxations(solved, found)))


def nearest(solved: Solved) -> Found | None:
    """The configuration that lacks least, of everything priced and of the leanest pipeline of every kernel
    configuration."""
    search = solved.search
    leanest: tuple[float, Config] | None = None
    bases = [base for base in search.space.bases() if base.mbs <= min(search.space.sequences)]
    for least, config in sorted(((search.coarse.lacks_bytes(base), base) for base in bases), key=itemgetter(0)):
        if leanest is not None and least >= leanest[0]:
            break
        try:
            bounds = Bounds(search.common, search.coarse.priced(config))
        except MeshwrightError:
            continue
        for pipeline in search.space.pipelines(config):
            loads = bounds.loads(pipeline)
            for storage in search.space.storages(pipeline):
                lack = bounds.lacks_bytes(loads, pipeline, storage)
                if leanest is None or lack < leanest[0]:
                    leanest = lack, storage.on(pipeline)
    if leanest is not None:
        search.price(leanest[1])
    known = search.found.values()
    return min(known, key=lambda one: (shortest(one.prediction)[1], one.step_s, str(one.config)), default=None)


# What would help -----------------------------------------------------------------------------------------------------


def relaxations(solved: Solved, lacking: Found | None) -> Iterator[Relaxation]:
    """All changes that help, the smallest of each kind; `lacking` is the configuration that lacks least."""
    yield from _constraints(solved)
    yield from _margin(solved)
    if not solved.search.hopeless:
        yield from _batch(solved)
        yield from _sequence(solved)
    yield from _hosts(solved, lacking)


def _constraints(solved: Solved) -> Iterator[Relaxation]:
    for name in solved.asked.names:
        found = tried(solved.ask, solved.setting, solved.asked.without(name))
        if found:
            value = word(getattr(found.config, name))
            yield Relaxation(kind="constraint", what=f"ask nothing of {name}: with {name}={value} it fits", found=found)
    for pin in solved.asked.modules:
        found = tried(solved.ask, solved.setting, solved.asked.without_module(pin))
        if found:
            yield Relaxation(kind="constraint", what=f"take back {pin}", found=found)


def _margin(solved: Solved) -> Iterator[Relaxation]:
    profile = solved.ask.profile
    share = profile.memory.margin_share / 2
    common = solved.search.common
    if solved.search.coarse.resting_bytes > common.capacity * (1 - share) / (1 - 2 * share):
        return
    memory = replace(profile.memory, margin_share=share)
    found = _on(solved, solved.ask, solved.setting.folds, replace(profile, memory=memory))
    if found:
        yield Relaxation(
            kind="margin", what=f"keep {share:.0%} of the memory free instead of {2 * share:.0%}", found=found
        )


def _batch(solved: Solved) -> Iterator[Relaxation]:
    def fits(batch: int) -> Found | None:
        workload = replace(solved.setting.workload, global_batch=batch)
        return tried(solved.ask, replace(solved.setting, workload=workload), solved.asked)

    halved = _halved(solved.global_batch, 1)
    many = [batch for batch in halved if batch >= solved.ask.cluster.ranks]  # of which every rank may have its own
    for batch, found in _largest([many, *([batch] for batch in halved[len(many) :])], fits):
        yield Relaxation(kind="batch", what=f"a global batch of {batch:,} sequences", found=found)


def _sequence(solved: Solved) -> Iterator[Relaxation]:
    def fits(seq: int) -> Found | None:
        ask = replace(solved.ask, workload=replace(solved.setting.workload, seq=seq))
        return _on(solved, ask, Folds(solved.setting.folds.source, seq, solved.ask.seed))

    for seq, found in _largest([_halved(solved.setting.workload.seq, LEAST_SEQ)], fits):
        yield Relaxation(kind="sequence", what=f"sequences of {seq:,} tokens", found=found)


def _halved(number: int, least: int) -> list[int]:
    """A number halved, and halved again, as long as it is even and what comes is large enough."""
    found: list[int] = []
    while len(found) < MOST_HALVINGS and number % 2 == 0 and number // 2 >= least:
        number //= 2
        found.append(number)
    return found


def _largest(numbers: Iterable[list[int]], fits: Callable[[int], Found | None]) -> Iterator[tuple[int, Found]]:
    """The largest number under which something fits, if there is one, and what does: from lists of ever smaller ones,
    in each of which what fits under one fits under those after it."""
    for falling in filter(None, numbers):
        found = fits(falling[-1])
        if found is None:
            continue
        first, last = 0, len(falling) - 1
        while first < last:
            between = (first + last) // 2
            larger = fits(falling[between])
            first, last, found = (first, between, larger) if larger else (between + 1, last, found)
        yield falling[last], found
        return


def _hosts(solved: Solved, lacking: Found | None) -> Iterator[Relaxation]:
    """More hosts in the first pool: the least number for which a plan was found. The search begins at what `lacking`
    suggests, tries numbers with ever more divisors, and then halves what lies between the last two."""
    hosts = solved.ask.cluster.pools[0].hosts
    if solved.ask.cluster.matrix is not None:
        return  # links to new hosts are not known
    few, found, step = hosts, None, 1
    many = max(hosts + 1, min(MOST_TIMES * hosts, _enough(lacking, hosts)))
    while many <= MOST_TIMES * hosts:
        found = _with_hosts(solved, many)
        if found:
            break
        few, step = many, 2 * step
        many = (few // step + 1) * step
    if found is None:
        return
    while many - few > max(1, many // ENOUGH):
        between = (few + many) // 2
        fewer = _with_hosts(solved, between)
        if fewer:
            found, many = fewer, between
        else:
            few = between
    yield Relaxation(kind="hosts", what=f"{many:,} hosts instead of {hosts:,}", found=found)


def _enough(lacking: Found | None, hosts: int) -> int:
    """The number of hosts that would hold the configuration that lacks least, if they shared all of it."""
    if lacking is None:
        return hosts
    return max(
        ceil(hosts * stage.memory.peak_bytes / stage.memory.capacity_bytes) for stage in lacking.prediction.stages
    )


def _with_hosts(solved: Solved, hosts: int) -> Found | None:
    first, *rest = solved.ask.cluster.pools
    try:
        cluster: Cluster = replace(solved.ask.cluster, pools=(replace(first, hosts=hosts), *rest))
    except ClusterError:  # what lies between hosts is not known, or no cluster has as many
        return None
    return _on(solved, replace(solved.ask, cluster=cluster), solved.setting.folds)


def _on(solved: Solved, ask: Ask, folds: Folds, profile: Profile | None = None) -> Found | None:
    """The question with another cluster, sequence or profile."""
    price = Evaluator(ask.cluster, profile or ask.profile, solved.search.prices.books)
    setting = replace(solved.setting, folds=folds, ranks=ask.cluster.ranks, workload=ask.workload, price=price)
    return tried(ask, setting, solved.asked)


def tried(ask: Ask, setting: Setting, asked: Asked, until: Stop | None = None) -> Found | None:
    """The first plan that fits; None if a whole search finds none, or `until` says that there is no time for it."""
    if until and until():
        return None
    return solve(ask, setting, asked, Stop(until.until_s if until else None), any_fits=True).best


def nothing_to_json(nothing: Nothing) -> dict[str, Any]:
    """The JSON where nothing fits, as docs/plan.md describes it."""

    def shown(found: Found) -> dict[str, Any]:
        prediction = found.prediction
        return {
            "config": found.config.to_json(),
            "step_time_s": prediction.step_time_s,
            "peak_memory_bytes": prediction.peak_memory_bytes,
        }

    stage, short = nothing.short
    return {
        "fits": False,
        "nearest": shown(nothing.nearest) | {"short": {"stage": stage, "bytes": short}} if nothing.nearest else None,
        "relaxations": [{"kind": one.kind, "what": one.what, **shown(one.found)} for one in nothing.relaxations],
    }
