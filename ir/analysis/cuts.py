"""Cuts: the places where a model can be divided into pipeline stages, and the values that would cross there.

A cut lies after a call (a block boundary), or inside a body that runs once, after an operator where few differentiable
values are alive. Cutting there sends every *live* value forward and its gradient, if it has one, backward:

    live        is computed before the cut and read after it
    recomputed  is live, but depends on no parameter and no gradient and costs little: RoPE tables, masks, positions.
                Every stage computes it from the model inputs; nothing crosses
    skips     is live and older than the block just before: if the boundary before is cut as well, it is handed
                through the stage in between (the encoder's result, T5's shared bias, a U-Net's skip connections)
    inputs      model inputs read after the cut: every stage loads the data that it reads
    shared      parameters read on both sides: each side has a copy, and their gradients are summed (tied weights)

Invariants:

- A value is in exactly one of `live` and `recomputed`; `skips` is a part of `live`.
- What one cut lists is what the calls after it read from the calls before it, no more: the loss and other results of
  the model stay where they are computed.
- Boundaries cover each repeat of each position once: their counts add up to the calls of the fold minus one.
  Neighbouring repeats of one position with equal lists are one `Cut` with a count.

Repeats are not written out: of every segment the first two, one middle and the last repeat are unfolded, the lists are
read off the short graph, and the middle one counts for all that it stands for. (Two, so that the middle one can tell
what is always made one repeat before from what was made in the first.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import inf

from meshwright.ir.graph.fold import Call, Fold, shortened, unfold
from meshwright.ir.graph.graph import Graph, Op, Type
from meshwright.ir.rules.base import Engine, Law
from meshwright.ir.rules.registry import rule_of, signature_of

FEW = 2
"""Inside a body, cuts are listed where at most this many differentiable values are alive: x and one residual."""

RECOMPUTE_FACTOR = 32
"""A value is recomputed if this takes at most so many floating-point operations and bytes moved, together, as it has
bytes: memory and arithmetic are at least that much faster than any link that a stage boundary may lie on."""

SHOWN = 4
"""How many repeats of a segment are unfolded; the last but one stands for all that are not."""


@dataclass(frozen=True, slots=True)
class Live:
    """A value that is alive at a cut, named by where it is computed, the same in every repeat.

    `age` counts the calls since, 0 for the block just before the cut; it is None for values of other segments, and for
    those that are older than one period.
    """

    segment: int
    position: int
    value: str
    type: Type
    gradient: bool
    age: int | None

    def __str__(self) -> str:
        back = "" if self.age is None else f" {self.age} back" * bool(self.age)
        return f"{self.segment}[{self.position}].%{self.value}: {self.type}{back}" + " grad" * self.gradient


@dataclass(frozen=True, slots=True)
class Cut:
    """A place where the fold may be cut: after call (segment, position) in the repeats `first` to `first + count - 1`,
    or, inside that call, after the operator with index `op`."""

    segment: int
    position: int
    first: int
    count: int
    op: int | None
    live: tuple[Live, ...]
    skips: tuple[Live, ...]
    recomputed: tuple[Live, ...]
    inputs: tuple[str, ...]
    shared: tuple[str, ...]

    @property
    def forward_bytes(self) -> int:
        return sum(value.type.nbytes for value in self.live)

    @property
    def backward_bytes(self) -> int:
        return sum(value.type.nbytes for value in self.live if value.gradient)

    def __str__(self) -> str:
        op = "" if self.op is None else f" op {self.op}"
        parts = [("", self.live), ("recomputed ", self.recomputed)]
        shown = "; ".join(f"{head}{', '.join(map(str, values))}" for head, values in parts if values)
        return f"after {self.segment}[{self.position}]{op} x {self.count}: {shown or 'nothing'}"


def cuts(fold: Fold, few: int = FEW) -> tuple[Cut, ...]:
    """Every cut of the fold, by segment, repeat and position; inside bodies those where at most `few` differentiable
    values are alive."""
    found: dict[tuple[object, ...], list[Cut]] = {}
    for cut in _Liveness(fold).cuts(few):
        runs = found.setdefault((cut.segment, cut.position, cut.op), [])
        if runs and _same(runs[-1], cut):
            runs[-1] = replace(runs[-1], count=runs[-1].count + cut.count)
        else:
            runs.append(cut)
    return tuple(sorted((cut for runs in found.values() for cut in runs), key=_order))


def _same(left: Cut, right: Cut) -> bool:
    return replace(left, first=0, count=0) == replace(right, first=0, count=0)


def _order(cut: Cut) -> tuple[int, int, int, float]:
    return cut.segment, cut.first, cut.position, inf if cut.op is None else cut.op


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of the short fold: its operators, the repeat that it shows, and the number of repeats that it stands
    for."""

    call: Call
    number: int
    start: int
    stop: int
    repeat: int
    count: int


@dataclass(frozen=True, slots=True)
class _Origin:
    call: _Call
    value: str


