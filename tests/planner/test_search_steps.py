"""What a search does step by step, with all bounds and prices told: what it queues, prices, leaves and counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.ir.errors import EmissionStorage, LayersIndivisible, MeshwrightError, ScheduleNotExpressible
from meshwright.ir.errors.capability import STORAGE
from meshwright.planner.question.pins import Config
from meshwright.planner.search import least_memory, search
from meshwright.planner.search.least_memory import LeastMemory
from meshwright.planner.search.search import CUT_SHORT, IMPOSSIBLE, PROMISING, TOO_LARGE, Counts, Search, Waiting
from meshwright.planner.space.baselines import Baseline
from meshwright.planner.space.declared import Storage
from tests.planner.told import config, price

REFUSAL = LayersIndivisible(place="here", cause="it cannot be", fix="ask for something else")
UNWRITTEN = EmissionStorage(place="storage", cause="copies")
BASE = config()
ZEROS = {zero: Storage(zero, 0, True) for zero in range(4)}


@dataclass
class Shape:
    """A number of stages: its bounds, and by level of ZeRO its bound with wires, how long its schedule runs, and what
    it lacks."""

    pp: int
    least_s: float
    step_s: float
    stored: Mapping[int, tuple[float, float, float]]


@dataclass
class Bounds:
    config: Config
    shapes: list[Shape]

    @property
    def base(self) -> Any:
        return SimpleNamespace(config=self.config)

    def of(self, own: Config) -> Shape:
        return next(shape for shape in self.shapes if shape.pp == own.pp)

    def least_s(self, pipeline: Config) -> float:
        return self.of(pipeline).least_s

    def step_s(self, own: Config, wires: object = None) -> float:
        return self.of(own).step_s if wires is None else self.of(own).stored[own.zero][0]

    def wires(self, own: Config) -> str:
        return "wires"

    def run_s(self, own: Config, wires: str) -> float:
        assert wires == "wires"
        return self.of(own).stored[own.zero][1]

    def loads(self, pipeline: Config) -> Config:
        return pipeline

    def lacks_bytes(self, loads: Config, pipeline: Config, storage: Storage) -> float:
        assert loads == pipeline
        return self.of(pipeline).stored[storage.zero][2]


@dataclass
class Told:
    """A space, its coarse bounds (two of each), and its prices: seconds and bytes that are lacking, or a refusal."""

    bounds: list[Bounds]
    coarse: Mapping[Config, tuple[float, float]] = field(default_factory=dict)
    prices: Mapping[Config, Any] = field(default_factory=dict)
    refused: tuple[Config, ...] = ()
    modules: tuple[Any, ...] = ()
    global_batch: int = 64
    priced_s: float = 5.0
    resting_bytes: float = 100.0

    def bases(self) -> Iterator[Config]:
        return (one.config for one in self.bounds)

    def pipelines(self, base: Config) -> Iterator[Config]:
        own = next(one for one in self.bounds if one.config == base)
        return (replace(base, pp=shape.pp) for shape in own.shapes)

    def storages(self, pipeline: Config) -> Iterator[Storage]:
        own = next(one for one in self.bounds if one.config == replace(pipeline, pp=1))
        return (ZEROS[zero] for zero in own.of(pipeline).stored)

    def shapes(self, base: Config) -> Iterator[Config]:
        return (one.on(pipeline) for pipeline in self.pipelines(base) for one in self.storages(pipeline))

    def bound_s(self, base: Config, *, fine: bool = False, below_s: float = inf) -> float:
        return self.coarse[base][fine]

    def priced(self, base: Config) -> Config:
        if base in self.refused:
            raise REFUSAL
        return base

    def predict(self, own: Config, global_batch: int) -> Any:
        assert global_batch == 64
        found = self.prices.get(own, self.priced_s)
        if isinstance(found, MeshwrightError):
            raise found
        return found if not isinstance(found, int | float) else price(found)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a search through what is told."""

    def made(told: Told, kind: type[Search] = Search, **changes: Any) -> Search:
        known = {one.config: one for one in told.bounds}
        monkeypatch.setattr(search, "Common", lambda *_: SimpleNamespace(capacity=100.0))
        monkeypatch.setattr(search, "CoarseBounds", lambda *_: told)
        for module in (search, least_memory):
            monkeypatch.setattr(module, "Bounds", lambda common, base: known[base])
        monkeypatch.setattr(search, "priced", lambda setting, prices, config, again: (config, again))
        monkeypatch.setattr(least_memory, "priced", lambda setting, prices, config: told.priced(config))
        setting: Any = SimpleNamespace(folds=SimpleNamespace(at=lambda batch: None))
        setting.modules, setting.predict, setting.ran = told.modules, told.predict, lambda own: own
        return kind(setting, None, told, **changes)  # type: ignore[arg-type]

    return made


