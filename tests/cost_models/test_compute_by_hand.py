"""Prices of kernels on a device of round numbers: 1,000 TFLOP/s, half of 1 TB/s, a microsecond for each kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.cost_models.compute.attention import Curve, Curves, Figure, filled, visible_share
from meshwright.cost_models.compute.gemm import VECTOR, Product, Rates, aligned, law_s
from meshwright.cost_models.compute.gemm_table import shipped_rows
from meshwright.cost_models.compute.kernels import Compute, Kernel, Priced, shipped_table, table_for
from meshwright.cost_models.compute.profile import chip_of, constants
from meshwright.cost_models.hardware.devices import Device, device
from meshwright.ir.errors import BadQuantity, KernelMalformed
from meshwright.ir.rules.base import Engine

FLOOR = 1e-6
PLAIN = replace(
    constants().isolated(),
    hbm_efficiency=0.5,
    kernel_floor_s=FLOOR,
    tile_penalty=0.5,
    attention_backward=0.8,
    narrow_heads=0.5,
    host_s=7e-6,
    compiled_host_s=3e-6,
)
FLAT = Curve("flash3", "hopper", "bf16", 128, True, ((1024, 0.5),))
FULL = replace(FLAT, causal=False, points=((1024, 0.25),))
MATH = Curve("math", "ampere", "bf16", 128, False, ((1024, 100.0),))
MASKED = replace(MATH, causal=True, points=((1024, 80.0),))
CURVES = Curves((FLAT, FULL, MATH, MASKED), (), 0.5)


def made() -> Device:
    """An H100, with 132 units, and the peaks of before."""
    own = device("H100")
    peaks = {"bf16": 1e15, "fp16": 1e15, "fp8": 2e15, "fp32": 5e14, "tf32": 5e14, "fp64": 5e13}
    told = tuple((name, replace(peak, value=peaks[name])) for name, peak in own.peaks)
    return replace(own, peaks=told, memory_bandwidth=replace(own.memory_bandwidth, value=1e12))


def compute(**words: Any) -> Compute:
    return Compute(made(), values=PLAIN, curves=CURVES, **words)


def attention(
    sq: int = 1024, sk: int = 1024, *, batch: int = 2, heads: int = 132, work: str = "forward", **words: Any
) -> Kernel:
    flops = 4.0 * batch * heads * sq * sk * 128 * (2 if work == "backward" else 1)
    shape = (batch, heads, heads, sq, sk, 128, 128)
    return Kernel(Engine.ATTENTION, work, **{"dtype": "bf16", "flops": flops, "nbytes": 0.0, "shape": shape} | words)


def test_what_moves_bytes_takes_their_time_and_a_floor() -> None:
    found = compute().seconds(Kernel(Engine.MEMORY, "forward", "bf16", 0.0, 1e6))
    assert found == Priced(pytest.approx(2e-6 + FLOOR), "fitted", pytest.approx(1e6 / 3e-6 / 1e12))
    assert compute().seconds(Kernel(Engine.VIEW, "forward", "bf16", 0.0, 1e6)) == Priced(0.0, "measured", 1.0)


@pytest.mark.parametrize(("flops", "nbytes", "seconds"), [(1e12, 1e6, 1e12 / (1e15 * 0.8033)), (1e3, 1e6, 2e-6)])
def test_a_convolution_computes_or_moves(flops: float, nbytes: float, seconds: float) -> None:
    """At the ceiling that a search over products found on the chip, 0.8033."""
    found = compute(style="fused").seconds(Kernel(Engine.CONV, "forward", "bf16", flops, nbytes))
    assert found.seconds == pytest.approx(seconds + FLOOR)
    assert found.efficiency == pytest.approx(flops / found.seconds / 1e15)
    assert found.kind == "fitted"


@pytest.mark.parametrize(
    ("kernel", "seconds"),
    [
        # 4 x 2 x 132 x 1024^2 x 128 FLOP at a quarter of the peak
        (attention(), 4 * 264 * 1024**2 * 128 / 0.25e15),
        # a causal mask leaves 1025 of 2048, at half of the peak
        (attention(causal=True), 4 * 264 * 1024**2 * 128 * 1025 / 2048 / 0.5e15),
        # five products for four, at 0.8 of that
        (attention(work="backward", causal=True), 8 * 264 * 1024**2 * 128 * 1025 / 2048 * 5 / 4 / 0.4e15),
        # eight blocks of one head keep eight of 132 units busy
        (attention(batch=1, heads=1), 4 * 1024**2 * 128 / 0.25e15 * 132 / 8),
        (attention(1000, 1000, batch=1, heads=1), 4 * 1000**2 * 128 / 0.25e15 * 132 / 8),
        # memory, where there is little to compute
        (attention(128, 128, batch=1, nbytes=1e9), 2e-3),
        # 1,024 keys are not masked by a window of as many
        (attention(causal=True, window=1024), 4 * 264 * 1024**2 * 128 * 1025 / 2048 / 0.5e15),
    ],
)
def test_fused_attention(kernel: Kernel, seconds: float) -> None:
    found = compute().seconds(kernel)
    assert found.seconds == pytest.approx(seconds + FLOOR)
    assert compute().kernels(kernel) == 1
    assert found.kind == "fitted"


def test_a_window_reads_whole_blocks_at_its_edge() -> None:
    """Of 256 keys, 384 are worked on; no mask of the kind that the causal curve has."""
    found = compute().seconds(attention(causal=True, window=256))
    share = visible_share(1024, 1024, True, 256) * 384 / 256
    assert found.seconds == pytest.approx(4 * 264 * 1024**2 * 128 * share / 0.25e15 + FLOOR)
    assert found.efficiency == pytest.approx(4 * 264 * 1024**2 * 128 * share / found.seconds / 1e15)
    wide = compute().seconds(attention(causal=False, window=1000))
    assert wide.seconds == pytest.approx(4 * 264 * 1024**2 * 128 / 0.25e15 + FLOOR)  # never more than all


@pytest.mark.parametrize(
    ("generation", "kernel", "per_byte", "share", "kernels"),
    [
        ("math", attention(), 100, 1, 3),
        ("math", attention(causal=True), 80, 1025 / 2048, 3),
        ("math", attention(causal=True, work="backward"), 80, 1025 / 2048, 5),
        ("megatron", attention(causal=True), 100, 1, 3),  # every score is moved
        ("math", attention(causal=True, window=256), 100, 1, 3),  # so is every score of a window
        ("flash3", attention(dtype="fp32"), 50, 1, 3),  # of fp32 half as many per byte
        ("flash3", attention(dtype="f64"), 25, 1, 3),
        ("math", attention(shape=(2, 132, 132, 1024, 1024, 64, 128)), 75, 1, 3),
    ],
)
def test_attention_that_is_written_out(
    generation: str, kernel: Kernel, per_byte: float, share: float, kernels: int
) -> None:
    """FLOP per byte of the whole bandwidth, at 128 wide, and a floor for each kernel."""
    own = compute(attention=generation)
    found = own.seconds(kernel)
    assert own.kernels(kernel) == kernels
    assert found.seconds == pytest.approx(kernel.flops * share / (per_byte * 1e12) + kernels * FLOOR)
    peak = {"bf16": 1e15, "fp32": 5e14, "f64": 5e13}[kernel.dtype]
    assert found.efficiency == pytest.approx(kernel.flops * share / found.seconds / peak)


def test_written_out_attention_is_bound_by_what_computes_too() -> None:
    curves = Curves((FLAT, replace(MATH, points=((1024, 1e6),))), (), 0.5)
    own = Compute(made(), values=PLAIN, curves=curves, attention="math")
    assert own.seconds(attention()).seconds == pytest.approx(4 * 264 * 1024**2 * 128 / 0.8033e15 + 3 * FLOOR)


def product(groups: int, m: int, n: int, k: int, **words: Any) -> Kernel:
    asked = {"work": "forward", "dtype": "fp16", "nbytes": 0.0, "shape": (groups, m, n, k)} | words
    return Kernel(Engine.MATMUL, flops=2.0 * groups * m * n * k, **asked)


RATES = Rates(flops_per_s=0.8033e15, bytes_per_s=0.5e12, units=132, tile_penalty=0.5, floor_s=FLOOR)


def test_products_follow_the_law_of_tiles() -> None:
    """Where no table speaks: of fp16, and of batches. Two bytes go in, and two come out."""
    own = compute(style="fused")
    expected = law_s(Product(3, 512, 1024, 2048, 2.0, 2.0), RATES)
    found = own.seconds(product(3, 512, 1024, 2048))
    assert found.seconds == pytest.approx(expected)
    assert found.efficiency == pytest.approx(2 * 3 * 512 * 1024 * 2048 / expected / 1e15)
    assert own.kernels(product(3, 512, 1024, 2048)) == 1
    wide = replace(RATES, flops_per_s=5e14 * 0.795)
    found = own.seconds(product(1, 512, 1024, 2048, dtype="f32"))
    assert found.seconds == pytest.approx(law_s(Product(1, 512, 1024, 2048, 4.0, 4.0), wide))
    assert found.kind == "assumed"


def test_eight_bits_are_cast_before() -> None:
    """Tensorwise: six bytes for every element of the gradient, and a kernel more."""
    own = compute(style="fused")
    rates = replace(RATES, flops_per_s=0.7087 * 2e15)
    expected = law_s(Product(1, 512, 1024, 2048, 1.0, 2.0), rates)
    for work, casts_s in (("forward", 0.0), ("wgrad", 0.0), ("dgrad", 512 * 2048 * 6 / 0.5e12 + FLOOR)):
        kernel = product(1, 512, 1024, 2048, dtype="fp8_tensorwise", work=work)
        assert own.seconds(kernel).seconds == pytest.approx(expected + casts_s)
        assert own.kernels(kernel) == (2 if casts_s else 1)
    scaled = law_s(Product(1, 512, 1024, 2048, 1.0 + 1 / 32, 2.0), rates)
    assert own.seconds(product(1, 512, 1024, 2048, dtype="mxfp8")).seconds == pytest.approx(scaled)


def test_experts_one_by_one() -> None:
    """Four products, each of the law's time; in eight bits each takes three kernels, one of which multiplies."""
    own = compute(style="fused", one_by_one=True)
    each = law_s(Product(1, 512, 1024, 2048, 2.0, 2.0), RATES)
    routed = product(4, 512, 1024, 2048, routed=True)
    assert own.seconds(routed).seconds == pytest.approx(4 * each)
    assert own.kernels(routed) == 4
    rates = replace(RATES, flops_per_s=0.7087 * 2e15)
    low = product(4, 512, 1024, 2048, dtype="fp8_tensorwise", routed=True)
    each = law_s(Product(1, 512, 1024, 2048, 1.0, 2.0), rates)
    assert own.kernels(low) == 12
    assert own.seconds(low).seconds == pytest.approx(4 * each + 4 * 512 * 2048 * 6 / 0.5e12 + 8 * FLOOR)
    together = compute(style="fused")
    assert together.kernels(low) == 2
    assert together.kernels(routed) == 1


