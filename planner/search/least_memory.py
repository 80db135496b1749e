"""The search for the least memory: the same space, in the order of what configurations need at least.

The bound of a configuration is the one that tells others that they cannot fit (`Bounds.lacks_bytes`), so every base is
priced, whether it is fast or not. Once the least bound left is no less than the answer's peak, the answer is proved.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from meshwright.ir.errors import MeshwrightError
from meshwright.planner.bounds.bases import priced
from meshwright.planner.bounds.bounds import Bounds
from meshwright.planner.question.pins import Config
from meshwright.planner.search.search import Found, Search


class LeastMemory(Search):
    """A search by peak memory. Bounds of time are not kept: `lower_s` stays 0."""

    lower_bytes = 0.0

    @property
    def upper_bytes(self) -> float:
        return self.best.prediction.peak_memory_bytes if self.best else self.common.capacity

    def better(self, found: Found) -> bool:
        if self.best is None:
            return True
        peak, least = found.prediction.peak_memory_bytes, self.upper_bytes
        return peak < least or (peak == least and found.step_s < self.best.step_s)

    def steps(self, late: Callable[[], bool]) -> Iterator[None]:
        """Bound every shape, then price them, the one that needs least first."""
        waiting: list[tuple[float, int, Config]] = []
        for config in self.space.bases():
            try:
                bounds = Bounds(self.common, priced(self.setting, self.prices, config))
            except MeshwrightError:
                self.counts.refused += 1
                continue
            self.counts.bases += 1
            rooms = self.rooms(bounds)
            for pipeline in self.space.pipelines(config):
                loads = [(one, one.loads(pipeline)) for one in rooms]
                for storage in self.space.storages(pipeline):
                    self.counts.shapes += 1
                    lacks = min(one.lacks_bytes(own, pipeline, storage) for one, own in loads)
                    needed = lacks + self.common.capacity
                    if needed <= self.upper_bytes:
                        heapq.heappush(waiting, (needed, self.counts.shapes, storage.on(pipeline)))
            if late():
                return
            yield
        self.expanded = True
        least = waiting[0][0] if waiting else self.upper_bytes
        while waiting and not late() and waiting[0][0] <= self.upper_bytes and self.counts.priced < self.most:
            self.lower_bytes = least if self.setting.modules else waiting[0][0]
            config = heapq.heappop(waiting)[2]
            if self.passes(config):
                continue
            self.price(config)
            yield
        left = [needed for needed, _, _ in waiting if needed < self.upper_bytes]
        self.counts.left = len(left)
        self.lower_bytes = min([*left, self.upper_bytes])
        if self.setting.modules:
            self.lower_bytes = min(least, self.lower_bytes)  # bounds, and so the proof, know nothing of such pins

    def settle(self) -> None:
        """Do nothing: what is proved is kept up to date while configurations are priced."""
