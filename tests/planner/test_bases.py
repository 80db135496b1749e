"""What bounds are put together from: shares of state, copies, places, time, bodies; in numbers that are easy to add."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshwright.cost_models.cost import Cost
from meshwright.cost_models.ledger.ledger import PHASES
from meshwright.cost_models.profile import StepConstants
from meshwright.ir.decisions.sharding import ZERO
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement
from meshwright.ir.target.workload import STACKS
from meshwright.planner.bounds import bases
from meshwright.planner.bounds.bases import Base, Held, Piece, Room, Seconds, copies, places, seconds
from meshwright.planner.bounds.bounds import Bounds, Load, Wires
from meshwright.planner.bounds.common import NOBODY
from meshwright.planner.bounds.in_flight import Flight
from meshwright.planner.question.pins import Config, fill, parse
from meshwright.planner.space.declared import Storage
from tests.planner import told
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
    assert ONE.stored(ZERO[zero], 4, gathered) == stored
    assert ONE.stepped(ZERO[zero], 4) == stepped
    assert ONE.stored(ZERO[zero], 4, gathered, offloaded=True) == stored - stepped


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


OF_ALL = partial(Wires, blocks_alone=False)


def wires(zero: int, *, regather: bool = True) -> Wires:
    return Wires(
        {"a": 1.0, "b": 5.0}, {"a": 0.5, "b": 2.0}, {"a": 10.0, "b": 20.0}, ZERO[zero], regather, blocks_alone=False
    )


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


def test_what_stands_once_may_be_kept_as_it_was_gathered() -> None:
    """Of three calls of one body and one of another, the three; where each stands once, none."""
    own = replace(wires(3), blocks_alone=True)
    assert own.backward((("a", 3), ("b", 1)))[0] == Cost(gathers_s=1.5, first_gather_s=0.5)
    assert own.backward((("a", 1), ("b", 1)))[0] == Cost()


STEP = StepConstants(hidden_tensor=0, hidden_backward=0, covered=0.5, slowdown=0, straggling=0)


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


# Time ----------------------------------------------------------------------------------------------------------------

Taken = tuple[float, float, float, float]
"""Forward, for gradients of inputs, for those of weights, to update."""

CALLS = ((("a", 1),), (("b", 1),), (("c", 1),))
"""Stages with a body each."""


class Told(Bounds):
    """Bounds of stages whose seconds are told; ranks that straggle double the step."""

    def __init__(self, taken: tuple[Taken, ...], groups: Any = None, calls: Any = CALLS, **stack: Any) -> None:
        calls = calls[: len(taken)]
        self.taken: dict[Any, Seconds] = {own: Seconds(*one) for own, one in zip(calls, taken, strict=True)}
        own = groups or tuple((number,) for number in range(len(calls)))
        common: Any = SimpleNamespace(
            setting=SimpleNamespace(target=SimpleNamespace(reduces_last=False)),
            stages=lambda config: calls,
            groups=lambda config: tuple(enumerate(own)),
            stack=replace(STACKS["torch"], **{"hides": (), "rolling": False} | stack),
            step=STEP,
            straggling=2.0,
            between=lambda base, config: NOBODY,
        )
        self.base: Any = SimpleNamespace(config=None)
        self.common, self.work_s = common, 12.0
        self.asked: list[tuple[bool, bool]] = []

    def seconds(self, calls: Any, wires: Wires | None, apart: bool, between: Any = NOBODY) -> Seconds:
        self.asked.append((wires is not None, apart))
        return self.taken[calls]


FEW: tuple[Taken, ...] = ((1, 2, 3, 0.5), (2, 3, 4, 0.25), (1, 1, 1, 4))
APART: dict[str, Any] = {"pp": 3, "schedule": "zb-h1"}


@pytest.mark.parametrize(
    ("own", "bounds", "expected"),
    [
        # The middle one waits 1 s and works 4 x 9 s; then 2 + 3 s go back through the first.
        ({"pp": 3, "microbatches": 4}, Told(FEW), 1 + 36 + 5),
        ({"pp": 3, "microbatches": 4}, Told(FEW, rolling=True), 1 + 36 + 5),
        # An update of 7.5 s takes longer than that; shared out over four copies, as it may be, 8 s do.
        ({"pp": 3, "microbatches": 4}, Told((FEW[0], (2, 3, 4, 7.5), FEW[2])), 1 + 36 + 7.5),
        ({"pp": 3, "microbatches": 4, "dp": 4, "zero": 1}, Told((FEW[0], (2, 3, 4, 32), FEW[2])), 1 + 36 + 8),
        ({"pp": 3, "microbatches": 4, "dp": 4}, Told((FEW[0], (2, 3, 4, 32), FEW[2])), 1 + 36 + 8),
        # The last waits for both forward; its own update takes 10 or 14 s, to go back 5 + 7 s.
        ({"pp": 3, "microbatches": 4}, Told((FEW[0], FEW[1], (1, 4, 2, 10))), 3 + 28 + 12),
        ({"pp": 3, "microbatches": 4}, Told((FEW[0], FEW[1], (1, 4, 2, 14))), 3 + 28 + 14),
        # Weights apart, what goes back need not wait for them: 4 x 4 s of them may come later than the 2 s after.
        (APART | {"microbatches": 4}, Told(FEW), 1 + 36 + 0.25),
        (APART | {"microbatches": 4}, Told(FEW, rolling=True), 36 + 0.25),
        # Of one micro-batch the last has 7 s to do, of them 2 s for weights; 9 + 3 s go back.
        (APART | {"microbatches": 1}, Told(((1, 9, 3, 0), (2, 3, 4, 0), (1, 4, 2, 4))), 3 + 7 - 2 + 12),
        # A group of the first and the last stage works 2 x 13 s, and updates both.
        ({"pp": 2, "microbatches": 2}, Told((*FEW[:2], (1, 4, 2, 4)), ((0, 2), (1,))), 26 + 4.5),
        ({"pp": 2, "microbatches": 2}, Told(((1, 2, 3, 9), FEW[1], (1, 4, 2, 4)), ((0, 2), (1,))), 26 + 13),
        ({"pp": 2, "microbatches": 3}, Told(((1, 2, 3, 0), (2, 3, 9, 0), FEW[2]), ((0, 2), (1,))), 1 + 42 + 5),
        # Weights of both stages of a group may come later: of 7 + 7 s only 4 s not.
        (
            {"pp": 2, "microbatches": 1, "schedule": "zbv"},
            Told(((1, 12, 1, 0), (1, 1, 5, 0), (1, 1, 5, 0)), ((0,), (1, 2))),
            1 + 14 - 10 + 12,
        ),
    ],
)
def test_a_step_waits_works_and_is_waited_for(own: dict[str, Any], bounds: Told, expected: float) -> None:
    asked = told.config(**own)
    assert bounds.step_s(asked) == pytest.approx(2 * expected)
    assert set(bounds.asked) == {(False, asked.schedule in ("zb-h1", "zbv"))}


@pytest.mark.parametrize(
    ("zero", "groups", "hides", "expected"),
    [
        # One body each; to reduce it takes 10 s, to gather it 1 s. Work of 6 s and of 9 s, each twice.
        (0, None, (), 1 + 18 + 10),
        (1, None, (), 1 + 18 + 10 + 5),
        (2, None, (), 1 + 18 + 5),
        (3, None, (), 1 + 18 + 5),
        (1, None, ("publish",), 1 + 18 + 10),
        (1, None, ("gradients",), 1 + 18 + 10 + 5),  # of one body nothing is left to cover what it reduces
        (1, ((0, 1),), (), 30 + 20 + 6),
        (1, ((0, 1),), ("gradients",), 30 + 10 + 6),  # of several stages more may be covered, but not the first body
    ],
)
def test_what_copies_tell_each_other_ends_a_step(
    zero: int, groups: Any, hides: tuple[str, ...], expected: float
) -> None:
    bounds = Told(((1, 2, 3, 0), (2, 3, 4, 0)), groups, hides=hides)
    own = Wires(
        {"a": 1.0, "b": 5.0},
        {"a": 0.0, "b": 0.0},
        {"a": 10.0, "b": 10.0},
        ZERO[zero],
        regather=True,
        blocks_alone=False,
    )
    asked = told.config(pp=2, dp=4, microbatches=2, zero=zero)
    assert bounds.step_s(asked, own) == pytest.approx(2 * expected)
    assert {beside for beside, _ in bounds.asked} == {zero > 1}


@pytest.mark.parametrize(("pp", "expected"), [(1, 18 + 20 - 4.5), (2, 1 + 18 + 20)])
def test_pipelines_that_reduce_last_hide_nothing_of_it(pp: int, expected: float) -> None:
    """The same with one stage and with two."""
    taken = ((1, 2, 3, 0), (2, 3, 4, 0)) if pp == 2 else ((2, 3, 4, 0),)
    bounds = Told(taken, calls=(((("a", 1), ("b", 1))), (("b", 1), ("a", 1))), hides=("gradients",))
    bounds.common.setting.target.reduces_last = True  # type: ignore[misc]
    own = Wires(
        {"a": 0.0, "b": 0.0}, {"a": 0.0, "b": 0.0}, {"a": 10.0, "b": 10.0}, ZERO[0], regather=True, blocks_alone=False
    )
    found = bounds.step_s(told.config(pp=pp, dp=4, microbatches=2), own)
    assert found == pytest.approx(2 * expected)


def test_reductions_that_are_covered_take_nothing_more() -> None:
    """Half of nine seconds covers three and one, but that the body that runs first is reduced when nothing runs."""
    bounds = Told(((2, 3, 4, 0),), calls=((("a", 1), ("b", 1)),), hides=("gradients",))
    own = Wires(
        {"a": 0.0, "b": 0.0}, {"a": 0.0, "b": 0.0}, {"a": 1.0, "b": 3.0}, ZERO[0], regather=True, blocks_alone=False
    )
    assert bounds.step_s(told.config(dp=4), own) == 2 * (9 + 1)


def test_the_work_of_a_step_in_equal_shares() -> None:
    """Six micro-batches of 12 s on four stages, doubled by who straggles."""
    assert Told(FEW).least_s(told.config(pp=4, microbatches=6)) == 2 * 18


@pytest.mark.parametrize(
    ("own", "taken", "expected"),
    [
        # Forward 0-1 and 1-2, then 1-3, backward 3-5 there, 5-7, 7-9; here 5-10 and 10-15.
        ({"pp": 2, "microbatches": 2}, ((1, 2, 3, 0.5), (2, 1, 1, 4)), 15.5),
        ({"pp": 2, "microbatches": 2}, ((1, 2, 3, 0.5), (2, 1, 1, 8)), 17),
        # Weights wait here until nothing else is to be done: forward 0-1, 1-3, inputs 3-4, 4-6, weights 6-9.
        ({"pp": 2, "microbatches": 1, "schedule": "zb-h1"}, ((1, 2, 3, 0.5), (2, 1, 9, 0)), 13),
        ({"pp": 2, "microbatches": 1, "schedule": "zb-h1"}, ((1, 2, 3, 0.5), (2, 1, 1, 0)), 9.5),
        # One stage does not wait: 4 x 6 s and its update.
        ({"pp": 1, "microbatches": 4}, ((1, 2, 3, 0.5),), 24.5),
    ],
)
def test_a_schedule_is_run_action_by_action(own: dict[str, Any], taken: tuple[Taken, ...], expected: float) -> None:
    bounds, none = Told(taken), OF_ALL({}, {}, dict.fromkeys("abc", 0.0), ZERO[0], regather=True)
    assert bounds.run_s(told.config(**own), none) == pytest.approx(2 * expected)


def test_groups_that_roll_on_are_not_run() -> None:
    """The slower one of 2 x 9 s; run one by one it would wait a second for the first."""
    bounds, none = (
        Told(FEW[:2], rolling=True),
        OF_ALL({}, {}, dict.fromkeys("abc", 0.0), ZERO[0], regather=True),
    )
    asked = told.config(pp=2, microbatches=2, schedule="zb-h1")
    assert bounds.run_s(asked, none) == bounds.step_s(asked, none) == pytest.approx(2 * 18.25)
    # Whole backward passes: here forward 0-2 and 2-4, then 2-3, backward 3-8, 8-9, 9-14; here again 8-15 and 15-22.
    slow_first = Told((FEW[1], FEW[0]), rolling=True)
    assert slow_first.run_s(replace(asked, schedule="1f1b"), none) == pytest.approx(2 * 22.25)


# Memory --------------------------------------------------------------------------------------------------------------


def test_a_group_holds_what_its_moments_do() -> None:
    """Two stages: 10 and 100 bytes kept, of which 4 and 40 wait; forward passes add 5 and 50, backward ones 12 and 120.
    The parameters that the second holds again are the first one's."""
    rooms = [
        Room(10, 4, 15, 22, 3, Held(1, 1, 1, 8, 4, 16), Held(2, 0, 0, 20, 10, 40), (2.0, 9.0)),
        Room(100, 40, 150, 220, 7, Held(3, 3, 3, 30, 15, 60), Held(), (4.0, 4.0)),
    ]
    flight = Flight(
        live=np.array([[2.0, 1], [1, 1], [0, 0]]),
        pending=np.array([[0.0, 1], [2, 0], [0, 0]]),
        forward=np.array([[0.0, 0], [1, 0], [0, 0]]),
        backward=np.array([[0.0, 1], [0, 0], [0, 0]]),
        graded=np.array([False, True, False]),
    )
    again = [(Held(parameters=8, gradients=4, optimizer=16), False), (Held(parameters=5), True)]
    found = Load.of(rooms, flight, again)
    assert found.pair == (4.0, 9.0)
    assert (found.before, found.graded, found.gathered) == (20 + 100 + 40 + 120, 10 + 100 + 8 + 5, 7)
    assert found.dense == Held(4, 4, 4, 30, 15, 60)
    assert found.expert == Held(2, 0, 0, 15, 10, 40)
    never = Load.of(rooms, replace(flight, graded=np.zeros(3, dtype=bool)), ())
    assert (never.before, never.graded, never.dense.parameters) == (280, 0, 38)


