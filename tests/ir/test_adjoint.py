import pytest
from hypothesis import given

from meshwright.ir import rules
from meshwright.ir.adjoint import Applied, Choice, Split, Strategy, apply, choices, parse_choice
from meshwright.ir.errors import IllegalStrategy, IndivisibleExtent
from meshwright.ir.graph import Type
from meshwright.ir.mesh import Mesh
from meshwright.ir.placement import CONTIGUOUS, ZIGZAG, Layout, Nested
from meshwright.ir.rules.base import Rule, Signature
from tests.ir import strategies

MESH = Mesh.parse("dp=2 tp=4")
TYPES = (Type((2, 8, 16), "f32"), Type((32, 16), "f32"), Type((32,), "f32"))


def linear(operands: tuple[Type, ...] = TYPES) -> Rule:
    return rules.infer(Signature("linear", operands))


def states(text: str) -> tuple[list[str], list[str]]:
    """The states of operands and results under a strategy for linear(x[2, 8, 16], w[32, 16], bias[32])."""
    applied: Applied = apply(linear(), TYPES, Strategy.parse(text), MESH)
    return list(map(str, applied.operands)), list(map(str, applied.results))


@given(strategies.choices)
def test_choices_round_trip(choice: Choice) -> None:
    assert parse_choice(str(choice)) == choice


@given(strategies.strategies)
def test_strategies_round_trip(strategy: Strategy) -> None:
    assert Strategy.parse(str(strategy)) == strategy


def test_data_parallelism_sums_the_gradients_of_weights() -> None:
    assert states("dp=d0") == (["[dp, -, -]", "[-, -]|sum(dp)", "[-]|sum(dp)"], ["[dp, -, -]"])


def test_column_parallel_sums_the_gradient_of_the_input() -> None:
    assert states("tp=n") == (["[-, -, -]|sum(tp)", "[tp, -]", "[tp]"], ["[-, -, tp]"])


def test_row_parallel_sums_the_result_and_one_shard_adds_the_bias() -> None:
    assert states("tp=k") == (["[-, -, tp]", "[-, tp]", "[-]+sum(tp)"], ["[-, -, -]+sum(tp)"])


def test_a_partial_sum_passes_a_linear_operand() -> None:
    assert states("tp=P0") == (["[-, -, -]+sum(tp)", "[-, -]|sum(tp)", "[-]+sum(tp)"], ["[-, -, -]+sum(tp)"])


def test_partial_gradients_pass_an_idle_operator() -> None:
    operands, results = states("tp=-|P")
    assert all(state.endswith("|sum(tp)") for state in operands + results)


def test_axes_work_side_by_side() -> None:
    assert states("dp=d1 tp=n") == (
        ["[-, dp, -]|sum(tp)", "[tp, -]|sum(dp)", "[tp]|sum(dp)"],
        ["[-, dp, tp]"],
    )


def test_two_axes_on_one_factor_nest_in_order() -> None:
    assert states("tp=n dp=n")[1] == ["[-, -, tp.dp]"]
    assert states("dp=n tp=n")[1] == ["[-, -, dp.tp]"]


def test_integers_carry_no_gradient() -> None:
    types = (Type((4, 8), "i64"), Type((8, 8), "i64"))
    applied = apply(linear(types), types, Strategy.parse("dp=d0"), MESH)
    assert list(map(str, applied.operands)) == ["[dp, -]", "[-, -]"]


def test_local_sizes_shrink_with_the_axes() -> None:
    applied = apply(linear(), TYPES, Strategy.parse("dp=d1 tp=n"), MESH)
    assert dict(applied.sizes) == {"d0": 2, "d1": 4, "k": 16, "n": 8}


@pytest.mark.parametrize("choice", [str(choice) for choice in choices(linear())])
def test_every_choice_that_is_offered_applies(choice: str) -> None:
    states(f"dp={choice}")


@pytest.mark.parametrize("text", ["dp=P2", "dp=P", "dp=d0+d1", "dp=?", "dp=a+b+c"])
def test_what_the_rule_does_not_allow_is_refused(text: str) -> None:
    with pytest.raises(IllegalStrategy):
        states(text)


def test_a_factor_that_does_not_divide_is_refused() -> None:
    with pytest.raises(IndivisibleExtent):
        states("tp=d0")


def test_an_axis_has_one_choice() -> None:
    with pytest.raises(IllegalStrategy):
        Strategy((("dp", Split(("a",))), ("dp", Split(("b",)))))


@pytest.mark.parametrize(
    ("layout", "merged"),
    [
        (CONTIGUOUS, Nested(2)),
        (ZIGZAG, Nested(2, ZIGZAG)),
        (Nested(3), Nested(6)),
        (Nested(3, ZIGZAG), Nested(6, ZIGZAG)),
    ],
    ids=str,
)
def test_a_cut_of_rows_is_one_of_every_row_when_rows_are_merged(layout: Layout, merged: Layout) -> None:
    """Two rows of twelve become one of 24; what was cut in three runs is cut in six."""
    row = Type((2, 12), "f32")
    rule = rules.infer(Signature("view", (row,), (("shape", (24,)),)))
    inner = next(factor.name for factor in rule.factors if factor.size == 12)
    applied = apply(rule, (row,), Strategy((("a", Split((inner,), layout)),)), Mesh.parse("a=2"))
    assert applied.operands[0].value.dims[1][0].layout == layout
    assert applied.results[0].value.dims[0][0].layout == merged
