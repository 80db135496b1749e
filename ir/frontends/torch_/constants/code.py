"""A constant's expression as lines of torch code: a `Term` in, a `Constant` out.

Any term is printed: what is written with operators, indexing, methods and functions of torch is what these are to ATen
one to one; everything else stands as `torch.ops.aten.NAME.OVERLOAD(...)`, with the arguments that were traced.

    nodes       equal terms are one node; aliases, copies and casts to the same dtype are none
    expression  one per node, by its operator (`constant_forms`); where torch would give it another dtype than it was
                traced with, as where an operator wrote in place, a cast follows
    lines       what is read once is written where it is read, up to `WIDTH` columns; all else has a line and a name

Dtypes are written out and no number is computed here: the lines round as the model does.
"""

from __future__ import annotations

import builtins
import keyword
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from meshwright.ir.frontends.folding.terms import Array, Term
from meshwright.ir.frontends.torch_.constants.forms import (
    CASTS,
    FILLED,
    FORMS,
    INCIDENTAL,
    LAID_OUT,
    RESHAPES,
    SAME,
    Node,
    Shown,
    bound_by_name,
    key_of,
    leaves_of,
    natural_dtype,
    operator_of,
    overload_for,
    plain,
    sizes_of,
)
from meshwright.ir.frontends.torch_.sources.dtypes import TORCH_DTYPES
from meshwright.ir.graph.constants import DATA, DEVICE, HELD, Constant, Data, Held
from meshwright.ir.quoting import identifier

RESERVED = {
    *(*dir(builtins), *keyword.kwlist),
    *("self", "model", "mesh", "torch", "nn", "F", "index", "x"),
    *("Any", "DTensor", "Following", "Shard", "Tensor", "block", "entered"),
    *("target", "losses", "return_outputs"),
}
"""Names that scripts have for something else around these lines."""
WIDTH = 110
WRITTEN_OUT = 64
"""Elements, at most, of an array that is written into code."""
_FOLLOWS = RESHAPES | CASTS | LAID_OUT | frozenset(
    (
        "expand", "expand_as", "repeat", "unsqueeze", "squeeze", "transpose", "permute", "t", "slice", "select",
        "cat", "stack", "index", "slice_scatter", "flip", "roll", "add", "sub", "mul", "div", "neg", "pow", "getitem",
        "masked_fill", "rsub",
    )
)  # fmt: skip
"""Operators whose results are called like what they are made of."""


def constant_of(term: Term, held: Callable[[Term], Held | None]) -> Constant:
    """The constant that a term is. `held` says which tensors the model has."""
    leaves = _terms(term, lambda one: held(one) is not None)
    if any(not one.op and one.data is None and held(one) is None for one in leaves):
        why = "it is made of a tensor without values, which is no buffer and no attribute of a module"
        return Constant(shape=term.shape, dtype=term.dtype, problem=why)
    return _Printer(held).printed(term)


# Nodes ---------------------------------------------------------------------------------------------------------------


def _terms(root: Term, held: Callable[[Term], bool] = lambda _: False) -> list[Term]:
    """Every term of an expression once, operands before their readers; nothing below a tensor that the model has."""
    found: dict[int, Term] = {}
    pending = [(root, False)]
    while pending:
        term, entered = pending.pop()
        if id(term) in found:
            continue
        if entered:
            found[id(term)] = term
            continue
        pending.append((term, True))
        if not held(term):
            pending += [
                (leaf, False) for leaf in reversed(list(leaves_of((term.args, list(term.kwargs.values())), Term)))
            ]
    return list(found.values())