FULL = Load(Held(10, 0, 10, 100, 50, 800), Held(3, 0, 3, 40, 20, 80), before=30, graded=6, gathered=8, pair=(5.0, 7.0))
"""100 bytes of parameters, 50 of gradients and 800 of states outside the experts; 40, 20 and 80 inside."""


def memory(style: str = "eager", used: float = 2.0, *, pools: bool = False, prefetches: bool = False) -> Bounds:
    """Of devices that have 1,000 bytes, and nothing beside what is asked about."""
    bounds = object.__new__(Bounds)
    common: Any = SimpleNamespace(
        setting=SimpleNamespace(target=SimpleNamespace(ran=lambda zero, microbatches: {})),
        workload=SimpleNamespace(states=SimpleNamespace(used=used, stored=4.0, casts=True)),
        stack=SimpleNamespace(style=style, by_torch=style == "eager"),
        pools=pools,
        prefetches=prefetches,
        with_runtime=lambda nbytes: nbytes,
        capacity=1000.0,
    )
    bounds.common = common
    return bounds


@pytest.mark.parametrize(
    ("own", "storage", "style", "needed"),
    [
        # Experts four apart: eight copies of what is outside, two of what is inside. Gradients come with the first
        # micro-batch where kernels are not fused: beside 6 bytes then, and 30 are held before.
        ({"ep": 4}, Storage(0, 0, True), "eager", 1020 + 76),
        ({"ep": 4}, Storage(0, 0, True), "fused", 1020 + 100),
        # What rests in shards is beside them as gathered, 2 bytes of 10 and 3, less the 8 that are gathered anyway.
        ({"ep": 4}, Storage(1, 0, True), "eager", 12.5 + 100 + 20 + 40 + 2 * 13 - 8 + 76),
        ({"ep": 4}, Storage(1, 0, True), "fused", 50 + 100 + 20 + 40 + 100),
        ({"ep": 8}, Storage(1, 0, True), "fused", 50 + 100 + 40 + 80 + 100),  # one copy inside: nothing is gathered
        ({"ep": 4}, Storage(2, 0, True), "eager", 172.5 + 2 * 13 - 8 + 30),
        ({"ep": 4}, Storage(2, 0, True), "fused", 210 + 30 + 50 / 8 + 10),
        ({"ep": 4}, Storage(3, 0, True), "eager", 12.5 + 100 + 20 + 40 + 30),
        ({"ep": 4}, Storage(3, 0, False), "eager", 172.5 + 2 * 13 - 8 + 30),  # what stays is not gathered anew
        ({"ep": 8}, Storage(3, 0, False), "eager", 12.5 + 100 + 120 + 2 * 10 - 8 + 6 + 50 / 8 + 20),
        # Over four of the eight: one inside.
        ({"ep": 4}, Storage(1, 4, True), "eager", 25 + 200 + 40 + 80 + 2 * 10 - 8 + 76),
        ({"ep": 2}, Storage(1, 4, True), "eager", 25 + 200 + 20 + 40 + 2 * 13 - 8 + 76),
        ({"ep": 4}, Storage(2, 4, True), "eager", 345 + 2 * 10 - 8 + 6 + 12.5 + 20),
    ],
)
def test_what_the_fullest_group_lacks(own: dict[str, Any], storage: Storage, style: str, needed: float) -> None:
    pipeline = told.config(dp=8, etp=1, **own)
    less = replace(FULL, dense=Held(10, 0, 10, 100, 50, 792))
    for loads in ((FULL, less), (less, FULL)):
        found = memory(style).lacks_bytes(loads, pipeline, storage)
        assert found == pytest.approx(needed - 1000)
        assert found < needed - 1000, "sums in another order give way"
    bounds = memory(style)
    stepped = bounds.stepped_bytes((FULL, less), pipeline, storage)
    assert bounds.lacks_bytes((FULL,), pipeline, storage, offloaded=True) == pytest.approx(needed - stepped - 1000)


