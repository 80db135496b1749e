"""From a question to an answered search: the space that it spans, and the search through it.

    Ask, Asked -> Setting -> Space -> Search, run until it ends or is told to stop -> finalists, refined -> Solved

The search is over configurations: layers in even shares and all treated alike, ranks in the order of the cluster. What
computes only some layers again may be better, and is priced beside them. The best few are *refined*: layers shared out
by what they take, ranks placed where links and devices want them, operators chosen anew in the best, and a schedule
made for pipelines where that is faster (`planner.refine.order`). What is proved of the space holds for the
configurations; a refined plan may be faster than all of them, never slower. Of several pools each is searched alone,
too.

Whoever plans, relaxes or asks "why not" comes through here. A search may be told to stop between two pieces of work, so
what it has proved until then stays true.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import gcd, inf
from types import FrameType

from meshwright.cost_models.evaluate import Evaluator
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.errors import ConstraintsContradict, MeshwrightError, NoPlanInTime, ScheduleNotExpressible
from meshwright.ir.frontends.foreign import ended_at
from meshwright.ir.names.check import extents
from meshwright.ir.names.counts import divisors
from meshwright.ir.schedules import CUSTOM
from meshwright.planner.answer.finalists import finished
from meshwright.planner.question import pricing
from meshwright.planner.question.ask import Ask
from meshwright.planner.question.constraints import Asked, Constraints
from meshwright.planner.question.module_pins import resolved
from meshwright.planner.question.objective import price_per_s, score
from meshwright.planner.question.pins import NAMES, Config, fill
from meshwright.planner.question.pricing import LEAST_BATCH, Setting, layers_of
from meshwright.planner.refine.candidate import Candidate
from meshwright.planner.refine.fitted import HETEROGENEOUS_PRICED
from meshwright.planner.refine.order import widened
from meshwright.planner.search.emittable import Emission
from meshwright.planner.search.least_memory import LeastMemory
from meshwright.planner.search.phases import PRICING, REFINING, SEARCHING, TRACING, Told, untold
from meshwright.planner.search.pinned import PinnedSearch
from meshwright.planner.search.search import MOST_PRICED, Found, Search
from meshwright.planner.space.baselines import baselines
from meshwright.planner.space.declared import Space

LOADING_S = 5.0
"""What loading the model, and tracing it, have each, however short the limit of the search: a plan needs both."""


@dataclass(slots=True)
class Stop:
    """The condition under which a search ends early: a time of the monotonic clock, or an interrupt."""

    until_s: float | None = None
    interrupted: bool = False

    def begin(self, limit_s: float | None) -> None:
        """Begin another question, which has as much time as the one before had."""
        self.until_s = None if limit_s is None else time.monotonic() + limit_s

    def __call__(self) -> bool:
        return self.interrupted or (self.until_s is not None and time.monotonic() >= self.until_s)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Limit loading or tracing the model to the time that is left, at least `LOADING_S`. Raises `NoPlanInTime`."""
        if self.until_s is None:
            yield
            return
        with ended_at(max(self.until_s, time.monotonic() + LOADING_S), _not_loaded):
            yield

    @contextmanager
    def watching(self) -> Iterator[Stop]:
        """Watch for Ctrl-C: the first one is noted, and seen after the current piece of work; a second one ends at
        once."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = signal.getsignal(signal.SIGINT)

        def note(_: int, __: FrameType | None) -> None:
            self.interrupted = True
            signal.signal(signal.SIGINT, before)

        signal.signal(signal.SIGINT, note)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, before)


def _not_loaded() -> NoPlanInTime:
    return NoPlanInTime(
        place="plan, the model",
        cause="--time-limit ended while it was loaded and traced",
        fix="give it more time; what it takes is that of `plan inspect`",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """An answered search, and its question.

    - `complete`: it ended by itself, so that what it says of the space is all there is to say.
    """

    ask: Ask
    asked: Asked
    setting: Setting
    search: Search
    complete: bool
    objective: str = "time"
    lower: float = 0.0
    """What no plan of the space is below, in the unit of the objective; 0 where nothing is proved."""
    hosts: int = 0
    """Of the whole cluster, where the plan may be for a part of it."""
    stop: Stop = field(default_factory=Stop)
    refined: Candidate | None = None
    """What became of the finalists, if that is better than all configurations."""
    notes: tuple[str, ...] = ()
    """What was left untried."""

    @property
    def best(self) -> Found | None:
        """The answer; for a plan whose stages have different meshes, with the configuration that it was made of."""
        if self.refined is None:
            return self.search.best
        config = self.refined.config or self.refined.origin
        assert config is not None, "it was made of one"
        return Found(config, self.refined.prediction)

    @property
    def decisions(self) -> Decisions:
        """The decisions of the answer. Must: there is one."""
        if self.refined is not None:
            return self.refined.decisions
        assert self.search.best is not None
        return self.setting.decisions(self.search.best.config, self.global_batch)

    @property
    def proved(self) -> float:
        """The bound on the space, as far as it lies below the answer."""
        return min(self.lower, self.score(self.best)) if self.best else self.lower

    def score(self, found: Found) -> float:
        """The figure by which a plan is compared."""
        return score(self.objective, found.prediction, self.ask.cluster)

    @property
    def gap(self) -> float:
        """How much better than the answer anything in the space can be, as a share of it."""
        return 1 - self.proved / self.score(self.best) if self.best else 1.0

    @property
    def operators_s(self) -> float:
        """What no plan takes less than, whatever axes do in its operators, on declared meshes of one or two axes; 0
        where nothing is known."""
        return self.search.operators_s if self.complete and self.objective == "time" else 0.0

    @property
    def more_axes_s(self) -> float:
        """The same of declared meshes of more axes."""
        return self.search.more_axes_s if self.complete and self.objective == "time" else 0.0

    @property
    def global_batch(self) -> int:
        return self.search.space.global_batch


def space_of(setting: Setting, cluster: Cluster, constraints: Constraints) -> Space:
    """The declared space of a model on a cluster."""
    fold = setting.folds.first(LEAST_BATCH).fold
    heads = extents(fold, "heads") or extents(fold, "group")
    return Space(
        ranks=cluster.ranks,
        per_host=min(pool.gpus_per_host for pool in cluster.pools),
        global_batch=setting.workload.global_batch,
        seq=setting.workload.seq,
        layers=layers_of(fold),
        experts=tuple(extents(fold, "experts")),
        heads=gcd(*heads),
        scores=setting.workload.stack.attention == "math",
        target=setting.target,
        constraints=constraints.named,
    )


def solve(
    ask: Ask,
    setting: Setting,
    asked: Asked,
    stop: Stop | None = None,
    told: Told = untold,
    objective: str = "time",
    *,
    any_fits: bool = False,
) -> Solved:
    """Search and refine; `told` hears of every phase and every piece of work. `any_fits`: the first plan that fits will
    do."""
    stop = stop or Stop()
    if asked.constraints.made_only:
        _check_made(objective, setting)
    setting = replace(setting, modules=asked.modules, constraints=asked.constraints)
    told(TRACING)
    with stop.loading():
        first = setting.folds.first(LEAST_BATCH)
    resolved(asked.modules, first.fold)
    if objective == "cost":
        return _cheapest(ask, setting, asked, stop, told)
    search = _search(ask, setting, asked, LeastMemory if objective == "memory" else _by_time(setting))
    complete = _run(search, asked, stop, told, any_fits=any_fits)

    refining = _refining(search, stop, told)

    def enough() -> bool:
        return refining() or (any_fits and search.best is not None)

    if objective == "time" and not enough():
        widened(search, enough)
    if any_fits and search.best:
        return Solved(
            ask=ask, asked=asked, setting=setting, search=search, complete=False, objective=objective, stop=stop
        )
    refines = objective == "time" and not search.hopeless
    better, notes = finished(search, asked, refining, any_fits=any_fits) if refines else (None, ())
    lower = search.lower_bytes if isinstance(search, LeastMemory) else search.lower_s
    solved = Solved(
        ask=ask,
        asked=asked,
        setting=setting,
        search=search,
        complete=complete,
        objective=objective,
        lower=0.0 if asked.constraints.made_only else lower,  # what is proved is proved of schedules with names
        stop=stop,
        refined=better,
        notes=notes,
    )
    return _one_pool(solved, told) if objective == "time" and ask.cluster.heterogeneous else solved


def _check_made(objective: str, setting: Setting) -> None:
    """Check that a schedule made for the plan is asked for only where time is the objective, and of a target that can
    run one."""
    if objective != "time":
        raise ConstraintsContradict(
            place=f"--objective {objective} --fix schedule={CUSTOM}",
            cause="schedules are made for the least time of a step, and for nothing else",
            fix="take one of them back",
        )
    names = [line.name for line in setting.target.schedules]
    if CUSTOM not in names:
        raise ScheduleNotExpressible(
            place=f"--fix schedule={CUSTOM}",
            cause=f"target {setting.target.target} runs no lists of one's own",
            fix=f"use one of {', '.join(names)}",
        )


def _refining(search: Search, stop: Stop, told: Told) -> Callable[[], bool]:
    """The same condition to stop, for what refines: whenever it asks, that is told."""

    def asks() -> bool:
        told(REFINING, search)
        return stop()

    return asks


def _cheapest(ask: Ask, setting: Setting, asked: Asked, stop: Stop, told: Told) -> Solved:
    """Search on ever fewer hosts, and refine the answer: on the same hosts, faster is cheaper. The bound is the least
    over all numbers of hosts; one that was not searched proves nothing."""
    answer: Solved | None = None
    lower, complete = inf, True
    for cluster in parts(ask.cluster):
        price = price_per_s(cluster)
        own, smaller, search = _part(ask, setting, asked, cluster)
        if answer and answer.best:
            search.ceiling_s = answer.score(answer.best) / price
        complete = _run(search, asked, stop, told) and complete
        lower = min(lower, search.lower_s * price)
        if answer is None or search.best is not None:
            answer = Solved(
                ask=own, asked=asked, setting=smaller, search=search, complete=complete, objective="cost", stop=stop
            )
        if not complete:
            lower = 0.0
            break
    assert answer is not None
    refining = _refining(answer.search, stop, told)
    if not refining():
        widened(answer.search, refining)
    better, notes = finished(answer.search, asked, refining)
    answer = replace(answer, refined=better, notes=notes)
    return replace(answer, hosts=ask.cluster.hosts, complete=complete, lower=lower if answer.best else 0.0)


def _one_pool(solved: Solved, told: Told) -> Solved:
    """The answer, or the plan of one pool alone if that is faster: other pools may only be waited for. The bound then
    holds for each of them."""
    whole, lower, complete = solved.ask.cluster, solved.lower, solved.complete
    usual = solved.search.baselines
    for cluster in parts(whole)[1:]:
        if solved.stop():
            return replace(solved, lower=0.0, complete=False)
        own, smaller, search = _part(solved.ask, solved.setting, solved.asked, cluster)
        search.ceiling_s = solved.best.step_s if solved.best else inf
        complete = _run(search, solved.asked, solved.stop, told) and complete
        lower = min(lower, search.lower_s)
        if search.best is not None:
            search.baselines |= usual  # a person would use the whole cluster, where that can be
            better, notes = finished(search, solved.asked, _refining(search, solved.stop, told))
            search.operators_s = solved.search.operators_s  # of all ranks, of which these are some
            search.more_axes_s = solved.search.more_axes_s
            solved = replace(
                solved,
                ask=own,
                setting=smaller,
                search=search,
                hosts=whole.hosts,
                refined=better,
                notes=(f"pool {cluster.pools[0].name} alone is faster than with the others", *notes),
            )
    return replace(solved, lower=lower, complete=complete)


def _part(ask: Ask, setting: Setting, asked: Asked, cluster: Cluster) -> tuple[Ask, Setting, Search]:
    """The question on a part of its cluster."""
    assert isinstance(setting.price, Evaluator)
    known = setting.price.prices
    price = pricing.price_of(cluster, known.profile, known.books)
    own, smaller = replace(ask, cluster=cluster), replace(setting, ranks=cluster.ranks, price=price)
    return own, smaller, _search(own, smaller, asked, _by_time(smaller))


def parts(cluster: Cluster) -> list[Cluster]:
    """The parts of a cluster that a plan may use when hosts may be left idle: all of it; with one pool, numbers of
    hosts that divide its own; with several, each pool alone."""
    if cluster.heterogeneous:
        alone = [] if cluster.matrix else [replace(cluster, pools=(pool,), links=()) for pool in cluster.pools]
        return [cluster, *alone]
    (pool,) = cluster.pools
    return [replace(cluster, pools=(replace(pool, hosts=hosts),)) for hosts in reversed(divisors(pool.hosts))]


def _by_time(setting: Setting) -> type[Search]:
    return PinnedSearch if setting.modules else Search


def _search(ask: Ask, setting: Setting, asked: Asked, kind: type[Search]) -> Search:
    assert isinstance(setting.price, Evaluator)
    most = HETEROGENEOUS_PRICED if ask.cluster.heterogeneous else MOST_PRICED
    search = kind(setting, setting.price.prices, space_of(setting, ask.cluster, asked.constraints), most)
    search.emission = Emission.of(setting, ask.model)
    return search


def _run(search: Search, asked: Asked, stop: Stop, told: Told, *, any_fits: bool = False) -> bool:
    """Run a search until it ends by itself (true), or is told to. `any_fits`: what nothing can fit is not priced."""
    known = baselines(search.space) if not any_fits or search.may_fit() else ()
    for _ in search.run(known, _first(search.setting, asked, search.space)):
        told(SEARCHING if search.expanded else PRICING, search)
        if stop() or (any_fits and search.best):
            if search.expanded:
                search.settle()
            return False
    return True


def _first(setting: Setting, asked: Asked, space: Space) -> list[Config]:
    """The configurations that are asked to be tried, if the constraints allow them; after the one that the pins alone
    stand for, if it is in the space."""
    tried = [one for one in asked.tried if one.degrees().ranks == space.ranks and space.as_asked(one, NAMES)]
    try:
        filled = fill(asked.pins, ranks=space.ranks, global_batch=space.global_batch)
        config = setting.settled(filled, space.global_batch)
    except MeshwrightError:
        return tried
    return [config, *tried] if space.grants(config) else tried
