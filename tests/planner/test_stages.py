"""Layers shared out, against brute force and against the templates of the same numbers."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, product
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.hardware.toml import read
from meshwright.cost_models.prediction import Prediction
from meshwright.ir.decisions.decisions import Decisions, Schedule
from meshwright.ir.errors import LayersIndivisible, PartialAcross
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names import Degrees
from meshwright.planner.refine.candidate import Candidate, Counts, counts_of
from meshwright.planner.refine.heterogeneous import Part, over_parts
from meshwright.planner.refine.improvement import climb
from meshwright.planner.refine.stages import Cell, Cells, Layers, best_cuts, recut
from tests.planner import told
from tests.planner.refining import LLAMA, TINY, Case, hosts

TWO_SPEEDS = """
[[pool]]
name = "fast"
hosts = 1
gpu = "H100"
gpus_per_host = 2
[[pool]]
name = "slow"
hosts = 1
gpu = "A100-40G"
gpus_per_host = 2
[[link]]
between = ["fast", "slow"]
kind = "infiniband"
gbps = 200
latency_us = 5
"""

TIGHT = """
[[pool]]
name = "tight"
hosts = 1
gpu = "small"
gpus_per_host = 4
[[device]]
name = "small"
like = "A100-80G"
memory_gb = 4
"""


def cells(case: Case, fold: Fold, plan: Decisions) -> Cells:
    return Cells(plan, fold, lambda one: case.lowered(fold, one), case.prices)


def shared(case: Case, fold: Fold, plan: Decisions, limit: int = 60) -> Candidate:
    return shared_out(plan, fold, lambda one: case.price(fold, one), case, limit)


def shared_out(
    plan: Decisions, fold: Fold, judge: Any, case: Case | None = None, limit: int = 60, allowed: Any = lambda plan: plan
) -> Candidate:
    """Its layers shared out; what a plan is priced at is told."""
    bench: Any = SimpleNamespace(fold=lambda plan: fold, judged=lambda plan, fold: judge(plan))
    bench.lowered, bench.prices = lambda plan, fold: case and case.lowered(fold, plan), case and case.prices
    bench.setting = SimpleNamespace(allowed=lambda plan, fold: allowed(plan))
    counts = getattr(plan, "counts", None) or counts_of(plan, fold)
    return climb(Candidate(plan, judge(plan), counts), Layers(limit), bench, moves=1)


def all_counts(layers: int, stages: int) -> list[Counts]:
    """Every way to share layers out; the last stage may run the head alone, the first the embedding."""
    return [
        counts
        for counts in product(range(layers + 1), repeat=stages)
        if sum(counts) == layers and min(counts[1:-1], default=1) > 0
    ]


@pytest.mark.parametrize(
    "pins",
    [
        "tp=1,pp=4,stage_blocks=1+2+4+1",
        "tp=2,pp=2,vp=2,stage_blocks=2+2+3+1",
        "pp=4,recompute=full_layers:2,split=even",
    ],
)
def test_a_plan_cut_elsewhere_is_the_template_of_those_numbers(small: str, pins: str) -> None:
    case = Case(small, hosts(1))
    fold, plan = case.plan(pins)
    bare = ",".join(word for word in pins.split(",") if not word.startswith(("stage_blocks", "split")))
    for counts in ((2, 2, 2, 2), (1, 2, 4, 1), (0, 4, 4, 0), (3, 1, 1, 3)):
        _, wanted = case.plan(f"{bare},stage_blocks={'+'.join(map(str, counts))}")
        found = recut(plan, fold, counts)
        assert found.stages == wanted.stages
        assert counts_of(found, fold) == counts
        assert case.price(fold, found) == case.price(fold, wanted)


@pytest.mark.parametrize("cluster", [hosts(1), read(TWO_SPEEDS), read(TIGHT)], ids=["alike", "unlike", "tight"])
@pytest.mark.parametrize(
    "pins", ["tp=1,pp=4", "tp=1,pp=4,mbs=4,recompute=full", "tp=2,pp=2", "tp=2,pp=2,offload=optimizer+activations:1"]
)
def test_the_programme_finds_what_brute_force_finds(small: str, cluster: Cluster, pins: str) -> None:
    """The formula, over every way to share eight layers out; its terms are the whole plans' own."""
    case = Case(small, cluster)
    fold, plan = case.plan(pins)
    found = best_cuts(cells(case, fold, plan), most=1)
    times: dict[Counts, float] = {}
    for counts in all_counts(8, len(plan.stages)):
        priced = case.price(fold, recut(plan, fold, counts))
        seconds = [one.forward_s + one.backward_s for one in priced.stages]
        if priced.fits:
            times[counts] = (plan.schedule.microbatches - 1) * max(seconds) + sum(seconds)
    if "offload" not in pins:
        assert (len(times) < len(all_counts(8, len(plan.stages)))) == (cluster == read(TIGHT))
    if not times:
        assert not found
        return
    step_s, counts = found[0]
    assert step_s == pytest.approx(min(times.values()), rel=1e-9)
    assert step_s == pytest.approx(times[counts], rel=1e-9)


