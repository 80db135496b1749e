"""Single operators of a constant's expression in torch code (`code` puts them together).

A form takes a node, its arguments by the names of the operator's schema, and what shows an argument; it gives the
expression, or None where the operator stands as it is, `torch.ops.aten.NAME.OVERLOAD(...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from meshwright.ir.frontends.folding.terms import Array
from meshwright.ir.frontends.torch_.sources.dtypes import TORCH_DTYPES
from meshwright.ir.graph.constants import DEVICE, Held
from meshwright.ir.quoting import constant, literal

FOREVER = (1 << 63) - 1
"""Where a slice ends that takes everything."""

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floor_divide": "//", "remainder": "%", "pow": "**", "matmul": "@",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^", "__and__": "&", "__or__": "|", "__xor__": "^",
}  # fmt: skip
_METHODS = frozenset(
    (
        "expand", "repeat", "unsqueeze", "squeeze", "transpose", "permute", "t", "flip", "roll", "masked_fill",
        "sin", "cos", "tan", "exp", "expm1", "log", "log1p", "log2", "sqrt", "rsqrt", "reciprocal", "abs", "tanh",
        "floor", "ceil", "round", "sign", "logical_not", "logical_and", "logical_or", "logical_xor", "isinf", "isnan",
        "cumsum", "cumprod", "sum", "mean", "amax", "amin", "any", "all", "prod", "argmax", "argmin", "tril", "triu",
        "sigmoid", "clamp", "clamp_min", "clamp_max", "diff", "gather", "index_select", "repeat_interleave",
        "to_dense", "square", "softmax", "max", "min", "sort", "topk", "atan2", "fmod", "erf",
    )
)  # fmt: skip
"""Operators that are methods of tensors, with the same arguments."""
_SIZED = frozenset(("expand", "repeat", "permute", "flip"))
"""Methods that take their one list as arguments, too."""
_FUNCTIONS = frozenset(
    (
        "cat", "stack", "where", "maximum", "minimum", "outer", "polar", "einsum", "mm", "bmm", "slice_scatter",
        "complex", "view_as_real", "view_as_complex", "arange", "linspace", "logspace", "eye", "zeros", "ones", "full",
        "empty", "searchsorted", "bucketize", "tril_indices", "triu_indices",
    )
)  # fmt: skip
"""Operators that are functions of torch, with the same arguments."""
SAME = frozenset(("alias", "detach", "lift_fresh_copy", "lift_fresh", "lift"))
LAID_OUT = frozenset(("clone", "contiguous"))
CASTS = frozenset(("to", "_to_copy", "type_as"))
RESHAPES = frozenset(
    ("view", "reshape", "_unsafe_view", "view_as", "reshape_as", "flatten", "unflatten", "_reshape_alias")
)
INCIDENTAL = frozenset(("layout", "pin_memory", "memory_format", "non_blocking", "device"))
"""Arguments that change no value; where something is made, its device is written."""
FILLED = {
    "zeros_like": "zeros", "new_zeros": "zeros", "zero": "zeros", "ones_like": "ones", "new_ones": "ones",
    "empty_like": "empty", "new_empty": "empty",
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A term with nodes for terms; equal ones are one node."""

    op: str
    target: str
    shape: tuple[int, ...]
    dtype: str
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    held: Held | None = None
    data: Array | None = None

    @property
    def read(self) -> tuple[Node, ...]:
        """The nodes that a node is made of, as often as it reads each."""
        return tuple(nodes_in((self.args, [value for _, value in self.kwargs])))

    @property
    def torch_dtype(self) -> torch.dtype:
        own = dict(self.kwargs).get("dtype") if not self.op else None
        return own if isinstance(own, torch.dtype) else TORCH_DTYPES[self.dtype]


@dataclass(frozen=True, slots=True)
class Shown:
    """An expression; unless it is an `atom`, it stands in parentheses where it is an operand."""

    text: str
    atom: bool = True

    @property
    def operand(self) -> str:
        return self.text if self.atom and not self.text.startswith("-") else f"({self.text})"


Show = Callable[[Any], Shown]
Form = Callable[[Node, dict[str, Any], Show], Shown]


def leaves_of(item: Any, kind: type) -> Iterator[Any]:
    if isinstance(item, kind):
        yield item
    elif isinstance(item, list | tuple):
        for part in item:
            yield from leaves_of(part, kind)


