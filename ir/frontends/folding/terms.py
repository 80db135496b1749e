"""Constants of a traced model, evaluated lazily at single points.

A model's graph contains tensors that depend on no parameter and no input: position indices, RoPE tables, attention
masks. A mask is the expensive one: [batch, 1, seq, seq] booleans are 1 GiB at 8k tokens and batch 16, and at 128k
tokens cannot be built at all. Nobody needs it built. What the planner needs is its *law* ("key j is visible from query
i iff j <= i"), and a law can be read off a few rows.

`Term` is such a constant as an expression: an ATen operator over other terms and Python numbers. `Term.at(index)` is
the value at the given coordinates and nothing else; coordinates are NumPy index arrays that broadcast against one
another (rows [r, 1] against columns [1, c]), so parts that vary along one dimension only stay one-dimensional all the
way through.

Each supported operator is one function in `_LAWS`. An operator without one raises `NotEvaluable`, and the caller keeps
the constant as an ordinary operand: slower plans, never wrong ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Index = tuple[Array, ...]

_MAX_POINTS = 1 << 25  # largest intermediate that one evaluation may build; beyond it the constant is left alone


class NotEvaluable(Exception):
    """The constant uses an operator, or an amount of data, that point evaluation does not cover."""


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """A constant tensor as an expression. `data`, where present, is the tensor itself and `op` is empty."""

    op: str
    shape: tuple[int, ...]
    dtype: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    data: Array | None = None
    target: str = ""
    """The overload that made it, where one did: `add.Tensor`, `mylib.rotary.default`."""

    def at(self, index: Index) -> Array:
        """Values at the given coordinates (one index array per dimension; the arrays broadcast)."""
        if self.data is not None:
            return np.asarray(self.data[index])
        law = _LAWS.get(self.op)
        if law is None:
            raise NotEvaluable(self.op or "data unknown")
        with np.errstate(all="ignore"):
            return self._stored(law(self, index))

    def _stored(self, values: Array) -> Array:
        """The values as a tensor of this dtype would hold them; floats keep NumPy's precision."""
        if self.dtype == "bool":
            return np.asarray(values != 0)
        if self.dtype.startswith(("i", "u")) and values.dtype.kind == "f":
            return np.trunc(values).astype(np.int64)
        return values

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)


def _operand(value: Any, result_rank: int, index: Index) -> Array:
    """The operand of a broadcasting operator at the coordinates of its result."""
    if not isinstance(value, Term):
        return np.asarray(value)
    aligned = index[result_rank - len(value.shape) :]
    return value.at(tuple(np.zeros_like(i) if size == 1 else i for i, size in zip(aligned, value.shape, strict=True)))


def _pointwise(function: Callable[..., Array]) -> Callable[[Term, Index], Array]:
    return lambda term, index: function(*(_operand(a, len(term.shape), index) for a in term.args))


def _first(term: Term, index: Index) -> Array:
    return np.asarray(term.args[0].at(index))


def _filled(value: Any) -> Callable[[Term, Index], Array]:
    return lambda term, index: np.asarray(value)


def _full(term: Term, index: Index) -> Array:
    return np.asarray(term.argument(1, "fill_value"))


def _arange(term: Term, index: Index) -> Array:
    start, step = (0, 1) if len(term.args) == 1 else (term.args[0], term.args[2] if len(term.args) > 2 else 1)
    return np.asarray(start + step * index[0])


def _add(term: Term, index: Index) -> Array:
    left, right = (_operand(a, len(term.shape), index) for a in term.args[:2])
    return np.asarray(left + right * term.kwargs.get("alpha", 1))


def _sub(term: Term, index: Index) -> Array:
    left, right = (_operand(a, len(term.shape), index) for a in term.args[:2])
    return np.asarray(left - right * term.kwargs.get("alpha", 1))


def _div(term: Term, index: Index) -> Array:
    left, right = (_operand(a, len(term.shape), index) for a in term.args[:2])
    quotient = np.asarray(left / right)
    mode = term.kwargs.get("rounding_mode")
    return quotient if mode is None else np.floor(quotient) if mode == "floor" else np.trunc(quotient)


def _expand(term: Term, index: Index) -> Array:
    return _operand(term.args[0], len(term.shape), index)


