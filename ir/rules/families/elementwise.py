"""Elementwise operators: one element of the result reads one element of each operand.

They split along every dimension; what differs is the law, which decides whether partial sums may pass, and what eager
autograd keeps. A second operand may be a Python number, in the attribute `scalar` (`reverse` puts it first). That
matters for the law: x + 3 is affine, so a sum of shards must be complete before the 3 is added; 3 · x is linear.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.ir.graph.graph import Type
from meshwright.ir.rules.base import Engine, Law, Rule, Save, Signature
from meshwright.ir.rules.dims import aligned, broadcast, declare, law, loops, promoted, real
from meshwright.ir.rules.registry import rule

Saves = tuple[Save, ...]

NOTHING: Saves = ()
OPERAND = (Save("operand", 0),)
RESULT = (Save("result", 0),)


def pointwise(
    signature: Signature, dtype: str, laws: tuple[Law, ...], saves: Saves = (), *, engine: Engine = Engine.MEMORY
) -> Rule:
    """Operands broadcast to one result. A result that carries no gradient makes every operand an index."""
    return _pointwise(signature, (dtype,), laws, saves, engine)


def _pointwise(
    signature: Signature, dtypes: tuple[str, ...], laws: tuple[Law, ...], saves: Saves, engine: Engine = Engine.MEMORY
) -> Rule:
    shape = broadcast(signature)
    results = tuple(Type(shape, dtype) for dtype in dtypes)
    dims = tuple(aligned(type_.shape, len(shape)) for type_ in signature.operands)
    given = tuple(law(type_, wanted) for type_, wanted in zip(signature.operands, laws, strict=True))
    floating = any(result.floating for result in results)
    return Rule(
        factors=declare([(loops(shape), shape)]),
        operands=dims,
        results=(loops(shape),) * len(results),
        types=results,
        laws=given if floating else (Law.INDEX,) * len(given),
        engine=engine,
        saves=saves if floating else (),
        elementwise=True,
    )


@rule("pointwise")
def by_name(signature: Signature) -> Rule:
    """The framework's own operator of this name (`meshwright.ir.graph.invocation`), known to be elementwise, with
    results of these `dtypes`.

    Nothing else is known of it: it is linear in nothing, and taken to keep what it reads. With `random`, every element
    is drawn apart."""
    dtypes = signature.attr("dtypes")
    if not isinstance(dtypes, tuple):
        raise signature.error(f"attribute dtypes is {dtypes!r}", 'give the dtypes of its results, such as ("f32",)')
    count = len(signature.operands)
    saves = tuple(Save("operand", index) for index in range(count))
    return _pointwise(signature, tuple(map(str, dtypes)), (Law.NONLINEAR,) * count, saves)


@dataclass(frozen=True, slots=True)
class Unary:
    """A function of one element: its law, and the reads of its derivative."""

    saves: Saves = OPERAND
    law: Law = Law.NONLINEAR
    keeps_dtype: bool = True
    """False: the result of an integer is a float."""


_LINEAR = Unary(NOTHING, Law.LINEAR)
_FLAT = Unary(NOTHING)
_BY_OPERAND = Unary(OPERAND, keeps_dtype=False)
_BY_RESULT = Unary(RESULT, keeps_dtype=False)

UNARY: Mapping[str, Unary] = {
    "neg": _LINEAR,
    "copy": _LINEAR,
    "abs": Unary(),
    "relu": Unary(RESULT),
    "relu6": Unary(OPERAND),
    "silu": Unary(),
    "gelu": Unary(),
    "elu": Unary(),
    "leaky_relu": Unary(),
    "hardswish": Unary(),
    "hardsigmoid": Unary(),
    "mish": Unary(),
    "softplus": Unary(),
    "clamp": Unary(),
    "exp": _BY_RESULT,
    "expm1": _BY_RESULT,
    "sqrt": _BY_RESULT,
    "rsqrt": _BY_RESULT,
    "reciprocal": _BY_RESULT,
    "tanh": _BY_RESULT,
    "sigmoid": _BY_RESULT,
    "log": _BY_OPERAND,
    "log2": _BY_OPERAND,
    "log1p": _BY_OPERAND,
    "sin": _BY_OPERAND,
    "cos": _BY_OPERAND,
    "erf": _BY_OPERAND,
    "sign": _FLAT,
    "floor": _FLAT,
    "ceil": _FLAT,
    "round": _FLAT,
}


@rule(*UNARY)
def unary(signature: Signature) -> Rule:
    """A function of one element."""
    entry, x = UNARY[signature.kind], signature.operands[0]
    dtype = x.dtype if entry.keeps_dtype else real(x.dtype)
    return pointwise(signature, dtype, (entry.law,), entry.saves)


@rule("log_sigmoid")
def log_sigmoid(signature: Signature) -> Rule:
    """log(sigmoid(x)); on CPU torch keeps a buffer beside x."""
    x = signature.operands[0]
    buffer = Save("extra", dims=loops(x.shape), dtype=x.dtype, devices=("cpu",))
    return pointwise(signature, x.dtype, (Law.NONLINEAR,), (*OPERAND, buffer))


@rule("bitwise_not", "logical_not", "isnan", "isinf")
def predicate(signature: Signature) -> Rule:
    """A test of one element, or the bits of an integer inverted."""
    x = signature.operands[0]
    return pointwise(signature, x.dtype if signature.kind == "bitwise_not" else "bool", (Law.INDEX,))


@rule("cast")
def cast(signature: Signature) -> Rule:
    """Another dtype, by attribute `dtype`; linear up to rounding."""
    return pointwise(signature, str(signature.attr("dtype")), (Law.LINEAR,))


@rule("dropout")
def dropout(signature: Signature) -> Rule:
    """Zeroes elements with probability `p` and scales the rest: linear, since the mask does not depend on the values.

    Eager torch keeps the scaled mask in the dtype of x on CPU and as booleans on CUDA."""
    x = signature.operands[0]
    if not signature.attr("p", 0.0):
        return pointwise(signature, x.dtype, (Law.LINEAR,))
    dims = loops(x.shape)
    masks = (
        Save("extra", dims=dims, dtype=x.dtype, devices=("cpu",)),
        Save("extra", dims=dims, dtype="bool", devices=("cuda",)),
    )
    return pointwise(signature, x.dtype, (Law.LINEAR,), masks)


@rule("add", "sub")
def add(signature: Signature) -> Rule:
    """x ± alpha · y. A scalar makes it affine: it must not be added once per shard."""
    scalar = signature.attr("scalar")
    one = Law.ADDITIVE if scalar is None else Law.NONLINEAR
    return pointwise(signature, promoted(signature.operands, scalar), (one,) * len(signature.operands))


@rule("mul")
def mul(signature: Signature) -> Rule:
    """x · y."""
    saves = (Save("operand", 0, needs=(1,)), Save("operand", 1, needs=(0,)))
    count = len(signature.operands)
    dtype = promoted(signature.operands, signature.attr("scalar"))
    return pointwise(signature, dtype, (Law.LINEAR,) * count, saves if count > 1 else ())


@rule("div")
def div(signature: Signature) -> Rule:
    """x / y: linear in the numerator only. `rounding` ("floor", "trunc") makes it a step function."""
    scalar, reverse = signature.attr("scalar"), bool(signature.attr("reverse", False))
    rounding = signature.attr("rounding")
    dtype = promoted(signature.operands, scalar)
    saves = (Save("operand", 0, needs=(1,)), Save("operand", 1)) if len(signature.operands) > 1 else ()
    if rounding is not None:
        return pointwise(signature, dtype, (Law.NONLINEAR,) * len(signature.operands), saves)
    if len(signature.operands) == 1:
        own = Law.NONLINEAR if reverse else Law.LINEAR
        return pointwise(signature, real(dtype), (own,), RESULT if reverse else ())
    return pointwise(signature, real(dtype), (Law.LINEAR, Law.NONLINEAR), saves)


@rule("pow")
def pow_(signature: Signature) -> Rule:
    """x to the power y."""
    scalar, reverse = signature.attr("scalar"), bool(signature.attr("reverse", False))
    dtype = promoted(signature.operands, scalar)
    if len(signature.operands) == 1:
        return pointwise(signature, dtype, (Law.NONLINEAR,), (*OPERAND, *RESULT) if reverse else OPERAND)
    saves = (Save("operand", 0), Save("operand", 1), *RESULT)
    return pointwise(signature, dtype, (Law.NONLINEAR,) * 2, saves)


@rule("maximum", "minimum", "atan2", "remainder", "fmod")
def binary(signature: Signature) -> Rule:
    """Functions of two elements that are linear in neither."""
    dtype = promoted(signature.operands, signature.attr("scalar"))
    dtype = real(dtype) if signature.kind == "atan2" else dtype
    saves = tuple(Save("operand", index) for index in range(len(signature.operands)))
    if signature.kind in ("remainder", "fmod"):
        saves = (Save("operand", 1, needs=(1,)), Save("operand", 0, needs=(1,))) if len(saves) > 1 else ()
    return pointwise(signature, dtype, (Law.NONLINEAR,) * len(signature.operands), saves)


@rule("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor")
def compare(signature: Signature) -> Rule:
    """Comparisons and logic: booleans, without a gradient."""
    return pointwise(signature, "bool", (Law.INDEX,) * len(signature.operands))


@rule("bitwise_and", "bitwise_or", "bitwise_xor")
def bitwise(signature: Signature) -> Rule:
    """Bits of integers, or of booleans."""
    dtype = promoted(signature.operands, signature.attr("scalar"))
    return pointwise(signature, dtype, (Law.INDEX,) * len(signature.operands))


@rule("where")
def where(signature: Signature) -> Rule:
    """where(mask, x, y): each element from one of the two. One of them may be the attribute `scalar` (y, or x with
    `reverse`); with `scalar` and `other` both are."""
    values = signature.operands[1:]
    scalar = signature.attr("scalar")
    one = Law.ADDITIVE if scalar is None else (Law.LINEAR if not scalar else Law.NONLINEAR)
    dtype = promoted(values, scalar, signature.attr("other"))
    return pointwise(signature, dtype, (Law.INDEX, *(one for _ in values)), OPERAND)


@rule("masked_fill")
def masked_fill(signature: Signature) -> Rule:
    """x where the mask is false, elsewhere `scalar` (or a third, scalar operand). Filling with zero is linear."""
    x = signature.operands[0]
    filled = len(signature.operands) > 2
    zero = not signature.attr("scalar", 0)
    one = Law.ADDITIVE if filled else (Law.LINEAR if zero else Law.NONLINEAR)
    laws = (one, Law.INDEX, *((Law.ADDITIVE,) if filled else ()))
    return pointwise(signature, x.dtype, laws, (Save("operand", 1),))


@rule("tril", "triu")
def triangle(signature: Signature) -> Rule:
    """The last two dims with everything above (below) the `diagonal` zeroed; a shard knows where it stands."""
    return pointwise(signature, signature.operands[0].dtype, (Law.LINEAR,))


@rule("zeros_like", "ones_like", "full_like")
def like(signature: Signature) -> Rule:
    """A constant (`value`) of the operand's shape."""
    dtype = str(signature.attr("dtype") or signature.operands[0].dtype)
    return Rule(
        factors=declare([(loops(signature.operands[0].shape), signature.operands[0].shape)]),
        operands=(loops(signature.operands[0].shape),),
        results=(loops(signature.operands[0].shape),),
        types=(Type(signature.operands[0].shape, dtype),),
        laws=(Law.INDEX,),
        elementwise=True,
    )
