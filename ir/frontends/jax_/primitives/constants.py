"""Constants of a jaxpr as terms.

What depends on no parameter and no input (positions, rotary tables, masks) is never built, as in torch: it is an
expression (`Term`), whose operators are named as ATen names them, so that its law can be read off single points and
its lines be printed. A constant that is one number everywhere is that number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshwright.ir.frontends.folding.layout import broadcast
from meshwright.ir.frontends.folding.terms import Term
from meshwright.ir.graph.graph import Type

RANDOM = "random"
"""The operator of a term that is drawn: it has no law."""

_SAME = {
    "add": "add", "add_any": "add", "sub": "sub", "mul": "mul", "div": "div", "max": "maximum", "min": "minimum",
    "pow": "pow", "rem": "fmod", "atan2": "atan2", "neg": "neg", "abs": "abs", "exp": "exp", "log": "log",
    "log1p": "log1p", "expm1": "expm1", "sqrt": "sqrt", "rsqrt": "rsqrt", "sin": "sin", "cos": "cos", "tan": "tan",
    "tanh": "tanh", "logistic": "sigmoid", "floor": "floor", "ceil": "ceil", "round": "round", "sign": "sign",
    "eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "erf": "erf", "exp2": "exp2",
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "not": "bitwise_not",
    "cumsum": "cumsum", "cumprod": "cumprod",
}  # fmt: skip

_FOLDED: Mapping[str, Callable[..., Any]] = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
    "pow": np.power, "neg": np.negative, "abs": np.abs, "exp": np.exp, "log": np.log, "log1p": np.log1p,
    "expm1": np.expm1, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "floor": np.floor,
    "ceil": np.ceil, "sign": np.sign, "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "not": np.invert, "is_finite": np.isfinite, "rsqrt": lambda x: 1 / np.sqrt(x), "square": np.square,
    "select_n": lambda which, *cases: cases[int(which)], "clamp": lambda low, x, high: np.clip(x, low, high),
    "stop_gradient": lambda x: x, "copy": lambda x: x, "convert_element_type": lambda x: x,
    "rem": np.fmod, "logistic": lambda x: 1 / (1 + np.exp(-x)),
}  # fmt: skip

_NUMPY = {"f64": np.float64, "f32": np.float32, "i64": np.int64, "i32": np.int32, "bool": np.bool_}


def full(type_: Type, value: Any) -> Term:
    """One number everywhere."""
    return Term("full", type_.shape, type_.dtype, (type_.shape, plain(value, type_.dtype)))


def plain(value: Any, dtype: str) -> bool | int | float:
    """A number as Python has it: of floats the shortest that is the same in fp32."""
    if dtype == "bool":
        return bool(value)
    if dtype.startswith(("i", "u")):
        return int(value)
    value = np.float64(value) if dtype == "f64" else np.float32(value)
    return float(str(value))


def number(handle: Any) -> bool | int | float | None:
    """The number that a constant is everywhere, if it is."""
    return handle.args[1] if isinstance(handle, Term) and handle.op == "full" else None


def drawn(handle: Any) -> bool:
    """Whether a constant is made of random numbers."""
    seen: set[int] = set()
    pending = [handle]
    while pending:
        one = pending.pop()
        if isinstance(one, list | tuple):
            pending += one
        elif isinstance(one, Term) and id(one) not in seen:
            seen.add(id(one))
            if one.op == RANDOM:
                return True
            pending += one.args
    return False


def kept_by(handle: Any) -> float | None:
    """The share of elements that a mask keeps, if it is drawn as booleans, and divided by that."""
    kept = None
    while isinstance(handle, Term) and handle.op == RANDOM and handle.dtype != "bool":
        name, *given = handle.args
        by = number(given[-1]) if name in ("div", "mul") else None
        if by is not None and kept is None:
            kept = float(by) if name == "div" else 1 / float(by)
        elif name not in ("convert_element_type", "broadcast_in_dim", "reshape"):
            return None
        handle = given[0]
    return kept if isinstance(handle, Term) and handle.op == RANDOM and kept is not None and 0 < kept < 1 else None


def drawn_once(handle: Term, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions of a shape along which all elements of a drawn mask are the same."""
    once: set[int] = set()
    while handle.op == RANDOM and len(handle.shape) == len(shape):
        once |= {dim for dim, extent in enumerate(handle.shape) if extent < shape[dim]}
        name, *given = handle.args
        if name not in ("convert_element_type", "broadcast_in_dim", "div", "mul") or not given:
            break
        handle = given[0]
    return tuple(sorted(once))


