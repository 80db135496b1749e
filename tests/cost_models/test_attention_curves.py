"""Curves of attention, and the share of scores that a mask leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost_models.attention import DISPATCH, Curve, Curves, Figure, shipped_curves, visible_share
from meshwright.cost_models.compute import Compute, Kernel
from meshwright.cost_models.compute_profile import chip_of, constants
from meshwright.cost_models.hardware import device, devices
from meshwright.ir.rules.attention import visible
from meshwright.ir.rules.base import Engine
from meshwright.ir.workload import ATTENTION


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
