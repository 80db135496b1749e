"""A fluent way to write graphs in tests: types come from the rules, names from the kinds.

    g = Builder()
    x = g.input((2, 8, 16), labels=("b", "s", ""))
    w = g.param("w", (32, 16))
    y = g.op("linear", x, w, module="mlp.up")
    g.output(y)
    graph = g.graph()

Operators whose rule moves no data (engine VIEW) alias their first operand unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.ir.graph.graph import Attr, Graph, Input, Op, Param, Type, Update
from meshwright.ir.rules import Engine, infer
from meshwright.ir.rules.base import Signature


class Builder:
    """Collects inputs, parameters and operators; `graph` closes it."""

    def __init__(self) -> None:
        self.types: dict[str, Type] = {}
        self.inputs: list[Input] = []
        self.params: list[Param] = []
        self.ops: list[Op] = []
        self.outputs: list[str] = []
        self.updates: list[Update] = []
        self.loss_value: str | None = None

    def input(
        self,
        shape: Sequence[int],
        *,
        name: str = "x",
        labels: Sequence[str] = (),
        dtype: str = "f32",
        requires_grad: bool = False,
    ) -> str:
        value = self._define(name, Type(tuple(shape), dtype))
        self.inputs.append(Input(value, tuple(labels), requires_grad))
        return value

    def param(
        self,
        path: str,
        shape: Sequence[int],
        *,
        dtype: str = "f32",
        requires_grad: bool = True,
        tied: Sequence[str] = (),
    ) -> str:
        value = self._define(f"p.{path}", Type(tuple(shape), dtype))
        self.params.append(Param(value, (path, *tied), requires_grad))
        return value

    def buffer(self, path: str, shape: Sequence[int], *, dtype: str = "f32") -> str:
        value = self._define(f"p.{path}", Type(tuple(shape), dtype))
        self.params.append(Param(value, (path,), requires_grad=False, buffer=True))
        return value

    def op(self, kind: str, *operands: str, **keywords: Any) -> str:
        """Add an operator and return its first result; keywords are those of `many`."""
        return self.many(kind, *operands, **keywords)[0]

    def many(
        self,
        kind: str,
        *operands: str,
        module: str = "",
        source: str = "",
        no_grad: bool = False,
        alias: int | None = None,
        name: str = "",
        **attrs: Attr,
    ) -> tuple[str, ...]:
        """Add an operator and return all its results. Keywords that are not named here are its attributes."""
        pairs = tuple(sorted(attrs.items()))
        rule = infer(Signature(kind, tuple(self.types[value] for value in operands), pairs))
        if alias is None and rule.engine is Engine.VIEW:
            alias = 0
        results = tuple(self._define(name or kind, type_) for type_ in rule.types)
        self.ops.append(Op(kind, operands, results, pairs, module, source, no_grad, alias))
        return results

    def output(self, *values: str) -> None:
        self.outputs += values

    def loss(self, value: str) -> None:
        self.outputs.append(value)
        self.loss_value = value

    def update(self, buffer: str, value: str, reduction: str = "same") -> None:
        self.updates.append(Update(buffer, value, reduction))

    def graph(self) -> Graph:
        return Graph(
            types=self.types,
            inputs=tuple(self.inputs),
            params=tuple(self.params),
            ops=tuple(self.ops),
            outputs=tuple(self.outputs),
            updates=tuple(self.updates),
            loss=self.loss_value,
        )

    def _define(self, stem: str, type_: Type) -> str:
        name, number = stem, 0
        while name in self.types:
            number += 1
            name = f"{stem}_{number}"
        self.types[name] = type_
        return name
