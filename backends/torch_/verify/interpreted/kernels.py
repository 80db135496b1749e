"""Local kernels by torch: the computation of one device on its shards, for every kind.

Most kinds are indifferent to where a shard stands: their kernel is the framework's own call (`eager`). The
others read `LocalCall.spans`, the global index ranges that this rank holds of each factor: look-ups into a split
dimension skip the rows that others hold, masks follow global positions, a mean divides by the global count. Everything
is computed in fp64; casts between floating dtypes change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.backends.torch_.verify.interpreted.eager import DTYPES, EAGER
from meshwright.backends.torch_.verify.interpreted.layers import Results, combined, dispatched, position_mask, slots
from meshwright.ir.graph.graph import Type
from meshwright.ir.interp.bodies import LocalCall
from meshwright.ir.rules.families.moe import routing_groups, tokens

Kernel = Callable[[LocalCall], Results]


def vjp(call: LocalCall, wanted: tuple[int, ...], grads: tuple[Tensor | None, ...]) -> dict[int, Tensor]:
    """Gradients of the wanted operands, by differentiating the local kernel."""
    operands = [x.detach().requires_grad_(slot in wanted) for slot, x in enumerate(call.operands)]
    with torch.enable_grad():
        results = KERNELS[call.kind](replace(call, operands=tuple(operands)))
    pairs = [(y, g) for y, g in zip(results, grads, strict=True) if g is not None and y.requires_grad]
    inputs = [operands[slot] for slot in wanted]
    if not pairs:
        return {slot: torch.zeros_like(operands[slot]) for slot in wanted}
    found = torch.autograd.grad([y for y, _ in pairs], inputs, [g for _, g in pairs], allow_unused=True)
    return {
        slot: torch.zeros_like(operands[slot]) if gradient is None else gradient
        for slot, gradient in zip(wanted, found, strict=True)
    }


def positions(call: LocalCall, factor: str) -> Tensor:
    """The global indices of a factor that this rank holds, in local order."""
    return torch.cat([torch.arange(start, stop) for start, stop in call.spans[factor]])


def held(call: LocalCall, factor: str, index: Tensor) -> tuple[Tensor, Tensor]:
    """Global indices as local ones (0 where another rank holds the row), and a mask of those that are local."""
    mine = positions(call, factor)
    local = torch.full((call.sizes[factor],), -1)
    local[mine] = torch.arange(len(mine))
    found = local[index]
    return found.clamp(min=0), found >= 0


def local_shape(call: LocalCall, result: int = 0) -> tuple[int, ...]:
    return call.results[result].shape


def eager(call: LocalCall, **attrs: Any) -> Results:
    """The framework's call on the shards, with some attributes made local."""
    plain = {key: value for key, value in call.attrs.items() if key != "dtype"}
    return EAGER[call.kind](call.operands, plain | attrs)


def _integral(name: object) -> bool:
    return isinstance(name, str) and not Type((), name).floating


def _cast(call: LocalCall) -> Results:
    target = str(call.attrs["dtype"])
    return (call.operands[0].to(DTYPES[target] if _integral(target) else torch.float64),)


def _reshape(call: LocalCall) -> Results:
    return (call.operands[0].reshape(local_shape(call)),)


def _expand(call: LocalCall) -> Results:
    return (call.operands[0].expand(local_shape(call)),)


def _slice(call: LocalCall) -> Results:
    return call.operands if local_shape(call) == tuple(call.operands[0].shape) else eager(call)


def _split(call: LocalCall) -> Results:
    dim = call.attrs["dim"]
    assert isinstance(dim, int)
    return tuple(torch.split(call.operands[0], [type_.shape[dim] for type_ in call.results], dim))


def _constant(value: float | None) -> Kernel:
    def run(call: LocalCall) -> Results:
        filling: Any = call.attrs["value"] if value is None else value
        return (torch.full(local_shape(call), filling, dtype=_computing(call.results[0].dtype)),)

    return run


