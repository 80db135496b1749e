"""Elementwise primitives and reductions, and what has no effect on values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.ir.frontends.folding.terms import Term
from meshwright.ir.frontends.jax_.flat import Equation
from meshwright.ir.frontends.jax_.primitives import constants
from meshwright.ir.frontends.jax_.primitives.constants import number
from meshwright.ir.frontends.jax_.primitives.translate import Given, Lowering, Translator, Wide, opaque
from meshwright.ir.graph.graph import Attr, Type

SWAPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
"""Comparisons with their operands the other way round."""
NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "div": 1}
"""Numbers on the right that change nothing."""
COMMUTES = frozenset(("add", "mul", "maximum", "minimum", "eq", "ne"))


def unary(kind: str) -> Lowering:
    return lambda t, equation, given: t.elementwise(kind, given, equation.types[0])


def binary(kind: str) -> Lowering:
    """Two tensors, or one and a number (attribute `scalar`; `reverse` if the number is on the left)."""
    return lambda t, equation, given: pair(t, kind, given[0], given[1], equation.types[0])


def pair(t: Translator, kind: str, left: Given, right: Given, type_: Type, **attrs: Attr) -> Given:
    """A binary operator whose operands may be constant."""
    if number(left) is not None and number(right) is None and (kind in COMMUTES or kind in SWAPPED):
        left, right, kind = right, left, SWAPPED.get(kind, kind)
    if (value := number(right)) is not None:
        if NEUTRAL.get(kind) == value and not isinstance(left, Term) and t.shape(left) == type_.shape:
            return left
        return t.elementwise(kind, [left], type_, {**attrs, "scalar": value})
    if (value := number(left)) is not None:
        return t.elementwise(kind, [right], type_, {**attrs, "scalar": value, "reverse": True})
    return t.elementwise(kind, [left, right], type_, attrs)


def divided(t: Translator, equation: Equation, given: list[Any]) -> Given:
    """Integers are divided towards zero."""
    type_ = equation.types[0]
    if type_.floating:
        return pair(t, "div", given[0], given[1], type_)
    return pair(t, "div", given[0], given[1], type_, rounding="trunc")


def greater(t: Translator, equation: Equation, given: list[Any]) -> Given:
    """A maximum: with zero it is a rectifier, with minus infinity nothing."""
    left, right = given if number(given[0]) is None else given[::-1]
    if number(right) == float("-inf"):
        return left  # type: ignore[no-any-return]
    if number(right) == 0 and equation.types[0].floating:
        return t.elementwise("relu", [left], equation.types[0])
    return pair(t, "maximum", left, right, equation.types[0])


def lesser(t: Translator, equation: Equation, given: list[Any]) -> Given:
    left, right = given if number(given[0]) is None else given[::-1]
    if number(right) == float("inf"):
        return left  # type: ignore[no-any-return]
    return pair(t, "minimum", left, right, equation.types[0])


def logic(kind: str) -> Lowering:
    """Of booleans, or of the bits of integers. What is true or false everywhere is left out."""

    def lower(t: Translator, equation: Equation, given: list[Any]) -> Given:
        if equation.types[0].dtype != "bool":
            return t.elementwise(f"bitwise_{kind}", given, equation.types[0])
        for one, other in (given, given[::-1]):
            if number(one) is not None and kind != "xor":
                return other if bool(number(one)) == (kind == "and") else one  # type: ignore[no-any-return]
        return t.elementwise(f"logical_{kind}", given, equation.types[0])

    return lower


def inverted(t: Translator, equation: Equation, given: list[Any]) -> Given:
    kind = "logical_not" if equation.types[0].dtype == "bool" else "bitwise_not"
    return t.elementwise(kind, given, equation.types[0])


def finite(t: Translator, equation: Equation, given: list[Any]) -> Given:
    """Neither infinite nor undefined."""
    bad = [t.elementwise(kind, given, equation.types[0]) for kind in ("isinf", "isnan")]
    return t.elementwise("logical_not", [t.elementwise("logical_or", bad, equation.types[0])], equation.types[0])


def squared(t: Translator, equation: Equation, given: list[Any]) -> Given:
    return t.elementwise("mul", [given[0], given[0]], equation.types[0])


def powered(t: Translator, equation: Equation, given: list[Any]) -> Given:
    """An integer power."""
    exponent = int(equation.params["y"])
    if exponent == 1:
        return given[0]  # type: ignore[no-any-return]
    if exponent == 2:
        return squared(t, equation, given)
    if exponent == -1:
        return t.elementwise("reciprocal", given, equation.types[0])
    return t.elementwise("pow", given, equation.types[0], {"scalar": exponent})


def exp2(t: Translator, equation: Equation, given: list[Any]) -> Given:
    return t.elementwise("pow", given, equation.types[0], {"scalar": 2.0, "reverse": True})


def erfc(t: Translator, equation: Equation, given: list[Any]) -> Given:
    """1 - erf."""
    inner = t.elementwise("erf", given, equation.types[0])
    return t.elementwise("sub", [inner], equation.types[0], {"scalar": 1.0, "reverse": True})


def tangent(t: Translator, equation: Equation, given: list[Any]) -> Given:
    parts = [t.elementwise(kind, given, equation.types[0]) for kind in ("sin", "cos")]
    return t.elementwise("div", parts, equation.types[0])


def clamped(t: Translator, equation: Equation, given: list[Any]) -> Given:
    """Between two bounds."""
    low, x, high = given
    type_ = equation.types[0]
    if number(low) is not None and number(high) is not None:
        return t.elementwise("clamp", [x], type_, {"min": number(low), "max": number(high)})
    return pair(t, "minimum", pair(t, "maximum", x, low, type_), high, type_)


def chosen(t: Translator, equation: Equation, given: list[Any]) -> Given:
    """`select_n`: the case that an index names. With a drawn condition and zero otherwise it is dropout."""
    which, *cases = given
    type_ = equation.types[0]
    if len(cases) != 2 or t.dtype(which) != "bool":
        return opaque(t, equation, given)  # type: ignore[no-any-return]
    other, one = cases
    if (value := number(which)) is not None:
        return one if value else other  # type: ignore[no-any-return]
    dropped = dropout(t, which, one, other, type_)
    if dropped is not None:
        return dropped
    attrs: dict[str, Attr] = {}
    operands = [which]
    if (value := number(other)) is not None:
        attrs["scalar"] = value
        if number(one) is not None and type_.dtype == "f32":
            attrs = {"scalar": number(one), "other": value}
        else:
            operands.append(one)
    elif (value := number(one)) is not None:
        attrs, operands = {"scalar": value, "reverse": True}, [which, other]
    else:
        operands += [one, other]
    if type_.dtype == "bool" and len(operands) < 3:  # numbers of no tensor's dtype
        operands = [which, *(t.read(case) for case in (one, other))]
        attrs = {}
    return t.elementwise("where", operands, type_, attrs)


def multiplied(t: Translator, equation: Equation, given: list[Any]) -> Given:
    """A product. That with a drawn mask, which is divided by the share that it keeps, is dropout."""
    type_ = equation.types[0]
    for one, mask in (given, given[::-1]):
        kept = constants.kept_by(mask)
        if kept is not None and not isinstance(one, Term) and t.shape(one) == type_.shape:
            return _dropped(t, one, mask, kept, type_)
    return pair(t, "mul", given[0], given[1], type_)


def _dropped(t: Translator, one: Given, mask: Term, kept: float, type_: Type) -> Given:
    """Dropout; along dimensions of one element in its mask, all elements have the same draw (`same`)."""
    attrs: dict[str, Attr] = {"p": round(1 - kept, 6)}
    if same := constants.drawn_once(mask, type_.shape):
        attrs["same"] = same
    return t.emit("dropout", [t.read(one)], (type_,), attrs)


def dropout(t: Translator, which: Given, one: Given, other: Given, type_: Type) -> Given | None:
    """Dropout, if a drawn mask keeps elements of a value divided by the share that is kept."""
    if not isinstance(which, Term) or not constants.drawn(which) or isinstance(one, Term) or number(other) != 0:
        return None
    before = t.producer.get(one.value if isinstance(one, Wide) else one)
    kept = before.attr("scalar") if before is not None and before.kind in ("div", "mul") else None
    if before is None or not isinstance(kept, float) or len(before.operands) != 1:
        return None
    kept = kept if before.kind == "div" else 1 / kept
    return _dropped(t, before.operands[0], which, kept, type_)


def cast(t: Translator, equation: Equation, given: list[Any]) -> Given:
    (x,), type_ = given, equation.types[0]
    if t.dtype(x) == type_.dtype:
        return x  # type: ignore[no-any-return]
    return t.elementwise("cast", [x], type_, {"dtype": type_.dtype})


def passed(t: Translator, equation: Equation, given: list[Any]) -> Any:
    return given[0] if len(equation.types) == 1 else tuple(given)


def constrained(t: Translator, equation: Equation, given: list[Any]) -> Any:
    """The value as it is; what is said of it is noted."""
    (x,) = given
    spec = getattr(equation.params.get("sharding"), "spec", None)
    if isinstance(x, str) and spec is not None:
        several = (one if isinstance(one, tuple) else (one,) for one in spec)
        t.annotated.setdefault(x, tuple(tuple(axis for axis in axes if isinstance(axis, str)) for axes in several))
    return x


def detached(t: Translator, equation: Equation, given: list[Any]) -> Given:
    """Outside of differentiation."""
    (x,) = given
    return Wide(t.detached(x.value), x.shape) if isinstance(x, Wide) else t.detached(x)


# Reductions ----------------------------------------------------------------------------------------------------------


def reduction(kind: str) -> Lowering:
    def lower(t: Translator, equation: Equation, given: list[Any]) -> Given:
        return reduced(t, kind, given[0], equation.params["axes"], equation.types[0])

    return lower


def reduced(t: Translator, kind: str, given: Given, axes: Sequence[int], type_: Type) -> Given:
    dims = tuple(sorted(int(axis) for axis in axes))
    if not dims:
        return given
    attrs: dict[str, Attr] = {"dim": dims, "keepdim": False}
    if kind in ("sum", "prod") and not type_.floating:
        attrs["dtype"] = type_.dtype
    if kind == "prod":
        attrs["dim"] = dims[0]
        if len(dims) > 1:
            rest = Type(tuple(e for d, e in enumerate(t.shape(given)) if d != dims[-1]), type_.dtype)
            given, attrs["dim"] = reduced(t, kind, given, dims[-1:], rest), dims[0]
            return reduced(t, kind, given, dims[:-1], type_)
    return t.emit(kind, [t.read(given)], (type_,), attrs)


def position(kind: str) -> Lowering:
    """Where the extremum is, which we count in i64."""

    def lower(t: Translator, equation: Equation, given: list[Any]) -> Any:
        (axis,), type_ = equation.params["axes"], equation.types[0]
        attrs: dict[str, Attr] = {"dim": int(axis), "keepdim": False}
        return t.cast(t.emit(kind, [t.read(given[0])], (Type(type_.shape, "i64"),), attrs), type_.dtype)

    return lower


def running(kind: str) -> Lowering:
    """Running sums and products."""

    def lower(t: Translator, equation: Equation, given: list[Any]) -> Any:
        axis, type_ = int(equation.params["axis"]), equation.types[0]
        attrs: dict[str, Attr] = {"dim": axis}
        if not type_.floating:
            attrs["dtype"] = type_.dtype
        value = t.read(given[0])
        if not equation.params.get("reverse"):
            return t.emit(kind, [value], (type_,), attrs)
        flipped = t.emit("flip", [value], (t.types[value],), {"dims": (axis,)})
        return t.emit("flip", [t.emit(kind, [flipped], (type_,), attrs)], (type_,), {"dims": (axis,)})

    return lower


TABLE: dict[str, Lowering] = {
    **{
        name: unary(kind)
        for name, kind in {
            "neg": "neg", "abs": "abs", "exp": "exp", "log": "log", "log1p": "log1p", "expm1": "expm1",
            "sqrt": "sqrt", "rsqrt": "rsqrt", "sin": "sin", "cos": "cos", "tanh": "tanh", "logistic": "sigmoid",
            "erf": "erf", "floor": "floor", "ceil": "ceil", "round": "round", "sign": "sign",
        }.items()
    },
    **{
        name: binary(kind)
        for name, kind in {
            "add": "add", "add_any": "add", "sub": "sub", "pow": "pow", "rem": "fmod",
            "atan2": "atan2", "eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge",
        }.items()
    },
    "mul": multiplied,
    "div": divided,
    "max": greater,
    "min": lesser,
    "and": logic("and"),
    "or": logic("or"),
    "xor": logic("xor"),
    "not": inverted,
    "is_finite": finite,
    "square": squared,
    "integer_pow": powered,
    "exp2": exp2,
    "erfc": erfc,
    "tan": tangent,
    "clamp": clamped,
    "select_n": chosen,
    "convert_element_type": cast,
    "stop_gradient": detached,
    **dict.fromkeys(
        (
            "copy", "copy_p", "name", "optimization_barrier", "pvary", "reduce_precision", "device_put",
            "mesh_cast", "layout_constraint", "pcast",
        ),
        passed,
    ),
    "sharding_constraint": constrained,
    "reduce_sum": reduction("sum"),
    "reduce_max": reduction("amax"),
    "reduce_min": reduction("amin"),
    "reduce_prod": reduction("prod"),
    "reduce_and": reduction("all"),
    "reduce_or": reduction("any"),
    "argmax": position("argmax"),
    "argmin": position("argmin"),
    "cumsum": running("cumsum"),
    "cumprod": running("cumprod"),
    "cumlogsumexp": running("logcumsumexp"),
}  # fmt: skip
