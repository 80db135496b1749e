"""From a question to an answer, with searches and what becomes of their finalists told: which cluster, which plan, and
what is proved of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.cost_models.evaluate import Evaluator
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.toml import read
from meshwright.cost_models.profile import published
from meshwright.ir.errors import ConstraintsContradict, ScheduleNotExpressible
from meshwright.ir.schedules import CUSTOM
from meshwright.ir.target.capabilities import ANY
from meshwright.ir.target.workload import Workload
from meshwright.planner.answer import solve as module
from meshwright.planner.answer.solve import Solved, Stop, parts, solve
from meshwright.planner.question import pricing
from meshwright.planner.question.constraints import Asked, Constraints
from meshwright.planner.question.module_pins import ModulePin
from meshwright.planner.question.pins import Config, Pins
from meshwright.planner.question.pricing import LEAST_BATCH
from meshwright.planner.question.pricing import Setting as RealSetting
from meshwright.planner.refine.candidate import Candidate
from meshwright.planner.refine.fitted import HETEROGENEOUS_PRICED
from meshwright.planner.search.least_memory import LeastMemory
from meshwright.planner.search.phases import PRICING, REFINING, SEARCHING, TRACING, untold
from meshwright.planner.search.pinned import PinnedSearch
from meshwright.planner.search.search import MOST_PRICED, Found, Search
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
    hopeless: bool = False
    operators_s: float = 0.0
    more_axes_s: float = 0.0
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


def refined(step_s: float, **configs: Any) -> Candidate:
    plan: Any = f"plan of {step_s} s"
    return Candidate(plan, price(step_s), (1,), (), **configs)


def answered(
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    searches: list[Told],
    finals: dict[float | None, tuple[Candidate | None, tuple[str, ...]]] | None = None,
    *,
    stop: Stop | None = None,
    told: Any = untold,
    objective: str = "time",
    asked: Asked | None = None,
    setting: Setting | None = None,
    resolved: Callable[[object, object], None] = lambda modules, fold: None,
) -> Solved:
    """One search after the other is made, on the whole cluster first."""
    left = iter(searches)
    monkeypatch.setattr(module, "_search", lambda ask, setting, asked, kind: next(left))
    monkeypatch.setattr(module, "_part", lambda ask, setting, asked, cluster: (Ask(cluster), setting, next(left)))
    monkeypatch.setattr(module, "_first", lambda setting, asked, space: ["first"])
    monkeypatch.setattr(module, "baselines", lambda space: "baselines")
    monkeypatch.setattr(module, "resolved", resolved)
    monkeypatch.setattr(module, "widened", lambda search, stop: search.improved.append("widened"))
    ends = finals or {}
    monkeypatch.setattr(module, "finished", lambda search, asked, stop, **_: ends.get(search.best_s, (None, ())))
    given: Any = Ask(read(text)), setting or Setting(), asked or Asked(), stop, told
    return solve(*given, objective=objective)


@dataclass(frozen=True)
class Ask:
    cluster: Cluster


@dataclass(frozen=True)
class Setting:
    modules: tuple[Any, ...] = ()
    constraints: Any = None
    schedules: tuple[str, ...] = ("1f1b", CUSTOM)

    @property
    def target(self) -> Any:
        return SimpleNamespace(target="t", schedules=[SimpleNamespace(name=name) for name in self.schedules])

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
    solved = answered(monkeypatch, FOUR, [told], {10.0: (None, ("note",))}, told=lambda *of: heard.append(of))
    assert (solved.complete, solved.lower, solved.notes, solved.hosts) == (True, 8.0, ("note",), 0)
    assert solved.best == told.best
    assert solved.decisions == (config(mbs=3), 64)
    assert (solved.proved, solved.gap) == (8.0, pytest.approx(0.2))
    assert heard == [(TRACING,), *[(SEARCHING, told)] * 3, (REFINING, told)]
    assert told.improved == ["widened"]
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
    solved = answered(monkeypatch, FOUR, [told], stop=stop, told=lambda *of: heard.append(of))
    assert not solved.complete
    assert (told.settled, told.improved) == (int(expanded), [])
    assert heard == [(TRACING,), (SEARCHING if expanded else PRICING, told), (REFINING, told)]


def test_the_least_memory_is_not_refined(monkeypatch: pytest.MonkeyPatch) -> None:
    class Least(Told, LeastMemory):  # type: ignore[misc]
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

    def told(phase: str, search: Any = None) -> None:
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
    assert [one.improved for one in searches] == [["widened"] if one is last else [] for one in searches]
    if last.best_s:
        assert solved.best is not None
        assert solved.score(solved.best) == hosts * last.best_s / 2
        assert solved.notes == ("note",)


def test_hosts_that_were_not_searched_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Stop()

    def told(phase: str, search: Any = None) -> None:
        stop.interrupted = search is second

    searches = [Told(10.0, 9.0), second := Told(15.0, 14.0), Told(1.0, 1.0)]
    solved = answered(monkeypatch, FOUR, searches, stop=stop, told=told, objective="cost")
    assert (solved.lower, solved.complete, solved.ask.cluster.hosts, searches[2].ceiling_s) == (0.0, False, 2, inf)
    assert second.improved == []


def test_a_time_to_stop_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "monotonic", lambda: 5.0)
    assert [Stop(until_s=until_s)() for until_s in (4.9, 5.0, 5.1, None)] == [True, True, False, False]
    assert Stop(until_s=9.0, interrupted=True)()


# What is asked of a search -------------------------------------------------------------------------------------------


MADE = Asked(Constraints({"schedule": (CUSTOM,)}))


def test_schedules_that_are_made_are_for_time_and_targets_that_run_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing is proved: the proof is of schedules with names."""
    assert answered(monkeypatch, FOUR, [Told(10.0, 8.0)], asked=MADE).lower == 0.0
    for setting, objective, place, cause, fix in (
        (
            Setting(schedules=("1f1b", "zbv")),
            "time",
            "--fix schedule=custom",
            "target t runs no lists of one's own",
            "use one of 1f1b, zbv",
        ),
        (
            Setting(),
            "memory",
            "--objective memory --fix schedule=custom",
            "schedules are made for the least time of a step, and for nothing else",
            "take one of them back",
        ),
    ):
        with pytest.raises((ScheduleNotExpressible, ConstraintsContradict)) as refused:
            answered(monkeypatch, FOUR, [], asked=MADE, setting=setting, objective=objective)
        assert (refused.value.place, refused.value.cause, refused.value.fix) == (place, cause, fix)
    named = Asked(Constraints({"schedule": (CUSTOM, "1f1b")}))
    assert answered(monkeypatch, FOUR, [Told(10.0, 8.0)], asked=named, setting=Setting(schedules=())).lower == 8.0