def _table(call: LocalCall) -> Results:
    (whole,) = EAGER["constant"]((), call.attrs)
    for dim in range(whole.dim()):
        if f"d{dim}" in call.spans:
            whole = whole.index_select(dim, positions(call, f"d{dim}"))
    return (whole.to(_computing(call.results[0].dtype)),)


def _computing(dtype: str) -> torch.dtype:
    return DTYPES[dtype] if _integral(dtype) else torch.float64


def _arange(call: LocalCall) -> Results:
    start, step = call.attrs.get("start", 0), call.attrs.get("step", 1)
    at = positions(call, "d0") if "d0" in call.spans else torch.arange(local_shape(call)[0])
    return ((start + step * at).to(_computing(call.results[0].dtype)),)


def _like(value: float | None) -> Kernel:
    def run(call: LocalCall) -> Results:
        filling: Any = call.attrs["value"] if value is None else value
        return (torch.full(call.operands[0].shape, filling, dtype=_computing(call.results[0].dtype)),)

    return run


def _one_hot(call: LocalCall) -> Results:
    row = call.operands[0][..., None] == positions(call, "v")
    return (row.to(_computing(call.results[0].dtype)),)


def _triangle(call: LocalCall) -> Results:
    x = call.operands[0]
    rows, columns = (_along(call, dim) for dim in (x.ndim - 2, x.ndim - 1))
    distance = columns[None, :] - rows[:, None]
    diagonal: Any = call.attrs.get("diagonal", 0)
    keep = distance <= diagonal if call.kind == "tril" else distance >= diagonal
    return (x * keep,)


def _along(call: LocalCall, dim: int) -> Tensor:
    return positions(call, f"d{dim}") if f"d{dim}" in call.spans else torch.arange(1)


def _mean(call: LocalCall) -> Results:
    x, dim = call.operands[0], call.attrs.get("dim")
    named = (dim,) if isinstance(dim, int) else dim
    dims = [d % x.ndim for d in named if isinstance(d, int)] if isinstance(named, tuple) else range(x.ndim)
    count = prod(call.sizes.get(f"d{d}", 1) for d in dims)
    return (x.sum(tuple(dims), keepdim=bool(call.attrs.get("keepdim", False))) / count,)


def _batch_moments(call: LocalCall) -> Results:
    x = call.operands[0]
    of_all = prod(size for factor, size in call.sizes.items() if factor not in ("c", "m"))
    return (eager(call)[0] * (x.numel() / x.shape[1] / of_all),)


def _sum(call: LocalCall) -> Results:
    return (eager(call)[0].to(_computing(call.results[0].dtype)),)


def _loss(call: LocalCall) -> Results:
    if call.attrs.get("reduction", "mean") != "mean":
        return eager(call)
    return (eager(call, reduction="sum")[0] / prod(call.sizes.values()),)


def _nll_loss(call: LocalCall) -> Results:
    scores, labels = call.operands
    ignore = labels == call.attrs.get("ignore_index", -100)
    row, here = held(call, "v", labels.masked_fill(ignore, 0))
    loss = -scores.gather(-1, row[..., None])[..., 0] * (here & ~ignore)
    reduction = call.attrs.get("reduction", "mean")
    if reduction == "none":
        return (loss,)
    return (loss.sum() / (1 if reduction == "sum" else (~ignore).sum()),)


def _gather(call: LocalCall) -> Results:
    x, index = call.operands
    row, here = held(call, "v", index)
    dim: Any = call.attrs["dim"]
    return (torch.gather(x, dim, row) * here,)


def _index_select(call: LocalCall) -> Results:
    x, index = call.operands
    row, here = held(call, "v", index)
    dim: Any = call.attrs["dim"]
    shape = [-1 if at == dim % x.ndim else 1 for at in range(x.ndim)]
    return (x.index_select(dim, row) * here.reshape(shape),)


