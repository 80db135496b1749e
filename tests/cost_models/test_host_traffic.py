"""Bytes between hosts add up to those on tiers, where every rank is a host of its own."""

from __future__ import annotations

import pytest

from meshwright.cost_models.host_traffic import between_hosts
from tests.planner.refining import TINY, Case, hosts


@pytest.mark.parametrize(
    "pins", ["dp=4", "tp=2,pp=2,split=spread", "dp=2,cp=2,context=ring", "ep=4,dp=4", "pp=4,split=spread"]
)
def test_all_that_is_received_passes_between_some_hosts(pins: str) -> None:
    """Rings of two hosts use their one link in both directions."""
    case = Case(TINY, hosts(4, per_host=1), seq=128, batch=16)
    fold, plan = case.plan(pins)
    found = between_hosts(case.lowered(fold, plan), case.prices)
    told = case.price(fold, plan).traffic
    assert sum(found.values()) == pytest.approx(sum(nbytes for _, nbytes in told), rel=1e-9)
    assert all(one < other for one, other in found)


def test_what_stays_in_a_host_is_not_counted() -> None:
    case = Case(TINY, hosts(1), seq=128, batch=16)
    fold, plan = case.plan("tp=2,dp=2")
    assert between_hosts(case.lowered(fold, plan), case.prices) == {}
