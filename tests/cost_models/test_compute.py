"""Prices of compute: laws that hold whatever the constants, and what the tables say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshwright.cost_models.compute.gemm import gradients
from meshwright.cost_models.compute.gemm_table import shipped_rows
from meshwright.cost_models.compute.kernels import Compute, Kernel
from meshwright.cost_models.compute.profile import constants
from meshwright.cost_models.hardware.devices import Device, device, devices
from meshwright.cost_models.hardware.quantity import KINDS
from meshwright.ir.errors import AttentionUnknown, BadQuantity, KernelMalformed
from meshwright.ir.rules.base import Engine

SIZES = st.integers(1, 20_000)
NAMES = st.sampled_from(["A100", "H100", "B200", "MI300X", "TPU-v5p"])


def product(m: int, n: int, k: int, *, groups: int = 1, dtype: str = "bf16", work: str = "forward") -> Kernel:
    return Kernel(Engine.MATMUL, work, dtype, 2.0 * groups * m * n * k, 0.0, (groups, m, n, k))


def heads(sequence: int, *, work: str = "forward", causal: bool = True, width: int = 128, window: int = 0) -> Kernel:
    flops = 4.0 * 32 * sequence**2 * width * (2 if work == "backward" else 1)
    shape = (1, 32, 8, sequence, sequence, width, width)
    return Kernel(Engine.ATTENTION, work, "bf16", flops, 0.0, shape, causal=causal, window=window)


def moved(nbytes: float) -> Kernel:
    return Kernel(Engine.MEMORY, "forward", "bf16", 0.0, nbytes)


def faster(one: Device, by: float) -> Device:
    """The same device with all rates multiplied."""
    peaks = tuple((dtype, replace(peak, value=peak.value * by)) for dtype, peak in one.peaks)
    bandwidth = replace(one.memory_bandwidth, value=one.memory_bandwidth.value * by)
    return replace(one, peaks=peaks, memory_bandwidth=bandwidth)


@given(name=NAMES, m=SIZES, n=SIZES, k=SIZES, groups=st.integers(1, 64))
def test_efficiency_is_a_share_of_the_peak(name: str, m: int, n: int, k: int, groups: int) -> None:
    priced = Compute(device(name)).seconds(product(m, n, k, groups=groups))
    assert 0 < priced.efficiency <= 1
    peak = device(name).peak("bf16").value
    assert priced.seconds * priced.efficiency * peak == pytest.approx(2.0 * groups * m * n * k)
    assert priced.kind in KINDS


@given(name=NAMES, m=SIZES, n=SIZES, k=SIZES, by=st.floats(1.0, 4.0))
def test_a_faster_device_is_never_slower(name: str, m: int, n: int, k: int, by: float) -> None:
    slow, fast = Compute(device(name)), Compute(faster(device(name), by))
    for kernel in (product(m, n, k), heads(k), heads(k, work="backward"), moved(float(m) * n)):
        assert fast.seconds(kernel).seconds <= slow.seconds(kernel).seconds * (1 + 1e-12)


@given(name=NAMES, m=SIZES, n=SIZES, k=SIZES)
@example(name="A100", m=1, n=1, k=2177)  # where cutting k into 16 becomes even
def test_more_work_never_takes_less(name: str, m: int, n: int, k: int) -> None:
    prices = Compute(device(name))
    for more in ((m + 64, n, k), (m, n + 64, k), (m, n, k + 64)):
        assert prices.seconds(product(*more)).seconds >= prices.seconds(product(m, n, k)).seconds
    assert prices.seconds(moved(m + 1.0)).seconds > prices.seconds(moved(float(m))).seconds


def test_a_measured_shape_costs_what_was_measured() -> None:
    name, dtype, rows = shipped_rows()
    prices = Compute(device(name))
    assert len(rows) == 6000
    for (m, n, k), seconds in rows[::97]:
        priced = prices.seconds(product(m, n, k, dtype=dtype))
        assert priced.seconds == seconds
        assert priced.kind == "measured"


def test_every_device_prices_every_engine() -> None:
    for one in devices():
        prices, dtype = Compute(one), "bf16" if "bf16" in one.dtypes else one.dtypes[-1]
        for kernel in (product(4096, 4096, 4096), heads(4096), moved(1e9)):
            assert prices.seconds(replace(kernel, dtype=dtype)).seconds > 0


def test_gradients_are_the_products_that_run() -> None:
    m, n, k = 3, 5, 7
    (_, *dgrad), (_, *wgrad) = gradients(2, m, n, k)
    assert dgrad == [m, k, n]  # [m, n] times the weight [n, k]
    assert wgrad == [n, k, m]  # [n, m] times [m, k]


def test_large_products_reach_what_devices_are_known_for() -> None:
    """The bands are those of published matmul benchmarks of training shapes, not of our data: by themselves."""
    bands = {"A100": (0.70, 0.85), "H100": (0.62, 0.78), "B200": (0.62, 0.78), "MI300X": (0.38, 0.55)}
    for name, (low, high) in bands.items():
        alone = Compute(device(name), values=constants().isolated()).seconds(product(8192, 28672, 8192)).efficiency
        assert low <= alone <= high, name


def test_products_of_a_tuned_stack_are_above_the_utilisation_of_whole_steps() -> None:
    """Inside a step power and clocks leave less than alone, but products are what a step does best. MFU in bf16:
    MegaScale (2402.15627, table 2) up to 65.3 % on A100; the README of Megatron-LM up to 47 % on H100."""
    for name, utilisation in {"A100": 0.653, "H100": 0.47}.items():
        kernel = product(8192, 28672, 8192)
        alone = Compute(device(name), values=constants().isolated()).seconds(kernel).efficiency
        tuned = Compute(device(name), style="fused").seconds(kernel).efficiency
        assert utilisation < tuned < alone, name
        assert Compute(device(name), style="eager").seconds(kernel).efficiency <= tuned, name


def test_low_precision_pays_for_its_casts() -> None:
    """The gradient of the result is cast for dgrad, by a kernel that reads it twice and writes it twice in a byte each;
    activations are cast by what makes them, and weights once a step."""
    prices, size = Compute(device("H100"), style="fused"), 4096
    forward, dgrad, wgrad = (
        prices.seconds(product(size, size, size, dtype="fp8_tensorwise", work=work)).seconds
        for work in ("forward", "dgrad", "wgrad")
    )
    cast_s = 6 * size**2 / prices.bytes_per_s + constants().kernel_floor_s
    assert dgrad == pytest.approx(forward + cast_s)
    assert forward == wgrad
    assert dgrad < prices.seconds(product(size, size, size, work="dgrad")).seconds


def test_a_causal_mask_and_a_window_save_time() -> None:
    prices = Compute(device("H100"))
    full, causal, window = (
        prices.seconds(kernel).seconds
        for kernel in (heads(16384, causal=False), heads(16384), heads(16384, window=1024))
    )
    assert full / 2 < causal < 0.62 * full
    assert window < causal / 4


def test_a_stack_runs_the_attention_that_the_device_has() -> None:
    ran = {"H100": "flash3", "A100": "flash2", "B200": "blackwell", "V100-32G": "megatron", "TPU-v5p": "splash"}
    assert {name: Compute(device(name), attention="flash3").attention for name in ran} == ran


def test_a_device_of_ones_own_is_priced_and_labelled() -> None:
    """Nothing is known of it but peaks, so that nothing better than a stand-in is claimed."""
    own = replace(device("A100"), name="mine", vendor="me", like="")
    priced = Compute(own).seconds(product(8192, 8192, 8192))
    assert priced.kind == "assumed"
    assert 0.5 < priced.efficiency < 1
    assert Compute(own).seconds(heads(8192)).kind == "assumed"
    assert Compute(replace(own, like="A100-80G")).seconds(product(8192, 8192, 8192)).kind == "fitted"


def test_what_cannot_be_priced_is_refused() -> None:
    prices = Compute(device("A100"))
    with pytest.raises(AttentionUnknown, match="flash2"):
        Compute(device("A100"), attention="triton")
    with pytest.raises(KernelMalformed, match="4 positive sizes"):
        prices.seconds(Kernel(Engine.MATMUL, "forward", "bf16", 1.0, 1.0, (1, 2, 3)))
    with pytest.raises(BadQuantity, match="shares"):
        replace(constants(), sustained_hopper=1.5)
