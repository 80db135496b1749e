"""Rules that trials show: what must be found is true on pieces, and what is not a loop is never taken for one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.backends.torch_.capabilities import TORCH_GLOO
from meshwright.backends.torch_.verify.interpreted.compare import differences, random_values
from meshwright.backends.torch_.verify.interpreted.rules import split_differences, strategies
from meshwright.ir.frontends.folding.handles import Traced
from meshwright.ir.frontends.folding.segment import fold_trace
from meshwright.ir.frontends.torch_.operators.aside import Board, Crashed, Hung, aside
from meshwright.ir.frontends.torch_.operators.discover import discovered, small
from meshwright.ir.frontends.torch_.sources.factory import Hooks, TorchSource
from meshwright.ir.frontends.torch_.tracing.export import trace
from meshwright.ir.graph.graph import Op, Type
from meshwright.ir.graph.text import graph_text, parse_graph
from meshwright.ir.names import Degrees
from meshwright.ir.names.cache import loops_of, planned
from meshwright.ir.rules import Signature, register_rule, signature_of, unregister_rule
from meshwright.ir.same import Same
from meshwright.ir.sharding.mesh import Mesh

Body = Callable[..., Tensor]


class Net(nn.Module):
    """A body over x [4, 8, 8] and a weight [32, 8]."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body
        self.w = nn.Parameter(torch.randn(32, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x * self.w[0], self.w)


def traced(body: Body) -> Traced:
    net = Net(body).double()
    batch = {"x": torch.randn(4, 8, 8, dtype=torch.float64)}
    hooks = Hooks(lambda b, s: batch, lambda outputs, _: outputs.sin().mean(), dims={"x": ("b", "s", "")})
    return trace(TorchSource(net, hooks, "Net"), batch)


def opaque(body: Body) -> tuple[Op, Signature]:
    graph = traced(body).graph
    (op,) = [op for op in graph.ops if op.kind == "opaque"]
    return op, signature_of(op, graph.types)


def lstm(x: Tensor, w: Tensor) -> Tensor:
    state = torch.zeros(1, 4, 8, dtype=x.dtype)
    found: Tensor = torch.lstm(x, (state, state), [w, w], False, 1, 0.0, True, False, True)[0]
    return found


def deep_lstm(x: Tensor, w: Tensor) -> Tensor:
    """Of two layers, which crashes at extents that it cannot have."""
    state = torch.zeros(2, 4, 8, dtype=x.dtype)
    found: Tensor = torch.lstm(x, (state, state), [w, w, w, w], False, 2, 0.0, True, False, True)[0]
    return found


FOUND: dict[str, tuple[Body, str]] = {
    "lstm of two layers": (
        deep_lstm,
        "n0 w0 w1, w2 n0 w3, w4 n0 w5, w6 w7, w8 w9, w10 w11, w12 w13 -> n0 w14 w15, w16 n0 w17, w18 n0 w19",
    ),
    "lstm": (lstm, "n0 w0 w1, 1 n0 w2, 1 n0 w3, w4 w5, w6 w7 -> n0 w8 w9, 1 n0 w10, 1 n0 w11"),
    "grid_sample": (
        lambda x, w: F.grid_sample(x[:, None], x[..., :2][:, :, None].tanh(), align_corners=False),
        "n0 1 w0 w1, n0 n1 1 w2 -> n0 1 n1 1",
    ),
    "cdist": (lambda x, w: torch.cdist(x, x * 2), "n0 n1 w0, n0 n2 w1 -> n0 n1 n2"),
    "unfold": (lambda x, w: F.unfold(x[:, None], 2), "n0 1 w0 w1 -> n0 w2 w3"),
    "inverse": (lambda x, w: torch.linalg.inv(x @ x.mT + 8 * torch.eye(8)), "n0 w0 w1 -> n0 w2 w3"),
    "attention of one head": (
        lambda x, w: F.scaled_dot_product_attention(x, x, x),
        "n0 n1 w0, n0 w1 w2, n0 w3 n2 -> n0 n1 n2",
    ),
    "reflected": (lambda x, w: F.pad(x, (1, 2), mode="reflect"), "n0 n1 w0 -> n0 n1 w1"),
    "of several indices": (lambda x, w: x[:, torch.tensor([0, 3]), torch.tensor([1, 2])], "n1 w0 w1, n0, n0 -> n1 n0"),
}
"""What has to be found, and all of it: the loops n0, n1, …; those of names w0, … are whole."""


@pytest.mark.parametrize("name", FOUND)
def test_what_trials_show_is_true(name: str) -> None:
    """The rule, split in every way that it allows, forward and backward."""
    body, rule = FOUND[name]
    op, signature = opaque(body)
    assert op.attr("rule") == rule
    generator = torch.Generator().manual_seed(1)
    operands = tuple(
        torch.randn(type_.shape, generator=generator, dtype=torch.float64)
        if type_.floating
        else torch.randint(0, 2, type_.shape, generator=generator)
        for type_ in signature.operands
    )
    if name == "inverse":
        operands = (operands[0] @ operands[0].mT + 8 * torch.eye(8, dtype=torch.float64),)
    ran = 0
    for mesh, strategy in strategies(signature):
        wrong = split_differences(signature, mesh, strategy, operands)
        assert not wrong, f"{strategy}: {wrong}"
        ran += wrong is not None
    assert ran > 2


@pytest.mark.parametrize("name", ["lstm", "grid_sample", "cdist", "unfold", "attention of one head"])
def test_a_model_with_it_is_exact_under_data_parallelism(name: str) -> None:
    """On two simulated devices that have half of the batch each, against torch on all of it."""
    found = traced(FOUND[name][0])
    fold = fold_trace(found.graph, (), {})
    (body,) = fold.bodies
    plan = planned(Same(fold), body.name, Degrees(dp=2))
    (op,) = [op for op in body.graph.ops if op.kind == "opaque"]
    assert str(dict(plan.strategies)[op.name]) == "dp=n0"
    values = random_values(body.graph)
    assert differences(body.graph, plan, Mesh.parse("dp=2"), values) == []


def test_an_opaque_operator_forbids_nothing_to_its_block() -> None:
    """It gets its operands whole, where the others have half of the batch each; no target refuses that."""
    found = traced(lambda x, w: (x * 2).masked_scatter(x > 0, x.exp()) @ w[:8])
    fold = fold_trace(found.graph, (), {})
    (body,) = fold.bodies
    plan = planned(Same(fold), body.name, Degrees(dp=2))
    chosen = dict(plan.strategies)
    (op,) = [op for op in body.graph.ops if op.kind == "opaque"]
    assert op.attr("rule") is None
    assert "dp" not in str(chosen.get(op.name, ""))
    assert "dp=" in str(chosen[next(op.name for op in body.graph.ops if op.kind == "exp")])
    mesh = Mesh.parse("dp=2")
    assert differences(body.graph, plan, mesh, random_values(body.graph)) == []
    assert TORCH_GLOO.body_refusals(plan, body.graph, loops_of(Same(fold))[body.name], mesh) == ()


def test_the_text_of_a_graph_keeps_the_call_and_the_rule() -> None:
    for body, _ in FOUND.values():
        graph = traced(body).graph
        assert parse_graph(graph_text(graph)) == graph


ONE = ("tensor", 0)


def rule_of(name: str, arguments: tuple[Any, ...], operands: str, result: str) -> str | None:
    """The rule of an operator of one or more tensors by text: "4 6, 6"."""

    def types(text: str) -> tuple[Type, ...]:
        return tuple(Type(tuple(map(int, one.split())), "f32") for one in text.split(","))

    call = tuple(("", argument) for argument in arguments)
    found = discovered(name, call, types(operands), types(result))
    return found and found.rule


def test_what_is_no_loop_is_not_found() -> None:
    """The dimension of a running sum, of a softmax, of what is rolled, and a batch from which its mean is taken."""
    assert rule_of("cumsum.default", (ONE, 0), "8 4", "8 4") == "w0 n0 -> w1 n0"
    assert rule_of("softmax.int", (ONE, 1), "8 4", "8 4") == "n0 w0 -> n0 w1"
    assert rule_of("roll.default", (ONE, ("list", 1), ("list", 0)), "8 4", "8 4") == "w0 n0 -> w1 n0"
    assert rule_of("roll.default", (ONE, ("list", 1)), "8 4", "8 4") is None
    assert rule_of("layer_norm.default", (ONE, ("list", 4)), "8 4", "8 4") is not None
    assert rule_of("cov.default", (ONE,), "8 6", "8 8") is None
    assert rule_of("batch_norm.default", (ONE, None, None, None, None, True, 0.1, 1e-5, False), "8 4", "8 4") == (
        "w0 n0 -> w1 n0"
    )
    assert rule_of("avg_pool1d.default", (ONE, ("list", 2)), "4 6 12", "4 6 6") == "n0 n1 w0 -> n0 n1 w1"
    assert rule_of("mean.default", (ONE,), "8 4", "") is None


def test_sums_and_what_is_linear() -> None:
    """A sum over a loop that the result lacks; both factors of a product are linear."""
    call = (("", ONE), ("", ("tensor", 1)))
    types = Type((4, 6), "f32"), Type((6, 10), "f32")
    found = discovered("mm.default", call, types, (Type((4, 10), "f32"),))
    assert found is not None
    assert (found.rule, found.whole, found.reduce, found.linear) == ("n0 n1, n1 n2 -> n0 n2", (), ("n1",), (0, 1))
    assert found.points(types) == 4 * 6 * 10


def test_operators_that_draw_have_none() -> None:
    assert rule_of("bernoulli.p", (ONE, 0.5), "8 4", "8 4") is None
    assert rule_of("multinomial.default", (ONE, 2), "8 4", "8 2") is None


def test_a_rule_of_the_users_is_not_tried() -> None:
    register_rule("aten::cdist", "b s d, b t e -> b s t", whole=("s", "t", "d", "e"))
    try:
        found = traced(FOUND["cdist"][0])
        assert found.notes == ()
        assert [op.attr("rule") for op in found.graph.ops if op.kind == "opaque"] == [None]
    finally:
        unregister_rule("aten::cdist")


def test_extents_are_made_small_equal_for_equal() -> None:
    """Fresh ones before those that an operator may ask for; a multiple may stay one."""
    shapes = ((4096, 64), (256, 64))
    found = list(small(shapes))
    assert found[0] == ((8, 4), (6, 4))
    assert ((6, 4), (16, 4)) in found
    assert found[-1] == shapes
    assert len(set(found)) >= len(found) - 2
    assert next(small(((2, 3),))) == ((4, 6),)
    assert ((2, 3),) in list(small(((2, 3),)))
    assert next(small(((2, 3),), said={3})) == ((4, 3),)


@pytest.mark.parametrize("channels", [8, 128])
def test_the_rule_of_an_operator_is_that_of_every_batch(channels: int) -> None:
    # The image that it says fixes its extents, and the batch may be as long as any of them.
    sides = [("", ("list", side, side)) for side in (32, 2, 1, 0, 2)]
    call = (("", ("tensor", 0)), *sides)
    found = {
        discovered(
            "col2im.default",
            call,
            (Type((batch, 4 * channels, 256), "f32"),),
            (Type((batch, channels, 32, 32), "f32"),),
        )
        for batch in (2, 4, 8, 32, 256)
    }
    (rule,) = {one and one.rule for one in found}
    assert rule == "n0 w0 w1 -> n0 w2 w3 w4"


def test_what_crashes_says_nothing() -> None:
    """A kernel that ends its process ends a copy of ours; so does one that does not come back."""
    assert aside(lambda: 3) == 3
    with pytest.raises(Crashed):
        aside(lambda: os.kill(os.getpid(), 11))
    with pytest.raises(Hung):
        aside(lambda: time.sleep(60), limit_s=0.2)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        aside(lambda: 1 // 0)


def test_what_a_copy_ended_at_is_not_begun_again() -> None:
    board = Board()

    def ends() -> bool:
        board.begins("one")
        if board.begins("two"):
            os.kill(os.getpid(), 9)
        return board.begins("three")

    with pytest.raises(Crashed):
        aside(ends)
    assert board.avoid()
    assert aside(ends)
    assert not board.begins("two")
