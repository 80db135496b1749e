"""Micro-batches that the reference runs one by one, too: those of a model to which a smaller batch means something
else, since it normalises by statistics of it, for instance. A plan of several micro-batches changes what such a model
computes, which planning says; what is held against the run is the model on one device, given the same micro-batches.

Every rank cuts its own part of a batch into micro-batches, so the first one holds the first sequences of each rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from meshwright.backends.torch_.emit.axes import axes_of
from meshwright.backends.torch_.emit.subject import Subject
from meshwright.backends.torch_.emit.unlike import kinds_of
from meshwright.backends.torch_.emit.writing.step import targets_of
from meshwright.ir.fold import shortened, unfold
from meshwright.ir.microbatch import microbatch
from meshwright.ir.shares import shares_along


@dataclass(frozen=True, slots=True)
class Apart:
    """How a batch is cut, and which of its entries says how much each part weighs."""

    microbatches: int
    shares: tuple[int, ...]
    """What ranks take of a batch, relative to one another."""
    labels: str
    ignored: int

    def parts(self, batch: dict[str, Tensor]) -> Iterator[tuple[float, dict[str, Tensor]]]:
        """Every micro-batch and its weight: its part of all positions that have a target."""
        targets = (batch[self.labels] != self.ignored).sum().item()
        each = len(batch[self.labels]) // sum(self.shares)
        ranks = torch.arange(len(batch[self.labels])).split([each * share for share in self.shares])
        for rows in zip(*(rank.chunk(self.microbatches) for rank in ranks), strict=True):
            part = {name: tensor[torch.cat(rows)] for name, tensor in batch.items()}
            yield (part[self.labels] != self.ignored).sum().item() / targets, part


def apart_of(subject: Subject) -> Apart | None:
    """How the reference of a plan is given its batch; None: in one piece, of which micro-batches change nothing."""
    count = subject.decisions.schedule.microbatches
    if count == 1 or microbatch(unfold(shortened(subject.fold, 2))).legal:
        return None
    kinds = kinds_of(subject)
    axes = axes_of(kinds[0]).batch if len(kinds) == 1 else ()
    copies = prod(kinds[0].mesh.axis(axis).size for axis in axes)
    return Apart(count, shares_along(subject.decisions, axes) or (1,) * copies, *targets_of(subject))
