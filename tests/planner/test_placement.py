"""Placement against brute force, and the laws that it rests on."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, pairwise, permutations
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.hardware.toml import read
from meshwright.cost_models.host_traffic import between_hosts
from meshwright.cost_models.prediction import Prediction
from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.errors import RanksMissing
from meshwright.ir.sharding.mesh import Mesh
from meshwright.planner.refine.candidate import Candidate, idle_ranks
from meshwright.planner.refine.placement.placement import Placement, assignment_of, on_ranks
from meshwright.planner.refine.placement.symmetry import Symmetry
from tests.planner import told
from tests.planner.refining import CLUSTERS, LLAMA, Case, example, hosts

BY_HOST = [50, 100, 200, 400, 800]
"""Gb/s between hosts."""


def placements(plan: Any, cluster: Cluster, judge: Any, limit: int = 400, subsets: Any = ()) -> list[Candidate]:
    bench: Any = SimpleNamespace(cluster=cluster, fold=lambda plan: None, judged=lambda plan, fold: judge(plan))
    return list(Placement(tuple(map(tuple, subsets)), limit).neighbours(Candidate(plan, judge(plan)), bench))


def placed(*given: Any, **how: Any) -> Candidate:
    return placements(*given, **how)[0]


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
    brute = min(case.price(fold, permuted(plan, order, 4)).worth for order in permutations(range(count)))
    found = placed(plan, case.cluster, lambda one: case.price(fold, one))
    assert found.prediction.worth <= brute
    assert found.prediction.worth == case.price(fold, found.decisions).worth
    if "tp=4,pp" in pins:
        assert found.prediction.worth == brute


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
    other = on_ranks(plan, Symmetry(cluster).canonical(ranks))
    assert sorted(assignment_of(other)) == sorted(ranks)
    assert case.price(fold, one).worth == case.price(fold, other).worth
    assert Symmetry(cluster).canonical(assignment_of(other)) == assignment_of(other)


def test_islands_may_span_hosts() -> None:
    """Racks of eighteen hosts are what is exchanged, and the hosts of a rack."""
    seats = Symmetry(read_cluster("36x4xGB200"))
    assert [len(unit.ranks) for unit in seats.units] == [72, 72]
    swapped = [*range(72, 144), *range(72)]
    assert seats.canonical(swapped) == tuple(range(144))
    assert seats.canonical([72, 0, 75, 4]) == (0, 72, 1, 73)


def test_what_a_matrix_tells_apart_keeps_its_name() -> None:
    """By host, devices of a host stay alike; by device nothing is."""
    by_host = Symmetry(hosts(2, [[0, 100], [100, 0]]))
    assert by_host.canonical([5, 4, 1]) == (4, 5, 0)
    rows = [[0.0 if one == other else 100.0 for other in range(8)] for one in range(8)]
    assert Symmetry(hosts(2, rows)).canonical([5, 4, 1]) == (5, 4, 1)


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
        judge = Mock(side_effect=lambda one: case.price(fold, one))
        found = placed(plan, case.cluster, judge, limit=limit)
        assert found.prediction.worth <= start.worth
        assert judge.call_count <= limit
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
        priced.setdefault(way(decisions), []).append(prediction.worth)
        return prediction

    found = placements(plan, case.cluster, judge, limit=60)
    assert len(found) > 2
    assert [one.prediction.worth for one in found] == [min(priced[way(one.decisions)]) for one in found]


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
        found = case.refined(config, limit=100)[0]
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
        found = {pins: case.refined(case.config(pins), limit=60)[0] for pins in SLOW_LINK}
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
    found = case.refined(config)[0]
    loads = between_hosts(case.lowered(fold, found.decisions), case.prices)
    assert found.prediction.step_time_s < before.step_time_s
    assert loads
    assert (1, 2) not in loads


# By hand -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Staged:
    ranks: tuple[int, ...]
    mesh: Mesh


@dataclass(frozen=True)
class Plan:
    """Stages on ranks of their own."""

    stages: tuple[Staged, ...]

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        return tuple(stage.ranks for stage in self.stages)

    @staticmethod
    def of(*meshes: str) -> Any:
        """On the first ranks, group by group."""
        start, stages = 0, []
        for text in meshes:
            mesh = Mesh.parse(text)
            stages.append(Staged(tuple(range(start, start + mesh.size)), mesh))
            start += mesh.size
        return Plan(tuple(stages))


class Judge:
    """Prices by the ranks of a plan; remembers what it was asked."""

    def __init__(self, step_s: Callable[[tuple[int, ...]], float] = lambda ranks: 1.0) -> None:
        self.step_s = step_s
        self.asked: list[tuple[int, ...]] = []

    def __call__(self, plan: Decisions) -> Prediction:
        ranks = assignment_of(plan)
        self.asked.append(ranks)
        return told.price(self.step_s(ranks))


PAIRS = """
[[pool]]
name = "pairs"
hosts = {hosts}
gpu = "paired"
gpus_per_host = {each}
[[device]]
name = "paired"
like = "A100-80G"
island_size = {island}
"""
TWO_POOLS = """
[[pool]]
name = "fast"
hosts = 1
gpu = "H100"
gpus_per_host = 2
[[pool]]
name = "slow"
hosts = 1
gpu = "A100-80G"
gpus_per_host = 2
[[link]]
between = ["fast", "slow"]
kind = "infiniband"
gbps = 200
latency_us = 5
"""


def even(count: int, rate: float = 100.0) -> list[list[float]]:
    """Rates between so many that are all alike."""
    return [[0.0 if one == other else rate for other in range(count)] for one in range(count)]


@pytest.mark.parametrize(
    ("cluster", "plan", "expected"),
    [
        # A host holds a group, or half of each.
        (hosts(2), Plan.of("dp=4", "dp=4"), [(0, 1, 2, 3, 4, 5, 6, 7), (0, 1, 4, 5, 2, 3, 6, 7)]),
        # Three of each group do not fill a host of four with those of the other: two, or one of either, do at the most.
        (hosts(2), Plan.of("dp=2", "dp=2", "dp=2"), [(0, 1, 2, 3, 4, 5)]),
        # Where pairs are joined inside a host either axis may be the inner one.
        (read(PAIRS.format(hosts=1, each=4, island=2)), Plan.of("a=2 b=2"), [(0, 1, 2, 3), (0, 2, 1, 3)]),
        (hosts(1), Plan.of("a=2 b=2"), [(0, 1, 2, 3)]),
        # Either pool first, and either group by group or half of each in each pool.
        (
            read(TWO_POOLS),
            Plan.of("dp=2", "dp=2"),
            [(0, 1, 2, 3), (2, 3, 0, 1), (0, 2, 1, 3), (2, 0, 3, 1)],
        ),
        # Three places do not fill a host of two: single ones do. From either order of the pools hosts are exchanged.
        (read(TWO_POOLS), Plan.of("dp=3"), [(0, 1, 2), (2, 0, 1), (2, 3, 0), (0, 2, 3)]),
        # Over measured hosts axes go in every order; half of four hosts is exchanged for the other.
        (hosts(2, even(2), per_host=1), Plan.of("a=2"), [(0, 1), (1, 0)]),
        # Groups of unlike sizes stay together, in every order.
        (hosts(3, even(3), per_host=1), Plan.of("a=1", "b=2"), list(permutations(range(3)))),
    ],
)
def test_the_orders_of_places(cluster: Cluster, plan: Any, expected: list[tuple[int, ...]]) -> None:
    judge = Judge()
    found = placed(plan, cluster, judge)
    assert judge.asked[0] == tuple(range(len(expected[0])))
    assert sorted(judge.asked) == sorted(expected)
    assert found.decisions == plan, "of equals the first stays"


def test_whole_groups_come_in_every_order() -> None:
    """Before single ranks are exchanged."""
    judge = Judge()
    placed(Plan.of("a=1", "b=3"), hosts(4, even(4), per_host=1), judge, limit=2)
    assert judge.asked == [(0, 1, 2, 3), (3, 0, 1, 2)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", [(2, 2), (4, 1)], ids=["by device", "by host"])
def test_four_that_are_told_apart_are_placed_as_by_brute_force(seed: int, shape: tuple[int, int]) -> None:
    """Rates between devices, where a host has two; or between hosts of one. A ring takes as long as its slowest link,
    a second stage goes the other way round; what is measured to itself does not count."""
    draw, (count, each) = random.Random(seed), shape
    rates = matrix(4, draw)

    def step_s(ranks: tuple[int, ...]) -> float:
        return sum((1 + at) / rates[one][other] for at, (one, other) in enumerate(pairwise((*ranks, ranks[0]))))

    judge = Judge(step_s)
    found = placed(Plan.of("a=2", "b=2"), hosts(count, rates, per_host=each), judge)
    assert found.prediction.step_time_s == min(map(step_s, permutations(range(4))))
    assert sorted(judge.asked) == sorted(permutations(range(4)))


@pytest.mark.parametrize(("count", "each"), [(3, 2), (6, 1)])
def test_no_exchange_of_two_helps(count: int, each: int) -> None:
    """Six that are told apart have too many orders to try them all."""
    rates = matrix(6, random.Random(3))

    def step_s(ranks: tuple[int, ...]) -> float:
        return sum((1 + at) / rates[one][other] for at, (one, other) in enumerate(pairwise(ranks)))

    judge = Judge(step_s)
    best = assignment_of(placed(Plan.of("a=6"), hosts(count, rates, per_host=each), judge).decisions)
    assert len(judge.asked) < 400
    for one, other in combinations(range(6), 2):
        ranks = list(best)
        ranks[one], ranks[other] = ranks[other], ranks[one]
        assert step_s(tuple(ranks)) >= step_s(best)


@pytest.mark.parametrize(("count", "each"), [(6, 1), (3, 2)])
def test_who_sits_at_the_worst_link_is_exchanged_first(count: int, each: int) -> None:
    """The third and the last of six hosts of one, or of three hosts of two, measured from device to device."""
    rates = even(6)
    rates[3][5] = rates[5][3] = 10.0
    judge = Judge()
    placed(Plan.of("a=6"), hosts(count, rates, per_host=each), judge, limit=2 if each == 1 else 7)
    assert judge.asked[0] == (0, 1, 2, 3, 4, 5)
    assert judge.asked[-1] == (0, 1, 2, 5, 4, 3)


@pytest.mark.parametrize(("hosts_", "singly"), [(8, True), (9, False)])
def test_up_to_sixteen_measured_devices_are_exchanged_one_by_one(hosts_: int, singly: bool) -> None:
    """Of more whole hosts are, so that neighbours stay so."""
    count = 2 * hosts_
    judge = Judge(lambda ranks: 1.0 + ranks[0] + ranks.index(1))
    placed(Plan.of(f"a={count}"), hosts(hosts_, even(count), per_host=2), judge, limit=200)
    together = [all(ranks[at + 1] == ranks[at] + 1 for at in range(0, count, 2)) for ranks in judge.asked]
    assert all(together) != singly
    assert len(judge.asked) > 10


def test_of_every_way_to_give_devices_the_best_and_those_of_one_kind_first() -> None:
    """Seconds of the four orders on a fast and a slow pair."""
    times = {(0, 1, 2, 3): 3.0, (2, 3, 0, 1): 4.0, (0, 2, 1, 3): 2.0, (2, 0, 3, 1): 1.0}
    found = placements(Plan.of("dp=2", "dp=2"), read(TWO_POOLS), Judge(times.__getitem__))
    assert [(assignment_of(one.decisions), one.prediction.step_time_s) for one in found] == [
        ((2, 0, 3, 1), 1.0),
        ((0, 1, 2, 3), 3.0),
        ((2, 3, 0, 1), 4.0),
    ]
    times[2, 3, 0, 1] = 0.5
    found = placements(Plan.of("dp=2", "dp=2"), read(TWO_POOLS), Judge(times.__getitem__))
    assert [one.prediction.step_time_s for one in found] == [0.5, 3.0, 1.0]


def test_ranks_that_are_offered_are_taken_as_far_as_they_are_needed() -> None:
    """Idle ranks of the second pool in the place of the first one's; and exchanged for those that work."""
    judge = Judge(lambda ranks: float(sum(ranks)))
    plan = on_ranks(Plan.of("dp=2"), (3, 2))
    found = placed(plan, read(TWO_POOLS), judge, subsets=[(1, 0, 3)], limit=2)
    assert judge.asked == [(3, 2), (0, 1)]
    assert assignment_of(found.decisions) == (0, 1)
    assert idle_ranks(found.decisions, read(TWO_POOLS)) == (2, 3)
    with pytest.raises(RanksMissing, match="1 ranks for a plan of 2"):
        placed(plan, read(TWO_POOLS), judge, subsets=[(1, 1, 1)])


