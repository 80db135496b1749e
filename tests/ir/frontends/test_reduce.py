"""Which blocks are alike, which of them are walked, and that a reduced model is whole again afterwards."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from meshwright.ir.frontends.reduce import find_stacks, reduced, short_walk


class Block(nn.Module):
    def __init__(self, width: int = 4, index: int = 0, window: int | None = None, bias: bool = True) -> None:
        super().__init__()
        self.layer_idx = index
        self.window = window
        self.linear = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(x)


class Model(nn.Module):
    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.n_layers = len(blocks)
        self.kinds = [str(i) for i in range(len(blocks))]
        self.blocks = nn.ModuleList(blocks)


def classes(blocks: list[nn.Module]) -> tuple[int, ...]:
    (stack,) = find_stacks(Model(blocks))
    return stack.classes


def test_an_index_does_not_tell_blocks_apart() -> None:
    assert classes([Block(index=i) for i in range(5)]) == (0,) * 5


@pytest.mark.parametrize(
    ("name", "odd"),
    [
        ("an attribute", Block(index=2, window=3)),
        ("a parameter's shape", nn.Sequential()),
        ("a missing bias", Block(bias=False)),
        ("a frozen parameter", Block().requires_grad_(False)),
        ("a dtype", Block().double()),
        ("an index out of step", Block(index=17)),
    ],
)
def test_one_altered_block_stays_apart(name: str, odd: nn.Module) -> None:
    blocks: list[nn.Module] = [Block(index=i) for i in range(6)]
    blocks[2] = odd
    found = classes(blocks)
    assert len(set(found)) > 1, name
    assert found.count(found[2]) == 1


def test_tied_parameters_tell_blocks_apart() -> None:
    tied = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    tied["b"].weight = tied["a"].weight
    apart = [nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}) for _ in range(2)]
    assert classes([apart[0], tied, apart[1]]) == (0, 1, 0)


def test_lists_inside_repeated_blocks_are_left_alone() -> None:
    experts = [nn.ModuleList(Block() for _ in range(4)) for _ in range(3)]
    assert [stack.path for stack in find_stacks(Model([nn.Sequential(e) for e in experts]))] == ["blocks"]


def test_lists_inside_unlike_blocks_are_found() -> None:
    stages = [nn.Sequential(*(Block(width) for _ in range(4))) for width in (4, 8)]
    assert [stack.path for stack in find_stacks(Model(list(stages)))] == ["blocks.0", "blocks.1"]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_a_walk_takes_every_step(path: list[int]) -> None:
    walk = short_walk(path)
    assert len(set(walk)) == len(walk)
    assert [path[walk[0]], path[walk[-1]]] == [path[0], path[-1]]
    assert {(path[a], path[b]) for a, b in pairwise(walk)} == set(pairwise(path))
    assert len(walk) <= len(path)


@pytest.mark.parametrize(
    ("path", "length"),
    [
        ([0] * 126, 3),
        ([0] * 3 + [1] * 58, 6),
        (([0] * 5 + [1]) * 10 + [0, 0], 6),
        ([0] + [1] * 23, 4),
        ([0, 1] * 20, 4),
    ],
)
def test_walks_are_short(path: list[int], length: int) -> None:
    """Each class twice at least, and three times where a block may follow its like."""
    walk = short_walk(path)
    assert len(walk) == length
    counted = [path[p] for p in walk]
    assert all(counted.count(c) >= min(2, path.count(c)) for c in set(path))


def test_a_reduced_model_is_whole_again() -> None:
    model = Model([Block(index=i) for i in range(9)])
    before = list(model.blocks)
    with reduced(model, find_stacks(model)):
        assert len(model.blocks) == model.n_layers == len(model.kinds) == 3
        assert all(any(block is one for one in before) for block in model.blocks)
        assert [model.kinds[0], model.kinds[-1]] == ["0", "8"]
    assert len(model.blocks) == model.n_layers == len(model.kinds) == 9
    assert all(a is b for a, b in zip(model.blocks, before, strict=True))


def test_a_reduced_model_is_whole_again_after_an_error() -> None:
    model = Model([Block(index=i) for i in range(9)])
    with pytest.raises(RuntimeError), reduced(model, find_stacks(model)):
        raise RuntimeError
    assert model.n_layers == 9
    assert model.blocks[4](torch.ones(4)).shape == (4,)