def test_no_product_is_above_the_peak() -> None:
    """A device whose table says so was measured wrong: what is said is the peak."""
    quick = replace(PLAIN, kernel_floor_s=0.0)
    own = Compute(made(), values=quick, curves=CURVES, style="fused")
    found = own.seconds(product(1, 8192, 8192, 8192))
    assert found.seconds >= 2 * 8192**3 / 1e15
    assert found.efficiency <= 1


@pytest.mark.parametrize(("style", "seconds"), [("eager", 7e-6), ("fused", 7e-6), ("compiled", 3e-6), ("whole", 0.0)])
def test_what_a_launch_costs_the_host(style: str, seconds: float) -> None:
    assert compute(style=style).host_s == seconds


def test_a_price_is_remembered() -> None:
    own, kernel = compute(), attention()
    assert own.seconds(kernel) is own.seconds(kernel)


def measured(kernel: Kernel, rows: Any, own: Device | None = None, on: str = "H100-80G") -> Priced:
    """By a table of fp16 on a device."""
    where = own or made()
    table = table_for(where, PLAIN, rows, "fp16", on)
    return Compute(where, values=PLAIN, curves=CURVES, style="fused", table=table).seconds(kernel)


ROWS = tuple(((m, n, 1024), 1e-3 * m * n / 2**20) for m in (512, 1024) for n in (1024, 2048))


