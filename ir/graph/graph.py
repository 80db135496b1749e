"""Graphs: the computation of a model, as plain data.

A graph is functional and in single-assignment form. Values have a shape and a dtype; operators have a *kind* from our
own small vocabulary (`meshwright.ir.rules` knows what each kind means), operands, results and attributes. What
frameworks do in place becomes data: a buffer update is an extra output with a rule for combining shards, tied weights
are one value with several names.

The same type holds a whole model, a block of one, and the glue between blocks; in a block the inputs are the values
that live into it.

    graph
      input  %tokens: i64[2, 8]  (b, s)
      param  %w: f32[16, 8] = "embed.weight", "head.weight"
      %x: f32[2, 8, 8] = embedding(%tokens, %w)  @embed <model.py:12>
      output %x

`verify` re-derives every shape from the rules; it lives in `meshwright.ir.verify.graphs`, apart from the front ends
that produce graphs.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import SupportsIndex

from meshwright.ir.errors import (
    BadAttribute,
    LossNotScalar,
    NegativeExtent,
    TypeMissing,
    TypeOrphaned,
    UnknownDtype,
    UsedBeforeDefinition,
    ValueRedefined,
)

ITEMSIZE: Mapping[str, float] = MappingProxyType(
    {
        "f64": 8, "f32": 4, "bf16": 2, "f16": 2, "f8e4m3": 1, "f8e5m2": 1, "f4": 0.5,
        "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "bool": 1, "c64": 8, "c128": 16,
    }
)  # fmt: skip
"""Bytes of one element."""

FLOATING = frozenset(("f64", "f32", "bf16", "f16", "f8e4m3", "f8e5m2", "f4", "c64", "c128"))

Scalar = bool | int | float | str | None
Attr = Scalar | tuple["Attr", ...]


def as_integers(value: Attr) -> tuple[int, ...] | None:
    """An attribute as a tuple of Python integers, whatever library its integers are from; None if it is not one."""
    if not isinstance(value, tuple) or not all(isinstance(item, SupportsIndex) for item in value):
        return None
    return tuple(operator.index(item) for item in value if isinstance(item, SupportsIndex))


@dataclass(frozen=True, slots=True)
class Type:
    """Shape and dtype of a value. Must: a known dtype, no negative extent."""

    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in ITEMSIZE:
            raise UnknownDtype(
                place=str(self.shape), cause=f"dtype {self.dtype!r}", fix=f"use one of {', '.join(ITEMSIZE)}"
            )
        if any(extent < 0 for extent in self.shape):
            raise NegativeExtent(
                place=f"{self.dtype}{self.shape}", cause="a negative extent", fix="give every dim its true size"
            )

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return int(self.elements * ITEMSIZE[self.dtype])

    @property
    def floating(self) -> bool:
        return self.dtype in FLOATING

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Input:
    """A value that comes from outside: data, or in a block a value that lives into it.

    `labels` name dimensions that the planner should know ("b", "s"; "" for the rest); `requires_grad` says that a
    gradient is wanted back (block inputs: yes for hidden states, no for tables that depend on no parameter).
    """

    value: str
    labels: tuple[str, ...] = ()
    requires_grad: bool = False


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter or buffer. Several paths mean tied weights; the first one is the name used."""

    value: str
    paths: tuple[str, ...]
    requires_grad: bool = True
    buffer: bool = False

    @property
    def path(self) -> str:
        return self.paths[0]


@dataclass(frozen=True, slots=True)
class Op:
    """One operator.

    - `kind` must have a rule, or be `opaque` with the framework's name in the attribute `target`.
    - `alias` names the operand whose storage the results share (views), so that saved bytes are counted once.
    - `no_grad` operators lie outside differentiation even if their operands do not.
    """

    kind: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    attrs: tuple[tuple[str, Attr], ...] = ()
    module: str = ""
    source: str = ""
    no_grad: bool = False
    alias: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "attrs", tuple(sorted(self.attrs)))

    @property
    def name(self) -> str:
        """The name of an operator: that of its first result."""
        return self.results[0]

    def attr(self, key: str, default: Attr = None) -> Attr:
        return next((value for name, value in self.attrs if name == key), default)

    @property
    def draws(self) -> bool:
        """Whether the operator draws random numbers: dropout, in attention too, or noise."""
        dropped = self.attr("p") if self.kind == "dropout" else self.attr("dropout")
        return bool(dropped or self.attr("random"))

    def integer(self, key: str) -> int:
        value = self.attr(key)
        if (found := as_integers((value,))) is None:
            raise BadAttribute(
                place=f"%{self.name} ({self.kind})", cause=f"attribute {key}={value!r}", fix="give an integer"
            )
        return found[0]

    def integers(self, key: str) -> tuple[int, ...]:
        value = self.attr(key)
        if (found := as_integers(value)) is None:
            raise BadAttribute(
                place=f"%{self.name} ({self.kind})", cause=f"attribute {key}={value!r}", fix="give integers"
            )
        return found


