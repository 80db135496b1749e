"""What bounds are put together from: shares of state, copies, places, wires; in numbers that are easy to add up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.cost_models.cost import Cost
from meshwright.cost_models.profile import StepConstants
from meshwright.ir.workload import STACKS
from meshwright.planner.bases import Held, copies, places, seconds
from meshwright.planner.bounds import Wires
from meshwright.planner.pins import Config, fill, parse
from tests.planner.refining import example, hosts

ONE = Held(1, 2, 3, 100, 50, 800)


def config(pins: str, ranks: int) -> Config:
    return fill(parse([pins]), ranks=ranks, global_batch=64)


def test_state_adds_up() -> None:
    assert ONE.plus(Held(10, 20, 30, 40, 50, 60), 2) == Held(21, 42, 63, 180, 150, 920)
    assert ONE.plus(ONE, -1) == Held()


@pytest.mark.parametrize(
    ("zero", "gathered", "stored", "stepped"),
    [
        (0, 0.5, 900, 800),
        (1, 0.5, 50 + 200, 200),  # what is gathered takes half of what is stored
        (2, 2.0, 100 + 200, 200),
        (3, 0.5, 25 + 200, 200),
    ],
)
def test_four_copies_share_out_state(zero: int, gathered: float, stored: float, stepped: float) -> None:
    assert ONE.stored(zero, 4, gathered) == stored
    assert ONE.stepped(zero, 4) == stepped
    assert ONE.stored(zero, 4, gathered, hosted=True) == stored - stepped


@pytest.mark.parametrize(
    ("pins", "ranks", "expected"),
    [
        ("", 1, (1, 1)),
        ("tp=2", 8, (4, 8)),
        ("tp=2,cp=2", 8, (4, 8)),
        ("ep=4,etp=1", 8, (8, 2)),
        ("ep=4,etp=2,tp=2", 8, (4, 1)),
        ("ep=8,etp=2,tp=2", 8, (4, 1)),
    ],
)
def test_copies_outside_and_inside_experts(pins: str, ranks: int, expected: tuple[int, int]) -> None:
    assert copies(config(pins, ranks)) == expected


def test_where_neighbouring_ranks_may_be() -> None:
    """At the start of each of two pools of 128 and 64 ranks, and across; anywhere where links are told pair by pair."""
    pools = example("two_pools")

    def starts(count: int) -> list[int]:
        found = places(pools, count)
        assert all(one == tuple(range(one[0], one[0] + count)) for one in found)
        return [one[0] for one in found]

    assert starts(8) == [0, 128]
    assert starts(48) == [0, 96, 128, 144]
    assert starts(100) == [0]
    assert starts(65) == [0, 65]
    assert starts(192) == [0]
    assert places(hosts(4), 8) == [tuple(range(8))]
    told = hosts(2, [[0.0, 10.0], [10.0, 0.0]])
    assert [one[0] for one in places(told, 4)] == [0, 4]
    assert [one[0] for one in places(told, 3)] == [0, 3]


def wires(zero: int, *, regather: bool = True) -> Wires:
    return Wires({"a": 1.0, "b": 5.0}, {"a": 0.5, "b": 2.0}, {"a": 10.0, "b": 20.0}, zero, regather)


@pytest.mark.parametrize(
    ("zero", "forward", "again", "reduced", "once"),
    [
        (0, Cost(), Cost(), 0.0, (50.0, 0.0)),
        (1, Cost(), Cost(), 0.0, (50.0, 8.0)),
        (2, Cost(), Cost(), 50.0, (0.0, 8.0)),
        (3, Cost(gathers_s=8, first_gather_s=5), Cost(gathers_s=3.5, first_gather_s=2), 50.0, (0.0, 0.0)),
    ],
)
def test_what_runs_with_every_micro_batch_and_what_once(
    zero: int, forward: Cost, again: Cost, reduced: float, once: tuple[float, float]
) -> None:
    """Three calls of one body and one of another."""
    calls = (("a", 3), ("b", 1))
    assert wires(zero).forward(calls) == forward
    assert wires(zero).backward(calls) == (again, Cost(reductions_s=reduced))
    assert wires(zero).once(calls) == once
    assert wires(zero, regather=False).backward(calls) == (Cost(), Cost(reductions_s=reduced))
    assert wires(zero, regather=False).forward(calls) == forward


STEP = StepConstants(hidden_tensor=0, hidden_backward=0, covered=0.5, slowdown=0, straggling=0, interval=0)


@pytest.mark.parametrize(("apart", "inputs", "weights"), [(False, 2 + 6 + 20 - 8, 8), (True, 2 + 6, 8 + 20 - 4)])
def test_reductions_run_behind_the_backward_pass_or_what_makes_gradients_of_weights(
    apart: bool, inputs: float, weights: float
) -> None:
    """Half of what computes covers them: of two, six and eight seconds, or of the eight alone."""
    costs: dict[str, Any] = {
        "forward": Cost((4, 0, 0)),
        "recompute": Cost((2, 0, 0)),
        "inputs": Cost((6, 0, 0)),
        "weights": Cost((8, 0, 0)),
        "update": Cost((0, 0, 7), 1000),
    }
    stack = replace(STACKS["torch"], hides=("gradients",), regathers=False)
    found = seconds(
        STEP,
        stack,
        costs,
        1e-9,
        gathers=Cost(gathers_s=1),
        backward=(Cost(), Cost(reductions_s=20)),
        apart=apart,
    )
    assert (found.forward, found.inputs, found.weights, found.update) == pytest.approx((5, inputs, weights, 7))
    assert found.work == pytest.approx(5 + inputs + weights)
