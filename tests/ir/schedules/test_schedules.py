"""Schedules: every one is complete and free of circles, asks for what it needs, and reads as its paper draws it."""

from __future__ import annotations

from collections import OrderedDict
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
from meshwright.ir.program.program import Action, Program, Stage
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
    table,
    verify_actions,
    with_transfers,
    work_lists,
)
from meshwright.ir.schedules.of_program import work_of
from meshwright.ir.schedules.phases import write_phases
from meshwright.ir.schedules.verify import running_order
from meshwright.ir.schedules.work import action_of
from meshwright.ir.schedules.written import ActionList, shared_work
from meshwright.ir.sharding.mesh import Mesh

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
    with pytest.raises(ScheduleUnknown, match=r"gpipe, 1f1b, eager-1f1b, interleaved, zb-h1, .*, custom"):
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


# Written out by hand -------------------------------------------------------------------------------------------------

VEE_1, VEE_2 = Shape(((0, 1),), 2), Shape(((0, 3), (1, 2)), 2)


DRAWN: list[tuple[str, Shape, list[str]]] = [
    # One rank: the waves of a micro-batch one behind the other, each W in the first slot left; again after six.
    ("v-min", VEE_1, ["0F0 1F0 1I0 0I0 1W0 0W0 0F1 1F1 1I1 0I1 1W1 0W1"]),
    # Slots of group 0: F 0 and 3, I 4 and 7, W 5 and 8; of group 1: F 1 and 2, I 5 and 6, W 9 and 10.
    (
        "v-min",
        VEE_2,
        [
            "0F0 3F0 3I0 3W0 0F1 0I0 0W0 3F1 3I1 3W1 0I1 0W1",
            "1F0 2F0 2I0 1I0 1F1 2F1 2W0 1W0 2I1 1I1 2W1 1W1",
        ],
    ),
    # Forwards go down and backwards too with two slots between groups: group 0 has F 0 and 4, I 5 and 13, W 8 and
    # 15, since 11 and 12 would meet other slots modulo six; group 1 has F 2 and 3, I 7 and 12, W 10 and 17.
    (
        "v-half",
        VEE_2,
        [
            "0F0 3F0 3I0 0F1 3W0 3F1 3I1 0I0 3W1 0W0 0I1 0W1",
            "1F0 2F0 2I0 1F1 2F1 2W0 1I0 2I1 2W1 1W0 1I1 1W1",
        ],
    ),
    ("zb-h2", shape(2, 3), ["0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2", "1F0 1I0 1F1 1I1 1F2 1I2 1W0 1W1 1W2"]),
    (
        "interleaved",
        shape(2, 2, 2),
        ["0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1", "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"],
    ),
    ("1f1b", shape(3, 2), ["0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1", "2F0 2B0 2F1 2B1"]),
    ("gpipe", shape(2, 1, 2), ["0F0 2F0 2B0 0B0", "1F0 3F0 3B0 1B0"]),
    ("gpipe", shape(2, 2, 2), ["0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1", "1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1"]),
    # Two rounds: four forwards ahead in the first group, which are 2 (p - 1) and a round of its second stage.
    (
        "interleaved",
        shape(2, 4, 2),
        [
            "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
            "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3",
        ],
    ),
    # The last group delays weight gradients by two micro-batches, the first runs two forwards ahead.
    (
        "zb-h2",
        shape(2, 5),
        [
            "0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0F4 0I2 0W2 0I3 0W3 0I4 0W4",
            "1F0 1I0 1F1 1I1 1F2 1I2 1W0 1F3 1I3 1W1 1F4 1I4 1W2 1W3 1W4",
        ],
    ),
    ("zb-h2", shape(3, 2), ["0F0 0F1 0I0 0W0 0I1 0W1", "1F0 1F1 1I0 1I1 1W0 1W1", "2F0 2I0 2F1 2I1 2W0 2W1"]),
]


def test_small_schedules_are_those_that_one_draws_by_hand() -> None:
    for name, one, expected in DRAWN:
        assert rows(name, one) == expected


def test_an_order_names_what_each_action_waits_for() -> None:
    """Group 0 runs its two forwards, then waits; group 1 goes on from them, and lets it go on."""
    work = work_lists("1f1b", shape(2, 2))
    order = running_order(work)
    assert " ".join(map(str, (action_of(code, 2) for code in order.codes))) == "0F0 0F1 1F0 1B0 1F1 1B1 0B0 0B1"
    assert order.groups == (0, 0, 1, 1, 1, 1, 0, 0)
    assert order.after == (0, 0, 1, 0, 2, 0, 4, 6)
    assert running_order(work) is order