def array(data: Any, type_: Type) -> Term:
    """An array that stands in the code."""
    values = np.asarray(data)
    values = values.astype(np.float64) if type_.floating else values
    if values.size and (values == values.flat[0]).all():
        return full(type_, values.flat[0])
    return Term("", type_.shape, type_.dtype, data=values)


def term(name: str, params: Mapping[str, Any], given: Sequence[Term], type_: Type) -> Term | None:
    """The constant that a primitive makes of constants; None for one that has no form here."""
    if any(one.op == RANDOM for one in given) or name.startswith(("random_", "threefry")):
        return Term(RANDOM, type_.shape, type_.dtype, (name, *given))
    numbers = [number(one) for one in given]
    if given and name in _FOLDED and all(one is not None for one in numbers):
        return full(type_, _folded(name, given, numbers, type_))
    form = _FORMS.get(name)
    if form is not None:
        return form(params, given, type_)
    if name not in _SAME:
        return None
    return _of_operator(name, params, given, numbers, type_)


def _folded(name: str, given: Sequence[Term], numbers: Sequence[Any], type_: Type) -> Any:
    with np.errstate(all="ignore"):
        values = [_NUMPY.get(one.dtype, np.float32)(value) for one, value in zip(given, numbers, strict=True)]
        return _FOLDED[name](*values)


def _of_operator(
    name: str, params: Mapping[str, Any], given: Sequence[Term], numbers: Sequence[Any], type_: Type
) -> Term:
    if name in ("cumsum", "cumprod"):
        return Term(_SAME[name], type_.shape, type_.dtype, (given[0], params["axis"]))
    if name == "div" and not type_.floating:
        return _spread("div", type_, [_narrow(one) for one in given], {"rounding_mode": "trunc"})
    args: list[Any] = [_narrow(one) for one in given]
    if len(args) == 2 and name not in ("max", "min", "atan2"):
        if numbers[1] is not None:
            args[1] = numbers[1]
        elif numbers[0] is not None and name in ("add", "mul", "sub", "pow"):
            if name == "sub":
                return _spread("rsub", type_, (args[1], numbers[0]))
            args = [args[1], numbers[0]] if name != "pow" else [numbers[0], args[1]]
    return _spread(_SAME[name], type_, args)


def _narrow(one: Term) -> Term:
    """What was repeated, where broadcasting repeats it."""
    if one.op == "full" and one.shape:
        return Term("full", (), one.dtype, ((), one.args[1]))
    return one.args[0] if one.op == "expand" else one


