"""A search under pins of modules: its bound is of configurations without them, priced as long as they matter."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.ir.errors import PinValue
from meshwright.planner.search.pinned import PinnedSearch
from meshwright.planner.search.search import Search
from tests.planner.told import config, price


@dataclass(frozen=True)
class Setting:
    """It predicts so many seconds for a configuration by its sequences, if nothing is asked of modules."""

    modules: tuple[str, ...] = ("a pin",)

    def predict(self, one: Any, batch: int) -> Any:
        assert (self.modules, batch) == ((), 64)
        if one.mbs == 9:
            raise PinValue(place="", cause="", fix="")
        return price(float(one.mbs), 1.0 if one.zero else -1.0)


def test_the_bound_is_the_least_price_without_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is below the least price so far is priced; what is refused, or does not fit, leaves it as it was."""
    visited: list[object] = []
    settled: list[str] = []
    made: dict[str, Any] = {}
    monkeypatch.setattr(Search, "__init__", lambda self, setting, prices, space, most: made.update(most=most))
    monkeypatch.setattr(Search, "visit", lambda self, waiting: visited.append(waiting))
    monkeypatch.setattr(Search, "settle", lambda self: settled.append("settled"))
    given: Any = Setting()
    nothing: Any = None
    search = PinnedSearch(given, nothing, nothing, 7)
    assert (search.free, search.free_s, made) == (Setting(()), inf, {"most": 7})
    search.space = SimpleNamespace(global_batch=64)  # type: ignore[assignment]
    assert not search.masked(config())
    found = []
    for bound_s, own in (
        (1.0, config(mbs=9)),
        (1.0, config(mbs=2, zero=1)),
        (1.0, config(mbs=8)),
        (7.0, config(mbs=6)),
        (6.0, config(mbs=3)),
        (5.0, config(mbs=7)),
        (5.9, config(mbs=4)),
    ):
        search.visit(SimpleNamespace(bound_s=bound_s, config=own))  # type: ignore[arg-type]
        found.append(search.free_s)
    assert found == [inf, inf, 8.0, 6.0, 6.0, 6.0, 4.0]
    assert len(visited) == len(found)
    for lower_s, least_s in ((5.0, 4.0), (3.0, 3.0)):
        search.lower_s = lower_s
        search.settle()
        assert search.lower_s == least_s
    assert settled == ["settled"] * 2
