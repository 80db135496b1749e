"""Profiles joined, and held against each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.cost_models.measured.file import measured_text
from meshwright.cost_models.measured.measured import Measured, ProductTime
from meshwright.cost_models.measured.several import differences, joined
from meshwright.ir.errors import ProfilesUnlike
from tests.cost_models.measured_cpu import hand

ONE = hand()
LATER = replace(ONE, name="later", made="2026-12-31", slowdown=0.5)


def slower(one: Measured, factor: float) -> Measured:
    """The products of the first number of busy ranks."""
    rows = tuple(replace(row, p50_s=factor * row.p50_s, p90_s=factor * row.p90_s) for row in one.busy[0].products)
    return replace(one, busy=(replace(one.busy[0], products=rows), *one.busy[1:]))


def test_a_profile_joined_with_itself_is_as_it_was() -> None:
    assert measured_text(joined([ONE, ONE], ONE.name)) == measured_text(ONE)


def test_the_latest_measurement_counts_and_none_is_lost() -> None:
    more = ProductTime(dtype="fp32", shape=(1, 5, 6, 7), p50_s=1.0, p90_s=1.0)
    first = replace(ONE, forced=True, busy=(replace(ONE.busy[0], products=(more,)), *ONE.busy[1:]))
    for order in ([first, slower(LATER, 2.0)], [slower(LATER, 2.0), first]):
        both = joined(order, "both")
        rows = {row.shape: row.p50_s for row in both.busy[0].products}
        assert rows == {row.shape: 2 * row.p50_s for row in ONE.busy[0].products} | {(1, 5, 6, 7): 1.0}
        assert (both.name, both.made, both.slowdown, both.forced) == ("both", "2026-12-31", 0.5, True)
    apart = joined([replace(ONE, busy=ONE.busy[:1], curves=()), replace(ONE, busy=ONE.busy[1:])], ONE.name)
    assert measured_text(apart) == measured_text(ONE)


def test_several_machines_are_not_joined() -> None:
    other = replace(LATER, identity=replace(ONE.identity, cores=64))
    with pytest.raises(ProfilesUnlike, match="64 cores"):
        joined([ONE, other], "both")


def test_differences_are_ratios_of_what_both_have() -> None:
    found = {(each.what, each.ranks): each for each in differences(ONE, slower(ONE, 3.0))}
    ranks = ONE.busy[0].ranks
    changed = found.pop(("products", ranks))
    assert (changed.mean, changed.least, changed.largest) == (pytest.approx(3), pytest.approx(3), pytest.approx(3))
    assert changed.count == len(ONE.busy[0].products)
    assert {what for what, _ in found} >= {
        "attention",
        "streams",
        "launches",
        "kernels in a step",
        "all_reduce of gloo",
    }
    assert all(each.least == each.largest == 1 for each in found.values())