@dataclass(frozen=True, slots=True)
class Update:
    """A buffer's new value. `reduction` combines the shards of a batch: "mean" (running statistics), "sum", or
    "same"."""

    buffer: str
    value: str
    reduction: str = "same"


@dataclass(frozen=True)
class Graph:
    """A functional graph.

    - Every value must be defined once: by an input, a parameter or an operator, before its first use.
    - `types` must hold exactly the values that are defined.
    - The loss, if any, must be a scalar output.
    """

    types: Mapping[str, Type]
    inputs: tuple[Input, ...]
    params: tuple[Param, ...]
    ops: tuple[Op, ...]
    outputs: tuple[str, ...]
    updates: tuple[Update, ...] = ()
    loss: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", MappingProxyType(dict(self.types)))
        self._check_definitions()
        if self.loss is not None and (self.loss not in self.outputs or self.types[self.loss].shape):
            raise LossNotScalar(
                place=f"loss %{self.loss}", cause="it must be a scalar and an output", fix="return the scalar loss"
            )

    def _check_definitions(self) -> None:
        defined: set[str] = set()

        def define(value: str, place: str) -> None:
            if value in defined:
                raise ValueRedefined(place=place, cause=f"%{value} is defined twice", fix="name every value once")
            if value not in self.types:
                raise TypeMissing(place=place, cause=f"%{value} has no type", fix="give its shape and dtype")
            defined.add(value)

        def use(value: str, place: str) -> None:
            if value not in defined:
                raise UsedBeforeDefinition(
                    place=place, cause=f"%{value} is used before it is defined", fix="order ops topologically"
                )

        for item in self.inputs:
            define(item.value, "inputs")
        for param in self.params:
            define(param.value, f"param {param.path}")
        for op in self.ops:
            place = f"{op.kind} {op.source}".strip()
            for value in op.operands:
                use(value, place)
            for value in op.results:
                define(value, place)
        for value in self.outputs:
            use(value, "outputs")
        for update in self.updates:
            use(update.value, f"update of {update.buffer}")
        unused = sorted(set(self.types) - defined)
        if unused:
            raise TypeOrphaned(place=f"%{unused[0]}", cause="it has a type but no definition", fix="drop it from types")

    @cached_property
    def producer(self) -> Mapping[str, Op]:
        """The operator that defines each value that an operator defines."""
        return {value: op for op in self.ops for value in op.results}

    @cached_property
    def readers(self) -> Mapping[str, tuple[tuple[int, int], ...]]:
        """For each value, the (operator index, operand index) pairs that read it, in order."""
        found: dict[str, list[tuple[int, int]]] = {value: [] for value in self.types}
        for index, op in enumerate(self.ops):
            for slot, value in enumerate(op.operands):
                found[value].append((index, slot))
        return {value: tuple(places) for value, places in found.items()}

    @cached_property
    def param(self) -> Mapping[str, Param]:
        return {param.value: param for param in self.params}

    @cached_property
    def differentiable(self) -> frozenset[str]:
        """The values that a gradient flows to: floating, and reached from something that requires one."""
        live = {item.value for item in self.inputs if item.requires_grad}
        live |= {param.value for param in self.params if param.requires_grad and not param.buffer}
        for op in self.ops:
            if not op.no_grad and any(value in live for value in op.operands):
                live |= {value for value in op.results if self.types[value].floating}
        return frozenset(live)

    @cached_property
    def storage(self) -> Mapping[str, str]:
        """For each value, the value that owns its storage (itself, unless it is a view)."""
        owner = {value: value for value in self.types}
        for op in self.ops:
            if op.alias is not None:
                owner |= dict.fromkeys(op.results, owner[op.operands[op.alias]])
        return owner

    def operand_types(self, op: Op) -> tuple[Type, ...]:
        return tuple(self.types[value] for value in op.operands)

    def result_types(self, op: Op) -> tuple[Type, ...]:
        return tuple(self.types[value] for value in op.results)

    def parameters(self) -> Iterator[Param]:
        return (param for param in self.params if not param.buffer)


def owners_in(graph: Graph, param: Param) -> tuple[str, ...]:
    """Modules that read a parameter with several names in a body, of those that hold it; the first holder, if none
    does."""
    readers = {graph.ops[index].module for index, _ in graph.readers.get(param.value, ())}
    around = tuple(dict.fromkeys(path.rpartition(".")[0] for path in param.paths))
    return tuple(path for path in around if path in readers) or around[:1]


def name_in(graph: Graph, param: Param) -> str:
    """The name under which a body reads a parameter."""
    owner = owners_in(graph, param)[0]
    return next((path for path in param.paths if path.rpartition(".")[0] == owner), param.path)