def _scatter(call: LocalCall) -> Results:
    """A scatter in which writes to other ranks' rows go to a row of their own, which is cut off."""
    x, index, *source = call.operands
    dim: Any = call.attrs["dim"]
    row, here = held(call, "v", index)
    extent = x.shape[dim]
    grown = torch.cat([x, x.narrow(dim, 0, 1)], dim)
    row = torch.where(here, row, extent)
    operands = (grown, row, *source)
    return (EAGER[call.kind](operands, call.attrs)[0].narrow(dim, 0, extent),)


def _embedding(call: LocalCall) -> Results:
    table, ids = call.operands
    row, here = held(call, "v", ids)
    found = F.embedding(row, table) * here[..., None]
    padding = call.attrs.get("padding_idx")
    return (found if padding is None else torch.where((ids == padding)[..., None], found.detach(), found),)


def _attention(call: LocalCall) -> Results:
    q, k, v, *bias = call.operands
    width: Any = call.attrs.get("width")
    scale: Any = call.attrs.get("scale") or q.shape[-1] ** -0.5
    shift = call.sizes["sk"] - call.sizes["sq"]
    seen = position_mask(
        str(call.attrs.get("mask", "full")), width, positions(call, "sq"), positions(call, "sk"), shift
    )
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).transpose(-1, -2) * scale
    scores = scores + bias[0] if bias else scores
    weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)
    return (weights @ v.repeat_interleave(group, 1),)


def _group_norm(call: LocalCall) -> Results:
    return eager(call, groups=len(positions(call, "g")))


def _conv(call: LocalCall) -> Results:
    return eager(call, groups=len(positions(call, "g"))) if "g" in call.spans else eager(call)


def _dispatch(call: LocalCall) -> Results:
    x, idx = call.operands
    experts, capacity = len(positions(call, "e")), local_shape(call)[1]
    return (dispatched(x, *_routes(call, idx, capacity), experts, capacity),)


def _combine(call: LocalCall) -> Results:
    rows, idx, weights = call.operands
    expert, at = _routes(call, idx, rows.shape[1])
    return (combined(rows, expert, weights, at),)


def _routes(call: LocalCall, idx: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """The local expert and slot for each (token, choice); the slot is -1 if the expert is elsewhere or full.

    A shard of the tokens brings its share of the capacity and of the routing groups."""
    sizes = [call.sizes[name] for name in tokens(idx.ndim - 1)]
    cut = prod(sizes) // prod(idx.shape[:-1])
    counts = routing_groups(call.attrs, sizes, capacity * cut)
    groups = tuple(count * here // size for count, here, size in zip(counts, idx.shape, sizes, strict=False))
    expert, present = held(call, "e", idx)
    return expert, slots(idx, call.sizes["e"], capacity, groups).masked_fill(~present, -1)


_PLACED: Mapping[str, Kernel] = {
    "cast": _cast,
    "view": _reshape,
    "expand": _expand,
    "slice": _slice,
    "split": _split,
    "constant": _table,
    "full": _constant(None),
    "zeros": _constant(0),
    "ones": _constant(1),
    "arange": _arange,
    "full_like": _like(None),
    "zeros_like": _like(0),
    "ones_like": _like(1),
    "one_hot": _one_hot,
    "tril": _triangle,
    "triu": _triangle,
    "mean": _mean,
    "batch_moments": _batch_moments,
    "sum": _sum,
    "gather": _gather,
    "index_select": _index_select,
    "scatter": _scatter,
    "scatter_add": _scatter,
    "embedding": _embedding,
    "attention": _attention,
    "group_norm": _group_norm,
    "dispatch": _dispatch,
    "combine": _combine,
    "nll_loss": _nll_loss,
}

_LOSSES: Sequence[str] = (
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "kl_div",
)
_CONVOLUTIONS = tuple(f"conv{transposed}{rank}d" for transposed in ("", "_transpose") for rank in (1, 2, 3))

KERNELS: dict[str, Kernel] = (
    dict.fromkeys(EAGER, eager) | dict.fromkeys(_LOSSES, _loss) | dict.fromkeys(_CONVOLUTIONS, _conv) | dict(_PLACED)
)
