"""Discovery of an operator's rule, by trying the operator on tiny tensors.

    operator, how it is called, types of its tensors  ->  Found: a rule as `register_rule` takes it

A loop is *parallel* where running the operator on the pieces of its operands and concatenating the results gives the
whole, and a *sum* where adding them does. The gradients must agree as well: for pieces, the gradient of an operand that
was cut is put together from cut gradients, that of one which was not is their sum. Each claim is tried on several
draws of values and on pieces of equal and unequal lengths, the shortest of one index, so that windows and strides show.
One loop may be in several operands (the batch in a sequence and in a hidden state): dimensions of equal extent are cut
together, as many as possible first, earlier ones first, and shapes on the meta device tell most attempts apart from
values. The extents tried are small ones that stand for those of the call; its other arguments stay as they are.

What is found is a claim about values that were tried, and is checked like a rule that a user wrote
(`meshwright.backends.torch_.verify.interpreted.rules`). How much is tried is counted, not timed: equal calls have equal
rules everywhere. Operators that give something else each time are left alone; what ends the process in which it is
tried (kernels do not check all that they are given) is no loop, and the search begins again without it.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from meshwright.ir.frontends.torch_.operators.aside import Board, Crashed, Hung, aside
from meshwright.ir.frontends.torch_.operators.invoked import overload_of
from meshwright.ir.frontends.torch_.operators.trials import SMALLEST, Cut, Drawn, Shape, Trial, is_differentiable
from meshwright.ir.graph.graph import Attr, Type
from meshwright.ir.graph.invocation import arguments, filled

MOST_ELEMENTS = 1 << 21
"""Of all tensors of a trial."""

LARGEST_FIXED = 8
"""Extents that an operator may ask for as they are."""

LARGEST_MULTIPLE = 16
MOST_COMBINED = 4096
MOST_SMALL = 48
"""Ways to make the extents small that are tried."""

MOST_CRASHES = 32
"""Processes that an operator may end."""

MOST_ATTEMPTS = 96
"""Sets of dimensions that are cut together, for one extent."""


LOOP = "n"
"""How the names of loops begin; what must be whole has other ones."""


@dataclass(frozen=True, slots=True)
class Found:
    """A rule as `meshwright.ir.rules.opaque.register_rule` takes it."""

    rule: str
    whole: tuple[str, ...] = ()
    reduce: tuple[str, ...] = ()
    linear: tuple[int, ...] = ()

    @property
    def attrs(self) -> dict[str, Attr]:
        """Its attributes of an opaque operator."""
        given: dict[str, Attr] = {
            "rule": self.rule,
            "whole": self.whole,
            "reduce": self.reduce,
            "linear": self.linear,
        }
        return {name: value for name, value in given.items() if value != ()}

    @property
    def loops(self) -> frozenset[str]:
        """The names of its loops that are not whole."""
        return frozenset(re.findall(rf"\b{LOOP}\d+", self.rule))

    def points(self, operands: Sequence[Type]) -> int:
        """The number of points of its loops that are not whole."""
        sizes: dict[str, int] = {}
        for words, type_ in zip(self.rule.partition("->")[0].split(","), operands, strict=True):
            sizes |= dict(zip(words.split(), type_.shape, strict=False))
        return prod(size for word, size in sizes.items() if word.startswith(LOOP))


@lru_cache(maxsize=4096)
def discovered(target: str, call: Attr, operands: tuple[Type, ...], results: tuple[Type, ...]) -> Found | None:
    """The rule of the operator of this traced name, if trials show one."""
    overload = overload_of(target)
    if overload is None or not operands:
        return None
    call = _sure(overload, call)
    given = tuple(small(tuple(type_.shape for type_ in operands), said=_numbers(call)))

    board = Board()

    def tried() -> Found | None:
        for shapes in given:
            if (found := _tried(overload, call, shapes, operands, results, board)) is not None:
                return found.answer
        return None

    for _ in range(MOST_CRASHES):
        try:
            return aside(tried)
        except Hung:
            return None
        except Crashed:
            if not board.avoid():
                return None
    return None


@dataclass(frozen=True, slots=True)
class _Answer:
    """The finding of trials at some extents."""

    answer: Found | None


def _tried(
    overload: Any,
    call: Attr,
    shapes: tuple[Shape, ...],
    operands: tuple[Type, ...],
    results: tuple[Type, ...],
    board: Board,
) -> _Answer | None:
    """The loops of the operator at these extents; none if it does not run at them."""
    with (
        warnings.catch_warnings(),
        torch.random.fork_rng(devices=()),
        torch.device("cpu"),
        torch.enable_grad(),
    ):
        warnings.simplefilter("ignore")
        trial = Trial(overload, call, operands, shapes, board)
        if (made := trial.shapes(shapes)) is None or not _alike(operands, results, shapes, made):
            return None
        if sum(map(prod, (*shapes, *made))) > MOST_ELEMENTS or not trial.prepare():
            return None
        return _Answer(_Search(trial, operands, results, shapes, made).found())


def _sure(overload: Any, call: Attr) -> Attr:
    """The call with dropout off: a mask does not change which loops are parallel."""
    names = iter(one.name for one in overload._schema.arguments if not one.kwarg_only)
    return tuple(
        (name, 0.0 if (name or next(names)) in ("dropout", "dropout_p") else argument)
        for name, argument in arguments(call)
    )


def _numbers(call: Attr) -> set[int]:
    """The integers among a call's arguments."""

    def leaf(_: str, held: Attr) -> set[int]:
        return {held} if isinstance(held, int) and not isinstance(held, bool) else set()

    return set().union(*(filled(argument, leaf, lambda many: set().union(*many)) for _, argument in arguments(call)))


