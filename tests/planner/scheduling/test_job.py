"""A pipeline of two unequal stages, by hand: what its actions take, what it holds, and what no order is below."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.cost_models.memory.peak import Holding
from meshwright.cost_models.schedule import Seconds
from meshwright.ir.schedules import BACKWARD, FORWARD, INPUT, WEIGHT, Shape
from meshwright.planner.scheduling.floor import floor_s, group_floor_s
from meshwright.planner.scheduling.greedy import tails
from meshwright.planner.scheduling.job import Job, as_job, fits, ordered


def two(*, room: float = 400.0, working: float = 2.0, exposed: bool = False, **words: Any) -> Job:
    """Two groups of a stage each and three micro-batches; a value travels for 0.1 s, a gradient for 0.2 s."""
    seconds = Seconds(
        forward_s=(1.0, 2.0),
        backward_s=(3.5, 4.25),
        input_s=(3.0, 4.0),
        weight_s=(0.5, 0.25),
        value_s=(0.1,),
        gradient_s=(0.2,),
        exposed=exposed,
    )
    holding = Holding(room, (2.0,), (1.0,), ((working, 3.0, 3.0, 1.5),))
    asked: dict[str, Any] = {"apart": True, "rolling": False, "release_s": (0.5, 2.0), "ending_s": (0.7, 0.3)}
    return Job(shape=Shape(((0,), (1,)), 3), seconds=seconds, holdings=(holding, holding), **asked | words)


def test_what_actions_take() -> None:
    own = two()
    assert own.taken_s == ((1.0, 3.5, 3.0, 0.5), (2.0, 4.25, 4.0, 0.25))
    assert own.lag_s == ((0.1, 0.0, 0.0, 0.0), (0.0, 0.2, 0.2, 0.0))
    assert (own.size, own.kinds, own.back) == (18, (FORWARD, INPUT, WEIGHT), INPUT)
    whole = two(apart=False)
    assert (whole.size, whole.kinds, whole.back) == (12, (FORWARD, BACKWARD), BACKWARD)
    shown = two(exposed=True)
    assert shown.taken_s == ((1.1, 3.5, 3.0, 0.5), (2.0, 4.45, 4.2, 0.25))
    assert shown.lag_s == ((0.0,) * 4,) * 2


def test_stages_of_one_group_send_nothing() -> None:
    holding = Holding(9.0, (1.0, 1.0), (1.0, 1.0), ((1.0,) * 4,) * 2)
    own = replace(two(), shape=Shape(((0, 1),), 3), release_s=(0.0,), ending_s=(0.0,), holdings=(holding,))
    assert own.lag_s == ((0.0,) * 4,) * 2
    assert group_floor_s(own, 0) == pytest.approx(3 * (1 + 2 + 3 + 4 + 0.5 + 0.25))


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        # the input gradient of the second is followed by 0.2, that of the first, its weight gradient and the ending
        (two(), [[11.5, 4.2, 1.2], [10.4, 8.4, 0.55]]),
        (two(ending_s=(0.7, 5.0)), [[12.35, 4.2, 1.2], [11.25, 9.25, 5.25]]),
        (two(exposed=True), [[11.5, 4.2, 1.2], [10.4, 8.4, 0.55]]),
    ],
)
def test_the_longest_way_to_the_end(own: Job, expected: list[list[float]]) -> None:
    found = [[row[kind] for kind in (FORWARD, INPUT, WEIGHT)] for row in tails(own)]
    assert found == [pytest.approx(row) for row in expected]


def test_whole_backward_passes_have_nothing_behind_them() -> None:
    found = [[row[kind] for kind in (FORWARD, BACKWARD)] for row in tails(two(apart=False))]
    assert found == [pytest.approx(row) for row in [[11.75, 4.2], [10.65, 8.65]]]


@pytest.mark.parametrize(
    ("own", "first", "second"),
    [
        # 0.5 + 3 x 4.5 + 0.7; after three forwards and input gradients of the second, the way down: 2 + 18 + 4.4
        (two(), 14.7, 24.4),
        # a micro-batch of two bytes is away for 10.3 s: three of them in four bytes for 15.45, then 0.5 + 1.2
        (two(room=4.0), 17.15, 24.4),
        # forward holds a byte less than is kept, which is room too
        (two(room=3.0, working=1.0), 17.15, 24.4),
        (two(room=4.0, working=9.0), 17.15, 24.4),
        (two(room=0.0), 14.7, 24.4),
        # between the first and the last action of a group there is its work alone, or the round trips
        (two(rolling=True), 14.2, 19.05),
        (two(rolling=True, room=4.0), 16.15, 19.05),
        (two(rolling=True, room=1.0), 3 * 20.6 + 0.7, 36.3),
        (two(apart=False), 14.7, 2 + 3 * 6.25 + 4.4),
        (two(exposed=True), 0.5 + 3 * 4.6 + 0.7, 2 + 3 * 6.2 + 4.2),
        (two(release_s=(0.0, 9.0)), 14.2, 31.4),
        (two(release_s=(9.0, 0.0)), 23.2, 10.1 + 18 + 4.4),
    ],
)
def test_what_no_order_is_below(own: Job, first: float, second: float) -> None:
    floors = [group_floor_s(own, group) for group in (0, 1)]
    assert floors == pytest.approx([first, second])
    assert floor_s(own) == pytest.approx(max(floors))


def test_one_micro_batch_through_everything() -> None:
    """Alone it takes longer than the work of either group: 2 + 10.4."""
    alone = replace(two(), shape=Shape(((0,), (1,)), 1), ending_s=(3.0, 0.3))
    assert floor_s(alone) == pytest.approx(2 + 2 + 4 + 0.2 + 3 + 0.5 + 3)


def code(kind: int, microbatch: int) -> int:
    return 4 * microbatch + kind


@pytest.mark.parametrize(
    ("order", "most"),
    [
        # two kept, then three while one of them goes back: 2 + 2 - 2 + 3
        (((FORWARD, 0), (FORWARD, 1), (INPUT, 0), (WEIGHT, 0), (INPUT, 1), (WEIGHT, 1)), 5.0),
        (((FORWARD, 0), (FORWARD, 1), (BACKWARD, 0), (BACKWARD, 1)), 5.0),
        (((FORWARD, 0), (BACKWARD, 0), (FORWARD, 1), (BACKWARD, 1)), 3.0),
        # what waits for weight gradients stays: 1 and 1 and 2
        (((FORWARD, 0), (INPUT, 0), (FORWARD, 1), (INPUT, 1), (FORWARD, 2)), 4.0),
        (((FORWARD, 0), (INPUT, 0), (WEIGHT, 0), (FORWARD, 1), (INPUT, 1)), 3.0),
        (((FORWARD, 0), (FORWARD, 1), (FORWARD, 2)), 6.0),
        (((FORWARD, 0), (INPUT, 0), (FORWARD, 1), (FORWARD, 2), (WEIGHT, 0)), 5.5),
    ],
)
def test_what_an_order_holds(order: tuple[tuple[int, int], ...], most: float) -> None:
    """It fits in as much, and in no less."""

    def enough(room: float) -> bool:
        holding = Holding(room, (2.0,), (1.0,), ((2.0, 3.0, 3.0, 1.5),))
        one = replace(two(), shape=Shape(((0,),), 3), holdings=(holding,))
        return fits(one, 0, [code(*action) for action in order])

    assert enough(most)
    assert not enough(most * 0.999)


def test_an_order_is_timed_with_what_follows() -> None:
    """One micro-batch: the first group begins at 0.5, the second at 2, and the first ends last."""
    own = replace(two(), shape=Shape(((0,), (1,)), 1))
    lists = tuple(tuple(4 * stage + kind for kind in (FORWARD, INPUT, WEIGHT)) for stage in (0, 1))
    found = ordered(own, lists)
    assert found is not None
    ends = (2 + 2 + 4 + 0.2 + 3 + 0.5 + 0.7, 2 + 2 + 4 + 0.25 + 0.3)
    assert found.step_s == pytest.approx(max(ends))
    assert found.spare_s == pytest.approx(sum(ends))
    assert found.worth == (found.step_s, found.spare_s)
    rolls = replace(own, rolling=True)
    found = ordered(rolls, lists)
    assert found is not None
    assert found.step_s == pytest.approx(ends[0] - 0.5)
    assert found.spare_s == pytest.approx(sum(ends) - 2.5)
    assert ordered(own, (lists[0][::-1], lists[1])) is None  # it waits for itself


def test_backward_passes_in_halves() -> None:
    lists = ((code(FORWARD, 0), code(BACKWARD, 0), code(BACKWARD, 1)),)
    halves = ((code(FORWARD, 0), code(INPUT, 0), code(WEIGHT, 0), code(INPUT, 1), code(WEIGHT, 1)),)
    assert as_job(two(), lists) == halves
    assert as_job(two(apart=False), lists) == lists
