"""Dialects: the ways in which operators and moves are written, and an operator as they are given it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from meshwright.ir.graph.graph import Attr, Op, Param, Type
from meshwright.ir.program.routes import Way
from meshwright.ir.sharding.layouts import Layout
from meshwright.ir.sharding.placement import State
from meshwright.ir.sharding.reshard import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOp:
    """An operator as one rank runs it.

    - `given` and `made` are the types of its shards, on this rank.
    - `cuts` has, for every factor that axes split, these and their layouts, major to minor; `sizes` the global sizes of
      all factors.
    """

    op: Op
    given: tuple[Type, ...]
    made: tuple[Type, ...]
    whole: tuple[Type, ...]
    """The types of its whole operands; rows of experts have one leading dimension here, too."""
    cuts: Mapping[str, tuple[tuple[str, Layout], ...]]
    sizes: Mapping[str, int]
    parts: Mapping[str, int]
    """Into how many parts each of these factors is split."""
    coupled: tuple[str, ...] = ()
    """The axes that split a coupled pair: rings."""
    rows: tuple[bool, ...] = ()
    """Of an operator on rows of experts (`rows`), which operands these are. It reads after its operands what tells
    experts' rows apart."""

    @property
    def attrs(self) -> dict[str, Attr]:
        return dict(self.op.attrs)


class Dialect(Protocol):
    """The way in which operators and moves are written. Texts name what they read by position, `%0` and so on."""

    def operator(self, call: LocalOp) -> str:
        """The expression of an operator; of a tuple, if it has several results."""

    def move(self, way: Way, type_: Type, *, trained: bool) -> tuple[str, str]:
        """The expression of a change of placement, with a comment."""

    def moves(self, ways: Sequence[Way], type_: Type) -> tuple[str, str]:
        """The expression of several changes of placement that share a step of the value or of its gradient: of a tuple
        of values."""

    def trip(self, step: Step) -> str:
        """What tells how rows of experts travel, by the step that takes them there, and where each expert's end there;
        of where they end here. Steps of rows have the number of what they read of that for a dimension, and for a
        target the one along which rows are in parts."""

    def entry(self, state: State, type_: Type) -> str:
        """A rank's part of an input that it is given whole, but for the batch."""

    def parameter(self, param: Param, state: State, path: str) -> str:
        """A rank's part of a parameter or buffer; `path` is relative to the module whose code it stands in."""

    def by_rank(self, axis: str, numbers: Sequence[str]) -> str:
        """The number of this rank along an axis."""

    def update(self) -> str:
        """A statement that writes a buffer, `%0`; empty where functions return what it is then."""

    def detached(self, text: str) -> str:
        """A value as an operator without gradients reads it."""

    def let_go(self, names: Sequence[str]) -> str:
        """A statement after which variables hold nothing; empty where values go without one."""
