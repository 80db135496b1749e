"""The two halves of a backward pass: all of it, nothing twice, and nothing early that can wait."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.names import template
from meshwright.ir.program.lower import lower
from meshwright.ir.program.program import BodyProgram, Gradient, Statement, results_of, values_read
from meshwright.ir.program.split_backward import halves
from meshwright.ir.schedules import work_of
from tests.ir.test_interp_step import PLANS, SPLIT
from tests.llama_block import model


def bodies(name: str) -> tuple[BodyProgram, ...]:
    return lower(model(), template(model(), PLANS[name])).bodies


def derivatives(statements: tuple[Statement, ...]) -> Counter[tuple[str, int]]:
    """Which operators are differentiated with respect to which operands."""
    return Counter((s.op, slot) for s in statements if isinstance(s, Gradient) for slot in s.wanted)


@pytest.mark.parametrize("name", PLANS)
def test_the_halves_are_the_whole(name: str) -> None:
    for body in bodies(name):
        early, late = halves(body)
        assert derivatives(early) + derivatives(late) == derivatives(body.backward)
        made = Counter(result for s in (*early, *late) for result in results_of(s))
        assert made == Counter(result for s in body.backward for result in results_of(s))
        others = [s for s in body.backward if not isinstance(s, Gradient)]
        assert Counter(map(str, others)) == Counter(str(s) for s in (*early, *late) if not isinstance(s, Gradient))


@pytest.mark.parametrize("name", PLANS)
def test_either_half_finds_what_it_reads(name: str) -> None:
    for body in bodies(name):
        early, late = halves(body)
        again = {result for s in body.backward for result in results_of(s)}
        known: set[str] = set()
        for statement in (*early, *late):
            assert known.issuperset(again.intersection(values_read(statement))), str(statement)
            known.update(results_of(statement))
        assert {grad for grad in body.input_grads if grad} & again <= {r for s in early for r in results_of(s)}


@pytest.mark.parametrize("name", PLANS)
def test_the_first_half_makes_nothing_that_it_does_not_need(name: str) -> None:
    for body in bodies(name):
        early, _ = halves(body)
        leaves = {grad for grad in body.input_grads if grad}
        for at, statement in enumerate(early):
            read_later = {value for later in early[at + 1 :] for value in values_read(later)}
            assert (read_later | leaves) & set(results_of(statement)), str(statement)


def test_weight_gradients_of_linears_wait() -> None:
    """A Llama block has seven products with weights: each is asked for its input's gradient early, its own late."""
    body = next(body for body in bodies("dp") if body.body == "block")
    early, late = halves(body)
    weights = [s for s in late if isinstance(s, Gradient) and s.signature.kind == "linear"]
    assert len(weights) == 7
    assert {s.op for s in weights} == {s.op for s in early if isinstance(s, Gradient) and s.signature.kind == "linear"}


def test_work_lists_are_read_back_from_a_program_once() -> None:
    def program(decisions: Decisions) -> object:
        return work_of(lower(model(), decisions))

    decisions = template(model(), SPLIT["zbv"])
    work = work_of(lower(model(), decisions))
    assert work.shape.stages == ((0, 3), (1, 2))
    assert program(decisions) is work, "equal schedules share one object"
    other = replace(decisions, schedule=replace(decisions.schedule, name="v-min"))
    assert program(other) is not work
