"""Kernels that move bytes: elementwise chains, norms, casts, the optimizer, and the quantization around low-precision
products.

    seconds = bytes / (memory bandwidth · hbm_efficiency) + floor

`hbm_efficiency` is one number for all devices: the published HBM copies of TPU7x reach 0.84 to 0.87 of the datasheet
from 32 MiB on, and with the floor of a kernel the smaller ones follow.

Low precision. The tensor core eats 8-bit or 4-bit operands, but tensors live at 16 bits. An activation is cast by the
kernel that makes it (a norm, an activation function), which writes fewer bytes rather than more; weights are cast once
a step, not with every micro-batch; gradients are cast, and transposed, by a kernel of its own. Per element of a 16-bit
tensor the recipes move (NVIDIA Transformer Engine user guide, "FP8 primer" and recipes, 2025; arXiv:2412.19437 for
blocks of 128):

    fp8_tensorwise   2 read for the maximum, 2 read for the cast, 1 written, 1 written transposed
    fp8_blockwise    2 read, 1 and 1 written with a scale of 4 bytes per 128 each
    mxfp8            2 read, 1 and 1 written with a scale of 1 byte per 32 each
    nvfp4            2 read for the maximum, 2 read, 1/2 and 1/2 written with a scale of 1 byte per 16 each

So dgrad pays for the gradient of the result, wgrad finds it cast and transposed, and the forward product pays nothing;
but that of experts does: their rows come from an exchange, or from an operator over all experts, in 16 bits, and are
cast expert by expert (Transformer Engine's GroupedLinear, as of 2025).
"""

from __future__ import annotations

CAST_BYTES = {
    "fp8_tensorwise": 2 + 2 + 1 + 1,
    "fp8_blockwise": 2 + 2 * (1 + 4 / 128),
    "mxfp8": 2 + 2 * (1 + 1 / 32),
    "nvfp4": 2 + 2 + 2 * (1 / 2 + 1 / 16),
}
"""Bytes moved per element cast."""
SCALE_BYTES = {"fp8_tensorwise": 0.0, "fp8_blockwise": 4 / 128, "mxfp8": 1 / 32, "nvfp4": 1 / 16}


def streamed_s(nbytes: float, bytes_per_s: float, floor_s: float) -> float:
    return nbytes / bytes_per_s + floor_s


def cast_bytes(recipe: str, work: str, groups: int, m: int, n: int, k: int) -> float:
    """Bytes moved by the casts before a product, at its own shape; 0 for a dtype that tensors live in."""
    per_element = CAST_BYTES.get(recipe, 0.0)
    return groups * m * k * per_element if work == "dgrad" or (work == "forward" and groups > 1) else 0.0
