"""Layers of every stage, by dynamic programming from the last stage, with embedding, head and memory counted.

    Decisions, Fold -> counts of layers, and the Decisions that are cut so

Layers of unequal work, an embedding and a head beside them, devices of unequal speed or memory, and schedules that hold
more micro-batches in flight on early stages: each makes even shares slow, or too full. A *cell* is one stage with one
range of layers. Its seconds F + B of a micro-batch and its fullest instant are the evaluator's own (`Step`), on the
stage's own ranks and at its in-flight count under the plan's schedule, read from a program in which every stage is
given some range; stages that run the same bodies share a cell.

    T(cut) = (m - 1) v max over stages of (F + B) + sum over stages of (F + B)       m micro-batches, v stages a group

is what 1F1B takes without transfers (Narayanan et al. 2104.04473, section 2.2; unequal stages: the slowest one is the
pace). It screens: for every (stage, first layer), from the last stage on, the pairs (max, sum) that no other exceeds in
neither are kept, over cells that fit; so T is least over all cuts that fit, exactly. Where groups hold several stages
they share memory, and cells cannot say alone whether they fit: there the evaluator does.

The best few cuts are then priced as whole plans, and single layers are moved away from the slowest and the fullest
stages as long as the evaluator finds that better. The answer is never worse than the plan that came in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from meshwright.cost_models.prices import Prices
from meshwright.cost_models.step import Step
from meshwright.ir.decisions.decisions import BodyPlan, Decisions
from meshwright.ir.decisions.offload import NOTHING
from meshwright.ir.errors import BodyUnplanned, LayersIndivisible, NotExpressible, PartialAcross, PinUnmet
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names.stages import Cuts, cuts_at, layer_calls
from meshwright.ir.program.lower import stages_of
from meshwright.ir.program.program import Program, Run
from meshwright.planner.refine.candidate import Candidate, Counts, counts_of
from meshwright.planner.refine.improvement import Bench, climb

Lowered = Callable[[Decisions], Program]

BEST_CUTS = 3
"""Cuts by the screening formula that are priced as whole plans."""

MOST_PRICED = 60
"""Whole plans that are priced, unless told otherwise."""

FEW_STAGES = 4
"""Of which any may give a layer away, not the slowest one only: where transfers are the pace, another may be it."""

MOST_PAIRS = 32
"""Pairs (max, sum) that are kept for a stage and a first layer; more than a few there are only on different devices."""

_SAME = 1e-9
"""Of seconds, as a share: a difference below this is rounding."""


# Cutting a plan elsewhere --------------------------------------------------------------------------------------------


def recut(decisions: Decisions, fold: Fold, counts: Sequence[int]) -> Decisions:
    """The plan with so many layers in each stage. A body plan that is used somewhere on a mesh may be used by all
    stages of that mesh."""
    return _at(decisions, fold, cuts_at(fold, counts))


def _at(decisions: Decisions, fold: Fold, cuts: Iterable[tuple[int, int]]) -> Decisions:
    """The plan with its stages running these calls, whether they cover the model or not."""
    bodies = [call.body.name for call in fold.calls()]
    plans = [tuple(plan.name for plan in found) for found in _plans_at_hand(decisions)]
    open_ = replace(
        decisions,
        stages=tuple(
            replace(stage, first=first, last=last, plans=names)
            for stage, (first, last), names in zip(decisions.stages, cuts, plans, strict=True)
        ),
    )

    def used(index: int, names: Sequence[str]) -> tuple[str, ...]:
        stage = open_.stages[index]
        needed = {plan.name for plan in open_.plans_for(index, bodies[stage.first : stage.last])}
        return tuple(name for name in names if name in needed)

    stages = tuple(
        replace(stage, plans=used(index, names))
        for index, (stage, names) in enumerate(zip(open_.stages, plans, strict=True))
    )
    return replace(open_, stages=stages)


def _plans_at_hand(decisions: Decisions) -> list[list[BodyPlan]]:
    """The body plans for every stage's mesh; those for the first calls of a body before the others."""
    meshes = {stage.mesh for stage in decisions.stages}
    found = []
    for stage in decisions.stages:
        names = {name for other in decisions.stages if other.mesh == stage.mesh for name in other.plans}
        own = [plan for plan in decisions.plans if len(meshes) == 1 or plan.name in names]
        found.append(sorted(own, key=lambda plan: (plan.body, plan.first == 0, plan.name)))
    return found


