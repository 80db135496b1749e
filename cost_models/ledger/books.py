"""Books: the ledgers of body programs, remembered for every cluster, profile and batch that they are priced with.

A ledger depends on none of these (`meshwright.cost_models.ledger.ledger`), so that searches of one model on several
clusters, as those that look for what would make a plan fit, write it down once.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from meshwright.cost_models.ledger.ledger import Known, Ledger, ledger
from meshwright.ir.program.program import BodyProgram
from meshwright.ir.target.workload import Workload, sizeless

MOST_KNOWN = 16384
"""Body programs, stages and groups of ranks that are remembered, of each."""

MOST_LISTS = 32768
"""Lists of statements and their phases that are; each takes a few kilobytes."""


def make_room(known: dict[Any, Any], most: int = MOST_KNOWN) -> None:
    """Forget the older half, if there are too many."""
    if len(known) >= most:
        for key in list(islice(known, most // 2)):
            del known[key]


class Books:
    """Ledgers of body programs, each known by identity and kept with its program."""

    def __init__(self) -> None:
        self._ledgers: dict[tuple[int, Workload, bool], tuple[BodyProgram, Ledger]] = {}
        self._lists: Known = {}

    def ledger(self, body: BodyProgram, workload: Workload, accumulates: bool) -> Ledger:
        key = (id(body), sizeless(workload), accumulates)
        if key not in self._ledgers:
            make_room(self._ledgers)
            make_room(self._lists, MOST_LISTS)
            self._ledgers[key] = (body, ledger(body, key[1], accumulates=accumulates, known=self._lists))
        return self._ledgers[key][1]
