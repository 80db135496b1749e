"""From a question to an answer, with searches and what becomes of their finalists told: which cluster, which plan, and
what is proved of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.cost_models.cluster import Cluster
from meshwright.cost_models.cluster_toml import read
from meshwright.planner import solve as module
from meshwright.planner.refine import Refined
from meshwright.planner.roomiest import Roomiest
from meshwright.planner.search import Found
from meshwright.planner.solve import Solved, Stop, parts, solve
from meshwright.planner.wishes import Asked
from tests.planner.told import config, price

FOUR = """
[[pool]]
name = "all"
hosts = 4
gpu = "A100-80G"
gpus_per_host = 1
price_per_gpu_hour = 3600
"""
"""A second of a device costs one."""

POOLS = """
[[pool]]
name = "fast"
hosts = 1
gpu = "H100"
gpus_per_host = 2
[[pool]]
name = "slow"
hosts = 3
gpu = "A100-80G"
gpus_per_host = 2
[[link]]
between = ["fast", "slow"]
kind = "infiniband"
gbps = 200
latency_us = 5
"""


@dataclass
class Told:
    """A search: what it finds in how many steps, and what it proves."""

    best_s: float | None
    lower_s: float
    rounds: int = 1
    expanded: bool = True
    baselines: dict[str, str] = field(default_factory=dict)
    ceiling_s: float = inf
    settled: int = 0
    improved: list[str] = field(default_factory=list)
    setting: Any = None
    space: Any = field(default_factory=lambda: SimpleNamespace(global_batch=64))

    @property
    def best(self) -> Found | None:
        return None if self.best_s is None else Found(config(mbs=3), price(self.best_s))

    def run(self, known: Any, first: Any) -> Iterator[None]:
        assert (known, first) == ("baselines", ["first"])
        for _ in range(self.rounds):
            yield

    def settle(self) -> None:
        self.settled += 1


def refined(step_s: float, **configs: Any) -> Refined:
    plan: Any = f"plan of {step_s} s"
    return Refined(plan, price(step_s), (1,), (), **configs)


def answered(
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    searches: list[Told],
    finals: dict[float | None, tuple[Refined | None, tuple[str, ...]]] | None = None,
    *,
    stop: Stop | None = None,
    told: Any = None,
    objective: str = "time",
) -> Solved:
    """One search after the other is made, on the whole cluster first."""
    left = iter(searches)
    monkeypatch.setattr(module, "_search", lambda ask, setting, asked, kind: next(left))
    monkeypatch.setattr(module, "_part", lambda ask, setting, asked, cluster: (Ask(cluster), setting, next(left)))
    monkeypatch.setattr(module, "_first", lambda setting, asked, space: ["first"])
    monkeypatch.setattr(module, "baselines", lambda space: "baselines")
    monkeypatch.setattr(module, "resolved", lambda modules, fold: None)
    monkeypatch.setattr(module.partial, "improve", lambda search, stop: search.improved.append("partial"))
    monkeypatch.setattr(module.hosted, "improve", lambda search, stop: search.improved.append("hosted"))
    monkeypatch.setattr(module, "finished", lambda search, asked, stop: (finals or {}).get(search.best_s, (None, ())))
    given: Any = Ask(read(text)), Setting(), Asked(), stop, told
    return solve(*given, objective=objective)


@dataclass(frozen=True)
class Ask:
    cluster: Cluster


@dataclass(frozen=True)
class Setting:
    modules: tuple[Any, ...] = ()
    wishes: Any = None

    @property
    def folds(self) -> Any:
        return SimpleNamespace(first=lambda batch: SimpleNamespace(fold=None))

    def decisions(self, own: Any, global_batch: int) -> Any:
        return own, global_batch


def test_what_a_plan_may_be_for() -> None:
    """Numbers of hosts that divide those of one pool; of several each alone, unless hosts are measured."""
    assert [one.hosts for one in parts(read(FOUR))] == [4, 2, 1]
    assert [one.hosts for one in parts(read(POOLS))] == [4, 1, 3]
    assert [one.links for one in parts(read(POOLS))[1:]] == [(), ()]
    measured = f"link_matrix = {[[0.0 if a == b else 9.0 for b in range(4)] for a in range(4)]}\n{FOUR}"
    assert [one.hosts for one in parts(read(measured))] == [4]


def test_the_answer_of_a_search_or_what_became_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(10.0, 8.0, rounds=3)
    heard: list[Any] = []
    solved = answered(monkeypatch, FOUR, [told], {10.0: (None, ("note",))}, told=heard.append)
    assert (solved.complete, solved.lower, solved.notes, solved.hosts) == (True, 8.0, ("note",), 0)
    assert solved.best == told.best
    assert solved.decisions == (config(mbs=3), 64)
    assert (solved.proved, solved.gap) == (8.0, pytest.approx(0.2))
    assert heard == [told] * 3
    assert told.improved == ["partial", "hosted"]
    for configs in ({"config": config(tp=2), "origin": config(tp=4)}, {"origin": config(tp=2)}):
        better = refined(6.0, **configs)
        solved = answered(monkeypatch, FOUR, [told], {10.0: (better, ())})
        assert solved.best == Found(config(tp=2), price(6.0))
        assert solved.decisions == "plan of 6.0 s"
        assert (solved.lower, solved.proved, solved.gap) == (8.0, 6.0, 0.0)
    none = answered(monkeypatch, FOUR, [Told(None, 8.0)])
    assert (none.best, none.proved, none.gap) == (None, 8.0, 1.0)


@pytest.mark.parametrize("expanded", [True, False])
def test_a_search_that_is_told_to_stop_settles_what_it_knows(monkeypatch: pytest.MonkeyPatch, expanded: bool) -> None:
    stop = Stop(interrupted=True)
    told = Told(10.0, 8.0, rounds=3, expanded=expanded)
    heard: list[Any] = []
    solved = answered(monkeypatch, FOUR, [told], stop=stop, told=heard.append)
    assert not solved.complete
    assert (told.settled, len(heard), told.improved) == (int(expanded), 1, [])


def test_the_least_memory_is_not_refined(monkeypatch: pytest.MonkeyPatch) -> None:
    class Least(Told, Roomiest):  # type: ignore[misc]
        lower_bytes = 70.0

    solved = answered(monkeypatch, POOLS, [Least(10.0, 8.0)], {10.0: (refined(1.0), ("note",))}, objective="memory")
    assert (solved.lower, solved.refined, solved.notes, solved.objective) == (70.0, None, (), "memory")
    assert (solved.score(Found(config(), price(9.0, -20.0))), solved.gap) == (80.0, pytest.approx(0.3))


def test_a_pool_alone_may_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is searched below the best so far; what is proved holds of all."""
    whole, fast, slow = Told(10.0, 8.0, baselines={"a": "whole"}), Told(7.0, 6.5), Told(None, 5.0)
    fast.baselines = {"a": "fast", "b": "fast"}
    solved = answered(monkeypatch, POOLS, [whole, fast, slow], {7.0: (refined(6.0, config=config()), ("large",))})
    assert solved.search is fast  # type: ignore[comparison-overlap]
    assert solved.ask.cluster.pools[0].name == "fast"
    assert (whole.ceiling_s, fast.ceiling_s, slow.ceiling_s) == (inf, 10.0, 6.0)
    assert (solved.hosts, solved.lower, solved.complete) == (4, 5.0, True)
    assert solved.notes == ("pool fast alone is faster than with the others", "large")
    assert fast.baselines == {"a": "whole", "b": "fast"}
    assert fast.improved == []


