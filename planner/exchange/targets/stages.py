"""How targets share out the layers of a pipeline, and the nearest ways that they have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from meshwright.ir.errors import MeshwrightError
from meshwright.ir.names.stages import shared
from meshwright.ir.schedules import SCHEDULES
from meshwright.planner.exchange.run import Room, Run, with_degrees

MOST_STAGES = 4096
"""Of a layout that is read."""
_REPEATED = re.compile(r"\(([^()]*)\)\*(\d{1,4})|([A-Za-z|])\*(\d{1,4})")


def evenly(layers: int, stages: int) -> tuple[int, ...]:
    """Layers as evenly as they go, or nothing where stages would be empty."""
    try:
        return shared(layers, stages, "spread")
    except MeshwrightError:
        return ()


def restaged(run: Run, room: Room, *, vp: int, schedule: str) -> Run:
    """The run with as many groups of ranks, and other stages on them."""
    return replace(run, vp=vp, schedule=schedule, stages=evenly(room.layers, run.pp * vp))


def one_f_one_b(run: Run, room: Room) -> Run:
    """The run with 1F1B, interleaved where groups hold several stages and micro-batches are a multiple of them."""
    if run.pp == 1:
        return run
    if run.vp > 1 and run.microbatches % run.pp:
        return restaged(run, room, vp=1, schedule="1f1b")
    if run.schedule in SCHEDULES and SCHEDULES[run.schedule].vee:
        return restaged(run, room, vp=run.vp, schedule="interleaved")
    return replace(run, schedule="interleaved" if run.vp > 1 else "1f1b")


def unpiped(run: Run, room: Room) -> Run:
    """The run without a pipeline: what its groups of ranks were, copies are."""
    return run if run.pp == 1 else with_degrees(run, room, pp=1)


# Megatron's layouts ---------------------------------------------------------------------------------------------------


def layout(stages: Sequence[int]) -> str:
    """Layers of stages as Megatron-Core's layouts write them: E embedding, t a layer, L the loss, | between stages."""
    parts = [f"t*{count}" if count > 1 else "t" * count for count in stages]
    parts[0], parts[-1] = f"E{parts[0]}", f"{parts[-1]}L"
    return "|".join(parts)


def of_layout(text: str) -> tuple[int, ...] | None:
    """The layers of stages of a layout; None if it is none, or has anything but layers between embedding and loss."""
    found = text.replace(",", "").replace(" ", "")
    while match := _REPEATED.search(found):
        piece, times = (match[1], match[2]) if match[2] else (match[3], match[4])
        if len(piece) * int(times) > MOST_STAGES:
            return None
        found = f"{found[: match.start()]}{piece * int(times)}{found[match.end() :]}"
    parts = found.split("|")
    if not found.startswith("E") or not found.endswith("L") or len(parts) > MOST_STAGES:
        return None
    parts[0], parts[-1] = parts[0][1:], parts[-1].removesuffix("L")
    return tuple(map(len, parts)) if all(set(part) <= {"t"} for part in parts) else None
