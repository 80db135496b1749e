"""Blocks that the backward pass computes again, by `jax.checkpoint` around their equations of the traced loss.

Of a scan that is its body, of blocks that are written out the equations from the first to the last that is known to lie
in one (`Places.spans`). Gathered parameters enter a block from outside, so they are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from meshwright.backends.jax_.emit.shardings import Shardings
from meshwright.backends.subject import Piece
from meshwright.ir.errors import EmissionRecompute
from meshwright.ir.quoting import literal


def again(shardings: Shardings) -> dict[str, int | None]:
    """By the place of its first equation, the number after that of a block's last; None where all of a body is one."""
    found: dict[str, int | None] = {}
    for piece in shardings.subject.pieces:
        found |= dict(_again(shardings, piece))
    return dict(sorted(found.items(), key=lambda item: (item[1] or 0, item[0])))


def _again(shardings: Shardings, piece: Piece) -> Iterator[tuple[str, int | None]]:
    paths = piece.segment.paths
    if piece.ahead is not None:  # the first blocks alone
        paths = paths[: piece.ahead.first]
    elif not piece.plan.recompute:
        return
    if not piece.repeated:
        raise _refuse(piece, "it is no block")
    scan = shardings.scan(paths[0])
    if scan is None:
        yield from (_span(shardings.spans, piece, path) for path in paths)
    elif piece.ahead is None:
        yield f"{scan.place}/0", None
    else:
        raise _refuse(piece, "a scan computes all of its blocks again, or none")


def _span(spans: Mapping[str, tuple[int, int]], piece: Piece, path: str) -> tuple[str, int]:
    first, last = spans[path]
    alike = [one for one in spans.values() if one[0] < last and first < one[1]]
    if len(alike) > 1:
        raise _refuse(piece, "its equations lie in one with those of other blocks")
    return str(first), last


def _refuse(piece: Piece, why: str) -> EmissionRecompute:
    return EmissionRecompute(
        place=f"plan {piece.plan.name}", cause=f"it is computed again, and {why}", ways=("--fix recompute=none",)
    )


def table(blocks: Mapping[str, int | None]) -> Iterator[str]:
    """The table AGAIN; blocks of the same length at the same distance as one line."""
    yield "AGAIN: dict[str, int | None] = {  # of blocks that are computed again, from the first equation to the last"
    yield from (f"    {literal(place)}: {last}," for place, last in blocks.items())
    yield "}"
