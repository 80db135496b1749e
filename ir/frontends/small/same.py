"""Sameness of a model with smaller numbers: which of its dimensions changed, and whether they are still large
enough."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, gcd
from typing import Any

from meshwright.ir.frontends.small.runs import CONVOLUTION, ELEMENTWISE, LOOK_UP, Run, Step
from meshwright.ir.frontends.twin import Scale

UNIT: Mapping[bool, int] = {True: 8, False: 4}
"""By whether it is a parameter's dimension: the ranks that may cut it. A twin has 8 ranks; of those, 4 may cut what is
no parameter: heads over tp and Ulysses, since one axis of a twin has at most 4, and all 8 would leave one copy of the
batch on two axes."""

LEAST: Mapping[str, int] = {"words": 256, "matrix": 64, "stack": 8}
"""The least of a dimension, by its kind: rows of a table that the batch looks up in; rows and columns of a matrix,
which are 8 shards of 8; matrices in a stack, as experts have them, one for each rank. Tables that positions look up in
have two rows for each token."""


def least(scale: Scale, kind: str) -> int:
    """The least of a dimension of this kind."""
    if kind == "positions":
        return 2 * scale.seq
    if kind == "words":
        return max(LEAST[kind], scale.words)
    return LEAST.get(kind, 1)


def divides_alike(one: int, other: int, unit: int) -> bool:
    """Whether as much divides both."""
    return one == other or (gcd(one, unit) == gcd(other, unit) and (one == 1) == (other == 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A dimension that changed; `kind` is one of `LEAST`, "positions", "parameter", "result" or "unread"."""

    kind: str
    after: int
    before: int

    @property
    def held(self) -> bool:
        return self.kind in ("matrix", "stack", "parameter")


def has_fewer_blocks(after: Run, before: Run) -> bool:
    """Whether parameters are gone, and all others that are read are as they were; and of every kind of block two are
    left, if there were two."""
    its, mine = after.held, before.held
    same = its.keys() < mine.keys() and all(its[path] == mine[path] or before.unread(path) for path in its)
    kinds = ((after.kinds[path], kinds) for path, kinds in before.kinds.items() if path in after.kinds)
    return same and all(left[kind] >= min(2, number) for left, kinds in kinds for kind, number in kinds.items())


def has_fewer_repeats(after: Run, before: Run) -> bool:
    """Whether the same operators run fewer times, each with its shapes, and what is held is as it was."""
    left = iter(before.steps)
    fewer = after.held == before.held and len(after.steps) < len(before.steps)
    return fewer and set(after.steps) == set(before.steps) and all(one in left for one in after.steps)


def is_smaller(after: Run, before: Run, scale: Scale) -> bool:
    """Whether it is the same with smaller dimensions: see the module."""
    if not runs_the_same(after, before) or after.size > before.size:
        return False
    changes = changes_between(after, before)
    return bool(changes) and is_enough(after, before, changes, scale)


def is_enough(after: Run, before: Run, changes: Sequence[_Change], scale: Scale) -> bool:
    """Whether dimensions that changed are still large enough."""
    free, least = _selects_less(after, before, changes), _leasts(changes, scale)
    enough = (
        one.kind == "unread"
        or one.after >= one.before
        or (one.after >= bound and (free or divides_alike(one.after, one.before, UNIT[one.held])))
        for one, bound in zip(changes, least, strict=True)
    )
    squares = {path for path in _squares(after) if not before.unread(path)}
    alike = squares <= _squares(before) and all(map(_still_selects, after.steps, before.steps))
    return alike and all(enough)


def _leasts(changes: Sequence[_Change], scale: Scale) -> list[int]:
    """The least size of each dimension. A number of matrices may be less than their rows have to be."""
    stacked = any(one.kind == "stack" for one in changes)
    kinds = ("stack" if stacked and one.kind == "matrix" else one.kind for one in changes)
    return [min(one.before, least(scale, kind)) for one, kind in zip(changes, kinds, strict=True)]


def least_of(after: int, before: int, changes: Sequence[_Change], scale: Scale) -> int:
    """The least value of a number, as far as dimensions grow with it in proportion: two values of it are known, and
    what they have changed."""
    per = [(one.before - one.after) / (before - after) for one in changes]
    needed = zip(changes, _leasts(changes, scale), per, strict=True)
    return max((after + ceil((least - one.after) / slope) for one, least, slope in needed if slope > 0), default=after)


def runs_the_same(after: Run, before: Run) -> bool:
    def structure(run: Run) -> list[Any]:
        held = [(path, len(shape)) for path, shape in run.held.items()]
        return [held, [(one.name, [len(shape) for shape in one.shapes]) for one in run.steps]]

    return structure(after) == structure(before)


def changes_between(after: Run, before: Run) -> tuple[_Change, ...]:
    """All dimensions that changed: of parameters, of buffers, of results, and of what is looked up in."""
    return tuple(dict.fromkeys(_changed(after, before)))


def _changed(after: Run, before: Run) -> Iterator[_Change]:
    for path, shape in before.parameters.items():
        for at, (one, other) in enumerate(zip(after.parameters[path], shape, strict=True)):
            if one != other:
                yield _Change(kind=_kind(before, path, at), after=one, before=other)
    pairs = [(after.buffers[path], shape) for path, shape in before.buffers.items()]
    selected = {one.chosen[1] for one in before.steps if one.chosen}
    for step, old in zip(after.steps, before.steps, strict=True):
        pairs += zip(step.shapes, old.shapes, strict=True)
        if step.rows is not None and old.rows is not None and step.rows != old.rows:
            kind = "words" if old.words else "result" if old.rows in selected else "positions"
            yield _Change(kind=kind, after=step.rows, before=old.rows)
    for its, mine in pairs:
        yield from (
            _Change(kind="result", after=one, before=other)
            for one, other in zip(its, mine, strict=True)
            if one != other
        )


def _kind(run: Run, path: str, at: int) -> str:
    """What a dimension of a parameter is: tables are looked up in; kernels of convolutions, and what is added, are no
    matrices; no more are those that nothing reads, as parts of a model that its batches have nothing for."""
    if run.unread(path):
        return "unread"
    read, dims = (run.read_by or {}).get(path, ""), len(run.parameters[path])
    if dims < 2 or read in (LOOK_UP, ELEMENTWISE, CONVOLUTION):
        return "parameter"
    return "stack" if dims > 2 and at == 0 else "matrix"


def _still_selects(after: Step, before: Step) -> bool:
    """Whether a selection that left something out does so, of as many as two if it was of several."""
    if after.chosen is None or before.chosen is None:
        return True
    (its, of), (mine, all_of) = after.chosen, before.chosen
    return its >= min(2, mine) and (its < of) == (mine < all_of)


def _squares(run: Run) -> set[str]:
    """Parameters that are square matrices, or stacks of them."""
    return {path for path, shape in run.parameters.items() if len(shape) > 1 and shape[-1] == shape[-2]}


def _selects_less(after: Run, before: Run, changes: Sequence[_Change]) -> bool:
    """Whether a number sizes a selection and what comes of it, and no parameter: no rank has a part of that."""
    chosen = any(one.chosen != other.chosen for one, other in zip(after.steps, before.steps, strict=True))
    return chosen and not any(one.held for one in changes)


def is_less_random(after: Run, before: Run) -> bool:
    """Whether fewer operators are random, or with other chances, while all others are unchanged."""
    if after.held != before.held or [one.chances for one in after.steps] == [one.chances for one in before.steps]:
        return False
    left = iter(before.steps)
    return all(any(one.name == other.name and one.shapes == other.shapes for other in left) for one in after.steps)
