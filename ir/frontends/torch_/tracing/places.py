"""Blocks of a shortened list compared with those of the whole list: whether a model treats them alike.

Code around blocks may treat them by their place:

    block(x, late if index in self.last else None)      what a block is given
    x = self.between(x) if index == 5 else x            what becomes of what it makes
    kept += [x] if index in self.kept else []           the same, after all blocks

In a list that is shortened to a walk (`reduce`) places are others, and its trace would be that of another model. So the
step is run twice without values, with the walk, and with all blocks, of which only what is around them runs: each
returns what a block like it returned in the walk. In both a block of the walk must be given the same: nothing, numbers
(or its place), and tensors of the same shapes, of which the same are one; and the same functions must run before it,
and after all blocks, on the same shapes and numbers. So must they for blocks that others stand for.
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
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from meshwright.ir.frontends.folding.stacks import Stack
from meshwright.ir.frontends.torch_.sources.factory import TorchSource
from meshwright.ir.frontends.torch_.tracing.export import failure
from meshwright.ir.frontends.torch_.tracing.reduce import reduced

Class = tuple[str, int]
"""Blocks that are alike: their list, and the number of their class."""
PLACE = "its place"
ASIDE = ("__get__", "empty_strided")
"""What only looks, and what makes tensors without values of others, the first time."""
START = "the start"
"""What stands for all that runs before the first block: there models look at how many blocks they have."""


class _Around(TorchFunctionMode):
    """The functions of torch that make tensors outside of blocks, since the last of these."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[object] = []
        self.inside = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", str(func))
        if not self.inside and name not in ASIDE and any(isinstance(one, Tensor) for one in pytree.tree_leaves(made)):
            self.ran.append((name, [_word(leaf, None) for leaf in pytree.tree_leaves((args, kwargs))]))
        return made

    def taken(self) -> list[object]:
        """The functions that ran, which are forgotten then."""
        ran, self.ran = self.ran, []
        return ran


@dataclass(slots=True)
class _Seen:
    """The arguments of blocks, by list and position, call by call, with the functions that ran before; and the results
    of those of a class."""

    around: _Around = field(default_factory=_Around)
    calls: dict[tuple[str, int], list[tuple[object, str, list[Any]]]] = field(default_factory=dict)
    returned: dict[Class, Callable[[Sequence[Any]], Any]] = field(default_factory=dict)

    def given(self, stack: Stack, position: int, place: int, leaves: Sequence[Any], spec: Any) -> None:
        words = [PLACE if type(leaf) is int and leaf == place else leaf for leaf in leaves]
        ran: object = self.around.taken()
        ran = ran if self.calls else START
        self.calls.setdefault((stack.path, position), []).append((ran, str(spec), words))

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Note that a block runs."""
        self.around.inside += 1
        try:
            yield
        finally:
            self.around.inside -= 1

    def of_walks(self, stacks: Sequence[Stack]) -> list[object]:
        """The arguments of blocks of the walks, in order; tensors are numbered as they come."""
        numbers: dict[int, int] = {}
        keys = [(stack.path, position) for stack in stacks for position in stack.walk]
        return [self._told(key, lambda leaf: numbers.setdefault(id(leaf), len(numbers))) for key in keys]

    def of_all(self) -> dict[tuple[str, int], object]:
        """The arguments of every block, with the tensors that several were given."""
        leaves = [{id(leaf) for *_, words in own for leaf in words} for own in self.calls.values()]
        times = Counter(one for own in leaves for one in own)
        return {key: self._told(key, lambda leaf: id(leaf) if times[id(leaf)] > 1 else None) for key in self.calls}

    def _told(self, key: tuple[str, int], number: Callable[[Tensor], int | None]) -> object:
        calls = self.calls.get(key, [])
        return [(ran, spec, [_word(leaf, number) for leaf in words]) for ran, spec, words in calls]


def _word(leaf: Any, number: Callable[[Tensor], int | None] | None) -> object:
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape), str(leaf.dtype), number(leaf) if number is not None else None
    return leaf if leaf is None or isinstance(leaf, bool | int | float | str) else type(leaf).__qualname__


_KNOWN: WeakKeyDictionary[nn.Module, dict[tuple[Stack, ...], bool]] = WeakKeyDictionary()
"""Of models that were asked about; another batch changes nothing."""


def called_alike(source: TorchSource, example: Any, stacks: tuple[Stack, ...]) -> bool:
    """Whether blocks of the walks get the same arguments in both lists, and the others those of the blocks that stand
    for them. Where either run fails, nothing speaks against it."""
    known = _KNOWN.setdefault(source.module, {})
    if stacks not in known:
        known[stacks] = _called_alike(source, example, stacks)
    return known[stacks]


def _called_alike(source: TorchSource, example: Any, stacks: Sequence[Stack]) -> bool:
    short = [stack for stack in stacks if stack.shortened]
    blocks = {stack.path: list(source.module.get_submodule(stack.path).children()) for stack in short}
    few, every = _Seen(), _Seen()
    with reduced(source.module, stacks), ExitStack() as undo:
        for stack in short:
            for place, position in enumerate(stack.walk):
                undo.enter_context(_recorded(few, stack, position, place, blocks[stack.path][position]))
        undo.enter_context(few.around)
        if failure(source, example) is not None:
            return True
    with ExitStack() as undo:
        for stack in short:
            for position, block in enumerate(blocks[stack.path]):
                if (stack.path, stack.classes[position]) in few.returned:
                    undo.enter_context(_hollow(every, few.returned, stack, position, block))
        undo.enter_context(every.around)
        if failure(source, example) is not None:
            return True
    if few.around.ran != every.around.ran or few.of_walks(short) != every.of_walks(short):
        return False
    told = every.of_all()
    return all(
        told.get((stack.path, position)) == told.get((stack.path, other))
        for stack in short
        for position in set(range(stack.depth)).difference(stack.walk)
        for other in _standing_for(stack, position)
    )


def _standing_for(stack: Stack, position: int) -> Iterator[int]:
    """The blocks of the walk that stand for one which is not in it: of its class, behind one of the same class as this,
    the nearest on either side. The last of a list, which models treat apart, does only where there is no other."""
    kinds = stack.classes[position - 1], stack.classes[position]
    steps = zip(stack.walk, stack.walk[1:], strict=False)
    alike = sorted(one for before, one in steps if (stack.classes[before], stack.classes[one]) == kinds)
    inside = [one for one in alike if one < stack.depth - 1] or alike
    yield from [one for one in inside if one < position][-1:]
    yield from [one for one in inside if one > position][:1]


@contextmanager
def _recorded(seen: _Seen, stack: Stack, position: int, place: int, block: nn.Module) -> Iterator[None]:
    """Record the arguments of a block of the walk, and its results."""
    forward = block.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        seen.given(stack, position, place, leaves, spec)
        with seen.inside():
            made = forward(*args, **kwargs)
        seen.returned.setdefault((stack.path, stack.classes[position]), _returns(made, leaves))
        return made

    with mock.patch.object(block, "forward", run):
        yield


@contextmanager
def _hollow(
    seen: _Seen, returned: Mapping[Class, Callable[[Sequence[Any]], Any]], stack: Stack, position: int, block: nn.Module
) -> Iterator[None]:
    """Record the arguments of a block; return the results of one like it."""

    def run(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        seen.given(stack, position, position, leaves, spec)
        with seen.inside():
            return returned[stack.path, stack.classes[position]](leaves)

    with mock.patch.object(block, "forward", run):
        yield


def _returns(made: Any, given: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
    """A function that returns the like: new tensors, except for arguments that are passed on."""
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