@pytest.mark.parametrize(
    ("own", "storage", "prefetches", "more"),
    [
        # Gradients that were reduced to shards: a pool keeps them, and as many are held before any were made.
        ({"ep": 4}, Storage(2, 0, True), False, 50 / 8 + 20 / 2),
        # Those of experts that nobody else has are not reduced: at most they come beside 6 bytes, as all do without.
        ({"ep": 8}, Storage(2, 0, True), False, (30 + 50 / 8) - (6 + 50 / 8 + 20)),
        ({"ep": 4}, Storage(1, 0, True), False, 0),  # nor is any in the backward pass
        # What parameters arrive in, two bytes of each: two units, with experts if these are gathered.
        ({"ep": 4}, Storage(1, 0, True), True, 2 * 7),
        ({"ep": 8}, Storage(1, 0, True), True, 2 * 5),
        ({"ep": 4}, Storage(3, 0, True), True, 50 / 8 + 20 / 2 + 2 * 7),
        ({"ep": 4}, Storage(0, 0, True), True, 0),  # none arrive
        ({"dp": 1, "ep": 1}, Storage(3, 0, True), True, 0),
    ],
)
def test_what_travels_lies_in_pools(own: dict[str, Any], storage: Storage, prefetches: bool, more: float) -> None:
    pipeline = told.config(**({"dp": 8, "etp": 1} | own))
    without, pooled = (
        memory(pools=pools, prefetches=prefetches).lacks_bytes((FULL,), pipeline, storage) for pools in (False, True)
    )
    assert pooled - without == pytest.approx(more)