@pytest.mark.parametrize("pins", ["tp=1,pp=4", "tp=1,pp=4,schedule=gpipe", "tp=2,pp=2,vp=2"])
def test_the_answer_is_the_evaluators_best(small: str, pins: str) -> None:
    """On eight layers, of all ways to share them out; and never worse than what came in."""
    case = Case(small, hosts(1), batch=16)
    fold, plan = case.plan(pins)
    brute = min(case.price(fold, recut(plan, fold, counts)).worth for counts in all_counts(8, len(plan.stages)))
    found = shared(case, fold, plan)
    assert found.prediction.worth[1] == pytest.approx(brute[1], rel=0.01)
    assert found.prediction.worth <= case.price(fold, plan).worth
    assert found.decisions == recut(plan, fold, found.counts)
    assert shared(case, fold, plan, limit=1).prediction.worth == case.price(fold, plan).worth


def test_early_stages_hold_more_in_flight_and_get_fewer_layers() -> None:
    """Llama-3-8B without recomputation on 40 GB: even shares do not fit, and shares are found that do."""
    case = Case(LLAMA, read_cluster("1x8xA100-40G"), batch=32)
    fold, plan = case.plan("tp=1,pp=8")
    assert not case.price(fold, plan).stages[0].memory.fits
    found = shared(case, fold, plan)
    assert found.prediction.fits
    assert found.counts[0] < found.counts[1] <= found.counts[-2]


def test_slow_devices_get_fewer_layers() -> None:
    case = Case(LLAMA, read(TWO_SPEEDS), batch=16)
    fold, plan = case.plan("tp=2,pp=2,recompute=full")
    found = shared(case, fold, plan)
    fast, slow = found.counts
    assert fast > slow
    assert found.prediction.step_time_s < case.price(fold, plan).step_time_s


def test_layers_of_several_kinds_may_move_between_stages() -> None:
    """A dense first layer and experts after it: each range has its own kinds, and every kind a plan."""
    case = Case(TINY, hosts(1), batch=8, seq=128)
    fold, plan = case.plan("pp=4,split=spread")
    for counts in all_counts(6, 4):
        assert counts_of(recut(plan, fold, counts), fold) == counts
    assert shared(case, fold, plan).prediction.worth <= case.price(fold, plan).worth


def test_cuts_that_a_sum_would_have_to_cross_are_left_alone(small: str) -> None:
    """T5's bias of positions: between some blocks its gradient is a sum that no transfer carries."""
    case = Case(small, hosts(2), batch=8)
    fold, plan = case.plan("tp=2,pp=4,stage_blocks=1+3+3+1")

    def judge(decisions: Decisions) -> Prediction:
        if counts_of(decisions, fold) != (1, 3, 3, 1):
            raise PartialAcross(place="here", cause="a sum crosses", fix="cut elsewhere")
        return case.price(fold, decisions)

    found = shared_out(plan, fold, judge, case)
    assert found.counts == (1, 3, 3, 1)


# In numbers ----------------------------------------------------------------------------------------------------------


