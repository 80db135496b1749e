"""A search under pins of modules: its bound is of configurations without them, which are priced as long as they matter;
and the line that says on a terminal how a search goes."""

from __future__ import annotations

import io
from dataclasses import dataclass
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.ir.errors import PinValue
from meshwright.planner.cli import progress as line_of
from meshwright.planner.cli.progress import Progress, line
from meshwright.planner.search.pinned import PinnedSearch
from meshwright.planner.search.search import Counts, Search
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


def searched(upper_s: float, *bounds_s: float, expanded: bool = True) -> Any:
    counts = Counts(bases=1200, shapes=34567, priced=89)
    heap = [SimpleNamespace(bound_s=bound_s) for bound_s in bounds_s]
    return SimpleNamespace(counts=counts, upper_s=upper_s, expanded=expanded, heap=heap)


COUNTED = "1,200 kernel and 34,567 pipeline configurations, 89 priced; "


def test_what_is_known_of_a_search() -> None:
    """The gap is that of what is left with the least bound, once all is bounded; it is never below nothing."""
    table = (
        (searched(inf, 1.0), "nothing fits yet"),
        (searched(2.0, 1.5, 1.0), "best 2 s, gap 25.00 %"),
        (searched(2.0, 3.0), "best 2 s, gap 0.00 %"),
        (searched(2.0), "best 2 s"),
        (searched(2.0, 1.0, expanded=False), "best 2 s"),
    )
    for search, said in table:
        assert line(search) == f"{COUNTED}{said}"


def test_the_line_is_written_over_ten_times_a_second_and_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        flushed = 0

        def isatty(self) -> bool:
            return True

        def flush(self) -> None:
            self.flushed += 1

    now = [50.0]
    monkeypatch.setattr(line_of, "time", SimpleNamespace(monotonic=lambda: now[0]))
    terminal, wiped = Terminal(), "\r\x1b[K"
    written = f"{wiped}{COUNTED}best 2 s"
    with Progress(terminal) as progress:
        for now_s, times in ((50.0, 1), (50.05, 1), (50.1, 2), (50.15, 2), (51.0, 3)):
            now[0] = now_s
            progress.told(searched(2.0))
            assert (terminal.getvalue(), terminal.flushed) == (written * times, times)
    assert (terminal.getvalue(), terminal.flushed) == (written * 3 + wiped, 4)
    silent, pipe = Terminal(), io.StringIO()
    with Progress(silent), Progress(pipe) as progress:
        progress.told(searched(2.0))
    assert (silent.getvalue(), pipe.getvalue()) == ("", "")
