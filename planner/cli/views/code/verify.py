"""A verification as a person reads it, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meshwright.backends.results import Verified
from meshwright.planner.cli.views.tables import Page
from meshwright.planner.plan.units import nbytes

LABEL = 14
"""Characters of a line's label, with the blanks after it."""
MOST_LINES = 20
"""Differences that are printed; --json has all."""


def shown(found: Verified, planned: tuple[float, ...]) -> Iterable[str]:
    """The lines to print."""
    yield f"{found.ranks} ranks, {found.steps} steps against one device: {'exact' if found.exact else 'DIFFERENT'}"
    yield f"loss          {', '.join(f'{loss:.6f}' for loss in found.losses)}"
    yield f"compared      {found.tensors} tensors per rank and step, the worst off by {found.worst:.1e}"
    if found.still:
        yield f"random        {', '.join(found.still)}: compared without draws, on both sides"
    if found.in_fp64 is not None:
        off = f"{found.apart} tensors are off by more than 1e-05 in fp32"
        yield f"rounding      {off}; of the same script in fp64, the worst by {found.in_fp64:.1e}"
    elif found.failed_in_fp64:
        yield f"rounding      is not told from faults: the script does not run in fp64 ({found.failed_in_fp64})"
    elif found.rounded:
        yield f"rounding      {found.rounded} gradients are as near to those in fp32 as one device's are"
    for kind, axes, number, size in found.collectives:
        yield f"per step      {number} {kind} over {axes}, {nbytes(size)}"
    for kind, axes, number, size in found.once:
        yield f"once          {number} {kind} over {axes}, {nbytes(size)}"
    if found.memory:
        run, plan = max(zip(found.memory, planned, strict=True))
        far = f"{plan / run - 1:+.1%}"
        yield f"memory        {nbytes(run)} of tensors on the fullest rank, {nbytes(plan)} planned ({far})"
    if found.read_whole:
        yield f"not executed  {found.read_whole} collectives of tokens and labels: every rank reads them whole"
    yield from found.differences[:MOST_LINES]
    if len(found.differences) > MOST_LINES:
        yield f"and {len(found.differences) - MOST_LINES} more: see --json"


def say(lines: Iterable[str]) -> None:
    """Print lines to standard output, each in as many as the terminal makes of it."""
    page = Page()
    for line in lines:
        page.say(line, indent=" " * LABEL)
    page.print()


def to_json(found: Verified, planned: tuple[float, ...]) -> dict[str, Any]:
    """The JSON, as docs/emit.md describes it."""

    def rows(collectives: Iterable[tuple[str, str, int, int]]) -> list[dict[str, Any]]:
        return [{"kind": kind, "axes": axes, "count": n, "bytes": size} for kind, axes, n, size in collectives]

    return {
        "exact": found.exact,
        "ranks": found.ranks,
        "steps": found.steps,
        "losses": list(found.losses),
        "tensors": found.tensors,
        "worst": found.worst,
        "collectives": rows(found.collectives),
        "once": rows(found.once),
        "read_whole": found.read_whole,
        "memory": [{"bytes": run, "planned_bytes": plan} for run, plan in zip(found.memory, planned, strict=False)],
        "rounded": found.rounded,
        "in_fp64": found.in_fp64,
        "random": list(found.still),
        "differences": list(found.differences),
    }
