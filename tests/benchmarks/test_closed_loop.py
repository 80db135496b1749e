"""Figures of the closed loop, by hand."""

from __future__ import annotations

import pytest

from benchmarks.closed import figures as closed
from benchmarks.closed.figures import Figures

ROUNDS = [[1.0, 1.1, 0.9], [2.0, 2.1, 1.9], [2.05, 1.9, 2.0], [4.0, 4.2, 3.8]]
"""The second and the third plan do not differ beyond noise."""


def figures(predicted: list[float], rounds: list[list[float]]) -> Figures:
    return closed.figures(predicted, [(0.95 * one, 1.05 * one) for one in predicted], rounds)


def test_the_right_order_has_a_tau_of_one_and_no_regret() -> None:
    found = figures([10.0, 20.0, 21.0, 40.0], ROUNDS)
    assert (found.pairs, found.tau, found.regret) == (5, 1.0, 0.0)
    assert found.error == pytest.approx((9 + 9 + 9.5 + 9) / 4)
    assert found.error_left_out < 0.1


def test_a_wrong_order_counts_against_it_and_noise_does_not() -> None:
    swapped = figures([10.0, 21.0, 20.0, 40.0], ROUNDS)
    assert (swapped.pairs, swapped.tau) == (5, 1.0)
    turned = figures([40.0, 20.0, 20.0, 10.0], ROUNDS)
    assert (turned.tau, turned.regret) == (-1.0, 3.0)
    assert figures([1.0, 1.0, 1.0, 1.0], ROUNDS).tau == 0.0


def test_measurements_inside_their_intervals_are_counted() -> None:
    assert figures([1.0, 2.0, 3.0, 4.1], ROUNDS).inside == 0.75