def test_a_measured_product_is_read_where_it_was_measured() -> None:
    """As it is on that device, as a fit elsewhere; of one product in that dtype alone."""
    assert measured(product(1, 512, 1024, 1024), ROWS) == Priced(
        5e-4, "measured", pytest.approx(2 * 512 * 2**20 / 5e-4 / 1e15)
    )
    assert measured(product(1, 512, 1024, 1024), ROWS, on="other").kind == "fitted"
    plain = compute(style="fused")
    for other in (product(2, 512, 1024, 1024), product(1, 512, 1024, 1024, dtype="bf16")):
        assert measured(other, ROWS) == plain.seconds(other)


def test_a_product_outside_of_a_table_may_be_inside_turned_around() -> None:
    """2,048 x 512 was not measured, and 512 x 2,048 was."""
    turned, there = (measured(product(1, m, n, 1024), ROWS) for m, n in ((2048, 640), (640, 2048)))
    assert (turned.seconds, turned.kind) == (there.seconds, "fitted")
    outside = product(1, 4096, 4096, 1024)
    assert measured(outside, ROWS) == compute(style="fused").seconds(outside)


def test_the_shipped_table_speaks_for_devices_of_its_chip() -> None:
    """A V100 of one's own, twice as fast in fp16, takes half as long for what was measured."""
    name, dtype, rows = shipped_rows()
    known = device(name)
    peaks = tuple((one, replace(peak, value=2 * peak.value)) for one, peak in known.peaks)
    own = replace(known, name="own", like=name, aliases=(), peaks=peaks)
    table = shipped_table(own, constants())
    assert table is not None
    shape, seconds = rows[7]
    assert table.exact_s(shape) == pytest.approx(seconds / 2)
    assert shipped_table(device("H100"), constants()) is None
    without = replace(own, peaks=tuple(pair for pair in peaks if pair[0] != dtype))
    assert shipped_table(without, constants()) is None
    found = shipped_table(known, constants())
    assert found is not None
    assert found.exact_s(shape) == seconds


