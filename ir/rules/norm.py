"""Normalisations: subtract a mean, divide by a spread, scale and shift.

What is normalised over is whole. The exception is batch norm in training, whose statistics run over the batch: its
expansion writes them as sums of shards, so that a split batch still has the mean and variance of all of it.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from meshwright.ir.graph import Attr, Type
from meshwright.ir.rules.base import Dims, Expansion, Factor, Law, Role, Rule, Save, Signature, expansion, rule
from meshwright.ir.rules.dims import declare, loops, whole
from meshwright.ir.rules.writing import Writer


def _normalized(signature: Signature) -> int:
    """How many trailing dims are normalised: those of the weight, else of `normalized_shape`, else one."""
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
    """`count` statistics. CPU kernels keep them in the dtype of x unless a weight is wider, CUDA's in at least f32."""
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
    dims: Dims = (("n",), ("c",), *((f"s{index}",) for index in range(len(x.shape) - 2)))
    channel: Dims = (("c",),)
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


@expansion("batch_norm")
def expand_batch_norm(signature: Signature) -> Expansion:
    """Mean and variance as sums of shards, then elementwise."""
    x = signature.operands[0]
    write = Writer(signature)
    splits = {"n": "d0", "c": "d1"} | {f"s{index}": f"d{index + 2}" for index in range(len(x.shape) - 2)}
    over = tuple(dim for dim in range(len(x.shape)) if dim != 1)
    count = prod(x.shape[dim] for dim in over)
    flat, column = (x.shape[1],), (x.shape[1], *(1 for _ in x.shape[2:]))

    def channelwise(value: str, shape: tuple[int, ...]) -> str:
        return write("view", value, attrs={"shape": shape}, splits={"c": "f0"})

    def pointwise(kind: str, *values: str, no_grad: bool = False, **attrs: Attr) -> str:
        return write(kind, *values, attrs=attrs, splits=splits, no_grad=no_grad)

    mean = write("mean", "0", attrs={"dim": over, "keepdim": True}, splits=splits)
    centred = pointwise("sub", "0", mean)
    square = pointwise("mul", centred, centred)
    variance = write("mean", square, attrs={"dim": over, "keepdim": True}, splits=splits)
    spread = pointwise("rsqrt", pointwise("add", variance, scalar=float(_eps(signature))))
    scaled = pointwise("mul", pointwise("mul", centred, spread), channelwise("1", column))
    y = pointwise("add", scaled, channelwise("2", column))
    keep = float(_momentum(signature))

    def running(old: str, new: str, factor: float) -> str:
        flattened = write("view", new, attrs={"shape": flat}, splits={"c": "f0"}, no_grad=True)
        parts = [(old, 1 - keep), (flattened, keep * factor)]
        terms = [
            write("mul", value, attrs={"scalar": scale}, splits={"c": "d0"}, no_grad=True) for value, scale in parts
        ]
        return write("add", *terms, splits={"c": "d0"}, no_grad=True)

    return write.done(y, running("3", mean, 1.0), running("4", variance, count / max(count - 1, 1)))


def _eps(signature: Signature) -> float:
    value = signature.attr("eps", 1e-5)
    return float(value) if isinstance(value, (int, float)) else 1e-5


def _momentum(signature: Signature) -> float:
    value = signature.attr("momentum", 0.1)
    return float(value) if isinstance(value, (int, float)) else 0.1
