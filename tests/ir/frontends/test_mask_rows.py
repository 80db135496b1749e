"""Which rows of a mask are looked at, which sizes of chunks are tried, and masks of other shapes."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from numpy.typing import NDArray

from meshwright.ir.frontends.folding.masks import MaskLaw, recognise
from meshwright.ir.frontends.folding.terms import Term

Mask = NDArray[numpy.bool_]


def apart(queries: int, keys: int) -> NDArray[numpy.int64]:
    """By how much a key is before a query, the last of each being at one place."""
    return numpy.arange(queries)[:, None] + keys - queries - numpy.arange(keys)


def law(mask: NDArray[numpy.generic]) -> MaskLaw | None:
    dtype = "bool" if mask.dtype == bool else "f32"
    return recognise(Term("", mask.shape, dtype, data=mask))


def window(width: int, queries: int = 64, keys: int = 64) -> Mask:
    found = apart(queries, keys)
    return (found >= 0) & (found < width)


def chunk(width: int, queries: int, keys: int) -> Mask:
    place = numpy.arange(queries)[:, None] + keys - queries
    return (place // width == numpy.arange(keys) // width) & (apart(queries, keys) >= 0)


@pytest.mark.parametrize("row", [0, 1, 6, 7, 8, 12, 25, 38, 51, 57, 62, 63])
@pytest.mark.parametrize("lead", [(), (3,), (2, 1)])
def test_rows_at_which_laws_change_are_looked_at(row: int, lead: tuple[int, ...]) -> None:
    """Of a window of 7 of 64: the ends, around 7, 7 before the end, every fifth part; in the first and last entry."""
    mask = numpy.broadcast_to(window(7), (*lead, 64, 64)).copy()
    assert law(mask) == MaskLaw("window", 7)
    for column, at in ((0, 0), (0, -1), (63, 0), (63, -1)):
        changed = mask.copy()
        changed[*(at for _ in lead), row, column] ^= True
        assert law(changed) is None


LAWS: list[tuple[NDArray[Any], MaskLaw | None]] = [
    (window(7, 8, 64), MaskLaw("window", 7)),
    (window(8, 8, 8), MaskLaw("causal")),
    (window(7, 8, 8), MaskLaw("window", 7)),
    (window(1, 8, 8), MaskLaw("window", 1)),
    (window(99, 1, 8), MaskLaw("full")),
    (window(3, 1, 8), MaskLaw("window", 3)),
    (numpy.abs(apart(8, 64)) < 5, MaskLaw("band", 5)),
    (numpy.abs(apart(64, 64)) < 1, MaskLaw("window", 1)),
    (chunk(16, 64, 64), MaskLaw("chunk", 16)),
    (chunk(16, 40, 40), MaskLaw("chunk", 16)),
    (chunk(16, 8, 40), MaskLaw("chunk", 8)),
    (chunk(12, 40, 40), MaskLaw("chunk", 12)),
    (chunk(3, 40, 40), MaskLaw("chunk", 3)),
    (chunk(39, 40, 40), MaskLaw("chunk", 39)),
    (numpy.ones((2, 8, 8), dtype=bool), MaskLaw("full")),
    (numpy.stack([window(7), window(7)]), MaskLaw("window", 7)),
    (numpy.stack([window(7), window(6)]), None),
    (numpy.stack([window(6), window(7)]), None),
    (numpy.stack([[window(7)], [window(6)]]), None),
    (numpy.zeros((8, 8), dtype=bool), None),
    (numpy.ones(8, dtype=bool), None),
    (numpy.where(window(7), 0.0, -1e4), MaskLaw("window", 7)),
    (numpy.where(window(7), 0.0, -9999.0), None),
    (numpy.where(window(7), 0.5, -1e9), None),
    (numpy.where(window(7), 0.0, numpy.where(apart(64, 64) > 0, -1e9, -numpy.inf)), MaskLaw("window", 7)),
]


def test_laws_of_masks() -> None:
    """The simplest law; the last eight queries of 40 in chunks of 16 are as well in one of 8."""
    for number, (mask, wanted) in enumerate(LAWS):
        assert law(mask) == wanted, number