@pytest.mark.parametrize(
    "change",
    [
        {name: value}
        for value in (0.0, 1.5)
        for name in ("hbm_efficiency", "attention_backward", "sustained_untuned", "sustained_ampere", "sustained_tpu")
    ]
    + [
        {name: -1e-9}
        for name in ("tile_penalty", "narrow_heads", "kernel_floor_s", "xla_floor_s", "host_s", "compiled_host_s")
    ],
)
def test_constants_of_compute_are_shares_and_times(change: dict[str, float]) -> None:
    assert replace(PLAIN, tile_penalty=0.0, host_s=0.0, hbm_efficiency=1.0)
    with pytest.raises(BadQuantity, match="the constants of compute"):
        replace(PLAIN, **change)


def test_a_kernel_says_its_sizes_and_its_work() -> None:
    for wrong in (
        Kernel(Engine.MATMUL, "forward", "bf16", 1.0, 1.0, (1, 2, 3)),
        Kernel(Engine.MATMUL, "forward", "bf16", 1.0, 1.0, (1, 0, 3, 4)),
        Kernel(Engine.MATMUL, "sideways", "bf16", 1.0, 1.0, (1, 1, 3, 4)),
        Kernel(Engine.ATTENTION, "forward", "bf16", 1.0, 1.0, (1, 1, 3, 4)),
    ):
        with pytest.raises(KernelMalformed):
            compute().seconds(wrong)
    assert compute().seconds(product(1, 1, 1, 1)).seconds > 0


# The law of tiles ----------------------------------------------------------------------------------------------------

UNIT = Rates(flops_per_s=2.0 * 4, bytes_per_s=4e30, units=4, tile_penalty=0.0, floor_s=0.0)
"""Four units of two FLOP/s each, and memory that takes no time."""


