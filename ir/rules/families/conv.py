"""Convolutions, pools and resampling over one to three spatial dimensions.

Batch and output channels split; input channels are summed; grouped convolutions split over groups. Neighbouring
positions overlap, so spatial loops are HALO, except where a kernel of one element makes them plain loops.
"""

from __future__ import annotations

from meshwright.ir.graph.graph import Type
from meshwright.ir.rules.base import Dims, Engine, Factor, Law, Role, Rule, Save, Signature, Work
from meshwright.ir.rules.dims import Shape
from meshwright.ir.rules.registry import rule


def spread(signature: Signature, key: str, rank: int, default: int) -> Shape:
    """An attribute per spatial dimension; one integer stands for all."""
    if signature.attr(key) is None:
        return (default,) * rank
    given = signature.integers(key)
    return given * rank if len(given) == 1 else given


def _spatial(prefix: str, rank: int) -> tuple[str, ...]:
    return tuple(f"{prefix}{index}" for index in range(rank))


def _single(*names: str) -> Dims:
    return tuple((name,) for name in names)


@rule("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv(signature: Signature) -> Rule:
    """x[n, ci, …], w (+ bias[co]) -> [n, co, …], with `stride`, `padding`, `dilation`, `groups` (`output_padding`).

    w is [co, ci/groups, …], or [ci, co/groups, …] when transposed."""
    x, w = signature.operands[:2]
    transposed = "transpose" in signature.kind
    groups, rank = signature.integer("groups", 1), len(x.shape) - 2
    ci, co = (w.shape[0] // groups, w.shape[1]) if transposed else (w.shape[1], w.shape[0] // groups)
    if x.shape[1] != ci * groups:
        raise signature.error(f"{x.shape[1]} channels meet a weight of {ci * groups}", "make the channels equal")
    shape = _output(signature, rank, transposed)
    pointwise = _is_pointwise(signature, rank)
    inner, taps = _spatial("i", rank), _spatial("k", rank)
    outer = inner if pointwise else _spatial("o", rank)
    group = ("g",) if groups > 1 else ()
    biased = len(signature.operands) > 2
    channels: tuple[Dims, Dims] = (((*group, "ci"),), ((*group, "co"),))
    weight = (*channels[0], ("co",)) if transposed else (*channels[1], ("ci",))
    role = Role.PARALLEL if pointwise else Role.HALO
    sizes = dict(zip((*inner, *outer), (*x.shape[2:], *shape), strict=True))
    points = ("n", *group, "ci", "co", *(inner if transposed else outer), *taps)
    return Rule(
        factors=(
            Factor("n", x.shape[0]),
            *(Factor(name, groups) for name in group),
            Factor("ci", ci, Role.SUM),
            Factor("co", co),
            *(Factor(name, size, role) for name, size in sizes.items()),
            *(Factor(name, size, Role.WHOLE) for name, size in zip(taps, w.shape[2:], strict=True)),
        ),
        operands=(
            (("n",), *channels[0], *_single(*inner)),
            (*weight, *_single(*taps)),
            *((channels[1],) if biased else ()),
        ),
        results=((("n",), *channels[1], *_single(*outer)),),
        types=(Type((x.shape[0], co * groups, *shape), x.dtype),),
        laws=(Law.LINEAR, Law.LINEAR, *((Law.ADDITIVE,) if biased else ())),
        engine=Engine.CONV,
        work=(Work(2, points), Work(2, points, grad_of=0), Work(2, points, grad_of=1)),
        saves=(Save("operand", 0), Save("operand", 1)),
    )


def _is_pointwise(signature: Signature, rank: int) -> bool:
    """Whether each output position reads the one input position below it."""
    taps = signature.operands[1].shape[2:]
    steps = spread(signature, "stride", rank, 1)
    margins = (*spread(signature, "padding", rank, 0), *spread(signature, "output_padding", rank, 0))
    return {*taps, *steps} == {1} and set(margins) == {0}


def _output(signature: Signature, rank: int, transposed: bool) -> Shape:
    x, w = signature.operands[:2]
    stride, padding = spread(signature, "stride", rank, 1), spread(signature, "padding", rank, 0)
    dilation, extra = spread(signature, "dilation", rank, 1), spread(signature, "output_padding", rank, 0)
    reach = tuple(dilation[i] * (w.shape[2 + i] - 1) + 1 for i in range(rank))
    if transposed:
        return tuple((x.shape[2 + i] - 1) * stride[i] - 2 * padding[i] + reach[i] + extra[i] for i in range(rank))
    return tuple((x.shape[2 + i] + 2 * padding[i] - reach[i]) // stride[i] + 1 for i in range(rank))


def resampled(signature: Signature, shape: Shape, own: Law, dtypes: tuple[str, ...], saves: tuple[Save, ...]) -> Rule:
    """[n, c, …] at other positions: batch and channels split."""
    x = signature.operands[0]
    rank = len(shape)
    inner, outer = _spatial("i", rank), _spatial("o", rank)
    lead = tuple((f"d{index}",) for index in range(len(x.shape) - rank))
    extents = (*x.shape[len(lead) :], *shape)
    result = (*lead, *_single(*outer))
    return Rule(
        factors=(
            *(Factor(name, size) for (name,), size in zip(lead, x.shape, strict=False)),
            *(Factor(name, size, Role.HALO) for name, size in zip((*inner, *outer), extents, strict=True)),
        ),
        operands=((*lead, *_single(*inner)),),
        results=(result,) * len(dtypes),
        types=tuple(Type((*x.shape[: len(lead)], *shape), dtype) for dtype in dtypes),
        laws=(own,),
        saves=saves,
    )


@rule("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d")
def pool(signature: Signature) -> Rule:
    """The largest (or mean) of each window `kernel`, every `stride` (default: kernel) positions."""
    x, rank = signature.operands[0], int(signature.kind[-2])
    kernel = spread(signature, "kernel", rank, 1)
    stride = spread(signature, "stride", rank, 0)
    stride = kernel if not any(stride) else stride
    padding, dilation = spread(signature, "padding", rank, 0), spread(signature, "dilation", rank, 1)
    ceil_mode = bool(signature.attr("ceil_mode", False))
    before = x.shape[len(x.shape) - rank :]

    def extent(i: int) -> int:
        room = before[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1
        count = (room + (stride[i] - 1 if ceil_mode else 0)) // stride[i] + 1
        return count - (ceil_mode and (count - 1) * stride[i] >= before[i] + padding[i])

    shape = tuple(extent(i) for i in range(rank))
    if signature.kind.startswith("avg"):
        return resampled(signature, shape, Law.LINEAR, (x.dtype,), (Save("operand", 0),))
    lead = tuple((f"d{index}",) for index in range(len(x.shape) - rank))
    indices = Save("extra", dims=(*lead, *_single(*_spatial("o", rank))), dtype="i64")
    return resampled(signature, shape, Law.NONLINEAR, (x.dtype,), (Save("operand", 0), indices))


@rule("adaptive_avg_pool2d")
def adaptive_pool(signature: Signature) -> Rule:
    """Means over windows that reach `output_size`."""
    shape = spread(signature, "output_size", 2, 1)
    return resampled(signature, shape, Law.LINEAR, (signature.operands[0].dtype,), (Save("operand", 0),))


@rule("upsample")
def upsample(signature: Signature) -> Rule:
    """Positions repeated or interpolated (`mode`) to `size`."""
    size = signature.integers("size")
    return resampled(signature, size, Law.LINEAR, (signature.operands[0].dtype,), ())