def _reshape(term: Term, index: Index) -> Array:
    source: Term = term.args[0]
    kept = [i for i, size in zip(index, term.shape, strict=True) if size != 1]
    if [s for s in source.shape if s != 1] == [s for s in term.shape if s != 1]:
        moved = iter(kept)
        return source.at(tuple(np.asarray(0) if size == 1 else next(moved) for size in source.shape))
    flat = np.zeros((), dtype=np.int64)
    for i, size in zip(index, term.shape, strict=True):
        flat = flat * size + i
    return source.at(tuple(np.unravel_index(flat, source.shape)))


def _permute(term: Term, index: Index) -> Array:
    order = [d % len(term.shape) for d in term.args[1]]
    source: Term = term.args[0]
    return source.at(tuple(index[order.index(d)] for d in range(len(order))))


def _transpose(term: Term, index: Index) -> Array:
    swapped = list(index)
    a, b = (term.args[1], term.args[2]) if len(term.args) > 1 else (0, 1)
    swapped[a], swapped[b] = swapped[b], swapped[a]
    source: Term = term.args[0]
    return source.at(tuple(swapped))


def _slice(term: Term, index: Index) -> Array:
    source: Term = term.args[0]
    dim = term.argument(1, "dim", 0) % len(source.shape)
    start, step = term.argument(2, "start") or 0, term.argument(4, "step", 1)
    start = min(max(start + source.shape[dim] if start < 0 else start, 0), source.shape[dim])
    return source.at((*index[:dim], start + step * index[dim], *index[dim + 1 :]))


def _select(term: Term, index: Index) -> Array:
    source: Term = term.args[0]
    dim, where = term.args[1] % len(source.shape), term.args[2]
    return source.at((*index[:dim], np.asarray(where % source.shape[dim]), *index[dim:]))


def _cat(term: Term, index: Index) -> Array:
    parts: tuple[Term, ...] = tuple(p for p in term.args[0] if math.prod(p.shape))
    dim = term.argument(1, "dim", 0) % len(term.shape)
    result, offset = None, 0
    for part in parts:
        inside = np.clip(index[dim] - offset, 0, part.shape[dim] - 1)
        values = part.at((*index[:dim], inside, *index[dim + 1 :]))
        result = values if result is None else np.where(index[dim] >= offset, values, result)
        offset += part.shape[dim]
    return np.asarray(result)


def _triangle(keep: Callable[[Array, Array, int], Array]) -> Callable[[Term, Index], Array]:
    def law(term: Term, index: Index) -> Array:
        values = _first(term, index)
        return np.where(keep(index[-2], index[-1], term.argument(1, "diagonal", 0)), values, np.zeros((), values.dtype))

    return law


def _cumsum(term: Term, index: Index) -> Array:
    source: Term = term.args[0]
    dim = term.args[1] % len(term.shape)
    length = source.shape[dim]
    others = (
        [i[..., None] for i in np.broadcast_arrays(*(i for d, i in enumerate(index) if d != dim))]
        if len(index) > 1
        else []
    )
    if math.prod(others[0].shape if others else (1,)) * length > _MAX_POINTS:
        raise NotEvaluable("cumsum over too many rows")
    line = np.arange(length)
    others.insert(dim, line)
    sums = np.cumsum(
        np.broadcast_to(source.at(tuple(others)), np.broadcast_shapes(*(o.shape for o in others))), axis=-1
    )
    if sums.ndim == 1:
        return np.asarray(sums[index[dim]])
    wanted = index[dim][..., None]
    shape = np.broadcast_shapes(sums.shape[:-1], wanted.shape[:-1])
    return np.take_along_axis(np.broadcast_to(sums, (*shape, length)), np.broadcast_to(wanted, (*shape, 1)), -1)[..., 0]


