from pickle import dumps, loads

import pytest
from hypothesis import given

from meshwright.ir import rules
from meshwright.ir.errors import IllegalStrategy, IndivisibleExtent
from meshwright.ir.graph.graph import Type
from meshwright.ir.rules.base import Rule, Signature
from meshwright.ir.sharding.adjoint import Applied, Choice, Split, Strategy, apply, choices, needs, parse_choice
from meshwright.ir.sharding.layouts import CONTIGUOUS, ZIGZAG, Layout, Nested
from meshwright.ir.sharding.mesh import Mesh
from tests.ir import strategies
from tests.samples import sample

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


# Operators of every sort ---------------------------------------------------------------------------------------------


def spread(signature: Signature, text: str, mesh: str = "a=2 b=2") -> str:
    """The states of operands and results, then the local sizes of loops."""
    rule = rules.infer(signature)
    applied = apply(rule, signature.operands, Strategy.parse(text), Mesh.parse(mesh))
    sides = (", ".join(map(str, side)) for side in (applied.operands, applied.results))
    return f"{' -> '.join(sides)}; {' '.join(f'{name}={size}' for name, size in applied.sizes)}"


OFFERED: list[tuple[Signature, str]] = [
    (sample("linear", "f32[2, 8] f32[4, 8] f32[4]"), "- -|P d0 n k P0 P1"),
    (sample("add", "f32[4] f32[4]"), "- -|P d0 P"),
    (sample("where", "bool[4] f32[4] f32[4]"), "- -|P d0 P"),
    (sample("mul", "f32[4]", scalar=2.0), "- -|P d0 P0"),
    (sample("add", "f32[4]", scalar=2.0), "- -|P d0"),
    (sample("relu", "f32[4]"), "- -|P d0"),
    (sample("softmax", "f32[4, 8]"), "- -|P d0"),
    (sample("amax", "f32[4, 8]", dim=1), "- -|P d0 d1"),
    (sample("scatter_add", "f32[5, 8] i64[5, 3] f32[5, 3]", dim=1), "- -|P d0 v k P2"),
    (sample("arange", "", end=4), "- -|P d0"),
    (
        sample("attention", "f32[2, 4, 8, 4] f32[2, 4, 8, 4] f32[2, 4, 8, 4]"),
        "- -|P b hk sq dv sq+sk sq+sk:zigzag P2",
    ),
]


def test_an_axis_is_offered_all_that_the_operator_allows() -> None:
    for signature, offered in OFFERED:
        assert " ".join(map(str, choices(rules.infer(signature)))) == offered


APPLIED = [
    # A rank looks up the rows that it has; ids carry no gradient.
    (sample("embedding", "f32[8, 4] i64[6]"), "a=v", "[a, -], [-] -> [-, -]+sum(a); d0=6 v=4 d=4"),
    (sample("embedding", "f32[8, 4] i64[6]"), "a=d0", "[-, -]|sum(a), [a] -> [a, -]; d0=3 v=8 d=4"),
    (sample("amax", "f32[4, 8]", dim=1), "a=d1", "[-, a] -> [-]+max(a); d0=4 d1=4"),
    (sample("where", "bool[4, 8] f32[4, 8] f32[8]"), "a=d0", "[a, -], [a, -], [-]|sum(a) -> [a, -]; d0=2 d1=8"),
    (
        sample("where", "bool[4] f32[4] f32[4]"),
        "a=P",
        "[-], [-]+sum(a), [-]+sum(a) -> [-]+sum(a); d0=4",
    ),
    (sample("mul", "f32[4] f32[4]"), "a=P1", "[-]|sum(a), [-]+sum(a) -> [-]+sum(a); d0=4"),
    (sample("cast", "f32[4]", dtype="i64"), "a=-|P", "[-] -> [-]; d0=4"),  # what has no gradient sends none
    (
        sample("gather", "f32[4, 8] i64[4, 2]", dim=1),
        "a=-|P b=v",
        "[-, b]|sum(a), [-, -] -> [-, -]+sum(b)|sum(a); d0=4 k=2 v=4",
    ),
    # The statistics that an expansion reduces inside are copies outside.
    (
        sample("batch_norm", "f32[4, 2] f32[2] f32[2] f32[2] f32[2]"),
        "a=n",
        "[a, -], [-]|sum(a), [-]|sum(a), [-], [-] -> [a, -], [-], [-]; n=2 c=2",
    ),
    (sample("cross_entropy", "f32[4, 8] i64[4]"), "a=d0 b=v", "[a, b], [a] -> []+sum(a); d0=2 v=4"),
    (sample("split", "f32[2, 12]", dim=1, sizes=(4, 8)), "a=p", "[-, a:sections(4,8)] -> [-, a], [-, a]; d0=2 p=2"),
    (
        sample("split", "f32[2, 12]", dim=1, sizes=(4, 8)),
        "a=p b=p",
        "[-, a:sections(4,8).b:sections(2,4)] -> [-, a.b], [-, a.b]; d0=2 p=1",
    ),
    (sample("split", "f32[2, 12]", dim=1, sizes=(12,)), "a=p", "[-, a] -> [-, a]; d0=2 p=6"),
    (sample("relu", "f32[10]"), "a=d0:uneven(4,6) b=d0", "[a:uneven(4,6).b] -> [a:uneven(4,6).b]; d0=2"),
    (sample("relu", "f32[10]"), "b=d0 a=d0:uneven(2,3)", "[b.a:uneven(2,3)] -> [b.a:uneven(2,3)]; d0=2"),
    # Two rows of eight as sixteen: a loop that others stand inside of is cut in their units.
    (sample("view", "f32[2, 8]", shape=(16,)), "a=f0:uneven(1,1)", "[a:uneven(1,1), -] -> [a:uneven(8,8)]; f0=1 f1=8"),
    (
        sample("view", "f32[2, 8]", shape=(16,)),
        "a=f0 b=f1:uneven(3,5)",
        "[a, b:uneven(3,5)] -> [a.b:uneven(3,5)]; f0=1 f1=3",
    ),
    (
        sample("view", "f32[2, 8]", shape=(16,)),
        "a=f1:sections(2,6)",
        "[-, a:sections(2,6)] -> [a:sections(2,6,2,6)]; f0=2 f1=4",
    ),
    (sample("view", "f32[2, 8]", shape=(16,)), "b=f1 a=f1", "[-, b.a] -> [b:nested(2).a:nested(2)]; f0=2 f1=2"),
    (sample("view", "f32[6, 8]", shape=(48,)), "a=f0 b=f1", "[a, b] -> [a.b:nested(3)]; f0=3 f1=4"),
    # Six tokens in two groups of two slots: what is cut where groups end.
    (
        sample("dispatch", "f32[6, 4] i64[6, 2]", num_experts=3, capacity=4, groups=2),
        "a=t",
        "[a, -], [a, -] -> [-, a, -]; t=3 k=2 e=3 d=4",
    ),
    # Of two loops the inner one is cut group by group, in runs of its slots.
    (
        sample("dispatch", "f32[2, 6, 4] i64[2, 6, 2]", num_experts=3, capacity=12, groups=(2, 2)),
        "a=t1",
        "[-, a, -], [-, a, -] -> [-, a:nested(2), -]; t0=2 t1=3 k=2 e=3 d=4",
    ),
    (
        sample("combine", "f32[4, 8, 2] i64[4, 2] f32[4, 2]", groups=4),
        "a=e b=t:uneven(1,3)",
        (
            "[a, b:uneven(2,6), -], [b:uneven(1,3), -], [b:uneven(1,3), -]|sum(a) -> "
            "[b:uneven(1,3), -]+sum(a); t=1 k=2 e=2 d=2"
        ),
    ),
]