# Cells ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cell:
    """One stage with one range of layers."""

    seconds: float
    fits: bool


class Cells:
    """The cells of a plan: every stage with every range of layers, read a whole program at a time."""

    def __init__(self, decisions: Decisions, fold: Fold, lowered: Lowered, prices: Prices) -> None:
        self.decisions, self.fold, self.prices = decisions, fold, prices
        self.program = lowered(replace(_with_all_plans(decisions), offload=NOTHING))
        self.plain = {body.name: body for body in self.program.bodies}
        """Body programs by plan, before anything waits on the host."""
        self.calls = tuple(fold.calls())
        self.bodies = tuple(call.body.name for call in self.calls)
        starts = layer_calls(fold)
        self.starts = (*starts, starts[-1] + 1)
        self.layers, self.stages = len(starts), len(decisions.stages)
        self.alone = len(decisions.groups) == self.stages
        """Groups hold one stage each, so that a stage's memory is its own."""
        self.like = self._first_alike()
        self._found: dict[tuple[int, tuple[str, ...]], Cell | None] = {}

    def _first_alike(self) -> list[int]:
        """The first stage with the same cells, for every stage. Where stages share memory, and neither devices nor
        meshes differ, nor calls share parameters: the first one on which every body costs the same."""
        several = len({stage.mesh for stage in self.decisions.stages}) > 1
        if self.alone or several or self.fold.tied or self.prices.cluster.kinds:
            return list(range(self.stages))
        every = (Run(tuple(self.plain), 1, 0),)
        program = replace(self.program, stages=tuple(replace(stage, runs=every) for stage in self.program.stages))
        assert program.workload is not None
        return Step(self.prices, program, program.workload).first

    def range_of(self, stage: int, first: int, last: int) -> tuple[int, int]:
        """The calls of a stage that runs layers first .. last; calls between layers go with the layer before them."""
        begin = self.starts[first] if stage else 0
        return begin, self.starts[last] if stage < self.stages - 1 else len(self.calls)

    def get(self, stage: int, first: int, last: int) -> Cell | None:
        """A cell that was read; None if it has nothing to run, or no plan to run it by."""
        begin, end = self.range_of(stage, first, last)
        return self._found.get((self.like[stage], self.bodies[begin:end]))

    def read(self, wanted: Iterable[tuple[int, int, int]]) -> None:
        """Read cells, each a stage and a range of layers."""
        queued: dict[tuple[int, tuple[str, ...]], tuple[int, int]] = {}
        for stage, first, last in wanted:
            begin, end = self.range_of(stage, first, last)
            key = self.like[stage], self.bodies[begin:end]
            if key[1] and key not in self._found:
                queued.setdefault(key, (begin, end))
        usual = [(stage.first, stage.last) for stage in self.decisions.stages]
        waiting: list[list[tuple[int, int]]] = [[] for _ in usual]
        for (like, _), ranges in queued.items():  # those that are alike take turns
            min((waiting[stage] for stage, one in enumerate(self.like) if one == like), key=len).append(ranges)
        for turn in range(max(map(len, waiting))):
            cuts = tuple(ranges[turn] if turn < len(ranges) else usual[stage] for stage, ranges in enumerate(waiting))
            self._read(cuts, [stage for stage, ranges in enumerate(waiting) if turn < len(ranges)])

    def _read(self, cuts: Cuts, wanted: Sequence[int]) -> None:
        try:
            decisions = _at(self.decisions, self.fold, cuts)
        except BodyUnplanned:
            self._one_by_one(cuts, wanted)
            return
        bodies, stages = stages_of(self.fold, decisions, self.plain, self.program.workload)
        program = replace(self.program, bodies=tuple(bodies.values()), stages=stages, ties=())
        assert program.workload is not None
        step = Step(self.prices, program, program.workload)
        held = step.held() if self.alone else ()
        for stage in wanted:
            begin, end = cuts[stage]
            seconds = sum(part[stage].seconds for part in (step.forwards, step.inputs, step.weights))
            self._found[self.like[stage], self.bodies[begin:end]] = Cell(seconds, not held or held[stage].fits)

    def _one_by_one(self, cuts: Cuts, stages: Sequence[int]) -> None:
        """Read cells one by one where a stage has no plan for what it would run; that cell is None."""
        usual = tuple((stage.first, stage.last) for stage in self.decisions.stages)
        for stage in stages:
            begin, end = cuts[stage]
            if len(stages) == 1:
                self._found[self.like[stage], self.bodies[begin:end]] = None
            else:
                self._read((*usual[:stage], (begin, end), *usual[stage + 1 :]), [stage])


