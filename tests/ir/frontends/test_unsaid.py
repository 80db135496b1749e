"""What a graph does not say of a step: backward passes of another function, and draws outside of torch."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function

from meshwright.ir.frontends.torch_.tracing.stand_ins import faked
from meshwright.ir.frontends.torch_.tracing.unsaid import Writes, watched

ANOTHER, OUTSIDE = "is not the derivative of its forward pass", "outside of torch"


class Doubled(Function):
    """Its gradient is that of another function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, times: float) -> Tensor:
        ctx.times = times
        return x * times

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.times * 2, None


class Three:
    """A number that no code can write."""

    def __rmul__(self, x: Any) -> Any:
        return x * 3.0

    __mul__ = __rmul__


def hidden() -> Any:
    """A function that its module has not by name."""

    class Hidden(Doubled):
        pass

    return Hidden


class Over(Doubled):
    """Writes over what it is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, times: float) -> Tensor:
        ctx.times = times
        ctx.mark_dirty(x)
        return x.mul_(times)


class Centred(Doubled):
    """Has no loop that could be split."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, times: float) -> Tensor:
        ctx.times = times
        return (x - x.mean()) * times / (1 + x.abs().sum())


class Masked(Function):
    """A softmax that writes in place, of rows of which one is seen at least."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor) -> Tensor:
        made = x.masked_fill(mask.bool(), -1e9).softmax(-1)
        made.masked_fill_(mask.bool(), 0)
        ctx.save_for_backward(made)
        return made

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (made,) = ctx.saved_tensors
        return made * (grad - (grad * made).sum(-1, keepdim=True)), None


class Root(Function):
    """Of positive numbers alone."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sqrt()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad / (4 * x).clamp_min(1e-8).sqrt()


class Steeper(Root):
    """Has half of the gradient, alone and mapped."""

    generate_vmap_rule = True

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return Root.backward(ctx, grad / 2)


class Narrow(Function):
    """A sum of squares that it computes in fp32, with its gradient at once: it takes no fp64."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        made = x.new_zeros(())
        grad = torch.empty_like(x)
        for part, its in zip(x.chunk(2), grad.chunk(2), strict=True):
            made = made + (part.float() @ x.T).sum()
            its.copy_(part)
        ctx.save_for_backward(x.sum(0))
        return made

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (total,) = ctx.saved_tensors
        return grad * 2 * total.expand(2, -1)


class Calling(Function):
    """Calls a module, which has no values in a trace."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: nn.Module) -> Tensor:
        with torch.no_grad():
            made: Tensor = module(x)
        return made

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad, None


class Dropped(Function):
    """Draws with torch, alike in both passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        kept = torch.rand_like(x) > 0.5
        ctx.save_for_backward(kept)
        return x * kept

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * ctx.saved_tensors[0]


class Sixteen(Doubled):
    """Takes rows of 16 alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, times: float) -> Tensor:
        if x.shape[-1] != 16:
            raise ValueError
        ctx.times = times / 2
        return x * times


@pytest.mark.parametrize(
    ("step", "wanted"),
    [
        (lambda x: Doubled.apply(x, 3.0), ""),
        (lambda x: Doubled.apply(x, Three()), ANOTHER),
        (lambda x: Steeper.apply(x.abs()), ""),
        (Narrow.apply, ""),
        (lambda x: Calling.apply(x, nn.Linear(16, 16)), ANOTHER),
        (lambda x: torch.vmap(Steeper.apply)(x.abs()), ANOTHER),
        (lambda x: hidden().apply(x, 3.0), ANOTHER),
        (lambda x: Over.apply(x.clone(), 3.0), ANOTHER),
        (lambda x: Centred.apply(x.flatten(), 3.0), ANOTHER),
        (lambda x: Masked.apply(x, torch.zeros(2, 16)), ""),
        (lambda x: Root.apply(x.abs()), ""),
        (Dropped.apply, ""),
        (lambda x: Sixteen.apply(x, 3.0), ""),
        (lambda _: random.random(), OUTSIDE),
        (lambda _: numpy.random.rand(1), OUTSIDE),
        (lambda _: torch.rand(1), ""),
        (lambda x: x * math.pi, ""),
    ],
)
def test_what_is_not_in_the_graph_of_a_step_is_said(step: Callable[[Tensor], Any], wanted: str) -> None:
    with watched() as found:
        step(torch.ones(2, 16))
    assert len(found) == bool(wanted)
    assert wanted in "".join(found)


def test_what_is_written_into_parameters_is_seen_by_their_storage() -> None:
    """Of numbers alone, or of what else is read or drawn; not into copies, nor into what gets the storage of a
    view that is gone."""
    with torch.device("meta"):
        model = nn.ModuleDict({name: nn.Linear(4, 4) for name in ("clipped", "moved", "copied", "left", "drawn")})
    with faked(), Writes(model) as writes:
        model["clipped"].weight.data.clamp_(-1, 1)
        model["clipped"].bias.detach()[:2].mul_(0.5)
        model["moved"].weight.add_(model["left"].weight)
        model["copied"].weight.clone().add_(1)
        model["drawn"].weight.data.normal_()
        for _ in range(64):
            model["left"].weight.detach()
            torch.zeros(4, 4).add_(1)
    assert writes.found == {"clipped.weight": True, "clipped.bias": True, "moved.weight": False, "drawn.weight": False}