def test_a_search_knows_its_wishes_its_kind_and_how_much_it_may_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of unlike pools fewer are priced; modules are looked for in the model first."""
    monkeypatch.setattr(module, "space_of", lambda setting, cluster, constraints: (cluster.ranks, constraints))
    monkeypatch.setattr(module.Emission, "of", staticmethod(lambda *of: of[1:]))

    def kind(setting: object, prices: object, space: object, most: int) -> Any:
        return SimpleNamespace(setting=setting, prices=prices, space=space, most=most)

    for text, most in ((FOUR, MOST_PRICED), (POOLS, HETEROGENEOUS_PRICED)):
        cluster = read(text)
        ask: Any = SimpleNamespace(cluster=cluster, model="m")
        setting: Any = SimpleNamespace(price=pricing.price_of(cluster))
        made: Any = module._search(ask, setting, MADE, kind)  # type: ignore[arg-type]
        assert (made.setting, made.prices, made.most) == (setting, setting.price.prices, most)
        assert (made.space, made.emission) == ((cluster.ranks, MADE.constraints), ("m",))
    pin: Any = "a pin"
    some: Any = (SimpleNamespace(modules=(pin,)), SimpleNamespace(modules=()))
    assert [module._by_time(one) for one in some] == [PinnedSearch, Search]


def test_the_same_question_for_a_part_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same profile, and the bodies and ledgers that are known."""
    cluster = read(FOUR)
    (_, _, small) = parts(cluster)
    profile = replace(published(), memory=replace(published().memory, margin_share=0.5))
    bodies: Any = {"of": "four"}
    folds: Any = "folds"
    target: Any = "target"
    setting = RealSetting(
        folds, 4, Workload(global_batch=8, seq=64), target, pricing.price_of(cluster, profile), bodies=bodies
    )
    monkeypatch.setattr(module, "_search", lambda *given: given)
    own, smaller, search = module._part(Ask(cluster), setting, MADE, small)  # type: ignore[arg-type]
    assert own.cluster == small
    assert (smaller.ranks, smaller.folds) == (1, "folds")
    assert smaller.bodies is bodies
    assert isinstance(smaller.price, Evaluator)
    assert (smaller.price.prices.cluster, smaller.price.prices.profile) == (small, profile)
    assert isinstance(setting.price, Evaluator)
    assert smaller.price.prices.books is setting.price.prices.books
    assert search == (own, smaller, MADE, Search)  # type: ignore[comparison-overlap]


