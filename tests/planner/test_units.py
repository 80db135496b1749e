"""Numbers as people read them can be read back, to the digits that are shown."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planner import units

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
