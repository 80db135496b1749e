"""Sizes of batches that nobody asks for are found, and cut by functions and by code alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from meshwright.ir.frontends.torch_.small.batch_sizes import code_of, cut, fixed_sizes, smaller
from meshwright.ir.frontends.torch_.sources.factory import Hooks, TorchSource


def images(batch: int, seq: int) -> dict[str, Any]:
    """Images, sound beside tokens, labels, what grows with both, and what is no tensor."""
    return {
        "images": torch.arange(batch * 3 * 8 * 6.0).view(batch, 3, 8, 6),
        "sound": torch.zeros(batch, 12, seq),
        "labels": torch.zeros(batch, dtype=torch.long),
        "pairs": torch.zeros(batch, seq * batch),
        "scale": 2.0,
    }


def source(make: Any) -> TorchSource:
    return TorchSource(nn.Linear(2, 2), Hooks(make), "here")


FIXED = {"images": {1: 3, 2: 8, 3: 6}, "sound": {1: 12}, "labels": {}, "pairs": {}}


def test_what_follows_neither_samples_nor_tokens_is_fixed() -> None:
    assert fixed_sizes(source(images), 2, 4) == FIXED


def only_two(batch: int, seq: int) -> dict[str, Tensor]:
    if batch != 2:
        raise ValueError("two, please")
    return {"x": torch.zeros(batch, 8)}


def by_length(batch: int, seq: int) -> dict[str, Tensor]:
    return {"x": torch.zeros(batch, *(8,) * seq), "y" if seq == 1 else "z": torch.zeros(batch, 8)}


def test_batches_of_another_form_have_no_fixed_sizes() -> None:
    for make in (None, only_two, lambda batch, seq: torch.zeros(batch, 8), lambda batch, seq: (torch.zeros(batch, 8),)):
        assert fixed_sizes(source(make), 2, 4) == {}
    assert fixed_sizes(source(by_length), 2, 1) == {"x": {1: 8}, "y": {}}


def test_entries_are_cut_by_the_function_and_by_the_code() -> None:
    sizes = smaller({**FIXED, "images": {1: 3, 2: 4, 3: 6}, "sound": {1: 6}}, FIXED)
    assert sizes == {"images": {2: 4}, "sound": {1: 6}}
    scope: dict[str, Any] = {"Tensor": Tensor, "whole": images}
    exec(code_of(sizes, "whole"), scope)  # noqa: S102
    for make in (cut(images, sizes), scope["example_inputs"]):
        made, whole = make(2, 4), images(2, 4)
        assert list(made) == list(whole)
        assert made["images"].equal(whole["images"][:, :, :4])
        assert made["images"].is_contiguous()
        assert made["sound"].shape == (2, 6, 4)
        assert made["scale"] == 2.0


def test_nothing_is_cut_to_more_than_there_is() -> None:
    with pytest.raises(RuntimeError):
        cut(images, {"sound": {1: 13}})(2, 4)
    pair = torch.zeros(2), torch.zeros(2)
    assert cut(lambda batch, seq: pair, {})(2, 4) is pair
