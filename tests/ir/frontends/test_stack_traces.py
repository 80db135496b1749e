"""Short stack traces tell of every operator the line that torch's own tell."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
import torch.fx.proxy
from torch import Tensor, nn

from meshwright.ir.frontends.door import load_model
from meshwright.ir.frontends.torch_.sources.factory import Hooks, TorchSource
from meshwright.ir.frontends.torch_.tracing import stack_traces
from meshwright.ir.frontends.torch_.tracing.export import trace

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


class Net(nn.Module):
    """Calls on one line and on several, in helpers, in a library, and in a region without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4))

    def helper(self, x: Tensor) -> Tensor:
        return torch.softmax(
            x * 2,
            dim=-1,
        )

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = (x * x).mean()
        return (self.helper(self.layers(x)) * scale).sum()


def sources(source: TorchSource, batch: dict[str, Tensor]) -> list[tuple[str, str]]:
    return [(op.kind, op.source) for op in trace(source, batch).graph.ops]


def test_every_operator_has_the_line_that_torch_itself_would_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.device("meta"):
        nets = [(TorchSource(Net(), Hooks(), "net"), {"x": torch.empty(2, 4)})]
        configured = load_model(str(EXAMPLES / "configs" / "gpt2"))
        configured.module.config.num_hidden_layers = 1
        del configured.module.transformer.h[1:]
        assert configured.hooks.example_inputs is not None
        nets.append((configured, configured.hooks.example_inputs(1, 8)))
    for source, batch in nets:
        found = sources(source, batch)
        with monkeypatch.context() as patched:
            patched.setattr(stack_traces, "short", contextlib.nullcontext)
            assert sources(source, batch) == found
        assert sum(bool(line) for _, line in found) > len(found) / 2


def test_torch_has_its_own_again_afterwards() -> None:
    before = torch.fx.proxy.CapturedTraceback
    with contextlib.suppress(KeyError), stack_traces.short():
        assert torch.fx.proxy.CapturedTraceback is not before
        raise KeyError
    assert torch.fx.proxy.CapturedTraceback is before
