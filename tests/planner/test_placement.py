"""Placement against brute force, and the laws that it rests on."""

from __future__ import annotations

import random
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cost_models.cluster_text import read_cluster
from meshwright.cost_models.cluster_toml import read
from meshwright.cost_models.host_traffic import between_hosts
from meshwright.cost_models.prediction import Prediction
from meshwright.ir.decisions import Decisions
from meshwright.ir.errors import RanksMissing
from meshwright.planner.placement import assignment_of, on_ranks, placed, placements, worth
from meshwright.planner.refine import refined
from meshwright.planner.seats import Seats
from tests.planner.refining import CLUSTERS, LLAMA, Case, example, hosts

BY_HOST = [50, 100, 200, 400, 800]
"""Gb/s between hosts."""


def matrix(count: int, draw: random.Random) -> list[list[float]]:
    rows = [[0.0] * count for _ in range(count)]
    for one in range(count):
        for other in range(one):
            rows[one][other] = rows[other][one] = draw.choice(BY_HOST)
    return rows


def permuted(decisions: Decisions, order: tuple[int, ...], per_host: int) -> Decisions:
    """The plan with host i's place taken by host order[i]."""
    return on_ranks(
        decisions, [order[rank // per_host] * per_host + rank % per_host for rank in assignment_of(decisions)]
    )


@pytest.mark.parametrize(
    ("seed", "count", "pins"),
    [
        (0, 3, "tp=4,pp=3,split=spread"),
        (1, 4, "tp=4,pp=4"),
        (2, 5, "tp=4,pp=5,split=spread"),
        (3, 4, "tp=4"),
        (4, 4, "tp=2,pp=4"),
        (5, 4, "tp=1,pp=2,zero=3"),
    ],
)
def test_small_clusters_are_solved_as_by_brute_force(small: str, seed: int, count: int, pins: str) -> None:
    """No order of hosts is better; where stages are hosts there is nothing else to choose, and the best is met."""
    case = Case(small, hosts(count, matrix(count, random.Random(seed))), batch=60 if count in (3, 5) else 64)
    fold, plan = case.plan(pins)
    brute = min(worth(case.price(fold, permuted(plan, order, 4))) for order in permutations(range(count)))
    found = placed(plan, case.cluster, lambda one: case.price(fold, one))
    assert worth(found.prediction) <= brute
    assert worth(found.prediction) == worth(case.price(fold, found.decisions))
    if "tp=4,pp" in pins:
        assert worth(found.prediction) == brute


ALIKE = {
    "two pools": """
[[pool]]
name = "one"
hosts = 3
gpu = "A100-80G"
gpus_per_host = 4
[[pool]]
name = "two"
hosts = 2
gpu = "half"
gpus_per_host = 8
[[link]]
between = ["one", "two"]
kind = "ethernet"
gbps = 100
latency_us = 20
[[device]]
name = "half"
like = "V100-16G"
bf16_tflops = 125
""",
}


@given(st.sampled_from(["two pools", "hosts"]), st.randoms(use_true_random=False))
@settings(max_examples=20)
def test_exchanging_what_is_alike_changes_no_price(small: str, name: str, draw: random.Random) -> None:
    """Any assignment costs what the first of its kind does, to the last bit of what ranks it."""
    cluster = read(ALIKE[name]) if name in ALIKE else hosts(7)
    case = Case(small, cluster, batch=28)
    ranks = list(range(cluster.ranks))
    draw.shuffle(ranks)
    fold, plan = case.plan("tp=2,pp=7,split=spread")
    assert len(assignment_of(plan)) == cluster.ranks == 28
    one = on_ranks(plan, ranks)
    other = on_ranks(plan, Seats(cluster).canonical(ranks))
    assert sorted(assignment_of(other)) == sorted(ranks)
    assert worth(case.price(fold, one)) == worth(case.price(fold, other))
    assert Seats(cluster).canonical(assignment_of(other)) == assignment_of(other)


def test_islands_may_span_hosts() -> None:
    """Racks of eighteen hosts are what is exchanged, and the hosts of a rack."""
    seats = Seats(read_cluster("36x4xGB200"))
    assert [len(unit.ranks) for unit in seats.units] == [72, 72]
    swapped = [*range(72, 144), *range(72)]
    assert seats.canonical(swapped) == tuple(range(144))
    assert seats.canonical([72, 0, 75, 4]) == (0, 72, 1, 73)


def test_what_a_matrix_tells_apart_keeps_its_name() -> None:
    """By host, devices of a host stay alike; by device nothing is."""
    by_host = Seats(hosts(2, [[0, 100], [100, 0]]))
    assert by_host.canonical([5, 4, 1]) == (4, 5, 0)
    rows = [[0.0 if one == other else 100.0 for other in range(8)] for one in range(8)]
    assert Seats(hosts(2, rows)).canonical([5, 4, 1]) == (5, 4, 1)


def test_a_slower_pair_moves_the_plan_or_takes_longer(small: str) -> None:
    """Slowing any one pair of hosts never helps, and the plan that avoids it is found again."""
    fast = [[0.0 if one == other else 400.0 for other in range(4)] for one in range(4)]
    case = Case(small, hosts(4, fast))
    fold, plan = case.plan("tp=4,pp=2")
    usual = placed(plan, case.cluster, lambda one: case.price(fold, one))
    for one, other in ((0, 1), (1, 3)):
        slow = [row[:] for row in fast]
        slow[one][other] = slow[other][one] = 5.0
        there = Case(small, hosts(4, slow))
        found = placed(plan, there.cluster, lambda plan, there=there: there.price(fold, plan))
        program = there.lowered(fold, found.decisions)
        assert found.prediction.step_time_s >= usual.prediction.step_time_s * (1 - 1e-12)
        assert (one, other) not in between_hosts(program, there.prices)
        stayed = there.price(fold, usual.decisions).step_time_s
        assert found.prediction.step_time_s < stayed or found.decisions == usual.decisions


def test_the_answer_is_never_worse_and_always_the_same(small: str) -> None:
    case = Case(small, example("infiniband_and_roce"))
    fold, plan = case.plan("tp=2,pp=4")
    start = case.price(fold, plan)
    for limit in (1, 5, 40):
        found = placed(plan, case.cluster, lambda one: case.price(fold, one), limit=limit)
        assert worth(found.prediction) <= worth(start)
        assert found.priced <= limit
        again = placed(plan, case.cluster, lambda one: case.price(fold, one), limit=limit)
        assert found.decisions == again.decisions


def test_of_every_way_to_give_devices_to_groups_the_best_is_kept(small: str) -> None:
    case = Case(small, example("seven_gpus"), batch=12)
    fold, plan = case.plan("tp=1,pp=7,split=spread")
    priced: dict[tuple[tuple[str, ...], ...], list[tuple[float, float, float]]] = {}

    def way(decisions: Decisions) -> tuple[tuple[str, ...], ...]:
        """By group, the kinds of device."""
        names = [sorted({case.cluster.device(rank).name for rank in group}) for group in decisions.groups]
        return tuple(map(tuple, names))

    def judge(decisions: Decisions) -> Prediction:
        prediction = case.price(fold, decisions)
        priced.setdefault(way(decisions), []).append(worth(prediction))
        return prediction

    found = placements(plan, case.cluster, judge, limit=60)
    assert len(found) > 2
    assert [worth(one.prediction) for one in found] == [min(priced[way(one.decisions)]) for one in found]


def test_ranks_must_be_as_many_as_places(small: str) -> None:
    case = Case(small, hosts(2))
    fold, plan = case.plan("tp=4,pp=2")
    with pytest.raises(RanksMissing, match="7 ranks for a plan of 8"):
        on_ranks(plan, range(7))
    with pytest.raises(RanksMissing, match="offer at least 8"):
        placed(plan, case.cluster, lambda one: case.price(fold, one), subsets=[range(3)])


# Bars ----------------------------------------------------------------------------------------------------------------


SLOW_LINK = ("tp=8,pp=2", "tp=2,pp=1")


def interleaved(plan: Decisions) -> Decisions:
    """The ranks in the order of a launcher's host list that takes hosts of the two pools in turn."""
    order = (0, 4, 1, 5, 2, 6, 3, 7)
    return permuted(plan, order, 8)


def test_nothing_but_the_pipeline_crosses_a_slow_link_between_pools() -> None:
    """InfiniBand in one pool, RoCE in the other, 25 GbE between: 1.5 times as fast as the naive order of ranks."""
    case = Case(LLAMA, example("infiniband_and_roce"))
    steps = {}
    for pins in ("tp=4,pp=4", "tp=2,pp=2"):
        config = case.config(pins)
        fold, plan = case.plan(pins)
        naive = case.price(fold, interleaved(plan)).step_time_s
        found = refined(case.setting, config, case.batch, case.prices, limit=100)[0]
        steps[pins] = naive, found
    naive, best = min(steps.values(), key=lambda pair: pair[1].worth)
    assert naive >= 1.5 * best.prediction.step_time_s
    pools = [{rank // 32 for rank in group} for group in best.decisions.groups]
    assert all(len(pool) == 1 for pool in pools)


def test_the_plan_moves_when_the_links_change() -> None:
    """With a link as fast as the pools' own networks, copies on both sides are better than a pipeline across."""
    best = []
    for rate in (25, 51200):
        text = (
            (CLUSTERS / "infiniband_and_roce.toml")
            .read_text(encoding="utf-8")
            .replace("gbps = 25\n", f"gbps = {rate}\n")
        )
        case = Case(LLAMA, read(text), batch=256)
        found = {
            pins: refined(case.setting, case.config(pins), case.batch, case.prices, limit=60)[0] for pins in SLOW_LINK
        }
        best.append(min(found, key=lambda pins: found[pins].worth))
    slow, fast = best
    assert "pp=1" not in slow
    assert "pp=1" in fast


@pytest.mark.parametrize("pins", ["tp=8,pp=2", "tp=8,pp=8", "tp=8"])
def test_a_bad_pair_of_hosts_carries_the_least(pins: str) -> None:
    case = Case(LLAMA, example("bad_pair"))
    config = case.config(pins)
    fold = case.setting.fold(config)
    before = case.setting.predict(config, case.batch)
    found = refined(case.setting, config, case.batch, case.prices)[0]
    loads = between_hosts(case.lowered(fold, found.decisions), case.prices)
    assert found.prediction.step_time_s < before.step_time_s
    assert loads
    assert (1, 2) not in loads
