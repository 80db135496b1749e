"""What it takes to bring a value from one placement to another.

The steps between two placements (`ir.reshard`) are the same for all values; what they take depends on bytes. So there
is one table of steps for a mesh, by number of placement, and for every size of a value one vector of seconds, by number
of step: the price of many moves at once is a look-up and a sum. A step is known by its kind, its axes, and the share of
the tensor that a rank holds before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import cast

import numpy as np

from meshwright.cost_models.collectives import Collective
from meshwright.cost_models.ledger import Phase, Transmission
from meshwright.ir.mesh import Mesh
from meshwright.ir.placement import Placement
from meshwright.ir.reshard import path
from meshwright.planner.block.exposure import Exposure
from meshwright.planner.block.space import Terms
from meshwright.planner.block_solver.problem import Array

LONGEST = 12
"""Steps of a path that a row of the table holds; two per axis of three, and as many again."""


@dataclass(frozen=True, slots=True)
class _Step:
    kind: str
    axes: tuple[str, ...]
    parts: int
    """Ranks that share the tensor before the step."""


@dataclass(slots=True)
class Moves:
    """Prices of moves of values and gradients on one mesh."""

    mesh: Mesh
    terms: Terms
    exposure: Exposure
    picks: int = 1
    """Experts that a token goes to, where values are exchanged between tokens and experts."""
    numbers: dict[Placement, int] = field(default_factory=dict)
    placements: list[Placement] = field(default_factory=list)
    steps: dict[_Step, int] = field(default_factory=dict)
    table: np.ndarray = field(default_factory=lambda: np.full((0, 0, LONGEST), -2, dtype=np.int16))
    """Steps between two placements: -1 pads, and what is not known yet begins with -2."""
    gathers: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int16))
    """The place of the first all-gather among them."""
    priced: dict[tuple[float, int, bool], float] = field(default_factory=dict)

    def number(self, placement: Placement) -> int:
        """The number of a placement; trailing whole dimensions do not matter."""
        if placement not in self.numbers:
            dims = placement.dims
            while dims and not dims[-1]:
                dims = dims[:-1]
            short = Placement(dims, placement.partial)
            if short not in self.numbers:
                self.numbers[short] = len(self.placements)
                self.placements.append(short)
            self.numbers[placement] = self.numbers[short]
        return self.numbers[placement]

    def seconds(
        self, nbytes: float, sources: Sequence[Placement], targets: Sequence[Placement], *, backward: bool
    ) -> Array:
        """From every source to every target, for a tensor of so many bytes."""
        rows, columns = self.known(sources, targets)
        return self.lasting(nbytes, backward=backward)[self.table[np.ix_(rows, columns)]].sum(axis=2)

    def again(self, nbytes: float, sources: Sequence[Placement], targets: Sequence[Placement]) -> Array:
        """What runs once more in the backward pass where gathered values are let go: from the first gather on."""
        rows, columns = self.known(sources, targets)
        taken = self.lasting(nbytes, backward=True)[self.table[np.ix_(rows, columns)]]
        first = self.gathers[np.ix_(rows, columns)]
        return np.where(np.arange(LONGEST) >= first[:, :, None], taken, 0.0).sum(axis=2)

    def lasting(self, nbytes: float, *, backward: bool) -> Array:
        """Seconds of every step for a tensor of this size; the last entry, for padding, is zero."""
        steps = [*self.steps, None]
        return np.array([0.0 if step is None else self.price(step, nbytes, backward=backward) for step in steps])

    def price(self, step: _Step, nbytes: float, *, backward: bool) -> float:
        key = nbytes, self.steps[step], backward
        if key not in self.priced:
            local = nbytes / step.parts
            n = prod(self.mesh.axis(axis).size for axis in step.axes)
            full = local * n if step.kind == "all_gather" else local
            picks = self.picks if step.kind == "all_to_all" else 1
            sent = Transmission(cast(Collective, step.kind), step.axes, full, "value", picks=picks)
            phase = Phase()
            phase.transmissions[sent] = 1
            self.priced[key] = self.exposure.seconds(self.terms.cost(phase, self.mesh), backward=backward)
        return self.priced[key]

    def known(self, sources: Sequence[Placement], targets: Sequence[Placement]) -> tuple[list[int], list[int]]:
        """The numbers of placements, with the steps between them in the table."""
        rows, columns = [self.number(p) for p in sources], [self.number(p) for p in targets]
        grown = len(self.placements)
        if grown > len(self.table):
            size = max(grown, 2 * len(self.table))
            table = np.full((size, size, LONGEST), -2, dtype=np.int16)
            gathers = np.full((size, size), LONGEST, dtype=np.int16)
            old = len(self.table)
            table[:old, :old], gathers[:old, :old] = self.table, self.gathers
            self.table, self.gathers = table, gathers
        unknown = np.argwhere(self.table[np.ix_(rows, columns)][:, :, 0] == -2)
        for row, column in unknown:
            self.enter(rows[row], columns[column])
        return rows, columns

    def enter(self, row: int, column: int) -> None:
        if self.table[row, column, 0] != -2:
            return
        source, target = _same_rank(self.placements[row], self.placements[column])
        held, found = source, []
        for step, reached in path(source, target, self.mesh, self.terms.lowering.moves):
            if not step.free:
                if step.kind == "all_gather" and self.gathers[row, column] == LONGEST:
                    self.gathers[row, column] = len(found)
                found.append(self.steps.setdefault(_Step(step.kind, step.axes, self.parts(held)), len(self.steps)))
            held = reached
        self.table[row, column] = (*found, *[-1] * (LONGEST - len(found)))

    def parts(self, placement: Placement) -> int:
        return prod(self.mesh.axis(shard.axis).size for dim in placement.dims for shard in dim)


def _same_rank(one: Placement, other: Placement) -> tuple[Placement, Placement]:
    rank = max(one.rank, other.rank)
    return tuple(Placement((*p.dims, *[()] * (rank - p.rank)), p.partial) for p in (one, other))  # type: ignore[return-value]
