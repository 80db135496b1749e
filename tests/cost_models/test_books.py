"""Ledgers that are written down once, whatever they are priced with."""

from __future__ import annotations

from dataclasses import replace

from meshwright.cost_models.evaluate import Evaluator
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.ledger.books import Books, make_room
from meshwright.cost_models.profile import published
from meshwright.ir.names import Degrees
from tests.cost_models.programs import DENSE, program


def test_a_ledger_is_the_same_for_any_batch() -> None:
    made, books = program(DENSE, Degrees(dp=2)), Books()
    assert made.workload is not None
    other = replace(made.workload, global_batch=2 * made.workload.global_batch)
    first, again = (books.ledger(made.bodies[0], one, True) for one in (made.workload, other))
    assert again is first
    assert books.ledger(made.bodies[0], replace(other, optimizer="sgd"), True) is not first


def test_evaluators_of_several_clusters_share_ledgers_and_no_prices() -> None:
    made, books = program(DENSE, Degrees(dp=2)), Books()
    one, many = (Evaluator(read_cluster(f"1x{count}xA100"), published(), books) for count in (2, 8))
    assert one(made) == Evaluator(read_cluster("1x2xA100"), published())(made)
    assert made.workload is not None
    body = made.bodies[0]
    assert many.prices.ledger(body, made.workload, True) is one.prices.ledger(body, made.workload, True)


def test_the_older_half_makes_room() -> None:
    known = dict.fromkeys(range(4))
    make_room(known, 4)
    assert list(known) == [2, 3]
