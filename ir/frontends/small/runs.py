"""Models that are tried: what one holds and runs, and what a front end must be able to try (`Recipe`).

    settings  ->  model  ->  Run: parameters, buffers, stacks of blocks, and every operator with the shapes that it made

What the settings mean is read off by comparing runs (`meshwright.ir.frontends.small.shrink`). Neither weights nor
activations exist in a trial.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from meshwright.ir.errors import ModelTimedOut
from meshwright.ir.frontends.foreign import TIME_LIMIT_S, contained

BATCH = 2
"""Sequences of a trial."""
MOST_VALUES = 2**27
"""Numbers that a model holds and makes in a step at most, for it to be computed with values."""
ELEMENTWISE, LOOK_UP, CONVOLUTION = "elementwise", "look-up", "convolution"
"""Operators that read parameters otherwise than a product of matrices does."""

Settings = dict[str, Any]
Shape = tuple[int, ...]
Kinds = Mapping[str, Counter[tuple[str, ...]]]
"""Of every stack of blocks by path: how many it has of each kind, by class and by what these hold, in however many
blocks of a stack of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An operator that ran, with its arguments and results.

    - `chances`: numbers that a random operator was given, else None.
    - `rows`: the length of what it looked up in, which no shape shows; `words`: an entry of the batch says where, or
      whole numbers that are made of one.
    - `chosen`: how many of how many a selection keeps.
    """

    name: str
    shapes: tuple[Shape, ...]
    chances: tuple[float, ...] | None = None
    rows: int | None = None
    words: bool = False
    chosen: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A model and one step of it. Parameters and buffers are by path; operators are in order."""

    parameters: Mapping[str, Shape]
    buffers: Mapping[str, Shape]
    kinds: Kinds
    steps: tuple[Step, ...] = ()
    read_by: Mapping[str, str] | None = None
    """The operator that reads a parameter as it is, not through a view; `ELEMENTWISE`, `LOOK_UP` and `CONVOLUTION`
    stand for all that are. One that is not there is read by none."""

    @property
    def held(self) -> Mapping[str, Shape]:
        return {**self.parameters, **self.buffers}

    def unread(self, path: str) -> bool:
        """Whether it ran, and no operator reads this parameter."""
        return self.read_by is not None and path not in self.read_by

    @property
    def size(self) -> int:
        """The amount of numbers that the model holds and makes."""
        return sum(map(prod, self.held.values())) + sum(prod(shape) for one in self.steps for shape in one.shapes)


class Recipe(Protocol):
    """How models of one framework are built of settings, and tried."""

    @property
    def settings(self) -> Settings:
        """Those of the whole model."""

    @property
    def whole(self) -> Any:
        """The whole model."""

    def skeleton(self, model: Any) -> Run:
        """The tensors that a model holds, before it runs."""

    def built(self, settings: Settings) -> Any | None:
        """The model of settings, if they are possible."""

    def run(self, model: Any, settings: Settings, seq: int) -> tuple[Run | None, int]:
        """The tensors and operators of a model, if it runs; with the number of operators that ran, if only until one
        failed."""

    def computed(self, settings: Settings, seq: int) -> float | None:
        """The loss of the model of settings, on values that are drawn, if there is one."""

    def exactly(self) -> Recipe | None:
        """A recipe whose trials run as traces do, if its own do not."""


@contextlib.contextmanager
def tried(place: str) -> Iterator[None]:
    """Build and run impossible settings safely: an exception is an answer, and a run that hangs is refused."""
    with contextlib.suppress(_Impossible):
        try:
            with contained(place, TIME_LIMIT_S):
                yield
        except ModelTimedOut:
            raise
        except Exception as error:
            raise _Impossible from error


class _Impossible(Exception):
    """Settings that make no model."""


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Hide the messages of models whose settings are only tried."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
