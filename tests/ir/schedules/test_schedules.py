"""Schedules: every one is complete and free of circles, asks for what it needs, and reads as its paper draws it."""

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
from meshwright.ir.schedules import (
    SCHEDULES,
    Shape,
    check_schedule,
    compute_actions,
    decode,
    encode,
    named,
    parse_action,
    stage_groups,
    verify_actions,
    with_transfers,
    work_lists,
)

GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 12)
MICROBATCHES = (1, 2, 3, 4, 5, 8, 12, 16, 24)
ONE = Shape(((0,), (1,)), 2)


def shape(groups: int, microbatches: int, virtual: int = 1) -> Shape:
    """Group g of G holds stages g, g + G, g + 2G, …"""
    return Shape(tuple(tuple(range(g, groups * virtual, groups)) for g in range(groups)), microbatches)


def virtuals(name: str) -> tuple[int, ...]:
    schedule = named(name)
    if schedule.vee:
        return (2,)
    return (1, 2, 3, 8) if schedule.several else (1,)


def grid(name: str) -> Iterator[Shape]:
    """Every shape of a broad grid that the schedule says it can do."""
    schedule = named(name)
    for groups in GROUPS:
        for microbatches in MICROBATCHES:
            enough = microbatches >= schedule.least_per_group * groups
            if enough and not (schedule.multiple and microbatches % groups):
                for virtual in virtuals(name):
                    yield Shape(stage_groups(name, groups, virtual), microbatches)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_complete_and_free_of_circles(name: str) -> None:
    """Also with fewer micro-batches than groups, where it does not say otherwise."""
    shapes = list(grid(name))
    assert len(shapes) > 20
    for one in shapes:
        actions = compute_actions(name, one)
        verify_actions(actions, one)
        splits = any(action.kind == "W" for row in actions for action in row)
        assert splits == named(name).splits


@pytest.mark.parametrize("name", SCHEDULES)
def test_codes_and_actions_say_the_same(name: str) -> None:
    for one in grid(name):
        work = work_lists(name, one)
        assert encode(decode(work), one).lists == work.lists
        assert work_lists(name, one) is work, "made once"


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_group_holds_its_stages(name: str) -> None:
    for groups in GROUPS:
        for virtual in virtuals(name):
            held = stage_groups(name, groups, virtual)
            assert sorted(stage for stages in held for stage in stages) == list(range(groups * virtual))
            assert [stages[0] for stages in held] == list(range(groups)), "groups count by their first stage"
            assert all(list(stages) == sorted(stages) for stages in held)
    assert stage_groups("custom", 2, 2) == ((0, 2), (1, 3))


def test_a_vee_ends_where_it_begins() -> None:
    assert stage_groups("zbv", 3, 2) == ((0, 5), (1, 4), (2, 3))
    assert stage_groups("interleaved", 3, 2) == ((0, 3), (1, 4), (2, 5))


def test_interleaved_of_one_stage_per_group_is_1f1b_with_more_ahead() -> None:
    one = shape(4, 8)
    last = compute_actions("interleaved", one)[-1]
    assert last == compute_actions("1f1b", one)[-1]


def rows(name: str, one: Shape) -> list[str]:
    return [" ".join(map(str, row)) for row in compute_actions(name, one)]


def test_zb_h1_reads_as_in_its_paper() -> None:
    """The last group delays its weight gradients by as many forwards as the first runs ahead."""
    assert rows("zb-h1", shape(2, 3)) == ["0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2", "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2"]


def test_a_schedule_of_fewer_micro_batches_is_a_longer_one_without_the_others() -> None:
    few, many = (compute_actions("zbv", Shape(stage_groups("zbv", 4, 2), m)) for m in (3, 7))
    assert few == tuple(tuple(action for action in row if action.microbatch < 3) for row in many)


def test_several_stages_in_gpipe_go_breadth_first() -> None:
    assert rows("gpipe", shape(1, 2, 2)) == ["0F0 0F1 1F0 1F1 1B0 1B1 0B0 0B1"]


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
    with pytest.raises(ScheduleUnknown, match=r"gpipe, 1f1b, interleaved, zb-h1, .*, custom"):
        compute_actions("zigzag", ONE)


@pytest.mark.parametrize(
    ("name", "one", "fix"),
    [
        ("1f1b", shape(2, 4, 2), "one stage per group"),
        ("zb-h2", shape(2, 4, 2), "one stage per group"),
        ("interleaved", shape(2, 3, 2), "a multiple of 2"),
        ("interleaved", Shape(((0, 2), (1,)), 2), "as many"),
        ("interleaved", Shape(((0, 1), (2, 3)), 2), "give it 0, 2"),
        ("zbv", shape(2, 4), "two"),
        ("v-min", shape(2, 4, 2), "give it 0, 3"),
        ("dualpipev", Shape(((0, 3), (1, 2)), 3), "at least 4"),
        ("gpipe", shape(2, 0), "at least 1"),
    ],
)
def test_what_a_schedule_cannot_do_is_refused(name: str, one: Shape, fix: str) -> None:
    with pytest.raises(ScheduleImpossible, match=fix):
        check_schedule(name, one)
    with pytest.raises(ScheduleImpossible, match=fix):
        compute_actions(name, one)


def test_stages_are_not_given_to_groups_that_cannot_hold_them() -> None:
    with pytest.raises(ScheduleImpossible, match="two"):
        stage_groups("dualpipev", 4, 1)
    with pytest.raises(ScheduleUnknown):
        stage_groups("zigzag", 4, 1)


@pytest.mark.parametrize("action", [Action("F", 0, 3), Action("B", 12, 0), Action("I", 1, 1), Action("W", 2, 2)])
def test_actions_read_and_write(action: Action) -> None:
    assert parse_action(str(action)) == action
