"""Ranks that ran alone, as a person reads it, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from meshwright.backends.results import Alone
from meshwright.planner.plan.units import nbytes


def line(one: Alone) -> str:
    """The line of a rank when it is done."""
    number = sum(count for _, _, count, _ in one.collectives)
    stages = f"stage {one.stages[0]}" if len(one.stages) == 1 else f"stages {' '.join(map(str, one.stages))}"
    equal = "as planned" if not one.differences else "DIFFERENT"
    return (
        f"rank {one.rank}, {stages}: {number} collectives and messages {equal}; "
        f"{one.wall_s:.1f} s, {one.cpu_s:.1f} s of CPU, {nbytes(one.peak_bytes)}"
    )


def shown(found: Sequence[Alone], ranks: int) -> Iterable[str]:
    """The summary after all ranks."""
    wrong = [f"rank {one.rank}: {what}" for one in found for what in one.differences]
    first = found[0]
    yield (
        f"{len(found)} of {ranks} ranks, each alone: "
        f"{'communicates what is priced' if not wrong else 'DIFFERENT'}; at most "
        f"{max(one.wall_s for one in found):.1f} s, {max(one.cpu_s for one in found):.1f} s of CPU and "
        f"{nbytes(max(one.peak_bytes for one in found))}"
    )
    for kind, axes, number, size in first.collectives:
        yield f"rank {first.rank}, per step  {number} {kind} over {axes}, {nbytes(size)}"
    yield from wrong


def to_json(found: Sequence[Alone], ranks: int) -> dict[str, Any]:
    """The JSON, as docs/emit.md describes it."""
    return {
        "exact": not any(one.differences for one in found),
        "ranks": ranks,
        "alone": [
            {
                "rank": one.rank,
                "stages": list(one.stages),
                "collectives": [
                    {"kind": kind, "axes": axes, "count": n, "bytes": size} for kind, axes, n, size in one.collectives
                ],
                "wall_s": one.wall_s,
                "cpu_s": one.cpu_s,
                "peak_bytes": one.peak_bytes,
                "differences": list(one.differences),
            }
            for one in found
        ],
    }