@pytest.mark.parametrize(("storage", "more"), [(Storage(1, 0, True), 2 * 6), (Storage(3, 0, False), 0)])
def test_units_keep_what_is_not_trained(storage: Storage, more: float) -> None:
    frozen = replace(FULL, dense=replace(FULL.dense, untrained=6))
    pipeline = told.config(dp=8, ep=4, etp=1)
    found = [memory().lacks_bytes((one,), pipeline, storage) for one in (FULL, frozen)]
    assert found[1] - found[0] == pytest.approx(more)


@pytest.mark.parametrize(
    ("casts", "storage"), [(True, Storage(1, 0, True)), (True, Storage(3, 0, False)), (False, Storage(1, 0, True))]
)
def test_units_cast_experts_that_nobody_else_has(casts: bool, storage: Storage) -> None:
    """Where parameters are cast, those of the body that has shards of others."""
    bounds, pipeline = memory(), told.config(dp=8, ep=8, etp=1)
    bounds.common.workload.states.casts = casts  # type: ignore[attr-defined]
    with_others = replace(FULL, expert=replace(FULL.expert, beside=3))
    alone, beside = (bounds.lacks_bytes((one,), pipeline, storage) for one in (FULL, with_others))
    assert beside - alone == pytest.approx(2 * 3 if casts else 0)


