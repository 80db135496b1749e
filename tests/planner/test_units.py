"""Numbers as people read them can be read back, to the digits that are shown."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planner.plan import units

PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18, "Z": 1e21, "µ": 1e-6, "m": 1e-3}
BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
SHOWN = re.compile(r"(?P<number>-?[\d,.]+(?:e[+-]\d+)?) ?(?P<prefix>[KMGTP]i|[kMGTPEZµm]?)(?P<unit>\D*)")


def read(text: str) -> float:
    found = SHOWN.fullmatch(text)
    assert found, text
    return float(found["number"].replace(",", "")) * {**PREFIXES, **BINARY}[found["prefix"]]


amounts = st.floats(1, 1e17)


@pytest.mark.parametrize(
    "write", [units.nbytes, units.decimal_bytes, units.bytes_per_s, units.flops_per_s, units.count]
)
@given(number=amounts)
def test_amounts_are_read_back(write: object, number: float) -> None:
    assert callable(write)
    assert read(write(number)) == pytest.approx(number, rel=0.005, abs=0.5)


@given(st.floats(1e-9, 1e6))
def test_times_are_read_back(number: float) -> None:
    assert read(units.seconds(number)) == pytest.approx(number, rel=0.005)


@given(st.floats(1e-9, 1e6), st.floats(1, 2))
def test_a_longer_time_never_reads_as_shorter(number: float, factor: float) -> None:
    assert read(units.seconds(number * factor)) >= read(units.seconds(number)) * (1 - 1e-12)


@given(st.floats(0, 1))
def test_shares_are_whole_only_if_they_are(share: float) -> None:
    shown = units.percent(share)
    assert (shown == "100 %") == (share == 1)
    if not shown.startswith("<"):
        assert float(shown.removesuffix(" %")) == pytest.approx(100 * share, abs=0.00501)


WRITTEN: dict[str, tuple[object, dict[float, str]]] = {
    "count": (
        units.count,
        {
            0: "0",
            1234.4: "1,234",
            999_999: "999,999",
            1e6: "1.00 M",
            -2.5e7: "-25.0 M",
            123.4e9: "123 G",
            1e24: "1,000 Z",
        },
    ),
    "nbytes": (
        units.nbytes,
        {0: "0 B", 1023: "1,023 B", 1024: "1.00 KiB", 10240: "10.0 KiB", 2**20 * 100: "100 MiB", 2.0**60: "1,024 PiB"},
    ),
    "flops": (
        units.flops,
        {0: "0 FLOP", 999: "999 FLOP", 1000: "1.00 kFLOP", -1000: "-1.00 kFLOP", 2.5e16: "25.0 PFLOP"},
    ),
    "flops_per_s": (units.flops_per_s, {1e3: "1.00 kFLOP/s", 312e12: "312 TFLOP/s"}),
    "decimal_bytes": (units.decimal_bytes, {80e9: "80.0 GB", 1.5e12: "1.50 TB"}),
    "bytes_per_s": (units.bytes_per_s, {2.5e9: "2.50 GB/s"}),
    "seconds": (
        units.seconds,
        {
            0: "0 µs",
            1e-9: "0.001 µs",
            9.99e-4: "999 µs",
            1e-3: "1 ms",
            0.5: "500 ms",
            1: "1 s",
            1.2345: "1.23 s",
            999: "999 s",
            1000: "1,000 s",
            86400: "86,400 s",
        },
    ),
    "percent": (
        units.percent,
        {
            0: "0.00 %",
            0.5: "50.00 %",
            1: "100 %",
            0.99999: "< 100 %",
            0.9999: "99.99 %",
            2: "200.00 %",
            1.001: "100.10 %",
            10: "1000.00 %",
        },
    ),
}


def test_numbers_as_they_are_written() -> None:
    """Three digits from the first prefix on; the last one takes what is left."""
    for write, texts in WRITTEN.values():
        assert callable(write)
        assert {number: write(number) for number in texts} == texts