def _mapped(item: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(item, list | tuple):
        return tuple(_mapped(part, change) for part in item)
    return change(item)


@dataclass(slots=True)
class _Printer:
    """The printing of one constant."""

    held: Callable[[Term], Held | None]
    known: dict[Any, Node] = field(default_factory=dict)
    lines: list[tuple[str, str]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    shown: dict[int, Shown] = field(default_factory=dict)
    reads: list[Held] = field(default_factory=list)
    arrays: list[Data] = field(default_factory=list)
    listed: bool = False
    exact: bool = False
    """Whether something reads how values lie in memory, so that copies are kept."""

    def printed(self, root: Term) -> Constant:
        terms = _terms(root, lambda term: self.held(term) is not None)
        self.exact = any(term.op.startswith("as_strided") or term.target == "view.dtype" for term in terms)
        nodes: dict[int, Node] = {}
        for term in terms:
            nodes[id(term)] = self.node(term, nodes)
        last = nodes[id(root)]
        order = _in_order(last)
        uses = Counter(id(one) for node in order for one in node.read)
        for node in order:
            self.shown[id(node)] = self.fitted(node)
            if uses[id(node)] > 1 or node is last:
                self.line(node)
        return Constant(
            shape=root.shape,
            dtype=root.dtype,
            lines=tuple(self.lines),
            held=tuple(self.reads),
            data=tuple(self.arrays),
            listed=self.listed,
        )

    def node(self, term: Term, nodes: dict[int, Node]) -> Node:
        """The node of a term whose operands have theirs."""
        held = self.held(term)
        if held is not None:
            return self.one(Node("", "", term.shape, term.dtype, held=held))
        if term.data is not None:
            kwargs = tuple(term.kwargs.items())
            return self.one(Node("", "", term.shape, term.dtype, kwargs=kwargs, data=term.data), term.data.tobytes())

        def own(item: Any) -> Any:
            return nodes[id(item)] if isinstance(item, Term) else item

        args = _mapped(term.args, own)
        kwargs = tuple((name, _mapped(value, own)) for name, value in term.kwargs.items())
        op, _, index = term.op.partition("[")
        if term.target.count(".") > 1:  # no operator of torch's own, whatever it is called
            op = term.target
        first = args[0] if args and isinstance(args[0], Node) else None
        if first is not None and (op in SAME or (op in LAID_OUT and not self.exact)):
            return first
        if first is not None and op in CASTS and first.dtype == term.dtype and not self.exact:
            return first
        if first is not None and (first.shape, first.dtype) == (term.shape, term.dtype) and _changes_nothing(op, term):
            return first
        if index:
            call = self.one(Node(op, term.target, (), "", args, kwargs))
            return self.one(Node("getitem", "", term.shape, term.dtype, (call, int(index[:-1]))))
        return self.one(Node(op, term.target, term.shape, term.dtype, args, kwargs))

    def one(self, node: Node, data: bytes = b"") -> Node:
        key = (node.op, node.target, node.shape, node.dtype, node.held, data, *map(key_of, (node.args, node.kwargs)))
        return self.known.setdefault(key, node)

    # Lines

    def fitted(self, node: Node) -> Shown:
        """The expression of a node; operands get lines of their own as long as it is too wide."""
        while True:
            found = self.expression(node)
            inside = [one for one in node.read if id(one) not in self.names]
            if self.width(found) <= WIDTH or not inside:
                return found
            self.line(max(inside, key=lambda one: self.width(self.shown[id(one)])))

    def width(self, shown: Shown) -> int:
        """Columns of an expression, with its reads of the model."""
        holes = (self.reads[int(found[1])].read("model") for found in re.finditer(r"\{held:(\d+)\}", shown.text))
        return len(shown.text) + sum(map(len, holes))

    def line(self, node: Node) -> None:
        if id(node) in self.names:
            return
        word = identifier(_stem(node)).strip("_") or "value"
        word = f"value_{word}" if word[0].isdigit() else word
        word = f"{word}_" if word in RESERVED else word
        name, number = word, 2
        while name in self.taken:
            name, number = f"{word}_{number}", number + 1
        self.taken.add(name)
        self.lines.append((name, self.shown[id(node)].text))
        self.names[id(node)] = name

    # Expressions

    def show(self, item: Any) -> Shown:
        """An operand, or any other argument, as written in an expression."""
        if isinstance(item, Node):
            return Shown(f"%{self.names[id(item)]}") if id(item) in self.names else self.shown[id(item)]
        return Shown(plain(item, lambda node: self.show(node).text))

    def expression(self, node: Node) -> Shown:
        if node.held is not None:
            if node.held not in self.reads:
                self.reads.append(node.held)
            return Shown(HELD % self.reads.index(node.held))
        if node.data is not None:
            return self.literal(node)
        if node.op == "getitem":
            return Shown(f"{self.show(node.args[0]).operand}[{node.args[1]}]")
        if node.args[:1] == (None,) or node.op in (
            "fill",
            "zero",
            "zeros_like",
            "ones_like",
            "full_like",
            "empty_like",
        ):
            return self.made_like(node)
        overload, bound = bound_by_name(node)
        form = FORMS.get(node.op)
        found = form(node, bound, self.show) if form is not None and bound is not None else None
        found = found or self.called(node, overload, bound)
        return self.typed(node, overload, found)

    def literal(self, node: Node) -> Shown:
        assert node.data is not None
        dtype = node.torch_dtype
        if not node.data.size:
            return Shown(f"torch.zeros({plain(node.shape)}, dtype={dtype}, device={DEVICE})")
        values = _narrow(node.data, dtype)
        if values.size <= WRITTEN_OUT:
            self.listed = self.listed or values.ndim > 0
            return Shown(f"torch.tensor({_numbers(values)}, dtype={dtype}, device={DEVICE})")
        at = next((at for at, one in enumerate(self.arrays) if np.array_equal(one.values, values)), len(self.arrays))
        if at == len(self.arrays):
            self.arrays.append(Data(f"data_{at}", values))
        return Shown(f"torch.as_tensor({DATA % at}, dtype={dtype}, device={DEVICE})")

    def made_like(self, node: Node) -> Shown:
        """A tensor made like another one, of which only the type is used, or written over all of one."""
        dtype, shape = TORCH_DTYPES[node.dtype], plain(node.shape)
        made = f"dtype={dtype}, device={DEVICE}"
        if node.op in FILLED:
            return Shown(f"torch.{FILLED[node.op]}({shape}, {made})")
        given = [*node.args[1:], *(value for name, value in node.kwargs if name in ("fill_value", "value", "src"))]
        value = given[1] if node.op == "new_full" else given[0]
        if not isinstance(value, Node):
            return Shown(f"torch.full({shape}, {self.show(value).text}, {made})")
        text = self.show(value).operand
        text = text if value.dtype == node.dtype else f"{text}.to({dtype})"
        return Shown(text if value.shape == node.shape else f"{text}.expand({sizes_of(node.shape)})")

    def called(self, node: Node, overload: Any, bound: dict[str, Any] | None) -> Shown:
        """A call of the operator as it was traced."""
        space, packet = operator_of(node)
        keywords = {name: value for name, value in node.kwargs if name not in INCIDENTAL}
        args = [plain(item, lambda one: self.show(one).text) for item in node.args]
        called = f"torch.ops.{space}.{packet}"
        if overload is None and (written := overload_for(space, f"{packet}_", node)) is not None:
            called, args[0] = f"torch.ops.{space}.{packet}_", f"{self.show(node.args[0]).operand}.clone()"
            overload = written
        if overload is not None:
            called += f".{overload._overloadname or 'default'}"
            if any(one.name == "device" and one.kwarg_only for one in overload._schema.arguments):
                keywords["device"] = torch.device("cpu")
        args += [f"{name}={plain(value, lambda one: self.show(one).text)}" for name, value in keywords.items()]
        return Shown(f"{called}({', '.join(args)})")

    def typed(self, node: Node, overload: Any, found: Shown) -> Shown:
        """The expression with a cast, where torch would not give it the dtype that was traced."""
        natural = natural_dtype(node, overload)
        if natural is None or not node.dtype or natural == TORCH_DTYPES[node.dtype]:
            return found
        return Shown(f"{found.operand}.to({TORCH_DTYPES[node.dtype]})")


def _in_order(last: Node) -> list[Node]:
    """A node and all nodes that it is made of, operands first."""
    found: dict[int, Node] = {}
    pending = [(last, False)]
    while pending:
        node, entered = pending.pop()
        if entered:
            found[id(node)] = node
        elif id(node) not in found:
            pending.append((node, True))
            pending += [(one, False) for one in reversed(node.read) if id(one) not in found]
    return list(found.values())


def _stem(node: Node) -> str:
    """A variable name for a value: the user's, or after the operator that makes it."""
    while True:
        if node.held is not None:
            return node.held.name
        if node.dtype == "bool":
            return "mask"
        first = next(iter(node.read), None)
        if node.op in _FOLLOWS and first is not None:
            node = first
            continue
        if node.op in FILLED:
            return FILLED[node.op]
        return node.op.rpartition(".default")[0].rpartition(".")[2].strip("_") or node.op.strip("_") or "table"


def _changes_nothing(op: str, term: Term) -> bool:
    """Whether it is `x + 0` of integers, or `x * 1`."""
    if len(term.args) != 2 or term.kwargs or not isinstance(term.args[1], int | float):
        return False
    integers = term.dtype.startswith(("i", "u"))
    return (op in ("add", "sub") and integers and term.args[1] == 0) or (op in ("mul", "div") and term.args[1] == 1)


# Numbers -------------------------------------------------------------------------------------------------------------


def _narrow(values: Array, dtype: torch.dtype) -> Array:
    """An array in the NumPy dtype that holds all of these values in the fewest bytes."""
    kinds: dict[torch.dtype, Any] = {
        torch.float64: np.float64,
        torch.float16: np.float16,
        torch.complex64: np.complex64,
    }
    if values.dtype.kind == "f":
        return values.astype(kinds.get(dtype, np.float32))
    return values.astype(kinds.get(dtype, values.dtype))


def _numbers(values: Array) -> str:
    """Nested lists of numbers, none with more digits than tell it apart."""
    if values.ndim:
        return f"[{', '.join(map(_numbers, values))}]"
    if values.dtype.kind in "biu":
        return repr(values.item())
    if values.dtype.kind == "c":
        return f"complex({_number(values.real)}, {_number(values.imag)})"
    return _number(values)


def _number(value: Any) -> str:
    if not math.isfinite(value):
        return f'float("{float(value)}")'
    short = repr(float(str(value)))
    return short if value.dtype.type(float(short)) == value else repr(float(value))
