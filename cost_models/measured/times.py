"""Seconds of kernels by measurement: a kernel's own time where it was measured, else one made from those near it.

    product     its own; inside the hull by kriging over the law of products (`compute.gemm_table`), outside by the law,
                as far from it as at the nearest place of the hull, and is called assumed; several groups as so many
                products
    attention   seconds per visible FLOP, the geometric mean over the `NEAREST` measured cases (by log2 of sequences
                and width), each weighed by its inverse distance
    stream      linear in log bytes between neighbours; below the least by its time, above the largest by its rate

*Least of parts.* Bounds ask what a kernel takes at least however it is cut: `least` gives the best rate that was
measured, which no part of it beats:

    product     FLOPs / best rate            attention     visible FLOPs / best rate
    stream      bytes x least of (seconds / bytes) over all sizes up to its own
"""

from __future__ import annotations

from bisect import bisect_left
from math import exp, log, log2

from meshwright.cost_models.compute.attention import visible_share
from meshwright.cost_models.compute.gemm_table import Table
from meshwright.cost_models.hardware.quantity import Kind
from meshwright.cost_models.measured.measured import AttentionTime, Busy, Shape7

NEAREST = 4
Answer = tuple[float, Kind]
"""Seconds, and what they stand on."""


class Times:
    """Times of kernels on one device, with one number of busy ranks."""

    def __init__(self, busy: Busy, tables: dict[str, Table], exact: Kind = "measured") -> None:
        """`tables`: of each precision that products were measured in, those of one group; `exact`: what times of
        kernels stand on that were measured as they are."""
        self.busy, self.tables, self.exact = busy, tables, exact
        self._products = {(row.dtype, row.shape): row.p50_s for row in busy.products}
        self.fused = frozenset(row.dtype for row in busy.attention)
        """Precisions that fused attention was measured in."""
        self._streams = sorted((row.nbytes, row.p50_s) for row in busy.streams)

    def product(self, dtype: str, groups: int, m: int, n: int, k: int) -> Answer | None:
        """None for a precision that was not measured."""
        exact = self._products.get((dtype, (groups, m, n, k)))
        if exact is not None:
            return exact, self.exact
        table = self.tables.get(dtype)
        if table is None:
            return None
        shape = (m, n, k)
        inside = table.exact_s(shape) or table.interpolated_s(shape)
        return (groups * inside, "fitted") if inside else (groups * table.beyond_s(shape), "assumed")

    def product_least(self, dtype: str, groups: int, m: int, n: int, k: int) -> Answer | None:
        """The least seconds of a product in whatever parts."""
        peak = self.busy.peak_flops_per_s(dtype)
        return (2.0 * groups * m * n * k / peak, "fitted") if peak else None

    def attention(self, dtype: str, work: str, causal: bool, window: int, shape: Shape7) -> Answer | None:
        """None where no attention was measured in this precision."""
        known = self._alike(dtype, work, causal)
        if not known:
            return None
        for row in known:
            if row.shape == shape and row.causal == causal and not window:
                return row.p50_s, self.exact
        nearest = sorted((_apart(row.shape, shape), _pace(row)) for row in known)[:NEAREST]
        weights = [1.0 / (distance + 1e-3) for distance, _ in nearest]
        pace = sum(weight * log(each) for weight, (_, each) in zip(weights, nearest, strict=True)) / sum(weights)
        return _visible_flops(shape, causal, window) * exp(pace), "fitted"

    def attention_least(self, dtype: str, work: str, causal: bool, window: int, shape: Shape7) -> Answer | None:
        """The least seconds of attention in whatever parts."""
        known = [row for row in self.busy.attention if (row.dtype, row.work) == (dtype, work)]
        if not known:
            return None
        return _visible_flops(shape, causal, window) * min(map(_pace, known)), "fitted"

    def _alike(self, dtype: str, work: str, causal: bool) -> list[AttentionTime]:
        known = [row for row in self.busy.attention if (row.dtype, row.work) == (dtype, work)]
        return [row for row in known if row.causal == causal] or known

    def stream(self, nbytes: float) -> float:
        points = self._streams
        if nbytes <= points[0][0]:
            return points[0][1]
        if nbytes >= points[-1][0]:
            return points[-1][1] * nbytes / points[-1][0]
        right = bisect_left(points, (nbytes, 0.0))
        (x0, y0), (x1, y1) = points[right - 1], points[right]
        part = log(nbytes / x0) / log(x1 / x0)
        return exp(log(y0) + part * log(y1 / y0))

    def stream_least(self, nbytes: float) -> float:
        """The least seconds of a stream in whatever parts."""
        paces = [seconds / size for size, seconds in self._streams if size <= nbytes]
        return min([*(pace * nbytes for pace in paces), self.stream(nbytes)])


def _visible_flops(shape: Shape7, causal: bool, window: int) -> float:
    batch, heads, _, sq, sk, d_qk, d_v = shape
    return 2.0 * batch * heads * sq * sk * (d_qk + d_v) * visible_share(sq, sk, causal, window)


def _pace(row: AttentionTime) -> float:
    """Seconds per visible FLOP, as of the forward pass."""
    return row.p50_s / _visible_flops(row.shape, row.causal, 0)


def _apart(one: Shape7, other: Shape7) -> float:
    """The distance of two shapes of attention, in octaves."""
    sizes = zip(_sizes(one), _sizes(other), strict=True)
    return sum(abs(log2(a / b)) for a, b in sizes)


def _sizes(shape: Shape7) -> tuple[float, float, float]:
    *_, sq, sk, d_qk, d_v = shape
    return float(sq), float(sk), d_qk + d_v
