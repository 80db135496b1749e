"""Schedules: every one is complete and free of circles, and holds as many activations as its paper says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meshwright.ir.errors import (
    ActionSyntax,
    ScheduleImpossible,
    ScheduleUnknown,
    WaitCircle,
    WorkForeign,
    WorkMiscounted,
)
from meshwright.ir.program import Action
from meshwright.ir.schedules import SCHEDULES, Shape, compute_actions, parse_action, verify_actions, with_transfers

GROUPS = (1, 2, 3, 4, 8)
MICROBATCHES = (1, 2, 3, 4, 8, 16)
ONE = Shape(((0,), (1,)), 2)


def shape(groups: int, microbatches: int, virtual: int = 1) -> Shape:
    """Group g of G holds stages g, g + G, g + 2G, …"""
    return Shape(tuple(tuple(range(g, groups * virtual, groups)) for g in range(groups)), microbatches)


def grid() -> Iterator[tuple[str, Shape]]:
    for name in SCHEDULES:
        for groups in GROUPS:
            for microbatches in MICROBATCHES:
                for virtual in (1, 2, 3):
                    if name == "1f1b" and virtual > 1:
                        continue
                    if name == "interleaved" and microbatches % groups:
                        continue
                    yield name, shape(groups, microbatches, virtual)


def in_flight(actions: tuple[Action, ...]) -> int:
    """The most micro-batches, over virtual stages, whose forward is done and whose backward is not."""
    held, most = 0, 0
    for action in actions:
        held += {"F": 1, "B": -1}[action.kind]
        most = max(most, held)
    return most


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_complete_and_free_of_circles(name: str) -> None:
    shapes = [one for known, one in grid() if known == name]
    assert len(shapes) > 20
    for one in shapes:
        verify_actions(compute_actions(name, one), one)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("microbatches", MICROBATCHES)
def test_gpipe_holds_every_micro_batch(groups: int, microbatches: int) -> None:
    for actions in compute_actions("gpipe", shape(groups, microbatches)):
        assert in_flight(actions) == microbatches


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("microbatches", MICROBATCHES)
def test_1f1b_holds_as_many_as_stages_follow(groups: int, microbatches: int) -> None:
    for position, actions in enumerate(compute_actions("1f1b", shape(groups, microbatches))):
        assert in_flight(actions) == min(groups - position, microbatches)


@pytest.mark.parametrize("virtual", [2, 3])
@pytest.mark.parametrize("groups", [2, 4])
def test_interleaved_warms_up_as_in_its_paper(groups: int, virtual: int) -> None:
    microbatches = 4 * groups
    for position, actions in enumerate(compute_actions("interleaved", shape(groups, microbatches, virtual))):
        assert in_flight(actions) == 2 * (groups - 1 - position) + (virtual - 1) * groups + 1


def test_interleaved_of_one_stage_per_group_holds_no_less_than_1f1b() -> None:
    one = shape(4, 8)
    pairs = zip(compute_actions("interleaved", one), compute_actions("1f1b", one), strict=True)
    assert all(in_flight(interleaved) >= in_flight(plain) for interleaved, plain in pairs)


def test_1f1b_alternates() -> None:
    first, last = compute_actions("1f1b", shape(2, 3))
    assert " ".join(map(str, first)) == "0F0 0F1 0B0 0F2 0B1 0B2"
    assert " ".join(map(str, last)) == "1F0 1B0 1F1 1B1 1F2 1B2"


def test_transfers_stand_around_compute() -> None:
    crossing = frozenset({(0, 1)})
    first, last = with_transfers(compute_actions("1f1b", shape(2, 1)), crossing, crossing)
    assert " ".join(map(str, first)) == "0F0 0send_F0>1 0recv_B0<1 0B0"
    assert " ".join(map(str, last)) == "1recv_F0<0 1F0 1B0 1send_B0>0"


def test_weight_gradients_need_no_transfer() -> None:
    actions = (tuple(map(parse_action, ("1F0", "1I0", "1W0"))),)
    (one,) = with_transfers(actions, frozenset({(0, 1)}), frozenset({(0, 1)}))
    assert " ".join(map(str, one)) == "1recv_F0<0 1F0 1I0 1send_B0>0 1W0"


def custom(*lists: str) -> None:
    verify_actions(compute_actions("custom", ONE, [text.split() for text in lists]), ONE)


def test_a_custom_schedule_may_split_the_backward() -> None:
    custom("0F0 0F1 0I0 0I1 0W1 0W0", "1F0 1I0 1F1 1B1 1W0")


@pytest.mark.parametrize(
    ("lists", "kind"),
    [
        (("0F0 0B0 0F1 0B1", "1F1 1F0 1B0 1B1"), WaitCircle),
        (("0F0 0F1 0B1 0B0", "1B0 1F0 1F1 1B1"), WaitCircle),
        (("0F0 0F1 0W0 0I0 0B1", "1F0 1F1 1B0 1B1"), WaitCircle),
        (("0F0 0B0 0B1", "1F0 1F1 1B0 1B1"), WorkMiscounted),
        (("0F0 0F1 0B0 0B0 0B1", "1F0 1F1 1B0 1B1"), WorkMiscounted),
        (("0F0 0F1 0I0 0B1", "1F0 1F1 1B0 1B1"), WorkMiscounted),
        (("0F0 0F1 0B0 0W0 0B1", "1F0 1F1 1B0 1B1"), WorkMiscounted),
        (("0F0 0F1 0B0 0B1 1F0", "1F0 1F1 1B0 1B1"), WorkForeign),
        (("0F0 0F1 0F2 0B0 0B1", "1F0 1F1 1B0 1B1"), WorkForeign),
        (("0F0 0F1 0B0 0B1",), ScheduleImpossible),
        (("0F0 0G1", "1F0"), ActionSyntax),
    ],
)
def test_wrong_custom_lists_are_refused(lists: tuple[str, ...], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        custom(*lists)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ScheduleUnknown, match="gpipe, 1f1b, interleaved, custom"):
        compute_actions("zigzag", ONE)


@pytest.mark.parametrize(
    ("name", "one"),
    [("1f1b", shape(2, 4, 2)), ("interleaved", shape(2, 3, 2)), ("interleaved", Shape(((0, 2), (1,)), 2))],
)
def test_what_a_schedule_cannot_do_is_refused(name: str, one: Shape) -> None:
    with pytest.raises(ScheduleImpossible):
        compute_actions(name, one)


@pytest.mark.parametrize("action", [Action("F", 0, 3), Action("B", 12, 0), Action("I", 1, 1), Action("W", 2, 2)])
def test_actions_read_and_write(action: Action) -> None:
    assert parse_action(str(action)) == action
