"""Which blocks are alike, which of them are walked, and that a reduced model is whole again afterwards."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

from meshwright.ir.frontends.door import capture
from meshwright.ir.frontends.folding.stacks import Stack, short_walk
from meshwright.ir.frontends.torch_.sources.factory import Hooks, TorchSource
from meshwright.ir.frontends.torch_.tracing.reduce import find_stacks, reduced


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


class Marked(nn.Module):
    def __init__(self, **marks: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        vars(self).update(marks)


class Equal:
    """Compared by value."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal) and other.value == self.value

    __hash__ = None  # type: ignore[assignment]


class Stubborn:
    """Not to be compared."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = None  # type: ignore[assignment]


class Other(Equal):
    """Equal to an `Equal` of its value, and something else."""


ONE = Stubborn()


MARKS: list[tuple[Any, Any, bool]] = [
    (1.5, 1.5, True),
    (1.5, 2.5, False),
    ("a", "b", False),
    (None, "", False),
    (True, False, False),
    (7, 3, False),
    ((1, 2), (1, 2), True),
    ((1, 2), (1, 3), False),
    ([1, 2], (1, 2), False),
    ([[1], [2]], [[1], [3]], False),
    (torch.zeros(2), torch.ones(2), True),
    (torch.zeros(2), torch.zeros(3), False),
    (torch.zeros(2), torch.zeros(2).double(), False),
    ([nn.ReLU()], [nn.ReLU()], True),
    ([nn.ReLU()], [nn.GELU()], False),
    (torch.relu, torch.relu, True),
    (torch.relu, torch.tanh, False),
    (Equal(1), Equal(1), True),
    (Equal(1), Equal(2), False),
    (Equal(1), Other(1), False),
    (Stubborn(), Stubborn(), False),
    (ONE, ONE, True),
    ({"a": 1}, {"a": 1}, True),
    ({"a": 1}, {"a": 2}, False),
]


def test_blocks_are_told_apart_by_what_they_say_of_themselves() -> None:
    """By values, by the shapes of tensors, by the classes of modules, by the names of functions."""
    for first, second, alike in MARKS:
        blocks: list[nn.Module] = [Marked(mark=first), Marked(mark=second), Marked(mark=second)]
        assert classes(blocks) == ((0, 0, 0) if alike else (0, 1, 1)), (first, second)


INDICES: list[tuple[list[Any], tuple[int, ...]]] = [
    ([0, 1, 2, 3], (0, 0, 0, 0)),
    ([1, 2, 3, 4], (0, 0, 0, 0)),
    ([0, 1, 2, 9], (0, 0, 0, 1)),
    ([0, 1, 7, 9], (0, 1, 2, 3)),
    ([0, 2, 4, 6], (0, 1, 2, 3)),
    ([5, 5, 5, 5], (0, 0, 0, 0)),
    ([False, True, True], (0, 1, 1)),
    ([0.0, 1.0, 1.0], (0, 1, 1)),
    ([None, None, 2], (0, 0, 1)),
]


def test_an_index_grows_by_one_in_most_of_the_blocks() -> None:
    """In half of them is not enough: each of the blocks is walked then. A switch is no number. What few blocks have
    tells them apart."""
    for indices, found in INDICES:
        blocks: list[nn.Module] = [Marked(**({} if one is None else {"index": one})) for one in indices]
        assert [stack.classes for stack in find_stacks(Model(blocks))] == [found], indices


def test_an_index_may_count_blocks_of_its_own_kind() -> None:
    """With an offset for each kind: 3, 4, 5 at 0, 2, 4 is no index, 10, 11 at 3, 4 is one."""
    wide: list[nn.Module] = [Block(width=8, index=10 + at) for at in range(3)]
    blocks: list[nn.Module] = [Block(index=0), Block(index=1), Block(index=2), *wide]
    assert classes(blocks) == (0, 0, 0, 1, 1, 1)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda one: one, (0, 0, 0)),
        (lambda one: nn.Sequential(one[0], nn.GELU()), (0, 1, 0)),
        (lambda one: nn.Sequential(one[0], nn.ReLU(), nn.Identity()), (0, 1, 0)),
        (lambda one: one.register_buffer("more", torch.zeros(2)) or one, (0, 1, 0)),
    ],
)
def test_blocks_are_told_apart_by_what_they_are_made_of(
    change: Callable[[nn.Sequential], nn.Module], found: tuple[int, ...]
) -> None:
    blocks: list[nn.Module] = [nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(3)]
    blocks[1] = change(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    assert classes(blocks) == found


def test_which_containers_are_lists() -> None:
    """Those whose blocks are called 0, 1, 2, … and some of which are alike; under the paths of what holds them."""

    def pair() -> list[nn.Module]:
        return [Block(), Block()]

    model = nn.ModuleDict(
        {
            "sequence": nn.Sequential(*pair()),
            "numbered": nn.ModuleDict(dict(zip("01", pair(), strict=True))),
            "from one": nn.ModuleDict(dict(zip("12", pair(), strict=True))),
            "with a stem": nn.Sequential(OrderedDict(zip(("layer_9", "layer_10"), pair(), strict=True))),
            "with zeros": nn.Sequential(OrderedDict(zip(("layer_01", "layer_02"), pair(), strict=True))),
            "with stems": nn.Sequential(OrderedDict(zip(("a1", "b2"), pair(), strict=True))),
            "named": nn.ModuleDict({"a": nn.ModuleList(pair()), "b": Block()}),
            "single": nn.ModuleList([Block()]),
            "empty": nn.ModuleList(),
        }
    )
    wanted = [
        Stack("sequence", (0, 0), (0, 1)),
        Stack("numbered", (0, 0), (0, 1)),
        Stack("from one", (0, 0), (0, 1), first=1),
        Stack("with a stem", (0, 0), (0, 1), stem="layer_", first=9),
        Stack("named.a", (0, 0), (0, 1)),
    ]
    assert list(find_stacks(model)) == wanted


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


def test_a_model_may_itself_be_a_list() -> None:
    """Its blocks are called 0, 1, …; the walk is traced, and folds to as many calls as there are blocks."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 8), *(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(9)))
    (stack,) = find_stacks(model)
    assert (stack.path, stack.block(3), stack.depth) == ("", "3", 10)
    assert stack.holds("0.weight")
    assert not stack.holds("")
    hooks = Hooks(lambda b, s: {"input": torch.randn(b, 4)}, lambda outputs, _: outputs.square().mean())
    found = capture(TorchSource(model, hooks, "model"), batch=2, seq=1)
    assert [call.path for call in found.fold.calls() if call.path] == [str(n) for n in range(10)]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
