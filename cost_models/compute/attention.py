"""Attention kernels: efficiency as a curve over the sequence length, per generation of the kernel.

*Fused* kernels (flash1, flash2, triton, triton_fa2, flash3, cudnn, blackwell, splash) do the visible part of the scores
and nothing else. Time per head is a s² + b s: the products, and what every row of queries costs once. So 1/efficiency
is linear in 1/s, and that is how measured points are joined (and carried on below the shortest; above the longest it
stays). Two measurements of one point are averaged. Where a generation was measured on another architecture only, or
reported as one figure, the shape of the nearest curve is scaled to that figure. Widths between measured ones are
interpolated in 1/d, which is how the softmax's share falls; outside, by `narrow_heads`. A width that is no multiple of
`WIDTHS` is padded to one.

    forward_s  = visible share · flops / (peak · efficiency(s, d, causal)) · fill
    backward_s = visible share · flops · 5/4 / (peak · efficiency · attention_backward) · fill

5/4: rules count four products backward, the kernel recomputes the scores and does five. fill = max(1, units / blocks),
when there are fewer blocks of 128 queries than units. A sliding window reads whole blocks at its edges.

*Unfused* attention (`math`: product, mask, softmax, product) moves scores through memory, so FLOP/s go with bandwidth:
its curves hold FLOP per byte of bandwidth, at 16 bits, and are proportional to the head width. `megatron` is the same
with Megatron's one-kernel scaled masked softmax: every score is computed, and moved as if nothing were masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from meshwright.cost_models.compute.profile import profile
from meshwright.cost_models.hardware.quantity import Kind

BLOCK = 128
"""Queries, or keys, that a fused kernel works on at once."""
WIDTHS = 32
"""Widths of heads that fused kernels are made for are multiples of this (flash-attn, hdim32 to hdim256)."""
UNFUSED = ("math", "megatron")
DISPATCH = {
    "flash3": ("flash3", "blackwell", "flash2", "splash", "megatron"),
    "cudnn": ("cudnn", "blackwell", "flash2", "math"),
    "flash2": ("flash2", "splash", "math"),
    "flash1": ("flash1", "flash2", "splash", "math"),
    "splash": ("splash", "cudnn", "blackwell", "flash2", "math"),
    "blackwell": ("blackwell", "flash3", "flash2", "splash", "megatron"),
}
"""What a stack of a generation runs: the first of these that the architecture has. Libraries dispatch so: Transformer
Engine takes FlashAttention-3 on Hopper, cuDNN on Blackwell, FlashAttention-2 on Ampere and its unfused softmax before
(NVIDIA Transformer Engine documentation, `DotProductAttention`, 2025); JAX takes cuDNN on GPUs."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Forward efficiency of one kernel generation on one architecture: (sequence, efficiency), sorted.

    For an unfused kernel "efficiency" is FLOP per byte of memory bandwidth.
    """

    generation: str
    architecture: str
    dtype: str
    head_dim: int
    causal: bool
    points: tuple[tuple[int, float], ...]

    def at(self, sequence: float) -> float:
        """The efficiency at a sequence length, interpolated linearly in 1/efficiency over 1/sequence."""
        slow = _averaged(self.points)
        x = 1.0 / max(sequence, 1.0)
        if x <= slow[0][0] or len(slow) == 1:
            return 1.0 / slow[0][1]
        right = next((index for index, (at, _) in enumerate(slow) if at >= x), len(slow) - 1)
        (x0, y0), (x1, y1) = slow[right - 1], slow[right]
        slope = (y1 - y0) / (x1 - x0)
        beyond = x > x1
        return 1.0 / (y1 + max(slope, 0.0) * (x - x1) if beyond else y0 + slope * (x - x0))


@dataclass(frozen=True, slots=True)
class Figure:
    """One reported efficiency of long sequences, where no curve was measured."""

    generation: str
    architecture: str
    efficiency: float
    kind: Kind


def _averaged(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    by_sequence: dict[int, list[float]] = {}
    for sequence, efficiency in points:
        by_sequence.setdefault(sequence, []).append(1.0 / efficiency)
    return sorted((1.0 / sequence, sum(slow) / len(slow)) for sequence, slow in by_sequence.items())


@dataclass(frozen=True, slots=True)
class Curves:
    """All curves and figures as one value: fitting and scoring remove points and ask again."""

    measured: tuple[Curve, ...]
    figures: tuple[Figure, ...]
    narrow_heads: float

    def efficiency(
        self, generation: str, architecture: str, dtype: str, head_dim: int, causal: bool, sequence: float
    ) -> tuple[float, Kind] | None:
        """Forward efficiency; None if nothing is known of this generation on this architecture."""
        known = [one for one in self.measured if one.generation == generation and one.architecture == architecture]
        if known:
            return self._of(known, dtype, head_dim, causal, sequence), "fitted"
        figure = next(
            (one for one in self.figures if (one.generation, one.architecture) == (generation, architecture)), None
        )
        if figure is None:
            return None
        shape = [one for one in self.measured if one.generation == generation] or [
            one for one in self.measured if one.generation == "flash2"
        ]
        longest = self._of(shape, "bf16", BLOCK, False, float("inf"))
        return figure.efficiency * self._of(shape, dtype, head_dim, causal, sequence) / longest, figure.kind

    def running(self, generation: str, architecture: str) -> str | None:
        """The kernel generation that a stack runs on an architecture; None if none is known."""
        there = (*self.on(architecture), *UNFUSED)
        return next((one for one in DISPATCH.get(generation, (generation,)) if one in there), None)

    def unfused(self, causal: bool, sequence: float) -> float:
        """FLOP per byte of bandwidth of unfused attention, at head width 128 and 16 bits."""
        known = [one for one in self.measured if one.generation == "math"]
        return self._of(known, "bf16", BLOCK, causal, sequence)

    def on(self, architecture: str) -> tuple[str, ...]:
        """Fused generations that can be priced on an architecture."""
        found = {one.generation for one in self.measured if one.architecture == architecture}
        return tuple(sorted(found | {one.generation for one in self.figures if one.architecture == architecture}))

    def _of(self, known: Sequence[Curve], dtype: str, head_dim: int, causal: bool, sequence: float) -> float:
        """The efficiency under the nearest law (dtype, then mask), between the nearest widths."""
        alike = [one for one in known if one.dtype == dtype] or list(known)
        alike = [one for one in alike if one.causal == causal] or alike
        widths = sorted({one.head_dim for one in alike})
        below = max((width for width in widths if width <= head_dim), default=widths[0])
        above = min((width for width in widths if width >= head_dim), default=widths[-1])
        slow = [1.0 / _at_width(alike, width, sequence) for width in (below, above)]
        if below == above:
            wider = max(0.0, below / head_dim - 1) * self.narrow_heads
            return 1.0 / (slow[0] * (1 + wider))
        share = (1 / head_dim - 1 / below) / (1 / above - 1 / below)
        return 1.0 / (slow[0] + share * (slow[1] - slow[0]))


def _at_width(curves: Sequence[Curve], width: int, sequence: float) -> float:
    return next(one for one in curves if one.head_dim == width).at(sequence)


@cache
def shipped_curves() -> tuple[tuple[Curve, ...], tuple[Figure, ...]]:
    table = profile()
    curves = tuple(
        Curve(
            one["generation"],
            one["architecture"],
            one["dtype"],
            one["head_dim"],
            one["causal"],
            tuple((int(sequence), float(efficiency)) for sequence, efficiency in one["points"]),
        )
        for one in table["attention_curves"]
    )
    figures = tuple(
        Figure(one["generation"], one["architecture"], float(one["efficiency"]), one["kind"])
        for one in table["attention_asymptotes"]
    )
    return curves, figures


def filled(head_dim: int) -> float:
    """The share of a fused kernel's work that is on a head, and not on what pads it."""
    return head_dim / (-(-head_dim // WIDTHS) * WIDTHS)


def visible_share(sq: int, sk: int, causal: bool, window: int) -> float:
    """The share of the scores that the mask leaves (`ir.rules.families.attention.visible`): the last query lines up
    with the last key, and `window` counts keys back from a query's own; without `causal` as many forward too."""
    if not causal and not window:
        return 1.0
    wide, before = min(window or sk, sk), max(sk - sq, 0)
    seen = _sum_of_least(sk, wide) - _sum_of_least(before, wide)
    if not causal:
        seen += _sum_of_least(min(sq, sk) - 1, wide - 1)
    return seen / (sq * sk)


def _sum_of_least(count: int, most: int) -> float:
    """min(1, most) + min(2, most) + … + min(count, most)."""
    rising = min(count, most)
    return rising * (rising + 1) / 2 + (count - rising) * most