def small(shapes: tuple[Shape, ...], said: Set[int] = frozenset()) -> Iterator[tuple[Shape, ...]]:
    """Small extents in place of those of the call, equal for equal, in the order in which they are tried.

    An extent may be a multiple of another, or be fixed by the operator (two coordinates): which are, only it knows.
    Fresh numbers come first, but for numbers that the call says, too (how many layers), which are first tried as they
    are; then few elements. Where none fits, the leading dimensions alone are made small; then none is."""
    extents = sorted({extent for shape in shapes for extent in shape if extent > 1})
    options: list[list[int | None]] = [
        [
            None,
            *([0] if extent <= LARGEST_FIXED or extent in said else ()),
            *(b for b in extents if extent % b == 0 and 1 < extent // b <= LARGEST_MULTIPLE),
        ]
        for extent in extents
    ]
    found: list[tuple[int, int, tuple[Shape, ...]]] = []
    for bases in itertools.islice(itertools.product(*options), MOST_COMBINED):
        sizes = _sized(extents, bases)
        if sizes is not None:
            made = tuple(tuple(sizes.get(extent, extent) for extent in shape) for shape in shapes)
            unlikely = sum((base == 0) != (one in said) for one, base in zip(extents, bases, strict=True))
            found.append((unlikely, sum(map(prod, made)), made))
    yield from dict.fromkeys(made for _, _, made in sorted(found)[:MOST_SMALL])
    for leading in (1, 2):
        first = sorted({extent for shape in shapes for extent in shape[:leading] if extent > 1})
        sizes = {extent: SMALLEST + 2 * at for at, extent in enumerate(first)}
        yield tuple(
            tuple(sizes.get(extent, extent) if at < leading else extent for at, extent in enumerate(shape))
            for shape in shapes
        )
    yield shapes


def _sized(extents: Sequence[int], bases: Sequence[int | None]) -> dict[int, int] | None:
    """A size for each extent: a fresh one (none), its own (0), or a multiple of another one; none if two coincide."""
    sizes: dict[int, int] = {extent: extent for extent, base in zip(extents, bases, strict=True) if base == 0}
    fresh = itertools.count(SMALLEST, 2)
    for extent, base in zip(extents, bases, strict=True):
        if base is None:
            sizes[extent] = next(size for size in fresh if size not in sizes.values())
        elif base:
            size = sizes[base] * (extent // base)
            if size in sizes.values():
                return None
            sizes[extent] = size
    return sizes


def _alike(operands: Sequence[Type], results: Sequence[Type], shapes: Sequence[Shape], made: Sequence[Shape]) -> bool:
    """Whether results relate to tiny operands as they do to those of the call: of equal extents where they were."""
    if [len(shape) for shape in made] != [len(type_.shape) for type_ in results]:
        return False
    sizes: dict[int, set[int]] = {}
    for before, after in zip(
        (*(type_.shape for type_ in operands), *(type_.shape for type_ in results)), (*shapes, *made), strict=True
    ):
        for extent, size in zip(before, after, strict=True):
            sizes.setdefault(extent, set()).add(size)
    return all((extent == 1) == (found == {1}) for extent, found in sizes.items())


@dataclass(slots=True)
class _Loop:
    """A loop that was found, with its places in operands and results."""

    name: str
    operands: Cut
    results: Cut

    @property
    def sums(self) -> bool:
        return None in self.results


@dataclass(slots=True)
class _Search:
    """The search for the loops of one operator, one after the other."""

    trial: Trial
    operands: Sequence[Type]
    results: Sequence[Type]
    shapes: tuple[Shape, ...]
    made: tuple[Shape, ...]
    loops: list[_Loop] = field(default_factory=list)

    def found(self) -> Found | None:
        for extent in self._extents():
            for attempt in itertools.islice(self._attempts(extent), MOST_ATTEMPTS):
                if self._free(attempt, self.loops, "operands") and (cut := self._tried(attempt, extent)) is not None:
                    self.loops.append(_Loop(f"{LOOP}{len(self.loops)}", attempt, cut))
        return self._written() if self.loops else None

    def _extents(self) -> list[int]:
        """The extents of operands, those of leading dimensions first."""
        found = {(at, extent) for shape in self.shapes for at, extent in enumerate(shape) if extent > 1}
        return list(dict.fromkeys(extent for _, extent in sorted(found)))

    def _attempts(self, extent: int) -> Iterator[Cut]:
        """Dimensions to cut together: many operands before few, early dimensions before late ones."""
        options: list[tuple[int | None, ...]] = [
            (*(at for at, size in enumerate(shape) if size == extent), None) for shape in self.shapes
        ]
        attempts = [
            cut for cut in itertools.islice(itertools.product(*options), 4096) if any(d is not None for d in cut)
        ]
        attempts.sort(key=lambda cut: (cut.count(None), sum(d for d in cut if d is not None)))
        yield from attempts

    @staticmethod
    def _free(cut: Cut, loops: Sequence[_Loop], side: str) -> bool:
        """Whether no loop stands in these dimensions yet."""
        return all(dim is None or getattr(loop, side)[at] != dim for loop in loops for at, dim in enumerate(cut))

    def _tried(self, attempt: Cut, extent: int) -> Cut | None:
        """The places of the loop in the results, if it is one."""
        found: set[Cut] = set()
        for sizes in ((extent // 2, extent - extent // 2), (1, extent - 1)):
            cut = self._shaped(attempt, extent, sizes)
            if cut is None:
                return None
            found.add(cut)
            if len(found) > 1 or not self._free(cut, self.loops, "results"):
                return None
            if not all(self._agrees(draw, attempt, cut, extent, sizes) for draw in self.trial.draws):
                return None
        return found.pop()

    def _shaped(self, attempt: Cut, extent: int, sizes: Sequence[int]) -> Cut | None:
        """The dimensions of results that are as long as the pieces, by shapes alone; none for a result that is whole
        in each piece."""
        found: set[Cut] = set()
        for size in sizes:
            pieces = tuple(
                shape if dim is None else (*shape[:dim], size, *shape[dim + 1 :])
                for shape, dim in zip(self.shapes, attempt, strict=True)
            )
            made = self.trial.shapes(pieces)
            if made is None or len(made) != len(self.made):
                return None
            dims: list[int | None] = []
            for whole, part in zip(self.made, made, strict=True):
                if len(whole) != len(part):
                    return None
                unlike = [at for at, (a, b) in enumerate(zip(whole, part, strict=True)) if a != b]
                if len(unlike) > 1 or any(whole[at] % extent or whole[at] * size != part[at] * extent for at in unlike):
                    return None
                dims.append(unlike[0] if unlike else None)
            found.add(tuple(dims))
        return found.pop() if len(found) == 1 else None

    def _agrees(self, draw: Drawn, attempt: Cut, cut: Cut, extent: int, sizes: Sequence[int]) -> bool:
        """Whether pieces give the whole, forward and backward."""
        given = list(
            zip(*(_pieces(x, d, extent, sizes) for x, d in zip(draw.values, attempt, strict=True)), strict=True)
        )
        results = [self.trial.run(one) for one in given]
        if any(one is None for one in results):
            return False
        same = self.trial.same
        if not all(
            same(_joined(parts, dim), whole)
            for parts, dim, whole in zip(
                zip(*(one for one in results if one is not None), strict=True), cut, draw.results, strict=True
            )
        ):
            return False
        if all(grad is None for grad in draw.grads):
            return True
        seeds = list(
            zip(*((None,) * len(sizes) if s is None else _pieces(s, d, extent, sizes)
                  for s, d in zip(draw.seeds, cut, strict=True)), strict=True)
        )  # fmt: skip
        grads = [self.trial.gradients(one, seed) for one, seed in zip(given, seeds, strict=True)]
        for at, (dim, whole) in enumerate(zip(attempt, draw.grads, strict=True)):
            parts = [grad[at] for grad in grads]
            if whole is None or any(part is None for part in parts):
                if whole is not None or any(part is not None for part in parts):
                    return False
            elif not same(_joined([part for part in parts if part is not None], dim), whole):
                return False
        return True

    def _linear(self) -> tuple[int, ...]:
        """The operands in which the results are linear."""
        if any(not is_differentiable(one.dtype) for one in self.trial.draws[0].results):
            return ()
        return tuple(at for at, type_ in enumerate(self.operands) if type_.floating and self._is_linear(at))

    def _is_linear(self, at: int) -> bool:
        for draw in self.trial.draws:
            x = draw.values[at]
            other = x.flip(tuple(range(x.dim()))) * 0.7 + 0.3
            makes = [self.trial.run((*draw.values[:at], one, *draw.values[at + 1 :])) for one in (other, x * 2 + other)]
            if any(one is None for one in makes):
                return False
            apart, together = (one or () for one in makes)
            if not all(self.trial.same(2 * a + b, c) for a, b, c in zip(draw.results, apart, together, strict=True)):
                return False
        return True

    def _written(self) -> Found:
        whole: list[str] = []

        def fresh() -> str:
            whole.append(f"w{len(whole)}")
            return whole[-1]

        def tensor(type_: Type, tiny: Shape, side: str, at: int) -> str:
            words = []
            for dim, extent in enumerate(type_.shape):
                loop = next((one for one in self.loops if getattr(one, side)[at] == dim), None)
                if extent == 1 and loop is None:
                    words.append("1")
                elif loop is None:
                    words.append(fresh())
                elif side == "results" and tiny[dim] != self._size(loop):
                    words.append(f"({loop.name} {fresh()})")
                else:
                    words.append(loop.name)
            return " ".join(words) or "()"

        sides = [
            ", ".join(tensor(type_, tiny, side, at) for at, (type_, tiny) in enumerate(zip(types, tinies, strict=True)))
            for side, types, tinies in (
                ("operands", self.operands, self.shapes),
                ("results", self.results, self.made),
            )
        ]
        sums = tuple(loop.name for loop in self.loops if loop.sums)
        return Found(" -> ".join(sides), tuple(whole), sums, self._linear())

    def _size(self, loop: _Loop) -> int:
        return next(self.shapes[at][dim] for at, dim in enumerate(loop.operands) if dim is not None)


def _pieces(x: Tensor, dim: int | None, extent: int, sizes: Sequence[int]) -> list[Tensor]:
    """The parts of a tensor in each piece: all of it where it is not cut."""
    if dim is None:
        return [x] * len(sizes)
    unit = x.shape[dim] // extent
    return list(torch.split(x, [size * unit for size in sizes], dim))


def _joined(parts: Sequence[Tensor], dim: int | None) -> Tensor:
    if dim is not None:
        return torch.cat(list(parts), dim)
    total = parts[0]
    for part in parts[1:]:
        total = total + part if total.dtype is not torch.bool else total
    return total
