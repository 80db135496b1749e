"""The law of matrix products, and what joins measured ones."""

from __future__ import annotations

from math import exp, log, log2, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost_models.compute.gemm import Product, Rates, gradients, law_s
from meshwright.cost_models.compute.gemm_table import Shape, features, table_of

RATES = Rates(flops_per_s=2e14, bytes_per_s=1.5e12, units=100, tile_penalty=0.1, floor_s=0.0)


def law(shape: Shape) -> float:
    return law_s(Product(1, *shape, 2.0, 2.0), RATES)


def test_one_tile_more_than_a_wave_costs_a_wave() -> None:
    """With a long k nothing but whole tiles counts: 100 units finish 100 tiles together, and 101 in twice the time,
    less what smaller tiles and cut sums save."""
    full, over = law((12_800, 256, 1 << 16)), law((12_801, 256, 1 << 16))
    ideal = 2 * 12_800 * 256 * (1 << 16) / 2e14
    assert full == pytest.approx(ideal, rel=0.01)
    assert 1.005 * full < over <= 2 * full


def test_a_short_k_is_bound_by_the_write() -> None:
    m = n = 16_384
    write_s = 2 * m * n / 1.5e12
    assert law((m, n, 64)) == pytest.approx(write_s + 2 * m * n * 64 / 2e14, rel=0.15)


@given(m=st.integers(1, 9000), n=st.integers(1, 9000), k=st.integers(1, 9000), groups=st.integers(1, 8))
def test_the_law_respects_the_hardware(m: int, n: int, k: int, groups: int) -> None:
    one = Product(groups, m, n, k, 2.0, 2.0)
    assert law_s(one, RATES) >= max(one.flops / 2e14, one.nbytes / 1.5e12) * (1 - 1e-12)
    assert law_s(one, RATES) <= groups * law((m, n, k)) * (1 + 1e-12)


SIZES = (128, 256, 512, 1024, 2048)


@given(factor=st.floats(0.5, 2.0), m=st.integers(128, 2048), n=st.integers(128, 2048), k=st.integers(128, 2048))
def test_a_device_that_is_off_by_a_factor_is_off_by_it_in_between(factor: float, m: int, n: int, k: int) -> None:
    rows = [((a, b, c), factor * law((a, b, c))) for a in SIZES for b in SIZES for c in SIZES]
    table = table_of(rows, law, RATES.units, "any", "fp16")
    assert table.interpolated_s((m, n, k)) == pytest.approx(factor * law((m, n, k)))


def test_outside_what_was_measured_a_table_is_silent() -> None:
    rows = [((a, b, c), law((a, b, c))) for a in SIZES for b in SIZES for c in SIZES]
    table = table_of(rows, law, RATES.units, "any", "fp16")
    for shape in ((64, 512, 512), (512, 4096, 512), (512, 512, 2049)):
        assert table.interpolated_s(shape) is None
        assert table.exact_s(shape) is None
    far_apart = table_of([((128, 128, 128), 1e-5), ((8192, 8192, 8192), 1e-2)], law, RATES.units, "any", "fp16")
    assert far_apart.interpolated_s((1024, 1024, 1024)) is None


# By hand -------------------------------------------------------------------------------------------------------------


def test_what_a_product_computes_and_moves() -> None:
    """Three of 2 x 5 over 7: 1.5 bytes for 7 x (2 + 5) elements that are read, 4 for 10 that are written."""
    one = Product(3, 2, 5, 7, 1.5, 4.0)
    assert one.flops == 3 * 2 * 70
    assert one.nbytes == 3 * (1.5 * 49 + 40)
    assert gradients(3, 2, 5, 7) == ((3, 2, 7, 5), (3, 5, 7, 2))


STEP_FLOPS = 64 * 64 * 2 * 64
FOUR = Rates(
    flops_per_s=4.0 * STEP_FLOPS,
    bytes_per_s=4.0 * 64 * 64 * 8,
    units=4,
    tile_penalty=0.0,
    floor_s=0.5,
    vector_bytes=1,
)
"""Four units, each of which multiplies 64 elements of k for a tile of 64 x 64 in a second, and writes eight bytes of
each of its elements in another."""


@pytest.mark.parametrize(
    ("groups", "k", "seconds"),
    [
        (1, 64, 1.25),  # two bytes are written of a sum that is whole
        (1, 65, 2.0),  # two steps and a write of two bytes, or one and a write of eight
        (1, 1024, 5.0),  # in four parts; eight need two waves of three seconds
        (2, 1024, 9.0),  # in two parts
        (4, 1024, 16.25),  # whole: every unit has a tile
        (5, 1024, 25.0),  # in four parts five waves of 5; in two 3 of 9, in eight 10 of 3, in sixteen 20 of 2
    ],
)
def test_a_sum_is_cut_where_units_are_idle(groups: int, k: int, seconds: float) -> None:
    assert law_s(Product(groups, 64, 64, k, 0.1, 2.0), FOUR) == pytest.approx(seconds + 0.5)


