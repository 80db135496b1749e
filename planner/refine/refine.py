"""A configuration made to fit its cluster: ranks placed, layers shared out, unlike pools given meshes of their own.

    improved   Configs -> the best of `refined` and `mixed`
    refined    Config -> Decisions -> placements -> layers shared out on each -> placed again -> the best first
    mixed      Config -> plans of unlike meshes -> layers shared out on the best of them

Which devices should take which stages depends on how many layers they get, and the other way round. So every way to
give kinds of devices to groups that placement found is tried with its layers shared out, and the best is placed once
more. On a cluster of one pool and without a link matrix little of this is to be done, and little is tried. `mixed`
chooses dp, tp and stages anew: configurations that agree in all else have one answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.prediction import Prediction
from meshwright.cost_models.prices import Prices
from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.errors import NotExpressible, PartialAcross, PinUnmet
from meshwright.ir.graph.fold import Fold
from meshwright.ir.program.program import Program
from meshwright.planner.question.module_pins import resolved
from meshwright.planner.question.pins import Config
from meshwright.planner.question.pricing import Price, Setting
from meshwright.planner.refine.candidate import WORTH, Candidate
from meshwright.planner.refine.heterogeneous import mixes
from meshwright.planner.refine.placement.idle import subsets
from meshwright.planner.refine.placement.placement import MOST_PRICED, assignment_of, idle_ranks, placed, placements
from meshwright.planner.refine.stages import Lowered, counts_of, shared_out

MOST_MIXED = 3
"""Plans of unlike meshes whose layers are shared out."""

MOST_CUT = 60
"""Prices that sharing layers out may ask for."""

MOST_AGAIN = 100
"""Prices that the second placement may ask for."""


def improved(
    setting: Setting,
    configs: Iterable[Config],
    global_batch: int,
    prices: Prices,
    *,
    limit: int = MOST_PRICED,
    mixing: bool = True,
    stop: Callable[[], bool] = lambda: False,
) -> list[Candidate]:
    """What configurations become, the best first: each refined, and, `mixing`, mixes for each kind of micro-batch among
    them. After `stop` no more are taken up."""
    found: list[Candidate] = []
    kinds: dict[tuple[object, ...], Config] = {}
    for config in configs:
        if not stop():
            found += refined(setting, config, global_batch, prices, limit=limit)[:1]
            kinds.setdefault(_kind(config), config)
    for config in kinds.values() if mixing else ():
        if not stop():
            found += mixed(setting, config, global_batch, prices)
    return sorted(found, key=WORTH)


def _kind(config: Config) -> tuple[object, ...]:
    """What `mixed` takes from a configuration."""
    inside = config.cp, config.ep, config.context, config.zigzag, config.sp
    return *inside, config.batch, config.zero, config.regather, config.recompute, config.offload


def refined(
    setting: Setting, config: Config, global_batch: int, prices: Prices, *, limit: int = MOST_PRICED
) -> list[Candidate]:
    """Plans made of a configuration, the best first; none is worse than its template. Degrees that multiply to fewer
    ranks than the cluster has leave the others idle."""
    fold = setting.fold(config)
    needed = config.tp * config.pp * config.cp * config.dp
    decisions = replace(setting, ranks=needed).decisions(config, global_batch)

    def lowered(plan: Decisions) -> Program:
        return setting.lowered(fold, plan, global_batch)

    def allowed(plan: Decisions) -> Decisions:
        return setting.allowed(plan, fold)

    found = refined_plan(decisions, fold, lowered, setting.price, prices, limit=limit, allowed=allowed)
    usual = counts_of(decisions, fold)
    return [
        replace(
            one,
            config=config if one.counts == usual else replace(config, split="even", stage_blocks=one.counts),
            origin=config,
        )
        for one in found
    ]


def refined_plan(
    decisions: Decisions,
    fold: Fold,
    lowered: Lowered,
    price: Price,
    prices: Prices,
    *,
    limit: int = MOST_PRICED,
    allowed: Callable[[Decisions], object] = lambda plan: plan,
) -> list[Candidate]:
    """Any plan placed, and its layers shared out: the best first, and after it those that other ways to give kinds
    of devices to groups lead to."""
    cluster = prices.cluster

    def judge(plan: Decisions) -> Prediction:
        return price(lowered(plan))

    needed = len(assignment_of(decisions))
    offered = subsets(cluster, needed) if needed < cluster.ranks else ()
    found = []
    for place in placements(decisions, cluster, judge, subsets=offered, limit=limit):
        shared = shared_out(place.decisions, fold, lowered, judge, prices, limit=min(limit, MOST_CUT), allowed=allowed)
        found.append(_refined(shared.decisions, shared.prediction, fold, cluster))
    best = min(found, key=WORTH)
    if cluster.unlike:
        again = placed(best.decisions, cluster, judge, limit=min(limit, MOST_AGAIN))
        if again.worth < best.worth:
            found.append(_refined(again.decisions, again.prediction, fold, cluster))
    return sorted(found, key=WORTH)


def mixed(setting: Setting, config: Config, global_batch: int, prices: Prices) -> list[Candidate]:
    """Plans in which every pool has stages and meshes of its own, the best first; none on a cluster of one pool."""
    cluster, fold = prices.cluster, setting.fold(config)
    if len(cluster.pools) == 1:
        return []

    def lowered(plan: Decisions) -> Program:
        return setting.lowered(fold, setting.allowed(plan, fold), global_batch)

    def judge(plan: Decisions) -> Prediction:
        return setting.price(lowered(plan))

    found = []
    pins = resolved(setting.modules, fold)
    for plan in mixes(fold, config.batch, config.degrees(), cluster, lowered, prices, setting.target.target, pins):
        try:
            found.append(_refined(setting.allowed(plan, fold), judge(plan), fold, cluster))
        except (NotExpressible, PartialAcross, PinUnmet):
            continue
    best = sorted(found, key=WORTH)[:MOST_MIXED]
    shared = [
        shared_out(one.decisions, fold, lowered, judge, prices, allowed=lambda plan: setting.allowed(plan, fold))
        for one in best
    ]
    again = [_refined(one.decisions, one.prediction, fold, cluster) for one in shared]
    return sorted((replace(one, origin=config) for one in again), key=WORTH)


def _refined(decisions: Decisions, prediction: Prediction, fold: Fold, cluster: Cluster) -> Candidate:
    return Candidate(decisions, prediction, counts_of(decisions, fold), idle_ranks(decisions, cluster))
