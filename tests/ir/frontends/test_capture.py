"""How often a model is traced: once where it does not run, and again where it does not with fewer blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from meshwright.ir.analysis.account import parameters
from meshwright.ir.errors import DataDependentControlFlow, ForwardRaised, MeshwrightError
from meshwright.ir.frontends.door import capture
from meshwright.ir.frontends.torch_.sources.factory import Hooks, TorchSource
from meshwright.ir.frontends.torch_.sources.hf_config import adopted
from meshwright.ir.frontends.torch_.tracing import export as torch_export

DEPTH = 6


class Net(nn.Module):
    """A stack of equal blocks, which a function runs."""

    def __init__(self, run: Callable[[nn.ModuleList, Tensor], Tensor]) -> None:
        super().__init__()
        self.layers, self.run = nn.ModuleList([nn.Linear(4, 4) for _ in range(DEPTH)]), run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.layers, x).sum()


def in_turn(layers: nn.ModuleList, x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def source_of(run: Callable[[nn.ModuleList, Tensor], Tensor]) -> TorchSource:
    with torch.device("meta"):
        return TorchSource(Net(run), Hooks(lambda batch, seq: {"x": torch.empty(batch, 4)}), "net")


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    found: list[object] = []
    export = torch_export._export

    def counted(*given: Any) -> Any:
        found.append(given)
        return export(*given)

    monkeypatch.setattr(torch_export, "_export", counted)
    return found


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        (lambda layers, x: in_turn(layers, x) @ x, ForwardRaised),
        (lambda layers, x: in_turn(layers, x) if x.sum() > 0 else x, DataDependentControlFlow),
        (
            lambda layers, x: in_turn(layers, x) * x.sum().long().item(),
            DataDependentControlFlow,
        ),  # a trace gets further
    ],
)
def test_what_does_not_run_is_exported_once(
    exports: list[object], run: Callable[[nn.ModuleList, Tensor], Tensor], kind: type[MeshwrightError]
) -> None:
    """And refused as at full depth."""
    source = source_of(run)
    with pytest.raises(kind) as refused:
        capture(source, batch=2, seq=8)
    assert len(exports) == 1
    with pytest.raises(kind) as whole:
        torch_export.trace(source, {"x": torch.empty(2, 4, device="meta")})
    assert (refused.value.place, refused.value.cause) == (whole.value.place, whole.value.cause)


def test_what_does_not_run_with_fewer_blocks_is_traced_with_more(exports: list[object]) -> None:
    found = capture(source_of(lambda layers, x: in_turn(layers, x) + layers[DEPTH - 1](x)), batch=2, seq=8)
    assert len(exports) > 1
    assert found.parameters == DEPTH * 20
    assert any("cannot run with fewer blocks" in note for note in found.notes)


def from_elsewhere(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """Makes tensors without a device, as code does that runs on one."""
    order = torch.arange(x.shape[1]).flip(0)
    return in_turn(layers, x[:, order] * torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.from_numpy(np.ones(4, "f4")))


def test_what_is_made_without_a_device_is_where_the_model_is() -> None:
    made = capture(source_of(from_elsewhere), batch=2, seq=4)
    assert made.parameters == DEPTH * (4 * 4 + 4)
    assert not made.notes


def test_what_runs_is_exported_once(exports: list[object]) -> None:
    assert not capture(source_of(in_turn), batch=2, seq=8).notes
    assert len(exports) == 1


def test_no_part_of_a_model_of_several_keeps_a_cache() -> None:
    """A cache has an entry per layer, by the layer's own number: with one, a model does not run with fewer blocks."""
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    with torch.device("meta"):
        small = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": DEPTH}
        config = LlavaConfig(
            text_config={"model_type": "llama", **small}, vision_config={"model_type": "clip_vision_model"}
        )
        module = LlavaForConditionalGeneration(config)
    assert config.text_config.use_cache is True
    source = adopted(TorchSource(module, Hooks(), "llava"))
    assert config.text_config.use_cache is False
    assert not any("fewer blocks" in note for note in capture(source, batch=2, seq=8).notes)


class Still(nn.Module):
    """Parameters that the loss reads in ways that give some of them no gradient, and one that it does not read."""

    def __init__(self) -> None:
        super().__init__()
        named = ("score", "best", "detached", "apart", "both", "plain")
        self.parts = nn.ModuleDict({name: nn.Linear(4, 4, bias=False) for name in named})
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.unread, self.table = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = {name: part(x) for name, part in self.parts.items()}
        with torch.no_grad():
            apart = self.parts["apart"](x) * self.parts["both"](x)
        chosen = self.table[y["score"].argmax(-1)].sum() + (y["best"].topk(2).indices == 1).float().sum()
        return chosen + (y["detached"].detach() * self.frozen * apart * y["both"] * y["plain"]).sum()


def test_what_no_gradient_of_the_loss_comes_to_is_not_trained() -> None:
    with torch.device("meta"):
        source = TorchSource(Still(), Hooks(lambda batch, seq: {"x": torch.empty(batch, 4)}), "still")
    found = capture(source, batch=2, seq=8)
    trained = {path for path, (param, _) in parameters(found.fold).items() if param.requires_grad}
    assert trained == {"parts.both.weight", "parts.plain.weight", "table"}
    assert found.notes == ("no gradient of the loss comes to parts.apart.weight and 4 more: not trained",)
    source.module(torch.ones(2, 4, device="meta")).backward()
    assert trained == {name for name, one in source.module.named_parameters() if one.grad is not None}
