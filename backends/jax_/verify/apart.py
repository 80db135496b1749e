"""Micro-batches that the reference runs one by one, too: those of a model to which a smaller batch means something
else, since it normalises by statistics of it, or hands on what it changes. A plan of several micro-batches changes what
such a model computes, which planning says; what is held against the run is the model on one device, given the same
micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np

from meshwright.backends.jax_.emit.accumulation import ONCE, data_axes, form_of, weight_of
from meshwright.backends.jax_.emit.model import changes, draws
from meshwright.backends.subject import Subject
from meshwright.ir.analysis.microbatch import microbatch
from meshwright.ir.analysis.weights import COUNT, SUM
from meshwright.ir.graph.fold import shortened, unfold

Batch = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """How a batch is cut, and how each part weighs: a `Weight` as plain data."""

    microbatches: int = 1
    copies: int = 1
    """How many copies draw random numbers of their own, each for its part of every micro-batch."""
    kind: str = SUM.kind
    entry: str = ""
    steps: Sequence[tuple[str, Mapping[str, Any]]] = ()

    @staticmethod
    def of(subject: Subject) -> Cuts:
        """Those in which the reference of a plan is given its batch: one piece, where micro-batches change nothing."""
        count, data = subject.program.microbatches, data_axes(subject.program, subject.mesh.names)
        several = count > 1 or form_of(subject.program, data) == ONCE
        apart = several and (changes(subject) or not microbatch(unfold(shortened(subject.fold, 2))).legal)
        if not apart:
            return Cuts()
        weight = weight_of(subject)
        steps = tuple((step.kind, dict(step.attrs)) for step in weight.steps)
        copies = 1
        if draws(subject) and form_of(subject.program, data) == ONCE:
            copies = prod(subject.mesh.axis(axis).size for axis in data)
        return Cuts(microbatches=count, copies=copies, kind=weight.kind, entry=weight.entry, steps=steps)

    def plain(self) -> dict[str, Any]:
        """The same for a file."""
        return asdict(self)

    def parts(self, batch: Batch) -> Iterator[tuple[float, int, Batch]]:
        """Every micro-batch of every copy with its weight, which is its part of all that counts, and the copy."""
        cut = {name: np.split(np.asarray(one), self.microbatches * self.copies) for name, one in batch.items()}
        for at in range(self.microbatches * self.copies):
            part = {name: several[at] for name, several in cut.items()}
            weight = self._counted(part) / self._counted(batch) if self.kind != SUM.kind else 1.0
            yield weight, at % self.copies, part

    def _counted(self, batch: Batch) -> float:
        """The number that a batch counts for: its samples, unless targets count."""
        if self.kind != COUNT:
            return len(next(iter(batch.values())))
        values = np.asarray(batch[self.entry])
        for kind, attrs in self.steps:
            values = _stepped(kind, attrs, values)
        return float(values.sum())


def _stepped(kind: str, attrs: Mapping[str, Any], values: Any) -> Any:
    """One step of what is counted; the others compare."""
    compared = {"ne": np.not_equal, "eq": np.equal, "lt": np.less, "le": np.less_equal, "gt": np.greater}
    if kind == "not":
        return np.logical_not(values)
    if kind == "slice":
        limits = slice(*(attrs[name] for name in ("start", "end", "step")))
        return values[(*[slice(None)] * attrs["dim"], limits)]
    return {**compared, "ge": np.greater_equal}[kind](values, attrs["scalar"])
