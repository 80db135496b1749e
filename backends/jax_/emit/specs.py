"""PartitionSpecs as data, and placements as such."""

from __future__ import annotations

from meshwright.ir.errors import EmissionModule
from meshwright.ir.sharding.layouts import CONTIGUOUS
from meshwright.ir.sharding.placement import Placement

Spec = tuple[tuple[str, ...], ...]
"""Of every dimension the mesh axes that cut it; trailing ones that are whole are left out."""


def ended(spec: list[tuple[str, ...]]) -> Spec:
    """Without dimensions at the end that are whole."""
    while spec and not spec[-1]:
        spec.pop()
    return tuple(spec)


def spec_of(placement: Placement, what: str) -> Spec:
    """A placement of even shards as a PartitionSpec."""
    for shard in (shard for dim in placement.dims for shard in dim):
        if shard.layout != CONTIGUOUS:
            raise EmissionModule(
                place=what, cause=f"no code is written for shards {shard}", ways=("--fix tp=1", "--fix zero=0")
            )
    return ended([tuple(shard.axis for shard in dim) for dim in placement.dims])


def without(spec: Spec | None, axes: tuple[str, ...]) -> Spec | None:
    """A PartitionSpec that does not speak of these axes."""
    return None if spec is None else ended([tuple(axis for axis in dim if axis not in axes) for dim in spec])
