"""Configurations made to fit their cluster, with placements, shares of layers and mixes told; and the order in which
improvements are tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.ir.errors import PartialAcross
from meshwright.planner.question.pins import Config
from meshwright.planner.refine import fitted
from meshwright.planner.refine.candidate import Candidate
from meshwright.planner.refine.fitted import Fitted, Mixed
from meshwright.planner.refine.improvement import Bench, climb
from meshwright.planner.refine.order import Step, best, every, improved, one_of_each_kind
from tests.planner.told import config, price


def plan(step_s: float, **changes: Any) -> Candidate:
    name: Any = f"{step_s}"
    return Candidate(name, price(step_s), (1,), (), **changes)


def never() -> bool:
    return False


def bench(**own: Any) -> Any:
    return SimpleNamespace(**{"stop": never, "layers_asked": False} | own)


@dataclass(frozen=True)
class Times:
    """Neighbours that take so many times as long, of plans that take no less than so many seconds."""

    times: tuple[float, ...]
    least_s: float = 0.0
    asked: list[float] = field(default_factory=list)

    def accepts(self, plan: Candidate, bench: Bench) -> bool:
        return plan.step_s >= self.least_s

    def neighbours(self, given: Candidate, bench: Bench) -> Iterator[Candidate | None]:
        self.asked.append(given.step_s)
        yield None
        for one in self.times:
            yield replace(given, prediction=price(given.step_s * one))


@pytest.mark.parametrize(
    ("how", "least_s", "expected"),
    [
        ({}, 2.0, [8.0, 6.0, 4.5, 3.375, 2.53125, 1.8984375]),
        ({"steepest": True}, 2.0, [8.0, 4.0, 2.0, 1.0]),
        ({"moves": 2}, 2.0, [8.0, 6.0, 4.5]),
        ({}, 9.0, [8.0]),
        ({"moves": 0}, 0.0, [8.0]),
    ],
)
def test_from_neighbour_to_neighbour(how: Any, least_s: float, expected: list[float]) -> None:
    """The first that is better, or the best; as long as plans are accepted."""
    times = Times((1.0, 0.75, 0.5), least_s)
    assert climb(plan(8.0), times, bench(), **how).step_s == expected[-1]
    assert times.asked == expected[:-1]
    assert climb(plan(8.0), Times((1.0, 2.0)), bench()).step_s == 8.0


def seconds(plans: list[Candidate]) -> list[float]:
    return [one.step_s for one in plans]


def test_what_becomes_of_plans_joins_them_or_takes_their_place() -> None:
    """The first neighbour of each; or all of them, the best first."""
    plans = [plan(8.0), plan(4.0), plan(1.0)]
    instead = Step(Times((2.0, 0.5), 2.0), every, instead=True)
    assert seconds(improved(plans, [instead], bench())) == [16.0, 8.0, 1.0]
    assert seconds(improved(plans, [Step(Times((2.0, 0.5), 2.0), every)], bench())) == [1, 2, 4, 4, 8, 8, 16]
    assert seconds(improved(plans, [Step(Times(()), every, instead=True)], bench())) == [8, 4, 1]
    assert seconds(improved(plans, [instead, Step(Times((0.5,)), best)], bench())) == [1, 8, 8, 16]


def test_a_plan_that_a_step_brings_in_joins_the_others() -> None:
    """Whether it is accepted or not."""
    for least_s, expected in ((0.0, [8.0, 6.0]), (9.0, [8.0, 3.0])):
        step = Step(Times((2.0,), least_s), lambda plans, bench: [plan(3.0)], instead=True)
        assert seconds(improved([plan(8.0)], [step], bench())) == expected


def test_after_a_stop_nothing_more_is_made() -> None:
    times = Times((0.5,))
    stops = bench(stop=lambda: len(times.asked) == 1)
    assert seconds(improved([plan(8.0), plan(4.0)], [Step(times, every, instead=True)], stops)) == [4.0, 4.0]


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
def test_of_one_kind_mixes_are_made_once(changes: dict[str, Any], same: bool) -> None:
    """Of the first of them."""
    own = [plan(9.0, config=config(mbs=8)), plan(8.0, config=config(**{"mbs": 8} | changes))]
    assert list(one_of_each_kind(own, bench())) == own[: 2 - same]


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

    @dataclass(frozen=True)
    class Placement:
        offered: Any = ()
        limit: int = 0

        def neighbours(self, own: Candidate, bench: Any) -> Iterator[Candidate]:
            seen.append((own.decisions, self.offered, self.limit))
            found: Any = ("a", "b") if own.decisions == "plan" else (f"{own.decisions}'",)
            for name in found:
                yield replace(own, decisions=name, prediction=price(again_s if len(found) == 1 else 9.0))

    def climbed(own: Any, layers: Any, bench: Any, *, moves: int) -> Candidate:
        seen.append((own.decisions, layers.limit, moves))
        return replace(own, decisions=f"{own.decisions}'", prediction=price({"a": 3.0, "b": 2.0}[own.decisions]))

    monkeypatch.setattr(fitted, "Placement", Placement)
    monkeypatch.setattr(fitted, "climb", climbed)
    monkeypatch.setattr(fitted, "subsets", lambda cluster, needed: f"{needed} of {cluster.ranks}")
    monkeypatch.setattr(fitted, "assignment_of", lambda own: range(8))

    def counted(decisions: Any, prediction: Any, fold: Any) -> Candidate:
        return Candidate(decisions, prediction, (1, 2) if decisions[0] == "b" else (2, 1), (9,))

    own = bench(cluster=SimpleNamespace(ranks=ranks, heterogeneous=unlike), fold=lambda plan: "fold", candidate=counted)
    usual = config(pp=2)
    start: Any = Candidate("plan", price(9.0), (1, 2), (), usual, usual)  # type: ignore[arg-type]
    found = list(Fitted(limit).neighbours(start, own))
    assert [(one.decisions, one.step_s) for one in found] == expected
    moved = replace(usual, split="even", stage_blocks=(2, 1))
    assert {(one.idle, one.config, one.origin) for one in found} == {((9,), usual, usual), ((9,), moved, usual)}
    offered = "8 of 9" if ranks == 9 else ()
    few = min(limit, 60)
    steps: list[Any] = [("plan", offered, limit), ("a", few, 1), ("b", few, 1)]
    assert seen == steps + ([("b'", (), min(limit, 100))] if unlike else [])
    seen.clear()
    list(Fitted().neighbours(start, own))
    assert seen[0] == ("plan", offered, 60 if unlike else 400), "few prices on unlike devices"
    seen.clear()
    own.layers_asked = True
    list(Fitted(limit).neighbours(start, own))
    assert [name for name, *_ in seen] == ["plan", *(["a"] if unlike else [])], "no layer is moved"


def test_mixes_that_the_target_has_are_shared_out_the_best_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five one is refused; layers shared out may turn their order round."""
    times = {"a": 5.0, "b": 4.0, "c": 3.0, "d": 2.0, "e": 1.0}
    shared = {"b": 0.5, "c": 3.0, "d": 1.5}

    class Setting:
        modules = ()
        target = SimpleNamespace(target="any")

        def allowed(self, own: str, fold: str) -> str:
            if own == "e":
                raise PartialAcross(place="here", cause="a sum", fix="none")
            return own

        def price(self, program: str) -> Any:
            return price(times[program])

    def climbed(own: Any, layers: Any, bench: Any, *, moves: int) -> Any:
        return replace(own, decisions=own.decisions.upper(), prediction=price(shared[own.decisions]))

    def candidate(decisions: Any, prediction: Any, fold: Any, origin: Config) -> Candidate:
        return Candidate(decisions, prediction, origin=origin)

    monkeypatch.setattr(fitted, "mixes", lambda *_: iter(times))
    monkeypatch.setattr(fitted, "resolved", lambda modules, fold: None)
    monkeypatch.setattr(fitted, "climb", climbed)
    origin = config(tp=2)
    own = bench(setting=Setting(), fold=lambda plan: "fold", candidate=candidate, prices=None, asks=lambda *_: False)
    own.lowered = lambda plan, fold: plan
    own.cluster = SimpleNamespace(pools=(1, 2))
    assert Mixed().accepts(plan(1.0), own)
    found = list(Mixed().neighbours(plan(1.0, origin=origin), own))
    assert [(one.decisions, one.step_s, one.origin, one.config) for one in found] == [
        ("B", 0.5, origin, None),
        ("D", 1.5, origin, None),
        ("C", 3.0, origin, None),
    ]
    own.asks = lambda *names: "tp" in names
    assert not Mixed().accepts(plan(1.0), own), "meshes are not mixed where degrees are asked for"
    own.asks, own.cluster.pools = lambda *_: False, (1,)
    assert not Mixed().accepts(plan(1.0), own)
