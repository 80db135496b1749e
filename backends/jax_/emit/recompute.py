"""Blocks that the backward pass runs again, by `jax.checkpoint` around their equations of the traced loss.

Of a scan that is its body, of blocks that are written out the equations from the first to the last that is known to lie
in one (`Places.spans`). Either all of a block is computed again, or only its parameters are gathered again, and all
else is kept. Parameters that are kept as they were gathered enter a block from outside.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from meshwright.backends.jax_.emit.shardings import Shardings
from meshwright.backends.jax_.emit.tables import table
from meshwright.backends.subject import Piece
from meshwright.ir.errors import EmissionRecompute
from meshwright.ir.quoting import literal


def again(shardings: Shardings) -> dict[str, int | None]:
    """By the place of its first equation, the number after that of a block's last; None where all of a body is one."""
    found: dict[str, int | None] = {}
    for piece in shardings.subject.pieces:
        found |= dict(_places(shardings, piece, _run_again(shardings, piece)))
    return dict(sorted(found.items(), key=lambda item: (item[1] or 0, item[0])))


def gathered_only(shardings: Shardings) -> set[str]:
    """The places of those of which nothing but parameters is made again."""
    pieces = shardings.subject.pieces
    computed = (_places(shardings, piece, _computed(piece)) for piece in pieces)
    return set(again(shardings)) - {place for several in computed for place, _ in several}


def _computed(piece: Piece) -> tuple[str, ...]:
    """The blocks of a piece that are computed again."""
    if piece.ahead is not None:  # the first blocks alone
        return piece.segment.paths[: piece.ahead.first]
    return piece.segment.paths if piece.plan.recompute else ()


def _run_again(shardings: Shardings, piece: Piece) -> tuple[str, ...]:
    """The blocks of a piece of which anything is made again."""
    return piece.segment.paths if shardings.gathers_again(piece) else _computed(piece)


def _places(shardings: Shardings, piece: Piece, paths: tuple[str, ...]) -> Iterator[tuple[str, int | None]]:
    if not paths:
        return
    if not piece.repeated:
        raise _refuse(piece, "it is no block")
    scan = shardings.scan(paths[0])
    if scan is None:
        yield from (_span(shardings.spans, piece, path) for path in paths)
    elif paths == piece.segment.paths:
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
        place=f"plan {piece.plan.name}",
        cause=f"it is run again, and {why}",
        ways=("--fix recompute=none", "--fix regather=off"),
    )


def tables(shardings: Shardings, blocks: Mapping[str, int | None]) -> Iterator[str]:
    """The tables AGAIN, ONLY_GATHERED and GATHERED."""
    yield "AGAIN: dict[str, int | None] = {  # of blocks that are run again, from the first equation to the last"
    yield from (f"    {literal(place)}: {last}," for place, last in blocks.items())
    yield "}"
    if shardings.gathered_again:
        yield f"ONLY_GATHERED: set[str] = {_set(gathered_only(shardings))}  # of these, where only that is done again"
        yield from table("GATHERED", shardings.gathered_again, "parameters of blocks, where these read them")


def _set(places: Collection[str]) -> str:
    return f"{{{', '.join(map(literal, sorted(places)))}}}" if places else "set()"
