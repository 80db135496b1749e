"""Models with autograd functions of their own: a loss that has its gradient ready, results of several kinds, a
recurrence with a truncated gradient."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

WIDTH, WORDS = 32, 64


class LinearCrossEntropy(Function):
    """A head and its loss in parts, which never holds all logits, and computes in fp32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, labels: Tensor, ignored: int) -> Tensor:
        rows, words = x.reshape(-1, x.shape[-1]), labels.reshape(-1)
        of_rows, of_weight = torch.empty_like(rows), torch.zeros_like(weight)
        counted = (words != ignored).sum()
        total = torch.zeros((), dtype=torch.float32, device=x.device)
        for part, its, grad in zip(rows.chunk(4), words.chunk(4), of_rows.chunk(4), strict=True):
            logits = (part @ weight.T).float()
            total = total + (logits.logsumexp(-1) - logits.gather(1, its[:, None])[:, 0]).sum()
            chances = logits.softmax(-1)
            chances.scatter_add_(1, its[:, None], -torch.ones_like(its[:, None], dtype=chances.dtype))
            chances = chances / counted
            grad.copy_(chances @ weight)
            of_weight += chances.T @ part
        ctx.save_for_backward(of_rows.view_as(x), of_weight)
        return total / counted

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:  # type: ignore[override]
        of_rows, of_weight = ctx.saved_tensors
        return of_rows * grad, of_weight * grad, None, None


class Clipped(Function):
    """The identity in its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad


class Several(Function):
    """A product, clipped by another function, and where it is largest; with a bias or none."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dims: tuple[int, ...], mode: str
    ) -> tuple[Tensor, Tensor]:
        made = Clipped.apply(x @ weight)
        if bias is not None:
            made = made + bias
        ctx.save_for_backward(x, weight)
        ctx.dims = dims if bias is not None else None
        largest = made.argmax(-1)
        ctx.mark_non_differentiable(largest)
        return made, largest

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        of_x = grad @ weight.T if ctx.needs_input_grad[0] else None
        of_bias = grad.sum(ctx.dims) if ctx.dims is not None else None
        return of_x, torch.einsum("bsi,bso->io", x, grad), of_bias, None, None


class Recurrence(Function):
    """A linear recurrence, whose gradient goes back one step."""

    @staticmethod
    def forward(ctx: Any, kept: Tensor, given: Tensor) -> Tensor:
        state, states = torch.zeros_like(given[:, 0]), []
        for at in range(given.shape[1]):
            state = kept[:, at] * state + given[:, at]
            states.append(state)
        made = torch.stack(states, 1)
        ctx.save_for_backward(made)
        return made

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        (made,) = ctx.saved_tensors
        return grad * F.pad(made[:, :-1], (0, 0, 1, 0)), grad


class Layer(nn.Module):
    """Two products around a part that differs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS), nn.Linear(WORDS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.inside(self.up(self.norm(x))))

    def inside(self, x: Tensor) -> Tensor:
        return F.gelu(x)


class Looked(Layer):
    """Also looks up where a product is largest."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WORDS, WORDS) * 0.1)
        self.bias = nn.Parameter(torch.zeros(WORDS)) if bias else None
        self.table = nn.Embedding(WORDS, WORDS)

    def inside(self, x: Tensor) -> Tensor:
        made, largest = Several.apply(x, self.weight, self.bias, (0, 1), "clipped")
        looked_up: Tensor = made + self.table(largest) * 0.1
        return looked_up


class Recurring(Layer):
    """With a state in time."""

    def inside(self, x: Tensor) -> Tensor:
        made: Tensor = Recurrence.apply(x.sigmoid(), x)
        return made


class Model(nn.Module):
    """Words in, the loss out."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.table, self.layers = nn.Embedding(WORDS, WIDTH), nn.ModuleList(layers)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x)
        loss: Tensor = LinearCrossEntropy.apply(x, self.head.weight, labels, -100)
        return loss


def chunked() -> Model:
    return Model([Layer() for _ in range(4)])


def looked() -> Model:
    return Model([Looked(bias=at % 2 == 0) for at in range(4)])


def recurring() -> Model:
    return Model([Recurring() for _ in range(4)])


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    return {name: torch.randint(0, WORDS, (batch, seq)) for name in ("tokens", "labels")}
