"""From a question to an answered search: the space that a model, a cluster and wishes span, and the search through it.

    Ask, Asked -> Setting -> Space -> Search, run until it ends or is told to stop -> Solved

Whoever plans, relaxes or asks "why not" comes through here. A search may be told to stop between two pieces of work, so
what it has proved until then stays true.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import gcd
from types import FrameType

from meshwright.cost_models.cluster import Cluster
from meshwright.cost_models.evaluate import Evaluator
from meshwright.ir.errors import MeshwrightError
from meshwright.ir.names.check import extents
from meshwright.planner.baselines import baselines
from meshwright.planner.estimate import Ask
from meshwright.planner.pins import Config, fill
from meshwright.planner.pricing import LEAST_BATCH, Setting, layers_of
from meshwright.planner.search import Found, Search
from meshwright.planner.space import Space, Wishes
from meshwright.planner.wishes import Asked


@dataclass(slots=True)
class Stop:
    """Whether a search is to end early: at a time of the monotonic clock, or when someone interrupts it."""

    until_s: float | None = None
    interrupted: bool = False

    def __call__(self) -> bool:
        return self.interrupted or (self.until_s is not None and time.monotonic() >= self.until_s)

    @contextmanager
    def watching(self) -> Iterator[Stop]:
        """The first Ctrl-C is noted, and seen after the piece of work at hand; a second one ends at once."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """A search and what it was about.

    - `complete`: it ended by itself, so that what it says of the space is all there is to say.
    """

    ask: Ask
    asked: Asked
    setting: Setting
    search: Search
    complete: bool
    stop: Stop = field(default_factory=Stop)

    @property
    def best(self) -> Found | None:
        return self.search.best

    @property
    def global_batch(self) -> int:
        return self.search.space.global_batch


def space_of(setting: Setting, cluster: Cluster, wishes: Wishes) -> Space:
    """The configurations of a model on a cluster."""
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
        wishes=wishes,
    )


def solve(
    ask: Ask,
    setting: Setting,
    asked: Asked,
    stop: Stop | None = None,
    told: Callable[[Search], None] | None = None,
) -> Solved:
    """Search; `told` hears of it after every piece of work."""
    stop = stop or Stop()
    space = space_of(setting, ask.cluster, asked.wishes)
    assert isinstance(setting.price, Evaluator)
    search = Search(setting, setting.price.prices, space)
    steps = search.run(baselines(space), _first(setting, asked, space))
    complete = True
    for _ in steps:
        if told:
            told(search)
        if stop():
            if search.expanded:
                search.settle()
            complete = False
            break
    return Solved(ask=ask, asked=asked, setting=setting, search=search, complete=complete, stop=stop)


def _first(setting: Setting, asked: Asked, space: Space) -> list[Config]:
    """What the pins alone would mean, if they mean something that is in the space."""
    try:
        config = setting.settled(fill(asked.pins, ranks=space.ranks, global_batch=space.global_batch))
    except MeshwrightError:
        return []
    return [config] if space.grants(config) else []