def test_lists_that_are_used_are_kept_and_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of lists of eight actions each there is room for two."""
    monkeypatch.setattr(table, "MOST_ACTIONS", 16)
    monkeypatch.setattr(table, "_made", OrderedDict())
    one, two, three = shape(1, 4), shape(1, 4), shape(2, 2)
    first, second = work_lists("gpipe", one), work_lists("1f1b", two)
    assert first.size == second.size == 8
    assert work_lists("gpipe", one) is first
    third = work_lists("gpipe", three)
    assert third.size == 8
    assert work_lists("gpipe", one) is first
    assert work_lists("gpipe", three) is third
    again = work_lists("1f1b", two)
    assert again is not second
    assert again.lists == second.lists
    large = work_lists("gpipe", shape(2, 9))
    assert work_lists("gpipe", shape(2, 9)) is large, "the last one is kept, however large it is"


def of_lists(*lists: str, microbatches: int = 1) -> Program:
    """A program of nothing but its work, a stage on each rank."""
    stages = tuple(Stage(Mesh(), (rank,), (), rank, rank + 1) for rank in range(len(lists)))
    actions = tuple(((rank,), tuple(map(parse_action, text.split()))) for rank, text in enumerate(lists))
    return Program((), stages, (), actions, microbatches=microbatches)


def test_work_is_read_back_from_lists_once() -> None:
    program = of_lists("0F0 0B0", "1F0 1I0 1W0")
    work = work_of(program)
    assert work.shape == Shape(((0,), (1,)), 1)
    assert decode(work) == tuple(actions for _, actions in program.actions)
    assert work_of(program) is work
    with pytest.raises(WorkMiscounted):
        work_of(of_lists("0F0 0B0", "1F0 1I0"))
    with pytest.raises(WorkMiscounted):
        work_of(of_lists("0F0 0B0", "1F0 1B0", microbatches=2))


def test_the_programs_whose_work_is_kept_are_those_used_last() -> None:
    programs = [of_lists("0F0 0B0") for _ in range(33)]
    works = [work_of(program) for program in programs[:32]]
    assert work_of(programs[0]) is works[0], "as many are kept"
    work_of(programs[32])
    assert work_of(programs[0]) is works[0], "used since"
    assert work_of(programs[31]) is works[31]
    assert work_of(programs[1]) is not works[1], "the oldest"


PHASES_ARE_WRITTEN_WITH_THE_NEXT_MICRO_BATCH_OF_EACH_KIND: list[tuple[tuple[tuple[str, int], ...], str]] = [
    ((("F0", 3),), "0F0 0F1"),
    ((("F0 B0 I0", 2),), "0F0 0B0 0I1 0F1"),  # both kinds of backward share their micro-batches
    ((("F1 I1", 2), ("W", 1), ("F0 I0 W", 1), ("W", 1)), "2F0 2I0 2F1 2I1 2W0 0F0 0I0 2W1 0W0"),
    ((("I0 W0", 3),), "0I0 0W0 0I1 0W1"),
    ((("F0", 0), ("B1", 1)), "2B0"),
]


def test_phases_are_written_with_the_next_micro_batch_of_each_kind() -> None:
    for phases, codes in PHASES_ARE_WRITTEN_WITH_THE_NEXT_MICRO_BATCH_OF_EACH_KIND:
        found = write_phases(phases, (0, 2), Shape(((0, 2), (1, 3)), 2))
        assert " ".join(str(action_of(code, 4)) for code in found) == codes


def test_work_of_one_schedule_is_shared_by_lists_in_their_places() -> None:
    work, other = work_lists("1f1b", shape(2, 2)), encode(compute_actions("1f1b", shape(2, 2)), shape(2, 2))
    one, two = (ActionList(work, group, frozenset(), frozenset()) for group in range(2))
    strange = ActionList(other, 1, frozenset(), frozenset())
    assert shared_work((one, two)) is work
    assert shared_work((two, one)) is None
    assert shared_work((one,)) is None
    assert shared_work((one, strange)) is None
    assert shared_work((one, two.written)) is None
    assert shared_work(()) is None
    assert two == strange
    assert two == strange.written
    assert two != one
    assert (len(one), one[0], one[-2:]) == (6, Action("F", 0, 0), (Action("sync"), Action("step")))
    assert one.doing(other).work is other


def test_shapes_know_their_depth_and_groups() -> None:
    one = Shape(((0, 3), (1, 2)), 2)
    assert (one.depth, one.group_of()) == (4, [0, 1, 1, 0])
