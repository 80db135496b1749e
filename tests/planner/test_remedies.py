"""What would help where nothing fits, or nothing is emitted: which changes are tried, in which order, and what is said.

Searches under a change are played: they find a plan where the case says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.cost_models.evaluate import Evaluator
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.ir.errors import HeadsIndivisible, NotExpressible, NothingEmitted, PinValue
from meshwright.ir.target.capabilities import ANY
from meshwright.ir.target.workload import Workload
from meshwright.planner.answer import relax, remedies
from meshwright.planner.answer.relax import Relaxation, relaxations, tried
from meshwright.planner.answer.solve import Stop
from meshwright.planner.question.ask import Ask
from meshwright.planner.question.constraints import Asked, Constraints
from meshwright.planner.question.module_pins import ModulePin
from meshwright.planner.question.pins import Pins
from meshwright.planner.question.pricing import Folds, Setting, target_of
from meshwright.planner.search.emittable import Passed
from meshwright.planner.search.search import Found
from tests.planner.handmade import config, prediction

FIRST, SECOND = (ModulePin("fix", f"layers.*.{name}", "sharding", ("column",)) for name in ("mlp", "attn"))
HELPS = Found(config("tp=4,sp=off,zero=0", 8), prediction())
Question = tuple[Ask, Setting, Asked]


@dataclass
class Searches:
    """Searches that find `HELPS` where `good` says so, and what they were asked."""

    good: Callable[[Ask, Setting, Asked], bool]
    asked: list[Question]

    def __call__(self, ask: Ask, setting: Setting, asked: Asked, until: object = None) -> Found | None:
        self.asked.append((ask, setting, asked))
        return HELPS if self.good(ask, setting, asked) else None


def question(batch: int = 24, seq: int = 1024, asked: Asked | None = None, cluster: str = "2x2xA100") -> Any:
    """A search that has found nothing."""
    machines, workload = read_cluster(cluster), Workload(global_batch=batch, seq=seq)
    source: Any = "source"
    folds = Folds(source, seq, 5)
    ask = Ask(
        model="m",
        cluster_reference=cluster,
        cluster=machines,
        workload=workload,
        global_batch=batch,
        target=target_of("torch-cuda"),
        pins=Pins(),
        seed=5,
    )
    price: Any = None
    setting = Setting(folds, machines.ranks, workload, ask.target, price)
    search = SimpleNamespace(
        emission=None,
        prices=SimpleNamespace(books=None),
        coarse=SimpleNamespace(resting_bytes=1.0),
        common=SimpleNamespace(capacity=1.0),
        hopeless=False,
    )
    return SimpleNamespace(
        ask=ask,
        setting=setting,
        asked=asked or Asked(),
        global_batch=batch,
        stop=Stop(),
        search=search,
        best=None,
    )


def helped(
    monkeypatch: pytest.MonkeyPatch, solved: Any, good: Callable[[Ask, Setting, Asked], bool]
) -> tuple[list[Relaxation], list[Question]]:
    searches = Searches(good, [])
    monkeypatch.setattr(relax, "tried", searches)
    return list(relaxations(solved, None)), searches.asked


# Where nothing fits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "enough", "tried_", "said"),
    [
        (24, 6, [6, 12], ["a global batch of 6 sequences"]),
        (24, 12, [6, 12], ["a global batch of 12 sequences"]),
        (24, 2, [6, 3], []),  # a batch below the number of ranks is another matter
        (7, 7, [], []),
        (8192, 2000, [128, 1024, 2048], ["a global batch of 1,024 sequences"]),
        (8192, 64, [128], []),
    ],
)
def test_smaller_batches(
    monkeypatch: pytest.MonkeyPatch, batch: int, enough: int, tried_: list[int], said: list[str]
) -> None:
    """Halved, at most six times, and while they can be; a plan fits up to some batch. The smallest is tried first."""
    solved = question(batch, seq=1001)
    found, asked = helped(
        monkeypatch,
        solved,
        lambda ask, setting, _: setting.workload.global_batch != batch and setting.workload.global_batch <= enough,
    )
    assert [one.what for one in found if one.kind == "batch"] == said
    batches = [setting.workload.global_batch for ask, setting, _ in asked if ask is solved.ask]
    assert [one for one in batches if one != batch] == tried_


@pytest.mark.parametrize(
    ("seq", "enough", "tried_", "said"),
    [
        (1024, 256, [128, 256, 512], ["sequences of 256 tokens"]),
        (1024, 1, [128], []),
        (1000, 1, [250], []),
        (129, 1, [], []),
        (65536, 3000, [1024, 8192, 2048, 4096], ["sequences of 2,048 tokens"]),
        (65536, 1, [1024], []),
    ],
)
def test_shorter_sequences(
    monkeypatch: pytest.MonkeyPatch, seq: int, enough: int, tried_: list[int], said: list[str]
) -> None:
    """Halved, at most six times, down to 128 tokens; the model is captured anew with each."""
    found, asked = helped(monkeypatch, question(seq=seq), lambda ask, *_: ask.workload.seq <= min(enough, seq - 1))
    assert [one.what for one in found if one.kind == "sequence"] == said
    shorter = [(ask, setting) for ask, setting, _ in asked if ask.workload.seq != seq]
    assert [ask.workload.seq for ask, _ in shorter] == tried_
    for ask, setting in shorter:
        folds = setting.folds
        assert (folds.source, folds.seq, folds.seed, folds.found) == ("source", ask.workload.seq, 5, {})
        assert setting.workload is ask.workload


def margin_of(setting: Setting) -> float | None:
    price = setting.price
    return price.prices.profile.memory.margin_share if isinstance(price, Evaluator) else None


@pytest.mark.parametrize(("capacity", "kinds"), [(0.99, {"margin", "hosts"}), (0.94, {"hosts"})])
def test_what_rests_in_memory_is_not_made_smaller_by_the_batch(
    monkeypatch: pytest.MonkeyPatch, capacity: float, kinds: set[str]
) -> None:
    """One byte rests on every device, of 0.99 or 0.94 that may be used, and an eighteenth more with half the margin."""
    solved = question()
    solved.search.common.capacity, solved.search.hopeless = capacity, True
    found, _ = helped(monkeypatch, solved, lambda *_: True)
    assert {one.kind for one in found} == kinds


def test_half_the_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    solved = question()
    found, asked = helped(monkeypatch, solved, lambda ask, setting, _: margin_of(setting) == 0.05)
    assert [(one.kind, one.what, one.found) for one in found] == [
        ("margin", "keep 5% of the memory free instead of 10%", HELPS)
    ]
    (setting,) = [setting for _, setting, _ in asked if margin_of(setting) == 0.05]
    assert (setting.folds, setting.ranks, setting.target) == (solved.setting.folds, 4, solved.ask.target)


def test_more_hosts_of_the_first_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hosts of two: three, four, eight, then between them. Ranks are those of the larger
    cluster, margins as ever."""
    found, asked = helped(monkeypatch, question(seq=1001, batch=7), lambda ask, *_: ask.cluster.hosts >= 5)
    assert [(one.kind, one.what) for one in found] == [("hosts", "5 hosts instead of 2")]
    more = [(ask, setting) for ask, setting, _ in asked if ask.cluster.hosts != 2]
    assert [ask.cluster.hosts for ask, _ in more] == [3, 4, 8, 6, 5]
    assert [setting.ranks for _, setting in more] == [6, 8, 16, 12, 10]
    assert {margin_of(setting) for _, setting in more} == {0.1}


