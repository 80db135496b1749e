"""Plans whose stages have different meshes: eight fast devices as tp=8 behind sixteen slow ones as dp=2 tp=8.

    pools -> a Part each (ranks, degrees) -> Decisions

Every pool gets stages of its own, so that what waits for each other is of one speed and shares one network, and what
crosses between pools is a pipeline's traffic. A *part* is one group of ranks with the degrees inside it. All parts run
the same micro-batches, so every dp must divide the sequences of one; what crosses between different meshes is resharded
by the transfer itself (`ir.program.lower`). A body has one plan for every kind of part, named after its mesh.

`mixes` proposes, pool by pool, how to cut a pool into groups and which degrees to use inside. A way in which k groups
of the pool need t seconds of one layer has a rate of k / t layers per second, and a pipeline over pools with rates r_p
and K groups in all takes

    T = (m - 1 + K) L / sum of r_p            m micro-batches, L layers in shares proportional to the groups' rates

The ways with the least T over all pools are answered, shares rounded; `stages` then shares the layers out exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, permutations, product

from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.prices import Prices
from meshwright.cost_models.step import Step
from meshwright.ir.decisions.decisions import BodyPlan, Decisions, Schedule
from meshwright.ir.decisions.offload import Offload
from meshwright.ir.errors import DegreeImpossible, MeshwrightError
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names import Degrees, check, template
from meshwright.ir.names.counts import divisors
from meshwright.ir.names.pinned import NOTHING_PINNED, Pinned
from meshwright.ir.names.stages import layer_calls
from meshwright.ir.program.program import Program
from meshwright.ir.same import Same
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.shares import apportioned

MOST_MIXES = 6
"""Choices of one way for every pool that are answered."""

MOST_WAYS = 3
"""Ways inside a pool, for each number of groups, that are mixed; of all numbers together twice as many."""

MOST_POOLS = 4
"""Pools that are put into every order along the pipeline; more stay in the cluster's."""


@dataclass(frozen=True, slots=True)
class Part:
    """One group of ranks, with its degrees; those of a pipeline (pp, vp, schedule) are unused. Offloading is the same
    for all parts."""

    ranks: tuple[int, ...]
    degrees: Degrees


def neighbours(*inside: Degrees) -> list[Part]:
    """Parts on consecutive ranks, from the first on, with these degrees."""
    starts = accumulate((one.stage_ranks for one in inside), initial=0)
    return [Part(tuple(range(start, start + one.stage_ranks)), one) for start, one in zip(starts, inside, strict=False)]


def over_parts(
    fold: Fold,
    parts: Sequence[Part],
    counts: Sequence[int],
    schedule: Schedule,
    target: str,
    pins: Pinned = NOTHING_PINNED,
) -> Decisions:
    """The plan of a pipeline over parts, with so many layers each."""
    kinds = [part.degrees.of_body() for part in parts]
    whole = {
        kind: template(fold, replace(kind, pp=len(parts), stage_blocks=tuple(counts)), target, pins)
        for kind in dict.fromkeys(kinds)
    }
    plans: dict[str, BodyPlan] = {}
    stages = []
    for index, (part, kind) in enumerate(zip(parts, kinds, strict=True)):
        stage = whole[kind].stages[index]
        own = [_named(Same(whole[kind].plan[name]), kind.mesh()) for name in stage.plans]
        plans |= {plan.name: plan for plan in own}
        stages.append(replace(stage, ranks=part.ranks, plans=tuple(plan.name for plan in own)))
    offload = Offload.parse(parts[0].degrees.offload)
    return Decisions(tuple(plans.values()), tuple(stages), schedule, target, offload=offload)


@lru_cache(maxsize=1024)
def _named(plan: Same[BodyPlan], mesh: Mesh) -> BodyPlan:
    """The body plan under a name for its mesh: the same object for equal arguments, so that what is lowered from it is
    recognised."""
    words = ",".join(f"{axis.name}{axis.size}" for axis in mesh.axes)
    return replace(plan.of, name=f"{plan.of.name}@{words or 'one'}")


# Proposals -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Way:
    """A pool cut into groups of equal degrees, and the seconds of one layer on one of them."""

    parts: tuple[Part, ...]
    layer_s: float

    @property
    def rate(self) -> float:
        """Layers per second, all groups together."""
        return len(self.parts) / self.layer_s


