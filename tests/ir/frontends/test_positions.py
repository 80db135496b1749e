"""Sequences that are longer than a model has positions for: the refusal names the limit, however the model meets it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from meshwright.ir.errors import ForwardRaised, SequenceTooLong
from meshwright.ir.frontends.door import capture
from meshwright.ir.frontends.torch_.sources.factory import TorchSource, source_of

POSITIONS, WIDTH = 24, 8


class Positioned(nn.Module):
    """Tokens and positions."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.runs = way, 0
        self.tokens, self.positions = nn.Embedding(50, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.blocks = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8)))
        self.head = nn.Linear(WIDTH, 50)
        self.register_buffer("numbers", torch.arange(POSITIONS), persistent=False)
        self.numbers: Tensor

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        if self.way == "counted":
            found = self.positions(torch.arange(length, device=tokens.device))
        elif self.way == "buffer":
            found = self.positions(self.numbers[:length])
        elif self.way == "expanded":
            found = self.positions(self.numbers[:length].expand(length))
        else:
            found = self.positions.weight[:length]
        self.runs += 1
        if self.way == "broken" or (self.way == "untraced" and get_proxy_mode() is not None):
            raise RuntimeError("not with any sequence")
        return torch.as_tensor(self.head(self.blocks(self.tokens(tokens) + found)).mean())


def source(way: str) -> TorchSource:
    with torch.device("meta"):
        model = Positioned(way)

    def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
        return {"tokens": torch.zeros(batch, seq, dtype=torch.long)}

    return source_of(model, place="positioned.py", beside={"example_inputs": example_inputs})


@pytest.mark.parametrize("way", ["counted", "buffer", "expanded", "table"])
def test_the_limit_is_named(way: str) -> None:
    capture(source(way), batch=2, seq=POSITIONS)
    with pytest.raises(SequenceTooLong, match=rf"{POSITIONS} tokens at most"):
        capture(source(way), batch=2, seq=2 * POSITIONS)


def test_a_model_that_never_runs_says_what_it_raised() -> None:
    with pytest.raises(ForwardRaised, match="not with any sequence"):
        capture(source("broken"), batch=2, seq=2 * POSITIONS)


def test_a_model_that_runs_and_is_not_traced_is_not_tried_at_other_lengths_or_depths() -> None:
    """Beside the trace, which leaves no counts, one run of the shortened model, and one of the whole one."""
    given = source("untraced")
    with pytest.raises(ForwardRaised, match="not with any sequence"):
        capture(given, batch=2, seq=POSITIONS)
    assert given.module.runs == 2