@pytest.mark.parametrize(
    ("groups", "m", "n", "seconds"),
    [
        (1, 256, 128, 64 * 64 * 64 * 2),  # eight tiles of 64 x 64 in two waves
        (2, 256, 128, 64 * 64 * 64 * 4),
        (1, 64, 64, 64 * 64 * 64),
    ],
)
def test_waves_of_tiles(groups: int, m: int, n: int, seconds: float) -> None:
    """One multiply-add per second and unit: a tile of 64 x 64 takes 64 of each of its elements."""
    found = law_s(Product(groups, m, n, 64, 1.0, 1.0), UNIT)
    assert found == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("elements", "width", "share"),
    [(64, 2.0, 1.0), (8, 2.0, 1.0), (108, 2.0, 0.5**0.5), (2, 2.0, 0.5), (50257, 2.0, 0.125**0.5)],
)
def test_rows_that_are_no_whole_vectors_slow_a_product(elements: int, width: float, share: float) -> None:
    assert aligned(elements, width, VECTOR) == share
    assert aligned(elements, width, 1) == 1.0
    beside = [law_s(Product(1, 256, 64, k, width, 16.0), UNIT) for k in (elements, -(-elements // 64) * 64)]
    assert beside[1] == pytest.approx(beside[0] * share)
    assert Product(1, 256, elements, 64, 16.0, width).aligned(VECTOR) == share


# Curves --------------------------------------------------------------------------------------------------------------


def test_between_points_and_widths() -> None:
    """1/efficiency is linear in 1/sequence and in 1/width."""
    curve = Curve("a", "b", "bf16", 128, True, ((1000, 0.5), (500, 0.25), (1000, 1 / 3)))
    assert curve.at(1000) == pytest.approx(1 / 2.5)  # of 2 and 3
    assert curve.at(5000) == pytest.approx(1 / 2.5)
    assert curve.at(500) == pytest.approx(0.25)
    assert curve.at(1 / (0.5 * (1 / 500 + 1 / 1000))) == pytest.approx(1 / 3.25)
    assert curve.at(250) == pytest.approx(1 / (4 + 1.5 * 2))
    assert Curve("a", "b", "bf16", 128, True, ((1000, 0.5),)).at(3) == 0.5
    falling = Curve("a", "b", "bf16", 128, True, ((1000, 0.25), (500, 0.5)))
    assert falling.at(250) == 0.5  # shorter ones are no quicker
    wide, narrow = FLAT, replace(FLAT, head_dim=64, points=((1024, 0.25),))
    both = Curves((wide, narrow), (), 0.5)

    def at(width: int, own: Curves = both) -> float:
        found = own.efficiency("flash3", "hopper", "bf16", width, True, 1024)
        assert found is not None
        return found[0]

    assert (at(128), at(64), at(256)) == pytest.approx((0.5, 0.25, 0.5))
    middle = 1 / (0.5 * (1 / 64 + 1 / 128))
    assert at(round(middle)) == pytest.approx(1 / 3, rel=5e-3)
    assert at(32) == pytest.approx(1 / (4 * (1 + 0.5)))  # twice as narrow: half of 1/efficiency more


@pytest.mark.parametrize(
    ("dtype", "width", "causal", "expected"),
    [
        ("bf16", 128, True, 0.5),
        ("bf16", 128, False, 0.25),
        ("fp8", 128, True, 0.8),  # of fp8 no unmasked one was measured: the masked one speaks
        ("fp8", 128, False, 0.8),
        ("fp16", 128, True, 0.5),  # nothing in that dtype: the first of all masked ones
        ("bf16", 96, True, 1 / (2 + 2 * (1 / 96 - 1 / 128) * 128)),  # a third of the way to 64 wide, at a quarter
        ("bf16", 512, True, 0.5),
        ("bf16", 32, True, 1 / (4 * 1.5)),
        ("bf16", 48, True, 1 / (4 * (1 + 0.5 / 3))),
    ],
)
def test_the_nearest_curve_speaks(dtype: str, width: int, causal: bool, expected: float) -> None:
    """By dtype, then by mask, then between widths, linear in 1/efficiency over 1/width."""
    narrow, low = replace(FLAT, head_dim=64, points=((1024, 0.25),)), replace(FLAT, dtype="fp8", points=((1024, 0.8),))
    own = Curves((FLAT, FULL, narrow, low, MATH), (), 0.5)
    found = own.efficiency("flash3", "hopper", dtype, width, causal, 1024)
    assert found == (pytest.approx(expected), "fitted")
    assert own.unfused(True, 1024) == 100.0  # written out, 128 wide, in 16 bits; only an unmasked one is known


def test_a_sequence_shorter_than_one_is_taken_for_one() -> None:
    curve = Curve("a", "b", "bf16", 128, True, ((4, 0.5), (2, 0.25)))
    assert curve.at(0.25) == curve.at(1) == pytest.approx(1 / (4 + 2 * 2))


def test_one_figure_scales_a_curve() -> None:
    """Of its own generation, or of FlashAttention-2; the figure is of long sequences, 128 wide, unmasked."""
    known = (FULL, FLAT, replace(FULL, generation="flash2", points=((1024, 0.8), (512, 0.4))))
    figures = (Figure("flash3", "new", 0.5, "datasheet"), Figure("cudnn", "new", 0.5, "assumed"))
    own = Curves((*known, MATH), figures, 0.5)
    assert own.efficiency("flash3", "new", "bf16", 128, True, 1024) == (pytest.approx(0.5 * 0.5 / 0.25), "datasheet")
    assert own.efficiency("cudnn", "new", "bf16", 128, False, 512) == (pytest.approx(0.5 * 0.4 / 0.8), "assumed")
    assert own.efficiency("splash", "new", "bf16", 128, False, 512) is None
    assert own.on("new") == ("cudnn", "flash3")
    assert own.on("hopper") == ("flash2", "flash3")
    assert own.running("cudnn", "hopper") == "flash2"
    assert own.running("splash", "tpu") == "math"
    assert own.running("flash3", "tpu") == "megatron"
    assert own.running("unheard of", "tpu") is None


@pytest.mark.parametrize("causal", [True, False])
def test_visible_scores_are_counted(causal: bool) -> None:
    for sq in (1, 3, 5):
        for sk in (sq, sq + 2):
            for window in (0, 1, 2, 4, 9):
                at = [(query + sk - sq, key) for query in range(sq) for key in range(sk)]
                near = [(q, k) for q, k in at if not window or (q - k < window and (causal or k - q < window))]
                seen = [(q, k) for q, k in near if not causal or k <= q]
                assert visible_share(sq, sk, causal, window) == pytest.approx(len(seen) / (sq * sk))


def test_chips() -> None:
    """fp16 runs at the rate of bf16; a device that nobody knows has one unit and the vendor's usual share."""
    chip = chip_of(device("H100"))
    assert chip.ceiling("fp16") is chip.ceiling("bf16")
    assert (chip.ceiling("bf16").value, chip.ceiling("bf16").kind) == (0.8033, "measured")
    assert chip.ceiling("fp8").value == 0.7087
    assert chip.ceiling("fp32") == chip.usual
    unknown = chip_of(replace(device("H100"), name="mine", like=""))
    assert (unknown.units, unknown.architecture, unknown.ceilings) == (1, "", ())
    assert chip_of(replace(device("H100"), name="mine", like="H100-80G")) == chip
    values = replace(constants(), sustained_hopper=0.5, sustained_ampere=0.25, sustained_untuned=0.5)
    assert [values.sustained(chip, style, "bf16") for style in ("fused", "eager", "compiled")] == [0.5, 0.25, 0.25]
    assert values.sustained(chip_of(device("A100")), "eager", "bf16") == 0.25
    assert values.floor_s(chip_of(device("TPU-v5p"))) == values.xla_floor_s
    assert values.floor_s(chip) == values.kernel_floor_s
    isolated = values.isolated()
    assert (isolated.sustained(chip, "eager", "bf16"), isolated.host_s) == (1.0, values.host_s)


def test_what_lasts_depends_on_bits_and_power() -> None:
    """Shares of one architecture by the bits of an operand, and more of each where a chip is given more power."""
    shares = {"sustained_blackwell": 0.5, "sustained_blackwell_8": 0.6, "sustained_blackwell_4": 0.4}
    values = replace(constants(), **shares, sustained_ultra=1.5, sustained_ampere=0.3)
    first, more = chip_of(device("B200")), chip_of(device("GB300"))
    assert [values.sustained(first, "fused", dtype) for dtype in ("bf16", "fp8", "nvfp4")] == [0.5, 0.6, 0.4]
    assert [values.sustained(more, "fused", dtype) for dtype in ("bf16", "fp8", "nvfp4")] == pytest.approx(
        [0.75, 0.9, 0.6]
    )
    assert values.sustained(chip_of(device("A100")), "fused", "fp8") == 0.3
    assert replace(values, sustained_ultra=9.0).sustained(more, "fused", "bf16") == 1.0


def test_heads_are_padded_to_what_kernels_are_made_for() -> None:
    assert [filled(width) for width in (32, 64, 108, 128, 160)] == [1.0, 1.0, 108 / 128, 1.0, 1.0]
    odd, even = (
        compute().seconds(attention(flops=1e12 * width, shape=(2, 132, 132, 1024, 1024, width, width)))
        for width in (144, 160)
    )
    assert odd.seconds == pytest.approx(even.seconds)  # as many products
