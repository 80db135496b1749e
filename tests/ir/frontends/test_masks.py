"""Constants evaluated point by point, and the laws of masks, against tensors that are really built."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from meshwright.ir.frontends.folding.masks import MaskLaw, recognise
from meshwright.ir.frontends.folding.terms import NotEvaluable, Term
from meshwright.ir.frontends.torch_.tracing.recorder import Recorder


def term_of(make: Callable[[], Tensor]) -> tuple[Term, Tensor]:
    """A constant twice: as the expression that its construction leaves on the meta device, and as a tensor."""
    holder = torch.nn.Module()
    recorder = Recorder()
    with recorder, torch.device("meta"):
        holder.register_buffer("value", make())
    return recorder.buffers(holder)["value"], make()


def distance(queries: int, keys: int) -> Tensor:
    return torch.arange(queries)[:, None] + (keys - queries) - torch.arange(keys)[None, :]


MASKS: dict[str, tuple[Callable[[], Tensor], MaskLaw | None]] = {
    "full": (lambda: torch.ones(9, 9, dtype=torch.bool), MaskLaw("full")),
    "tril": (lambda: torch.tril(torch.ones(9, 9, dtype=torch.bool)), MaskLaw("causal")),
    "additive": (lambda: torch.triu(torch.full((64, 64), float("-inf")), diagonal=1), MaskLaw("causal")),
    "additive, f16": (lambda: torch.triu(torch.full((64, 64), -65504.0), diagonal=1), MaskLaw("causal")),
    "batched": (lambda: (distance(32, 32) >= 0)[None, None].expand(3, 1, 32, 32), MaskLaw("causal")),
    "last queries": (lambda: distance(4, 32) >= 0, MaskLaw("causal")),
    "window": (lambda: (distance(64, 64) >= 0) & (distance(64, 64) < 7), MaskLaw("window", 7)),
    "window wider than the sequence": (lambda: (distance(8, 8) >= 0) & (distance(8, 8) < 70), MaskLaw("causal")),
    "band": (lambda: distance(64, 64).abs() < 5, MaskLaw("band", 5)),
    "chunk": (
        lambda: (torch.arange(64)[:, None] // 16 == torch.arange(64)[None] // 16) & (distance(64, 64) >= 0),
        MaskLaw("chunk", 16),
    ),
    "ragged chunk": (
        lambda: (torch.arange(40)[:, None] // 16 == torch.arange(40)[None] // 16) & (distance(40, 40) >= 0),
        MaskLaw("chunk", 16),
    ),
    "strictly causal": (lambda: distance(16, 16) > 0, None),
    "dilated": (lambda: (distance(32, 32) >= 0) & (distance(32, 32) % 2 == 0), None),
    "prefix": (lambda: (distance(64, 64) >= 0) | (torch.arange(64) < 10)[None], None),
    "one head differs": (lambda: distance(16, 16)[None] >= torch.arange(2)[:, None, None] * -1, None),
    "bias": (lambda: -distance(16, 16).abs().float(), None),
}


@pytest.mark.parametrize("name", MASKS)
def test_law_of_a_mask(name: str) -> None:
    make, law = MASKS[name]
    term, tensor = term_of(make)
    assert term.shape == tuple(tensor.shape)
    assert recognise(term) == law


def test_law_costs_nothing_at_any_length() -> None:
    """A mask of 2^40 elements, of which a few rows are looked at."""
    recorder, holder = Recorder(), torch.nn.Module()
    with recorder, torch.device("meta"):
        holder.register_buffer("mask", (distance(2**20, 2**20) >= 0) & (distance(2**20, 2**20) < 4096))
    assert recognise(recorder.buffers(holder)["mask"]) == MaskLaw("window", 4096)


CONSTANTS: dict[str, Callable[[], Tensor]] = {
    "rope": lambda: torch.cat(
        (torch.outer(torch.arange(8).float(), 10.0 ** (-torch.arange(4).float() / 4)),) * 2, -1
    ).cos(),
    "view": lambda: torch.arange(24).view(2, 3, 4).permute(2, 0, 1).reshape(4, 6).unsqueeze(1),
    "slice": lambda: torch.arange(40).view(5, 8)[1:4, ::2].transpose(0, 1)[1],
    "negative slice": lambda: torch.arange(40).view(5, 8)[-3:, -2:],
    "cumsum": lambda: (torch.arange(24).view(2, 3, 4) % 3 == 0).cumsum(1),
    "cumsum of a row": lambda: torch.arange(12).cumsum(0)[3:7],
    "diff": lambda: torch.diff(torch.arange(12) ** 2),
    "diff after": lambda: torch.diff(torch.arange(12).view(2, 6), prepend=torch.full((2, 1), -1)),
    "gather": lambda: torch.arange(20).view(4, 5)[torch.arange(4)[:, None], torch.arange(3)[None]],
    "where": lambda: torch.where(torch.arange(9) < 4, torch.arange(9) * 2, -torch.arange(9)),
    "division": lambda: (
        torch.div(torch.arange(9), 2, rounding_mode="floor") + torch.arange(9) // 4 - torch.arange(9) % 3
    ),
    "buckets": lambda: (torch.log(torch.arange(1, 33).float() / 8) / 2.77 * 8).to(torch.int64),
    "logic": lambda: ~((torch.arange(9) > 2) & (torch.arange(9) < 7)) | (torch.arange(9) == 4),
    "scaled": lambda: torch.add(torch.arange(5).float(), torch.ones(5), alpha=3) - torch.full((5,), 0.5),
    "triangle": lambda: (
        torch.triu(torch.arange(20).view(4, 5), 1) + torch.tril(torch.ones(4, 5, dtype=torch.int64), -1)
    ),
    "masked": lambda: torch.zeros(3, 4).masked_fill(torch.eye(3, 4).bool(), 7.0),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_points_are_those_of_the_tensor(name: str) -> None:
    term, tensor = term_of(CONSTANTS[name])
    index = tuple(np.ogrid[tuple(slice(size) for size in term.shape)])
    found = torch.as_tensor(np.broadcast_to(term.at(index), term.shape).copy())
    torch.testing.assert_close(found.to(torch.float64), tensor.to(torch.float64))


def test_what_is_unknown_is_refused() -> None:
    """A parameter-like tensor has no law, nor has anything computed from it."""
    recorder, holder = Recorder(), torch.nn.Module()
    with recorder, torch.device("meta"):
        holder.register_buffer("drawn", torch.rand(4, 4) < 0.5)
        holder.register_buffer("known", torch.ones(4, 4))
    assert list(recorder.buffers(holder)) == ["known"]
    assert recognise(Term("", (4, 4), "bool")) is None
    with pytest.raises(NotEvaluable):
        Term("erfinv", (4,), "f32", (Term("arange", (4,), "i64", (4,)),)).at((np.arange(4),))