def test_no_pool_alone_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Told(10.0, 4.0)
    solved = answered(monkeypatch, POOLS, [whole, Told(None, 6.5), Told(None, 5.0)])
    assert solved.search is whole  # type: ignore[comparison-overlap]
    assert (solved.hosts, solved.lower, solved.notes, solved.complete) == (0, 4.0, (), True)
    nothing = answered(monkeypatch, POOLS, [Told(None, 4.0), pool := Told(9.0, 6.5), Told(None, 5.0)])
    assert pool.ceiling_s == inf
    assert nothing.best == pool.best


def test_without_time_for_a_pool_nothing_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Stop()

    def told(search: Any) -> None:
        stop.interrupted = search is last

    searches = [Told(10.0, 8.0), last := Told(None, 6.5), Told(1.0, 0.5)]
    solved = answered(monkeypatch, POOLS, searches, stop=stop, told=told)
    assert (solved.best, solved.lower, solved.complete) == (searches[0].best, 0.0, False)


@pytest.mark.parametrize(
    ("found", "hosts", "lower", "ceilings"),
    [
        # 4 x 10, then 2 x 15, which one host would have to beat with 30 s.
        ([(10.0, 9.0), (15.0, 14.0), (None, 30.0)], 2, 28.0, [inf, 20.0, 30.0]),
        ([(10.0, 6.0), (None, 20.0), (None, 40.0)], 4, 24.0, [inf, 20.0, 40.0]),
        ([(None, 9.0), (None, 14.0), (29.0, 28.0)], 1, 28.0, [inf, inf, inf]),
        ([(None, 9.0), (None, 14.0), (None, 30.0)], 4, 0.0, [inf, inf, inf]),
    ],
)
def test_the_least_cost_on_any_number_of_hosts(
    monkeypatch: pytest.MonkeyPatch, found: Any, hosts: int, lower: float, ceilings: list[float]
) -> None:
    searches = [Told(*one) for one in found]
    finals: Any = {best_s: (refined(0.5 * best_s, config=config()), ("note",)) for best_s, _ in found if best_s}
    solved = answered(monkeypatch, FOUR, searches, finals, objective="cost")
    assert solved.ask.cluster.hosts == hosts
    assert (solved.hosts, solved.lower, solved.complete, solved.objective) == (4, lower, True, "cost")
    assert [one.ceiling_s for one in searches] == ceilings
    last = searches[(4, 2, 1).index(hosts)]
    assert solved.search is last  # type: ignore[comparison-overlap]
    assert [one.improved for one in searches] == [["partial", "hosted"] if one is last else [] for one in searches]
    if last.best_s:
        assert solved.best is not None
        assert solved.score(solved.best) == hosts * last.best_s / 2
        assert solved.notes == ("note",)


def test_hosts_that_were_not_searched_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Stop()

    def told(search: Any) -> None:
        stop.interrupted = search is second

    searches = [Told(10.0, 9.0), second := Told(15.0, 14.0), Told(1.0, 1.0)]
    solved = answered(monkeypatch, FOUR, searches, stop=stop, told=told, objective="cost")
    assert (solved.lower, solved.complete, solved.ask.cluster.hosts, searches[2].ceiling_s) == (0.0, False, 2, inf)
    assert second.improved == []


def test_a_time_to_stop_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "monotonic", lambda: 5.0)
    assert [Stop(until_s=until_s)() for until_s in (4.9, 5.0, 5.1, None)] == [True, True, False, False]
    assert Stop(until_s=9.0, interrupted=True)()