def guard(masked: Callable[[Config], bool]) -> Any:
    """Emission that writes everything but what is masked."""
    masks = SimpleNamespace(of=lambda own: UNWRITTEN if masked(own) else None)
    return SimpleNamespace(masks=masks, writes_config=lambda *_: True)


def shaped(pp: int, zero: int, base: Config = BASE) -> Config:
    return replace(base, pp=pp, zero=zero)


TWO = Shape(2, 1.0, 2.0, {0: (2.1, 2.2, 0.5), 1: (3.0, 3.2, 0.0), 3: (2.5, 2.6, -1.0)})


@pytest.mark.parametrize(
    ("ceiling_s", "shapes", "expected", "queued", "counts"),
    [
        # ZeRO-0 lacks half a byte; what lacks nothing may fit.
        (inf, [TWO], (2.0, True, (2, 3)), [(2.5, 2, 3), (3.0, 2, 1)], (3, 1, 0)),
        # What is as slow as the answer is too slow.
        (3.0, [TWO], (2.0, True, (2, 3)), [(2.5, 2, 3)], (3, 1, 1)),
        (2.5, [TWO], (2.0, True, None), [], (3, 1, 2)),
        (2.0, [TWO], (2.0, True, None), [], (0, 0, 1)),
        (1.0, [TWO], (1.0, True, None), [], (0, 0, 1)),
        # Of several the least; nothing is known of room where all is too slow.
        (2.75, [Shape(4, 0.5, 2.8, {}), TWO], (2.0, True, (2, 3)), [(2.5, 2, 3)], (3, 1, 2)),
        (2.75, [Shape(4, 0.5, 2.8, {}), Shape(1, 1.0, 1.5, {0: (1.5, 1.5, 9.0)})], (1.5, True, None), [], (1, 1, 1)),
        # Where none has room.
        (inf, [Shape(1, 1.0, 1.5, {0: (1.5, 1.5, 9.0), 1: (1.5, 1.5, 1.0)})], (1.5, False, None), [], (2, 2, 0)),
        # No shape at all says nothing of room.
        (inf, [], (inf, True, None), [], (0, 0, 0)),
        # Of equals the first is the best bet.
        (
            inf,
            [Shape(1, 1.0, 1.5, {1: (2.0, 2.0, 0.0), 2: (2.0, 2.0, 0.0)})],
            (1.5, True, (1, 1)),
            [(2.0, 1, 1), (2.0, 1, 2)],
            (2, 0, 0),
        ),
    ],
)
def test_which_shapes_of_a_base_are_queued(
    opened: Any, ceiling_s: float, shapes: list[Shape], expected: Any, queued: Any, counts: tuple[int, int, int]
) -> None:
    """The least time, whether any may fit, and the best bet; shapes, those too full, those too slow."""
    bounds = Bounds(BASE, shapes)
    own = opened(Told([bounds]))
    own.ceiling_s = ceiling_s
    quickest, room, first = own.queue(bounds)
    assert (quickest, room, first and (first.pp, first.zero)) == expected
    assert [(one.bound_s, one.config.pp, one.config.zero) for one in sorted(own.heap)] == queued
    assert all(one.bounds is bounds and not one.ran for one in own.heap)
    assert own.counts == Counts(shapes=counts[0], full=counts[1], slow=counts[2])