class _Liveness:
    """The life of every value of the short unfolded graph: where it is computed, and where it is last read."""

    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        self.graph = unfold(shortened(fold, SHOWN))
        self.calls = tuple(_calls(fold))
        self.origin = dict(self._origins())
        self.born = {value: index for index, op in enumerate(self.graph.ops) for value in op.results}
        self.dies = {value: places[-1][0] for value, places in self.graph.readers.items() if places}
        self._open: dict[str, None] = {}
        self._at = -1

    def cuts(self, few: int) -> Iterator[Cut]:
        for call in self.calls:
            if self.fold.segments[call.call.segment].repeats == 1:
                yield from self._inside(call, few)
            if call is not self.calls[-1]:
                yield self._cut(call, call.stop - 1, None)

    def _inside(self, call: _Call, few: int) -> Iterator[Cut]:
        for index in range(call.start, call.stop - 1):
            if 0 < self._differentiable[index] <= few:
                yield self._cut(call, index, index - call.start)

    def _origins(self) -> Iterator[tuple[str, _Origin]]:
        for call in self.calls:
            for op, unfolded in zip(call.call.body.graph.ops, self.graph.ops[call.start : call.stop], strict=True):
                for value, result in zip(op.results, unfolded.results, strict=True):
                    yield result, _Origin(call, value)

    def _alive(self, index: int) -> list[str]:
        """Values computed up to this operator and read after it, in order of computation. Asked in order, all calls
        together take one walk over the graph."""
        if index < self._at:
            self._open, self._at = {}, -1
        for at in range(self._at + 1, index + 1):
            for value in dict.fromkeys(self.graph.ops[at].operands):
                if self.dies[value] == at:
                    self._open.pop(value, None)
            self._open |= dict.fromkeys(value for value in self.graph.ops[at].results if self.dies.get(value, -1) > at)
        self._at = index
        return list(self._open)

    @cached_property
    def _differentiable(self) -> tuple[int, ...]:
        """The number of live values whose gradient some reader computes, after every operator."""
        changes = [0] * (len(self.graph.ops) + 1)
        for value in self._wanted:
            if value in self.born and self.born[value] < self.dies.get(value, -1):
                changes[self.born[value]] += 1
                changes[self.dies[value]] -= 1
        return tuple(accumulate(changes))

    def _cut(self, call: _Call, index: int, op: int | None) -> Cut:
        alive = self._alive(index)
        live = tuple(self._live(value, call) for value in alive if value not in self._cheap)
        again = tuple(self._live(value, call) for value in alive if value in self._cheap)
        skips = tuple(value for value in live if value.age != 0)
        inputs = tuple(
            item.value
            for item in self.graph.inputs
            if self.dies.get(item.value, -1) > index or self._feeds(item.value, alive)
        )
        place = call.call
        return Cut(
            place.segment,
            place.position,
            call.repeat,
            call.count,
            op,
            live,
            skips,
            again,
            inputs,
            self._shared(index),
        )

    def _live(self, value: str, at: _Call) -> Live:
        origin = self.origin[value]
        made, place = origin.call.call, at.call
        age = at.number - origin.call.number
        known = made.segment == place.segment and age <= len(self.fold.segments[place.segment].period)
        return Live(
            made.segment,
            made.position,
            origin.value,
            self.graph.types[value],
            value in self._wanted,
            age if known else None,
        )

    def _shared(self, index: int) -> tuple[str, ...]:
        """Parameters that are read both up to this operator and after it."""
        readers = self.graph.readers
        return tuple(
            param.path
            for param in self.graph.parameters()
            if readers[param.value] and readers[param.value][0][0] <= index < readers[param.value][-1][0]
        )

    def _feeds(self, name: str, alive: list[str]) -> bool:
        """Whether an input is read after the cut because a value that is recomputed there depends on it."""
        return any(value in self._cheap and name in self._sources[value] for value in alive)

    @cached_property
    def _wanted(self) -> frozenset[str]:
        """Values whose gradient some reader computes."""
        wanted = set()
        for op in self.graph.ops:
            if not op.no_grad and any(value in self.graph.differentiable for value in op.results):
                laws = rule_of(op, self.graph.types).laws
                wanted |= {value for value, law in zip(op.operands, laws, strict=True) if law is not Law.INDEX}
        return frozenset(wanted) & self.graph.differentiable

    @cached_property
    def _sources(self) -> Mapping[str, frozenset[str]]:
        """The model inputs behind every value that has no parameter behind it."""
        known: dict[str, frozenset[str]] = {item.value: frozenset((item.value,)) for item in self.graph.inputs}
        known |= {param.value: frozenset() for param in self.graph.params if param.buffer}
        for op in self.graph.ops:
            if all(value in known for value in op.operands):
                behind = frozenset(name for value in op.operands for name in known[value])
                known |= dict.fromkeys(op.results, behind)
        return known

    @cached_property
    def _cheap(self) -> frozenset[str]:
        """Values that a stage recomputes: without a parameter or gradient behind them, and with little work."""
        work: dict[str, Mapping[str, float]] = {}
        cheap = set()
        for op in self.graph.ops:
            if op.name not in self._sources or any(value in self.graph.differentiable for value in op.results):
                continue
            cone = {name: cost for value in op.operands for name, cost in work.get(value, {}).items()}
            cone[op.name] = _work(op, self.graph)
            for value in op.results:
                work[value] = cone
                if sum(cone.values()) <= RECOMPUTE_FACTOR * self.graph.types[value].nbytes:
                    cheap.add(value)
        return frozenset(cheap)


def _work(op: Op, graph: Graph) -> float:
    """Floating-point operations and bytes moved, together: a coarse measure is enough to tell a table from a model."""
    rule = rule_of(op, graph.types)
    return rule.flops() + (0 if rule.engine is Engine.VIEW else rule.nbytes(signature_of(op, graph.types)))


def _calls(fold: Fold) -> Iterator[_Call]:
    """The calls of the short fold, with the repeats of the long one that they stand for."""
    at = 0
    for number, call in enumerate(shortened(fold, SHOWN).calls()):
        stop = at + len(call.body.graph.ops)
        repeats = fold.segments[call.segment].repeats
        repeat = repeats - 1 if call.repeat == SHOWN - 1 else call.repeat
        count = repeats - SHOWN + 1 if call.repeat == SHOWN - 2 and repeats > SHOWN else 1
        yield _Call(call, number, at, stop, repeat, count)
        at = stop
