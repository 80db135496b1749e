"""Whether a model calls the blocks of a shortened list as it calls them where the list is whole.

Code around blocks may treat them by their place: `block(x, late if index in self.last else None)`. In a list that is
shortened to a walk (`reduce`) places are others, and its trace would be that of another model. So the step is run twice
without values, with the walk, and with all blocks, of which only what is around them runs: each returns what a block
like it returned in the walk. Blocks of the walk must be given the same in both: nothing, numbers (or their place), and
tensors of the same shapes, of which the same are one; and so must blocks that others stand for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from meshwright.ir.frontends.contract import Source
from meshwright.ir.frontends.reduce import Stack, reduced
from meshwright.ir.frontends.torch_export import failure

Class = tuple[str, int]
"""Blocks that are alike: their list, and the number of their class."""
PLACE = "its place"


@dataclass(slots=True)
class _Seen:
    """What blocks were given, by list and position, call by call; and what those of a class returned."""

    calls: dict[tuple[str, int], list[tuple[str, list[Any]]]] = field(default_factory=dict)
    returned: dict[Class, Callable[[Sequence[Any]], Any]] = field(default_factory=dict)

    def given(self, stack: Stack, position: int, place: int, leaves: Sequence[Any], spec: Any) -> None:
        words = [PLACE if type(leaf) is int and leaf == place else leaf for leaf in leaves]
        self.calls.setdefault((stack.path, position), []).append((str(spec), words))

    def of_walks(self, stacks: Sequence[Stack]) -> list[object]:
        """What blocks of the walks were given, in order; tensors are numbered as they come."""
        numbers: dict[int, int] = {}
        keys = [(stack.path, position) for stack in stacks for position in stack.walk]
        return [self._told(key, lambda leaf: numbers.setdefault(id(leaf), len(numbers))) for key in keys]

    def of_all(self) -> dict[tuple[str, int], object]:
        """What every block was given; of tensors that several were given, which."""
        leaves = [{id(leaf) for _, words in own for leaf in words} for own in self.calls.values()]
        times = Counter(one for own in leaves for one in own)
        return {key: self._told(key, lambda leaf: id(leaf) if times[id(leaf)] > 1 else None) for key in self.calls}

    def _told(self, key: tuple[str, int], number: Callable[[Tensor], int | None]) -> object:
        def word(leaf: Any) -> object:
            if isinstance(leaf, Tensor):
                return tuple(leaf.shape), str(leaf.dtype), number(leaf)
            return leaf if leaf is None or isinstance(leaf, bool | int | float | str) else type(leaf).__qualname__

        return [(spec, [word(leaf) for leaf in words]) for spec, words in self.calls.get(key, [])]


_KNOWN: WeakKeyDictionary[nn.Module, dict[tuple[Stack, ...], bool]] = WeakKeyDictionary()
"""Of models that were asked about; another batch changes nothing."""


def called_alike(source: Source, example: Any, stacks: tuple[Stack, ...]) -> bool:
    """Whether blocks of the walks are given the same in both lists, and the others what those are given that stand for
    them. Where either run fails, nothing speaks against it."""
    known = _KNOWN.setdefault(source.module, {})
    if stacks not in known:
        known[stacks] = _called_alike(source, example, stacks)
    return known[stacks]


def _called_alike(source: Source, example: Any, stacks: Sequence[Stack]) -> bool:
    short = [stack for stack in stacks if stack.shortened]
    blocks = {stack.path: list(source.module.get_submodule(stack.path).children()) for stack in short}
    few, every = _Seen(), _Seen()
    with reduced(source.module, stacks), ExitStack() as undo:
        for stack in short:
            for place, position in enumerate(stack.walk):
                undo.enter_context(_recorded(few, stack, position, place, blocks[stack.path][position]))
        if failure(source, example) is not None:
            return True
    with ExitStack() as undo:
        for stack in short:
            for position, block in enumerate(blocks[stack.path]):
                if (stack.path, stack.classes[position]) in few.returned:
                    undo.enter_context(_hollow(every, few.returned, stack, position, block))
        if failure(source, example) is not None:
            return True
    told = every.of_all()
    return few.of_walks(short) == every.of_walks(short) and all(
        told.get((stack.path, position)) == told.get((stack.path, other))
        for stack in short
        for position in set(range(stack.depth)).difference(stack.walk)
        for other in _standing_for(stack, position)
    )


def _standing_for(stack: Stack, position: int) -> Iterator[int]:
    """The blocks of the walk that stand for one which is not in it: of its class, the nearest on either side. The first
    and the last of a list, which models treat apart, do only where there is no other."""
    alike = [one for one in stack.walk if stack.classes[one] == stack.classes[position]]
    inside = [one for one in alike if 0 < one < stack.depth - 1] or alike
    yield from sorted(one for one in inside if one < position)[-1:]
    yield from sorted(one for one in inside if one > position)[:1]


@contextmanager
def _recorded(seen: _Seen, stack: Stack, position: int, place: int, block: nn.Module) -> Iterator[None]:
    """Note what a block of the walk is given, and what it makes of that."""
    forward = block.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        seen.given(stack, position, place, leaves, spec)
        made = forward(*args, **kwargs)
        seen.returned.setdefault((stack.path, stack.classes[position]), _returns(made, leaves))
        return made

    with mock.patch.object(block, "forward", run):
        yield


@contextmanager
def _hollow(
    seen: _Seen, returned: Mapping[Class, Callable[[Sequence[Any]], Any]], stack: Stack, position: int, block: nn.Module
) -> Iterator[None]:
    """Note what a block is given; return what one like it returned."""

    def run(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        seen.given(stack, position, position, leaves, spec)
        return returned[stack.path, stack.classes[position]](leaves)

    with mock.patch.object(block, "forward", run):
        yield


def _returns(made: Any, given: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
    """What returns the like: new tensors, but for those that were given, which it hands on."""
    places = {id(leaf): at for at, leaf in enumerate(given) if isinstance(leaf, Tensor)}
    leaves, spec = pytree.tree_flatten(made)

    def again(now: Sequence[Any]) -> Any:
        def leaf(one: Any) -> Any:
            at = places.get(id(one))
            if at is not None and at < len(now):
                return now[at]
            return one.new_empty(one.shape) if isinstance(one, Tensor) else one

        return pytree.tree_unflatten([leaf(one) for one in leaves], spec)

    return again
