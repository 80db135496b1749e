"""Depth reduction: a deep model traced through a few of its blocks.

A decoder of 126 like layers says everything in three of them. In: a model at full depth (built on meta, which is
cheap). Out: its *stacks* (module lists of repeated blocks), and for each a short *walk* through them; within
`reduced(...)` the lists hold the walk only, the very same block objects, and afterwards they are as before.

Like blocks.  Two blocks are alike if they agree in class, in names, shapes, dtypes and `requires_grad` of parameters
and buffers, in which of them are shared, in the tree and classes of their submodules, and in their plain attributes,
except those that only number the blocks (an integer which grows by one from each block to the next, like `layer_idx`).
That is a guess about what they compute; `segment.py` checks it on the traced instances, and a model that breaks it is
traced whole.

The walk.  Blocks c0 c1 … cn, read as classes, are a path through the graph of classes. The walk goes from the first
block to the last and takes every step X -> Y that the path takes, so that each way of entering a block is traced; and
it meets every class that has several instances at least twice (three times, where a block may follow its like): the
first, the last, and seeded ones between, so that a model that treats some of them apart is found out. A model that such
a walk leaves in doubt is walked once more, with two more blocks.

A list is reduced only if that makes it shorter. Blocks that differ in numbers alone (a scale by depth, a rate of
dropping) make a list that is walked whole, since only their trace tells the numbers (`meshwright.ir.graph.numbers`).
Lists inside reduced blocks (experts, sub-layers) are left alone.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

SHORT_WALK = 3
LONG_WALK = 5
"""How often a class is met whose blocks follow each other: to trace little, and to tell more."""

_MODULE_STATE = frozenset(nn.Module().__dict__)


@dataclass(frozen=True, slots=True)
class Stack:
    """A module list: its path, the class number of each block, and the positions to walk (all of them: it is not
    reduced). The model itself may be one."""

    path: str
    classes: tuple[int, ...]
    walk: tuple[int, ...]
    joint: str = "."
    """What stands between its path and the numbers of its blocks."""

    @property
    def depth(self) -> int:
        return len(self.classes)

    @property
    def shortened(self) -> bool:
        return len(self.walk) < self.depth

    @property
    def prefix(self) -> str:
        """What the paths of its blocks begin with."""
        return f"{self.path}{self.joint}" if self.path else ""

    def block(self, position: int) -> str:
        return f"{self.prefix}{position}"

    def holds(self, path: str) -> bool:
        """Whether this is one of its blocks, or lies in one."""
        return bool(path) and path.startswith(self.prefix)


def find_stacks(model: nn.Module, seed: int = 0, *, most: int = SHORT_WALK) -> tuple[Stack, ...]:
    """Every list of blocks in which some are alike, but perhaps for numbers, outermost first; blocks that are not are
    searched for lists of their own."""
    found: list[Stack] = []

    def search(module: nn.Module, path: str) -> None:
        keys = _keys(module) if _is_list(module) else ()
        classes = _numbered(keys)
        if len(set(classes)) < len(classes) or len({_but_for_numbers(key) for key in keys}) < len(keys):
            found.append(Stack(path, classes, short_walk(classes, seed=f"{path} {seed}", most=most)))
        else:
            for name, child in module.named_children():
                search(child, f"{path}.{name}" if path else name)

    search(model, "")
    return tuple(found)


def _is_list(module: nn.Module) -> bool:
    """Containers whose blocks run one after another, under the names 0, 1, 2, …"""
    names = [name for name, _ in module.named_children()]
    return isinstance(module, nn.ModuleList | nn.Sequential | nn.ModuleDict) and names == [
        str(i) for i in range(len(names))
    ]


# Like blocks ---------------------------------------------------------------------------------------------------------


_Key = tuple[Hashable, tuple[tuple[str, Hashable], ...]]
"""The structure of a block, and its attributes by name."""


def _numbered(keys: Sequence[Hashable]) -> tuple[int, ...]:
    """A class number for each block of a list, in order of appearance."""
    numbers: dict[Hashable, int] = {}
    return tuple(numbers.setdefault(key, len(numbers)) for key in keys)


def _but_for_numbers(key: _Key) -> Hashable:
    """What a block is when numbers are left open (how deep it lies in its scales, how often it drops out)."""
    structure, attributes = key
    return structure, tuple((name, None if type(v) in (int, float) else v) for name, v in attributes)


def _keys(blocks: nn.Module) -> tuple[_Key, ...]:
    """What each block of a list is, but for attributes that count the blocks."""
    members = list(blocks.children())
    tokens = _Tokens()
    shapes = [_structure(block) for block in members]
    attributes = [_attributes(block, tokens) for block in members]
    offsets = _counters(shapes, attributes)
    return tuple(
        (
            shape,
            tuple((name, v) for name, v in sorted(own.items()) if not _counts(v, position, offsets.get((shape, name)))),
        )
        for position, (shape, own) in enumerate(zip(shapes, attributes, strict=True))
    )


def _structure(block: nn.Module) -> Hashable:
    """What a block is made of: submodules, parameters and buffers, and which of these are one tensor."""
    modules = tuple(
        (name, type(module).__module__, type(module).__qualname__) for name, module in block.named_modules()
    )
    seen: dict[int, int] = {}
    tensors = tuple(
        (name, tuple(t.shape), str(t.dtype), t.requires_grad, seen.setdefault(id(t), len(seen)))
        for named in (block.named_parameters(remove_duplicate=False), block.named_buffers(remove_duplicate=False))
        for name, t in named
    )
    return modules, tensors


def _attributes(block: nn.Module, tokens: _Tokens) -> dict[str, Hashable]:
    """The plain attributes of a block and its submodules, those that torch keeps for itself aside."""
    return {
        f"{path}.{name}": tokens.of(value)
        for path, module in block.named_modules(remove_duplicate=False)
        for name, value in vars(module).items()
        if name not in _MODULE_STATE
    }


def _counters(shapes: Sequence[Hashable], attributes: Sequence[dict[str, Hashable]]) -> dict[tuple[Hashable, str], int]:
    """(structure, attribute) pairs that number the blocks of that structure, with value minus position: most agree."""
    grouped: dict[tuple[Hashable, str], list[int]] = {}
    for position, (shape, own) in enumerate(zip(shapes, attributes, strict=True)):
        for name, value in own.items():
            if isinstance(value, int) and not isinstance(value, bool):
                grouped.setdefault((shape, name), []).append(value - position)
    common = {key: Counter(found).most_common(1)[0] for key, found in grouped.items()}
    return {key: offset for key, (offset, times) in common.items() if times > 1 and 2 * times > len(grouped[key])}


def _counts(value: Hashable, position: int, offset: int | None) -> bool:
    """Whether this value only says which block it is in."""
    return isinstance(value, int) and not isinstance(value, bool) and value - position == offset


class _Tokens:
    """Hashable stand-ins for attribute values: like values give like tokens."""

    def __init__(self) -> None:
        self._seen: list[Any] = []

    def of(self, value: Any) -> Hashable:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list | tuple):
            return (type(value).__name__, *(self.of(item) for item in value))
        if isinstance(value, Tensor):
            return ("tensor", tuple(value.shape), str(value.dtype))
        if isinstance(value, nn.Module):
            return ("module", type(value).__qualname__)
        if isinstance(value, Callable):  # type: ignore[arg-type]
            return (
                "callable",
                getattr(value, "__module__", ""),
                getattr(value, "__qualname__", type(value).__qualname__),
            )
        return ("object", type(value).__qualname__, self._number(value))

    def _number(self, value: Any) -> int:
        """Objects are alike if they are one, or compare equal."""
        for index, other in enumerate(self._seen):
            if other is value or (type(other) is type(value) and _equal(other, value)):
                return index
        self._seen.append(value)
        return len(self._seen) - 1


def _equal(left: Any, right: Any) -> bool:
    try:
        return bool(left == right)
    except Exception:  # noqa: BLE001 - a user's __eq__ may do anything; what cannot be compared is unlike
        return False


# The walk ------------------------------------------------------------------------------------------------------------


def short_walk(classes: Sequence[int], *, seed: str = "", most: int = SHORT_WALK) -> tuple[int, ...]:
    """Positions of blocks to trace, or all positions if no shorter walk exists (see the module docstring)."""
    path = _covering_path(classes, most)
    chosen = _instances(path, classes, seed)
    return chosen if chosen is not None and len(chosen) < len(classes) else tuple(range(len(classes)))


def _covering_path(classes: Sequence[int], most: int) -> list[int]:
    """A short path of classes from the first block's to the last one's, over every step that occurs: in the order in
    which the blocks take them, so that none is passed by that no way leads back to."""
    steps = list(dict.fromkeys(pairwise(classes)))
    after: dict[int, list[int]] = {}
    for x, y in steps:
        after.setdefault(x, []).append(y)
    path = [classes[0]]
    counts = {c: min(most, list(classes).count(c)) for c in set(classes)}
    for step in steps:
        if step not in pairwise(path):
            path += _shortest(path[-1], {step}, after)
    if path[-1] != classes[-1]:
        path += _shortest(path[-1], {step for step in steps if step[1] == classes[-1]}, after)
    for number, count in sorted(counts.items()):
        if path.count(number) < count and (number, number) in steps:
            path[path.index(number) : path.index(number)] = [number] * (count - path.count(number))
        elif path.count(number) < min(count, 2):  # once around: from the class back to itself
            back = {step for step in steps if step[1] == number}
            path[path.index(number) + 1 : path.index(number) + 1] = _shortest(number, back, after)
    return path


def _shortest(start: int, wanted: Set[tuple[int, int]], after: Mapping[int, Sequence[int]]) -> list[int]:
    """The shortest continuation from `start` whose last step is wanted."""
    queue: deque[tuple[int, list[int]]] = deque([(start, [])])
    seen = {start}
    while queue:
        here, taken = queue.popleft()
        for following in after.get(here, ()):
            if (here, following) in wanted:
                return [*taken, following]
            if following not in seen:
                seen.add(following)
                queue.append((following, [*taken, following]))
    raise AssertionError("every step lies on the path that the blocks take")


def _instances(path: Sequence[int], classes: Sequence[int], seed: str) -> tuple[int, ...] | None:
    """Different blocks of the classes on the path: each class's first and last, between them seeded ones; None if there
    are too few."""
    draw = random.Random(seed)
    chosen: dict[int, list[int]] = {}
    for number in sorted(set(path)):
        members = [p for p, c in enumerate(classes) if c == number]
        wanted = path.count(number)
        if wanted > len(members):
            return None
        inner = sorted(draw.sample(members[1:-1], len(members[1:-1])), key=partial(_kinship, members[-1]))
        chosen[number] = [members[0], *sorted(inner[: max(wanted - 2, 0)]), *([members[-1]] if wanted > 1 else [])]
    return tuple(chosen[number].pop(0) for number in path)


def _kinship(last: int, position: int) -> int:
    """How much a block has in common with the last one, by position: parity, thirds, halves. Strangers tell more."""
    return (position % 2 == last % 2) + (position % 3 == last % 3) + (2 * position > last)


# Reducing ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def reduced(model: nn.Module, stacks: Sequence[Stack]) -> Iterator[None]:
    """The model with its stacks shortened to their walks; undone on leaving."""
    undo: list[Callable[[], None]] = []
    try:
        for stack in stacks:
            if stack.shortened:
                _shorten(model, stack, undo)
        yield
    finally:
        for restore in reversed(undo):
            restore()


def _shorten(model: nn.Module, stack: Stack, undo: list[Callable[[], None]]) -> None:
    container = model.get_submodule(stack.path)
    owner = model.get_submodule(stack.path.rpartition(".")[0])
    before = container._modules
    blocks = list(before.values())
    undo.append(lambda: setattr(container, "_modules", before))
    container._modules = OrderedDict((str(i), blocks[p]) for i, p in enumerate(stack.walk))
    for holder in (owner, getattr(owner, "config", None)):
        if hasattr(holder, "__dict__"):
            _shorten_settings(vars(holder), stack, undo)


def _shorten_settings(settings: dict[str, Any], stack: Stack, undo: list[Callable[[], None]]) -> None:
    """What the owner of the list, or its configuration, says about depth: the number of layers, and lists of one entry
    per layer."""
    for name, value in list(settings.items()):
        per_layer = isinstance(value, list | tuple) and len(value) == stack.depth
        counts = (
            type(value) is int and value == stack.depth and any(word in name for word in ("layer", "depth", "block"))
        )
        if per_layer:
            settings[name] = type(value)(value[p] for p in stack.walk)
        elif counts:
            settings[name] = len(stack.walk)
        else:
            continue
        undo.append(lambda name=name, value=value: settings.__setitem__(name, value))  # type: ignore[misc]
