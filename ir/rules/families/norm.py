"""Normalisations: subtract a mean, divide by a spread, scale and shift.

What is normalised over is whole. The exception is batch norm in training, whose statistics run over the batch: its
expansion writes them as sums of shards, so that a split batch still has the mean and variance of all of it.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from meshwright.ir.graph.graph import Attr, Type
from meshwright.ir.rules.base import Dims, Expansion, Factor, Law, Role, Rule, Save, Signature
from meshwright.ir.rules.dims import declare, loops, whole
from meshwright.ir.rules.registry import expansion, rule
from meshwright.ir.rules.writing import Writer


def _normalized(signature: Signature) -> int:
    """The number of trailing dims that are normalised: those of the weight, else of `normalized_shape`, else one."""
    if len(signature.operands) > 1:
        return len(signature.operands[1].shape)
    given = signature.attr("normalized_shape")
    return len(given) if isinstance(given, tuple) else 1


def _trailing(signature: Signature, laws: tuple[Law, ...], saves: tuple[Save, ...]) -> Rule:
    x = signature.operands[0]
    depth = _normalized(signature)
    dims = loops(x.shape)
    trailing = dims[len(dims) - depth :]
    for type_ in signature.operands[1:]:
        if type_.shape != x.shape[len(dims) - depth :]:
            raise signature.error(f"a weight {type_.shape} for {x.shape}", "give it the shape that is normalised")
    return Rule(
        factors=declare([(dims, x.shape)], whole(dims, range(len(dims) - depth, len(dims)))),
        operands=(dims, *(trailing for _ in signature.operands[1:])),
        results=(dims,),
        types=(x,),
        laws=laws[: len(signature.operands)],
        saves=saves,
    )


def _statistics(dims: Dims, types: tuple[Type, ...], count: int) -> tuple[Save, ...]:
    """So many saved statistics. CPU kernels keep them in the dtype of x unless a weight is wider, CUDA's in at least
    f32."""
    wide = "f64" if types[0].dtype == "f64" else "f32"
    narrow = types[0].dtype if len({type_.dtype for type_ in types}) == 1 else wide
    kept = (
        Save("extra", dims=dims, dtype=narrow, devices=("cpu",)),
        Save("extra", dims=dims, dtype=wide, devices=("cuda",)),
    )
    return kept * count


@rule("layer_norm")
def layer_norm(signature: Signature) -> Rule:
    """(x - mean) / sqrt(var + eps) (· w (+ b)) over the trailing dims; keeps x, mean and reciprocal spread."""
    x = signature.operands[0]
    lead = loops(x.shape)[: len(x.shape) - _normalized(signature)]
    operands = tuple(Save("operand", index) for index in range(len(signature.operands)))
    saves = (*operands, *_statistics(lead, signature.operands, 2))
    return _trailing(signature, (Law.NONLINEAR, Law.LINEAR, Law.ADDITIVE), saves)


@rule("rms_norm")
def rms_norm(signature: Signature) -> Rule:
    """x / sqrt(mean(x²) + eps) (· w) over the trailing dims; keeps x and the reciprocal root.

    On CPU torch composes it of simple operators, in at least f32, and keeps the normalised x for the weight."""
    x = signature.operands[0]
    wide = "f64" if x.dtype == "f64" else "f32"
    dims = loops(x.shape)
    root = Save("extra", dims=dims[: len(dims) - _normalized(signature)], dtype=wide)
    own = Save("operand", 0) if x.dtype == wide else Save("extra", dims=dims, dtype=wide)
    scales = tuple(Save("operand", index) for index in range(1, len(signature.operands)))
    fused = tuple(replace(save, devices=("cuda",)) for save in (Save("operand", 0), *scales, root))
    composed = tuple(replace(save, devices=("cpu",), needs=(0,)) for save in (own, *scales, root))
    normalised = Save("extra", needs=(1,), devices=("cpu",), dims=dims, dtype=wide)
    scaled = (normalised,) if scales else ()
    return _trailing(signature, (Law.NONLINEAR, Law.LINEAR), (*fused, *composed, *scaled))


@rule("group_norm")
def group_norm(signature: Signature) -> Rule:
    """Normalised over each of `groups` groups of channels and all positions; x is [n, c, …]."""
    x, *scales = signature.operands
    groups = signature.integer("groups")
    if x.shape[1] % groups:
        raise signature.error(f"{x.shape[1]} channels in {groups} groups", "choose a number of groups that divides")
    channel = ("g", "c")
    positions = tuple((f"s{index}",) for index in range(len(x.shape) - 2))
    dims: Dims = (("n",), channel, *positions)
    saved: Dims = (("n",), ("g",))
    return Rule(
        factors=(
            Factor("n", x.shape[0]),
            Factor("g", groups),
            Factor("c", x.shape[1] // groups, Role.WHOLE),
            *(Factor(f"s{index}", extent, Role.WHOLE) for index, extent in enumerate(x.shape[2:])),
        ),
        operands=(dims, *((channel,) for _ in scales)),
        results=(dims,),
        types=(x,),
        laws=(Law.NONLINEAR, Law.LINEAR, Law.ADDITIVE)[: len(signature.operands)],
        saves=(
            *(Save("operand", index) for index in range(min(2, len(signature.operands)))),
            *_statistics(saved, signature.operands, 2),
        ),
    )


@rule("batch_norm")
def batch_norm(signature: Signature) -> Rule:
    """x[n, c, …], w, b, running mean and variance -> y, and in `training` the two running statistics anew.

    Training statistics run over the batch: batch and positions split by expansion. In evaluation it is affine in x."""
    x = signature.operands[0]
    training = bool(signature.attr("training", True))
    dims, channel = _by_channel(x), (("c",),)
    sizes = zip((name for (name,) in dims), x.shape, strict=True)
    # The new statistics do not scale with the weight: in training a partial weight may not pass.
    scales = (Law.NONLINEAR, Law.NONLINEAR) if training else (Law.LINEAR, Law.ADDITIVE)
    return Rule(
        factors=tuple(Factor(name, size, expanded=training and name != "c") for name, size in sizes),
        operands=(dims, channel, channel, channel, channel),
        results=(dims, channel, channel) if training else (dims,),
        types=(x, *signature.operands[3:5]) if training else (x,),
        laws=(Law.NONLINEAR, *scales, Law.INDEX, Law.INDEX),
        saves=(
            Save("operand", 0),
            Save("operand", 1),
            Save("operand", 3),
            Save("operand", 4),
            *(_statistics(channel, signature.operands, 2) if training else ()),
        ),
    )


@rule("batch_moments")
def batch_moments(signature: Signature) -> Rule:
    """x[n, c, …] -> [2, c]: of every channel the mean, and the mean square, over batch and positions. Shards add up.

    In f64, since the variance is what is left of the two: where a mean is much larger than the spread around it, that
    would be nothing but rounding in f32."""
    x = signature.operands[0]
    dims = _by_channel(x)
    return Rule(
        factors=(
            *(Factor(name, size, _summed(name)) for (name,), size in zip(dims, x.shape, strict=True)),
            Factor("m", 2, Role.WHOLE),
        ),
        operands=(dims,),
        results=((("m",), ("c",)),),
        types=(Type((2, x.shape[1]), "f64"),),
        laws=(Law.NONLINEAR,),
        saves=(Save("operand", 0),),
    )


@rule("batch_normalize")
def batch_normalize(signature: Signature) -> Rule:
    """x[n, c, …], its moments, w, b -> (x - mean) / sqrt(var + eps) · w + b."""
    x = signature.operands[0]
    dims, channel = _by_channel(x), (("c",),)
    return Rule(
        factors=(
            *(Factor(name, size) for (name,), size in zip(dims, x.shape, strict=True)),
            Factor("m", 2, Role.WHOLE),
        ),
        operands=(dims, (("m",), ("c",)), channel, channel),
        results=(dims,),
        types=(x,),
        laws=(Law.NONLINEAR, Law.NONLINEAR, Law.LINEAR, Law.ADDITIVE),
        saves=tuple(Save("operand", index) for index in range(3)),
    )


def _by_channel(x: Type) -> Dims:
    return (("n",), ("c",), *((f"s{index}",) for index in range(len(x.shape) - 2)))


def _summed(factor: str) -> Role:
    return Role.PARALLEL if factor == "c" else Role.SUM


@expansion("batch_norm")
def expand_batch_norm(signature: Signature) -> Expansion:
    """Both moments together, which shards add up; what is made of them; and the running statistics anew.

    So an axis that cuts the batch adds up two numbers per channel each way: the moments, and their gradients. Those of
    weight and bias are sums that stay so, like those of any other parameter."""
    x = signature.operands[0]
    write = Writer(signature)
    over = [0, *range(2, len(x.shape))]
    splits = {factor: factor for (factor,) in _by_channel(x)}
    count, keep = prod(x.shape[dim] for dim in over), float(_momentum(signature))
    moments = write("batch_moments", "0", splits=splits)
    eps = {"eps": float(_eps(signature))}
    y = write("batch_normalize", "0", moments, "1", "2", attrs=eps, splits=splits)

    def of_channels(kind: str, *values: str, **attrs: Attr) -> str:
        split = "d1" if values[0] == moments else "d0"
        return write(kind, *values, attrs=attrs, splits={"c": split}, no_grad=True)

    def running(old: str, new: str, factor: float) -> str:
        new = of_channels("cast", new, dtype=write.types[old].dtype)
        parts = [of_channels("mul", value, scalar=scale) for value, scale in ((old, 1 - keep), (new, keep * factor))]
        return of_channels("add", *parts)

    mean, square = (of_channels("select", moments, dim=0, index=index) for index in range(2))
    variance = of_channels("sub", square, of_channels("mul", mean, mean))
    return write.done(y, running("3", mean, 1.0), running("4", variance, count / max(count - 1, 1)))


def _eps(signature: Signature) -> float:
    value = signature.attr("eps", 1e-5)
    return float(value) if isinstance(value, (int, float)) else 1e-5


def _momentum(signature: Signature) -> float:
    value = signature.attr("momentum", 0.1)
    return float(value) if isinstance(value, (int, float)) else 0.1
