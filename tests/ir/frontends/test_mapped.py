"""What is mapped over samples is traced as operators on whole batches, with torch's values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.ir.frontends.torch_.sources.factory import Hooks, TorchSource
from meshwright.ir.frontends.torch_.tracing.export import trace
from tests.ir.frontends.run import execute


def seen(row: Tensor, column: Tensor) -> Tensor:
    """A mask by indices, as libraries write them."""
    return (row >= column) & (row - column < 3)


def masked(model: Model, x: Tensor) -> Tensor:
    n, x = torch.arange(x.shape[1]), model.linear(x)
    mask = torch.vmap(torch.vmap(seen, in_dims=(None, 0)), in_dims=(0, None))(n, n)
    return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], attn_mask=mask)[:, 0]


FORWARDS: Mapping[str, Callable[[Model, Tensor], Tensor]] = {
    "a module": lambda model, x: torch.vmap(model.linear)(x),
    "another dimension": lambda model, x: torch.func.vmap(model.linear, in_dims=1)(x),
    "a product of each": lambda model, x: torch.vmap(lambda one: one @ one.t())(model.linear(x)),
    "weights of each": lambda model, x: torch.vmap(lambda one, w: one * w.sum(), (0, None))(x, model.linear.weight),
    "two results": lambda model, x: torch.add(*torch.vmap(lambda one: (one.relu(), model.linear(one)))(x)),
    "twice": lambda model, x: torch.vmap(torch.sin)(torch.vmap(model.linear)(x)),
    "a mask": masked,
}


class Model(nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.linear = what, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return FORWARDS[self.what](self, x)


def source(model: nn.Module) -> TorchSource:
    hooks = Hooks(lambda batch, seq: {"x": torch.randn(batch, seq, 4)}, lambda outputs, batch: outputs.square().mean())
    return TorchSource(model, hooks, "here")


@pytest.mark.parametrize("what", FORWARDS)
def test_what_is_mapped_is_what_torch_makes_of_it(what: str) -> None:
    torch.manual_seed(0)
    model, batch = Model(what), {"x": torch.randn(3, 5, 4, requires_grad=True)}
    with torch.device("meta"):
        traced = trace(source(Model(what)), {"x": torch.randn(3, 5, 4)})
    expected = model(batch["x"]).square().mean()
    found = execute(traced, model, batch)[traced.graph.outputs[0]]
    torch.testing.assert_close(found, expected)
    read = (batch["x"], *model.parameters())
    grads = (torch.autograd.grad(one, read, allow_unused=True, retain_graph=True) for one in (found, expected))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)
