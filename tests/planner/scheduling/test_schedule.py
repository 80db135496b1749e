"""Schedules made to measure: always legal, within their room, between the bound and every order that was known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise, permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cost_models.schedule import compiled, simulate
from meshwright.ir.schedules import KINDS, Shape, WorkLists, moments, verify_work
from meshwright.planner.scheduling import Budget, Job, Lists, all_fit, as_job, floor_s, listed, ordered, schedule
from meshwright.planner.scheduling.exact import all_certified
from meshwright.planner.scheduling.floor import group_floor_s
from meshwright.planner.scheduling.greedy import RULES, roomy
from tests.planner.scheduling.jobs import AMPLE, job, jobs, named

WORK = 2_000
ROUNDING = 1e-6


def fullest(one: Job, lists: Lists) -> Iterator[tuple[float, float]]:
    """Of every group the bytes at its fullest moment, and its room: counted from `moments`, not from the job."""
    for stages, holding, found in zip(
        one.shape.stages, one.holdings, moments(WorkLists(one.shape, lists)), strict=True
    ):
        held = []
        for moment in found:
            own, kind = stages.index(moment.stage), KINDS.index(moment.kind)
            beside = sum(n * size for n, size in zip(moment.live, holding.kept_bytes, strict=True))
            beside += sum(n * size for n, size in zip(moment.pending, holding.waiting_bytes, strict=True))
            beside -= (holding.waiting_bytes if moment.kind == "W" else holding.kept_bytes)[own]
            held.append(beside + holding.working_bytes[own][kind])
        yield max(held), holding.room_bytes


def legal(one: Job, lists: Lists) -> None:
    """Complete, without circles, of the kinds that were asked for, and within its room."""
    work = WorkLists(one.shape, lists)
    verify_work(work)
    assert {code & 3 for codes in lists for code in codes} == set(one.kinds)
    assert all(held <= room * (1 + ROUNDING) for held, room in fullest(one, lists))


@given(jobs())
def test_every_rule_gets_through_with_room_for_one_micro_batch(one: Job) -> None:
    assert roomy(one)
    for rule in RULES:
        lists = listed(one, rule)
        assert lists is not None
        legal(one, lists)


def test_without_that_room_there_is_no_order() -> None:
    tight = job(3, 2, 4, 1, vee=True, room=0.9)
    assert not roomy(tight)
    assert schedule(tight) is None


@given(jobs())
def test_a_schedule_is_legal_and_not_below_the_bound(one: Job) -> None:
    answer = schedule(one, budget=Budget(WORK))
    assert answer is not None
    legal(one, answer.best.lists)
    ran = simulate(compiled(WorkLists(one.shape, answer.best.lists)), one.seconds, release_s=one.release_s)
    ends = zip(ran.finish_s, one.ending_s, ran.begin_s, strict=True)
    step_s = max(end + after - (begin if one.rolling else 0.0) for end, after, begin in ends)
    assert answer.best.step_s == pytest.approx(step_s)
    assert floor_s(one) == answer.floor_s <= answer.best.step_s


@settings(max_examples=30)
@given(jobs())
def test_it_is_never_worse_than_what_it_starts_from(one: Job) -> None:
    starts = named(one)
    answer = schedule(one, starts, budget=Budget(WORK))
    assert answer is not None
    for lists in starts:
        known = as_job(one, lists)
        order = ordered(one, known)
        assert order is not None
        assert all_fit(one, known) == all(held <= room * (1 + ROUNDING) for held, room in fullest(one, known))
        if all_fit(one, known):
            assert answer.floor_s <= order.step_s
            assert answer.best.step_s <= order.step_s * (1 + ROUNDING)


@settings(max_examples=30)
@given(jobs(), st.integers(0, 5_000))
def test_the_same_work_finds_the_same_order_within_its_budget(one: Job, work: int) -> None:
    budgets = [Budget(work), Budget(work)]
    first, again = (schedule(one, named(one), budget) for budget in budgets)
    assert first is not None
    assert again is not None
    assert first.best.lists == again.best.lists
    assert budgets[0].left == budgets[1].left >= 0
    assert first.proved or work - budgets[0].left > work - 5 * one.size


@pytest.mark.parametrize(("groups", "microbatches"), [(2, 4), (4, 8), (4, 16), (8, 24)])
def test_even_stages_reach_what_the_papers_reach(groups: int, microbatches: int) -> None:
    """With room for 2p - 1 micro-batches, no group of ZB-H2 waits between its first and last action (arXiv 2401.10241);
    nor does one of ours. With room for p, ZB-H1 loses (p - 1)(F + I - W)."""
    ample = job(groups, 1, microbatches, 0, even=True, room=2 * groups)
    answer = schedule(ample)
    assert answer is not None
    assert answer.proved
    tight = schedule(job(groups, 1, microbatches, 0, even=True, room=groups))
    assert tight is not None
    assert tight.best.step_s <= 3 * microbatches + groups - 1 + ROUNDING


# The integer program -------------------------------------------------------------------------------------------------

SMALL = [(2, 1, 3), (2, 1, 5), (3, 1, 4), (3, 1, 6), (4, 1, 4), (4, 1, 6), (2, 2, 3), (2, 2, 4), (3, 2, 3), (2, 3, 2)]


SEEDS = (*range(12), 59, 69, 109, 118)
"""The last four are bound by links that carry one result at a time, and by orders that windows alone decide."""


def small(seeds: Iterable[int]) -> list[Job]:
    """Jobs of every size and layout."""
    return [
        job(
            *SMALL[seed % len(SMALL)],
            seed,
            vee=SMALL[seed % len(SMALL)][1] == 2 and seed % 4 < 2,
            apart=seed % 5 != 0,
            exposed=seed % 3 == 0,
            room=(1.0, 2.0, 3.0, 8.0)[seed // 3 % 4],
        )
        for seed in seeds
    ]


def test_orders_are_mostly_the_best_there_is_and_never_better() -> None:
    """The integer program knows the optimum of 16 small jobs."""
    answers = [(one, found) for one in small(SEEDS) if (found := schedule(one, named(one), Budget(60_000)))]
    assert len(answers) == len(SEEDS)
    found = all_certified([(one, answer.best) for one, answer in answers], limit_s=60)
    assert all(certificate.proved for certificate in found)
    for (one, answer), certificate in zip(answers, found, strict=True):
        legal(one, certificate.best.lists)
        assert answer.floor_s <= certificate.bound_s * (1 + ROUNDING)
        assert certificate.bound_s <= certificate.best.step_s <= answer.best.step_s
    best = [
        answer.best.step_s <= certificate.bound_s * (1 + 10 * ROUNDING)
        for (_, answer), certificate in zip(answers, found, strict=True)
    ]
    assert sum(best) >= 12


def every_order(shape: Shape, kinds: tuple[int, ...]) -> Iterator[Lists]:
    """All that groups can do in any order, micro-batches in any order too."""
    rows = []
    for stages in shape.stages:
        cells = [4 * (mb * shape.depth + stage) for stage in stages for mb in range(shape.microbatches)]
        pairs = [(cell + a, cell + b) for cell in cells for a, b in pairwise(kinds)]
        orders = permutations(cell + kind for cell in cells for kind in kinds)
        rows.append([row for row in orders if all(row.index(a) < row.index(b) for a, b in pairs)])
    yield from product(*rows)


BRUTE = [(1, 1, 3, False), (2, 1, 2, False), (2, 1, 2, True), (2, 1, 3, False), (2, 2, 1, True), (2, 3, 1, False)]


@pytest.mark.parametrize(("groups", "virtual", "microbatches", "apart"), BRUTE)
@pytest.mark.parametrize("seed", range(2))
def test_the_integer_program_is_brute_force(
    groups: int, virtual: int, microbatches: int, apart: bool, seed: int
) -> None:
    one = job(groups, virtual, microbatches, seed, apart=apart, exposed=bool(seed), room=1.5 + seed)
    answer = schedule(one)
    assert answer is not None
    (certificate,) = all_certified([(one, answer.best)])
    least = min(
        order.step_s
        for lists in every_order(one.shape, one.kinds)
        if all_fit(one, lists) and (order := ordered(one, lists))
    )
    assert certificate.best.step_s == pytest.approx(least)
    assert certificate.bound_s == pytest.approx(least, rel=10 * ROUNDING)


def test_too_little_time_leaves_the_bound_true() -> None:
    one = job(4, 1, 6, 4, room=4.0)
    answer = schedule(one, budget=Budget(0))
    assert answer is not None
    (certificate,) = all_certified([(one, answer.best)], limit_s=0.0)
    assert certificate.best is answer.best
    assert certificate.bound_s == answer.floor_s
    assert not certificate.proved


def told() -> list[str]:
    """Orders of some jobs."""
    found = [schedule(one, named(one), budget=Budget(20_000)) for one in small(range(6))]
    return [str(answer.best.lists) if answer else "" for answer in found]


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("room", [1.0, 2.0, AMPLE])
def test_bounds_of_even_stages_by_hand(groups: int, count: int, room: float) -> None:
    """Forward, input gradients and weight gradients take a second each, on p groups of one stage. Group g begins after
    g seconds. Behind its last input gradient those of the g groups before it follow, and a weight gradient. A
    micro-batch is away for all groups from g on, there and back; so many as there is room for are."""
    apart = job(groups, 1, count, 0, room=room, even=True)
    whole = job(groups, 1, count, 0, room=room, even=True, apart=False)
    for g in range(groups):
        works = g + 3 * count
        passes = g + 2 * count + g + 1
        waits = count * 2 * (groups - g) / room + 2 * g + 1
        assert group_floor_s(apart, g) == pytest.approx(max(works, passes, waits))
        waits = count * 3 * (groups - g) / room + 3 * g
        assert group_floor_s(whole, g) == pytest.approx(max(3 * g + 3 * count, waits))
    alone = {True: 2 * groups + 1, False: 3 * groups}
    for one in (apart, whole):
        floors = [group_floor_s(one, g) for g in range(groups)]
        assert floor_s(one) == pytest.approx(max(alone[one.apart], *floors))
