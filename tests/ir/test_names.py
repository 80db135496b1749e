"""The table of names: what `template` writes, `name_of` calls by the name it was written for."""

from __future__ import annotations

import pytest

from meshwright.ir.adjoint import Split
from meshwright.ir.errors import DegreeImpossible
from meshwright.ir.factors import body_loops
from meshwright.ir.names import TABLE, Degrees, even_cuts, name_of, template
from tests.llama_block import model

FOLD = model()
LOOPS = body_loops(FOLD)["block"]

NAMES: dict[str, tuple[Degrees, dict[str, str]]] = {
    "dp": (Degrees(dp=2), {"dp": "dp"}),
    "tp": (Degrees(tp=2), {"tp": "tp"}),
    "tp with sequence parallelism": (Degrees(tp=2, sequence_parallel=True), {"tp": "tp+sp"}),
    "cp by all-gather": (Degrees(cp=2), {"cp": "cp"}),
    "cp by rings": (Degrees(cp=2, context="ring"), {"cp": "cp (ring)"}),
    "cp by zigzag rings": (Degrees(cp=2, context="ring", zigzag=True), {"cp": "cp (ring)"}),
    "cp by Ulysses": (Degrees(cp=2, context="ulysses"), {"cp": "cp (ulysses)"}),
    "all three": (Degrees(dp=2, cp=2, tp=2), {"dp": "dp", "cp": "cp", "tp": "tp"}),
    "all three at their best": (
        Degrees(dp=2, cp=2, tp=2, sequence_parallel=True, context="ring", zero=3),
        {"dp": "dp", "cp": "cp (ring)", "tp": "tp+sp"},
    ),
    "dense layers under ep": (Degrees(dp=2, ep=2), {"ep": "dp"}),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_invert_templates(name: str) -> None:
    degrees, expected = NAMES[name]
    plan, graph = template(FOLD, degrees).plan["block"], FOLD.body["block"].graph
    assert {axis: name_of(plan, graph, LOOPS, axis) for axis in expected} == expected


def test_every_degree_is_inverted() -> None:
    assert {axis for _, expected in NAMES.values() for axis in expected} == {degree.name for degree in TABLE}


def test_an_axis_that_does_nothing_has_no_name() -> None:
    assert name_of(template(FOLD, Degrees(dp=2)).plan["block"], FOLD.body["block"].graph, LOOPS, "tp") == "-"


def test_megatron_is_column_then_row() -> None:
    plan = template(FOLD, Degrees(tp=2)).plan["block"]
    split = {op: plan.strategy(op).of("tp") for op in ("q", "k", "v", "o", "gate", "up", "down", "attn", "norm1")}
    assert {op: choice.factors[0] if isinstance(choice, Split) else "-" for op, choice in split.items()} == {
        **dict.fromkeys(("q", "k", "v", "gate", "up"), "n"),
        **dict.fromkeys(("o", "down"), "k"),
        "attn": "hk",
        "norm1": "-",
    }


def test_sizes_of_one_leave_an_axis_out() -> None:
    assert str(Degrees(dp=2, tp=4).mesh()) == "dp=2 tp=4"
    assert str(Degrees().mesh()) == ""


@pytest.mark.parametrize(
    ("stages", "cuts"), [(1, [(0, 6)]), (2, [(0, 3), (3, 6)]), (4, [(0, 2), (2, 3), (3, 4), (4, 6)])]
)
def test_cuts_are_even(stages: int, cuts: list[tuple[int, int]]) -> None:
    assert list(even_cuts(FOLD, stages)) == cuts


@pytest.mark.parametrize(
    "made",
    [
        lambda: Degrees(context="gossip"),
        lambda: Degrees(zero=4),
        lambda: Degrees(recompute="some"),
        lambda: template(FOLD, Degrees(pp=5)),
    ],
)
def test_degrees_that_do_not_exist_are_refused(made: object) -> None:
    assert callable(made)
    with pytest.raises(DegreeImpossible):
        made()


@pytest.mark.parametrize(
    ("zero", "sharded"),
    [(0, []), (1, ["optimizer"]), (2, ["grads", "optimizer"]), (3, ["params", "grads", "optimizer"])],
)
def test_zero_shards_one_thing_more_each(zero: int, sharded: list[str]) -> None:
    plan = template(FOLD, Degrees(dp=2, zero=zero)).plan["block"]
    for stored in plan.storage:
        kinds = ("params", "grads", "optimizer")
        assert [kind for kind in kinds if "dp" in getattr(stored, kind).axes] == sharded
    assert bool(plan.storage) == bool(zero)
