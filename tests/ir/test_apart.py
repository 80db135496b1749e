"""Blocks that differ in numbers alone: one body, whose calls have numbers of their own, until code says these."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost_models.cluster_text import read_cluster
from meshwright.ir.apart import apart
from meshwright.ir.capabilities import ANY
from meshwright.ir.errors import FoldInstances
from meshwright.ir.fold import Fold, Segment, unfold
from meshwright.ir.frontends.capture import capture
from meshwright.ir.frontends.load import load_model
from meshwright.ir.lower import lower
from meshwright.ir.names import Degrees, template
from meshwright.ir.numbers import numbers_of, with_numbers, without_numbers
from meshwright.ir.text import fold_text, parse_fold
from meshwright.ir.workload import Workload
from meshwright.planner.pricing import price_of

MODELS = Path(__file__).parents[1] / "backends" / "torch_" / "printed_models.py"
LAYERS = 4


@cache
def folded(factory: str) -> Fold:
    return capture(load_model(f"{MODELS}:{factory}"), batch=4, seq=16).fold


def test_blocks_that_differ_in_numbers_are_calls_of_one_body() -> None:
    fold = folded("scaled")
    assert [(segment.period, segment.repeats) for segment in fold.segments][1] == (("Scaled",), LAYERS)
    depths = [numbers[-1] for numbers in fold.segments[1].numbers]
    assert depths == [2**-0.5, 2**-0.5, 3**-0.5, 3**-0.5]
    assert [call.graph for call in fold.calls()][1] != [call.graph for call in fold.calls()][3]


def test_what_is_alike_has_no_numbers() -> None:
    assert not any(segment.numbers for segment in folded("nano").segments)
    fold, decisions = folded("nano"), template(folded("nano"), Degrees(dp=2), "any")
    assert apart(fold, decisions) == (fold, decisions)


def test_text_says_the_numbers() -> None:
    assert parse_fold(fold_text(folded("scaled"))) == folded("scaled")


@pytest.mark.parametrize("factory", ["scaled", "dropping"])
def test_a_graph_is_what_is_left_open_and_its_numbers(factory: str) -> None:
    for body in folded(factory).bodies:
        numbers = numbers_of(body.graph)
        assert with_numbers(without_numbers(body.graph), numbers) == body.graph
        assert len(numbers_of(without_numbers(body.graph))) == len(numbers)


@given(st.data())
def test_a_plan_apart_is_the_same_plan(data: st.DataObject) -> None:
    """The same graph when written out, and the same prices; every call has the plan that it had."""
    degrees = data.draw(
        st.sampled_from(
            [
                {"dp": 4},
                {"tp": 2, "dp": 2, "zero": 3},
                {"pp": 2, "dp": 2, "microbatches": 2, "schedule": "1f1b"},
                {"pp": 2, "tp": 2, "microbatches": 2, "schedule": "1f1b", "recompute": "full_layers:1"},
                {"dp": 4, "recompute": "full_layers:3"},
            ]
        )
    )
    fold = folded("scaled")
    decisions = template(fold, Degrees(**degrees), "any")
    made, spelled = apart(fold, decisions)
    assert unfold(made) == unfold(fold)
    assert not any(segment.numbers for segment in made.segments)
    assert all(call.graph == call.body.graph for call in made.calls())
    workload, price = (
        Workload(global_batch=4 * degrees.get("microbatches", 1), seq=16),
        price_of(read_cluster("1x4xA100")),
    )
    one, other = (
        price(lower(each, plan, ANY.lowering(), workload)) for each, plan in ((fold, decisions), (made, spelled))
    )
    assert one.step_time_s == pytest.approx(other.step_time_s, rel=1e-12)
    assert one.peak_memory_bytes == other.peak_memory_bytes


def test_numbers_are_of_every_call_or_of_none() -> None:
    with pytest.raises(FoldInstances, match="numbers of 1 instances of 2"):
        Segment(("b",), ("x.0", "x.1"), (), ((),), numbers=((0.5,),))