def test_what_plans_are_ranked_by() -> None:
    """What all stages lack together, their step, and the seconds of all stages."""
    assert told.price(2.0, 3.0, -1.0, 4.0, stages_s=((1, 2), (3, 4), (5, 6))).worth == (7.0, 2.0, 21.0)


def test_seats_of_unlike_hosts() -> None:
    """Six devices in islands of four and two: what can be exchanged has the same size."""
    seats = Symmetry(read(PAIRS.format(hosts=1, each=6, island=4)))
    assert [unit.islands for unit in seats.units] == [((0, 1, 2, 3), (4, 5))]
    assert seats.nested
    assert seats.canonical([4, 3, 5, 2]) == (4, 0, 5, 1)
    pairs = Symmetry(read(PAIRS.format(hosts=2, each=4, island=2)))
    assert pairs.canonical([6, 4, 7, 1]) == (0, 2, 1, 4)
    assert pairs.blocks(2) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [pairs.unit_of(rank) for rank in (0, 3, 4)] == [0, 0, 1]
    assert (pairs.kind(0), pairs.block) == (pairs.kind(7), 4)
    assert not Symmetry(hosts(2)).nested
    assert not Symmetry(read_cluster("1x4xL40S")).nested
    assert Symmetry(read_cluster("1x4xL40S")).canonical([3, 1]) == (0, 1)


def test_seats_of_two_pools() -> None:
    """Blocks divide the hosts of both; a shape takes hosts of one size as alike, whatever they hold."""
    text = TWO_POOLS.replace("gpus_per_host = 2", "gpus_per_host = 6", 1).replace("hosts = 1", "hosts = 2")
    seats = Symmetry(read(text))
    assert (seats.block, seats.by_device, seats.measured) == (2, False, False)
    assert [seats.pool_of(rank) for rank in (0, 11, 12, 15)] == [0, 0, 1, 1]
    assert [seats.device_of(rank) for rank in (11, 12)] == ["H100-80G", "A100-80G"]
    assert seats.canonical([14, 7, 12, 0]) == (12, 0, 14, 6)
    alike = Symmetry(read(TWO_POOLS))
    assert alike.canonical([2, 0]) == (2, 0)
    assert alike.shape([2, 0]) == (0, 2)
    assert alike.kind(0) != alike.kind(2)
