"""A configuration made to fit its cluster: ranks placed, layers shared out, different pools given meshes of their own.

    Fitted   plan -> placements -> layers shared out on each -> placed again -> the best first
    Mixed    plan -> plans of different meshes -> layers shared out on the best of them

Which devices should take which stages depends on how many layers they get, and the other way round. So every way to
give kinds of devices to groups that placement found is tried with its layers shared out, and the best is placed once
more. On a cluster of one pool and without a link matrix little of this is to be done, and little is tried. `Mixed`
chooses dp, tp and stages anew: configurations that agree in all else have one answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.errors import NotExpressible, PartialAcross, PinUnmet
from meshwright.ir.program.program import Program
from meshwright.planner.question.module_pins import resolved
from meshwright.planner.question.pins import Config
from meshwright.planner.refine.candidate import WORTH, Candidate
from meshwright.planner.refine.heterogeneous import mixes
from meshwright.planner.refine.improvement import Bench, climb
from meshwright.planner.refine.placement.idle import subsets
from meshwright.planner.refine.placement.placement import MOST_PRICED, Placement, assignment_of
from meshwright.planner.refine.stages import Layers

HETEROGENEOUS_PRICED = 60
"""Placements that are priced on different devices and links: prices of even shares in plain order say less there, so
more plans are refined, each with less work."""

MOST_MIXED = 3
"""Plans of different meshes whose layers are shared out."""

MOST_CUT = 60
"""Prices that sharing layers out may ask for."""

MOST_AGAIN = 100
"""Prices that the second placement may ask for."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A plan placed, and its layers shared out: the best first, and after it those that other ways to give kinds of
    devices to groups lead to. None is worse than the plan that came in. Layers that were asked for stay.

    - `limit`: prices that the first placement may ask for; 0: as many as the cluster is worth.
    """

    limit: int = 0

    def accepts(self, plan: Candidate, bench: Bench) -> bool:
        return bench.cluster.ranks > 1

    def neighbours(self, plan: Candidate, bench: Bench) -> Iterator[Candidate]:
        cluster, fold = bench.cluster, bench.fold(plan)
        limit = self.limit or (HETEROGENEOUS_PRICED if cluster.heterogeneous else MOST_PRICED)
        needed, layers = len(assignment_of(plan.decisions)), Layers(min(limit, MOST_CUT))
        offered = subsets(cluster, needed) if needed < cluster.ranks else ()
        found = list(Placement(offered, limit).neighbours(plan, bench))
        if not bench.layers_asked:
            found = [climb(one, layers, bench, moves=1) for one in found]
        best = min(found, key=WORTH)
        if cluster.heterogeneous:
            again = next(Placement(limit=min(limit, MOST_AGAIN)).neighbours(best, bench))
            found += [again] if again.worth < best.worth else []
        for one in sorted(found, key=WORTH):
            counted, config = bench.candidate(one.decisions, one.prediction, fold), plan.config
            if config and counted.counts != plan.counts:
                config = replace(config, split="even", stage_blocks=counted.counts)
            yield replace(counted, config=config, origin=plan.origin)


@dataclass(frozen=True, slots=True)
class Mixed:
    """Plans in which every pool has stages and meshes of its own, the best first; none on a cluster of one pool."""

    def accepts(self, plan: Candidate, bench: Bench) -> bool:
        return len(bench.cluster.pools) > 1 and not bench.asks("tp", "pp", "dp")

    def neighbours(self, plan: Candidate, bench: Bench) -> Iterator[Candidate]:
        config, setting, fold = plan.origin or plan.named, bench.setting, bench.fold(plan)

        def lowered(decisions: Decisions) -> Program:
            return bench.lowered(setting.allowed(decisions, fold), fold)

        pins, found = resolved(setting.modules, fold), list[Candidate]()
        target = setting.target.target
        for decisions in mixes(
            fold, config.batch, config.degrees(), bench.cluster, lowered, bench.prices, target, pins
        ):
            try:
                allowed, prediction = setting.allowed(decisions, fold), setting.price(lowered(decisions))
            except (NotExpressible, PartialAcross, PinUnmet):
                continue
            found.append(bench.candidate(allowed, prediction, fold, origin=config))
        best = sorted(found, key=WORTH)[:MOST_MIXED]
        yield from sorted((climb(one, Layers(), bench, moves=1) for one in best), key=WORTH)


def kind_of(config: Config) -> tuple[object, ...]:
    """The values of a configuration that `Mixed` uses, as a key."""
    inside = config.cp, config.ep, config.context, config.zigzag, config.sp
    return *inside, config.batch, config.zero, config.regather, config.recompute, config.offload