class Table:
    """Cells that are told: every layer has work and bytes of its own, every stage a speed, something beside its layers,
    and room; a stage may have no plan for one layer, and none runs nothing but the first and the last."""

    def __init__(self, seed: int, layers: int, stages: int, groups: int, microbatches: int, tight: float) -> None:
        draw = random.Random(seed)
        self.layers, self.stages = layers, stages
        self.program: Any = SimpleNamespace(microbatches=microbatches)
        self.decisions: Any = SimpleNamespace(groups=range(groups), counts=even_counts(layers, stages))
        self.fold = None
        self.work = [draw.uniform(1, 3) * (8 if seed % 2 and at < 2 else 1) for at in range(layers)]
        self.held = [draw.uniform(1, 3) for _ in range(layers)]
        self.speed = [draw.choice((1.0, 1.0, 2.5)) for _ in range(stages)]
        self.beside = [draw.uniform(0, 2) for _ in range(stages)]
        self.room = [draw.uniform(tight, 2 * tight) for _ in range(stages)]
        self.unplanned = draw.randrange(stages), draw.randrange(layers)
        self.known: set[tuple[int, int, int]] = set()

    def read(self, wanted: Iterable[tuple[int, int, int]]) -> None:
        self.known.update(wanted)

    def get(self, stage: int, first: int, last: int) -> Cell | None:
        return self.cell(stage, first, last) if (stage, first, last) in self.known else None

    def cell(self, stage: int, first: int, last: int) -> Cell | None:
        lacking, layer = self.unplanned
        if (first == last and 0 < stage < self.stages - 1) or (stage == lacking and first <= layer < last):
            return None
        seconds = self.speed[stage] * (sum(self.work[first:last]) + self.beside[stage])
        return Cell(seconds, sum(self.held[first:last]) <= self.room[stage])

    def taken(self, counts: Counts) -> tuple[float, float, float] | None:
        """The slowest stage, the sum of all and of their squares, if all fit."""
        starts = list(accumulate(counts, initial=0))
        found = [self.cell(stage, *ends) for stage, ends in enumerate(pairwise(starts))]
        if any(one is None or not one.fits for one in found):
            return None
        seconds = [one.seconds for one in found if one]
        return round(max(seconds), 9), round(sum(seconds), 9), sum(one**2 for one in seconds)