@example([0, 1, 0, 1, 1, 0, 2])  # 2 is nearer than the last step of 1, and no way leads back
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


WALKS: list[tuple[list[int], int, tuple[int, ...]]] = [
    ([0], 3, (0,)),
    ([0, 1, 2], 3, (0, 1, 2)),
    ([0, 0], 3, (0, 1)),
    ([0, 0, 0], 3, (0, 1, 2)),
    ([0] * 4, 5, (0, 1, 2, 3)),
    ([0, 1, 0, 1], 3, (0, 1, 2, 3)),
    ([0, 1] * 3, 3, (0, 1, 4, 5)),
    ([0, 1] * 3 + [0], 3, (0, 1, 2, 5, 6)),
    ([0] * 7, 3, (0, 1, 6)),
    ([1] + [0] * 7, 3, (0, 1, 2, 7)),
]


def test_which_blocks_are_walked() -> None:
    """Of each class the first and the last, and between them those that have least in common with the last: another
    parity, another rest by three, the first half. Of 1 to 5, that is 1 before 6; of 2 to 6, 2 before 7; of 2 and 4, 2
    before 6."""
    for path, most, walk in WALKS:
        assert short_walk(path, most=most) == walk, path


@pytest.mark.parametrize("most", [3, 5])
def test_between_the_first_and_the_last_strangers_are_drawn(most: int) -> None:
    """Of 126 blocks: even, since the last is 125, of another rest than 2 by three, among the first 62."""
    walks = {short_walk([0] * 126, seed=str(seed), most=most) for seed in range(9)}
    assert len(walks) > 1
    for walk in walks:
        assert len(walk) == most
        assert [walk[0], walk[-1], *sorted(walk)] == [0, 125, *walk]
        assert all(one % 2 == 0 and one % 3 != 2 and one <= 62 for one in walk[1:-1])


