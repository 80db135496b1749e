"""What bounds of one setting share: what straggles, may be filled and is held twice; and what wires take at least."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.cost_models.collectives.collective import collective
from meshwright.cost_models.collectives.topology import group_shape
from meshwright.cost_models.cost import Cost
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.toml import read
from meshwright.cost_models.prices import Prices
from meshwright.cost_models.profile import published
from meshwright.ir.target.workload import STACKS
from meshwright.planner.bounds.bases import Held
from meshwright.planner.bounds.bounds import Bounds
from meshwright.planner.bounds.common import Common
from tests.planner import told
from tests.planner.refining import SMALL, Case, hosts
from tests.planner.test_bases import STEP

# What bounds of one setting share ------------------------------------------------------------------------------------

MOST = """
[[pool]]
name = "two"
hosts = 2
gpu = "A100-40G"
gpus_per_host = 4
[[pool]]
name = "one"
hosts = 1
gpu = "A100-80G"
gpus_per_host = 8
[[link]]
between = ["one", "two"]
kind = "ethernet"
gbps = 100
latency_us = 20
"""


def common(case: Case, **changes: Any) -> Common:
    """With a tenth of the step for every doubling of the hosts, and round numbers of what a runtime takes."""
    prices, setting = case.prices, case.setting
    profile = replace(
        prices.profile, step=replace(STEP, straggling=0.1, hidden_tensor=0.2, hidden_backward=0.3, slowdown=0.25)
    )
    stack = replace(setting.workload.stack, **changes)
    setting = replace(setting, workload=replace(setting.workload, stack=stack), bodies={})
    return Common(setting, Prices(case.cluster, profile), setting.folds.at(8))


@pytest.mark.parametrize(
    ("cluster", "doublings"),
    [
        (hosts(1), 0),
        (hosts(4), 2),
        (read(MOST), 1.5849625007211562),  # sixteen ranks on three hosts
    ],
)
def test_ranks_straggle_with_every_doubling_of_hosts(small: str, cluster: Cluster, doublings: float) -> None:
    assert common(Case(small, cluster)).straggling == pytest.approx(1 + 0.1 * doublings)


def test_half_a_cluster_straggles_as_few_hosts_do(small: str) -> None:
    """Nine of sixteen ranks are on three hosts of four at least."""
    case = Case(small, hosts(4))
    case.setting = replace(case.setting, ranks=9)
    assert common(case).straggling == pytest.approx(1.15849625)


def test_the_roomiest_device_is_what_may_be_filled(small: str) -> None:
    own = common(Case(small, read(MOST)))
    device = own.prices.cluster.pools[1].device
    most = (device.driver_memory or device.memory).value
    assert own.capacity == pytest.approx(most * (1 - own.prices.profile.memory.margin_share))


@pytest.mark.parametrize(
    ("hides", "regathers", "tensor", "expert"),
    [((), False, 1.0, 1.0), (("tensor",), False, 0.7, 1.0), ((), True, 0.7, 1.0), (("expert",), False, 1.0, 0.25)],
)
def test_what_stacks_hide(small: str, hides: tuple[str, ...], regathers: bool, tensor: float, expert: float) -> None:
    """The larger share of what may be hidden within a copy; of exchanges the slow-down is left."""
    case = Case(small, hosts(1))
    own = common(case, hides=hides, regathers=regathers)
    assert (own.tensor_left, own.expert_left) == pytest.approx((tensor, expert))


def test_what_a_runtime_needs_beside() -> None:
    """Ten bytes of workspace, a tenth in fragments, and 5 + 7 bytes that are not divided."""
    runtime = SimpleNamespace(workspace_bytes=10.0, fragments_share=0.1, block_bytes=5.0, context_bytes=7.0)
    own: Any = SimpleNamespace(prices=SimpleNamespace(profile=SimpleNamespace(memory=runtime)))
    assert Common.with_runtime(own, 100.0) == pytest.approx(110 * 1.1 + 12)


def test_neighbours_that_run_the_same_are_told_by_their_ends(small: str) -> None:
    """Eight layers; the embedding before the first, the head behind the last."""
    own = common(Case(small, hosts(2)))
    ((first, block), (inner, count), (again, last)) = (
        (own.stages(told.config(pp=8))[at][0], len(own.stages(told.config(pp=8))[at])) for at in (0, 1, 7)
    )
    assert first[1] == inner[1] == again[1] == 1
    assert (block, count, last) == (2, 1, 2)
    assert [number for number, _ in own.groups(told.config(pp=8))] == [0, 1, 6, 7]
    assert own.groups(told.config(pp=2)) == ((0, (0,)), (1, (1,)))
    assert own.groups(told.config(pp=4, vp=2, schedule="zbv")) == ((0, (0, 7)), (1, (1, 6)), (3, (3, 4)))
    shared = told.config(pp=4, split="even", stage_blocks=(2, 3, 2, 1))
    assert [sum(times for _, times in calls) for calls in own.stages(shared)] == [3, 3, 2, 2]


def test_what_is_held_twice_is_told_of_groups_that_hold_it_twice(tmp_path: Path) -> None:
    """The embedding is the first of ten calls, and the head, which reads it again, the last."""
    path = tmp_path / "tied.toml"
    path.write_text(f"{SMALL.format(layers=8, dtype='bf16')}tied_embeddings = true\n", encoding="utf-8")
    own = common(Case(str(path), hosts(1)))
    ((held, body),) = own.held_twice
    assert body == "head"
    assert list(own.twice(told.config(), (0,))) == [(held, "head")]
    split = told.config(pp=2, split="even", stage_blocks=(8, 0))
    assert list(own.twice(split, (0, 1))) == [(held, "head")]
    assert list(own.twice(split, (0,))) == list(own.twice(split, (1,))) == []


# Wires ---------------------------------------------------------------------------------------------------------------

KEPT, WHOLE = Held(elements=6e8, again=5e8), 1e8
"""600 million parameters outside the experts, of which the backward pass reads 500, and 100 are cut by nobody."""
INSIDE = Held(elements=4e8, again=3e8)


Ways = list[dict[str, float]]
"""Each what goes over which axes, in units of 1e8 bytes."""


@pytest.mark.parametrize(
    ("own", "gathers", "again", "kind", "reduces"),
    [
        # Two bytes of each are gathered over eight copies, four reduced.
        ({"dp": 8}, [{"dp": 20}], [{"dp": 16}], "all_reduce", [{"dp": 40}]),
        ({"dp": 8, "zero": 1}, [{"dp": 20}], [{"dp": 16}], "reduce_scatter", [{"dp": 40}]),
        # What tensor parallel ranks have whole may be reduced over these, too: with more wires it is quicker there.
        ({"tp": 2, "dp": 4}, [{"dp": 20}], [{"dp": 16}], "all_reduce", [{"dp": 40}, {"dp": 36, "dp tp": 4}]),
        # Over the copies of one host.
        (
            {"dp": 8, "shard": 4, "zero": 1},
            [{"dp_shard": 20}],
            [{"dp_shard": 16}],
            "reduce_scatter",
            [{"dp_shard": 40}],
        ),
        # Experts four apart have two copies each. Over two axes at once or one by one, from either end, with what the
        # one before leaves; what goes over the same goes together.
        (
            {"dp": 8, "ep": 4, "etp": 1},
            [{"dp ep": 12, "dp": 8}, {"dp": 12 + 8, "ep": 6}, {"ep": 12, "dp": 3 + 8}],
            [{"dp ep": 10, "dp": 6}, {"dp": 10 + 6, "ep": 5}, {"ep": 10, "dp": 2.5 + 6}],
            "all_reduce",
            [{"dp ep": 24, "dp": 16}],
        ),
        (
            {"dp": 8, "ep": 4, "etp": 1, "zero": 2},
            [{"dp ep": 12, "dp": 8}, {"dp": 12 + 8, "ep": 6}, {"ep": 12, "dp": 3 + 8}],
            [{"dp ep": 10, "dp": 6}, {"dp": 10 + 6, "ep": 5}, {"ep": 10, "dp": 2.5 + 6}],
            "reduce_scatter",
            [{"dp ep": 24, "dp": 16}, {"dp": 24 + 16, "ep": 12}, {"ep": 24, "dp": 6 + 16}],
        ),
        # Experts that both tensor parallel ranks compute may be reduced in halves, without those.
        (
            {"tp": 2, "dp": 4, "ep": 1, "etp": 1},
            [{"dp": 12, "dp tp_dp": 8}, {"dp": 12 + 8, "tp_dp": 2}, {"tp_dp": 8, "dp": 12 + 4}],
            [{"dp": 10, "dp tp_dp": 6}, {"dp": 10 + 6, "tp_dp": 1.5}, {"tp_dp": 6, "dp": 10 + 3}],
            "all_reduce",
            [{"dp": 24, "dp tp_dp": 16}, {"dp": 24 + 8}, {"dp": 20, "dp tp_dp": 4 + 16}, {"dp": 20 + 8, "dp tp_dp": 4}],
        ),
    ],
)
def test_what_copies_take_to_gather_and_to_reduce(
    own: dict[str, Any], gathers: Ways, again: Ways, kind: Any, reduces: Ways
) -> None:
    """The quickest way, by the prices of collectives."""
    cluster, asked = hosts(2), told.config(**own)
    mesh, ranks = asked.degrees().mesh(), tuple(range(8))

    def taken(kind: Any, ways: Ways) -> float:
        return min(
            sum(
                collective(kind, 1e8 * nbytes, group_shape(cluster, ranks, mesh, axes.split()), "nccl").seconds
                for axes, nbytes in way.items()
            )
            for way in ways
        )

    states: Any = SimpleNamespace(used=2.0, reduced=4.0)
    shared: Any = SimpleNamespace(
        setting=SimpleNamespace(ran=lambda config: config, target=SimpleNamespace(pads=True, regathers=True)),
        prices=Prices(cluster, published()),
        workload=SimpleNamespace(states=states),
        library="nccl",
        calls=(),
        tensor_left=1.0,
        expert_left=1.0,
        host_s=0.0,
    )
    piece: Any = SimpleNamespace(states=(KEPT, INSIDE), whole=WHOLE)
    costs = dict.fromkeys(("forward", "recompute", "inputs", "weights"), Cost())
    base: Any = SimpleNamespace(pieces={"a": piece}, piece=lambda calls: costs)
    wired = Bounds(shared, base).wires(asked)
    assert wired.gathers["a"] == pytest.approx(taken("all_gather", gathers))
    assert wired.again["a"] == pytest.approx(taken("all_gather", again))
    assert wired.reduces["a"] == pytest.approx(taken(kind, reduces))
    assert (wired.sharding, wired.regather) == (asked.sharding, True)
    shared.setting.target.pads = False  # what copies do not divide is not gathered then, and reduced all the same
    piece.shared = lambda copies: (replace(KEPT, elements=0, again=0), replace(INSIDE, elements=0, again=0))
    whole = Bounds(shared, base).wires(asked)
    assert (whole.gathers["a"], whole.again["a"], whole.reduces) == (0, 0, wired.reduces)


def test_the_work_of_a_micro_batch_on_all_stages() -> None:
    """By phase 7 s of kernels, tensor parallelism of which half is left, context parallelism, exchanges of which a
    quarter is left, and two waits for the host of 0.5 s."""
    shared: Any = SimpleNamespace(calls=(("a", 3),), tensor_left=0.5, expert_left=0.25, host_s=0.5)
    asked: list[Any] = []
    costs = {
        "forward": Cost((1, 2, 4)),
        "recompute": Cost(values=(10, 0, 0)),
        "inputs": Cost(values=(0, 100, 0)),
        "weights": Cost(values=(0, 0, 1000), awaited=2),
        "update": Cost((5000, 0, 0)),
    }
    base: Any = SimpleNamespace(pieces={}, piece=lambda calls: asked.append(calls) or costs)
    assert Bounds(shared, base).work_s == 7 + 5 + 100 + 250 + 1
    assert asked == [(("a", 3),)]


def test_what_copies_exchange_runs_with_the_phases_of_its_bodies() -> None:
    """Of three calls of one body, forward 1 s each and backward 2 s, beside 10 s and 20 s of their own."""
    costs = dict.fromkeys(("forward", "recompute", "inputs", "weights", "update"), Cost()) | {
        "forward": Cost((10, 0, 0)),
        "inputs": Cost((20, 0, 0)),
    }
    shared: Any = SimpleNamespace(
        calls=(("a", 3),),
        tensor_left=1.0,
        expert_left=1.0,
        host_s=0.0,
        step=STEP,
        stack=replace(STACKS["torch"], hides=(), regathers=False),
    )
    bounds = Bounds(shared, SimpleNamespace(pieces={}, piece=lambda calls: costs))  # type: ignore[arg-type]
    own, calls = {"a": {"forward": Cost(values=(1, 0, 0)), "inputs": Cost(values=(2, 0, 0))}}, (("a", 3),)
    alone, several = bounds.seconds(calls, None, False), bounds.seconds(calls, None, False, own)
    assert (several.forward - alone.forward, several.inputs - alone.inputs) == (3, 6)
    assert several.weights == alone.weights
