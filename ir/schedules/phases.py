"""Schedules written as phases: a row of actions, so many times over.

Most schedules are, for one group, a few phases such as "fill with forwards, alternate, drain". An action of a phase
is its kind and the position of the stage within the group (``F0``, ``I1``); its micro-batch is the next one of that
kind and stage. ``W`` alone is the weight gradient that has waited longest. A full backward counts as an input
gradient, so ``B`` and ``I`` of one stage share their micro-batches.

The phases are written for as many micro-batches as the pattern needs, and what belongs to micro-batches that do not
exist is left out afterwards: dropping whole micro-batches from lists that do not wait in a circle leaves such lists.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from meshwright.ir.schedules.work import BACKWARD, INPUT, KINDS, WEIGHT, Shape

Phase = tuple[str, int]
"""Actions separated by blanks, and how often."""


def write_phases(phases: Iterable[Phase], stages: Sequence[int], shape: Shape) -> tuple[int, ...]:
    """The codes of one group that holds `stages`."""
    depth, limit = shape.depth, shape.microbatches
    upto = {(kind, stage): 0 for kind in range(4) for stage in stages}
    waiting: deque[tuple[int, int]] = deque()
    codes: list[int] = []
    for row, times in phases:
        steps = [(KINDS.index(word[0]), stages[int(word[1:])] if word[1:] else -1) for word in row.split()]
        for _ in range(times):
            for kind, stage in steps:
                if kind == WEIGHT and stage < 0:
                    at, mb = waiting.popleft()
                else:
                    counted = INPUT if kind == BACKWARD else kind
                    at, mb = stage, upto[counted, stage]
                    upto[counted, stage] = mb + 1
                    if kind == INPUT:
                        waiting.append((stage, mb))
                if mb < limit:
                    codes.append(4 * (mb * depth + at) + kind)
    return tuple(codes)
