"""Prices of collectives: `collective(kind, nbytes, shape)` in seconds, with provenance.

`nbytes` counts one tensor as one rank sees it whole (`laws` lists it for every kind); `shape` is what
`topology.group_shape` found. A measured curve of this kind on this device and group is read where there is one, else
the library's law. All of it but the arithmetic on bytes is kept by shape: a price takes a microsecond or two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from meshwright.cost_models.collectives.curves import NO_CURVES, Curves, Reader, matching, shipped
from meshwright.cost_models.collectives.laws import COLLECTIVES, LIBRARIES, Collective, Law, Library, law
from meshwright.cost_models.collectives.topology import GroupShape
from meshwright.cost_models.hardware.quantity import Kind
from meshwright.ir.errors import CollectiveUnknown

__all__ = ["COLLECTIVES", "FREE", "LIBRARIES", "NO_CURVES", "Collective", "Curves", "Library", "Priced", "collective"]


@dataclass(frozen=True, slots=True)
class Priced:
    """Seconds of a collective, their provenance, and the algorithm or curve that they come from."""

    seconds: float
    provenance: Kind
    how: str


FREE = Priced(0.0, "measured", "nothing to move")


def collective(
    kind: Collective,
    nbytes: float,
    shape: GroupShape,
    library: Library = "nccl",
    *,
    imbalance: float = 1.0,
    curves: Curves | None = None,
    least: bool = False,
) -> Priced:
    """The time of a collective. `imbalance` (all_to_all) is the fullest rank's load over the mean; `curves` replaces
    the shipped ones, `NO_CURVES` leaves the law alone. `least`: of the same bytes in any number of collectives; a law,
    which is concave, takes least for all at once."""
    if nbytes <= 0 or shape.ranks == 1:
        if nbytes < 0:
            raise CollectiveUnknown(place=str(kind), cause=f"{nbytes:g} bytes", fix="give zero or more")
        return FREE
    if shape.also:
        alone = (replace(shape, also=()), *shape.also)
        each = [
            collective(kind, nbytes, one, library, imbalance=imbalance, curves=curves, least=least) for one in alone
        ]
        return max(each, key=lambda one: one.seconds)
    price, reader, worth = _pricer(kind, shape, library, imbalance, curves or shipped())
    if reader is not None:
        seconds = reader.least_s(nbytes) if least else reader.seconds(nbytes)
        return Priced(seconds, worth, "measured curve")
    seconds, how = price.best(nbytes)
    return Priced(seconds, price.provenance, how)


@lru_cache(maxsize=65_536)
def _pricer(
    kind: Collective, shape: GroupShape, library: Library, imbalance: float, curves: Curves
) -> tuple[Law, Reader | None, Kind]:
    found = law(kind, shape, library, imbalance)
    match = matching(kind, shape, curves, library)
    if match is None:
        return found, None, found.provenance
    curve, there = match
    if there.levels == shape.levels:
        return found, Reader(curve.points, found.clock), "measured"
    return found, Reader(curve.points, found.clock, law(kind, there, library, imbalance).clock), "fitted"
