"""The search: best first, until nothing left can be better.

    baselines -> bases, priced -> shapes, bounded -> the evaluator, from the least bound upwards

The plans that a person would write are priced first; the best of them is the answer until a better one is found. Then
every base is priced once, every shape of it gets its bounds (`planner.bounds.bounds`), and the evaluator prices
configurations in the order of their bounds. Once the least bound left is no better than the answer, the answer is
proved: nothing in the declared space undercuts it. A search that ends before says how far the two are apart.

What would be the answer is emitted first, in memory (`planner.search.emittable`): what no code is written for is no
answer, so what is proved is proved of what can be emitted. What the target or its code refuse for a part of a plan is
left out wherever that part is met again (`planner.search.masks`).

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
from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.errors import MeshwrightError, NotEmitted
from meshwright.planner.bounds.bases import priced
from meshwright.planner.bounds.bounds import Bounds
from meshwright.planner.bounds.coarse import CoarseBounds
from meshwright.planner.bounds.common import Common
from meshwright.planner.question.pins import Config
from meshwright.planner.question.pricing import LEAST_BATCH, Setting
from meshwright.planner.search.emittable import Emission
from meshwright.planner.search.masks import Masks
from meshwright.planner.space.baselines import Baseline
from meshwright.planner.space.declared import Space

CUT_SHORT = "not priced: the search was cut short"
IMPOSSIBLE = "not possible: the batch, the cluster or what was asked for rule it out"
TOO_LARGE = "not priced: parameter state alone exceeds all memory"
"""Of baselines."""
PROMISING = 0.97
"""Of the answer so far."""
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
    """Numbers of what a search has looked at."""

    bases: int = 0
    shapes: int = 0
    full: int = 0
    """Shapes that cannot fit."""
    slow: int = 0
    """Shapes that cannot be better than the answer was when they came up."""
    priced: int = 0
    refused: int = 0
    """Configurations that the model or the target cannot have."""
    unwritten: int = 0
    """Plans that would have been the answer, and that no code is written for."""
    left: int = 0
    """Shapes that were not priced though they may be better."""


@dataclass(frozen=True, slots=True, order=True)
class Waiting:
    """An entry of the queue, ordered by bound and then by arrival: a kernel configuration to be priced, or a
    configuration with the bounds of its kernel configuration."""

    bound_s: float
    number: int
    config: Config = field(compare=False)
    bounds: Bounds | None = field(default=None, compare=False)
    ran: bool = field(default=False, compare=False)
    """Whether its finer bound was taken; of a configuration, whether its schedule was run."""


class Search:
    """One search, step by step: `run` yields after every piece of work, and may be left at any time."""

    def __init__(self, setting: Setting, prices: Prices, space: Space, most: int = MOST_PRICED) -> None:
        self.setting, self.prices, self.space, self.most = setting, prices, space, most
        self.best: Found | None = None
        self.lower_s = 0.0
        self.counts = Counts()
        self.found: dict[Config, Found] = {}
        """Everything that was priced, in order."""
        self.refused: dict[Config, MeshwrightError] = {}
        self.refusal: MeshwrightError | None = None
        """The first that was met: where everything is refused, it says why."""
        self.laws = Masks()
        """What the model and the target refuse, of configurations as the target runs them."""
        self.emission: Emission | None = None
        """The guard of what becomes the answer, where code can be written for the target."""
        self.baselines: dict[str, Found] = {}
        """Those that have a price."""
        self.unpriced: dict[str, str] = {}
        """Why the others have none."""
        self.heap: list[Waiting] = []
        self.ceiling_s = inf
        """What an answer must be below."""
        self.expanded = False
        """Whether every base is queued: from then on the least bound in the queue holds for all that is left."""
        self.crowded: dict[tuple[object, ...], float] = {}
        """Per family and recomputation, sequences of a micro-batch with which no shape fits; nor does any with more."""
        self.quickest: dict[tuple[object, ...], float] = {}
        """Per family and sequences, the least time of any shape that computes nothing again."""
        self.operators_s = self.more_axes_s = 0.0
        """What no plan of operators takes less than (`planner.refine.operators.arrangements`); 0 where nothing is
        known."""
        self.common = Common(setting, prices, setting.folds.at(LEAST_BATCH))
        self.coarse = CoarseBounds(self.common, space)

    def run(
        self, known: Iterable[Baseline], first: Iterable[Config] = (), until_s: float | None = None
    ) -> Iterator[None]:
        """Run the search. `known` are plans to compare with, `first` other configurations to start with, `until_s` when
        to stop, on the monotonic clock."""

        def late() -> bool:
            return until_s is not None and time.monotonic() >= until_s

        known = tuple(known)
        self.unpriced = {baseline.name: CUT_SHORT if baseline.variants else IMPOSSIBLE for baseline in known}
        if self.hopeless:
            self.unpriced = dict.fromkeys(self.unpriced, TOO_LARGE)
            self.expanded = True
            return
        for baseline in known:
            for config in baseline.variants:
                found = self.price(config)
                if found:
                    self.baselines[baseline.name] = found
                    self.unpriced.pop(baseline.name, None)
                    yield
                elif baseline.name in self.unpriced:
                    self.unpriced[baseline.name] = self.refused[config].cause
                if found and found.fits:
                    break
        for config in first:
            self.price(config)
            yield
        yield from self.steps(late)

    def steps(self, late: Callable[[], bool]) -> Iterator[None]:
        """Queue every kernel configuration, and expand the least bound until nothing left can be better."""
        for number, base in enumerate(self.space.bases()):
            bound = self.coarse.bound_s(base, below_s=self.upper_s)
            if bound < inf:
                heapq.heappush(self.heap, Waiting(bound, number, base))
            if late():
                return
        self.expanded = True
        yield
        while self.counts.priced + len(self.refused) < self.most and not late() and self.advance():
            yield
        self.settle()

    def advance(self) -> bool:
        """Expand the entry with the least bound; false once nothing left can be better than the answer."""
        while self.heap and self.heap[0].bound_s < self.upper_s:
            first = heapq.heappop(self.heap)
            if first.bounds is None:
                self.expand(first)
                return True
            if not self.passes(first.config) and not self.returned(first, first.bounds):
                self.visit(first)
                return True
        return False

    def visit(self, waiting: Waiting) -> None:
        """Price the configuration with the least bound."""
        self.price(waiting.config)

    def returned(self, waiting: Waiting, bounds: Bounds) -> bool:
        """Run the schedule of a configuration that comes up for the first time, and put it back into the queue, or drop
        it, if others come before it then."""
        if waiting.ran:
            return False
        bound = bounds.run_s(waiting.config, bounds.wires(waiting.config))
        if self.heap and bound > self.heap[0].bound_s:
            if bound < self.upper_s:
                heapq.heappush(self.heap, replace(waiting, bound_s=bound, ran=True))
            else:
                self.counts.slow += 1
            return True
        return False

    @property
    def upper_s(self) -> float:
        return self.best.step_s if self.best else self.ceiling_s

    def better(self, found: Found) -> bool:
        """Whether a configuration that fits is better than the answer so far."""
        return found.step_s < self.upper_s

    @property
    def priced_any(self) -> bool:
        """Whether the model and the target allow anything that was looked at, whether it fits or not."""
        return bool(self.found or (self.counts.bases and not self.refused))

    @property
    def hopeless(self) -> bool:
        """Whether parameter state alone exceeds the memory of all devices together, so that neither smaller batches nor
        shorter sequences help."""
        return self.coarse.resting_bytes > self.common.capacity

    def may_fit(self) -> bool:
        """Whether any configuration of the space may fit, as far as coarse bounds know."""
        return any(self.coarse.bound_s(base) < inf for base in self.space.bases())

    @property
    def gap(self) -> float:
        """How much better than the answer anything in the space can be, as a share of it."""
        return 1 - self.lower_s / self.upper_s if self.best else 1.0

    def settle(self) -> None:
        """Update the proven bound."""
        left = [one.bound_s for one in self.heap if one.bound_s < self.upper_s]
        self.counts.left = len(left)
        self.lower_s = min([*left, self.upper_s])

    # bases and shapes

    def expand(self, pending: Waiting) -> None:
        """Price a kernel configuration and queue its configurations, unless it cannot matter any more."""
        config = pending.config
        family = config.tp, config.cp, config.ep, config.etp, config.context
        if config.mbs >= self.crowded.get((*family, config.recompute), inf):
            return
        if config.recompute != "none":
            # To compute anything again takes longer.
            least = self.quickest.get((*family, config.mbs), 0.0)
            if least > pending.bound_s:
                if least < self.upper_s:
                    heapq.heappush(self.heap, replace(pending, bound_s=least))
                return
        fine = pending.bound_s if pending.ran else self.coarse.bound_s(config, fine=True, below_s=self.upper_s)
        if fine > pending.bound_s:
            if fine < self.upper_s:
                heapq.heappush(self.heap, replace(pending, bound_s=fine, ran=True))
            return
        if self.masks_all(config):
            return
        try:
            base = self.coarse.priced(config)
        except MeshwrightError as error:
            self.refuse(error)
            return
        self.counts.bases += 1
        bounds = Bounds(self.common, base)
        quickest, room, first = self.queue(bounds)
        if first and self.promises(bounds, first):
            self.price(first)
        if not room:
            self.crowded[*family, config.recompute] = config.mbs
        if config.recompute == "none":
            self.quickest[*family, config.mbs] = quickest

    def promises(self, bounds: Bounds, config: Config) -> bool:
        """Whether a configuration is worth a price at once: an early good answer saves queueing."""
        return bounds.run_s(config, bounds.wires(config)) < PROMISING * self.upper_s

    def rooms(self, bounds: Bounds) -> tuple[Bounds, ...]:
        """Bounds on memory, of which one must hold for a configuration to be tried: recomputation that is pinned for
        modules makes room."""
        again = tuple(pin for pin in self.setting.modules if pin.what == "recompute")
        if not again:
            return (bounds,)
        return bounds, Bounds(self.common, priced(self.setting, self.prices, bounds.base.config, again))

    def queue(self, bounds: Bounds) -> tuple[float, bool, Config | None]:
        """Queue the configurations of a kernel configuration; returns the least time, whether any may fit (if there are
        any), and the most promising one."""
        quickest, room, some, first, least_s = inf, False, False, None, inf
        rooms = self.rooms(bounds)
        for pipeline in self.space.pipelines(bounds.base.config):
            some = True
            least = bounds.least_s(pipeline)
            if least < self.upper_s:
                least = bounds.step_s(pipeline)
            quickest = min(quickest, least)
            if least >= self.upper_s:
                self.counts.slow += 1
                room = True  # for all that is known
                continue
            loads = [(one, one.loads(pipeline)) for one in rooms]
            for storage in self.space.storages(pipeline):
                self.counts.shapes += 1
                if all(one.lacks_bytes(own, pipeline, storage) > 0 for one, own in loads):
                    self.counts.full += 1
                    continue
                room = True
                config = storage.on(pipeline)
                if self.passes(config):
                    continue
                bound = bounds.step_s(config, bounds.wires(config))
                if bound >= self.upper_s:
                    self.counts.slow += 1
                else:
                    heapq.heappush(self.heap, Waiting(bound, self.counts.shapes, config, bounds))
                    if bound < least_s:
                        first, least_s = config, bound
        return quickest, room or not some, first

    def refuse(self, error: MeshwrightError) -> None:
        """Count a refusal by the model or the target."""
        self.refusal = self.refusal or error
        self.counts.refused += 1

    # prices

    def price(self, config: Config) -> Found | None:
        """Ask the evaluator, once per configuration; None if the model or the target cannot have it."""
        if config in self.found:
            return self.found[config]
        if config in self.refused:
            return None
        prediction = self.predicted(config)
        if isinstance(prediction, MeshwrightError):
            self.refuse(prediction)
            self.refused[config] = prediction
            return None
        self.counts.priced += 1
        found = self.found[config] = Found(config, prediction)
        if found.fits and self.better(found) and self.written(found):
            self.best = found
        return found

    def predicted(self, config: Config) -> Prediction | MeshwrightError:
        """The price of a configuration, or the refusal of it: that of another one, where it holds for this one too."""
        ran = self.setting.ran(config)
        if (known := self.laws.of(ran)) is not None:
            return known
        try:
            return self.setting.predict(config, self.space.global_batch)
        except MeshwrightError as refusal:
            self.laws.note(ran, refusal)
            return refusal

    def written(self, found: Found) -> bool:
        """Whether code is written for a configuration that would be the answer."""
        written = self.emission is None or self.emission.writes_config(found.config, found.prediction)
        self.counts.unwritten += not written
        return written

    def masked(self, config: Config) -> MeshwrightError | None:
        """The refusal of another configuration that holds for this one: of the model, the target, or its code."""
        ran = self.setting.ran(config)
        return self.laws.of(ran) or (self.emission.masks.of(ran) if self.emission is not None else None)

    def passes(self, config: Config) -> bool:
        """Whether a configuration is known to be refused; it is counted then."""
        refusal = self.masked(config)
        self.counts.unwritten += isinstance(refusal, NotEmitted)
        self.counts.refused += refusal is not None and not isinstance(refusal, NotEmitted)
        return refusal is not None

    def masks_all(self, base: Config) -> bool:
        """Whether every configuration of a kernel configuration is known to be refused, and there is one."""
        if not self.laws and not (self.emission and self.emission.masks):
            return False
        every = [
            storage.on(pipeline) for pipeline in self.space.pipelines(base) for storage in self.space.storages(pipeline)
        ]
        return all(map(self.masked, every)) and sum(map(self.passes, every)) > 0

    def writes(self, config: Config, decisions: Decisions, prediction: Prediction) -> bool:
        """Whether code is written for a plan that was made of a configuration."""
        written = self.emission is None or self.emission.writes(config, decisions, prediction)
        self.counts.unwritten += not written
        return written
