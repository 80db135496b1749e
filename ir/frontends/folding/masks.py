"""The law of an attention mask, read off a few of its rows.

In: the mask operand of an attention as a constant `Term` of shape [..., queries, keys]; boolean (true: visible) or
additive (0 or -inf). Out: `MaskLaw`: how many keys each query sees, in closed form.

A mask obeys a law if, in every row i, the visible keys are exactly an interval [low(i), high(i)]. With d = keys -
queries (decoding aligns the last query with the last key) the laws tried are, simplest first:

    full       [0, keys)
    causal     [0, i + d]
    window W   (i + d - W, i + d]
    band W     (i + d - W, i + d + W)       sliding window, both ways
    chunk C    [floor((i + d) / C) * C, i + d]

Parameters come from the last row; the law is then checked on every key of the rows that bracket each change of regime,
a few spread evenly, and a few random ones (seeded by the shape, so that two runs agree), in the first and the last
batch entry and head. Anything else is no law: the mask stays an operand.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.ir.frontends.folding.terms import Array, NotEvaluable, Term


@dataclass(frozen=True, slots=True)
class MaskLaw:
    """`kind` is full, causal, window, band or chunk; `width` is W or C for the last three, else 0."""

    kind: str
    width: int = 0


def recognise(mask: Term) -> MaskLaw | None:
    """The law of this mask, or None if it has none that is known."""
    if len(mask.shape) < 2:
        return None
    queries, keys = mask.shape[-2:]
    try:
        return next((law for law in _candidates(mask) if _obeys(mask, law, _telling_rows(queries, keys, law))), None)
    except NotEvaluable:
        return None


def _visible(mask: Term, rows: Array, *, last: bool) -> Array:
    """Booleans [rows, keys]: the keys that these queries see, in the first or the last entry of the leading
    dimensions."""
    lead = tuple(np.asarray(size - 1 if last else 0) for size in mask.shape[:-2])
    values = mask.at((*lead, rows[:, None], np.arange(mask.shape[-1])[None, :]))
    values = np.broadcast_to(values, (len(rows), mask.shape[-1]))
    if values.dtype == np.bool_:
        return values
    hidden = values <= -1e4
    if not np.all(hidden | (values == 0)):
        raise NotEvaluable("an additive mask with other values than 0 and -inf")
    return np.asarray(~hidden)


def _candidates(mask: Term) -> Iterator[MaskLaw]:
    queries, keys = mask.shape[-2:]
    yield MaskLaw("full")
    yield MaskLaw("causal")
    seen = int(_visible(mask, np.array([queries - 1]), last=False).sum())
    if not 0 < seen <= keys:
        return
    yield MaskLaw("window", seen)
    yield MaskLaw("band", seen)
    for width in sorted({seen, *_divisors_seen(keys, seen)}):
        yield MaskLaw("chunk", width)


def _divisors_seen(keys: int, seen: int) -> Iterator[int]:
    """Chunk sizes C for which the last row shows `seen` keys: keys ≡ seen (mod C), C >= seen."""
    rest = keys - seen
    return (rest // k for k in range(1, min(rest, 64) + 1) if rest % k == 0 and rest // k >= seen)


def _bounds(law: MaskLaw, position: Array, keys: int) -> tuple[Array, Array]:
    """First and last visible key of the queries at these aligned positions."""
    zero, end = np.zeros_like(position), np.full_like(position, keys - 1)
    forms: dict[str, Callable[[], tuple[Array, Array]]] = {
        "full": lambda: (zero, end),
        "causal": lambda: (zero, position),
        "window": lambda: (np.maximum(position - law.width + 1, 0), position),
        "band": lambda: (np.maximum(position - law.width + 1, 0), np.minimum(position + law.width - 1, keys - 1)),
        "chunk": lambda: (position // law.width * law.width, position),
    }
    return forms[law.kind]()


def _telling_rows(queries: int, keys: int, law: MaskLaw) -> Array:
    turning = {0, 1, queries - 2, queries - 1, law.width - 1, law.width, law.width + 1, keys - law.width}
    spread = {queries * k // 5 for k in range(1, 5)}
    draw = random.Random(f"{queries}x{keys}")
    chance = {draw.randrange(queries) for _ in range(4)}
    return np.array(sorted(r for r in turning | spread | chance if 0 <= r < queries))


def _obeys(mask: Term, law: MaskLaw, rows: Array) -> bool:
    """Whether every key of these rows is visible exactly where the law says. Row by row: keys may be millions."""
    queries, keys = mask.shape[-2:]
    column = np.arange(keys)[None, :]
    ends = (False,) if all(size == 1 for size in mask.shape[:-2]) else (False, True)
    for row in rows:
        low, high = _bounds(law, np.array([row + keys - queries]), keys)
        expected = (column >= low[:, None]) & (column <= high[:, None])
        if not all(np.array_equal(_visible(mask, np.array([row]), last=last), expected) for last in ends):
            return False
    return True