@pytest.mark.parametrize(
    ("storage", "expected"),
    [
        (Storage(0, 0, True), 880),
        (Storage(1, 0, True), 100 + 40),
        (Storage(3, 0, True), 140),
        (Storage(1, 4, True), 200 + 80),
    ],
)
def test_the_state_of_a_rank_where_there_is_most(storage: Storage, expected: float) -> None:
    less = replace(FULL, expert=Held())
    assert memory().stepped_bytes((less, FULL, less), told.config(dp=8, ep=4, etp=1), storage) == expected


def test_what_a_target_runs_otherwise_is_bounded_otherwise() -> None:
    """One that runs ZeRO-1 whatever is asked for."""
    bounds = memory()
    bounds.common.setting.target = SimpleNamespace(ran=lambda zero, microbatches: {"zero": 1, "regather": True})  # type: ignore[misc]
    pipeline = told.config(dp=8, ep=4, etp=1)
    assert bounds.lacks_bytes((FULL,), pipeline, Storage(3, 0, False)) == pytest.approx(266.5 - 1000)


def test_gathered_parameters_never_take_more_than_stored_ones() -> None:
    """Eight bytes of each are gathered, and four are stored."""
    bounds = memory("fused", used=8.0)
    found = bounds.lacks_bytes((FULL,), told.config(dp=8, ep=4, etp=1), Storage(1, 0, True))
    assert found == pytest.approx(100 + 100 + 40 + 40 + 100 - 1000)


