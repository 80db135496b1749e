"""Autograd functions of users' as operators: which loops they have, and that a call made again is the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function

from meshwright.backends.torch_.verify.interpreted.rules import split_differences, strategies
from meshwright.ir.frontends.torch_.operators.invoked import FUNCTIONS, function_symbol, public_name
from meshwright.ir.graph.text import graph_text, parse_graph
from tests.ir.frontends.test_discover import opaque, traced


class Reversed(Function):
    """The identity, with its gradient reversed and scaled."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, settings: dict[str, float]) -> Tensor:
        ctx.settings = settings
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return -grad * ctx.settings["by"], None


class Rows(Function):
    """Normalised rows and their norms, taken to be constant by its backward pass."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, dims: list[int]) -> tuple[Tensor, Tensor]:
        norm = x.norm(dim=dims, keepdim=True) + 1
        return x / norm * weight, norm

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, list[int]], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[0], inputs[1], output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        x, weight, norm = ctx.saved_tensors
        return grad * weight / norm, (grad * x / norm).sum((0, 1)), None


class Acute(Function):
    """Angles between rows, of a narrow domain."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.acos(x @ weight.mT)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return -grad @ weight, -torch.einsum("bsw,bsx->wx", grad, x)


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (lambda x, w: Reversed.apply(x, {"by": 0.5}), "n0 n1 n2 -> n0 n1 n2"),
        (lambda x, w: Rows.apply(x, w[0], [-1])[0], "n0 n1 w0, w1 -> n0 n1 w2, n0 n1 1"),
        (lambda x, w: Acute.apply(x * 0.01, w * 0.01), "n0 n2 w0, n1 w1 -> n0 n2 n1"),
    ],
    ids=["settings", "rows", "narrow"],
)
def test_a_call_is_an_operator_with_loops(body: Callable[..., Tensor], rule: str) -> None:
    """Split in every way that its loops allow, it gives what it gives whole, forward and backward."""
    op, signature = opaque(body)
    assert op.attr("target") in {f"{__name__}::{kind.__name__}" for kind in (Reversed, Rows, Acute)}
    assert op.attr("rule") == rule
    graph = traced(body).graph
    assert parse_graph(graph_text(graph)) == graph
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randn(type_.shape, generator=generator, dtype=torch.float64) * 0.1 for type_ in signature.operands]
    tried = [split_differences(signature, mesh, strategy, tuple(drawn)) for mesh, strategy in strategies(signature)]
    assert not any(tried)
    assert sum(found is not None for found in tried) > 2


def test_a_derivative_is_followed() -> None:
    class Squared(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            return grad * 2 * ctx.saved_tensors[0]

    assert "opaque" not in {op.kind for op in traced(lambda x, w: Squared.apply(x)).graph.ops}


class Within(Function):
    """Without gradients, as its forward pass says twice; a module is called, so that nothing of it is tried."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: nn.Module) -> Tensor:
        with torch.no_grad():
            made: Tensor = module(x)
        return made


def test_a_forward_pass_that_is_followed_has_gradients() -> None:
    module = nn.Tanh()
    graph = traced(lambda x, w: Within.apply(x, module)).graph
    assert {param.requires_grad for param in graph.params} == {True}


@pytest.mark.parametrize("name", ["model::Through", "a.b_c::Outer.In_ner", "größe::_s1"])
def test_symbols_are_names_again(name: str) -> None:
    symbol = function_symbol(name)
    assert symbol.replace("_", "").isalnum()
    assert public_name(f"{FUNCTIONS}.{symbol}_s7.apply") == name