def test_no_product_is_faster_than_its_bytes() -> None:
    """64 x 128 elements of 1,000 bytes are read, and two bytes of 64 x 64 written, at four times 32,768 bytes/s."""
    assert law_s(Product(1, 64, 64, 64, 1000.0, 2.0), FOUR) == pytest.approx((8_192_000 + 8192) / 131_072 + 0.5)


@pytest.mark.parametrize(
    ("m", "n", "units", "seconds"),
    [
        (128, 256, 1, 8.0),  # one tile of 128 x 256, which is the best shape
        (256, 128, 1, 8.0),
        (128, 256, 2, 4 * (1 + 0.5 / 3)),  # two of 128 x 128: a third more loads per element, at half of that
        (64, 64, 1, 1 + 0.5 * 5 / 3),
        (64, 192, 3, 1 + 0.5 * 5 / 3),
        (64, 192, 1, 4 * (1 + 0.5 * 2 / 3)),  # one of 64 x 256, two thirds more; three of 64 x 64 take 5.5
    ],
)
def test_a_tile_that_is_nearer_to_a_square_loads_less(m: int, n: int, units: int, seconds: float) -> None:
    """1/128 + 1/256 is the least; penalty a half, and no time for memory."""
    rates = Rates(flops_per_s=1.0 * units * STEP_FLOPS, bytes_per_s=1e30, units=units, tile_penalty=0.5, floor_s=0.0)
    assert law_s(Product(1, m, n, 64, 1.0, 1.0), rates) == pytest.approx(seconds)


def test_what_a_table_looks_at() -> None:
    """Of 100 x 300 over 64 on four units: 1, 2 tiles of 128 x 256 in a wave, 3 of 64 x 64 by 5 in four, and so on."""
    (found,) = features(np.array([[100.0, 300.0, 64.0]]), 4)
    tiles = ((1, 2, 128, 256), (1, 3, 256, 128), (1, 3, 128, 128), (2, 5, 64, 64), (1, 5, 128, 64), (1, 5, 256, 64))
    waves = (1, 1, 1, 3, 2, 2)
    waste = [log2(wave * 4 * tm * tn / 30_000) for wave, (_, _, tm, tn) in zip(waves, tiles, strict=True)]
    assert found == pytest.approx([log2(100), 6, log2(300), *waste, log2(384 / 300), log2(512 / 300), 1, 1, 1])
    (even,) = features(np.array([[128.0, 256.0, 2.0]]), 1)
    assert even[-5:] == pytest.approx([0, 0, 0, 0, 1])
    assert even[:4] == pytest.approx([7, 1, 8, 0])


def test_between_shapes_a_table_is_an_ordinary_kriging() -> None:
    """Against the textbook system: weights that add up to one by a Lagrange multiplier, over covariances and the noise
    of each measurement."""
    lengths = [1.5, 1.5, 0.8, *[0.5] * 8, 2.0, 2.0, 4.0]
    shapes = [(128, 128, 128), (128, 256, 128), (256, 128, 192), (256, 512, 256), (200, 320, 128)]
    times = [3e-6, 5e-6, 4e-6, 2e-5, 9e-6]
    table = table_of(list(zip(shapes, times, strict=True)), law, RATES.units, "any", "fp16")
    asked = (160, 256, 160)
    rows = features(np.array([*shapes, asked], dtype=float), RATES.units)

    def covariance(one: int, other: int) -> float:
        away = [float(a - b) for a, b in zip(rows[one], rows[other], strict=True)]
        rough = sqrt(sum((gap / length) ** 2 for gap, length in zip(away, lengths, strict=True)))
        smooth = sqrt(3 * sum((gap / 2.0) ** 2 for gap in away[:3])) * 1.5
        return 0.1 * exp(-rough) + 0.3 * (1 + smooth) * exp(-smooth)

    count = len(shapes)
    system, right = np.ones((count + 1, count + 1)), np.ones(count + 1)
    system[count, count] = 0.0
    for one in range(count):
        right[one] = covariance(one, count)
        for other in range(count):
            noise = 0.03**2 + (0.5e-6 / times[one]) ** 2 if one == other else 0.0
            system[one, other] = covariance(one, other) + noise
    weights = np.linalg.solve(system, right)[:count]
    excess = [log(seconds / law(shape)) for shape, seconds in zip(shapes, times, strict=True)]
    expected = law(asked) * exp(sum(weight * one for weight, one in zip(weights, excess, strict=True)))
    assert table.interpolated_s(asked) == pytest.approx(expected, rel=1e-9)
