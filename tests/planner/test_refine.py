"""Configurations made to fit their cluster, with placements, shares of layers and mixes told."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.ir.errors import PartialAcross
from meshwright.planner.question.pins import Config
from meshwright.planner.refine import refine
from meshwright.planner.refine.candidate import Candidate
from meshwright.planner.refine.refine import improved, mixed, refined_plan
from tests.planner.told import config, price


def plan(step_s: float, **changes: Any) -> Candidate:
    name: Any = f"{step_s}"
    return Candidate(name, price(step_s), (1,), (), **changes)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is refined and mixed; by sequences of a micro-batch a plan takes so long, with mixes half as long."""
    found: list[str] = []

    def refined(setting: Any, own: Config, global_batch: int, prices: Any, *, limit: int) -> list[Candidate]:
        found.append(f"refined {own.mbs} {limit}")
        return [plan(float(own.mbs)), plan(0.1)]

    def mixes(setting: Any, own: Config, global_batch: int, prices: Any) -> list[Candidate]:
        found.append(f"mixed {own.mbs}")
        return [plan(own.mbs / 2), plan(own.mbs / 4)]

    monkeypatch.setattr(refine, "refined", refined)
    monkeypatch.setattr(refine, "mixed", mixes)
    return found


def all_of(configs: Iterable[Config], **how: Any) -> list[float]:
    given: Any = None, configs, 64, None
    return [one.step_s for one in improved(*given, **how)]


def test_the_best_of_each_and_mixes_the_best_first(asked: list[str]) -> None:
    configs = [config(mbs=6), config(mbs=2)]
    assert all_of(configs, limit=7) == [0.5, 1, 1.5, 2, 3, 6]
    assert asked == ["refined 6 7", "refined 2 7", "mixed 6", "mixed 2"]
    assert all_of(configs, mixing=False) == [2, 6]
    assert asked[4:] == ["refined 6 400", "refined 2 400"]


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        # Mixes choose ranks and stages anew; all else makes another kind.
        ({"tp": 2, "pp": 4, "schedule": "gpipe", "microbatches": 2, "vp": 2}, True),
        ({"dp": 2, "mbs": 4}, True),
        ({"dp": 2}, False),
        ({"cp": 2}, False),
        ({"ep": 2}, False),
        ({"context": "ring"}, False),
        ({"zigzag": True}, False),
        ({"sp": True}, False),
        ({"zero": 1}, False),
        ({"regather": False}, False),
        ({"recompute": "full"}, False),
        ({"offload": "optimizer"}, False),
    ],
)
def test_of_one_kind_mixes_are_made_once(asked: list[str], changes: dict[str, Any], same: bool) -> None:
    all_of([config(mbs=8), config(**{"mbs": 8} | changes)])
    assert [one for one in asked if one.startswith("mixed")] == ["mixed 8", f"mixed {changes.get('mbs', 8)}"][
        : 2 - same
    ]


def test_after_a_stop_nothing_more_is_taken_up(asked: list[str]) -> None:
    configs = [config(mbs=6), config(mbs=2)]
    assert all_of(configs, stop=lambda: len(asked) >= 1) == [6]
    asked.clear()
    assert all_of(configs, stop=lambda: len(asked) >= 3) == [1.5, 2, 3, 6]


