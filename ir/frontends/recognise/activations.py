"""Activations and normalised exponentials that are written out, and biases of linear layers."""

from __future__ import annotations

from meshwright.ir.frontends.recognise.rewriting import Sweep, dims_of
from meshwright.ir.graph.graph import Op, Type


def unshifted(s: Sweep, value: str, dim: int) -> str:
    """What exponentials are taken of, before something that is the same along the dimension was subtracted."""
    shift = s.made(value, "sub")
    if shift is None or len(shift.operands) != 2:
        return value
    x, by = shift.operands
    rank = len(s.shape(x))
    aligned = (*(1 for _ in range(rank - len(s.shape(by)))), *s.shape(by))
    return x if s.shape(x) == s.shape(value) and aligned[dim] == 1 else value


def exponentials(s: Sweep, value: str) -> tuple[str, int, bool] | None:
    """(x, dim, keepdim) of a sum over exponentials along one dimension."""
    total = s.made(s.through(value, "cast", "abs"), "sum")
    if total is None or len(dims_of(total)) != 1:
        return None
    power = s.made(s.through(total.operands[0], "cast"), "exp")
    if power is None:
        return None
    return power.operands[0], dims_of(total)[0], bool(total.attr("keepdim"))


def softmax(s: Sweep, op: Op) -> str | None:
    """exp(x - m) / sum(exp(x - m))."""
    if op.kind != "div" or len(op.operands) != 2:
        return None
    found, power = exponentials(s, op.operands[1]), s.made(s.through(op.operands[0], "cast"), "exp")
    if found is None or power is None or found[0] != power.operands[0] or not found[2]:
        return None
    z, dim, _ = found
    x = unshifted(s, z, dim)
    made = s.emit("softmax", [x], Type(s.shape(x), s.types[x].dtype), {"dim": dim})
    return s.cast(made, s.types[op.name].dtype)


def logsumexp(s: Sweep, op: Op) -> str | None:
    """log(sum(exp(x))), and with what was subtracted from x added again."""
    if op.kind == "log" and (found := exponentials(s, op.operands[0])) is not None:
        z, dim, keep = found
        return s.emit("logsumexp", [z], s.types[op.name], {"dim": (dim,), "keepdim": keep})
    if op.kind != "add" or len(op.operands) != 2:
        return None
    for one, other in (op.operands, op.operands[::-1]):
        lse = s.made(one, "logsumexp")
        shift = None if lse is None else s.made(lse.operands[0], "sub")
        if lse is None or shift is None or len(shift.operands) != 2 or not s.same(shift.operands[1], other):
            continue
        x = unshifted(s, lse.operands[0], dims_of(lse)[0])
        if x == shift.operands[0]:
            return s.emit(
                "logsumexp", [x], s.types[op.name], {"dim": dims_of(lse), "keepdim": bool(lse.attr("keepdim"))}
            )
    return None


def log_softmax(s: Sweep, op: Op) -> str | None:
    """x - logsumexp(x)."""
    if op.kind != "sub" or len(op.operands) != 2:
        return None
    x, lse = op.operands[0], s.made(op.operands[1], "logsumexp")
    if lse is None or lse.operands[0] != x or not lse.attr("keepdim"):
        return None
    dim = dims_of(lse)[0]
    inner = unshifted(s, x, dim)
    return s.emit("log_softmax", [inner], s.types[op.name], {"dim": dim})


def factors(s: Sweep, value: str, deep: int = 4) -> tuple[list[str], float]:
    """What a product is made of, and the product of its numbers. Casts, and extents of 1 in front, are seen through."""
    op = s.made(value, "mul", "div", "cast", "neg")
    if op is None or not deep:
        return [value], 1.0
    scalar = op.attr("scalar")
    if op.kind == "cast" and s.types[op.operands[0]].floating:
        found, number = factors(s, op.operands[0], deep)
        return ([value], 1.0) if found == [op.operands[0]] and number == 1 else (found, number)
    if op.kind == "neg":
        found, number = factors(s, op.operands[0], deep - 1)
        return found, -number
    if op.kind in ("mul", "div") and isinstance(scalar, (int, float)) and not op.attr("reverse") and scalar:
        found, number = factors(s, op.operands[0], deep - 1)
        return found, number * (scalar if op.kind == "mul" else 1 / scalar)
    if op.kind == "mul" and len(op.operands) == 2:
        (left, a), (right, b) = (factors(s, one, deep - 1) for one in op.operands)
        return [*left, *right], a * b
    return [value], 1.0


def silu(s: Sweep, op: Op) -> str | None:
    """x · sigmoid(x)."""
    if op.kind != "mul" or len(op.operands) != 2:
        return None
    for x, other in (op.operands, op.operands[::-1]):
        gate = s.made(other, "sigmoid")
        if gate is not None and gate.operands[0] == x:
            return s.emit("silu", [x], s.types[op.name])
    return None


def _of_alone(s: Sweep, value: str, x: str, kinds: set[str], deep: int = 8) -> bool:
    """Whether a value is computed of x and numbers alone; `kinds` collects how."""
    if value == x:
        return True
    op = s.made(value, "mul", "add", "pow", "div", "neg")
    if op is None or not deep:
        return False
    kinds.add(op.kind)
    return all(_of_alone(s, one, x, kinds, deep - 1) for one in op.operands)


def gelu(s: Sweep, op: Op) -> str | None:
    """x · (1 + tanh(…x…)) / 2, or x · (1 + erf(x / √2)) / 2."""
    if op.kind != "mul":
        return None
    found, number = _written_product(op, s, 5)
    if len(found) != 2 or abs(abs(number) - 0.5) > 1e-3:
        return None
    for x, other in (found, found[::-1]):
        one = s.made(other, "add", "sub")
        unit = one is not None and one.attr("scalar") in (1.0, -1.0)
        inner = s.made(one.operands[0], "tanh", "erf") if one is not None and unit else None
        kinds: set[str] = set()
        if inner is None or not _of_alone(s, inner.operands[0], x, kinds):
            continue
        curved = "add" in kinds
        if curved == (inner.kind == "tanh"):
            approximate = "tanh" if inner.kind == "tanh" else "none"
            return s.emit("gelu", [x], s.types[op.name], {"approximate": approximate})
    return None


def _written_product(op: Op, s: Sweep, deep: int) -> tuple[list[str], float]:
    """The factors of a product that is not swept yet."""
    found: list[str] = []
    scalar = op.attr("scalar")
    number = float(scalar) if isinstance(scalar, (int, float)) else 1.0
    for one in op.operands:
        inner, by = factors(s, one, deep)
        found += inner
        number *= by
    return found, number


def bias(s: Sweep, op: Op) -> str | None:
    """A linear layer and what is added to each of its features."""
    if op.kind != "add" or len(op.operands) != 2 or "alpha" in dict(op.attrs):
        return None
    for one, other in (op.operands, op.operands[::-1]):
        seen = s.made(one, "view")
        layer = s.made(one if seen is None else seen.operands[0], "linear")
        added, shape = s.shape(other), s.shape(one)
        if layer is None or len(layer.operands) != 2 or not added or shape[len(shape) - len(added) :] != added:
            continue
        wide = s.shape(layer.name)
        if len(added) >= len(shape) or wide[:-1] != shape[: len(shape) - len(added)]:
            continue
        if s.types[other].dtype != s.types[layer.name].dtype:
            continue
        flat = s.view(other, (wide[-1],))
        made = s.emit("linear", [*layer.operands, flat], s.types[layer.name], dict(layer.attrs))
        return s.view(made, shape)
    return None