def nodes_in(item: Any) -> Iterator[Node]:
    yield from leaves_of(item, Node)


def key_of(item: Any) -> Any:
    """A key that tells arguments apart: 1, 1.0 and True are three."""
    if isinstance(item, list | tuple):
        return tuple(map(key_of, item))
    return id(item) if isinstance(item, Node) else (type(item), repr(item))


def operator_of(node: Node) -> tuple[str, str]:
    """The namespace and the name of an operator."""
    parts = node.target.split(".")
    return (parts[0], parts[1]) if len(parts) > 2 else ("aten", parts[0] or node.op)


def overload_for(space: str, packet: str, node: Node) -> Any:
    """The overload that was traced, or the one that takes these arguments; None if torch has none."""
    found = getattr(getattr(torch.ops, space), packet, None)
    if found is None:
        return None
    if node.target:
        return getattr(found, node.target.rpartition(".")[2], None)
    try:
        name = torch._C._jit_resolve_packet(f"{space}::{packet}", *_meta(node.args), **_meta(dict(node.kwargs)))
    except (RuntimeError, TypeError):
        return None
    return getattr(found, name or "default")


def bound_by_name(node: Node) -> tuple[Any, dict[str, Any] | None]:
    """The overload, and arguments by the names of its schema, defaults included."""
    overload = overload_for(*operator_of(node), node)
    if overload is None:
        return None, None
    schema = overload._schema.arguments
    bound = {one.name: one.default_value if one.has_default_value() else None for one in schema}
    given = dict(zip(bound, node.args, strict=False)) | dict(node.kwargs)
    return overload, bound | given


def _meta(item: Any) -> Any:
    """Arguments with tensors that have no values."""
    if isinstance(item, dict):
        return {name: _meta(value) for name, value in item.items()}
    if isinstance(item, list | tuple):
        return [_meta(part) for part in item]
    if isinstance(item, Node):
        return torch.empty(item.shape, dtype=item.torch_dtype, device="meta")
    return torch.device("meta") if isinstance(item, torch.device) else item


def natural_dtype(node: Node, overload: Any) -> torch.dtype | None:
    """The dtype of an operator's result; None if it cannot be asked, or if the operator makes something in a dtype that
    is written."""
    if overload is None or not node.read or any(one.dtype == "" for one in node.read):
        return None
    try:
        found = overload(*_meta(node.args), **_meta(dict(node.kwargs)))
    except Exception:  # noqa: BLE001 - an operator may have no kernel for tensors without values
        return None
    return found.dtype if isinstance(found, torch.Tensor) else None


def plain(item: Any, node: Callable[[Node], str] = lambda node: "") -> str:
    """An argument as code."""
    if isinstance(item, Node):
        return node(item)
    if isinstance(item, torch.device):
        return DEVICE
    if isinstance(item, torch.dtype | torch.layout | torch.memory_format | complex):
        return repr(item)
    if isinstance(item, list | tuple):
        inner = ", ".join(plain(part, node) for part in item)
        tensors = any(True for _ in nodes_in(item))
        return f"[{inner}]" if tensors else f"({inner}{',' if len(item) == 1 else ''})"
    return constant(item)


def _infix(node: Node, bound: dict[str, Any], show: Show) -> Shown | None:
    """An infix form such as `a + b`, or a method where other options are given."""
    values = list(bound.values())
    if any(value not in (None, 1) for value in values[2:]):
        return _method(node, bound, show) if isinstance(values[0], Node) else None
    left, right = (show(one).operand for one in values[:2])
    return Shown(f"{left} {_INFIX[node.op]} {right}", atom=False)


def _reversed(node: Node, bound: dict[str, Any], show: Show) -> Shown | None:
    if bound["alpha"] != 1:
        return None
    return Shown(f"{show(bound['other']).operand} - {show(bound['self']).operand}", atom=False)


def _prefix(sign: str) -> Form:
    return lambda node, bound, show: Shown(f"{sign}{show(bound['self']).operand}", atom=False)


def _method(node: Node, bound: dict[str, Any], show: Show) -> Shown:
    _, *rest = _arguments(node, bound, show)
    if node.op in _SIZED and len(rest) == 1:
        rest = [rest[0].strip("(,)") or "()"]
    return Shown(f"{show(bound[next(iter(bound))]).operand}.{node.op}({', '.join(rest)})")


