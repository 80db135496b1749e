"""Input dimensions are named by how they grow, where the model's file does not say."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from meshwright.ir.frontends.door import capture, load_object
from meshwright.ir.frontends.torch_.sources.factory import example_batch
from meshwright.ir.frontends.torch_.sources.labels import labelled


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
    source = load_object(Tagger(), example_inputs=example_inputs, loss=loss, **hooks)
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


def labelled_dims(make: Any, **hooks: Any) -> tuple[Any, tuple[str, ...]]:
    """Of three sequences of five; labels are in no input of the model, and are named as well."""
    source = load_object(Tagger(), example_inputs=make, loss=loss, **hooks)
    found, notes = labelled(source, example_batch(source, 3, 5), batch=3, seq=5)
    return dict(found.hooks.dims), notes


def test_a_dimension_has_a_name_only_if_it_doubles_where_it_was() -> None:
    """One that is one longer, or three times as long, has none; nor has an entry that is of another rank by then, or
    that is not there; one that doubles with both is called after the sequence."""

    def made(batch: int, seq: int) -> dict[str, Any]:
        found = {
            "tokens": torch.zeros(batch, seq, dtype=torch.long),
            "more": torch.zeros(batch + 1, seq * seq, batch * seq),
            "flat": torch.zeros(batch, seq) if (batch, seq) == (3, 5) else torch.zeros(2 * batch),
            "number": 4,
        }
        return found if seq == 5 else {**found, "late": torch.zeros(seq)}

    dims, notes = labelled_dims(made)
    assert dims == {"tokens": ("b", "s"), "more": ("", "", "s"), "flat": ("", "")}
    assert notes == ()


def test_who_names_all_dimensions_is_not_asked_again() -> None:
    asked: list[tuple[int, int]] = []

    def made(batch: int, seq: int) -> dict[str, Tensor]:
        asked.append((batch, seq))
        return inputs(batch, seq)

    own = {"tokens": ("r", "t"), "style": ("r", ""), "labels": ("r", "t")}
    assert labelled_dims(made, dims=own) == (own, ())
    assert asked == [(3, 5)]
    dims, _ = labelled_dims(made, dims={"style": ("r", "")})
    assert dims == {"tokens": ("b", "s"), "style": ("r", ""), "labels": ("b", "s")}
    assert asked[1:] == [(3, 5), (6, 5), (3, 10)]


def test_either_size_may_be_refused() -> None:
    def made(batch: int, seq: int) -> dict[str, Tensor]:
        if batch != 3:
            raise ValueError("three")
        return inputs(batch, seq)

    dims, notes = labelled_dims(made)
    assert dims == {"tokens": ("", "s"), "style": ("", ""), "labels": ("", "s")}
    assert notes == ("no dimension is labelled 'b': example_inputs takes no other size (ValueError: three)",)