def test_what_pins_alone_mean_is_tried_first_where_it_can_be() -> None:
    """Eight ranks and as many sequences, one at a time: tp=2 leaves four copies, and two micro-batches."""

    def settled(one: Config, batch: int) -> Config:
        if one.tp == 4:
            raise ConstraintsContradict(place="", cause="", fix="")
        return replace(one, sp=batch == 8)

    space: Any = SimpleNamespace(ranks=8, global_batch=8, grants=lambda one: one.tp != 8)
    setting: Any = SimpleNamespace(settled=settled)
    table = ((Pins(tp=2), [(2, 4, True)]), (Pins(tp=3), []), (Pins(tp=4), []), (Pins(tp=8), []))
    for pins, expected in table:
        found = module._first(setting, Asked(pins=pins), space)
        assert [(one.tp, one.dp, one.sp) for one in found] == expected


def test_what_is_asked_to_be_tried_is_tried_where_constraints_allow_it() -> None:
    """On all ranks, whether it is in the space or not; also where the pins alone stand for nothing."""
    one, other, smaller = Config(tp=4, dp=2, split="ends"), Config(tp=2, dp=4), Config(tp=2, dp=2)

    def settled(one: Config, batch: int) -> Config:
        if one.tp == 8:
            raise ConstraintsContradict(place="", cause="", fix="")
        return one

    space: Any = SimpleNamespace(
        ranks=8, global_batch=8, grants=lambda one: True, as_asked=lambda one, names: one.tp != 2 and "split" in names
    )
    setting: Any = SimpleNamespace(settled=settled)
    tried = (one, other, smaller)
    assert module._first(setting, Asked(pins=Pins(tp=8), tried=tried), space) == [one]
    assert [found.tp for found in module._first(setting, Asked(pins=Pins(tp=1), tried=tried), space)] == [1, 4]


def test_the_space_of_a_model_on_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads are those of queries, else groups of them: what divides all that there are. A host of the smallest pool."""
    found: dict[str, list[int]] = {"heads": [12, 8], "group": [3], "experts": [8, 6]}
    monkeypatch.setattr(module, "extents", lambda fold, name: found.get(name, []))
    monkeypatch.setattr(module, "layers_of", lambda fold: f"layers of {fold}")
    constraints: Any = SimpleNamespace(named="named constraints")
    cluster = read(POOLS.replace("gpus_per_host = 2\n[[link]]", "gpus_per_host = 4\n[[link]]"))
    for attention, heads in (("math", [12, 8]), ("flash", [])):
        found["heads"] = heads
        setting: Any = SimpleNamespace(
            folds=SimpleNamespace(first=lambda batch: SimpleNamespace(fold=f"the fold at {batch}")),
            workload=SimpleNamespace(global_batch=24, seq=512, stack=SimpleNamespace(attention=attention)),
            target=ANY,
        )
        made = module.space_of(setting, cluster, constraints)
        assert (made.ranks, made.per_host, made.global_batch, made.seq) == (14, 2, 24, 512)
        assert (made.layers, made.experts) == (f"layers of the fold at {LEAST_BATCH}", (8, 6))
        assert (made.heads, made.scores) == (4 if heads else 3, attention == "math")
        assert (made.target, made.constraints) == (ANY, "named constraints")


def test_modules_that_are_not_there_are_refused_before_anything_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(modules=(ModulePin("fix", "nowhere", "sharding", ("row",)),))

    def resolved(modules: object, fold: object) -> None:
        assert (modules, fold) == (asked.modules, None)
        raise ConstraintsContradict(place="", cause="", fix="")

    with pytest.raises(ConstraintsContradict):
        answered(monkeypatch, FOUR, [], asked=asked, resolved=resolved)
