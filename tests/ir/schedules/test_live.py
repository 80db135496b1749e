"""What groups hold: counted by hand, and as much as each paper says."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.ir.program.program import Action
from meshwright.ir.schedules import (
    SCHEDULES,
    Moment,
    Shape,
    WorkLists,
    compute_actions,
    encode,
    moments,
    parse_action,
    peak,
    stage_groups,
    work_lists,
)
from meshwright.ir.schedules.live import moments_of
from tests.ir.schedules.exceeding import exceeds
from tests.ir.schedules.lists import random_lists

GROUPS = (1, 2, 3, 4, 6, 8, 16)


def lists(name: str, groups: int, microbatches: int, virtual: int = 1) -> WorkLists:
    return work_lists(name, Shape(stage_groups(name, groups, virtual), microbatches))


def history(stages: tuple[int, ...], actions: tuple[Action, ...]) -> list[Moment]:
    """What is held while each action runs, kept as sets of micro-batches."""
    live: dict[int, set[int]] = {stage: set() for stage in stages}
    pending: dict[int, set[int]] = {stage: set() for stage in stages}
    graded: set[int] = set()
    back: set[int] = set()
    found = []
    for action in actions:
        stage, mb = action.stage, action.microbatch
        if action.kind == "F":
            live[stage].add(mb)
        counts = tuple(tuple(len(held[one]) for one in stages) for held in (live, pending))
        flags = (tuple(one in those for one in stages) for those in (graded, back))
        found.append(Moment(action.kind, stage, *counts, *flags))
        if action.kind in "BI":
            live[stage].remove(mb)
        if action.kind == "I":
            pending[stage].add(mb)
        if action.kind == "W":
            pending[stage].remove(mb)
        if action.kind in "BW":
            graded.add(stage)
        back = back - {stage} if action.kind == "F" else back | {stage}
    return found


@given(seed=st.integers(0, 2**32))
def test_moments_are_the_greatest_ones_and_happen(seed: int) -> None:
    shape, actions = random_lists(Random(seed))
    for stages, row, found in zip(shape.stages, actions, moments(encode(actions, shape)), strict=True):
        happened = history(stages, row)
        assert set(found) <= set(happened)
        assert all(any(exceeds(one, moment) for one in found) for moment in happened)
        assert not any(exceeds(one, other) for one in found for other in found if one != other)


@pytest.mark.parametrize("name", SCHEDULES)
def test_peaks_are_counted(name: str) -> None:
    shape = Shape(stage_groups(name, 4, 2 if SCHEDULES[name].vee else 1), 12)
    expected = [
        max(moment.held for moment in history(stages, row))
        for stages, row in zip(shape.stages, compute_actions(name, shape), strict=True)
    ]
    assert list(peak(work_lists(name, shape))) == expected


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("microbatches", [1, 2, 3, 16])
def test_gpipe_holds_every_micro_batch(groups: int, microbatches: int) -> None:
    assert set(peak(lists("gpipe", groups, microbatches))) == {microbatches}


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("microbatches", [1, 2, 3, 16])
def test_1f1b_holds_as_many_as_stages_follow(groups: int, microbatches: int) -> None:
    expected = [min(groups - group, microbatches) for group in range(groups)]
    assert list(peak(lists("1f1b", groups, microbatches))) == expected


@pytest.mark.parametrize("virtual", [2, 3, 8])
@pytest.mark.parametrize("groups", [2, 4, 8])
def test_interleaved_warms_up_as_in_its_paper(groups: int, virtual: int) -> None:
    expected = [2 * (groups - 1 - group) + (virtual - 1) * groups + 1 for group in range(groups)]
    assert list(peak(lists("interleaved", groups, 4 * groups, virtual))) == expected


@pytest.mark.parametrize("groups", GROUPS)
def test_zb_h1_holds_as_much_as_the_first_group_of_1f1b(groups: int) -> None:
    """Qi et al. 2024, table 2: p."""
    assert set(peak(lists("zb-h1", groups, 4 * groups))) == {groups}


@pytest.mark.parametrize("groups", GROUPS)
def test_zb_h2_holds_nearly_twice_as_much(groups: int) -> None:
    """Qi et al. 2024, table 2: 2p - 1."""
    assert set(peak(lists("zb-h2", groups, 4 * groups))) == {2 * groups - 1}


@pytest.mark.parametrize("groups", GROUPS)
def test_zbv_holds_as_much_as_1f1b(groups: int) -> None:
    """Qi et al. 2024, section 6: p micro-batches of both stages."""
    assert set(peak(lists("zbv", groups, 4 * groups, 2))) == {2 * groups}


@pytest.mark.parametrize("groups", GROUPS)
def test_dualpipev_holds_one_stage_more(groups: int) -> None:
    """DeepSeek's table: one more than the number of stages."""
    assert set(peak(lists("dualpipev", groups, 4 * groups, 2))) == {2 * groups + 1}


@pytest.mark.parametrize(("name", "share"), [("v-half", 1 / 2), ("v-min", 1 / 3)])
@pytest.mark.parametrize("groups", [2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32])
def test_controllable_memory_holds_its_share(name: str, share: float, groups: int) -> None:
    """Qi et al. 2024 (arXiv 2405.15362): p/2 and p/3 of a whole group plus a constant, evenly over the groups."""
    held = peak(lists(name, groups, 6 * groups, 2))
    assert max(held) - min(held) <= 2
    assert share * groups < max(held) / 2 <= share * groups + 2


def test_large_schedules_have_few_moments() -> None:
    """A memory model prices each of them."""
    assert max(map(len, moments(lists("interleaved", 16, 512, 8)))) <= 512
    assert max(map(len, moments(lists("1f1b", 16, 512)))) <= 3


def test_moments_of_a_short_list_by_hand() -> None:
    """Two micro-batches wait while the second runs forward; a weight gradient waits beside one of them; the full
    backward comes after it has left gradients."""
    actions = tuple(map(parse_action, ["0F0", "0F1", "0I0", "0W0", "0B1"]))
    work = encode((actions,), Shape(((0,),), 2))
    no, yes = (False,), (True,)
    assert moments(work) == (
        (
            Moment("B", 0, (1,), (0,), graded=yes, back=yes),
            Moment("F", 0, (2,), (0,), graded=no, back=no),
            Moment("I", 0, (2,), (0,), graded=no, back=no),
            Moment("W", 0, (1,), (1,), graded=no, back=yes),
        ),
    )
    assert [moment.held for moment in moments(work)[0]] == [1, 2, 2, 2]
    assert peak(work) == (2,)
    assert moments_of(work, 0) is moments(work)[0]
