"""Fused weights: products that yield several values side by side (queries, keys and values; gate and up), of each of
which a rank of the tensor axis computes its part.

Shards of a DTensor are runs of rows. So the rows of such weights are put into another order when a script starts: first
the parts of the first rank, then those of the second. Where whole weights are shown or kept they are in the model's
order (`writing.sections`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from meshwright.backends.subject import Piece
from meshwright.ir.graph.fold import joined
from meshwright.ir.sharding.layouts import CONTIGUOUS, Layout, Nested, Sections

Sizes = tuple[int, ...]
Cut = tuple[int, Sizes, str]
"""The dimension that has sections, their sizes, and the axis that cuts each."""
Fused = Mapping[str, Cut]
"""Of one body the parameters that yield values side by side, and how they are cut."""
What = TypeVar("What")
NUMBER = re.compile(r"(?<!\d)\d+(?![^.])")
"""A part of a name that is a number."""
COUNTED = re.compile(r"(?<=\\\.)\d+(?=\\\.)")
"""The same of a regular expression of names."""


def sizes_of(layout: Layout, extent: int) -> Sizes:
    """The sections of a weight's dimension of so many elements, of each of which a rank has its part; equal runs are
    sections, too. Empty where the dimension is cut otherwise."""
    if isinstance(layout, Nested) and layout.layout == CONTIGUOUS:
        return (extent // layout.runs,) * layout.runs
    return layout.sizes if isinstance(layout, Sections) else ()


def named(pieces: Iterable[Piece], several: Iterable[tuple[Piece, Fused]]) -> dict[str, Cut]:
    """The fused parameters of pieces, each with its sections, by a regular expression of its names."""
    fused = {(piece.first, piece.plan.name): one for piece, one in several}
    return by_name(
        (piece, path, fused.get((piece.first, piece.plan.name), {}).get(path))
        for piece in pieces
        for param in piece.graph.params
        for path in param.paths
    )


def by_name(several: Iterable[tuple[Piece, str, What | None]]) -> dict[str, What]:
    """Facts about parameters of bodies, by regular expressions of their names in all instances."""
    given = list(several)
    said = {joined(at, path): what for piece, path, what in given for at in piece.around()}
    alike = dict[tuple[str, ...], list[What | None]]()
    for name, what in said.items():
        for key in ((name,), *((name[: one.start()], name[one.end() :]) for one in NUMBER.finditer(name))):
            alike.setdefault(key, []).append(what)
    found = dict[str, What]()
    for piece, path, what in given:
        if what is not None:
            others = any(one != what for one in alike[_around_number(piece, path)])
            found[pattern(piece, path, of=piece.instances().numbers if others and piece.repeated else ())] = what
    return found


def whatever_numbers(names: Iterable[str], others: Collection[str]) -> tuple[str, ...]:
    """Regular expressions widened to any numbers in names, unless one would then match another's names: blocks that are
    not called have no body of their own, and are listed one by one."""
    several = {name: COUNTED.sub(r"\\d+", name) for name in names}
    wrong = {wide for wide in set(several.values()) if any(re.fullmatch(wide, name) for name in others)}
    return tuple(dict.fromkeys(name if wide in wrong else wide for name, wide in several.items()))


def _around_number(piece: Piece, path: str) -> tuple[str, ...]:
    """The texts around the number in the names that `pattern` matches for all instances of a body; the name, if there
    is none."""
    every = piece.instances() if piece.repeated else None
    return (path,) if every is None else (every.before, f"{every.after}.{path}")


def pattern(piece: Piece, path: str, of: tuple[int, ...] = ()) -> str:
    """The names of a parameter in all instances of a body, as a regular expression; only those `of` these numbers where
    others of the list are another body's."""
    if not piece.repeated:
        return re.escape(path)
    every = piece.instances()
    numbers = rf"(?:{'|'.join(map(str, of))})" if of else r"\d+"
    return rf"{re.escape(every.before)}{numbers}{re.escape(every.after)}\.{re.escape(path)}"