def _function(node: Node, bound: dict[str, Any], show: Show) -> Shown:
    return Shown(f"torch.{node.op}({', '.join(_arguments(node, bound, show))})")


def _arguments(node: Node, bound: dict[str, Any], show: Show) -> list[str]:
    """Arguments as written: those by position up to the last that is no default, others by name. Created tensors are
    made in their dtype, where the code runs."""
    overload, _ = bound_by_name(node)
    positional, by_name, makes = list[tuple[str, bool]](), list[str](), False
    for one in overload._schema.arguments:
        value = bound[one.name]
        default = one.has_default_value() and key_of(value) == key_of(one.default_value)
        if one.name == "device":
            makes = not node.read
        elif not one.kwarg_only:
            positional.append((show(value).text, default))
        elif one.name not in INCIDENTAL and not default and not (one.name == "dtype" and not node.read):
            by_name.append(f"{one.name}={show(value).text}")
    while positional and positional[-1][1]:
        positional.pop()
    if makes:
        by_name += [f"dtype={TORCH_DTYPES[node.dtype]}", f"device={DEVICE}"]
    return [text for text, _ in positional] + by_name


def _cast(node: Node, bound: dict[str, Any], show: Show) -> Shown:
    return Shown(f"{show(node.args[0]).operand}.to({TORCH_DTYPES[node.dtype]})")


def _kept(node: Node, bound: dict[str, Any], show: Show) -> Shown:
    kept = bound.get("memory_format")
    given = "" if kept is None else f"memory_format={kept!r}"
    return Shown(f"{show(node.args[0]).operand}.{node.op}({given})")


def _reshaped(node: Node, bound: dict[str, Any], show: Show) -> Shown | None:
    """A reshape; a bit pattern that is read in another dtype is none."""
    return None if "dtype" in bound else Shown(f"{show(node.args[0]).operand}.reshape({sizes_of(node.shape)})")


def _expanded(node: Node, bound: dict[str, Any], show: Show) -> Shown:
    return Shown(f"{show(node.args[0]).operand}.expand({sizes_of(node.shape)})")


def sizes_of(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape)) or "()"


def _subscript(source: Node, parts: Sequence[str], show: Show) -> Shown:
    return Shown(f"{show(source).operand}[{', '.join(parts)}]")


def _slice(node: Node, bound: dict[str, Any], show: Show) -> Shown:
    source, end = node.args[0], bound["end"]
    start = constant(bound["start"]) if bound["start"] else ""
    until = "" if end is None or end >= FOREVER else constant(end)
    step = f":{bound['step']}" if bound["step"] != 1 else ""
    return _subscript(source, [*[":"] * (bound["dim"] % len(source.shape)), f"{start}:{until}{step}"], show)


def _select(node: Node, bound: dict[str, Any], show: Show) -> Shown:
    source = node.args[0]
    return _subscript(source, [*[":"] * (bound["dim"] % len(source.shape)), constant(bound["index"])], show)


def _index(node: Node, bound: dict[str, Any], show: Show) -> Shown:
    return _subscript(node.args[0], [":" if one is None else show(one).text for one in bound["indices"]], show)


def _scalar(node: Node, bound: dict[str, Any], show: Show) -> Shown:
    return Shown(f"torch.tensor({show(bound['s']).text}, dtype={TORCH_DTYPES[node.dtype]}, device={DEVICE})")


def _with_text(node: Node, bound: dict[str, Any], show: Show) -> Shown | None:
    """`einsum`, with its arguments in torch's order."""
    if bound.get("path") is not None:
        return None
    return Shown(f"torch.einsum({literal(bound['equation'])}, {show(bound['tensors']).text})")


FORMS: dict[str, Callable[[Node, dict[str, Any], Show], Shown | None]] = {
    **dict.fromkeys(_METHODS, _method),
    **dict.fromkeys(_FUNCTIONS, _function),
    **dict.fromkeys(_INFIX, _infix),
    **dict.fromkeys(CASTS, _cast),
    **dict.fromkeys(LAID_OUT | SAME, _kept),
    **dict.fromkeys(RESHAPES, _reshaped),
    "neg": _prefix("-"),
    "bitwise_not": _prefix("~"),
    "rsub": _reversed,
    "expand_as": _expanded,
    "slice": _slice,
    "select": _select,
    "index": _index,
    "scalar_tensor": _scalar,
    "einsum": _with_text,
}
