"""The search where something is asked of single modules.

Every configuration is priced with its template as pins change it (`ir.names.pinned`), and the best of these is the
answer. Bounds know nothing of such pins: they hold for configurations as their names mean them. So does the proof, and
for it what comes up is priced as its name means it too, as long as that may be the least price of all.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from meshwright.cost_models.prices import Prices
from meshwright.ir.errors import MeshwrightError
from meshwright.planner.question.pins import Config
from meshwright.planner.question.pricing import Setting
from meshwright.planner.search.search import MOST_PRICED, Search, Waiting
from meshwright.planner.space.declared import Space


class PinnedSearch(Search):
    """A search whose answer does what is asked of modules, and whose bound holds for all configurations without."""

    def __init__(self, setting: Setting, prices: Prices, space: Space, most: int = MOST_PRICED) -> None:
        super().__init__(setting, prices, space, most)
        self.free = replace(setting, modules=())
        self.free_s = inf
        """The least price of a configuration of which nothing is asked, and that fits."""

    def masked(self, config: Config) -> None:
        """What is refused may be so for its pins, and the bound is of what has none."""

    def visit(self, waiting: Waiting) -> None:
        if waiting.bound_s < self.free_s:
            try:
                prediction = self.free.predict(waiting.config, self.space.global_batch)
            except MeshwrightError:
                pass
            else:
                self.free_s = min(self.free_s, prediction.step_time_s) if prediction.fits else self.free_s
        super().visit(waiting)

    def settle(self) -> None:
        super().settle()
        self.lower_s = min(self.lower_s, self.free_s)
