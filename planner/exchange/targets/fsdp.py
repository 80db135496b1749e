"""What torch's data parallelism is: copies that replicate, and copies that share everything out (FSDP2, HSDP).

`dp_shard * cp` ranks, the nearest ones, share parameters, gradients and states; `dp_replicate` such groups are copies.
There is nothing between whole copies and sharing everything. ZeRO-1 and ZeRO-2 keep parameters whole between uses; the
nearest that there is keeps them gathered from the forward to the backward pass.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.planner.exchange.run import Room, Run
from meshwright.planner.exchange.target import Limit


def degrees(run: Run) -> tuple[int, int]:
    """The copies that replicate, and those that share, beside those of one sequence."""
    if run.zero == 0:
        return run.dp, 1
    sharing = run.shard // run.cp
    return run.dp // sharing, sharing


def storage(replicate: int, share: int, cp: int) -> dict[str, Any]:
    """What these copies store."""
    zero = 3 if share * cp > 1 else 0
    return {"dp": replicate * share, "zero": zero, "shard": share * cp if zero and replicate > 1 else 0}


def _all_or_nothing(run: Run, room: Room) -> Run:
    if run.zero in (1, 2):
        run = replace(run, zero=3, regather=False)
    if run.zero == 0 and run.cp > 1:
        run = replace(run, zero=3, shard=run.cp)
    return replace(run, shard=run.copies) if run.zero and run.shard % run.cp else run


STORAGE = Limit(
    "no option", "copies share out everything (FSDP) or nothing, those of one sequence everything", _all_or_nothing
)