def test_wishes_come_first_and_hosts_last(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(Constraints({"tp": (2,), "sp": (True,)}, {"zero": (3,)}), modules=(FIRST, SECOND))
    found, _ = helped(monkeypatch, question(asked=asked), lambda *_: True)
    assert [(one.kind, one.what) for one in found] == [
        ("constraint", "ask nothing of tp: with tp=4 it fits"),
        ("constraint", "ask nothing of sp: with sp=off it fits"),
        ("constraint", "ask nothing of zero: with zero=0 it fits"),
        ("constraint", "take back --fix layers.*.mlp:sharding=column"),
        ("constraint", "take back --fix layers.*.attn:sharding=column"),
        ("margin", "keep 5% of the memory free instead of 10%"),
        ("batch", "a global batch of 12 sequences"),
        ("sequence", "sequences of 512 tokens"),
        ("hosts", "3 hosts instead of 2"),
    ]
    some, _ = helped(monkeypatch, question(asked=asked), lambda _, __, left: left.modules == (FIRST,))
    assert [one.what for one in some] == ["take back --fix layers.*.attn:sharding=column"]
    only, _ = helped(monkeypatch, question(asked=asked), lambda _, __, left: left.names == ("tp", "zero"))
    assert [one.what for one in only] == ["ask nothing of sp: with sp=off it fits"]


@pytest.mark.parametrize(("until", "searched"), [(None, True), (Stop(1e12), True), (Stop(0.0), False)])
def test_a_try_ends_with_the_first_plan_or_in_time(
    monkeypatch: pytest.MonkeyPatch, until: Stop | None, searched: bool
) -> None:
    stops: list[Stop] = []

    def solve(ask: object, setting: object, asked: object, stop: Stop, *, any_fits: bool) -> Any:
        assert any_fits
        stops.append(stop)
        return SimpleNamespace(best=HELPS)

    monkeypatch.setattr(relax, "solve", solve)
    solved = question()
    assert tried(solved.ask, solved.setting, Asked(), until) == (HELPS if searched else None)
    assert [stop.until_s for stop in stops] == ([until.until_s if until else None] if searched else [])


# Where nothing is emitted --------------------------------------------------------------------------------------------


def fixed(monkeypatch: pytest.MonkeyPatch, solved: Any, good: Callable[[Ask, Setting, Asked], bool]) -> str:
    monkeypatch.setattr(remedies, "tried", Searches(good, []))
    return remedies.remedy(solved)


BOTH = Asked(Constraints({"tp": (2,)}, {"sp": (False,)}), modules=(FIRST,))
WHOLE = (
    "ask for nothing: there is a plan, tp=4,pp=1,dp=2,zero=0,mbs=1,microbatches=4,recompute=none,schedule=1f1b,sp=off"
)
NO_TP = "ask nothing of tp: with tp=4 there is a plan"
TARGET = "plan with --target any, which is for prices: no code is written for it"


@pytest.mark.parametrize(
    ("asked", "good", "said"),
    [
        (
            BOTH,
            lambda _, __, left: left != BOTH,
            f"{NO_TP}; or ask nothing of sp: with sp=off there is a plan; or take back {FIRST}",
        ),
        (BOTH, lambda _, __, left: not left.modules, f"take back {FIRST}"),
        (BOTH, lambda _, __, left: "tp" not in left.names, NO_TP),
        (BOTH, lambda _, __, left: left == Asked(), WHOLE),
        (Asked(modules=(FIRST, SECOND)), lambda _, __, left: left == Asked(), WHOLE),
        (Asked(modules=(FIRST,)), lambda ask, _, left: ask.target is ANY, TARGET),
        (BOTH, lambda ask, setting, _: ask.target is ANY and setting.target is ANY and not setting.bodies, TARGET),
        (BOTH, lambda *_: False, ""),
    ],
)
def test_what_helps_where_nothing_is_emitted(
    monkeypatch: pytest.MonkeyPatch, asked: Asked, good: Callable[[Ask, Setting, Asked], bool], said: str
) -> None:
    """Each wish by itself; all of them only where none helps alone; the target only where constraints do not."""
    solved = question(asked=asked)
    bodies: Any = {"old": "of another target"}
    solved.setting = replace(solved.setting, bodies=bodies)
    assert fixed(monkeypatch, solved, good) == said


ODD, EVEN = (PinValue(place=f"axis {name}", cause=f"{name} is odd", fix=f"no {name}") for name in ("tp", "cp"))
OTHER = HeadsIndivisible(place="heads", cause="there are 3", fix="take 2")


def passed(*refusals: Any) -> list[Passed]:
    return [Passed(config(f"tp={2**at},zero=0", 8), prediction(), one) for at, one in enumerate(refusals)]


SAID = "tp=1,pp=1,dp=8,zero=0,mbs=1,microbatches=1,recompute=none,schedule=1f1b"


@pytest.mark.parametrize(("asked", "place"), [(Asked(), "plan, m"), (BOTH, f"plan, {BOTH.text}")])
def test_the_refusal_of_what_is_not_emitted(monkeypatch: pytest.MonkeyPatch, asked: Asked, place: str) -> None:
    """Of one code alone it has that, of several its own; without a remedy, that of the first."""
    solved = question(asked=asked)
    assert remedies.unwritten(solved) is None
    solved.search.emission = SimpleNamespace(passed=[])
    assert remedies.unwritten(solved) is None
    solved.search.emission.passed = passed(ODD, EVEN)
    solved.best = HELPS
    assert remedies.unwritten(solved) is None
    solved.best = None
    monkeypatch.setattr(remedies, "tried", Searches(lambda *_: False, []))
    one = remedies.unwritten(solved)
    assert isinstance(one, PinValue)
    why = f"no code is written for any plan that fits: {PinValue.code} at axis tp, tp is odd ({SAID}"
    assert (one.place, one.cause, one.fix) == (place, f"{why}, and 1 more)", "no tp")
    solved.search.emission.passed = passed(ODD, OTHER)
    two = remedies.unwritten(solved)
    assert isinstance(two, NothingEmitted)
    rest = SAID.replace("tp=1,pp=1,dp=8", "tp=2,pp=1,dp=4").replace("microbatches=1", "microbatches=2")
    assert two.cause == f"{why}); {HeadsIndivisible.code} at heads, there are 3 ({rest})"
    monkeypatch.setattr(remedies, "tried", Searches(lambda ask, *_: ask.target is ANY, []))
    helps = remedies.unwritten(solved)
    assert helps is not None
    assert helps.fix == TARGET


def test_a_refusal_of_the_target_says_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    solved = question(asked=Asked(modules=(FIRST,)))
    refusal = NotExpressible(place="here", cause="it cannot", fix="do without")
    monkeypatch.setattr(remedies, "tried", Searches(lambda *_: False, []))
    assert remedies.inexpressible(solved, refusal) is refusal
    monkeypatch.setattr(remedies, "tried", Searches(lambda *_: True, []))
    assert remedies.inexpressible(solved, OTHER) is OTHER
    told = remedies.inexpressible(solved, refusal)
    assert isinstance(told, NotExpressible)
    assert (told.place, told.cause, told.fix) == ("here", "it cannot", f"take back {FIRST}")


@pytest.mark.parametrize(("asked", "tries"), [(Asked(), 1), (Asked(modules=(FIRST,)), 2), (BOTH, 5)])
def test_a_wish_that_stands_alone_is_taken_back_once(monkeypatch: pytest.MonkeyPatch, asked: Asked, tries: int) -> None:
    """Each by itself, and the target; of several all together too."""
    searches = Searches(lambda *_: False, [])
    monkeypatch.setattr(remedies, "tried", searches)
    assert remedies.remedy(question(asked=asked)) == ""
    assert len(searches.asked) == tries