def test_states_follow_from_what_an_axis_splits() -> None:
    found = {(str(signature), text): spread(signature, text) for signature, text, _ in APPLIED}
    assert found == {(str(signature), text): states_ for signature, text, states_ in APPLIED}


VIEW = sample("view", "f32[2, 8]", shape=(16,))


@pytest.mark.parametrize(
    ("signature", "text"),
    [
        (sample("softmax", "f32[4, 8]"), "a=d1"),  # whole
        (sample("relu", "f32[4]"), "a=d0:padded(2)"),
        (sample("relu", "f32[4]"), "a=P"),
        (sample("relu", "f32[4]"), "a=P0"),
        (sample("where", "bool[4] f32[4] f32[4]"), "a=P1"),
        (sample("mul", "f32[4] f32[4]"), "a=P"),
        (sample("attention", "f32[2, 4, 8, 4] f32[2, 4, 4, 4] f32[2, 4, 4, 4]"), "a=sq+sk"),
        (sample("attention", "f32[2, 4, 8, 4] f32[2, 4, 8, 4] f32[2, 4, 8, 4]"), "a=sk+sq"),
        (VIEW, "a=f0:uneven(1,1) b=f1"),  # what is cut inside of uneven parts
        (VIEW, "b=f1:uneven(3,5)"),  # uneven, in each of two rows
        (sample("split", "f32[2, 12]", dim=1, sizes=(4, 8)), "a=p:zigzag"),
        (sample("dispatch", "f32[8, 4] i64[8, 2]", num_experts=3, capacity=4, groups=2), "a=t:zigzag"),
        (sample("dispatch", "f32[8, 4] i64[8, 2]", num_experts=3, capacity=4, groups=2), "a=t:nested(2)"),
        (sample("dispatch", "f32[8, 4] i64[8, 2]", num_experts=3, capacity=4, groups=2), "a=t:sections(4,4)"),
    ],
    ids=lambda one: str(one).replace(" ", "")[:60],
)
def test_what_an_operator_cannot_do_is_illegal(signature: Signature, text: str) -> None:
    with pytest.raises(IllegalStrategy):
        spread(signature, text)


@pytest.mark.parametrize(
    ("signature", "text"),
    [
        (sample("relu", "f32[6]"), "a=d0 b=d0"),  # three are left
        (sample("relu", "f32[10]"), "a=d0:uneven(3,7) b=d0"),
        (sample("split", "f32[2, 12]", dim=1, sizes=(2, 10)), "a=p b=p"),
        (sample("dispatch", "f32[6, 4] i64[6, 2]", num_experts=3, capacity=4, groups=2), "a=t b=t"),
    ],
    ids=lambda one: str(one).replace(" ", "")[:60],
)
def test_what_an_axis_leaves_must_divide(signature: Signature, text: str) -> None:
    with pytest.raises(IndivisibleExtent):
        spread(signature, text)


def test_strategies_say_nothing_of_idle_axes() -> None:
    made = Strategy.parse("a=- b=-|P c=n")
    assert str(made) == "b=-|P c=n"
    assert (str(made.of("a")), str(made.of("b")), str(made.of("c")), str(made.of("d"))) == ("-", "-|P", "n", "-")
    assert made.split == {"n"}
    assert made == Strategy.parse("b=-|P c=n")
    assert made != Strategy.parse("c=n b=-|P")
    assert hash(made) == hash(Strategy.parse("b=-|P c=n a=-"))
    again = loads(dumps(made))
    assert (again, again.split, hash(again)) == (made, made.split, hash(made))


def test_operands_that_want_a_gradient_are_told_by_position() -> None:
    assert needs([True, False, True]) == (0, 2)
