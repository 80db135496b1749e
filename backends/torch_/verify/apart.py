"""Micro-batches that the reference runs one by one, too: those of a model to which a smaller batch means something
else, since it normalises by statistics of it, for instance. A plan of several micro-batches changes what such a model
computes, which planning says; what is held against the run is the model on one device, given the same micro-batches.

Every rank cuts its own part of a batch into micro-batches, so the first one holds the first sequences of each rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.backends.subject import Subject
from meshwright.backends.torch_.emit.printed.axes import axes_of
from meshwright.backends.torch_.emit.read.heterogeneous import kinds_of
from meshwright.backends.torch_.emit.write.steps.weighing import weight_of
from meshwright.ir.analysis.microbatch import microbatch
from meshwright.ir.analysis.weights import COUNT, SUM, Step, Weight
from meshwright.ir.graph.fold import shortened, unfold
from meshwright.ir.sharding.shares import shares_along


@dataclass(frozen=True, slots=True)
class Apart:
    """Cuts of a batch, with the weight of each part."""

    microbatches: int
    shares: tuple[int, ...]
    """What ranks take of a batch, relative to one another."""
    weight: Weight

    def parts(self, batch: dict[str, Tensor]) -> Iterator[tuple[float, dict[str, Tensor]]]:
        """Every micro-batch with its weight: its part of all that counts."""
        every = len(next(iter(batch.values())))
        each = every // sum(self.shares)
        ranks = torch.arange(every).split([each * share for share in self.shares])
        for rows in zip(*(rank.chunk(self.microbatches) for rank in ranks), strict=True):
            part = {name: tensor[torch.cat(rows)] for name, tensor in batch.items()}
            yield self.counted(part) / self.counted(batch) if self.weight != SUM else 1.0, part

    def counted(self, batch: Mapping[str, Tensor]) -> float:
        """The number that a batch counts for: its samples, unless targets count."""
        if self.weight.kind != COUNT:
            return len(next(iter(batch.values())))
        values = batch[self.weight.entry]
        for step in self.weight.steps:
            values = _stepped(step, values)
        return float(values.sum())


def _stepped(step: Step, values: Tensor) -> Tensor:
    """One step of what is counted; the others are `weights.COMPARED`."""
    attrs = dict(step.attrs)
    if step.kind == "not":
        return values.logical_not()
    if step.kind == "pad":
        return F.pad(values, cast(Any, attrs["pad"]), value=cast(Any, attrs["value"]))
    if step.kind == "slice":
        dim, *limits = (cast(Any, attrs[name]) for name in ("dim", "start", "end", "step"))
        return values[(*[slice(None)] * dim, slice(*limits))]
    return cast(Tensor, getattr(values, step.kind)(attrs["scalar"]))


def apart_of(subject: Subject) -> Apart | None:
    """The cuts in which the reference of a plan is given its batch; None: in one piece, where micro-batches change
    nothing."""
    count = subject.decisions.schedule.microbatches
    if count == 1 or microbatch(unfold(shortened(subject.fold, 2))).legal:
        return None
    kinds = kinds_of(subject)
    axes = axes_of(kinds[0]).batch if len(kinds) == 1 else ()
    copies = prod(kinds[0].mesh.axis(axis).size for axis in axes)
    return Apart(count, shares_along(subject.decisions, axes) or (1,) * copies, weight_of(subject))
