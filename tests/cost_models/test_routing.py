"""What modules of experts hold while they run, in sizes that are easy to add up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.cost_models.memory.routing import NOTHING, Routing, routing_of
from meshwright.ir.names import Degrees
from meshwright.ir.program.program import Compute, Gradient, Statement
from meshwright.ir.rules import Signature
from meshwright.ir.sharding.adjoint import Strategy
from tests.cost_models.programs import MOE, program

SIZES = {"tokens": 3.0, "rows": 8.0, "hidden": 16.0, "back": 100.0, "d_rows": 1.0, "d_up": 2.0}
GRADED = {"up": 30.0, "down": 50.0}
GROUPED = Routing(
    values=frozenset(("rows", "hidden", "back")),
    ops=frozenset(("first", "last")),
    called="tokens",
    weights=("up", "down"),
    experts=4,
    made=("rows", "hidden"),
    last="last",
    returned="back",
    back="sum",
    apart=False,
    looped=False,
)
LOOPED = replace(GROUPED, looped=True)
APART = replace(GROUPED, apart=True)
TP = Degrees(tp=2)


def forward(op: str) -> Compute:
    return Compute(Signature("grouped_linear", ()), Strategy(), ("rows", "up"), ("hidden",), op)


def backward(op: str) -> Gradient:
    return Gradient(
        Signature("grouped_linear", ()),
        Strategy(),
        ("hidden", "down"),
        ("back",),
        ("back",),
        (0, 1),
        ("d_rows", "d_up"),
        op,
    )


def held(routing: Routing, statement: Compute | Gradient) -> float:
    return routing.beside(statement, SIZES.__getitem__, lambda name: GRADED.get(name, 0.0))


@pytest.mark.parametrize(
    ("routing", "first", "last"),
    [(GROUPED, 0.0, 200.0), (LOOPED, 0.0, 0.0), (APART, 3.0, 203.0), (replace(LOOPED, apart=True), 3.0, 3.0)],
)
def test_forward_the_last_product_is_weighted_and_put_in_order(routing: Routing, first: float, last: float) -> None:
    """Twice as much as it is, but in a loop; where experts are apart, rows that were sent stay."""
    assert (held(routing, forward("first")), held(routing, forward("last"))) == (first, last)
    assert held(routing, forward("elsewhere")) == 0


@pytest.mark.parametrize(
    ("routing", "expected"), [(GROUPED, 32.0), (LOOPED, 0.0), (APART, 16.0), (replace(LOOPED, apart=True), 16.0)]
)
def test_backward_gradients_are_put_in_order(routing: Routing, expected: float) -> None:
    assert held(routing, backward("sum")) == expected
    assert held(routing, backward("first")) == 0
    assert held(GROUPED, backward("last")) == 0


@pytest.mark.parametrize(
    ("experts", "rows", "expected"),
    [
        (1, 8.0, 30 + 50 + 3 - 3),  # stacks and tokens of its own; 3 are the results of the statement itself
        (4, 8.0, 30 + 50 + 3 + 2 * 50 - 24 / 4 - 3),
        (2, 8.0, 30 + 50 + 3 + 2 * 50 - 24 / 2 - 3),
        (1, 500.0, 30 + 50 + 3 - 3),
        (2, 500.0, 0.0),
    ],
)
def test_a_loop_is_fullest_at_the_second_expert(experts: int, rows: float, expected: float) -> None:
    """All stacks and a third of the largest twice, when one expert's share of rows is gone."""
    routing, sizes = replace(LOOPED, experts=experts), SIZES | {"rows": rows}
    found = routing.beside(backward("last"), sizes.__getitem__, lambda name: GRADED.get(name, 0.0))
    assert found == pytest.approx(expected)


def test_tokens_may_be_larger_than_any_stack() -> None:
    found = LOOPED.beside(backward("last"), (SIZES | {"tokens": 60.0}).__getitem__, lambda name: GRADED.get(name, 0.0))
    assert found == pytest.approx(30 + 50 + 60 + 2 * 60 - 24 / 4 - 3)


def test_gradients_that_come_transposed_are_copied() -> None:
    """Into the layout of their stack, beside them; not where rows alone get one."""
    turned, last = replace(GROUPED, turned=("last",)), backward("last")
    assert held(turned, last) == GRADED["down"]
    assert held(turned, replace(last, wanted=(0,), results=("d_rows",))) == 0
    assert held(turned, backward("first")) == 0


@pytest.mark.parametrize(
    ("degrees", "dropless", "copied"), [(TP, False, [False, True]), (TP, True, []), (Degrees(dp=2), False, [])]
)
def test_printed_products_of_experts_with_a_capacity_read_their_stacks_transposed(
    degrees: Degrees, dropless: bool, copied: list[bool]
) -> None:
    """But those that lie transposed. Code is printed where ranks exchange values. The first stack is square."""

    def told(statement: Statement) -> Statement:
        kind = statement.signature.kind if isinstance(statement, Compute) else ""
        if not isinstance(statement, Compute) or kind not in ("dispatch", "grouped_linear"):
            return statement
        lies = {"transposed": statement.results == ("grouped_linear",)}
        attrs = dict(statement.signature.attrs) | ({"dropless": dropless} if kind == "dispatch" else lies)
        return replace(statement, signature=replace(statement.signature, attrs=tuple(sorted(attrs.items()))))

    square = replace(MOE, moe_ffn=MOE.hidden // 2)
    body = next(body for body in program(square, degrees).bodies if routing_of(body).last)
    found = routing_of(replace(body, forward=tuple(map(told, body.forward))))
    products = [s.op for s in body.forward if isinstance(s, Compute) and s.signature.kind == "grouped_linear"]
    assert found.turned == tuple(op for op, copies in zip(products, copied, strict=bool(copied)) if copies)


@pytest.mark.parametrize(("ep", "rows", "called"), [(1, "dispatch", "view_5"), (2, "dispatch@1", "dispatch@1")])
def test_a_block_says_what_its_rows_go_through(ep: int, rows: str, called: str) -> None:
    """Tokens are sorted to experts; gate and up are one product, halves of which make what the second one takes. Where
    ranks share experts, each has two of four, and rows travel both ways."""
    made = program(MOE, Degrees(dp=ep, ep=ep))
    body = next(body for body in made.bodies if routing_of(body).last)
    inside = {"grouped_linear", "split.0_3", "split.1_3", "silu", "mul_5", "grouped_linear_2"}
    travelled = {"dispatch@1", "grouped_linear_2@2"} if ep > 1 else set()
    op = {name: s.op for s in body.forward if isinstance(s, Compute) for name in s.results}
    assert routing_of(body) == Routing(
        values=frozenset({"dispatch"} | inside | travelled),
        ops=frozenset(op[name] for name in inside),
        called=called,
        weights=("feed_forward.up", "feed_forward.down"),
        experts=4 // ep,
        made=(rows, "grouped_linear", "silu", "mul_5", "grouped_linear_2"),
        last=op["grouped_linear_2"],
        returned="grouped_linear_2",
        back=op["combine"],
        apart=ep > 1,
        looped=False,
    )
    assert {routing_of(other) for other in made.bodies if other is not body} == {NOTHING}
    assert LOOPED.weighted == "last!weighted"
