"""What is counted of the tensors that a step makes, and what is not; sizes by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention import bias

from meshwright.backends.torch_.verify.run.memory import Peak, make_masks_unwatched

BYTES = 400
"""Of `x`, a hundred numbers in fp32."""


def made(x: Tensor) -> Tensor:
    return x + 1


def grown(x: Tensor) -> Tensor:
    """Its storage is resized, which no operator says; one that writes into it runs after that."""
    x.untyped_storage().resize_(3 * BYTES)
    return x.add_(1)


PEAKS: dict[str, tuple[Callable[[Tensor], object], int]] = {
    "a result": (made, 2 * BYTES),
    "a result of a result": (lambda x: made(made(x)), 3 * BYTES),
    "results that go one after the other": (lambda x: [made(x).sum().item() for _ in range(2)], 2 * BYTES + 4),
    "a view": (lambda x: x.view(10, 10)[2:].t(), BYTES),
    "a view of a result": (lambda x: made(x).view(10, 10), 2 * BYTES),
    "two results": (lambda x: x.topk(5), BYTES + 5 * (4 + 8)),
    "a list of results": (lambda x: torch._foreach_add([x, x], 1.0), 3 * BYTES),
    "a list of views": (lambda x: x.split(50), BYTES),
    "what is written in place": (lambda x: x.add_(1), BYTES),
    "a storage that was resized": (grown, 3 * BYTES),
    "a number": (lambda x: x.sum().item(), BYTES + 4),
    "what has no memory": (lambda x: torch.empty(1000, device="meta"), BYTES),
    "a sparse one": (lambda x: x[:1].to_sparse(), BYTES),
    "a wider one": (lambda x: x.double(), 3 * BYTES),
}


@pytest.mark.parametrize("what", PEAKS)
def test_the_fullest_instant(what: str) -> None:
    run, expected = PEAKS[what]
    x, peak = torch.ones(BYTES // 4), Peak()
    peak.begin([x])
    assert peak.most == peak.now() == BYTES
    with peak:
        run(x)
    assert peak.most == expected


FIRST = torch.zeros(1, dtype=torch.long)
PUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "gather": lambda x: x.gather(0, FIRST),
    "max": lambda x: x.max(0).values,
    "topk": lambda x: x.topk(1).values,
    "index_select": lambda x: x.index_select(0, FIRST),
    "take": lambda x: x.take(FIRST),
    "index": lambda x: x[FIRST],
}


@pytest.mark.parametrize("what", PUTS)
def test_what_is_put_into_zeros_of_a_derivative_lies_there(what: str) -> None:
    """As without a watch, where torch writes in place: one gradient, and none beside it. A few bytes are indices."""
    x, peak = torch.ones(BYTES // 4, requires_grad=True), Peak()
    peak.begin([x])
    with peak:
        PUTS[what](x).sum().backward()
    assert 2 * BYTES <= peak.most <= 2 * BYTES + 32


def test_what_is_put_into_zeros_elsewhere_is_another_tensor() -> None:
    peak = Peak()
    with peak:
        torch.zeros(BYTES // 4).scatter_add(0, FIRST, torch.ones(1))
    assert peak.most == 2 * BYTES + 4


def test_a_step_begins_with_what_is_left_and_given() -> None:
    """What went in between is forgotten, and a storage is counted once."""
    x, peak = torch.ones(BYTES // 4), Peak()
    with peak:
        kept, gone = made(x), made(x)
    assert peak.most == 2 * BYTES
    del gone
    peak.begin([x, x.view(10, 10)])
    assert peak.most == peak.now() == 2 * BYTES
    del kept
    peak.begin([])
    assert peak.most == BYTES
    del x
    assert peak.now() == 0


class Away:
    """A tensor that waits in the host's memory."""

    def __init__(self, tensor: Tensor, kept: list[Tensor]) -> None:
        self.tensor = tensor.clone()
        kept.append(self.tensor)


def test_what_waits_on_the_host_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Away, "__init__", Away.__init__)  # as it was, afterwards
    x, kept, peak = torch.ones(BYTES // 4), list[Tensor](), Peak()
    peak.begin([x])
    peak.leave_out(Away)
    with peak:
        waiting = Away(x, kept)
        assert peak.now() == BYTES
        made(x)
    assert torch.equal(waiting.tensor, x)
    assert kept[0] is waiting.tensor
    assert peak.most == 2 * BYTES


def test_backward_passes_are_watched_too() -> None:
    """Forward a product of four; backward gradients of it and of both factors, of which one is kept by the leaf."""
    line, x, peak = nn.Linear(4, 1, bias=False), torch.ones(1, 4), Peak()
    peak.begin([x, line.weight])
    assert peak.most == 32
    with peak:
        line(x).sum().backward()
    assert line.weight.grad is not None
    assert peak.now() == 32 + 16
    assert peak.most >= 32 + 16


def test_masks_are_made_while_somebody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bias, "causal_lower_right", bias.causal_lower_right)  # as it was, afterwards
    make_masks_unwatched()
    peak = Peak()
    with peak:
        mask = bias.causal_lower_right(2, 3)
    assert isinstance(mask, bias.CausalBias)
    assert (mask.seq_len_q, mask.seq_len_kv, peak.most) == (2, 3, 0)


class Recounted(Peak):
    """Sums everything anew after every operator."""

    def after(self, func: Any, made: Any) -> None:
        super().after(func, made)
        self.most = max(self.most, self.now())


STEPS: dict[str, Callable[[list[Tensor]], object]] = {
    "make": lambda held: held.append(held[-1] + 1),
    "several": lambda held: held.extend(held[-1].flatten().topk(3)),
    "view": lambda held: held.append(held[0].view(10, 10)[1:]),
    "write": lambda held: held[-1].add_(1),
    "drop": lambda held: held.pop() if len(held) > 1 else None,
    "grow": lambda held: grown(held[0]),
    "many": lambda held: held.extend(torch._foreach_mul(held[-2:], 2)),
    "write many": lambda held: torch._foreach_mul_(held[-2:], 2),
}


@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=12))
def test_a_sum_kept_is_a_sum_made_anew(steps: list[str]) -> None:
    def most(peak: Peak) -> int:
        held = [torch.ones(BYTES // 4)]
        peak.begin(held)
        with peak:
            for step in steps:
                STEPS[step](held)
        return peak.most

    assert most(Peak()) == most(Recounted())
