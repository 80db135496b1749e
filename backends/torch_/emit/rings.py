"""Torch's fused kernels of attention in a ring: which one computes it, and what it takes."""

from __future__ import annotations

ROWS = 32
"""`efficient` rounds the number of its row sums up to a multiple of this."""


def kernel_of(device: str, precision: str, *, masked: bool) -> str:
    """The kernel's name."""
    if device == "cpu":
        return "cpu"
    return "efficient" if precision == "fp32" or masked else "flash"


def rows_fit(kernel: str, rows: int) -> bool:
    """Whether it takes as many queries per rank."""
    return kernel != "efficient" or rows % ROWS == 0
