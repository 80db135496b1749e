"""torch as the interpreter's tensor library: `TorchKernels` is the injected table that `ir.interp.bodies` asks
for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from meshwright.backends.torch_.verify.interpreted.kernels import KERNELS, vjp
from meshwright.ir.interp.bodies import LocalCall
from meshwright.ir.rules.families.attention import visible

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "i64": torch.int64,
    "i32": torch.int32,
    "bool": torch.bool,
}


class TorchKernels:
    """Local kernels and tensor handling by torch."""

    def __init__(self, tolerance: float = 1e-9) -> None:
        self.tolerance = tolerance

    def run(self, call: LocalCall) -> tuple[Tensor, ...]:
        return KERNELS[call.kind](call)

    def vjp(self, call: LocalCall, wanted: tuple[int, ...], grads: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
        found = vjp(call, wanted, grads)
        return tuple(found[slot] for slot in wanted)

    def narrow(self, tensor: Tensor, dim: int, start: int, stop: int) -> Tensor:
        return tensor.narrow(dim, start, stop - start)

    def concat(self, tensors: Sequence[Tensor], dim: int) -> Tensor:
        return torch.cat(list(tensors), dim)

    def add(self, one: Tensor, other: Tensor) -> Tensor:
        return one + other

    def maximum(self, one: Tensor, other: Tensor) -> Tensor:
        return torch.maximum(one, other)

    def scale(self, tensor: Tensor, factor: float) -> Tensor:
        return torch.zeros_like(tensor) if factor == 0 else tensor * factor

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        """Zeros; floating ones in fp64, like all floating values here."""
        floating = DTYPES[dtype].is_floating_point
        return torch.zeros(shape, dtype=torch.float64 if floating else DTYPES[dtype])

    def extent(self, tensor: Tensor, dim: int) -> int:
        return int(tensor.shape[dim])

    def same(self, one: Tensor, other: Tensor) -> bool:
        if one.shape != other.shape:
            return False
        if not one.is_floating_point():
            return bool(torch.equal(one, other))
        return exact(one, other, self.tolerance)

    # ring attention

    def ring_forward(self, call: LocalCall) -> tuple[Tensor, Tensor]:
        q, _, v = call.operands
        scores = _scores(call)
        lse = torch.logsumexp(scores, -1)
        weights = torch.exp(scores - torch.where(lse == -torch.inf, 0.0, lse)[..., None])
        return (weights @ _grouped(v, q)).reshape(*q.shape[:3], v.shape[3]), lse

    def ring_merge(self, one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        (out_a, lse_a), (out_b, lse_b) = one, other
        lse = torch.logaddexp(lse_a, lse_b)
        floor = torch.where(lse == -torch.inf, 0.0, lse)
        share_a, share_b = (torch.exp(part - floor)[..., None].reshape(*out_a.shape[:3], 1) for part in (lse_a, lse_b))
        return out_a * share_a + out_b * share_b, lse

    def ring_vjp(self, call: LocalCall, merged: tuple[Tensor, Tensor], grad: Tensor) -> tuple[Tensor, ...]:
        q, k, v = call.operands
        out, lse = merged
        scale = _scale(call)
        weights = torch.exp(_scores(call) - lse[..., None])
        grad_g, out_g = (t.reshape(*weights.shape[:-1], v.shape[3]) for t in (grad, out))
        inner = grad_g @ _grouped(v, q).transpose(-1, -2) - (grad_g * out_g).sum(-1, keepdim=True)
        d_scores = weights * inner * scale
        d_q = (d_scores @ _grouped(k, q)).reshape(q.shape)
        d_k = (d_scores.transpose(-1, -2) @ q.reshape(*weights.shape[:-1], q.shape[3])).sum(2)
        d_v = (weights.transpose(-1, -2) @ grad_g).sum(2)
        return d_q, d_k, d_v


def exact(found: Tensor, expected: Tensor, tolerance: float, floor: float = 0.0) -> bool:
    """‖found - expected‖∞ ≤ tolerance · max(‖expected‖∞, floor), the definition of exact."""
    if found.shape != expected.shape:
        return False
    if found.numel() == 0:
        return True
    reference = max(float(expected.abs().max()), floor)
    return float((found - expected).abs().max()) <= tolerance * reference + 1e-300


def _positions(spans: Sequence[tuple[int, int]]) -> list[int]:
    return [index for start, stop in spans for index in range(start, stop)]


def _visible(call: LocalCall) -> Tensor:
    mask, width = str(call.attrs.get("mask", "full")), call.attrs.get("width") or 0
    assert isinstance(width, int)
    sizes = {"queries": call.sizes["sq"], "keys": call.sizes["sk"]}
    keys = _positions(call.spans["sk"])
    return torch.tensor([[visible(mask, width, q, k, **sizes) for k in keys] for q in _positions(call.spans["sq"])])


def _scale(call: LocalCall) -> float:
    given = call.attrs.get("scale")
    return float(given) if isinstance(given, (int, float)) else float(call.operands[0].shape[-1]) ** -0.5


def _grouped(keys: Tensor, q: Tensor) -> Tensor:
    """Keys or values as [b, hk, 1, s, d], to meet queries as [b, hk, g, s, d]."""
    return keys[:, :, None].expand(-1, -1, q.shape[1] // keys.shape[1], -1, -1)


def _scores(call: LocalCall) -> Tensor:
    q, k, _ = call.operands
    grouped = q.reshape(q.shape[0], k.shape[1], -1, *q.shape[2:])
    scores = grouped @ _grouped(k, q).transpose(-1, -2) * _scale(call)
    return scores.masked_fill(~_visible(call), -torch.inf)
