"""Models that treat blocks by their place are traced whole; others through a few blocks, whatever they hand on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.ir.analysis.account import parameters
from meshwright.ir.frontends.door import capture
from meshwright.ir.frontends.torch_.sources.factory import Hooks, TorchSource

DEPTH, WIDTH = 9, 4
SAYS = "the model treats blocks by their place"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, late: Tensor | None = None, place: int = 0) -> tuple[Tensor, Tensor | None]:
        """What is added late is handed on, as a bias of positions is that the first block makes."""
        made = x + F.silu(self.up(self.norm(x)))
        return made if late is None else made + late, late


class Net(nn.Module):
    def __init__(self, run: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.blocks, self.run = nn.ModuleList(Block() for _ in range(DEPTH)), run
        self.late, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last = {DEPTH - 1}

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x).sum()


def in_turn(net: Net, x: Tensor) -> Tensor:
    for block in net.blocks:
        x, _ = block(x)
    return x


def numbered(net: Net, x: Tensor) -> Tensor:
    for place, block in enumerate(net.blocks):
        x, _ = block(x, None, place)
    return x


def handed_on(net: Net, x: Tensor) -> Tensor:
    late = net.late(x)
    for block in net.blocks:
        x, late = block(x, late)
    return x


def to_the_last(net: Net, x: Tensor) -> Tensor:
    late = net.late(x)
    for place, block in enumerate(net.blocks):
        x, _ = block(x, late if place in net.last else None)
    return x


def by_turns(net: Net, x: Tensor) -> Tensor:
    """Two tensors of one shape; which one a block is given, its place says."""
    both = net.late(x), net.other(x)
    for place, block in enumerate(net.blocks):
        x, _ = block(x, both[place % 3 // 2])
    return x


def long(net: Net, x: Tensor) -> Tensor:
    """A block is given one row more than the one before."""
    for block in net.blocks:
        x = F.pad(x, (0, 0, 0, 1))
        x, _ = block(x)
    return x


def between(net: Net, x: Tensor) -> Tensor:
    for place, block in enumerate(net.blocks):
        x, _ = block(x)
        x = net.late(x) if place == DEPTH // 2 else x
    return x


def every_third(net: Net, x: Tensor) -> Tensor:
    for place, block in enumerate(net.blocks):
        x, _ = block(x)
        x = F.normalize(x, dim=-1) if place % 3 == 2 else x
    return x


def kept(net: Net, x: Tensor) -> Tensor:
    """What blocks in the middle make, for a head of several scales."""
    found = []
    for place, block in enumerate(net.blocks):
        x, _ = block(x)
        found += [x] if place in (2, 5, DEPTH - 1) else []
    return torch.stack(found)


def halved(net: Net, x: Tensor) -> Tensor:
    """From the middle on, by a number."""
    for place, block in enumerate(net.blocks):
        x = block(x)[0] * (0.5 if place > DEPTH // 2 else 1.0)
    return x


BY_PLACE = (to_the_last, by_turns, long, between, every_third, kept, halved)


@pytest.mark.parametrize("run", [in_turn, numbered, handed_on])
def test_blocks_that_are_treated_alike_stand_for_each_other(run: Callable[[Net, Tensor], Tensor]) -> None:
    found = capture(source_of(run), batch=2, seq=1)
    assert any(stack.shortened for stack in found.stacks)
    assert not any(SAYS in note for note in found.notes)


@pytest.mark.parametrize("run", BY_PLACE)
def test_blocks_that_are_treated_by_their_place_are_all_traced(run: Callable[[Net, Tensor], Tensor]) -> None:
    """Some of them are found out as they are folded."""
    found = capture(source_of(run), batch=2, seq=1)
    assert any("tracing at full depth" in note for note in found.notes)
    assert any(SAYS in note for note in found.notes) == (run not in (by_turns, long))
    assert not any(stack.shortened for stack in found.stacks)
    trained = {path for path, (param, _) in parameters(found.fold).items() if param.requires_grad}
    assert trained == reached_by_gradients(run)


def reached_by_gradients(run: Callable[[Net, Tensor], Tensor]) -> set[str]:
    net = Net(run)
    net(torch.randn(2, WIDTH)).backward()
    return {name for name, one in net.named_parameters() if one.grad is not None}


def source_of(run: Callable[[Net, Tensor], Tensor]) -> TorchSource:
    with torch.device("meta"):
        return TorchSource(Net(run), Hooks(lambda batch, seq: {"x": torch.empty(batch, WIDTH)}), "net")
