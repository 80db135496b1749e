"""Curves of attention, and the share of scores that a mask leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost_models.compute.attention import DISPATCH, Curve, Curves, Figure, shipped_curves, visible_share
from meshwright.cost_models.compute.kernels import Compute, Kernel
from meshwright.cost_models.compute.profile import chip_of, constants
from meshwright.cost_models.hardware.devices import device, devices
from meshwright.ir.rules.base import Engine
from meshwright.ir.rules.families.attention import visible
from meshwright.ir.target.workload import ATTENTION


@given(queries=st.integers(1, 24), more=st.integers(0, 24), window=st.integers(0, 60))
def test_visible_share_counts_what_the_rule_shows(queries: int, more: int, window: int) -> None:
    keys = queries + more
    for causal, law in ((True, "window" if window else "causal"), (False, "band" if window else "full")):
        seen = sum(
            visible(law, window, query, key, queries=queries, keys=keys)
            for query in range(queries)
            for key in range(keys)
        )
        assert visible_share(queries, keys, causal, window) * queries * keys == pytest.approx(seen)


@given(products=st.floats(1e-3, 1e2), per_row=st.floats(0.0, 1e3), at=st.integers(64, 65536))
def test_a_kernel_of_the_assumed_form_is_met_everywhere_below_the_longest(
    products: float, per_row: float, at: int
) -> None:
    """Time a s² + b s has 1/efficiency a + b/s up to a factor: three points of it give all of it."""

    def efficiency(sequence: float) -> float:
        return 1 / (products + per_row / sequence)

    points = tuple((sequence, efficiency(sequence)) for sequence in (1024, 4096, 65536))
    curve = Curve("g", "a", "bf16", 128, False, points)
    assert curve.at(at) == pytest.approx(efficiency(at))
    assert curve.at(10**9) == pytest.approx(efficiency(65536))


def test_one_reported_figure_scales_the_nearest_curve() -> None:
    curve = Curve("flash2", "hopper", "bf16", 128, False, ((1024, 0.3), (16384, 0.4)))
    curves = Curves((curve,), (Figure("flash2", "ampere", 0.7, "datasheet"),), 0.0)
    assert curves.efficiency("flash2", "ampere", "bf16", 128, False, 16384) == (pytest.approx(0.7), "datasheet")
    assert curves.efficiency("flash2", "ampere", "bf16", 128, False, 1024) == (pytest.approx(0.525), "datasheet")
    assert curves.efficiency("flash9", "ampere", "bf16", 128, False, 1024) is None


def test_widths_between_measured_ones_lie_between_them() -> None:
    curves = Curves(*shipped_curves(), constants().narrow_heads)
    narrow, middle, wide = (
        curves.efficiency("flash3", "hopper", "bf16", width, True, 4096) for width in (128, 192, 256)
    )
    shares = [found[0] for found in (narrow, middle, wide) if found]
    assert len(shares) == 3
    assert shares == sorted(shares)


def test_every_stack_runs_something_on_every_device() -> None:
    curves = Curves(*shipped_curves(), constants().narrow_heads)
    for generation in (*DISPATCH, *ATTENTION):
        for one in devices():
            assert curves.running(generation, chip_of(one).architecture), (generation, one.name)


@given(name=st.sampled_from(["A100", "H100", "B200", "MI300X", "TPU-v5p"]), sequence=st.integers(1, 30_000))
def test_longer_sequences_and_the_backward_take_longer(name: str, sequence: int) -> None:
    prices = Compute(device(name))

    def seconds(length: int, work: str = "forward") -> float:
        flops = 4.0 * 16 * length**2 * 128 * (2 if work == "backward" else 1)
        shape = (1, 16, 16, length, length, 128, 128)
        priced = prices.seconds(Kernel(Engine.ATTENTION, work, "bf16", flops, 0.0, shape, causal=True))
        assert 0 < priced.efficiency <= 1
        return priced.seconds

    assert seconds(sequence) < seconds(sequence + 128)
    assert seconds(sequence, "backward") > seconds(sequence)


def test_unfused_attention_follows_bandwidth_not_the_peak() -> None:
    one = device("A100")
    kernel = Kernel(
        Engine.ATTENTION, "forward", "bf16", 4.0 * 64 * 4096**2 * 128, 0.0, (4, 16, 16, 4096, 4096, 128, 128)
    )
    peaks = tuple((dtype, replace(peak, value=2 * peak.value)) for dtype, peak in one.peaks)
    bandwidth = replace(one.memory_bandwidth, value=2 * one.memory_bandwidth.value)
    base, more_flops, more_bytes = (
        Compute(changed, attention="math").seconds(kernel).seconds
        for changed in (one, replace(one, peaks=peaks), replace(one, memory_bandwidth=bandwidth))
    )
    assert more_flops == base
    assert more_bytes == pytest.approx(base / 2, rel=0.01)


# By hand -------------------------------------------------------------------------------------------------------------


def of(*points: tuple[int, float]) -> Curve:
    return Curve("g", "a", "bf16", 128, False, points)


def test_a_curve_is_read_between_beside_and_beyond_its_points() -> None:
    """1/efficiency over 1/sequence: 2 at 1/1000 and 4 at 1/4000 make 10/3 at 1/2000, a third of the way."""
    alone, falling, rising = of((1000, 0.5)), of((1000, 0.5), (4000, 0.25)), of((2, 0.5), (4, 0.8))
    table = [
        (alone, 1, 0.5),
        (alone, 1000, 0.5),
        (alone, 10**6, 0.5),
        (falling, 500, 0.5),  # slower at longer ones: it is not carried on below the shortest
        (falling, 1000, 0.5),
        (falling, 2000, 0.3),
        (falling, 4000, 0.25),
        (falling, 9000, 0.25),
        # 2 at 1/2 and 1.25 at 1/4: 3 more for each 1, so 3.5 at 1; no sequence is shorter
        (rising, 1, 1 / 3.5),
        (rising, 0, 1 / 3.5),
        # four points, two of one sequence: 1/efficiency 2 and 4 are 3 on average
        (of((1, 0.5), (2, 0.5), (2, 0.25), (4, 0.2)), 2, 1 / 3),
        (of((1, 0.5), (2, 0.5), (2, 0.25), (4, 0.2)), 1, 0.5),
        # between 5 at 1/4 and 3 at 1/2, then between that and 2 at 1: a third of the way each
        (of((1, 0.5), (2, 0.5), (2, 0.25), (4, 0.2)), 3, 3 / 13),
        (of((1, 0.5), (2, 0.5), (2, 0.25), (4, 0.2)), 1.5, 3 / 8),
    ]
    for curve, sequence, efficiency in table:
        assert curve.at(sequence) == pytest.approx(efficiency), (curve, sequence)


NARROW, WIDE = Curve("g", "a", "bf16", 64, False, ((9, 0.5),)), Curve("g", "a", "bf16", 128, False, ((9, 0.8),))
EIGHT = Curve("g", "a", "fp8", 128, True, ((9, 0.4),))
OTHERS = (
    Curve("h", "a", "bf16", 64, False, ((9, 0.01),)),
    Curve("g", "b", "bf16", 64, False, ((9, 0.02),)),
    Curve("flash2", "b", "bf16", 128, False, ((1, 0.1), (2, 0.2))),
)
KNOWN = Curves((*OTHERS, NARROW, WIDE, EIGHT), (Figure("h", "b", 0.3, "assumed"), Figure("x", "a", 0.6, "given")), 0.5)


def test_the_nearest_curves_answer() -> None:
    """First of the dtype, then of the mask; slowness is joined in 1/width, and grows below the narrowest."""
    table = [
        ("bf16", 64, False, 0.5),
        ("bf16", 128, False, 0.8),
        ("bf16", 256, False, 0.8),
        ("bf16", 96, False, 1 / 1.5),  # two thirds of the way from 2 to 1.25
        ("bf16", 32, False, 1 / 3),  # twice as narrow: half of a whole more than 2
        ("bf16", 64, True, 0.5),  # no such mask was measured
        ("fp8", 64, False, 1 / 3.75),
        ("fp16", 128, True, 0.4),  # no such dtype was measured
        ("fp16", 128, False, 0.8),
    ]
    for dtype, width, causal, efficiency in table:
        found = KNOWN.efficiency("g", "a", dtype, width, causal, 9)
        assert found == (pytest.approx(efficiency), "fitted"), (dtype, width, causal)


def test_a_figure_has_the_shape_of_its_generation_or_of_flash2() -> None:
    """At sequence 1 flash2 is half as good as at the end."""
    for generation, architecture, sequence, efficiency, kind in (
        ("h", "b", 1, 0.3, "assumed"),
        ("x", "a", 2, 0.6, "given"),
        ("x", "a", 1, 0.3, "given"),
    ):
        found = KNOWN.efficiency(generation, architecture, "bf16", 128, False, sequence)
        assert found == (pytest.approx(efficiency), kind)
    assert KNOWN.efficiency("x", "b", "bf16", 128, False, 1) is None
    # As narrow as the curve is, which is said of the usual width: twice as fast as at 128 by 1/width alone.
    assert KNOWN.efficiency("h", "b", "bf16", 32, False, 1) == (pytest.approx(0.3 / 1.5), "assumed")


def test_what_runs_on_an_architecture() -> None:
    assert KNOWN.on("a") == ("g", "h", "x")
    assert KNOWN.on("b") == ("flash2", "g", "h")
    assert [KNOWN.running(one, "b") for one in ("g", "flash1", "flash3", "math", "megatron")] == [
        "g",
        "flash2",
        "flash2",
        "math",
        "megatron",
    ]
    assert [KNOWN.running(one, "a") for one in ("flash3", "flash1", "x", "nothing")] == ["megatron", "math", "x", None]
    unfused = Curve("math", "c", "bf16", 128, True, ((1, 3.0), (2, 6.0)))
    known = Curves((*KNOWN.measured, unfused, replace(unfused, causal=False, points=((1, 9.0),))), (), 0.0)
    assert (known.unfused(True, 2), known.unfused(True, 1), known.unfused(False, 2)) == pytest.approx((6, 3, 9))
