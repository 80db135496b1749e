"""Operators that are written alike in all dialects, but for the names of functions."""

from __future__ import annotations

from math import prod

from meshwright.backends.printing.dialect import LocalOp
from meshwright.backends.printing.expressions import Writer, dim_of, refuse, value
from meshwright.ir.sharding.layouts import Uneven

INFIX = {
    "mul": "*", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
}  # fmt: skip
"""Operators of Python by their kinds."""


def unary(function: str) -> Writer:
    """A function of one operand."""
    return lambda call: f"{function}(%0)"


def always(whole: str) -> Writer:
    """The same expression for every call."""
    return lambda call: whole


def sides(call: LocalOp) -> tuple[str, str]:
    """The two sides of an operator on two operands, or on one and a number."""
    if len(call.given) > 1:
        return "%0", "%1"
    number = value(call.attrs["scalar"])
    return (number, "%0") if call.attrs.get("reverse") else ("%0", number)


def infix(symbol: str) -> Writer:
    """An infix operator of two operands, or of one and a number."""
    return lambda call: f" {symbol} ".join(sides(call))


def pair(function: str) -> Writer:
    """A function of two operands, or of one and a number."""
    return lambda call: f"{function}({', '.join(sides(call))})"


def where(function: str) -> Writer:
    """A choice between operands, or numbers."""

    def write(call: LocalOp) -> str:
        if len(call.given) == 3:
            return f"{function}(%0, %1, %2)"
        number = value(call.attrs["scalar"])
        if len(call.given) == 1:
            return f"{function}(%0, {number}, {value(call.attrs['other'])})"
        return f"{function}(%0, {number}, %1)" if call.attrs.get("reverse") else f"{function}(%0, %1, {number})"

    return write


def sliced(call: LocalOp) -> str:
    """A run of elements along a dimension."""
    if call.made[0].shape == call.given[0].shape:
        return "%0"
    dim = dim_of(call)
    start, end, step = (call.attrs.get(name, other) for name, other in (("start", 0), ("end", None), ("step", 1)))
    run = f"{start or ''}:{'' if end is None else end}" + (f":{step}" if step != 1 else "")
    return f"%0[{', '.join([':'] * dim + [run])}]"


def counted(call: LocalOp) -> int:
    """The number of elements that a mean is over, where a rank has some of them; 0 where it has all."""
    dim, rank = call.attrs.get("dim"), len(call.given[0].shape)
    named = dim if isinstance(dim, tuple) and dim else range(rank) if dim is None or dim == () else (dim,)
    dims = [d % rank for d in named if isinstance(d, int)]
    count = prod(call.whole[0].shape[d] for d in dims)
    return 0 if count == prod(call.given[0].shape[d] for d in dims) else count


def own_groups(call: LocalOp, groups: int) -> int:
    """The number of groups on a rank, of so many in all."""
    if any(isinstance(layout, Uneven) for _, layout in call.cuts.get("g", ())):
        raise refuse(call.op, "groups in unequal parts")
    return groups // call.parts.get("g", 1)