def _with_all_plans(decisions: Decisions) -> Decisions:
    """The plan with every body plan lowered, also those that no stage uses at present."""
    plans = _plans_at_hand(decisions)
    stages = tuple(
        replace(stage, plans=tuple(plan.name for plan in found))
        for stage, found in zip(decisions.stages, plans, strict=True)
    )
    return replace(decisions, stages=stages)


# The dynamic programme -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tail:
    """The stages from one on, cut in one way: seconds of the slowest stage, their sum, and the sum of their squares,
    which is least where stages are alike."""

    slowest_s: float
    sum_s: float
    squares: float
    counts: Counts

    def after(self, seconds: float, layers: int) -> _Tail:
        """The tail with a stage in front."""
        return _Tail(
            max(seconds, self.slowest_s), seconds + self.sum_s, seconds**2 + self.squares, (layers, *self.counts)
        )


def best_cuts(cells: Cells, *, most: int = BEST_CUTS) -> list[tuple[float, Counts]]:
    """The cuts that fit with the least T, each with its T."""
    fronts = _tails(cells)
    pace = (cells.program.microbatches - 1) * _per_group(cells)
    found = sorted((pace * tail.slowest_s + tail.sum_s, tail.squares, tail.counts) for tail in fronts)
    return [(step_s, counts) for step_s, _, counts in found[:most]]


def _per_group(cells: Cells) -> int:
    return cells.stages // len(cells.decisions.groups)


def _tails(cells: Cells) -> list[_Tail]:
    """Cuts of the whole model that no other beats in both the slowest stage and the sum."""
    lengths = _lengths(cells)
    total, last = cells.layers, cells.stages - 1
    after: dict[int, list[_Tail]] = {total: [_Tail(0.0, 0.0, 0.0, ())]}
    for stage in range(last, -1, -1):
        here: dict[int, list[_Tail]] = {}
        for first in [0] if stage == 0 else range(total + 1):
            ends = [total] if stage == last else range(first, min(total, first + lengths[stage]) + 1)
            found = [
                tail.after(cell.seconds, end - first)
                for end in ends
                if end in after and (cell := cells.get(stage, first, end)) is not None and cell.fits
                for tail in after[end]
            ]
            if found:
                here[first] = _undominated(found)
        after = here
    return after.get(0, [])


def _undominated(tails: list[_Tail]) -> list[_Tail]:
    kept: list[_Tail] = []
    unit = _SAME * min(tail.sum_s for tail in tails)  # sums that differ by less are the same

    def order(tail: _Tail) -> tuple[float, int, float, Counts]:
        return tail.slowest_s, round(tail.sum_s / unit), tail.squares, tail.counts

    for tail in sorted(tails, key=order):
        if not kept or tail.sum_s < kept[-1].sum_s * (1 - _SAME):
            kept.append(tail)
    return kept[:MOST_PAIRS]


def _lengths(cells: Cells) -> list[int]:
    """The most layers of every stage, beyond which it is too slow or too full whichever they are. Reads cells of one
    layer more after another."""
    bound = _bound_s(cells)
    pace = (cells.program.microbatches - 1) * _per_group(cells) + 1
    longest, growing = [0] * cells.stages, set(range(cells.stages))
    for length in range(cells.layers + 1):
        firsts = range(cells.layers - length + 1)
        cells.read(
            (stage, first, first + length) for stage in sorted(growing) for first in _starts(cells, stage, firsts)
        )
        for stage in sorted(growing):
            found = [cells.get(stage, first, first + length) for first in _starts(cells, stage, firsts)]
            if any(cell is not None and cell.fits and pace * cell.seconds <= bound for cell in found):
                longest[stage] = length
            elif any(found):
                growing.discard(stage)
        if not growing:
            break
    return longest


