"""Models that people do write and planners trip over, planned by degrees and executed for a whole step: exact."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.backends.torch_.verify.interpreted.step import step_differences
from meshwright.ir.frontends.door import capture
from meshwright.ir.frontends.torch_.sources.factory import Hooks, TorchSource
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names import Degrees, template

WIDTH, FFN = 8, 16


class Base(nn.Module):
    """The parameters that the odd models share."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(WIDTH, FFN), nn.Linear(FFN, WIDTH), nn.LayerNorm(WIDTH)
        self.scale = nn.Parameter(torch.zeros(()))


class TiedInside(Base):
    """One weight, read as it is and transposed: gathered for the forward pass, its view must be let go with it."""

    def forward(self, x: Tensor) -> Tensor:
        twice = F.linear(F.linear(self.norm(x), self.up.weight), self.down.weight)
        return F.linear(F.gelu(self.up(x)), self.up.weight.t()) + twice


class ScalarParameter(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x) * self.scale.exp()) * (1 + self.scale)


class Frozen(Base):
    def __init__(self) -> None:
        super().__init__()
        self.up.weight.requires_grad_(False)
        self.norm.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.up(self.norm(x))))


class GateWithoutGradient(Base):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            gate = torch.sigmoid(self.down(self.up(x)))
        return self.down(self.up(x)) * gate + x * gate.mean()


class Detached(Base):
    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        return self.down(h * h.detach().softmax(-1)) - self.norm(x).detach()


class SizeOne(Base):
    def forward(self, x: Tensor) -> Tensor:
        mean = self.up(x).mean(-1, keepdim=True)
        return self.norm(x) * mean + mean.squeeze(-1).unsqueeze(-1) * self.down.bias


class Unused(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x))


class ReadOften(Base):
    def forward(self, x: Tensor) -> Tensor:
        h = self.down(self.up(x))
        return h + h * h + h.sum(1, keepdim=True)


class ThroughMaximum(Base):
    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        return self.down(h - h.amax(-1, keepdim=True))


class RunningSum(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x)).cumsum(1))


class AcrossTheBatch(Base):
    def forward(self, x: Tensor) -> Tensor:
        rows = self.up(x).flatten(0, 1)
        return self.down((rows @ rows.t()).softmax(-1) @ rows).view_as(x)


class InputPassedThrough(Base):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.down(self.up(x)), x


MODELS: Mapping[str, type[Base]] = {
    made.__name__: made
    for made in (
        TiedInside,
        ScalarParameter,
        Frozen,
        GateWithoutGradient,
        Detached,
        SizeOne,
        Unused,
        ReadOften,
        ThroughMaximum,
        RunningSum,
        AcrossTheBatch,
        InputPassedThrough,
    )
}

DEGREES: Mapping[str, Degrees] = {
    "dp with ZeRO-3": Degrees(dp=2, zero=3),
    "tp": Degrees(tp=2),
    "tp+sp, recomputed": Degrees(tp=2, sequence_parallel=True, recompute="full"),
    "zigzag": Degrees(cp=2, zigzag=True),
    "three axes": Degrees(dp=2, cp=2, tp=2, sequence_parallel=True, zero=2, microbatches=2),
}


@cache
def fold(name: str) -> Fold:
    def inputs(batch: int, seq: int) -> dict[str, Tensor]:
        return {key: torch.zeros(batch, seq, WIDTH, dtype=torch.float64, device="meta") for key in ("x", "y")}

    def loss(outputs: Tensor | tuple[Tensor, ...], batch: Mapping[str, Tensor]) -> Tensor:
        return F.mse_loss(outputs[0] if isinstance(outputs, tuple) else outputs, batch["y"])

    labels = dict.fromkeys(("x", "y"), ("b", "s", ""))
    module = MODELS[name]().to(torch.float64).to("meta")
    return capture(TorchSource(module, Hooks(example_inputs=inputs, loss=loss, dims=labels), name), batch=4, seq=8).fold


@pytest.mark.parametrize("degrees", DEGREES)
@pytest.mark.parametrize("name", MODELS)
def test_an_odd_model_is_exact(name: str, degrees: str) -> None:
    made = fold(name)
    assert step_differences(made, template(made, DEGREES[degrees])) == []
