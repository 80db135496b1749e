"""Traced operators of torch: name, arguments as handles, types of results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from meshwright.ir.frontends.folding.handles import Handle
from meshwright.ir.frontends.folding.terms import NotEvaluable, Term
from meshwright.ir.frontends.torch_.sources.dtypes import DTYPES
from meshwright.ir.graph.graph import Type


@dataclass(frozen=True, slots=True)
class Literal:
    """A string argument, kept apart from value names."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """One traced operator: its name in `aten::`, arguments by schema name (tensors as handles), and its result types.

    `positional` and `keyword` hold the arguments as they were written, with plain strings: what a `Term` is made of.
    """

    target: str
    args: Mapping[str, Any]
    types: tuple[Type, ...]
    positional: tuple[Any, ...] = ()
    keyword: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.args.get(name)

    @property
    def type(self) -> Type:
        return self.types[0]

    def on(self, first: Handle) -> Call:
        """The same call with another first argument."""
        return replace(self, args={**self.args, next(iter(self.args)): first}, positional=(first, *self.positional[1:]))


def tensor_term(tensor: Tensor) -> Term:
    """A tensor of the module as a constant; on the meta device its data is unknown."""
    shape = tuple(int(extent) for extent in tensor.shape)
    dtype = DTYPES.get(tensor.dtype, "f32")
    unnamed = {} if tensor.dtype in DTYPES else {"dtype": tensor.dtype}
    if tensor.device.type == "meta" or type(tensor).__name__ == "FakeTensor":
        return Term("", shape, dtype, kwargs=unnamed)
    widened = tensor.detach().cpu()
    data = (widened.double() if widened.is_floating_point() else widened).numpy()
    return Term("", shape, dtype, kwargs=unnamed, data=data)


def flat(item: Any) -> list[Any]:
    """The leaves of nested lists and tuples."""
    if isinstance(item, list | tuple):
        return [leaf for part in item for leaf in flat(part)]
    return [item]


def number(item: Any) -> bool:
    return isinstance(item, int | float) and not isinstance(item, str)


def text(item: Any) -> str | None:
    return item.text if isinstance(item, Literal) else None


def nothing(item: Any) -> bool:
    """Whether it is the number zero, or a constant of that."""
    try:
        return bool(item.at(()) == 0) if isinstance(item, Term) and item.shape == () else number(item) and item == 0
    except NotEvaluable:
        return False
