"""What plans are compared by: the answer is the least of all that there is, by trying all that there is."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf

import pytest

from meshwright.cost_models.cluster_text import read_cluster
from meshwright.ir.errors import MeshwrightError, ObjectiveUnknown, PriceMissing
from meshwright.planner import pricing
from meshwright.planner.cli import main
from meshwright.planner.objective import check_objective, price_per_s
from meshwright.planner.plan_file import plan_from_json
from meshwright.planner.report import plan_of
from meshwright.planner.solve import parts, solve
from tests.planner.solved import TINY, question

PINS = ("--fix", "cp=1", "--allow", "recompute=none|full", "--forbid", "tp=4")
PRICED = (TINY, "--cluster", "2x2xA100,price=2", "--global-batch", "8", "--seq", "64", *PINS)


def test_the_least_memory_of_all_configurations() -> None:
    ask, setting, wished = question(*PRICED)
    solved = solve(ask, setting, wished, objective="memory")
    least = (inf, inf)
    for base in solved.search.space.bases():
        for config in solved.search.space.shapes(base):
            try:
                prediction = setting.predict(config, solved.global_batch)
            except MeshwrightError:
                continue
            least = min(least, (prediction.peak_memory_bytes, prediction.step_time_s))
    assert solved.best is not None
    assert least[0] == solved.best.prediction.peak_memory_bytes
    assert 0 < solved.lower <= least[0]
    plan = plan_of(solved)
    assert plan.bounds.upper == least[0]
    assert all(one.peak_memory_bytes >= least[0] for one in (*plan.baselines, *plan.alternatives) if one.config)


def test_the_least_cost_on_any_number_of_hosts() -> None:
    ask, setting, wished = question(*PRICED)
    solved = solve(ask, setting, wished, objective="cost")
    costs = {}
    for cluster in parts(ask.cluster):
        own = replace(setting, ranks=cluster.ranks, price=pricing.price_of(cluster), bodies={})
        alone = solve(replace(ask, cluster=cluster), own, wished)
        assert alone.best is not None
        costs[cluster.hosts] = alone.best.step_s * cluster.ranks * 2 / 3600
    assert solved.best is not None
    assert solved.score(solved.best) == pytest.approx(min(costs.values()))
    assert costs[solved.ask.cluster.hosts] == min(costs.values())
    assert solved.lower <= solved.score(solved.best)


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


def test_which_parts_there_are() -> None:
    assert [one.hosts for one in parts(read_cluster("12x8xH100"))] == [12, 6, 4, 3, 2, 1]


def test_prices_are_needed_and_objectives_known() -> None:
    assert price_per_s(read_cluster("2x8xH100,price=2.25")) == pytest.approx(16 * 2.25 / 3600)
    with pytest.raises(PriceMissing):
        check_objective("cost", read_cluster("2x8xH100"))
    with pytest.raises(ObjectiveUnknown, match="did you mean 'memory'"):
        check_objective("memmory", read_cluster("2x8xH100"))
