"""One sweep over a graph that replaces patterns.

Operators are read in order; a pattern is recognised at its last one, whose operands were swept before it. It is
replaced by new operators at that place; what nothing reads any more is dropped at the end. New operators keep the
module and the source line of the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from meshwright.ir.graph.graph import Attr, Graph, Op, Type

SPREAD = ("cast", "view")
"""What is seen through where only the numbers matter."""


class Sweep:
    """The operators so far. `constants` has what makes the values that depend on nothing."""

    def __init__(self, graph: Graph, constants: Mapping[str, Any]) -> None:
        self.graph, self.constants = graph, constants
        self.types: dict[str, Type] = dict(graph.types)
        self.producer: dict[str, Op] = {}
        self.ops: list[Op] = []
        self.now: dict[str, str] = {}
        self.like: Op | None = None
        self._number = 0

    # Looking ----------------------------------------------------------------------------------------------------------

    def made(self, value: str, *kinds: str) -> Op | None:
        """The operator that makes a value, if it is of one of these kinds."""
        op = self.producer.get(value)
        return op if op is not None and op.kind in kinds else None

    def through(self, value: str, *kinds: str) -> str:
        """The value that this one is made of by operators of these kinds, with one operand."""
        while (op := self.made(value, *kinds)) is not None and len(op.operands) == 1:
            value = op.operands[0]
        return value

    def same(self, one: str, other: str) -> bool:
        """Whether two values are the same numbers in another dtype or shape."""
        return self.through(one, *SPREAD) == self.through(other, *SPREAD)

    def shape(self, value: str) -> tuple[int, ...]:
        return self.types[value].shape

    # Writing ----------------------------------------------------------------------------------------------------------

    def emit(
        self,
        kind: str,
        operands: Sequence[str],
        type_: Type,
        attrs: Mapping[str, Attr] | None = None,
        *,
        alias: int | None = None,
    ) -> str:
        assert self.like is not None
        self._number += 1
        while (name := f"{kind}.r{self._number}") in self.types:
            self._number += 1
        op = Op(
            kind, tuple(operands), (name,), tuple((attrs or {}).items()), self.like.module, self.like.source,
            no_grad=self.like.no_grad, alias=alias,
        )  # fmt: skip
        self.types[name] = type_
        self._add(op)
        return name

    def view(self, value: str, shape: Sequence[int]) -> str:
        shape = tuple(shape)
        while (before := self.made(value, "view")) is not None and not before.no_grad:
            value = before.operands[0]
        if self.shape(value) == shape:
            return value
        return self.emit("view", [value], Type(shape, self.types[value].dtype), {"shape": shape}, alias=0)

    def permute(self, value: str, order: Sequence[int]) -> str:
        order = tuple(order)
        if order == tuple(range(len(order))):
            return value
        if (before := self.made(value, "permute")) is not None and not before.no_grad:
            inner = before.integers("perm")
            return self.permute(before.operands[0], [inner[dim] for dim in order])
        if (before := self.made(value, "view")) is not None and not before.no_grad:
            source = before.operands[0]
            if self.shape(value).count(1) > self.shape(source).count(1):
                return self._without_ones(value, order)
            groups = split_dims(self.shape(source), self.shape(value))
            moved = None if groups is None else _of_groups(groups, order)
            if moved is not None:
                shape = tuple(self.shape(value)[dim] for dim in order)
                return self.view(self.permute(source, moved), shape)
        type_ = Type(tuple(self.shape(value)[dim] for dim in order), self.types[value].dtype)
        return self.emit("permute", [value], type_, {"perm": order}, alias=0)

    def _without_ones(self, value: str, order: tuple[int, ...]) -> str:
        """A permutation of what has extents of 1 put in, which come in afterwards."""
        shape = self.shape(value)
        real = [dim for dim, extent in enumerate(shape) if extent != 1]
        narrow = self.view(value, [shape[dim] for dim in real])
        moved = self.permute(narrow, [real.index(dim) for dim in order if dim in real])
        return self.view(moved, [shape[dim] for dim in order])

    def cast(self, value: str, dtype: str) -> str:
        if self.types[value].dtype == dtype:
            return value
        return self.emit("cast", [value], Type(self.shape(value), dtype), {"dtype": dtype})

    def _add(self, op: Op) -> None:
        self.ops.append(op)
        self.producer |= dict.fromkeys(op.results, op)

    # The sweep --------------------------------------------------------------------------------------------------------

    def run(self, patterns: Sequence[Pattern]) -> Graph:
        for op in self.graph.ops:
            read = replace(op, operands=tuple(self.now.get(value, value) for value in op.operands))
            self.like = read
            found = None
            if len(read.results) == 1 and not read.no_grad:
                found = next((new for pattern in patterns if (new := pattern(self, read)) is not None), None)
            if found is None:
                self._add(read)
            else:
                self.now[op.name] = found
        return self.done()

    def done(self) -> Graph:
        """What reaches an output."""
        graph = self.graph
        outputs = tuple(self.now.get(value, value) for value in graph.outputs)
        updates = tuple(replace(one, value=self.now.get(one.value, one.value)) for one in graph.updates)
        needed = {*outputs, *(one.value for one in updates)}
        ops: list[Op] = []
        for op in reversed(self.ops):
            if needed.intersection(op.results):
                ops.append(op)
                needed.update(op.operands)
        ops.reverse()
        used = {item.value for item in graph.inputs} | {param.value for param in graph.params}
        used |= {value for op in ops for value in op.results}
        types = {value: type_ for value, type_ in self.types.items() if value in used}
        loss = None if graph.loss is None else self.now.get(graph.loss, graph.loss)
        return Graph(types, graph.inputs, graph.params, tuple(ops), outputs, updates, loss)


def split_dims(source: Sequence[int], target: Sequence[int]) -> list[tuple[int, ...]] | None:
    """Of every dimension of the source those of the target that it was split into; None if any were merged."""
    groups: list[tuple[int, ...]] = []
    at = 0
    for extent in source:
        first, size = at, 1
        while at < len(target) and (size < extent or (at == first and extent == 1)):
            size *= target[at]
            at += 1
        if size != extent:
            return None
        groups.append(tuple(range(first, at)))
    return groups if at == len(target) else None


def _of_groups(groups: Sequence[tuple[int, ...]], order: Sequence[int]) -> list[int] | None:
    """The order of the source's dimensions, where an order of the target's keeps each of their parts side by side."""
    moved: list[int] = []
    at = 0
    while at < len(order):
        group = next(number for number, dims in enumerate(groups) if order[at] in dims)
        dims = groups[group]
        if tuple(order[at : at + len(dims)]) != dims:
            return None
        moved.append(group)
        at += len(dims)
    return moved


def moved(s: Sweep, op: Op) -> str | None:
    """A permutation of a permutation, or of a view that only splits dimensions, which then comes after it; a view of a
    view."""
    if op.kind == "permute" and s.made(op.operands[0], "permute", "view") is not None:
        before = len(s.ops)
        made = s.permute(op.operands[0], op.integers("perm"))
        plain = len(s.ops) == before + 1 and s.ops[-1].operands == op.operands
        return None if plain else made
    if op.kind == "view" and (inner := s.made(op.operands[0], "view")) is not None and not inner.no_grad:
        return s.view(op.operands[0], s.types[op.name].shape)
    return None


Pattern = Callable[[Sweep, Op], str | None]
"""The value that replaces the result of an operator, or None."""

REDUCTIONS = ("sum", "mean", "amax", "amin", "logsumexp")


def dims_of(op: Op) -> tuple[int, ...]:
    dim = op.attr("dim")
    return (dim,) if isinstance(dim, int) else op.integers("dim")


def kept(s: Sweep, op: Op) -> str | None:
    """A reduction that is seen with its dimensions again keeps them."""
    if op.kind != "view":
        return None
    before = s.made(op.operands[0], *REDUCTIONS)
    if before is None or before.attr("keepdim") or before.no_grad:
        return None
    source = s.shape(before.operands[0])
    shape = tuple(1 if dim in dims_of(before) else extent for dim, extent in enumerate(source))
    if s.types[op.name].shape != shape:
        return None
    return s.emit(before.kind, before.operands, s.types[op.name], {**dict(before.attrs), "keepdim": True})


def mean(s: Sweep, op: Op) -> str | None:
    """A sum divided by how many there are."""
    if op.kind not in ("div", "mul") or op.attr("reverse"):
        return None
    total, scalar = s.made(op.operands[0], "sum"), op.attr("scalar")
    if total is None or not isinstance(scalar, (int, float)) or not scalar:
        return None
    count = prod(s.shape(total.operands[0])[dim] for dim in dims_of(total))
    by = scalar if op.kind == "div" else 1 / scalar
    if abs(by - count) > 1e-6 * count or not s.types[op.name].floating:
        return None
    attrs: dict[str, Attr] = {"dim": dims_of(total), "keepdim": bool(total.attr("keepdim"))}
    return s.emit("mean", total.operands, s.types[op.name], attrs)


_WIDER = {"bf16": ("f32", "f64"), "f16": ("f32", "f64"), "f32": ("f64",)}


def there_and_back(s: Sweep, op: Op) -> str | None:
    """A cast to a wider dtype and back, a negation of a negation."""
    if op.kind == "neg" and (before := s.made(op.operands[0], "neg")) is not None:
        return before.operands[0]
    if op.kind != "cast" or (before := s.made(op.operands[0], "cast")) is None:
        return None
    inner, between, last = (s.types[value].dtype for value in (before.operands[0], op.operands[0], op.name))
    return before.operands[0] if inner == last and between in _WIDER.get(inner, ()) else None