@pytest.mark.parametrize(
    ("ranks", "unlike", "again_s", "expected"),
    [
        # Two placements, each with its layers shared out: 3 s and 2 s.
        (8, False, 1.0, [("b'", 2.0), ("a'", 3.0)]),
        # On unlike clusters the best is placed once more.
        (8, True, 1.0, [("b''", 1.0), ("b'", 2.0), ("a'", 3.0)]),
        (8, True, 2.0, [("b'", 2.0), ("a'", 3.0)]),
        # Idle ranks are offered.
        (9, False, 1.0, [("b'", 2.0), ("a'", 3.0)]),
    ],
)
@pytest.mark.parametrize("limit", [30, 400])
def test_placed_shared_out_and_placed_again(
    monkeypatch: pytest.MonkeyPatch, ranks: int, unlike: bool, again_s: float, expected: Any, limit: int
) -> None:
    seen: list[Any] = []
    cluster = SimpleNamespace(ranks=ranks, unlike=unlike)
    prices: Any = SimpleNamespace(cluster=cluster)

    def placements(own: Any, cluster: Any, judge: Any, *, subsets: Any, limit: int) -> list[Any]:
        seen.append((own, judge("x"), subsets, limit))
        return [SimpleNamespace(decisions=name) for name in "ab"]

    def shared_out(own: Any, fold: Any, lowered: Any, judge: Any, prices: Any, *, limit: int, allowed: Any) -> Any:
        seen.append((own, limit, allowed("plan")))
        return SimpleNamespace(decisions=f"{own}'", prediction=price({"a": 3.0, "b": 2.0}[own]))

    def placed(own: Any, cluster: Any, judge: Any, *, limit: int) -> Any:
        seen.append((own, limit))
        return Candidate(f"{own}'", price(again_s))  # type: ignore[arg-type]

    monkeypatch.setattr(refine, "placements", placements)
    monkeypatch.setattr(refine, "shared_out", shared_out)
    monkeypatch.setattr(refine, "placed", placed)
    monkeypatch.setattr(refine, "subsets", lambda cluster, needed: f"{needed} of {cluster.ranks}")
    monkeypatch.setattr(refine, "assignment_of", lambda own: range(8))
    monkeypatch.setattr(refine, "counts_of", lambda own, fold: (1, 2))
    monkeypatch.setattr(refine, "idle_ranks", lambda own, cluster: (9,))
    given: Any = "plan", None, lambda own: f"program of {own}", lambda program: f"price of {program}", prices
    found = refined_plan(*given, limit=limit)
    assert [(one.decisions, one.step_s) for one in found] == expected
    assert {(one.counts, one.idle, one.config, one.origin) for one in found} == {((1, 2), (9,), None, None)}
    offered = "8 of 9" if ranks == 9 else ()
    few = min(limit, 60)
    steps: list[Any] = [("plan", "price of program of x", offered, limit), ("a", few, "plan"), ("b", few, "plan")]
    assert seen == steps + ([("b'", min(limit, 100))] if unlike else [])


def test_mixes_that_the_target_has_are_shared_out_the_best_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five one is refused; layers shared out may turn their order round."""
    times = {"a": 5.0, "b": 4.0, "c": 3.0, "d": 2.0, "e": 1.0}
    shared = {"b": 0.5, "c": 3.0, "d": 1.5}

    class Setting:
        modules = ()
        target = SimpleNamespace(target="any")

        def fold(self, own: Config) -> str:
            return "fold"

        def allowed(self, own: str, fold: str) -> str:
            if own == "e":
                raise PartialAcross(place="here", cause="a sum", fix="none")
            return own

        def lowered(self, fold: str, own: str, global_batch: int) -> str:
            return own

        def price(self, program: str) -> Any:
            return price(times[program])

    def shared_out(own: str, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(decisions=own.upper(), prediction=price(shared[own]))

    monkeypatch.setattr(refine, "mixes", lambda *_: iter(times))
    monkeypatch.setattr(refine, "resolved", lambda modules, fold: None)
    monkeypatch.setattr(refine, "shared_out", shared_out)
    monkeypatch.setattr(refine, "counts_of", lambda own, fold: (1, 2))
    monkeypatch.setattr(refine, "idle_ranks", lambda own, cluster: ())
    origin = config(tp=2)
    given: Any = Setting(), origin, 64
    pools: Any = SimpleNamespace(cluster=SimpleNamespace(pools=(1, 2)))
    found = mixed(*given, pools)
    assert [(one.decisions, one.step_s, one.origin, one.config) for one in found] == [
        ("B", 0.5, origin, None),
        ("D", 1.5, origin, None),
        ("C", 3.0, origin, None),
    ]
    one: Any = SimpleNamespace(cluster=SimpleNamespace(pools=(1,)))
    assert mixed(*given, one) == []