def _starts(cells: Cells, stage: int, firsts: range) -> Sequence[int]:
    """The layers at which a stage may begin: the first stage at the first layer, the last so that it ends at the
    last."""
    if stage == 0:
        return firsts[:1]
    return firsts[-1:] if stage == cells.stages - 1 else firsts


def _bound_s(cells: Cells) -> float:
    """T of the plan as it is cut, which the best cut need not exceed; infinite if the plan does not fit."""
    counts = counts_of(cells.decisions, cells.fold)
    firsts = [sum(counts[:stage]) for stage in range(len(counts))]
    ranges = [(stage, first, first + count) for stage, (first, count) in enumerate(zip(firsts, counts, strict=True))]
    cells.read(ranges)
    found = [cells.get(*one) for one in ranges]
    seconds = [cell.seconds for cell in found if cell is not None and cell.fits]
    if len(seconds) < len(found):
        return float("inf")
    pace = (cells.program.microbatches - 1) * _per_group(cells)
    return (pace * max(seconds) + sum(seconds)) * (1 + _SAME)


# The improvement ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layers:
    """An improvement: layers shared out for the fastest step that fits, as far as `limit` prices go."""

    limit: int = MOST_PRICED

    def accepts(self, plan: Candidate, bench: Bench) -> bool:
        return len(plan.decisions.stages) > 1

    def neighbours(self, plan: Candidate, bench: Bench) -> Iterator[Candidate]:
        """The end of a climb from the plan: the cuts that seem best first, then single layers moved."""
        fold = bench.fold(plan)
        cells = Cells(plan.decisions, fold, lambda one: bench.lowered(one, fold), bench.prices)
        cuts = tuple(counts for _, counts in best_cuts(cells))
        yield climb(plan, _Moves(fold, cuts, {plan.counts}, self.limit - 1), bench)


@dataclass(slots=True)
class _Moves:
    """Cuts near a plan's, each priced once, as far as there are prices."""

    fold: Fold
    cuts: tuple[Counts, ...]
    """What is tried before single layers are moved."""
    seen: set[Counts]
    left: int

    def accepts(self, plan: Candidate, bench: Bench) -> bool:
        return self.left > 0

    def neighbours(self, plan: Candidate, bench: Bench) -> Iterator[Candidate | None]:
        for counts in (*self.cuts, *self._moved(plan)):
            yield self._cut(plan, counts, bench)

    def _cut(self, plan: Candidate, counts: Counts, bench: Bench) -> Candidate | None:
        """The plan with so many layers in each stage, if that is new, can be, and there is a price left."""
        if counts in self.seen or self.left <= 0:
            return None
        self.seen.add(counts)
        try:
            decisions = recut(plan.decisions, self.fold, counts)
            bench.setting.allowed(decisions, self.fold)
            prediction = bench.judged(decisions, self.fold)
        except (LayersIndivisible, BodyUnplanned, NotExpressible, PartialAcross, PinUnmet):
            return None
        self.left -= 1
        return replace(plan, decisions=decisions, prediction=prediction, counts=counts)

    @staticmethod
    def _moved(plan: Candidate) -> Iterator[Counts]:
        """Counts with a single layer moved away from the stage that is slowest, or lacks most; with few stages, from
        any."""
        stages, counts = plan.prediction.stages, plan.counts
        full = max(stages, key=lambda one: one.memory.lacks_bytes).stage
        by_speed = [one.stage for one in sorted(stages, key=lambda one: one.forward_s + one.backward_s)]
        slow = max(stages, key=lambda one: one.forward_s + one.backward_s).stage
        others = range(len(stages)) if len(stages) <= FEW_STAGES else ()
        for giver in dict.fromkeys((*(() if plan.prediction.fits else (full,)), slow, *others)):
            for taker in by_speed:
                if taker != giver and counts[giver]:
                    yield tuple(count - (stage == giver) + (stage == taker) for stage, count in enumerate(counts))
