"""Depth reduction: a deep model traced through a few of its blocks.

A decoder of 126 like layers says everything in three of them. In: a model at full depth (built on meta, which is
cheap). Out: its *stacks* (module lists of repeated blocks), and for each a short *walk* through them; within
`reduced(...)` the lists hold the walk only, the very same block objects, and afterwards they are as before.

Like blocks.  Two blocks are alike if they agree in class, in names, shapes, dtypes and `requires_grad` of parameters
and buffers, in which of them are shared, in the tree and classes of their submodules, and in their plain attributes,
except those that only number the blocks (an integer which grows by one from each block to the next, like `layer_idx`).
That is a guess about what they compute; `segment.py` checks it on the traced instances, and a model that breaks it is
traced whole.

The walk is that of `folding/stacks.py`. A model that it leaves in doubt is walked once more, with two more blocks.

A list is reduced only if that makes it shorter. Blocks that differ in numbers alone (a scale by depth, a rate of
dropping) make a list that is walked whole, since only their trace tells the numbers (`meshwright.ir.graph.numbers`).
Lists inside reduced blocks (experts, sub-layers) are left alone.
"""

from __future__ import annotations

import contextlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from meshwright.ir.frontends.folding.stacks import SHORT_WALK, Stack, short_walk

_MODULE_STATE = frozenset(nn.Module().__dict__)


def find_stacks(model: nn.Module, seed: int = 0, *, most: int = SHORT_WALK) -> tuple[Stack, ...]:
    """Every list of blocks in which some are alike, apart from open numbers, outermost first; blocks that are not alike
    are searched for lists of their own."""
    found: list[Stack] = []

    def search(module: nn.Module, path: str) -> None:
        numbered = _numbering(module)
        keys = _keys(module) if numbered else ()
        classes = _numbered(keys)
        if len(set(classes)) < len(classes) or len({_but_for_numbers(key) for key in keys}) < len(keys):
            walk = short_walk(classes, seed=f"{path} {seed}", most=most)
            found.append(Stack(path, classes, walk, *(numbered or ())))
        else:
            for name, child in module.named_children():
                search(child, f"{path}.{name}" if path else name)

    search(model, "")
    return tuple(found)


def _numbering(module: nn.Module) -> tuple[str, int] | None:
    """Of containers whose blocks run one after another, under the names 0, 1, 2 or layer1, layer2: what stands before
    the numbers, and the first of them."""
    names = [name for name, _ in module.named_children()]
    if not isinstance(module, nn.ModuleList | nn.Sequential | nn.ModuleDict) or not names:
        return None
    stem = names[0].rstrip("0123456789")
    number = names[0].removeprefix(stem)
    if not number or names != [f"{stem}{int(number) + at}" for at in range(len(names))]:
        return None
    return stem, int(number)


# Like blocks ---------------------------------------------------------------------------------------------------------


_Key = tuple[Hashable, tuple[tuple[str, Hashable], ...]]
"""The structure of a block, and its attributes by name."""


def _numbered(keys: Sequence[Hashable]) -> tuple[int, ...]:
    """A class number for each block of a list, in order of appearance."""
    numbers: dict[Hashable, int] = {}
    return tuple(numbers.setdefault(key, len(numbers)) for key in keys)


def _but_for_numbers(key: _Key) -> Hashable:
    """A block's key without its open numbers (its depth in scales, its dropout rates)."""
    structure, attributes = key
    return structure, tuple((name, None if type(v) in (int, float) else v) for name, v in attributes)


def _keys(blocks: nn.Module) -> tuple[_Key, ...]:
    """A key of each block of a list, without attributes that count the blocks."""
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
    """The structure of a block: submodules, parameters and buffers, and which of these are one tensor."""
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
    """The plain attributes of a block and its submodules, without those that torch keeps for itself."""
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
    """Whether a value only says which block it is in."""
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
    container._modules = OrderedDict((stack.name(i), blocks[p]) for i, p in enumerate(stack.walk))
    for holder in (owner, getattr(owner, "config", None)):
        if hasattr(holder, "__dict__"):
            _shorten_settings(vars(holder), stack, undo)


def _shorten_settings(settings: dict[str, Any], stack: Stack, undo: list[Callable[[], None]]) -> None:
    """Shorten the depth in the settings of a list's owner, or its configuration: the number of layers, and lists of one
    entry per layer."""
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