def _spread(operator: str, type_: Type, args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> Term:
    """An elementwise operator over what was not repeated, repeated afterwards."""
    shape: tuple[int, ...] = ()
    for one in args:
        shape = broadcast(shape, one.shape) if isinstance(one, Term) else shape
    return expanded(seen_as_ranked(Term(operator, shape, type_.dtype, tuple(args), kwargs or {}), type_), type_.shape)


def seen_as_ranked(one: Term, type_: Type) -> Term:
    """With dimensions of extent 1 in front, as many as the type has."""
    missing = len(type_.shape) - len(one.shape)
    return seen_as(one, (*(1 for _ in range(missing)), *one.shape)) if missing else one


Form = Callable[[Mapping[str, Any], Sequence[Term], Type], Term]


def seen_as(one: Term, shape: tuple[int, ...]) -> Term:
    """The elements in another shape."""
    if one.shape == shape:
        return one
    value = number(one)
    if value is not None:
        return full(Type(shape, one.dtype), value)
    return Term("view", shape, one.dtype, (one, shape))


def expanded(one: Term, shape: tuple[int, ...]) -> Term:
    """Extents of 1 repeated."""
    return one if one.shape == shape else Term("expand", shape, one.dtype, (one, shape))


def _broadcast(params: Mapping[str, Any], given: Sequence[Term], type_: Type) -> Term:
    (one,) = given
    if number(one) is not None:
        return full(type_, number(one))
    shape = [1] * len(type_.shape)
    for dim, extent in zip(params["broadcast_dimensions"], one.shape, strict=True):
        shape[int(dim)] = extent
    return expanded(seen_as(one, tuple(shape)), type_.shape)


def _iota(params: Mapping[str, Any], given: Sequence[Term], type_: Type) -> Term:
    dim = int(params["dimension"])
    extent = type_.shape[dim]
    line = Term("arange", (extent,), type_.dtype, (extent,), {"dtype": None} if type_.dtype == "i64" else {})
    if type_.dtype != "i64":
        line = Term("to", (extent,), type_.dtype, (Term("arange", (extent,), "i64", (extent,)),))
    shape = tuple(extent if at == dim else 1 for at in range(len(type_.shape)))
    return expanded(seen_as(line, shape), type_.shape)


def _cast(params: Mapping[str, Any], given: Sequence[Term], type_: Type) -> Term:
    return given[0] if given[0].dtype == type_.dtype else Term("to", type_.shape, type_.dtype, (given[0],))


def _permuted(params: Mapping[str, Any], given: Sequence[Term], type_: Type) -> Term:
    if number(given[0]) is not None:
        return full(type_, number(given[0]))
    return Term("permute", type_.shape, type_.dtype, (given[0], tuple(map(int, params["permutation"]))))


def _sliced(params: Mapping[str, Any], given: Sequence[Term], type_: Type) -> Term:
    one = given[0]
    if number(one) is not None:
        return full(type_, number(one))
    strides = params["strides"] or (1,) * len(one.shape)
    for dim, (start, end, step) in enumerate(
        zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    ):
        if (start, end, step) != (0, one.shape[dim], 1):
            shape = (*one.shape[:dim], math.ceil((end - start) / step), *one.shape[dim + 1 :])
            one = Term("slice", shape, one.dtype, (one, dim, int(start), int(end), int(step)))
    return one


def _joined(params: Mapping[str, Any], given: Sequence[Term], type_: Type) -> Term:
    numbers = {number(one) for one in given}
    if len(numbers) == 1 and None not in numbers:
        return full(type_, numbers.pop())
    return Term("cat", type_.shape, type_.dtype, (tuple(given), int(params["dimension"])))


def _chosen(params: Mapping[str, Any], given: Sequence[Term], type_: Type) -> Term:
    which, other, chosen = given
    if number(which) is not None:
        return chosen if number(which) else other
    if number(chosen) is True and number(other) is False:
        return which
    if type_.dtype == "bool" and number(other) is False:
        return _spread("bitwise_and", type_, (_narrow(which), _narrow(chosen)))
    return _spread("where", type_, (_narrow(which), _narrow(chosen), _narrow(other)))


def _same(params: Mapping[str, Any], given: Sequence[Term], type_: Type) -> Term:
    return given[0]


def _logic(kind: str) -> Form:
    """Of booleans, with what is true or false everywhere left out."""

    def made(params: Mapping[str, Any], given: Sequence[Term], type_: Type) -> Term:
        if type_.dtype == "bool":
            for one, other in (given, given[::-1]):
                if number(one) is not None:
                    neutral = bool(number(one)) == (kind == "bitwise_and")
                    return other if neutral else full(type_, number(one))
        return _spread(kind, type_, [_narrow(one) for one in given])

    return made


def _power(params: Mapping[str, Any], given: Sequence[Term], type_: Type) -> Term:
    exponent = int(params["y"])
    value = number(given[0])
    if value is not None:
        return full(type_, value**exponent)
    return Term("pow", type_.shape, type_.dtype, (given[0], exponent))


def _square(params: Mapping[str, Any], given: Sequence[Term], type_: Type) -> Term:
    return Term("mul", type_.shape, type_.dtype, (given[0], given[0]))


_FORMS: Mapping[str, Form] = {
    "broadcast_in_dim": _broadcast,
    "iota": _iota,
    "convert_element_type": _cast,
    "transpose": _permuted,
    "reshape": lambda params, given, type_: seen_as(given[0], type_.shape),
    "squeeze": lambda params, given, type_: seen_as(given[0], type_.shape),
    "expand_dims": lambda params, given, type_: seen_as(given[0], type_.shape),
    "slice": _sliced,
    "concatenate": _joined,
    "select_n": _chosen,
    "integer_pow": _power,
    "square": _square,
    "and": _logic("bitwise_and"),
    "or": _logic("bitwise_or"),
    **dict.fromkeys(("stop_gradient", "copy", "copy_p", "name", "optimization_barrier", "pvary"), _same),
}