def mixes(
    fold: Fold,
    batch: int,
    degrees: Degrees,
    cluster: Cluster,
    lowered: Callable[[Decisions], Program],
    prices: Prices,
    target: str,
    pins: Pinned = NOTHING_PINNED,
) -> Iterator[Decisions]:
    """Plans that give every pool stages of its own, or leave a pool idle, with the ZeRO level, recomputation and
    micro-batches of these degrees, and with pins; the best by T first, with the pools in every order."""
    pools = _pools(cluster)
    found = [_ways(fold, batch, degrees, ranks, lowered, prices, target, pins) for ranks in pools]
    layers = len(layer_calls(fold))
    choices: list[tuple[float, tuple[Way, ...]]] = []
    for choice in product(*([*ways, None] for ways in found)):
        used = tuple(way for way in choice if way is not None)
        groups = sum(len(way.parts) for way in used)
        if 1 < groups <= layers:
            step_s = (degrees.microbatches - 1 + groups) * layers / sum(way.rate for way in used)
            choices.append((step_s, used))
    schedule = Schedule("1f1b", degrees.microbatches)
    for _, used in sorted(choices, key=lambda choice: choice[0])[:MOST_MIXES]:
        for order in permutations(used) if len(used) <= MOST_POOLS else [used]:
            parts = [part for way in order for part in way.parts]
            counts = apportioned(layers, [1 / way.layer_s for way in order for _ in way.parts])
            yield over_parts(fold, parts, counts, schedule, target, pins)


def _pools(cluster: Cluster) -> list[tuple[int, ...]]:
    ends = list(accumulate(pool.ranks for pool in cluster.pools))
    return [tuple(range(end - pool.ranks, end)) for pool, end in zip(cluster.pools, ends, strict=True)]


def _ways(
    fold: Fold,
    batch: int,
    degrees: Degrees,
    ranks: tuple[int, ...],
    lowered: Callable[[Decisions], Program],
    prices: Prices,
    target: str,
    pins: Pinned,
) -> list[Way]:
    """The fastest ways to cut a pool, for every number of groups; what the model refuses is left out."""
    found: list[Way] = []
    for groups in divisors(len(ranks)):
        size = len(ranks) // groups
        parts = [ranks[start : start + size] for start in range(0, len(ranks), size)]
        ways = [
            Way(tuple(Part(held, inside) for held in parts), layer_s)
            for inside in _inside(degrees, size)
            if (layer_s := _layer_s(fold, batch, Part(parts[0], inside), lowered, prices, target, pins)) is not None
        ]
        found += sorted(ways, key=lambda way: way.layer_s)[:MOST_WAYS]
    return sorted(found, key=lambda way: -way.rate)[: 2 * MOST_WAYS]


def _inside(degrees: Degrees, size: int) -> Iterator[Degrees]:
    """Degrees of a group of this size, with tp and dp chosen anew."""
    for tp in divisors(size):
        dp, rest = divmod(size, tp * degrees.cp)
        if rest or not dp:
            continue
        try:
            yield replace(
                degrees.of_body(),
                offload=degrees.offload,
                dp=dp,
                tp=tp,
                shard=0,
                etp=0,
                zero=max(degrees.zero, 1) if dp * degrees.cp > 1 else 0,
                sequence_parallel=tp > 1 and (degrees.sequence_parallel or degrees.tp == 1),
            )
        except DegreeImpossible:  # fewer ranks than its experts are apart on
            continue


def _layer_s(
    fold: Fold,
    batch: int,
    part: Part,
    lowered: Callable[[Decisions], Program],
    prices: Prices,
    target: str,
    pins: Pinned,
) -> float | None:
    """Seconds of a layer on a part, embedding and head spread over all; None where the model cannot be split so."""
    layers = len(layer_calls(fold))
    try:
        check(part.degrees, fold, len(part.ranks), batch)
        program = lowered(over_parts(fold, [part], (layers,), Schedule("1f1b", 1), target, pins))
    except MeshwrightError:
        return None
    assert program.workload is not None
    step = Step(prices, program, program.workload)
    return sum(taken[0].seconds for taken in (step.forwards, step.inputs, step.weights)) / layers
