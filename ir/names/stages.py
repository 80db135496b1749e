"""Cuts of a pipeline, and the ranks of its stages.

A *layer* is a call of a repeated block; glue (embedding; final norm, head and loss) goes with the stage of the layer
before it, the first with the first stage. Layers are shared out

    even      as many for every stage; else it is refused
    ends      as many, where embedding and head count as a layer each (Megatron's account-for-embedding and -loss)
    spread    as evenly as they go
    stage_blocks   as the numbers say

Stages are numbered along the model; which ones a group of ranks holds, the schedule says (`ir.schedules`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from meshwright.ir.decisions.decisions import BodyPlan, StagePlan
from meshwright.ir.errors import DegreeImpossible, LayersIndivisible
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names.counts import among, divisors
from meshwright.ir.names.degrees import Degrees
from meshwright.ir.schedules import stage_groups
from meshwright.ir.sharding.mesh import Mesh

Cuts = tuple[tuple[int, int], ...]
"""Ranges of calls, one per stage."""


def stage_plans(fold: Fold, degrees: Degrees, mesh: Mesh) -> tuple[StagePlan, ...]:
    """The stages of a template, with ranks group by group."""
    bodies = [call.body.name for call in fold.calls()]
    held = stage_groups(degrees.order, degrees.pp, degrees.vp)
    group_of = {stage: group for group, stages in enumerate(held) for stage in stages}
    ranks = [_ranks(group, mesh.size) for group in range(degrees.pp)]
    return tuple(
        StagePlan(first, last, mesh, ranks[group_of[index]], tuple(sorted(set(bodies[first:last]))))
        for index, (first, last) in enumerate(cuts(fold, degrees))
    )


@lru_cache(maxsize=4096)
def _ranks(group: int, size: int) -> tuple[int, ...]:
    """The ranks of a group: one object for all plans, since prices know long tuples by identity."""
    return tuple(range(group * size, (group + 1) * size))


def only_layer(fold: Fold, place: str) -> str:
    """The body of the layers, where they are all of one kind."""
    kinds = sorted({name for segment in fold.segments if not segment.glue for name in segment.period})
    if len(kinds) != 1:
        raise DegreeImpossible(
            place=place,
            cause=f"the first layers of a stage, and there are {len(kinds)} kinds: {', '.join(kinds)}",
            fix="treat all layers alike",
        )
    return kinds[0]


def with_first(fold: Fold, stages: tuple[StagePlan, ...], plan: BodyPlan) -> tuple[StagePlan, ...]:
    """Give the first calls of a body in every stage a plan of their own, and the usual one the rest."""
    bodies = [call.body.name for call in fold.calls()]

    def used(stage: StagePlan) -> Iterator[str]:
        for name in stage.plans:
            if name == plan.body:
                yield plan.name
            if name != plan.body or bodies[stage.first : stage.last].count(name) > plan.first:
                yield name

    return tuple(replace(stage, plans=tuple(used(stage))) for stage in stages)


def cuts(fold: Fold, degrees: Degrees) -> Cuts:
    """The call ranges that the degrees stand for."""
    layers, named = len(layer_calls(fold)), f"pp * vp = {degrees.pp} * {degrees.vp} = "
    return cuts_at(fold, degrees.stage_blocks or shared(layers, degrees.stages, degrees.split, named))


def shared(layers: int, stages: int, split: str, named: str = "") -> tuple[int, ...]:
    """The layers of every stage, shared out as a word says. `named`: the number of stages as messages call it."""
    if split == "spread" or (stages > layers and split == "even"):
        return _spread(layers, stages)
    counted = layers + 2 if split == "ends" and stages > 1 else layers
    if counted % stages:
        raise LayersIndivisible(
            place="pp",
            cause=f"{layers} layers{' with embedding and head' if counted > layers else ''} for {named}{stages} stages",
            fix=_would_do(layers, stages),
        )
    each = counted // stages
    if counted == layers:
        return (each,) * stages
    return each - 1, *(each,) * (stages - 2), each - 1


def _spread(layers: int, stages: int) -> tuple[int, ...]:
    """Layers as evenly as they go."""
    if stages > max(layers, 1):
        raise too_many_stages(stages, layers)
    bounds = [layers * stage // stages for stage in range(stages + 1)]
    return tuple(b - a for a, b in pairwise(bounds))


def _would_do(layers: int, stages: int) -> str:
    ways = [f"use a pp * vp of {among(divisors(layers))}"]
    if (layers + 2) % stages == 0:
        ways.append("or split='ends', where embedding and head count as a layer each")
    return f"{'; '.join(ways)}; or split='spread', or stage_blocks with the layers of every stage"


def even_cuts(fold: Fold, stages: int) -> Cuts:
    """Call ranges with as equal numbers of layers as possible."""
    return cuts_at(fold, _spread(len(layer_calls(fold)), stages))


def cuts_at(fold: Fold, counts: Sequence[int]) -> Cuts:
    """Call ranges with these numbers of layers; the last stage may hold the head alone, the first the embedding, if
    there is one: of a model that begins with a layer it would have nothing to send."""
    layers, calls = layer_calls(fold), list(fold.calls())
    if sum(counts) != len(layers) or min(counts) < 0:
        raise LayersIndivisible(
            place="stage_blocks",
            cause=f"{sum(counts)} layers in {len(counts)} stages, the model has {len(layers)}",
            fix=f"give numbers that add up to {len(layers)}",
        )
    starts, before = [0], 0
    for count in counts[:-1]:
        before += count
        starts.append(layers[before] if before < len(layers) else layers[-1] + 1 if layers else len(calls))
    ranges = tuple(zip(starts, [*starts[1:], len(calls)], strict=True))
    for stage, (first, last) in enumerate(ranges):
        if not any(call.body.graph.outputs for call in calls[first:last]):
            raise LayersIndivisible(
                place="stage_blocks", cause=f"stage {stage} of {len(counts)} holds nothing", fix="give it a layer"
            )
    return ranges


def layer_calls(fold: Fold) -> list[int]:
    """The numbers of the calls that are layers."""
    segments = [call.segment for call in fold.calls()]
    return [index for index, segment in enumerate(segments) if not fold.segments[segment].glue]


def too_many_stages(stages: int, layers: int) -> DegreeImpossible:
    """The refusal of more stages than a model has blocks to begin them with."""
    return DegreeImpossible(
        place="pp", cause=f"{stages} stages for {layers} blocks", fix=f"use at most {max(layers, 1)}"
    )
