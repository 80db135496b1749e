"""The law of matrix products: tiles, waves, and the write of each tile.

A product of (groups, m, n, k) is cut into tiles of tm x tn, spread over the device's units in waves. One wave takes the
tile's multiply-adds at the unit's rate, and then the write of the tile at the unit's share of the memory bandwidth,
which the next tile's start does not hide:

    wave_s  = 2 tm tn k' (1 + penalty · excess(tm, tn)) / (peak · ceiling / units) + tm tn bytes / (bandwidth / units)
    excess  = (1/tm + 1/tn) / (1/128 + 1/256) - 1, not below 0           operand traffic beside that of 128 x 256
    waves   = ceil(groups ceil(m/tm) ceil(n/tn) / units)
    seconds = max(waves · wave_s, all bytes / bandwidth) + floor

The library picks the best of its tiles, and may cut k into `SPLITS` parts (k' = k / parts, partial sums written and
read in fp32); so does the law. The write explains why a product with a short k is slow: beside a long k it costs the
share k0/k, with k0 = peak · ceiling / bandwidth, 95 elements on V100, where 6,000 measured products show 85 to 110.

Rows that are not whole vectors of 16 bytes are read in smaller pieces, which costs the root of their share: 0.71 at 8
bytes, 0.5 at 4, 0.35 at 2 (assumed, as NVIDIA's guide to matrix multiplication draws its figure of alignments on A100).
A vocabulary of 50,257 columns in bf16 so takes near three times as long as one of 50,304.

The ceiling is measured (best of a search over shapes) for most training devices. The tile sizes are those that CUTLASS
and cuBLAS ship for tensor cores (CUTLASS documentation, "Efficient GEMM", 2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

TILES = ((128, 256), (256, 128), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64))
SPLITS = (1, 2, 4, 8, 16)
STEP = 64
"""Elements of k that a tile takes at once: shorter products are padded to it."""
VECTOR = 16
"""Bytes that tensor cores are fed with at once; a TPU's unit is fed with padded tiles, whatever their rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The rates that a device gives to a product: reached FLOP/s and bytes/s, units, and the constants of the law."""

    flops_per_s: float
    bytes_per_s: float
    units: int
    tile_penalty: float
    floor_s: float
    vector_bytes: int = VECTOR


@dataclass(frozen=True, slots=True)
class Product:
    """out[g, m, n] = sum over k; bytes per element of the two operands and of the result."""

    groups: int
    m: int
    n: int
    k: int
    in_bytes: float
    out_bytes: float

    @property
    def flops(self) -> float:
        return 2.0 * self.groups * self.m * self.n * self.k

    @property
    def nbytes(self) -> float:
        read = self.in_bytes * self.k * (self.m + self.n)
        return self.groups * (read + self.out_bytes * self.m * self.n)

    def aligned(self, vector_bytes: int) -> float:
        """The share of the rate that the rows of the operands, and of the result, leave by their alignment."""
        return min(aligned(self.k, self.in_bytes, vector_bytes), aligned(self.n, self.out_bytes, vector_bytes))


def aligned(elements: int, width_bytes: float, vector_bytes: int) -> float:
    """The share of the rate that rows of so many elements leave to a unit which is fed with vectors."""
    row = max(1, int(elements * width_bytes))
    return sqrt(min(vector_bytes, row & -row) / vector_bytes)


def gradients(groups: int, m: int, n: int, k: int) -> tuple[tuple[int, int, int, int], tuple[int, int, int, int]]:
    """The two gradient products of x[m, k] · w[n, k]: dgrad (m, k, n), then wgrad (n, k, m)."""
    return (groups, m, k, n), (groups, n, k, m)


def untiled_s(product: Product, rates: Rates) -> float:
    """Seconds of a product that is not cut into tiles of tensor cores: its operations, or its bytes."""
    return max(product.flops / rates.flops_per_s, product.nbytes / rates.bytes_per_s) + rates.floor_s


def law_s(product: Product, rates: Rates) -> float:
    """Seconds of a product, by the best tile and split."""
    flops_per_s = rates.flops_per_s * product.aligned(rates.vector_bytes) / rates.units
    bytes_per_s = rates.bytes_per_s / rates.units
    best = float("inf")
    for tm, tn in TILES:
        tiles = product.groups * ceil(product.m / tm) * ceil(product.n / tn)
        slowed = 1 + rates.tile_penalty * ((1 / tm + 1 / tn) / (1 / 128 + 1 / 256) - 1)
        for parts in SPLITS:
            steps = ceil(product.k / parts / STEP)
            written = product.out_bytes if parts == 1 else 8.0
            wave_s = tm * tn * (2 * STEP * steps * slowed / flops_per_s + written / bytes_per_s)
            best = min(best, ceil(tiles * parts / rates.units) * wave_s)
    return max(best, product.nbytes / rates.bytes_per_s) + rates.floor_s
