"""Prices of moving values from one placement to another.

The steps between two placements (`ir.sharding.reshard`) are the same for all values; what they take depends on bytes.
So there is one table of steps for a mesh, by number of placement, and for every size of a value one vector of seconds,
by number of step: the price of many moves at once is a look-up and a sum. A step is known by its kind, its axes, and
the share of the tensor that a rank holds before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import cast

import numpy as np

from meshwright.cost_models.collectives.collective import Collective
from meshwright.cost_models.ledger.ledger import Phase, Transmission
from meshwright.ir.sharding.layouts import Layout, Nested, Sections
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Dim, Placement, Shard
from meshwright.ir.sharding.reshard import path
from meshwright.planner.block.exposure import Exposure
from meshwright.planner.block.space import Terms
from meshwright.planner.block_solver.problem import Array

LONGEST = 12
"""Steps of a path that a row of the table holds; two per axis of three, and as many again."""

MANY_AXES = 3
"""From so many axes on, dimensions are put in one order (`Moves.shortened`)."""


@dataclass(frozen=True, slots=True)
class _Step:
    kind: str
    axes: tuple[str, ...]
    parts: int
    """Ranks that share the tensor before the step."""


@dataclass
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
    summed: dict[tuple[float, tuple[Placement, ...], tuple[Placement, ...], bool], Array] = field(default_factory=dict)
    """Seconds of many moves at once, as they were asked for: values of one size often have the same states."""
    paths: dict[tuple[Placement, Placement], tuple[_Step, ...]] = field(default_factory=dict)

    @cached_property
    def sizes(self) -> dict[str, int]:
        return {axis.name: axis.size for axis in self.mesh.axes}

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
        key = nbytes, tuple(sources), tuple(targets), backward
        if key not in self.summed:
            rows, columns = self.known(sources, targets)
            taken: Array = self.lasting(nbytes, backward=backward)[self.table[np.ix_(rows, columns)]]
            self.summed[key] = np.asarray(taken.sum(axis=2))
        return self.summed[key]

    def again(self, nbytes: float, sources: Sequence[Placement], targets: Sequence[Placement]) -> Array:
        """Steps that run once more in the backward pass where gathered values are released: from the first gather
        on."""
        rows, columns = self.known(sources, targets)
        taken = self.lasting(nbytes, backward=True)[self.table[np.ix_(rows, columns)]]
        first = self.gathers[np.ix_(rows, columns)]
        return np.asarray(np.where(np.arange(LONGEST) >= first[:, :, None], taken, 0.0).sum(axis=2))

    def lasting(self, nbytes: float, *, backward: bool) -> Array:
        """Seconds of every known step for a tensor of this size; the last entry, for padding, is zero."""
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
        """The numbers of placements, registered in the table with the steps between them."""
        rows, columns = [self.number(p) for p in sources], [self.number(p) for p in targets]
        grown = len(self.placements)
        if grown > len(self.table):
            size = max(grown, 2 * len(self.table))
            table = np.full((size, size, LONGEST), -2, dtype=np.int16)
            gathers = np.full((size, size), LONGEST, dtype=np.int16)
            old = len(self.table)
            table[:old, :old], gathers[:old, :old] = self.table, self.gathers
            self.table, self.gathers = table, gathers
        for row in dict.fromkeys(rows):
            for column in dict.fromkeys(columns):
                if self.table[row, column, 0] == -2:
                    self.enter(row, column)
        return rows, columns

    def enter(self, row: int, column: int) -> None:
        source, target, common = self.shortened(self.placements[row], self.placements[column])
        key = source, target
        if key not in self.paths:
            self.paths[key] = self.walked(source, target)
        found = [
            self.steps.setdefault(replace(step, parts=step.parts * common), len(self.steps)) for step in self.paths[key]
        ]
        kinds = [step.kind for step in self.paths[key]]
        self.gathers[row, column] = kinds.index("all_gather") if "all_gather" in kinds else LONGEST
        self.table[row, column] = (*found, *[-1] * (LONGEST - len(found)))

    def walked(self, source: Placement, target: Placement) -> tuple[_Step, ...]:
        """The steps between two placements that move something."""
        found, held = [], source
        for step, reached in path(source, target, self.mesh, self.terms.lowering.moves):
            if not step.free:
                found.append(_Step(step.kind, step.axes, self.parts(held)))
            held = reached
        return tuple(found)

    def shortened(self, source: Placement, target: Placement) -> tuple[Placement, Placement, int]:
        """A move without the parts that source and target have in common, and the number of ranks that share the tensor
        for that. On many axes dimensions are sorted too: moves that differ only in their order take the same steps, but
        for ties."""
        rank, common, rows = max(source.rank, target.rank), 1, []
        for at in range(rank):
            here = source.dims[at] if at < source.rank else ()
            there = target.dims[at] if at < target.rank else ()
            while here and there and here[0] == there[0]:
                common *= self.sizes[here[0].axis]
                here, there = here[1:], there[1:]
            if here or there:
                rows.append((here, there))
        if len(self.sizes) >= MANY_AXES:
            rows.sort(key=_axes)
        rows = _relabelled(rows)
        shared = set(source.partial) & set(target.partial) if source.partial and target.partial else set()
        return (
            Placement(tuple(row[0] for row in rows), tuple(p for p in source.partial if p not in shared)),
            Placement(tuple(row[1] for row in rows), tuple(p for p in target.partial if p not in shared)),
            common,
        )

    def parts(self, placement: Placement) -> int:
        return prod(self.sizes[shard.axis] for dim in placement.dims for shard in dim)


def _relabelled(rows: list[tuple[Dim, Dim]]) -> list[tuple[Dim, Dim]]:
    """A placement with its layouts numbered: a path depends only on which of them are equal."""
    labels: dict[Layout, Layout] = {}

    def renamed(dim: Dim) -> Dim:
        return tuple(
            Shard(s.axis, labels.setdefault(s.layout, Sections((len(labels) + 1,))))
            if isinstance(s.layout, Sections | Nested)
            else s
            for s in dim
        )

    return [(renamed(here), renamed(there)) for here, there in rows]


def _axes(row: tuple[Dim, Dim]) -> tuple[list[str], list[str]]:
    return [shard.axis for shard in row[0]], [shard.axis for shard in row[1]]
