"""Input dimensions are named by how they grow, where the model's file does not say."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from meshwright.ir.frontends.capture import capture
from meshwright.ir.frontends.module import load_module


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.out = nn.Linear(8, 4)

    def forward(self, tokens: Tensor, style: Tensor) -> Tensor:
        return self.out(self.embed(tokens) + style[:, None])


def inputs(batch: int, seq: int) -> dict[str, Tensor]:
    return {
        "tokens": torch.zeros(batch, seq, dtype=torch.long),
        "style": torch.zeros(batch, 8),
        "labels": torch.zeros(batch, seq, dtype=torch.long),
    }


def loss(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, 1), batch["labels"].flatten())


def labels_of(example_inputs: Any, **hooks: Any) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    source = load_module(Tagger(), example_inputs=example_inputs, loss=loss, **hooks)
    captured = capture(source, batch=3, seq=5)
    return {item.value: item.labels for item, _ in captured.fold.inputs}, captured.notes


def test_dimensions_that_grow_are_named() -> None:
    labels, notes = labels_of(inputs)
    assert labels == {"tokens": ("b", "s"), "style": ("b", ""), "labels": ("b", "s")}
    assert not notes


def test_what_the_file_says_stands() -> None:
    labels, _ = labels_of(inputs, dims={"tokens": ("rows", "s")})
    assert labels == {"tokens": ("rows", "s"), "style": ("b", ""), "labels": ("b", "s")}


def test_a_hook_of_one_size_leaves_no_names_and_a_note() -> None:
    def fixed(batch: int, seq: int) -> dict[str, Tensor]:
        if seq != 5:
            raise ValueError("the sequence is always 5")
        return inputs(batch, seq)

    labels, notes = labels_of(fixed)
    assert labels == {"tokens": ("b", ""), "style": ("b", ""), "labels": ("b", "")}
    assert len(notes) == 1
    assert "the sequence is always 5" in notes[0]