def _diff(term: Term, index: Index) -> Array:
    source: Term = term.args[0]
    dim = term.argument(2, "dim", -1) % len(source.shape)
    before: Term | None = term.argument(3, "prepend")
    if term.argument(1, "n", 1) != 1 or term.argument(4, "append") is not None:
        raise NotEvaluable("diff of higher order")
    lead = before.shape[dim] if before is not None else 0

    def joined(position: Array) -> Array:
        inside = source.at((*index[:dim], np.clip(position - lead, 0, source.shape[dim] - 1), *index[dim + 1 :]))
        if before is None:
            return inside
        ahead = before.at((*index[:dim], np.clip(position, 0, lead - 1), *index[dim + 1 :]))
        return np.where(position < lead, ahead, inside)

    return joined(index[dim] + 1) - joined(index[dim])


def _gather_rows(term: Term, index: Index) -> Array:
    """`x[i, j]` with index tensors for the leading dimensions."""
    source: Term = term.args[0]
    pointers = [p for p in term.args[1] if p is not None]
    if any(p is None for p in term.args[1][: len(pointers)]):
        raise NotEvaluable("index tensors after a full slice")
    rank = len(np.broadcast_shapes(*(p.shape for p in pointers)))
    located = tuple(_operand(p, rank, index[:rank]) for p in pointers)
    wrapped = tuple(np.where(i < 0, i + size, i) for i, size in zip(located, source.shape, strict=False))
    return source.at((*wrapped, *index[rank:]))


def _copied(term: Term, index: Index) -> Array:
    """The result of `copy_`: the source; what it overwrites is not kept."""
    return _operand(term.args[1], len(term.shape), index)


def _slice_scatter(term: Term, index: Index) -> Array:
    base, part, dim, start, end, step = term.args
    offset = index[dim] - start
    inside = np.clip(offset // step, 0, part.shape[dim] - 1)
    overwritten = (offset >= 0) & (index[dim] < end) & (offset % step == 0)
    return np.asarray(np.where(overwritten, part.at((*index[:dim], inside, *index[dim + 1 :])), base.at(index)))


def _outer(term: Term, index: Index) -> Array:
    left, right = term.args
    return np.asarray(left.at(index[:1]) * right.at(index[1:]))


def _choose(condition: Array, x: Array, y: Array) -> Array:
    return np.asarray(np.where(condition, x, y))


_POINTWISE: dict[str, Callable[..., Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "mul": np.multiply,
    "neg": np.negative,
    "abs": np.abs,
    "log": np.log,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "floor": np.floor,
    "ceil": np.ceil,
    "cos": np.cos,
    "sin": np.sin,
    "pow": np.power,
    "reciprocal": np.reciprocal,
    "rsub": lambda a, b: b - a,
    "floor_divide": np.floor_divide,
    "remainder": np.mod,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "min": np.minimum,
    "max": np.maximum,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "logical_not": np.logical_not,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_not": np.invert,
    "__and__": np.bitwise_and,
    "__or__": np.bitwise_or,
    "where": _choose,
    "masked_fill": lambda x, mask, value: _choose(mask, value, x),
}

_LAWS: dict[str, Callable[[Term, Index], Array]] = {
    **{name: _pointwise(function) for name, function in _POINTWISE.items()},
    **dict.fromkeys(("alias", "clone", "contiguous", "detach", "lift_fresh_copy", "to", "_to_copy", "type_as"), _first),
    **dict.fromkeys(("expand", "expand_as"), _expand),
    **dict.fromkeys(("view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten", "_unsafe_view"), _reshape),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), _filled(1)),
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), _filled(0)),
    **dict.fromkeys(("full", "full_like"), _full),
    "new_full": lambda term, index: np.asarray(term.args[2]),
    "scalar_tensor": lambda term, index: np.asarray(term.args[0]),
    "outer": _outer,
    "eye": lambda term, index: index[0] == index[1],
    "arange": _arange,
    "add": _add,
    "sub": _sub,
    "div": _div,
    "permute": _permute,
    "transpose": _transpose,
    "t": _transpose,
    "copy": _copied,
    "fill": _copied,
    "slice": _slice,
    "slice_scatter": _slice_scatter,
    "select": _select,
    "cat": _cat,
    "tril": _triangle(lambda row, column, k: column <= row + k),
    "triu": _triangle(lambda row, column, k: column >= row + k),
    "cumsum": _cumsum,
    "diff": _diff,
    "index": _gather_rows,
}


def evaluable(operator: str) -> bool:
    """Whether this ATen operator has a law."""
    return operator in _LAWS
