"""A plan with a separate body for every set of open numbers, as written code needs it.

A fold has one body for blocks that differ in numbers alone, and a plan decides about all of them at once. `apart` gives
every set of numbers a body of its own, and every body that came of it the plans of the old one. Nothing else changes:
the same calls run in the same order on the same ranks, and nothing that is priced follows from numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby

from meshwright.ir.decisions.decisions import BodyPlan, Decisions, StagePlan
from meshwright.ir.graph.fold import Body, Call, Fold, FromSegment, Segment, Source, unused
from meshwright.ir.same import Same


def apart(fold: Fold, decisions: Decisions) -> tuple[Fold, Decisions]:
    """The same model and plan, in a fold whose calls of one body have the same open numbers."""
    if not any(segment.numbers for segment in fold.segments):
        return fold, decisions
    made, names = _made(Same(fold))
    return made, _decisions(fold, decisions, names)


@lru_cache(maxsize=16)
def _made(fold: Same[Fold]) -> tuple[Fold, tuple[str, ...]]:
    """The fold, and the body of every call."""
    bodies = _bodies(fold.of)
    return _fold(fold.of, bodies), tuple(body.name for body in bodies)


def _bodies(fold: Fold) -> list[Body]:
    """The body of every call; the first body derived from one keeps its name."""
    made: dict[tuple[str, tuple[float, ...]], Body] = {}
    taken = set(fold.body)
    for call in fold.calls():
        key = call.body.name, _numbers(call)
        if key not in made:
            first = not any(name == call.body.name for name, _ in made)
            name = call.body.name if first else unused(call.body.name, taken)
            taken.add(name)
            made[key] = replace(call.body, name=name, graph=call.graph)
    return [made[call.body.name, _numbers(call)] for call in fold.calls()]


def _numbers(call: Call) -> tuple[float, ...]:
    return () if call.numbers is None else call.numbers


def _fold(fold: Fold, bodies: Sequence[Body]) -> Fold:
    """The fold with these bodies; a segment whose bodies no longer repeat is written out."""
    written, segments, at = dict[int, int](), [], 0
    for number, segment in enumerate(fold.segments):
        names = tuple(body.name for body in bodies[at : at + segment.calls])
        at += segment.calls
        period = len(segment.period)
        if names == names[:period] * segment.repeats:
            segments.append(replace(segment, period=names[:period], numbers=()))
            continue
        written[number] = (segment.repeats - 1) * period
        wires = tuple(segment.wires[index % period] for index in range(segment.calls))
        segments.append(replace(segment, period=names, wires=wires, numbers=()))

    def moved(source: Source) -> Source:
        if not isinstance(source, FromSegment):
            return source
        return replace(source, position=source.position + written.get(source.segment, 0))

    def rewired(segment: Segment) -> Segment:
        wires = tuple(tuple(map(moved, sources)) for sources in segment.wires)
        return replace(segment, entry=tuple(map(moved, segment.entry)), wires=wires)

    return replace(
        fold,
        bodies=tuple({body.name: body for body in bodies}.values()),
        segments=tuple(map(rewired, segments)),
        outputs=tuple(map(moved, fold.outputs)),
    )


def _decisions(fold: Fold, decisions: Decisions, names: Sequence[str]) -> Decisions:
    """The plan for bodies of these names, one of every call."""
    made: dict[str, BodyPlan] = {}
    calls = list(fold.calls())

    def stage(index: int, planned: StagePlan) -> StagePlan:
        within = slice(planned.first, planned.last)
        plans = decisions.plans_for(index, [call.body.name for call in calls[within]])
        found = list(_plans(list(zip(names[within], plans, strict=True))))
        made.update((plan.name, plan) for plan in found)
        return replace(planned, plans=tuple(plan.name for plan in found))

    stages = tuple(stage(index, planned) for index, planned in enumerate(decisions.stages))
    return replace(decisions, plans=tuple(made.values()), stages=stages)


def _plans(called: Sequence[tuple[str, BodyPlan]]) -> Iterator[BodyPlan]:
    """The plans of a stage that calls these bodies, in this order, by plans for what they came of."""
    for body in dict.fromkeys(body for body, _ in called):
        own = [plan for name, plan in called if name == body]
        runs = [list(run) for _, run in groupby(own, key=lambda plan: plan.name)]
        for place, (plan, *more) in enumerate(runs):
            first = 1 + len(more) if place < len(runs) - 1 else 0
            yield replace(plan, name=_name(plan, body, first), body=body, first=first)


def _name(plan: BodyPlan, body: str, first: int) -> str:
    """A name for a plan, which may be for several bodies now, and for several numbers of first calls."""
    if body == plan.body and first == plan.first:
        return plan.name
    own = plan.name if body == plan.body else f"{plan.name} for {body}"
    return f"{own}, the first {first}" if first else own
