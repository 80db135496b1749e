"""Labels, orders and prices of small block problems, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from meshwright.ir.errors import ProblemTooLarge
from meshwright.planner.block_solver.elimination import elimination
from meshwright.planner.block_solver.elimination.dual import Dual, dual, improved, only_use
from meshwright.planner.block_solver.elimination.labelled import TooManyLabelsError
from meshwright.planner.block_solver.elimination.labels import (
    Labels,
    concatenated,
    joined,
    looked_up,
    of_table,
    of_variable,
    onto,
    undominated,
)
from meshwright.planner.block_solver.elimination.order import MOST_CELLS, MOST_WORK, Order, Step, order_of
from meshwright.planner.block_solver.elimination.sweeps import MinMarginals, first_least, min_marginals
from meshwright.planner.block_solver.elimination.tables import NEVER, Table
from meshwright.planner.block_solver.problem import Limit, Pair, Problem, Status, Variable
from tests.planner.block_solver.problems import traded


def rows(found: Labels) -> list[tuple[list[int], float, list[float], list[int]]]:
    """Of every row its states, cost, uses and origins."""
    parts = (found.states, found.costs, found.uses, found.origins)
    return list(zip(*(part.tolist() for part in parts), strict=True))


def labels(scope: tuple[int, ...], *given: tuple[list[int], float, list[float]], origins: int = 0) -> Labels:
    states, costs, uses = zip(*given, strict=True)
    return Labels(
        scope,
        np.array(states, dtype=np.intp).reshape(len(costs), len(scope)),
        np.array(costs, dtype=float),
        np.array(uses, dtype=float).reshape(len(costs), -1),
        np.full((len(costs), origins), -1, dtype=np.intp),
    )


# Labels --------------------------------------------------------------------------------------------------------------


def test_labels_of_a_variable_and_of_a_table() -> None:
    own = of_variable(3, np.array([5.0, 6.0]), np.array([[1.0, 2.0], [3.0, 4.0]]), 2)
    assert (own.scope, len(own)) == ((3,), 2)
    assert rows(own) == [([0], 5.0, [1.0, 2.0], [-1, -1]), ([1], 6.0, [3.0, 4.0], [-1, -1])]
    table = of_table(Table((1, 3), np.array([[7.0, np.inf], [8.0, 9.0]])), 2)
    assert rows(table) == [([0, 0], 7.0, [0, 0], []), ([1, 0], 8.0, [0, 0], []), ([1, 1], 9.0, [0, 0], [])]
    assert rows(own.rows(np.array([1]))) == [([1], 6.0, [3.0, 4.0], [-1, -1])]
    assert rows(onto(table, (3,))) == [([0], 7.0, [0, 0], []), ([0], 8.0, [0, 0], []), ([1], 9.0, [0, 0], [])]
    both = concatenated([own, own.rows(np.array([True, False]))])
    assert rows(both) == [*rows(own), rows(own)[0]]


def test_labels_are_joined_where_they_agree() -> None:
    """On one common variable, on none, on two; in pieces of any size, whose rows are the same."""
    left = labels((0, 1), ([0, 1], 1, [10]), ([1, 0], 2, [20]), ([1, 1], 3, [30]), origins=2)
    right = labels((1, 2), ([1, 0], 100, [7]), ([0, 4], 200, [8]), ([1, 2], 300, [9]))
    expected = [
        ([0, 1, 0], 101, [17], [-1, 0]),
        ([0, 1, 2], 301, [19], [-1, 2]),
        ([1, 0, 4], 202, [28], [-1, 1]),
        ([1, 1, 0], 103, [37], [-1, 0]),
        ([1, 1, 2], 303, [39], [-1, 2]),
    ]
    for most, pieces in ((1, [2, 1, 2]), (3, [3, 2]), (4, [3, 2]), (5, [5]), (99, [5])):
        found = list(joined(left, right, 1, most))
        assert [len(one) for one in found] == pieces
        assert {one.scope for one in found} == {(0, 1, 2)}
        assert [row for one in found for row in rows(one)] == expected
    (unnoted,) = joined(left, right, None, 99)
    assert [row[3] for row in rows(unnoted)] == [[-1, -1]] * 5
    apart = labels((3,), ([0], 0.5, [1]), ([1], 0.25, [2]))
    (every,) = joined(left.rows(np.array([0, 2])), apart, 0, 99)
    assert rows(every) == [
        ([0, 1, 0], 1.5, [11], [0, -1]),
        ([0, 1, 1], 1.25, [12], [1, -1]),
        ([1, 1, 0], 3.5, [31], [0, -1]),
        ([1, 1, 1], 3.25, [32], [1, -1]),
    ]
    (same,) = joined(left, labels((1, 0), ([0, 1], 5, [0]), ([1, 0], 6, [0]), ([0, 0], 7, [0])), 0, 99)
    assert rows(same) == [([0, 1], 7, [10], [1, -1]), ([1, 0], 7, [20], [0, -1])]


def test_labels_that_another_matches_or_beats_go() -> None:
    """By states: of one, of two uses, of none. What differs by less than half a grain is equal; the first stays."""
    one = labels(
        (0,),
        *[([1], 5, [4]), ([0], 3, [4]), ([0], 1, [9]), ([0], 2, [9]), ([0], 4, [1]), ([0], 5, [2])],
        *[([1], 4, [6]), ([1], 6, [4]), ([1], 5.1, [3.9])],
    )
    assert [row[:3] for row in rows(undominated(one, 1.0, np.array([1.0])))] == [
        *[([0], 1, [9]), ([0], 3, [4]), ([0], 4, [1])],
        *[([1], 4, [6]), ([1], 5, [4])],
    ]
    fine = undominated(one, 0.1, np.array([0.1]))
    assert [row[1] for row in rows(fine)] == [1, 3, 4, 4, 5, 5.1]
    two = labels(
        (0, 1),
        *[([0, 2], 1, [5, 5]), ([0, 2], 2, [5, 4]), ([0, 2], 3, [6, 4]), ([0, 2], 3, [4, 9]), ([1, 0], 9, [9, 9])],
        *[([0, 2], 4, [4, 4]), ([0, 2], 4, [4, 4])],
    )
    assert [(row[0], row[1]) for row in rows(undominated(two, 1.0, np.array([1.0, 1.0])))] == [
        ([0, 2], 1),
        ([0, 2], 2),
        ([0, 2], 3),
        ([0, 2], 4),
        ([1, 0], 9),
    ]
    kept = undominated(two, 1.0, np.array([1.0, 1.0]))
    assert kept.uses.tolist() == [[5, 5], [5, 4], [4, 9], [4, 4], [9, 9]]
    # A row that costs as much and uses more of the second than one before it.
    equal = labels((0,), ([0], 1, [2, 3]), ([0], 1, [2, 2]))
    assert undominated(equal, 1.0, np.array([1.0, 1.0])).uses.tolist() == [[2, 2]]
    none = labels((0,), ([1], 4, []), ([0], 3, []), ([0], 2, []), ([1], 4, []))
    assert [row[:2] for row in rows(undominated(none, 1.0, np.zeros(0)))] == [([0], 2), ([1], 4)]
    assert undominated(none.rows(np.array([0])), 1.0, np.zeros(0)).costs.tolist() == [4]


def test_tables_are_looked_up_at_the_states_of_rows() -> None:
    own = labels((2, 5), ([0, 1], 0, [0]), ([1, 0], 0, [0]))
    tables = [Table((5,), np.array([10.0, 20.0])), Table((2, 5), np.array([[1.0, 2.0], [3.0, 4.0]]))]
    assert looked_up([*tables, Table((), np.array(100.0))], own).tolist() == [122, 113]
    assert looked_up([], own).tolist() == [0, 0]


# Orders --------------------------------------------------------------------------------------------------------------


def shaped(sizes: list[int], pairs: list[tuple[int, int]]) -> Problem:
    variables = tuple(Variable(str(at), np.zeros(size)) for at, size in enumerate(sizes))
    return Problem(variables, tuple(Pair(a, b, np.zeros((sizes[a], sizes[b]))) for a, b in pairs))


def test_variables_go_by_the_smallest_table_or_the_fewest_new_neighbours() -> None:
    """A path, with its last variable kept and without; a circle, whose wide corners go one at each side; variables that
    nothing ties. The numbers are those of the message and of the sums behind it, step by step."""
    path = shaped([2, 3, 4], [(0, 1), (1, 2)])
    assert order_of(path) == Order((Step(0, (1,)), Step(1, (2,)), Step(2, ())), cells=4, work=6 + 12 + 4)
    assert order_of(path, (2,)) == Order((Step(0, (1,)), Step(1, (2,))), cells=4, work=6 + 12)
    circle = shaped([2, 10, 2, 10], [(0, 1), (1, 2), (2, 3), (0, 3)])
    steps = (Step(1, (0, 2)), Step(0, (2, 3)), Step(2, (3,)), Step(3, ()))
    assert order_of(circle) == Order(steps, cells=20, work=40 + 40 + 20 + 10)
    assert order_of(shaped([5, 3], [])) == Order((Step(1, ()), Step(0, ())), cells=1, work=3 + 5)
    assert order_of(Problem(())) == Order((), cells=1, work=0)
    # Leaves first, then their hub, beside which only a wide pair is left.
    star = shaped([2, 9, 9, 2, 2], [(0, 1), (1, 2), (0, 3), (0, 4)])
    assert order_of(star) == Order(
        (Step(3, (0,)), Step(4, (0,)), Step(0, (1,)), Step(1, (2,)), Step(2, ())), cells=9, work=4 + 4 + 18 + 81 + 9
    )


def test_an_order_says_what_its_steps_take() -> None:
    """A square with a chord and a tail, and a ring of six: neighbours become neighbours of each other, step by step."""
    for sizes, pairs in (
        ([3, 3, 3, 3, 2, 2], [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2), (3, 4), (4, 5)]),
        ([4, 2, 4, 2, 4, 2], [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5)]),
    ):
        found = order_of(shaped(sizes, pairs))
        near = {one: {b if a == one else a for a, b in pairs if one in (a, b)} for one in range(len(sizes))}
        work = cells = 0
        for step in found.steps:
            assert step.scope == tuple(sorted(near[step.variable]))
            message = math.prod(sizes[one] for one in step.scope)
            cells, work = max(cells, message), work + message * sizes[step.variable]
            for one in near.pop(step.variable):
                near[one] = (near[one] | set(step.scope)) - {one, step.variable}
        assert (found.cells, found.work, near) == (cells, work, {})


def test_what_fits() -> None:
    for cells, work, fits in ((0, 0, True), (1, 0, False), (0, 1, False)):
        assert Order((), MOST_CELLS + cells, MOST_WORK + work).fits == fits


# Sweeps and boundaries -----------------------------------------------------------------------------------------------


def test_the_first_of_the_least_within_rounding() -> None:
    for costs, first in (
        ([3.0, 1 + 2e-12, 1.0], 1),
        ([1 + 2e-11, 1.0], 1),
        ([1 + 5e-13, 1.0], 0),
        ([1000.0, 1 + 5e-10, 1.0], 1),
        ([np.inf, 1 + 5e-10, 1.0, np.inf], 2),
        ([np.inf, np.inf], 0),
        ([-1000.0, -1000 + 5e-10], 0),
        ([-1000 + 5e-10, -1000.0], 0),
        ([-1000 + 5e-9, -1000.0], 1),
    ):
        assert first_least(np.array(costs)) == first


def test_states_within_a_bound() -> None:
    """By a millionth of a millionth of the bound, of one at least; what is not possible never."""
    own = MinMarginals((np.array([1.0, 1 + 5e-13, 1 + 2e-12, 0.5]),), (np.array([True, True, True, False]),))
    assert own.within(1.0)[0].tolist() == [True, True, False, False]
    large = MinMarginals((np.array([-1000.0, -1000 + 5e-10, -1000 + 2e-9]),), (np.ones(3, dtype=bool),))
    assert large.within(-1000.0)[0].tolist() == [True, True, False]
    tiny = MinMarginals((np.array([0.0, 5e-13]),), (np.ones(2, dtype=bool),))
    assert tiny.within(0.0)[0].tolist() == [True, True]


def test_the_best_with_every_state_of_two_parts_that_nothing_ties() -> None:
    """1 or 3 for the first variable, with 0 or 5 for the second; 10 or 12 for the third, by itself."""
    variables = tuple(Variable(str(at), np.array(costs)) for at, costs in enumerate(([1.0, 3], [0.0, 5], [10.0, 12])))
    pair = Pair(0, 1, np.array([[9.0, 2.0], [4.0, 1.0]]), np.array([[True, True], [True, False]]))
    found = min_marginals(Problem(variables, (pair,)))
    # (0, 0) 10, (0, 1) 8, (1, 0) 7, beside at least 10
    assert [best.tolist() for best in found.best] == [[18, 17], [17, 18], [17, 19]]


# Prices --------------------------------------------------------------------------------------------------------------


def priced_at(problem: Problem, start: tuple[int, ...] | None = None) -> Dual:
    return dual(problem, order_of(problem), NEVER, start)


def test_the_price_of_a_limit_is_the_slope_where_it_binds() -> None:
    """Costs of 0, 4 and 10 at uses of 10, 5 and 0 (and a dear state above that line): slopes of 0.8 and 1.2."""
    points = ((0, 10), (4, 5), (10, 0), (9, 4))
    for most, price, bound, best in (
        (10, 0.0, 0.0, (0,)),
        (6, 0.8, 0.8 * 4, (1,)),
        (5, 0.8, 4.0, (1,)),
        (4.5, 1.2, 4 + 1.2 * 0.5, (3,)),
        (1, 1.2, 4 + 1.2 * 4, (2,)),
    ):
        found = priced_at(traded(*points, capacity=(most,)))
        assert found.prices == pytest.approx((price,))
        assert found.bound == pytest.approx(bound, abs=1e-7)
        assert (found.best, found.objective) == (best, points[best[0]][0])
    never = priced_at(traded(*points[:2], capacity=(4.9,)))
    assert (never.bound, never.best, never.objective) == (math.inf, None, math.inf)
    kept = priced_at(traded(*points[:2], capacity=(10,)), (1,))
    assert (kept.best, kept.objective) == ((0,), 0)


def test_two_limits_are_priced_in_turn() -> None:
    """The first binds at a slope of 2; then the second costs nothing, and the other way round."""
    points = ((0, 4, 1), (2, 3, 1), (8, 0, 1))
    swapped = tuple((cost, second, first) for cost, first, second in points)
    assert priced_at(traded(*points, capacity=(2.5, 1))).prices == pytest.approx((2, 0))
    found = priced_at(traded(*swapped, capacity=(1, 2.5)))
    assert found.prices == pytest.approx((0, 2))
    assert found.bound == pytest.approx(2 + 2 * 0.5)
    assert (found.best, found.objective) == ((2,), 8)


def test_the_use_of_one_limit_as_a_problem() -> None:
    own = traded((5, 1, 2), (6, 3, 4), capacity=(9, 9))
    assert [only_use(own, at).variables[0].costs.tolist() for at in (0, 1)] == [[1, 3], [2, 4]]
    assert only_use(own, 0).limits == ()


def test_one_change_at_a_time() -> None:
    """Each variable would go to its second state, for 4 and for 5 less; there is room for one, or a pair forbids it."""
    variables = tuple(Variable(name, np.array(costs)) for name, costs in (("a", [5.0, 1.0]), ("b", [5.0, 0.0])))
    uses = (np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    free = Pair(0, 1, np.zeros((2, 2)))
    apart = Pair(0, 1, np.zeros((2, 2)), np.array([[True, True], [True, False]]))
    dear = Pair(0, 1, np.array([[0.0, 0.0], [5.5, 9.5]]))
    for pairs, most, start, end in (
        ((free,), 9.0, (0, 0), (1, 1)),
        ((free,), 2.0, (0, 0), (1, 1)),
        ((free,), 1.0, (0, 0), (1, 0)),
        ((free,), 1.0, (0, 1), (0, 1)),
        ((free,), 0.5, (0, 0), (0, 0)),
        ((apart,), 9.0, (0, 0), (1, 0)),
        ((apart,), 9.0, (0, 1), (0, 1)),
        ((dear,), 9.0, (0, 0), (0, 1)),
        ((dear,), 9.0, (1, 1), (0, 1)),
        ((dear,), 9.0, (1, 0), (0, 1)),
    ):
        problem = Problem(variables, pairs, (Limit("memory", most, uses),))
        assert improved(problem, start) == end
    # What it takes of the second is told by the second's rows.
    oblong = Problem(
        (Variable("a", np.zeros(2)), Variable("b", np.zeros(3))),
        (Pair(0, 1, np.array([[3.0, 2.0, 1.0], [0.5, 9.0, 9.0]])),),
    )
    assert improved(oblong, (0, 1)) == (0, 2)
    assert improved(oblong, (1, 1)) == (0, 2)


# Limits that no price tells ------------------------------------------------------------------------------------------

ASTRIDE = ((0, 0, 2), (0, 2, 0), (10, 1, 1))
"""Of two limits the cheap states keep one each; half of either would do, so that no price is below nothing."""


def test_a_choice_between_two_limits_is_found_by_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them nothing is known, or the start, with a bound of zero."""
    own, never = traded(*ASTRIDE, capacity=(1, 1)), traded(*ASTRIDE[:2], (10, 1, 1.5), capacity=(1, 1))
    found = elimination.solve(own)
    assert (found.status, found.states, found.objective, found.bound) == (Status.OPTIMAL, (2,), 10, 10)
    assert elimination.solve(never).status is Status.INFEASIBLE
    for error in (TooManyLabelsError, TimeoutError):

        def refused(*_: object, error: type[Exception] = error) -> None:
            raise error

        monkeypatch.setattr(elimination, "labelled", refused)
        kept = elimination.solve(own, start=(2,))
        assert (kept.status, kept.states, kept.objective) == (Status.FEASIBLE, (2,), 10)
        assert kept.bound == pytest.approx(0, abs=1e-7)
        if error is TimeoutError:
            assert elimination.solve(own).status is Status.TIMED_OUT
            assert elimination.solve(own, start=(0,)).status is Status.TIMED_OUT
            with pytest.raises(TimeoutError):
                elimination.solve_until(own, NEVER)
        else:
            with pytest.raises(ProblemTooLarge, match="too many choices that none beats"):
                elimination.solve(own)
