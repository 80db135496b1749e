"""Orders of two groups, moved and listed by hand."""

from __future__ import annotations

from dataclasses import replace

from meshwright.ir.schedules import BACKWARD, FORWARD, INPUT, WEIGHT, work_lists
from meshwright.planner.scheduling import Budget, Job, listed, ordered
from meshwright.planner.scheduling.greedy import BACKWARD_FIRST, FORWARD_FIRST, IN_TURN, OLDEST_FIRST, Rule
from meshwright.planner.scheduling.job import Ordered
from meshwright.planner.scheduling.moves import improved
from tests.planner.scheduling.jobs import job

KINDS = {"F": FORWARD, "B": BACKWARD, "I": INPUT, "W": WEIGHT}
INF = float("inf")


def codes(stage: int, words: str, depth: int = 2) -> tuple[int, ...]:
    """The list of a group of one stage, in words: F0 is the forward of the first micro-batch."""
    return tuple(4 * (int(word[1:]) * depth + stage) + KINDS[word[0]] for word in words.split())


def timed(own: Job, *words: str) -> Ordered:
    found = ordered(own, tuple(codes(stage, word, len(words)) for stage, word in enumerate(words)))
    assert found is not None
    return found


def even(groups: int, count: int, *, apart: bool, room: float = 1e6) -> Job:
    """Forwards, input and weight gradients of a second each, whole backward passes of two."""
    return job(groups, 1, count, 0, apart=apart, even=True, room=room)


def slow_behind() -> Job:
    """The first group's backward passes take four seconds."""
    own = even(2, 2, apart=False)
    return replace(own, seconds=replace(own.seconds, backward_s=(4.0, 2.0)))


def test_a_backward_pass_that_is_waited_for_goes_earlier() -> None:
    """The first group waits for it till 5, and then till 4: thirteen seconds become twelve, by timing eight actions
    once. Nothing else on the longest path may move."""
    own = slow_behind()
    start = timed(own, "F0 F1 B0 B1", "F0 F1 B0 B1")
    best = timed(own, "F0 F1 B0 B1", "F0 B0 F1 B1")
    assert (start.step_s, best.step_s) == (13, 12)
    for left, enough_s, found, rest in (
        (99, 0.0, best, 91),
        (8, 0.0, best, 0),
        (7, 0.0, start, 7),
        (99, 13.0, start, 99),
    ):
        budget = Budget(left)
        assert (improved(own, start, budget, enough_s).lists, budget.left) == (found.lists, rest)


def test_a_weight_gradient_goes_behind_what_is_waited_for() -> None:
    """The second input gradient is a second sooner; where there is no room for what waits, nothing moves."""
    own = even(2, 2, apart=True)
    first = "F0 F1 I0 I1 W0 W1"
    start, best = timed(own, first, "F0 I0 W0 F1 I1 W1"), timed(own, first, "F0 I0 F1 I1 W0 W1")
    assert (start.step_s, best.step_s) == (9, 8)
    budget = Budget(99)
    assert (improved(own, start, budget).lists, budget.left) == (best.lists, 99 - 12)
    # Beside what waits, half of what is kept, a second micro-batch takes one and a half.
    for room, lists in ((1.5, best.lists), (1.4, start.lists)):
        holding = replace(own.holdings[1], room_bytes=room)
        tight = replace(own, holdings=(own.holdings[0], holding))
        assert improved(tight, start, Budget(99)).lists == lists


def test_a_budget_is_spent_to_the_last() -> None:
    budget = Budget(5)
    assert [budget.spend(3), budget.spend(3), budget.spend(2), budget.spend(1), budget.spend(0)] == [
        True,
        False,
        True,
        False,
        True,
    ]
    assert budget.left == 0


def test_rules_make_the_schedules_that_have_names() -> None:
    """Of even stages: backward before forward, with as many ahead as there are stages left, is 1F1B, as is one after
    the other; forward first is GPipe."""
    for groups, count in ((1, 3), (2, 3), (3, 6), (4, 8), (4, 2)):
        own = even(groups, count, apart=False)
        named = work_lists("1f1b", own.shape).lists
        for patient in (False, True):
            assert listed(own, Rule(BACKWARD_FIRST, 1, patient)) == named
        assert listed(own, Rule(OLDEST_FIRST, 1, False)) == named
        assert listed(own, Rule(FORWARD_FIRST, INF, False)) == work_lists("gpipe", own.shape).lists


def test_what_a_free_group_starts() -> None:
    """Two groups, three micro-batches. With one ahead the first waits at 2 for its gradient, which is there at 3, and
    the third forward comes behind it; in turn, with three in flight, it is gradient 1 that comes at 5, so that a weight
    gradient fills the second before. With room for one micro-batch nothing overlaps; with half of one more the next
    forward may start beside what waits, and the weight gradient makes room for the one after."""
    alone, in_turn, late = "F0 I0 W0 F1 I1 W1 F2 I2 W2", "F0 F1 F2 I0 W0 I1 W1 I2 W2", "F0 F1 F2 I0 I1 I2 W0 W1 W2"
    behind = "F0 I0 F1 I1 F2 I2 W0 W1 W2"
    for rule, room, first, second in (
        (Rule(BACKWARD_FIRST, 1, False), 9, "F0 F1 I0 F2 I1 W0 I2 W1 W2", behind),
        (Rule(IN_TURN, 1.5, False), 9, in_turn, behind),
        (Rule(OLDEST_FIRST, INF, False), 9, in_turn, behind),
        (Rule(FORWARD_FIRST, INF, False), 9, late, late),
        (Rule(BACKWARD_FIRST, INF, False), 1, alone, alone),
        (Rule(FORWARD_FIRST, INF, True), 1, alone, alone),
        (Rule(BACKWARD_FIRST, INF, False), 1.5, "F0 I0 F1 W0 I1 F2 W1 I2 W2", alone),
    ):
        assert listed(even(2, 3, apart=True, room=room), rule) == (codes(0, first), codes(1, second))
    assert listed(even(2, 3, apart=True, room=0.9), Rule(FORWARD_FIRST, INF, False)) is None
