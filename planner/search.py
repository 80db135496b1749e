"""The search: best first, until nothing left can be better.

    baselines -> bases, priced -> shapes, bounded -> the evaluator, from the least bound upwards

The plans that a person would write are priced first; the best of them is the answer until a better one is found. Then
every base is priced once, every shape of it gets its bounds (`planner.bounds`), and the evaluator prices configurations
in the order of their bounds. Once the least bound left is no better than the answer, the answer is proved: nothing in
the declared space undercuts it. A search that ends before says how far the two are apart.

Only the evaluator's prices are told. The order of work, and so the answer, depends on counts and never on the clock,
unless a time limit cuts the search short.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import inf

from meshwright.cost_models.prediction import Prediction
from meshwright.cost_models.prices import Prices
from meshwright.ir.errors import MeshwrightError
from meshwright.planner.bases import Base, priced
from meshwright.planner.bounds import Bounds
from meshwright.planner.pins import Config
from meshwright.planner.pricing import Setting
from meshwright.planner.space import Space

MOST_PRICED = 600
"""Configurations that the evaluator prices, unless more effort is asked for."""


@dataclass(frozen=True, slots=True)
class Found:
    """A configuration and its price."""

    config: Config
    prediction: Prediction

    @property
    def fits(self) -> bool:
        return self.prediction.fits

    @property
    def step_s(self) -> float:
        return self.prediction.step_time_s


@dataclass(slots=True)
class Counts:
    """What was looked at."""

    bases: int = 0
    shapes: int = 0
    full: int = 0
    """Shapes that cannot fit."""
    slow: int = 0
    """Shapes that cannot be better than the answer was when they came up."""
    priced: int = 0
    refused: int = 0
    """Configurations that the model or the target cannot have."""
    left: int = 0
    """Shapes that were not priced though they may be better."""


@dataclass(frozen=True, slots=True, order=True)
class Waiting:
    """A configuration in the queue: least bound first, then first come."""

    bound_s: float
    number: int
    config: Config = field(compare=False)
    base: Base = field(compare=False)
    ran: bool = field(default=False, compare=False)
    """Whether its schedule was run for the bound."""


@dataclass(slots=True)
class Search:
    """One search, step by step: `run` yields after every piece of work, and may be left at any time."""

    setting: Setting
    prices: Prices
    space: Space
    most: int = MOST_PRICED
    best: Found | None = None
    lower_s: float = 0.0
    counts: Counts = field(default_factory=Counts)
    found: list[Found] = field(default_factory=list)
    """Everything that was priced, in order."""
    heap: list[Waiting] = field(default_factory=list)
    bounds: Bounds | None = None
    seen: set[Config] = field(default_factory=set)

    def run(self, first: Iterable[Config], until_s: float | None = None) -> Iterator[None]:
        """Search; `first` are the configurations to start with, `until_s` a time of the monotonic clock to stop at."""

        def late() -> bool:
            return until_s is not None and time.monotonic() >= until_s

        for config in first:
            self.price(config)
            yield
        for _ in self.expand():
            if late():
                self.settle(complete=False)
                return
            yield
        while self.heap and self.counts.priced < self.most and not late():
            waiting = heapq.heappop(self.heap)
            if waiting.bound_s >= self.upper_s:
                self.heap.clear()
                break
            if not self.returned(waiting):
                self.price(waiting.config)
                yield
        self.settle(complete=True)

    def returned(self, waiting: Waiting) -> bool:
        """Run the schedule of what comes up for the first time; back into the queue, or out of it, if others come
        before it then."""
        if waiting.ran:
            return False
        assert self.bounds is not None, "what waits has bounds"
        base, config = waiting.base, waiting.config
        bound = self.bounds.run_s(base, config, self.bounds.wires(base, config))
        self.bounds.forget()
        if self.heap and bound > self.heap[0].bound_s:
            if bound < self.upper_s:
                heapq.heappush(self.heap, replace(waiting, bound_s=bound, ran=True))
            else:
                self.counts.slow += 1
            return True
        return False

    @property
    def upper_s(self) -> float:
        return self.best.step_s if self.best else inf

    @property
    def gap(self) -> float:
        """How much better than the answer anything in the space can be, as a share of it."""
        return 1 - self.lower_s / self.upper_s if self.best else 1.0

    def settle(self, *, complete: bool) -> None:
        """What is proved now."""
        left = [waiting.bound_s for waiting in self.heap if waiting.bound_s < self.upper_s]
        self.counts.left = len(left)
        self.lower_s = min([*left, self.upper_s]) if complete else 0.0

    # bases and shapes

    def expand(self) -> Iterator[None]:
        """Price every base that may matter; queue its shapes."""
        crowded: set[tuple[object, ...]] = set()
        slow: set[tuple[object, ...]] = set()
        for config in self.space.bases():
            family = config.tp, config.cp, config.ep, config.etp, config.context
            if (*family, config.recompute) in crowded or (*family, config.mbs) in slow:
                continue
            try:
                base = priced(self.setting, self.prices, config)
            except MeshwrightError:
                self.counts.refused += 1
                continue
            self.counts.bases += 1
            if self.bounds is None:
                self.bounds = Bounds(self.setting, self.prices, self.setting.fold(config))
            quickest, room = self.queue(base, self.bounds)
            if not room:
                crowded.add((*family, config.recompute))  # more sequences take more
            if config.recompute == "none" and quickest >= self.upper_s:
                slow.add((*family, config.mbs))  # to compute anything again takes longer
            yield

    def queue(self, base: Base, bounds: Bounds) -> tuple[float, bool]:
        """Queue the shapes of a base; the least time of any, and whether any may fit."""
        quickest, room = inf, False
        for pipeline in self.space.pipelines(base.config):
            least = bounds.least_s(base, pipeline)
            if least < self.upper_s:
                least = bounds.step_s(base, pipeline)
            quickest = min(quickest, least)
            if least >= self.upper_s:
                self.counts.slow += 1
                room = True  # for all that is known
                continue
            loads = bounds.loads(base, pipeline)
            for storage in self.space.storages(pipeline):
                self.counts.shapes += 1
                if bounds.lacks_bytes(loads, pipeline, storage) > 0:
                    self.counts.full += 1
                    continue
                room = True
                config = storage.on(pipeline)
                bound = bounds.step_s(base, config, bounds.wires(base, config))
                if bound >= self.upper_s:
                    self.counts.slow += 1
                else:
                    heapq.heappush(self.heap, Waiting(bound, self.counts.shapes, config, base))
        bounds.forget()
        return quickest, room

    # prices

    def price(self, config: Config) -> Found | None:
        """Ask the evaluator, once per configuration."""
        if config in self.seen:
            return None
        self.seen.add(config)
        try:
            prediction = self.setting.predict(config, self.space.global_batch)
        except MeshwrightError:
            self.counts.refused += 1
            return None
        self.counts.priced += 1
        found = Found(config, prediction)
        self.found.append(found)
        if found.fits and found.step_s < self.upper_s:
            self.best = found
        return found


def finish(search: Search, first: Iterable[Config], told: Callable[[Search], None] | None = None) -> Search:
    """Run a search to its end."""
    for _ in search.run(first):
        if told:
            told(search)
    return search
