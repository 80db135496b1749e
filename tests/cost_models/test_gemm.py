"""The law of matrix products, and what joins measured ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost_models.gemm import Product, Rates, law_s
from meshwright.cost_models.gemm_table import Shape, table_of

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
