"""Writing expansions: a composite operator as a small graph, operator by operator.

    write = Writer(signature)
    top = write("amax", write.operand(0), attrs={"dim": -1}, splits={"v": "d1"})
    ...
    return write.done(loss)

Result types follow from the rules; `splits` says which factor of the new operator an axis on a factor of the composite
splits (see `Expansion`).
"""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.ir.graph.graph import Attr, Graph, Input, Op, Type
from meshwright.ir.rules.base import Expansion, Law, Signature
from meshwright.ir.rules.registry import infer

NONE: Mapping[str, str] = {}
NO_ATTRS: Mapping[str, Attr] = {}


class Writer:
    """The operators of an expansion in the making. Inputs are the operands of the composite, named by position."""

    def __init__(self, signature: Signature) -> None:
        self.types: dict[str, Type] = {str(index): type_ for index, type_ in enumerate(signature.operands)}
        laws = infer(signature).laws
        self.inputs = tuple(
            Input(str(index), requires_grad=wanted is not Law.INDEX) for index, wanted in enumerate(laws)
        )
        self.ops: list[Op] = []
        self.choices: list[tuple[tuple[str, str], ...]] = []

    def __call__(
        self,
        kind: str,
        *operands: str,
        attrs: Mapping[str, Attr] = NO_ATTRS,
        splits: Mapping[str, str] = NONE,
        no_grad: bool = False,
    ) -> str:
        """Append an operator with one result; return its name."""
        name = f"{kind}{len(self.ops)}"
        op = Op(kind, operands, (name,), tuple(attrs.items()), no_grad=no_grad)
        rule = infer(Signature(kind, tuple(self.types[value] for value in operands), op.attrs))
        declared = {factor.name for factor in rule.factors}
        self.types[name] = rule.types[0]
        self.ops.append(op)
        self.choices.append(tuple((outer, inner) for outer, inner in splits.items() if inner in declared))
        return name

    def done(self, *outputs: str) -> Expansion:
        graph = Graph(types=self.types, inputs=self.inputs, params=(), ops=tuple(self.ops), outputs=outputs)
        return Expansion(graph, tuple(self.choices))