# Bodies --------------------------------------------------------------------------------------------------------------


def body(
    monkeypatch: pytest.MonkeyPatch,
    *,
    read: tuple[str, ...] = ("x.w",),
    kept: bool = False,
    untrained: tuple[tuple[str, float], ...] = (),
) -> Piece:
    """Four bytes of each parameter are stored. One is read by the backward pass, one is cut by experts, one by tensor
    parallelism, and the gradient of one is reduced by another call."""
    slots = [("x.w", 40.0, 20.0, 80.0), ("w", 8.0, 4.0, 16.0), ("cut", 12.0, 6.0, 24.0), ("e.w", 400.0, 200.0, 800.0)]
    slots.append(("tied", 4000.0, 2000.0, 8000.0))
    axes = {"cut": ("tp",), "e.w": ("ep",)}
    params = [
        SimpleNamespace(
            path=path,
            grad=None if path == "w" else "g",
            synced=None if path in ("w", "tied") else "s",
            grads=SimpleNamespace(axes=axes.get(path, ("dp",))),
            buffer=False,
        )
        for path, *_ in slots
    ]
    own: Any = SimpleNamespace(params=params)
    states: Any = SimpleNamespace(states=SimpleNamespace(stored=4.0))
    params.append(
        SimpleNamespace(path="table", grad=None, synced=None, grads=SimpleNamespace(axes=("tp",)), buffer=True)
    )
    made = Piece(own, {}, {}, states, frozenset({"e.w"}), frozenset({"tp"}), kept)
    made.__dict__["memory"] = SimpleNamespace(slots=slots, untrained=untrained)
    monkeypatch.setattr(bases, "_read_backward", lambda body: frozenset(read))
    return made


