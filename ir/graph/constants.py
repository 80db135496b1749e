"""Constants of a model, each as a few lines of torch code that make it.

A graph's `constant` operators have a law, a digest of the expression that makes them. Code that is written for a graph
needs the expression itself: position indices, rotary tables and masks are no parameters, and nobody else has them. A
`Constant` is that expression, as lines of code of its framework; plain data here.

In lines, values stand as %name, the device is `DEVICE`, and what is read from elsewhere
is a hole: `{held:0}` a tensor that the model has, `{data:0}` an array that comes with the constant. `Constant.code`
fills all of them in. Sizes are those of the batch and sequence that were traced; `resized` writes them for another
batch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from meshwright.ir.quoting import attribute, constant, literal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meshwright.ir.graph.graph import Attr

HELD = "{held:%d}"
DATA = "{data:%d}"
_HOLE = re.compile(r"\{(held|data):(\d+)\}")
_NAME = re.compile(r"%(\w+)")
_NUMBER = re.compile(r"(?<![\w.])(\d+)(?![\w.])")

DEVICE = "{device}"
"""Stands in an expression for where the model's inputs lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A tensor that the model has: a buffer, or a plain attribute of a module.

    The path is one inside the block that the constant stands in if it is `relative`, else one of the whole model. An
    attribute that is a list or a dictionary has the tensor under `keys`.
    """

    path: str
    relative: bool
    buffer: bool
    keys: tuple[str | int, ...] = ()

    @property
    def name(self) -> str:
        """The user's name for the tensor."""
        return self.path.rpartition(".")[2]

    def read(self, holder: str) -> str:
        """An expression that reads the tensor, given one for the block, or for the model if the path is not
        relative."""
        if self.buffer:
            return f"{holder}.get_buffer({literal(self.path)})"
        around, _, name = self.path.rpartition(".")
        inside = f"{holder}.get_submodule({literal(around)})" if around else holder
        return attribute(inside, name) + "".join(f"[{constant(key)}]" for key in self.keys)


@dataclass(frozen=True, slots=True, eq=False)
class Data:
    """Values that no expression makes, too many to be written out: a file beside the code holds them."""

    name: str
    values: NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A constant as lines of code; the last line makes it.

    - A line is (name, expression), and reads names of earlier lines only. Names are unique, and are no words that
      scripts use for something else.
    - `shape` and `dtype` are those of the result, on the batch that was traced.
    - A `batched` one has a size that grows with the batch: on another batch it has other lines.
    - The lines of a `listed` one have arrays written out: on another batch these may be too many values for that.
    - `problem` says why it cannot be made; there are no lines then.
    """

    shape: tuple[int, ...]
    dtype: str
    lines: tuple[tuple[str, str], ...] = ()
    held: tuple[Held, ...] = ()
    data: tuple[Data, ...] = ()
    batched: bool = False
    listed: bool = False
    problem: str = ""

    def code(
        self,
        *,
        device: str,
        held: Callable[[Held], str],
        data: Callable[[Data], str] = lambda data: data.name,
        taken: Collection[str] = (),
    ) -> tuple[tuple[str, str], ...]:
        """The lines in Python, with expressions for the device, for the model's tensors and for NumPy arrays, and with
        no name that is taken."""
        names: dict[str, str] = {}
        for name, _ in self.lines:
            fresh, number = name, 2
            while fresh in taken or fresh in names.values():
                fresh, number = f"{name}_{number}", number + 1
            names[name] = fresh

        def filled(found: re.Match[str]) -> str:
            at = int(found[2])
            return held(self.held[at]) if found[1] == "held" else data(self.data[at])

        def written(expression: str) -> str:
            named = _NAME.sub(lambda found: names[found[1]], expression).replace(DEVICE, device)
            return _HOLE.sub(filled, named)

        return tuple((names[name], written(expression)) for name, expression in self.lines)

    @property
    def text(self) -> str:
        """The lines as people read them: tensors of the model stand under their paths."""
        lines = self.code(device="device", held=lambda one: one.read("block" if one.relative else "model"))
        return "\n".join(f"{name} = {expression}" for name, expression in lines)


def resized(few: Constant, more: Constant | None, rows: int, batch: int) -> Constant:
    """The constant at this batch, from its lines at `rows` and at twice as many sequences: a number that doubles is
    proportional to the batch. Any other difference is refused."""
    why = f"at another batch than {rows}, it is made of something else"
    other = replace(few, lines=(), held=(), data=(), problem=few.problem or why)
    if more is None or few.problem or more.problem or few.held != more.held or few.data or more.data:
        return other
    try:
        shape, lines = proportional((few.shape, few.lines), (more.shape, more.lines), rows, batch)
    except ValueError:
        return other
    return replace(few, shape=shape, lines=lines)


Sized = TypeVar("Sized", bound="Attr")


def proportional(one: Sized, twice: Sized, rows: int, batch: int) -> Sized:
    """A value with sizes in it at this batch, from the one at `rows` and at twice as many sequences: a number that
    doubles, in texts and tuples too, is proportional to the batch. Raises `ValueError` where they differ otherwise."""
    here: Any = one
    there: Any = twice
    if type(here) is not type(there):
        raise ValueError(twice)
    found: Any = here
    if isinstance(here, str):
        found = "".join(_rewritten(here, there, rows, batch))
    elif isinstance(here, tuple):
        found = tuple(proportional(part, other, rows, batch) for part, other in zip(here, there, strict=True))
    elif here != there and type(here) is int:
        found = _resized(here, there, rows, batch)
    elif here != there:
        raise ValueError(twice)
    return cast("Sized", found)


def _resized(one: int, twice: int, rows: int, batch: int) -> int:
    if twice != 2 * one or one % rows:
        raise ValueError(twice)
    return one // rows * batch


def _rewritten(one: str, twice: str, rows: int, batch: int) -> Iterator[str]:
    """A text at another batch, part by part."""
    for at, (part, other) in enumerate(zip(_NUMBER.split(one), _NUMBER.split(twice), strict=True)):
        if at % 2:
            yield str(proportional(int(part), int(other), rows, batch))
        elif part == other:
            yield part
        else:
            raise ValueError(other)


def batched(constants: Mapping[str, Constant], laws: Collection[str]) -> dict[str, Constant]:
    """The constants, with those of these laws marked as growing with the batch."""
    return {law: replace(one, batched=law in laws) for law, one in constants.items()}
