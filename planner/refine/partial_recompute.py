"""Plans that treat only the first few layers of every stage: recomputed, or with their activations offloaded.

The space knows recomputation of all layers or of none. A configuration that computes nothing again, would be faster
than the answer and is a little too full may fit with a few layers treated so, at a fraction of what all of them cost:

    full_layers:N      computed again (Megatron-LM's recompute method "block")
    activations:N      kept on the host, where the target can (Megatron-LM's cpu_offloading_num_layers)

Blocks that are computed again keep what they read, and that may wait on the host, too, where the target can.

Which configurations are worth a try is estimated: what they take as they are, and the share of their activations that
does not fit times what it costs to treat all of them so; first of bases by coarse bounds, then of their configurations
by bounds. Of each that looks best the least N that fits is sought. The evaluator prices every step; how much it finds
above an estimate is taken to hold for others that store alike, and a refusal for others of the same schedule. The bound
of the space does not hold for these plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from operator import itemgetter

from meshwright.cost_models.hardware.devices import LOOPBACK
from meshwright.ir.errors import MeshwrightError
from meshwright.planner.bounds.bounds import Bounds
from meshwright.planner.question.pins import Config
from meshwright.planner.search.search import Found, Search

MOST_KINDS = 8
"""Of bases, that are looked into."""
MOST_ALIKE = 2
"""Bases of one kind, which differ in the sequences of a micro-batch."""
MOST_TRIED = 30
"""Configurations, as many of each recomputation; of those that differ in schedule the quickest. One that does not fit
with as many layers treated as can be counts a third. With 10, eleven published runs were 1.2 to 2.9 % faster than what
was found beside them; with 30 none is, and searches take 5 to 8 % longer (2026-12-01)."""
WORTH = 0.99
"""Of the answer: what is not estimated to be faster by this much is left alone."""


@dataclass(frozen=True, slots=True)
class Partial:
    """An improvement that treats the first few layers of every stage in one way. `whole`: all of them may be.

    `name` is that of a knob, whose value is the `word` and how many layers.
    """

    name: str
    word: str
    whole: bool

    def accepts(self, search: Search) -> bool:
        """Whether there is an answer to beat, the target can, and no constraint speaks about it."""
        if search.best is None or not self.beside(search):
            return False
        if self.name == "offload":
            return may_wait(search, self.word)
        return "full" in search.space.recompute() and unasked(search, self.name)

    def beside(self, search: Search) -> list[str]:
        """The recomputation of all layers beside which some are treated so."""
        again = map(str, search.space.recompute())
        if self.name == "offload":
            return [one for one in again if search.space.target.waits(again=one != "none")]
        return [one for one in again if one == "none"]

    def neighbours(self, search: Search) -> Iterator[Found | None]:
        """The configurations that look best, by the estimates of this way alone, each with as few layers treated as
        fit."""
        quickest: dict[tuple[object, ...], tuple[float, Config]] = {}
        for base in bases(search, self):
            for step_s, config in promising(search, base, self):
                key = base, config.pp, config.zero, config.shard, config.regather
                if key not in quickest or step_s < quickest[key][0]:
                    quickest[key] = step_s, config
        kinds = self.beside(search)
        for kind in kinds:
            left = 3 * -(-MOST_TRIED // len(kinds))
            waiting = sorted((one for one in quickest.values() if one[1].recompute == kind), key=itemgetter(0))
            slower: dict[tuple[object, ...], float] = {}
            """How many times its estimate a configuration took, by what such have in common."""
            while waiting and left > 0:
                estimates = [step_s * slower.get(_stored(config), 1.0) for step_s, config in waiting]
                step_s, config = waiting.pop(estimates.index(min(estimates)))
                if step_s >= search.upper_s:
                    continue
                tries, least_s = 0, inf
                for found in self.fewest(search, config):
                    tries += 1
                    least_s = min(least_s, found.step_s) if found else least_s
                    yield found
                left -= 3 if tries > 1 else 1
                if least_s < inf:
                    slower[_stored(config)] = min(slower.get(_stored(config), inf), max(1.0, least_s / step_s))
                else:
                    waiting = [one for one in waiting if one[1].schedule != config.schedule]

    def fewest(self, search: Search, config: Config) -> Iterator[Found | None]:
        """A configuration with as many layers treated as can be, then with as few as fit, unless that is slower than
        the answer."""
        layers = -(-search.space.layers // (config.pp * config.vp))
        few, many = 1, layers if self.whole else layers - 1
        count = many
        while few <= many:
            found = search.price(self.of(config, 0 if self.whole and count == layers else count))
            yield found
            if found is None or (not found.fits and (count == many or found.step_s >= search.upper_s)):
                return  # with more it takes longer still
            few, many = (few, count - 1) if found.fits else (count + 1, many)
            count = (few + many) // 2

    def of(self, config: Config, layers: int) -> Config:
        """A configuration with so many layers of every stage treated; 0: with all."""
        changed: dict[str, str] = {self.name: f"{self.word}:{layers}" if layers else self.word}
        return replace(config, **changed)  # type: ignore[arg-type]


RECOMPUTED = Partial("recompute", "full_layers", whole=False)
OFFLOADED = Partial("offload", "activations", whole=True)


@dataclass(frozen=True, slots=True)
class Treated:
    """Least costs of freeing the activations of a micro-batch: recomputed, or sent to the host and back behind the work
    of other layers."""

    work_s: float
    """Of the micro-batch itself."""
    treated_s: float
    """Of all its activations."""
    behind_s: float
    """What of that takes no time, behind the work."""

    @staticmethod
    def of(search: Search, base: Config, way: Partial) -> Treated:
        coarse, most = search.coarse, search.space.most_sequences
        work_s = coarse.work_s(base, most)
        if way is RECOMPUTED:
            return Treated(work_s, coarse.work_s(replace(base, recompute="full"), most) - work_s, 0.0)
        kept = sum(
            times * one for (_, times), one in zip(coarse.common.calls, coarse.kept_bytes(base, most), strict=True)
        )
        wire = max(pool.device.host_link.share_bytes_per_s for pool in search.prices.cluster.pools)
        return Treated(work_s, 2 * kept / wire, 2 * work_s / 3)  # there behind a third of the work, forward, and back

    def seconds(self, share: float) -> float:
        """Seconds to treat this share of all activations, for one micro-batch on all stages."""
        return max(0.0, share * self.treated_s - self.behind_s)


def bases(search: Search, way: Partial) -> list[Config]:
    """Kernel configurations of the kinds that were priced, the quickest kinds first: of each kind, with every
    recomputation beside which layers are treated so, the quickest with whatever does not fit treated."""
    space, coarse = search.space, search.coarse
    room = coarse.common.capacity - coarse.common.with_runtime(0.0)
    ranked = sorted(search.found.values(), key=lambda one: (one.step_s, str(one.config)))
    kinds = list(dict.fromkeys(_kind(one.config) for one in ranked))[:MOST_KINDS]
    alike: dict[tuple[object, ...], list[tuple[float, int, int, Config]]] = {
        (kind, again): [] for kind in kinds for again in way.beside(search)
    }
    for number, base in enumerate(space.bases()):
        own = _kind(base), base.recompute
        if own not in alike:
            continue
        treated, kept = Treated.of(search, base, way), coarse.kept_bytes(base, space.most_sequences)
        least = 0 * kept if way.whole else coarse.kept_bytes(replace(base, recompute="full"), space.most_sequences)
        for sized in space.pipelined(base):
            times = sized.microbatches / sized.pp * coarse.common.straggling
            fullest, state = (coarse.fullest_bytes(sized, one, sharded=True) for one in (kept, least))
            if times * treated.work_s < WORTH * search.upper_s and state < min(room, fullest) and fullest < inf:
                share = max(0.0, fullest - room) / (fullest - state)
                estimate_s = times * (treated.work_s + treated.seconds(share))
                alike[own].append((estimate_s, -base.mbs, number, base))  # of equal ones, that with the fewest gathers
    quickest = [dict.fromkeys(base for *_, base in sorted(several)) for several in alike.values()]
    return [base for several in quickest for base in list(several)[:MOST_ALIKE]]


def _kind(config: Config) -> tuple[object, ...]:
    return config.tp, config.cp, config.ep, config.etp, config.context


def _stored(config: Config) -> tuple[object, ...]:
    """What configurations have in common of which estimates are off alike: what they exchange of their state."""
    return config.pp, config.zero, config.shard


def promising(search: Search, base: Config, way: Partial) -> Iterator[tuple[float, Config]]:
    """Configurations of a kernel configuration that do not fit as they are, with estimates of their step time once they
    do, where that beats the answer."""
    space, most, treated = search.space, WORTH * search.upper_s, Treated.of(search, base, way)
    try:
        bounds = Bounds(search.common, search.coarse.priced(base))
    except MeshwrightError:
        return
    for pipeline in space.pipelines(base):
        if bounds.step_s(pipeline) >= most:
            continue
        loads = bounds.loads(pipeline)
        most_kept = max(load.before for load in loads)
        for storage in space.storages(pipeline):
            lacks = bounds.lacks_bytes(loads, pipeline, storage)
            if not 0 < lacks < most_kept:
                continue
            config = storage.on(pipeline)
            step_s = bounds.step_s(config, bounds.wires(config))
            step_s += treated.seconds(lacks / most_kept) * pipeline.microbatches / pipeline.pp
            if step_s < most:
                yield step_s, config


def may_wait(search: Search, kind: str) -> bool:
    """Whether the target can keep this in the host's memory, that memory is not the devices' own, and no constraint
    speaks about offloading."""
    can = any(line.name == kind for line in search.space.target.offload)
    apart = all(pool.device.host_link.kind != LOOPBACK for pool in search.prices.cluster.pools)
    return can and apart and unasked(search, "offload")


def unasked(search: Search, name: str) -> bool:
    """Whether no constraint speaks about a name."""
    return not any((search.space.constraints.only.get(name, ()), search.space.constraints.never.get(name, ())))