def even_counts(layers: int, stages: int) -> Counts:
    return tuple(layers // stages + (stage < layers % stages) for stage in range(stages))


@pytest.mark.parametrize("seed", range(24))
def test_of_all_cuts_those_that_none_beats_are_found(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """By trying all, where stages are as slow and as full as numbers drawn at random; one or two to a group."""
    stages, groups, microbatches = ((1, 1, 4), (2, 2, 1), (3, 3, 4), (4, 4, 8), (4, 2, 3), (2, 1, 6))[seed % 6]
    table: Any = Table(seed, 7, stages, groups, microbatches, (9.0, 4.0, 99.0)[seed % 3])
    monkeypatch.setattr("meshwright.planner.refine.stages.counts_of", lambda decisions, fold: decisions.counts)
    pace = (microbatches - 1) * (stages // groups)
    every = {one: table.taken(one) for one in all_counts(7, stages)}
    fitting = {one: own for one, own in every.items() if own}
    front = {}
    for one, (slowest, total, _) in sorted(fitting.items(), key=lambda pair: -pair[1][2]):
        if not any(a <= slowest and b <= total and (a, b) != (slowest, total) for a, b, _ in fitting.values()):
            front[slowest, total] = one  # of those that are the same in both the most alike
    usual = fitting.get(even_counts(7, stages))
    most = pace * usual[0] + usual[1] if usual else inf
    expected = sorted((pace * slowest + total, one) for (slowest, total), one in front.items())
    expected = [one for one in expected if one[0] <= most * (1 + 1e-9)]
    found = [one for one in best_cuts(table, most=99) if one[0] <= most * (1 + 1e-9)]
    assert [one for _, one in found] == [one for _, one in expected]
    assert [step_s for step_s, _ in found] == pytest.approx([step_s for step_s, _ in expected])
    assert best_cuts(table) == found[:3] or len(found) < 3


def test_of_equal_cuts_the_most_alike_one_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds of a layer and one beside; whichever stage has three layers, it takes seven. Then by the numbers."""
    table: Any = Table(0, 7, 3, 3, 4, 99.0)
    table.work, table.speed, table.beside, table.unplanned = [2.0] * 7, [1.0] * 3, [1.0] * 3, (9, 9)
    monkeypatch.setattr("meshwright.planner.refine.stages.counts_of", lambda decisions, fold: (3, 3, 1))
    assert best_cuts(table) == [(3 * 7 + 17, (2, 2, 3))]


@pytest.fixture
def told_cuts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, Counts]]:
    """Cuts that seem best; plans are nothing but their numbers of layers."""
    found: list[tuple[float, Counts]] = []
    monkeypatch.setattr("meshwright.planner.refine.stages.Cells", lambda *_: None)
    monkeypatch.setattr("meshwright.planner.refine.stages.best_cuts", lambda cells: found)
    monkeypatch.setattr("meshwright.planner.refine.stages.counts_of", lambda plan, fold: plan.counts)
    monkeypatch.setattr("meshwright.planner.refine.stages.recut", lambda plan, fold, counts: Numbers(counts))
    return found


@dataclass(frozen=True)
class Numbers:
    counts: Counts

    @property
    def stages(self) -> Counts:
        return self.counts


class Judge:
    """A stage takes its speed for every layer, and has room for so many."""

    def __init__(self, speeds: Sequence[float], rooms: Sequence[int] = ()) -> None:
        self.speeds, self.rooms = speeds, rooms or [99] * len(speeds)
        self.asked: list[Counts] = []

    def __call__(self, plan: Any) -> Prediction:
        self.asked.append(plan.counts)
        seconds = [count * speed for count, speed in zip(plan.counts, self.speeds, strict=True)]
        lacks = [float(count - room) for count, room in zip(plan.counts, self.rooms, strict=True)]
        return told.price(max(seconds), *lacks, stages_s=[(one / 4, 3 * one / 4) for one in seconds])


def out(judge: Judge, counts: Counts, **how: Any) -> Candidate:
    given: Any = Numbers(counts), None, judge
    return shared_out(*given, **how)


@pytest.mark.parametrize(
    ("speeds", "rooms", "counts", "asked"),
    [
        # From the slowest (6 s) to the quickest (2 s): 3, 3 and 4 s. Then from the last: to the first is too slow, to
        # the second is as slow with less in all; and so on from any, as there are few.
        ((3, 1, 2), (), (2, 2, 2), [(2, 2, 2), (1, 3, 2), (2, 3, 1), (1, 4, 1)]),
        # Of more than four stages only the slowest gives.
        ((9, 1, 1, 1, 1), (), (1, 1, 1, 1, 1), [(1, 1, 1, 1, 1), (0, 2, 1, 1, 1)]),
        # The fullest gives before the slowest, and takes from neither.
        (
            (1, 1, 9, 1, 1),
            (0, 9, 9, 9, 9),
            (1, 1, 1, 2, 3),
            [(1, 1, 1, 2, 3), (0, 2, 1, 2, 3)],
        ),
    ],
)
def test_single_layers_are_moved(
    told_cuts: Any, speeds: Sequence[float], rooms: Sequence[int], counts: Counts, asked: list[Counts]
) -> None:
    judge = Judge(speeds, rooms)
    out(judge, counts, limit=len(asked))
    assert judge.asked == asked


@pytest.mark.parametrize("limit", [1, 2, 60])
def test_cuts_that_seem_best_are_priced_before_layers_are_moved(told_cuts: Any, limit: int) -> None:
    """What the target refuses takes no price; what was priced is not priced again."""
    told_cuts += [(1.0, (4, 2)), (2.0, (2, 4)), (3.0, (3, 3)), (4.0, (1, 5))]

    def allowed(plan: Any) -> None:
        if plan.counts == (4, 2):
            raise LayersIndivisible(place="here", cause="four", fix="three")

    judge = Judge((2.0, 1.0))
    found = out(judge, (3, 3), limit=limit, allowed=allowed)
    expected = [(3, 3), (2, 4), (1, 5)]
    assert judge.asked[:3] == expected[:limit]
    assert len(set(judge.asked)) == len(judge.asked) <= limit
    assert (found.counts, found.decisions) == (expected[min(limit, 2) - 1], Numbers(found.counts))
    assert found.prediction.step_time_s == max(2 * found.counts[0], found.counts[1])


def test_one_stage_has_nothing_to_share(told_cuts: Any) -> None:
    told_cuts += [(1.0, (5,))]
    judge = Judge((1.0,))
    assert out(judge, (6,)).counts == (6,)
    assert judge.asked == [(6,)]


def test_a_stage_without_a_plan_for_a_layer_has_no_such_cell() -> None:
    """A dense first layer before experts: the second stage has a mesh of its own, and no plan for the dense one. What
    is read beside it is what is read alone."""
    case = Case(TINY, hosts(1), batch=8, seq=128)
    fold = case.setting.folds.at(8)
    parts = [Part((0,), Degrees()), Part((1, 2), Degrees(tp=2))]
    plan = case.setting.allowed(over_parts(fold, parts, (3, 3), Schedule("1f1b", 1), "any"), fold)
    wanted = [(0, 0, 5), (1, 0, 6), (1, 2, 6)]
    together, alone = (cells(case, fold, plan) for _ in range(2))
    together.read(wanted)
    for one in wanted:
        alone.read([one])
    assert [together.get(*one) for one in wanted] == [alone.get(*one) for one in wanted]
    first, none, second = (together.get(*one) for one in wanted)
    assert none is None
    assert first is not None
    assert second is not None
    assert together.get(0, 0, 4) is None, "it was not read"
    for stage, counts in ((0, (5, 1)), (1, (2, 4))):
        priced = case.price(fold, recut(plan, fold, counts)).stages[stage]
        own = (first, second)[stage]
        assert own.seconds == pytest.approx(priced.forward_s + priced.backward_s)
