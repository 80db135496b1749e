"""What plans are compared by: the answer is the least of all that there is, by trying all that there is."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.small_cases import MANY, NEAR
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.hardware.toml import read
from meshwright.cost_models.prediction import Prediction
from meshwright.ir.errors import MeshwrightError, ObjectiveUnknown, PriceMissing
from meshwright.planner.answer.report import plan_of
from meshwright.planner.answer.solve import Stop, parts, solve
from meshwright.planner.cli.main import main
from meshwright.planner.plan.file import plan_from_json
from meshwright.planner.question import pricing
from meshwright.planner.question.objective import OBJECTIVES, check_objective, price_per_s, score
from meshwright.planner.search.search import CUT_SHORT
from meshwright.planner.space.baselines import NAMES
from tests.planner.handmade import GIB, prediction
from tests.planner.solved import TINY, question

PINS = ("--fix", "cp=1", "--allow", "recompute=none|full", "--forbid", "tp=4")
PRICED = (TINY, "--cluster", "2x2xA100,price=2", "--global-batch", "8", "--seq", "64", *PINS)


def test_the_least_of_all_configurations() -> None:
    """By time and by memory, against everything in the space, priced; what is refined may be faster still."""
    ask, setting, wished = question(*PRICED)
    quickest, least = solve(ask, setting, wished), solve(ask, setting, wished, objective="memory")
    priced: list[Prediction] = []
    for config in (config for base in least.search.space.bases() for config in least.search.space.shapes(base)):
        with suppress(MeshwrightError):
            priced.append(setting.predict(config, least.global_batch))
    assert quickest.best is not None
    assert quickest.search.best is not None
    assert least.best is not None
    assert quickest.lower <= min(one.step_time_s for one in priced if one.fits) == quickest.search.best.step_s
    assert quickest.best.step_s <= quickest.search.best.step_s
    peak = min(one.peak_memory_bytes for one in priced)
    assert 0 < least.lower <= peak == least.best.prediction.peak_memory_bytes
    assert least.best.step_s == min(one.step_time_s for one in priced if one.peak_memory_bytes == peak)
    plan = plan_of(least)
    assert plan.bounds.upper == peak
    assert all(one.peak_memory_bytes >= peak for one in (*plan.baselines, *plan.alternatives) if one.config)


def test_the_least_cost_on_any_number_of_hosts() -> None:
    """Of all configurations; and refined as the fastest plan on these hosts is."""
    ask, setting, wished = question(*PRICED)
    solved = solve(ask, setting, wished, objective="cost")
    costs, refined = {}, {}
    for cluster in parts(ask.cluster):
        own = replace(setting, ranks=cluster.ranks, price=pricing.price_of(cluster), bodies={})
        alone = solve(replace(ask, cluster=cluster), own, wished)
        assert alone.search.best is not None
        assert alone.best is not None
        costs[cluster.hosts] = alone.search.best.step_s * cluster.ranks * 2 / 3600
        refined[cluster.hosts] = alone.best.step_s
    assert solved.best is not None
    assert solved.search.best is not None
    assert solved.score(solved.search.best) == pytest.approx(min(costs.values()))
    assert costs[solved.ask.cluster.hosts] == min(costs.values())
    assert solved.best.step_s == refined[solved.ask.cluster.hosts]
    assert 0 < solved.lower <= min(costs.values()) * (1 + 1e-9)
    assert solved.proved <= solved.score(solved.best)


def test_a_plan_for_a_part_of_the_cluster_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PRICED, "--objective", "cost", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    plan = plan_from_json(data)
    objective = data["bounds"]["objective"]
    assert objective["name"] == "cost"
    assert objective["upper"] == pytest.approx(plan.prediction.step_time_s * price_per_s(plan.machines.cluster()))
    assert plan.machines.hosts == 1
    assert plan.notes[0] == "1 of 2 hosts stay idle: the plan is for the other 1"
    assert "some devices of a host" in plan.bounds.truncated


def test_one_pool_alone_where_the_other_would_be_waited_for() -> None:
    """A fast device behind a slow wire to another one, and too little work for both."""
    case = next(case for case in MANY if case.cluster == NEAR)
    ask, setting, wished = question(*(word for word in case.argv() if word not in ("--allow", "mbs=4|8")))
    solved = solve(ask, setting, wished)
    assert [pool.name for pool in solved.ask.cluster.pools] == ["a100"]
    assert solved.notes[0] == "pool a100 alone is faster than with the others"
    assert solved.best is not None
    assert solved.lower <= solved.best.step_s
    plan = plan_of(solved)
    assert plan.notes[0] == "1 of 2 hosts stay idle: the plan is for the other 1"
    assert plan.machines.cluster().ranks == 1
    assert any(one.config and one.config.dp == 2 for one in plan.baselines), "a person would use both"


def test_baselines_that_the_whole_cluster_cannot_have_are_of_the_pool() -> None:
    """192 ranks in two pools, and 64 sequences: copies alone can be on the 64 ranks of one pool."""
    cluster = str(Path(__file__).parents[2] / "examples" / "clusters" / "two_pools.toml")
    solved = solve(*question(TINY, "--cluster", cluster, "--global-batch", "64", "--seq", "64"))
    found = {one.name: one for one in plan_of(solved).baselines}
    assert list(found) == list(NAMES)
    assert [pool.name for pool in solved.ask.cluster.pools] == ["old"]
    assert {name: one.config.dp for name, one in found.items() if one.config and one.config.tp == 1}["fsdp"] == 64
    assert all(one.config for one in found.values())


def test_a_search_that_is_cut_short_says_so_of_its_baselines() -> None:
    ask, setting, wished = question()
    stop = Stop()

    def told(phase: str, search: object = None, /) -> None:
        stop.interrupted = search is not None

    plan = plan_of(solve(ask, setting, wished, stop, told))
    assert [one.lost for one in plan.baselines if not one.config] == [CUT_SHORT] * (len(NAMES) - 1)


def test_which_parts_there_are() -> None:
    assert [one.hosts for one in parts(read_cluster("12x8xH100"))] == [12, 6, 4, 3, 2, 1]


def test_prices_are_needed_and_objectives_known() -> None:
    assert price_per_s(read_cluster("2x8xH100,price=2.25")) == pytest.approx(16 * 2.25 / 3600)
    with pytest.raises(PriceMissing):
        check_objective("cost", read_cluster("2x8xH100"))
    with pytest.raises(ObjectiveUnknown, match="did you mean 'memory'"):
        check_objective("memmory", read_cluster("2x8xH100"))


POOLS = """
[[pool]]
name = "fast"
hosts = 2
gpu = "H100"
gpus_per_host = 4
price_per_gpu_hour = 9.0
[[pool]]
name = "slow"
hosts = 3
gpu = "A100"
gpus_per_host = 2
price_per_gpu_hour = 4.0
[[link]]
between = ["fast", "slow"]
kind = "infiniband"
gbps = 200
latency_us = 5
"""


def test_what_several_pools_cost_and_what_is_refused_in_full() -> None:
    """Eight devices at 9 and six at 4 an hour are 96 an hour; a step of two seconds takes 1 / 1,800 of one."""
    cluster = read(POOLS)
    assert price_per_s(cluster) == pytest.approx(96 / 3600)
    found = [score(name, prediction(), cluster) for name in OBJECTIVES]
    assert found == [2.0, pytest.approx(96 / 1800), 6.0 * GIB]
    free = read(POOLS.replace("price_per_gpu_hour = 4.0\n", ""))
    with pytest.raises(PriceMissing) as missing:
        price_per_s(free)
    assert missing.value.place == "cluster, pool 'slow'"
    for name in ("time", "memory"):
        check_objective(name, free)
    check_objective("cost", cluster)
    with pytest.raises(ObjectiveUnknown) as unknown:
        check_objective("qqq", cluster)
    assert (unknown.value.place, unknown.value.fix) == ("--objective qqq", "use one of time, cost, memory")
