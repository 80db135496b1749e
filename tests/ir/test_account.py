"""What a graph and a fold cost, counted by hand."""

from __future__ import annotations

from meshwright.ir.analysis.account import Account, Opaque, account, account_fold, parameters
from meshwright.ir.graph.graph import Graph
from tests.build import Builder
from tests.llama_block import Sizes, model


def graph() -> Graph:
    """A product of 2 x 8 by 4 x 8, one that is frozen, an unknown operator, and one that no gradient passes."""
    g = Builder()
    x = g.input((2, 8), labels=("b", ""))
    y = g.op("linear", x, g.param("w", (4, 8)), module="up")
    z = g.op("linear", y, g.param("v", (4, 4), requires_grad=False))
    z = g.op("opaque", z, types=("f32[2, 4]",), target="lib::f", flops=100, module="m", source="f.py:3")
    g.output(z, g.op("linear", x, g.param("u", (4, 8)), no_grad=True))
    return g.graph()


FIRST, FROZEN = 2 * 2 * 4 * 8, 2 * 2 * 4 * 4


def test_work_is_booked_on_operands_that_want_it() -> None:
    """Forward all; backward the gradient of w, of y through the frozen product, and of what the unknown reads."""
    found = account(graph())
    assert found.ops == 4
    assert found.forward_flops == FIRST + FROZEN + 100 + FIRST
    assert found.backward_flops == FIRST + FROZEN + 200
    products = 2 * (64 + 128 + 32) + (32 + 64 + 32)
    assert found.nbytes == products + 2 * 32
    assert (found.opaque_flops, found.opaque_bytes) == (100, 64)
    assert found.opaque == (Opaque("lib::f", "m", "f.py:3"),)
    assert found.covered_flops == 1 - 100 / (2 * FIRST + FROZEN + 100)
    assert found.covered_bytes == 1 - 64 / (products + 64)


def test_accounts_are_added_and_multiplied() -> None:
    one = Account(1, 2.0, 3.0, 4.0, 5.0, 6.0, (Opaque("f", "m", "s", 2),))
    three = Account(3, 6.0, 9.0, 12.0, 15.0, 18.0, (Opaque("f", "m", "s", 6),))
    assert one.times(3) == three
    assert one.plus(three) == Account(4, 8.0, 12.0, 16.0, 20.0, 24.0, (*one.opaque, *three.opaque))
    assert (Account().covered_flops, Account().covered_bytes) == (1.0, 1.0)
    assert Account(forward_flops=4.0, opaque_flops=1.0).covered_flops == 0.75
    assert Account(nbytes=4.0, opaque_bytes=3.0).covered_bytes == 0.25


def test_a_fold_is_its_bodies_as_often_as_they_run() -> None:
    one, four = (account_fold(model(Sizes(layers=layers))) for layers in (1, 4))
    body = model().body["block"].graph
    each = account(body)
    assert four.ops == one.ops + 3 * len(body.ops)
    assert four.forward_flops == one.forward_flops + 3 * each.forward_flops
    assert four.backward_flops == one.backward_flops + 3 * each.backward_flops
    assert each.backward_flops > 1.9 * each.forward_flops


def test_tied_parameters_are_counted_once() -> None:
    apart, tied = (parameters(model(Sizes(layers=2), tied=tied)) for tied in (False, True))
    assert set(apart) - set(tied) == {"head.weight"}
    assert len(apart) == 2 + 1 + 2 * 9
    param, type_ = apart["layers.1.down.weight"]
    assert (param.path, type_.shape) == ("down.weight", (32, 64))
