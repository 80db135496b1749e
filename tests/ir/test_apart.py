"""Blocks that differ in numbers alone: one body, whose calls have numbers of their own, until code says these."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost_models.hardware.text import read_cluster
from meshwright.ir.decisions.apart import apart
from meshwright.ir.errors import FoldInstances
from meshwright.ir.frontends.door import capture, load_model
from meshwright.ir.graph.fold import Fold, Segment, unfold
from meshwright.ir.graph.numbers import numbers_of, with_numbers, without_numbers
from meshwright.ir.graph.text import fold_text, parse_fold
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.lower import lower
from meshwright.ir.target.capabilities import ANY
from meshwright.ir.target.workload import Workload
from meshwright.planner.question.pricing import price_of

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
    places = [[number for number in numbers if type(number) is int] for numbers in fold.segments[1].numbers]
    assert places == [[0], [0], [1], [1]]
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


def numbered(data: st.DataObject) -> Fold:
    """Blocks with drawn numbers, of which some are alike."""
    fold = folded("scaled")
    layers = fold.segments[1]
    own = layers.numbers[0]
    scales = data.draw(st.lists(st.sampled_from([0.25, 0.5, 0.75]), min_size=LAYERS, max_size=LAYERS), label="scales")
    made = replace(layers, numbers=tuple((*own[:-1], scale) for scale in scales))
    return replace(fold, segments=(fold.segments[0], made, *fold.segments[2:]))


DEGREES = st.fixed_dictionaries(
    {
        "dp": st.sampled_from([1, 2]),
        "tp": st.sampled_from([1, 2]),
        "pp": st.sampled_from([1, 2]),
        "zero": st.sampled_from([0, 1, 3]),
        "recompute": st.sampled_from(["none", "full", *(f"full_layers:{number}" for number in range(1, LAYERS))]),
    }
)


@given(st.data(), DEGREES)
def test_a_plan_apart_is_the_same_plan(data: st.DataObject, degrees: dict[str, Any]) -> None:
    """The same graph when written out, and the same prices; calls of one body have the same numbers."""
    fold, stages = numbered(data), {"microbatches": 2, "schedule": "1f1b"} if degrees["pp"] > 1 else {}
    decisions = template(fold, Degrees(**degrees, **stages), "any")
    made, spelled = apart(fold, decisions)
    assert unfold(made) == unfold(fold)
    assert all(call.graph == call.body.graph for call in made.calls())
    ranks = degrees["dp"] * degrees["tp"] * degrees["pp"]
    workload = Workload(global_batch=4 * stages.get("microbatches", 1), seq=16)
    price = price_of(read_cluster(f"1x{ranks}xA100"))
    one, other = (
        price(lower(each, plan, ANY.lowering(), workload)) for each, plan in ((fold, decisions), (made, spelled))
    )
    assert one.step_time_s == pytest.approx(other.step_time_s, rel=1e-12)
    assert one.peak_memory_bytes == other.peak_memory_bytes


def test_numbers_are_of_every_call_or_of_none() -> None:
    with pytest.raises(FoldInstances, match="numbers of 1 instances of 2"):
        Segment(("b",), ("x.0", "x.1"), (), ((),), numbers=((0.5,),))


def test_every_open_number_is_given() -> None:
    fold = folded("scaled")
    layers = fold.segments[1]
    short = replace(layers, numbers=(layers.numbers[0][1:], *layers.numbers[1:]))
    with pytest.raises(
        FoldInstances, match=f"{len(layers.numbers[0]) - 1} numbers, where {len(layers.numbers[0])} are"
    ):
        replace(fold, segments=(fold.segments[0], short, *fold.segments[2:]))