def test_what_modules_compute_again_makes_room(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lacks room by both views is too full; other pins change nothing."""
    full = Bounds(BASE, [Shape(1, 1.0, 1.5, {0: (2.0, 2.0, 4.0), 1: (2.0, 2.0, 4.0)})])
    roomy = Bounds(BASE, [Shape(1, 1.0, 1.5, {0: (2.0, 2.0, 4.0), 1: (2.0, 2.0, 0.0)})])
    pins = SimpleNamespace(what="recompute"), SimpleNamespace(what="cut")
    own = opened(Told([full], modules=pins))
    asked: list[Any] = []
    monkeypatch.setattr(search, "Bounds", lambda common, base: asked.append(base) or roomy)
    assert own.rooms(full) == (full, roomy)
    assert asked == [(BASE, pins[:1])]
    assert own.queue(full)[1]
    assert (own.counts.shapes, own.counts.full, len(own.heap)) == (2, 1, 1)
    other = opened(Told([full], modules=pins[1:]))
    assert other.rooms(full) == (full,)


# Bases ---------------------------------------------------------------------------------------------------------------

GOOD = [Shape(1, 1.0, 1.5, {0: (2.0, 2.0, 0.0), 1: (3.0, 3.0, 0.0)})]
NONE: list[Any] = []


@pytest.mark.parametrize(
    ("base", "known", "pending", "expected"),
    [
        # As its fine floor says no more than its coarse one it is priced, and its best bet at once.
        ({}, {}, (0.5, False), ([(2.0, False, 0), (3.0, False, 1)], 1, [(1, 0)])),
        # A fine floor above that sends it back, unless that is no better than the answer; once.
        ({}, {"fine": 0.75}, (0.5, False), ([(0.75, True, 0)], 0, NONE)),
        ({}, {"fine": 0.75}, (0.75, True), ([(2.0, False, 0), (3.0, False, 1)], 1, [(1, 0)])),
        ({}, {"fine": 8.0}, (0.5, False), (NONE, 0, NONE)),
        ({}, {"fine": 8.0}, (0.5, True), ([(2.0, False, 0), (3.0, False, 1)], 1, [(1, 0)])),
        # Where as many sequences, or fewer, have no room.
        ({"mbs": 4}, {"crowded": 4}, (0.5, False), (NONE, 0, NONE)),
        ({"mbs": 2}, {"crowded": 4}, (0.5, False), ([(2.0, False, 0), (3.0, False, 1)], 1, [(1, 0)])),
        # What computes something again takes no less than what does not.
        ({"recompute": "full"}, {"quickest": 0.6}, (0.5, False), ([(0.6, False, 0)], 0, NONE)),
        ({"recompute": "full"}, {"quickest": 0.5}, (0.5, False), ([(2.0, False, 0), (3.0, False, 1)], 1, [(1, 0)])),
        ({"recompute": "full"}, {"quickest": 8.0}, (0.5, False), (NONE, 0, NONE)),
        ({}, {"quickest": 7.0}, (0.5, False), ([(2.0, False, 0), (3.0, False, 1)], 1, [(1, 0)])),
        # A best bet that is not much better than the answer waits for its turn.
        ({}, {"ceiling": 2.06}, (0.5, False), ([(2.0, False, 0)], 1, NONE)),
        ({}, {"ceiling": 2.07}, (0.5, False), ([(2.0, False, 0)], 1, [(1, 0)])),
        # No code is written for any of it, or for some.
        ({}, {"masked": (0, 1)}, (0.5, False), (NONE, 0, NONE)),
        ({}, {"masked": (0,)}, (0.5, False), ([(3.0, False, 1)], 1, [(1, 1)])),
    ],
)
def test_a_base_that_comes_up(opened: Any, base: Any, known: Any, pending: Any, expected: Any) -> None:
    """What is queued (bound, whether it was looked at before, ZeRO), how many bases were priced, and what was."""
    asked = config(**base)
    told = Told([Bounds(asked, GOOD)], {asked: (0.25, known.get("fine", 0.5))})
    own = opened(told)
    own.ceiling_s = known.get("ceiling", 8.0)
    family = asked.tp, asked.cp, asked.ep, asked.etp, asked.context
    own.crowded[*family, asked.recompute] = known.get("crowded", 9)
    own.crowded[*family, "other"] = 1
    own.quickest[*family, asked.mbs] = known.get("quickest", 0.0)
    own.quickest[*family, asked.mbs + 1] = 7.9
    own.emission = guard(lambda one: one.zero in known.get("masked", ()))
    own.expand(Waiting(pending[0], 7, asked, ran=pending[1]))
    queued, bases, priced = expected
    assert [(one.bound_s, one.ran, one.config.zero) for one in sorted(own.heap)] == queued
    assert own.counts.bases == bases
    assert [(one.pp, one.zero) for one in own.found] == priced


def test_what_is_as_quick_as_is_promising_waits_for_its_turn(opened: Any) -> None:
    for run_s, promises in ((PROMISING * 10.0, False), (PROMISING * 9.9999, True)):
        bounds: Any = Bounds(BASE, [Shape(1, 1.0, 1.0, {0: (1.0, run_s, 0.0)})])
        own = opened(Told([bounds]))
        own.ceiling_s = 10.0
        assert own.promises(bounds, BASE) == promises


def test_what_a_base_teaches_of_others(opened: Any) -> None:
    """Whether any shape of it has room, and how quick the quickest is that computes nothing again."""
    full = [Shape(1, 1.0, 1.5, {0: (2.0, 2.0, 1.0)})]
    for shapes, recompute, crowded, quickest in (
        (GOOD, "none", False, 1.5),
        (full, "none", True, 1.5),
        (GOOD, "full", False, None),
        (full, "full", True, None),
    ):
        asked = config(mbs=2, tp=2, cp=4, ep=8, etp=1, context="ring", recompute=recompute)
        own = opened(Told([Bounds(asked, shapes)], {asked: (0.5, 0.5)}))
        own.expand(Waiting(0.5, 7, asked))
        family = 2, 4, 8, 1, "ring"
        assert own.crowded == ({(*family, recompute): 2} if crowded else {})
        assert own.quickest == ({(*family, 2): quickest} if quickest else {})


def test_a_base_that_is_refused_is_counted(opened: Any) -> None:
    own = opened(Told([Bounds(BASE, GOOD)], {BASE: (0.5, 0.5)}, refused=(BASE,)))
    own.expand(Waiting(0.5, 0, BASE))
    assert (own.counts, own.heap, own.refusal) == (Counts(refused=1), [], REFUSAL)
    assert not own.priced_any
    again = LayersIndivisible(place="there", cause="nor this", fix="none")
    own.refuse(again)
    assert (own.counts.refused, own.refusal) == (2, REFUSAL)


# What comes up -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ran", "run_s", "next_s", "ceiling_s", "returned", "queued", "slow"),
    [
        (False, 2.0, 2.5, 4.0, False, [2.5], 0),
        (False, 2.5, 2.5, 4.0, False, [2.5], 0),
        (False, 3.0, 2.5, 4.0, True, [2.5, 3.0], 0),
        (False, 4.0, 2.5, 4.0, True, [2.5], 1),
        (True, 4.0, 2.5, 4.0, False, [2.5], 0),
        (False, 9.0, None, 4.0, False, [], 0),
    ],
)
def test_a_schedule_is_run_when_its_turn_comes(
    opened: Any, ran: bool, run_s: float, next_s: float | None, ceiling_s: float, returned: bool, queued: Any, slow: int
) -> None:
    """If others come before it then, it goes back, or away."""
    bounds: Any = Bounds(BASE, [Shape(1, 1.0, 1.0, {0: (1.0, run_s, 0.0)})])
    own = opened(Told([bounds]))
    own.ceiling_s = ceiling_s
    if next_s:
        own.heap.append(Waiting(next_s, 3, BASE, bounds, ran=False))
    assert own.returned(Waiting(1.0, 2, BASE, bounds, ran=ran), bounds) == returned
    assert [one.bound_s for one in sorted(own.heap)] == queued
    assert [one.number for one in own.heap if one.ran] == ([2] if len(queued) > 1 else [])
    assert own.counts.slow == slow


def test_what_has_the_least_bound_comes_first_until_nothing_is_better(opened: Any) -> None:
    """A base is looked into, a shape is priced, and what no code is written for is passed over."""
    bounds: Any = Bounds(BASE, [Shape(1, 1.0, 1.0, {0: (1.0, 1.0, 0.0), 1: (2.0, 2.0, 0.0), 2: (3.0, 3.0, 0.0)})])
    told = Told([bounds], {BASE: (0.5, 0.5)}, {shaped(1, 1): 3.0})
    own = opened(told)
    own.emission = guard(lambda one: one.zero == 0)
    for zero in (2, 0, 1):
        own.heap.append(Waiting(1.0 + zero, zero, shaped(1, zero), bounds))
    own.heap.sort()
    assert own.advance()
    assert list(own.found) == [shaped(1, 1)]
    assert own.counts.unwritten == 1
    assert own.upper_s == 3.0
    assert not own.advance(), "what is left is no better"
    assert len(own.heap) == 1
    own.best = None
    assert own.advance()
    assert not own.advance()
    own.heap.append(Waiting(0.5, 9, BASE))
    own.emission, own.ceiling_s = None, 9.0
    own.best = None
    assert own.advance()
    assert own.counts.bases == 1


@pytest.mark.parametrize(
    ("most", "late", "expected"),
    [
        # Three bases, of which one cannot fit: the first is priced at once at 5 s; nothing below that is left. Cut
        # short, its shape is still in the queue, and the base behind it.
        (600, 99, (True, 5.0, 0, 2)),
        (1, 99, (True, 2.0, 2, 1)),
        (600, 1, (False, 0.0, 0, 0)),
        (600, 4, (True, 0.5, 2, 0)),
    ],
)
def test_steps_of_a_search(opened: Any, most: int, late: int, expected: Any) -> None:
    """Whether all is queued, what is proved, what is left below the answer, and how many bases were looked into."""
    bases = [config(mbs=n) for n in (1, 2, 4)]
    rows = [Bounds(one, [Shape(1, 1.0, 1.0, {0: (2.0, 2.0, 0.0)})]) for one in bases]
    told = Told(rows, {bases[0]: (0.5, 0.5), bases[1]: (2.5, 2.5), bases[2]: (inf, inf)})
    own = opened(told, most=most)
    asked: list[bool] = []

    def over() -> bool:
        asked.append(len(asked) + 1 >= late)
        return asked[-1]

    for _ in own.steps(over):
        pass
    expanded, lower_s, left, looked = expected
    assert (own.expanded, own.lower_s, own.counts.left, own.counts.bases) == (expanded, lower_s, left, looked)


def test_refusals_count_as_prices(opened: Any) -> None:
    """So that a search through what cannot be ends, too."""
    rows = [Bounds(config(mbs=n), GOOD) for n in (1, 2, 4)]
    refused = {replace(one.config, zero=zero): REFUSAL for one in rows for zero in (0, 1)}
    own = opened(Told(rows, {one.config: (0.5, 0.5) for one in rows}, refused), most=3)
    assert len(list(own.steps(lambda: False))) >= 1
    assert (len(own.refused), own.counts.priced, own.counts.left) == (3, 0, 6)
    assert own.lower_s == 2.0


def test_plans_to_be_held_against_are_priced_first(opened: Any) -> None:
    """Of each the first that fits, else the last that has a price; of the others it is said why."""
    one, two, three, four = (config(mbs=n) for n in (1, 2, 3, 4))
    prices = {one: price(9.0, 1.0), two: 7.0, three: REFUSAL, four: price(2.0, 3.0)}
    own = opened(Told([], {}, prices))
    known = [
        Baseline("fits", (one, two, four)),
        Baseline("refused", (three,)),
        Baseline("full", (four, three)),
        Baseline("impossible", ()),
        Baseline("late", (three, two)),
    ]
    rounds = own.run(known, first=[config(mbs=8)])
    next(rounds)
    assert own.unpriced == dict.fromkeys(("refused", "full", "late"), CUT_SHORT) | {"impossible": IMPOSSIBLE}
    list(rounds)
    assert {name: found.config for name, found in own.baselines.items()} == {"fits": two, "full": four, "late": two}
    assert own.unpriced == {"refused": "it cannot be", "impossible": IMPOSSIBLE}
    assert list(own.found) == [one, two, four, config(mbs=8)]
    assert own.best is own.found[config(mbs=8)]
    assert (own.counts.priced, own.counts.refused) == (4, 1)


def test_nothing_is_priced_where_state_alone_is_too_much(opened: Any) -> None:
    """Of devices that have 100 bytes."""
    one = config()
    own = opened(Told([Bounds(one, GOOD)], {one: (0.5, 0.5)}, resting_bytes=100.1))
    assert own.hopeless
    assert list(own.run([Baseline("usual", (one,))], first=[config(mbs=8)])) == []
    assert (own.found, own.heap, own.expanded, own.gap) == ({}, [], True, 1.0)
    assert own.unpriced == {"usual": TOO_LARGE}


def test_a_configuration_is_priced_once(opened: Any) -> None:
    asked: list[Config] = []

    class Counting(Told):
        def predict(self, own: Config, global_batch: int) -> Any:
            asked.append(own)
            return super().predict(own, global_batch)

    own = opened(Counting([], {}, {BASE: 3.0, config(mbs=2): REFUSAL}))
    assert own.price(BASE) is own.price(BASE)
    assert own.price(config(mbs=2)) is own.price(config(mbs=2)) is None
    assert asked == [BASE, config(mbs=2)]
    assert (own.counts.priced, own.counts.refused, own.refused) == (1, 1, {config(mbs=2): REFUSAL})
    assert own.priced_any


def test_what_is_refused_for_a_part_of_it_is_asked_about_once(opened: Any) -> None:
    """Others with the same part are refused as well, unseen: not priced, and not queued."""
    refusal = ScheduleNotExpressible(place="the plan", cause="shards", fix="none").depending((STORAGE,))
    asked = [config(dp=2, zero=zero, mbs=mbs) for mbs in (1, 2) for zero in (1, 3)]
    own = opened(Told([Bounds(BASE, GOOD)], {}, {asked[0]: refusal, asked[2]: 4.0}))
    assert [own.price(one) is None for one in asked] == [True, False, True, False]
    assert (own.counts.priced, own.counts.refused) == (2, 2)
    assert own.refused == {asked[0]: refusal, asked[2]: refusal}
    assert [own.masked(one) for one in asked] == [refusal, None] * 2
    assert [own.passes(one) for one in asked] == [True, False] * 2
    assert (own.counts.refused, own.counts.unwritten) == (4, 0)
    own.laws.note(replace(BASE, zero=0), refusal)
    own.laws.note(replace(BASE, zero=1), refusal)
    assert own.masks_all(BASE)
    assert own.queue(Bounds(BASE, GOOD)) == (1.5, True, None)


def test_what_is_no_better_is_not_written(opened: Any) -> None:
    """Nor what does not fit; and what no code is written for is no answer."""
    asked: list[float] = []

    def writes(own: Config, prediction: Any) -> bool:
        asked.append(prediction.step_time_s)
        return prediction.step_time_s != 2.0

    prices = {
        config(mbs=1): 4.0,
        config(mbs=2): 5.0,
        config(mbs=3): price(1.0, 1.0),
        config(mbs=4): 2.0,
        config(mbs=5): 3.0,
    }
    own = opened(Told([], {}, prices))
    own.emission = SimpleNamespace(writes_config=writes, writes=lambda *_: False)
    for one in prices:
        own.price(one)
    assert asked == [4.0, 2.0, 3.0]
    assert own.best is own.found[config(mbs=5)]
    assert own.counts.unwritten == 1
    assert not own.writes(BASE, None, None)
    assert own.counts.unwritten == 2
    own.emission = None
    assert own.writes(BASE, None, None)
    assert own.counts.unwritten == 2


# By memory -----------------------------------------------------------------------------------------------------------


def needing(n: int, *lacks: float) -> Bounds:
    return Bounds(config(mbs=n), [Shape(1, 1.0, 1.0, {zero: (1.0, 1.0, one) for zero, one in enumerate(lacks)})])


@pytest.mark.parametrize(
    ("prices", "changes", "expected"),
    [
        # 40, 60, 70, 90 and 101 bytes at least, of 100: the first has a peak of 65, so the one of 60 is priced too.
        ({(1, 0): -35, (2, 1): -20}, {}, ([(1, 0), (2, 1)], 65, 0, (1, 0))),
        ({(1, 0): -35, (2, 1): -39}, {}, ([(1, 0), (2, 1)], 61, 0, (2, 1))),
        # What needs just as much may be quicker.
        ({(1, 0): -40, (2, 1): -40}, {}, ([(1, 0), (2, 1)], 60, 0, (1, 0))),
        ({(1, 0): -40, (2, 1): -40}, {"quick": True}, ([(1, 0), (2, 1)], 60, 0, (2, 1))),
        ({(1, 0): -5}, {"most": 1}, ([(1, 0)], 60, 3, (1, 0))),
        ({(1, 0): -5}, {"late": True}, ([], 40, 4, None)),
        # Without a price for the first the bound is the next one's, up to what the answer needs.
        ({(1, 0): None, (2, 1): -25}, {}, ([(2, 1), (1, 1)], 75, 0, (2, 1))),
        ({(1, 0): -35, (2, 1): -35}, {"masked": True}, ([(2, 1)], 65, 0, (2, 1))),
        ({(1, 0): -35, (2, 1): -20}, {"modules": True}, ([(1, 0), (2, 1)], 40, 0, (1, 0))),
    ],
)
def test_the_least_memory_first(opened: Any, prices: Any, changes: Any, expected: Any) -> None:
    """Priced in the order of what they need; what is proved; what is left below the answer; the answer."""
    rows = [needing(2, 1.0, -40.0), needing(1, -60.0, -30.0), needing(4, -10.0)]
    if changes.get("quick"):
        rows[0].shapes[0].stored = {0: (1.0, 1.0, 1.0), 1: (1.0, 1.0, -40.0)}
    told: dict[Config, Any] = {}
    for (mbs, zero), lacks in prices.items():
        step_s = 1.0 if changes.get("quick") and mbs == 2 else 2.0
        told[config(mbs=mbs, zero=zero)] = REFUSAL if lacks is None else price(step_s, lacks)
    told.setdefault(config(mbs=1, zero=1), price(2.0, -1.0))
    told.setdefault(config(mbs=4), price(2.0, 0.0))
    pins = (SimpleNamespace(what="cut"),) if changes.get("modules") else ()
    refused = config(mbs=3)
    own = opened(
        Told([*rows, needing(3, -99.0)], {}, told, (refused,), pins), LeastMemory, most=changes.get("most", 600)
    )
    if changes.get("masked"):
        own.emission = guard(lambda one: one.mbs == 1)
    rounds = 0

    def late() -> bool:
        return bool(changes.get("late")) and rounds >= 3

    for _ in own.steps(late):
        rounds += 1
    found, lower, left, best = expected
    assert [(one.mbs, one.zero) for one in own.found] == found
    assert (own.lower_bytes, own.counts.left) == (lower, left)
    assert (own.best and (own.best.config.mbs, own.best.config.zero)) == best
    assert (own.counts.bases, own.counts.shapes) == (3, 5)
    assert own.counts.refused == 1 + sum(one is None for one in prices.values())
    assert own.expanded
    assert own.upper_bytes == (own.best.prediction.peak_memory_bytes if best else 100)