WALKED: list[tuple[list[int], int, list[int]]] = [
    ([0] * 126, 5, [0] * 5),
    ([0] * 3 + [1] * 58, 3, [0, 0, 0, 1, 1, 1]),
    (([0] * 5 + [1]) * 10 + [0, 0], 3, [0, 0, 1, 0, 1, 0]),
    ([0] + [1] * 23, 3, [0, 1, 1, 1]),
    ([0] * 9 + [1], 3, [0, 0, 0, 1]),
    ([0, 1, 2] * 5, 3, [0, 1, 2, 0, 1, 2]),
    ([2, 0, 1] * 4 + [2], 3, [2, 0, 1, 2, 0, 1, 2]),
    ([0, 0, 1, 1] * 6, 3, [0, 0, 1, 1, 0, 1]),
]


def test_the_classes_of_a_walk() -> None:
    """Every step, three of a class that follows itself, and once around for what is met once."""
    for path, most, walked in WALKED:
        assert [path[at] for at in short_walk(path, most=most)] == walked, path


def test_what_says_how_deep_a_model_is_says_it_of_the_walk() -> None:
    """Numbers called so, and lists with an entry for each block: of the module that holds the list, and of its
    configuration. Everything else stays; and all is as before in the end."""

    class Config:
        def __init__(self) -> None:
            self.num_hidden_layers, self.block_count, self.heads = 9, 9, 9
            self.kinds, self.depths, self.few = tuple("abcdefghi"), [9.0], ["x"] * 8
            self.use_layers = True

    class Slots:
        __slots__ = ("n_layers",)

        def __init__(self) -> None:
            self.n_layers = 9

    outer = nn.Module()
    outer.n_layers = 9
    outer.inner = inner = Model([Block(index=i) for i in range(9)])
    inner.config = config = Config()
    inner.max_depth, inner.width = 9, 9
    before = dict(vars(config))
    stacks = find_stacks(outer)
    walk = stacks[0].walk
    assert (stacks[0].path, stacks[0].depth, stacks[0].shortened, stacks[0].block(4)) == (
        "inner.blocks",
        9,
        True,
        "inner.blocks.4",
    )
    with reduced(outer, stacks):
        kinds = tuple("abcdefghi"[at] for at in walk)
        assert vars(config) == before | {"num_hidden_layers": 3, "block_count": 3, "kinds": kinds}
        assert (outer.n_layers, inner.n_layers, inner.max_depth, inner.width) == (9, 3, 3, 9)
        assert inner.kinds == [str(at) for at in walk]
        assert list(inner.blocks._modules) == ["0", "1", "2"]
        assert [block.layer_idx for block in inner.blocks] == list(walk)
    assert vars(config) == before
    assert (inner.n_layers, inner.max_depth, len(inner.blocks)) == (9, 9, 9)
    inner.config = Slots()
    with reduced(outer, stacks):
        assert inner.config.n_layers == 9
    whole = Stack("inner.blocks", (0,) * 9, tuple(range(9)))
    with reduced(outer, [whole]):
        assert (whole.shortened, len(inner.blocks), inner.n_layers) == (False, 9, 9)


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