def test_state_of_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements of what is tied are another call's; bytes are here too. Where any is read again, all stay."""
    found = body(monkeypatch)
    assert found.left == {"tied"}
    dense = Held(10 + 2 + 3, 10, 15, 40 + 8 + 12 + 4000, 20 + 4 + 6 + 2000, 80 + 16 + 24 + 8000)
    assert found.states == (dense, Held(100, 0, 100, 400, 200, 800, beside=100))
    none = body(monkeypatch, read=()).states
    assert [(one.again, one.stay) for one in none] == [(0, 0), (0, 0)]
    kept = body(monkeypatch, kept=True).states
    assert kept == tuple(replace(one, again=0) for one in found.states)
    assert found.whole == 10 + 2


def test_what_is_not_trained_is_stored_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit has it beside what is; a buffer is in none."""
    plain = body(monkeypatch).states
    dense, expert = body(monkeypatch, untrained=(("frozen.w", 24.0), ("e.w", 8.0), ("table", 5.0))).states
    assert dense == replace(plain[0], parameters=plain[0].parameters + 24 + 5, untrained=6)
    assert expert == replace(plain[1], parameters=plain[1].parameters + 8, untrained=2)


def test_what_copies_divide_of_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some dimension, by all that hold it: five ranks hold what is inside the experts, two the rest. No scalar."""
    found = body(monkeypatch)
    shapes = {"x.w": (2, 5), "w": (), "cut": (3,), "e.w": (10, 10), "tied": (1000,), "table": ()}
    own: Any = found.body
    for slot in own.params:
        slot.value = slot.path
    types = {path: (SimpleNamespace(shape=shape), Placement.replicated(len(shape))) for path, shape in shapes.items()}
    own.locals = {path: SimpleNamespace(type=type_, placement=where) for path, (type_, where) in types.items()}
    own.mesh = Mesh(())
    assert [one.elements for one in found.shared((2, 5))] == [10, 100]
    assert [one.elements for one in found.shared((3, 7))] == [3, 0]
    assert found.shared((1, 1))[0].elements == 10 + 3


@pytest.mark.parametrize(
    ("path", "stored", "inside"),
    [
        ("layers.3.x.w", 40, False),
        ("x.w", 40, False),
        ("layers.y.w", 8, False),
        ("a.e.w", 400, True),
        ("max.w", 8, False),
    ],
)
def test_a_parameter_is_known_by_the_end_of_its_path(
    monkeypatch: pytest.MonkeyPatch, path: str, stored: float, inside: bool
) -> None:
    """The longest that is one."""
    held, found = body(monkeypatch).slot(path)
    assert held == Held(parameters=stored, gradients=stored / 2, optimizer=2 * stored)
    assert found == inside


def test_phases_of_a_stage_add_up() -> None:
    pieces: Any = {
        "a": SimpleNamespace(costs={"forward": Cost((1, 0, 0)), "update": Cost((5, 0, 0))}),
        "b": SimpleNamespace(costs={"forward": Cost((0, 10, 0))}),
    }
    stage: Any = None
    found = Base(told.config(), stage, pieces).piece((("a", 3), ("b", 2), ("a", 1)))
    assert {name: cost.engines for name, cost in found.items() if cost.device_s} == {
        "forward": (4, 20, 0),
        "update": (20, 0, 0),
    }
    assert set(found) == set(PHASES)
