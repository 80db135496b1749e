"""Plans with the optimizer's state in the host's memory, tried where memory binds.

The declared space keeps everything on the device. Where nothing of it fits, or what would be faster than the answer
does not, the state of the optimizer may be what is in the way: eight to twelve bytes of each parameter that only the
end of the step reads. There the host makes the step (`offload=optimizer`, ZeRO-Offload), as slowly as its memory is.

Which configurations are worth a price is estimated: those that the bounds of memory let in without that state and not
with it, by what they take at least and by what the host takes for the largest state of a rank; first of bases by
coarse bounds, then of their configurations by bounds. The bound of the space does not hold for these plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import nsmallest
from operator import itemgetter

from meshwright.cost_models.offload import step_bytes_per_element, stepped_bytes_per_s
from meshwright.ir.errors import HostUnknown, MeshwrightError
from meshwright.planner.bounds.bounds import Bounds
from meshwright.planner.question.pins import Config
from meshwright.planner.refine.partial_recompute import WORTH, may_wait
from meshwright.planner.search.search import Found, Search

WORD = "optimizer"

MOST_BASES = 12
"""That are looked into, the quickest by coarse bounds."""
MOST_TRIED = 12
"""Configurations that are priced."""


@dataclass(frozen=True, slots=True)
class OptimizerOffload:
    """The optimizer's state in the host's memory, and the step made there."""

    def accepts(self, search: Search) -> bool:
        """Whether the target can offload, the optimizer has state, every host's speed is known, and no constraint
        speaks about offloading."""
        workload = search.setting.workload
        can = may_wait(search, WORD) and bool(workload.states.master or workload.moments)
        return can and _stepped_bytes_per_s(search) > 0

    def neighbours(self, search: Search) -> Iterator[Found | None]:
        """The most promising configurations, priced with the optimizer's state on the host."""
        rate = _stepped_bytes_per_s(search)
        found = [one for base in _bases(search) for one in _promising(search, base, rate)]
        for estimate_s, config in nsmallest(MOST_TRIED, found, key=itemgetter(0)):
            if estimate_s < WORTH * search.upper_s:
                yield search.price(replace(config, offload=WORD))


def _stepped_bytes_per_s(search: Search) -> float:
    """The rate at which the slowest host makes the step; 0 where one is not known."""
    try:
        return min(stepped_bytes_per_s(pool.device) for pool in search.prices.cluster.pools)
    except HostUnknown:
        return 0.0


def _bases(search: Search) -> list[Config]:
    """The quickest kernel configurations that have room for everything but that state."""
    space, coarse, most = search.space, search.coarse, search.space.most_sequences
    found: list[tuple[float, int, Config]] = []
    for number, base in enumerate(space.bases()):
        used, work_s = coarse.used_bytes(base, most), coarse.work_s(base, most)
        for sized in space.pipelined(base):
            step_s = sized.microbatches / sized.pp * work_s * coarse.common.straggling
            fullest = coarse.fullest(sized, used, offloaded=True) if step_s < WORTH * search.upper_s else None
            if fullest is not None and coarse.common.with_runtime(fullest).min() <= coarse.common.capacity:
                found.append((step_s, number, base))
    quickest = dict.fromkeys(base for _, _, base in sorted(found))
    return list(quickest)[:MOST_BASES]


def _promising(search: Search, base: Config, bytes_per_s: float) -> Iterator[tuple[float, Config]]:
    """Configurations of a kernel configuration that lack memory only for that state, with estimates of their step
    time."""
    workload = search.setting.workload
    host_s = step_bytes_per_element(workload) / ((workload.states.master + workload.moments) * bytes_per_s)
    try:
        bounds = Bounds(search.common, search.coarse.priced(base))
    except MeshwrightError:
        return
    for pipeline in search.space.pipelines(base):
        if bounds.step_s(pipeline) >= WORTH * search.upper_s:
            continue
        loads = bounds.loads(pipeline)
        for storage in search.space.storages(pipeline):
            lacks, without = (
                bounds.lacks_bytes(loads, pipeline, storage, offloaded=offloaded) for offloaded in (False, True)
            )
            if without <= 0 < lacks:
                config = storage.on(pipeline)
                stepped_s = bounds.stepped_bytes(loads, pipeline, storage) * host_s
                yield bounds.step_s(config, bounds.wires(config)) + stepped_s, config
