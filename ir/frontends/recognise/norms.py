"""RMS norm and layer norm, written out.

    x · rsqrt(mean(x²) + ε) (· w)                              RMS norm
    (x - mean(x)) · rsqrt(var(x) + ε) (· w) (+ b)              layer norm

The factors of the product may stand in any order (Flax multiplies the weight with the reciprocal spread first), the
variance may be mean((x - mean)²) or mean(x²) - mean(x)², and a division by a root serves as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meshwright.ir.frontends.recognise.activations import _written_product
from meshwright.ir.frontends.recognise.rewriting import Sweep, dims_of
from meshwright.ir.graph.graph import ITEMSIZE, Op, Type

NORMS = ("rms_norm", "layer_norm")


@dataclass(frozen=True, slots=True)
class Spread:
    """A reciprocal root of a mean of squares: of what, over which dimensions, with which ε."""

    value: str
    eps: float


def norm(s: Sweep, op: Op) -> str | None:
    """A product that normalises, or scales what was normalised."""
    if op.kind == "mul" and len(op.operands) == 2:
        found, number = _written_product(op, s, 4)
        if number == 1:
            return _normalised(s, op, found) or _scaled(s, op, found)
    if op.kind == "div" and len(op.operands) == 2:
        root = s.made(s.through(op.operands[1], "cast"), "sqrt")
        if root is not None and (spread := _spread_of(s, root.operands[0])) is not None:
            return _written(s, op, op.operands[0], spread, ())
    if op.kind == "add" and len(op.operands) == 2:
        return _shifted(s, op)
    return None


def _normalised(s: Sweep, op: Op, found: Sequence[str]) -> str | None:
    for at, value in enumerate(found):
        root = s.made(s.through(value, "cast"), "rsqrt")
        spread = None if root is None else _spread_of(s, root.operands[0])
        if spread is None:
            continue
        rest = [*found[:at], *found[at + 1 :]]
        shape = s.types[op.name].shape
        centres = [one for one in rest if s.shape(one) == shape]
        weights = [one for one in rest if s.shape(one) != shape]
        if len(centres) == 1 and len(weights) <= 1:
            return _written(s, op, centres[0], spread, weights)
    return None


def _spread_of(s: Sweep, value: str) -> Spread | None:
    shifted = s.made(value, "add")
    eps = None if shifted is None else shifted.attr("scalar")
    if shifted is None or not isinstance(eps, (int, float)):
        return None
    return Spread(s.through(shifted.operands[0], "cast", "relu", "view"), float(eps))


def _written(s: Sweep, op: Op, centre: str, spread: Spread, weights: Sequence[str]) -> str | None:
    centre = s.through(centre, "cast")
    mean_of = _square_mean(s, spread.value)
    if mean_of is not None:
        squared, dims = mean_of
        if s.through(squared, "cast") != centre:
            return None
        minus = _centred(s, centre, dims)
        return _made(s, op, "rms_norm" if minus is None else "layer_norm", minus or centre, dims, spread, weights)
    difference = s.made(spread.value, "sub")  # mean(x²) - mean(x)²
    if difference is None or len(difference.operands) != 2:
        return None
    first = _square_mean(s, difference.operands[0])
    product = s.made(difference.operands[1], "mul")
    if first is None or product is None or len(set(product.operands)) != 1:
        return None
    x = _centred(s, centre, first[1])
    average = s.made(s.through(product.operands[0], "cast"), "mean")
    alike = average is not None and s.through(average.operands[0], "cast") == s.through(first[0], "cast")
    if x is None or not alike or s.through(x, "cast") != s.through(first[0], "cast"):
        return None
    return _made(s, op, "layer_norm", x, first[1], spread, weights)


def _square_mean(s: Sweep, value: str) -> tuple[str, tuple[int, ...]] | None:
    """(x, dims) of mean(x²)."""
    average = s.made(s.through(value, "cast", "view"), "mean")
    if average is None:
        return None
    square = s.made(s.through(average.operands[0], "cast"), "mul", "pow")
    if square is None:
        return None
    twice = len(square.operands) == 2 and len(set(square.operands)) == 1
    if not twice and not (square.kind == "pow" and square.attr("scalar") == 2):
        return None
    return square.operands[0], dims_of(average)


def _centred(s: Sweep, value: str, dims: tuple[int, ...]) -> str | None:
    """x, if the value is x - mean(x)."""
    minus = s.made(s.through(value, "cast"), "sub")
    if minus is None or len(minus.operands) != 2:
        return None
    x = minus.operands[0]
    average = s.made(s.through(minus.operands[1], "cast", "view"), "mean")
    if average is None or dims_of(average) != dims:
        return None
    return x if s.through(average.operands[0], "cast") == s.through(x, "cast") else None


def _made(
    s: Sweep, op: Op, kind: str, x: str, dims: tuple[int, ...], spread: Spread, weights: Sequence[str]
) -> str | None:
    """The norm, in the dtype in which x is read; its result in that of the product."""
    inner = s.through(x, "cast")
    x = inner if _as_wide(s, inner, (s.through(one, "cast") for one in weights)) else x
    shape = s.shape(x)
    if dims != tuple(range(len(shape) - len(dims), len(shape))) or s.types[op.name].shape != shape:
        return None
    trailing = shape[len(shape) - len(dims) :]
    scales = [s.through(one, "cast") for one in weights]
    if any(_trailing(s.shape(one)) != trailing for one in scales):
        return None
    seen = [s.view(one, trailing) for one in scales]
    made = s.emit(kind, [x, *seen], Type(shape, s.types[x].dtype), {"eps": spread.eps, "normalized_shape": trailing})
    return s.cast(made, s.types[op.name].dtype)


def _as_wide(s: Sweep, x: str, scales: Iterable[str]) -> bool:
    """Whether a floating value is at least as wide as all that scales it."""
    own = s.types[x]
    return own.floating and all(ITEMSIZE[s.types[one].dtype] <= ITEMSIZE[own.dtype] for one in scales)


def _trailing(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without extents of 1 in front."""
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape


def _scaled(s: Sweep, op: Op, found: Sequence[str]) -> str | None:
    """A norm without a weight, times one."""
    if len(found) != 2:
        return None
    for value, weight in (found, found[::-1]):
        before = s.made(s.through(value, "cast"), *NORMS)
        if before is None or len(before.operands) != 1:
            continue
        trailing = before.attr("normalized_shape")
        scale = s.through(weight, "cast")
        if (
            _as_wide(s, before.operands[0], [scale])
            and _trailing(s.shape(scale)) == trailing
            and isinstance(trailing, tuple)
        ):
            operands = [before.operands[0], s.view(scale, before.integers("normalized_shape"))]
            made = s.emit(before.kind, operands, s.types[before.name], dict(before.attrs))
            return s.cast(made, s.types[op.name].dtype)
    return None


def _shifted(s: Sweep, op: Op) -> str | None:
    """A layer norm with a weight, plus a bias."""
    for value, added in (op.operands, op.operands[::-1]):
        before = s.made(s.through(value, "cast"), "layer_norm")
        if before is None or len(before.operands) != 2:
            continue
        shift = s.through(added, "cast")
        if _as_wide(s, before.operands[0], [shift]) and _trailing(s.shape(shift)) == before.attr("normalized_shape"):
            operands = [*before.operands, s.view(shift, before.integers("normalized_shape"))]
            made = s.emit("layer_norm", operands, s.types[before.name], dict(before.attrs))
            return s.cast(made, s.types[op.name].dtype)
    return None
