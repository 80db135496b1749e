"""What is remembered of how a buffer came about: expressions of constants alone, as they were written last."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
import torch
from torch import Tensor, nn

from meshwright.ir.frontends.torch_.tracing.recorder import Recorder


def overwritten(change: Callable[[Tensor], object]) -> Callable[[], Tensor]:
    def make() -> Tensor:
        made = torch.arange(4.0)
        change(made)
        return made

    return make


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (lambda: torch.arange(4.0) + 1, [1, 2, 3, 4]),
        (lambda: torch.add(torch.arange(4.0), torch.ones(4), alpha=3), [3, 4, 5, 6]),
        (overwritten(lambda made: made.add_(1)), [1, 2, 3, 4]),
        (overwritten(lambda made: made.erfinv_()), None),
        (overwritten(lambda made: made.add_(torch.rand(4))), None),
        (lambda: torch.arange(4.0).erfinv(), None),
        (lambda: torch.arange(4.0).erfinv() + 1, None),
        (lambda: torch.ones(4, dtype=torch.complex32), None),
        (lambda: torch.ones(4, dtype=torch.complex64).abs(), [1, 1, 1, 1]),
        (lambda: torch.cat([torch.zeros(2), torch.ones(2)]), [0, 0, 1, 1]),
        (lambda: torch.cat([torch.zeros(2), torch.rand(2)]), None),
        (lambda: torch.full((4,), 7.0).split(2)[0], None),
    ],
)
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_what_is_known_of_a_buffer(make: Callable[[], Tensor], values: list[float] | None) -> None:
    """Nothing where something random, of another dtype than ours or without a law is among what it is made of."""
    holder, recorder = nn.Module(), Recorder()
    with recorder, torch.device("meta"):
        holder.register_buffer("made", make())
        holder.register_buffer("plain", torch.zeros(2))
    found = dict(recorder.buffers(holder))
    assert found.pop("plain").shape == (2,)
    if values is None:
        assert found == {}
    else:
        held = found["made"]
        assert held.shape == (4,)
        assert numpy.broadcast_to(held.at((numpy.arange(4),)), (4,)).tolist() == values


def written_in() -> Tensor:
    made = torch.zeros(4)
    made[1:].add_(1)
    return made


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (lambda: torch.linspace(0, 3, 4), [0, 1, 2, 3]),
        (lambda: torch.round(torch.log2(2 ** torch.arange(4) + 0.1)).int(), [0, 1, 2, 3]),
        (lambda: torch.stack(torch.arange(4.0).unbind()).flip(0), [3, 2, 1, 0]),
        (lambda: torch.arange(4.0).to("meta"), [0, 1, 2, 3]),
        (lambda: torch.tensor([0, 1, 2, 3]).int(), [0, 1, 2, 3]),
        (lambda: torch.rand(4), None),
        (lambda: torch.empty(4) * 0, None),
        (written_in, None),
    ],
)
def test_what_a_factory_asks_the_values_of(make: Callable[[], Tensor], values: list[float] | None) -> None:
    """They are those of any device; nothing is told where something is random, unset or written in."""
    with Recorder(), torch.device("meta"):
        made = make()
        if values is None:
            with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
                made.tolist()
            with pytest.raises(RuntimeError, match="meta"):
                made[1].item()
        else:
            assert made.tolist() == values
            assert [one.item() for one in made] == values
            assert made.cpu().device.type == "cpu"
            assert made.is_meta
