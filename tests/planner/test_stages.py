"""Layers shared out, against brute force and against the templates of the same numbers."""

from __future__ import annotations

from itertools import product

import pytest

from meshwright.cost_models.cluster import Cluster
from meshwright.cost_models.cluster_text import read_cluster
from meshwright.cost_models.cluster_toml import read
from meshwright.cost_models.prediction import Prediction
from meshwright.ir.decisions import Decisions
from meshwright.ir.errors import PartialAcross
from meshwright.ir.fold import Fold
from meshwright.planner.placement import worth
from meshwright.planner.stages import Cells, Counts, Shared, best_cuts, counts_of, recut, shared_out
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


def shared(case: Case, fold: Fold, plan: Decisions, limit: int = 60) -> Shared:
    return shared_out(
        plan, fold, lambda one: case.lowered(fold, one), lambda one: case.price(fold, one), case.prices, limit=limit
    )


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
    brute = min(worth(case.price(fold, recut(plan, fold, counts))) for counts in all_counts(8, len(plan.stages)))
    found = shared(case, fold, plan)
    assert worth(found.prediction)[1] == pytest.approx(brute[1], rel=0.01)
    assert worth(found.prediction) <= worth(case.price(fold, plan))
    assert found.decisions == recut(plan, fold, found.counts)
    assert worth(shared(case, fold, plan, limit=1).prediction) == worth(case.price(fold, plan))


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
    assert worth(shared(case, fold, plan).prediction) <= worth(case.price(fold, plan))


def test_cuts_that_a_sum_would_have_to_cross_are_left_alone(small: str) -> None:
    """T5's bias of positions: between some blocks its gradient is a sum that no transfer carries."""
    case = Case(small, hosts(2), batch=8)
    fold, plan = case.plan("tp=2,pp=4,stage_blocks=1+3+3+1")

    def judge(decisions: Decisions) -> Prediction:
        if counts_of(decisions, fold) != (1, 3, 3, 1):
            raise PartialAcross(place="here", cause="a sum crosses", fix="cut elsewhere")
        return case.price(fold, decisions)

    found = shared_out(plan, fold, lambda one: case.lowered(fold, one), judge, case.prices)
    assert found.counts == (1, 3, 3, 1)
    assert found.priced == 1
