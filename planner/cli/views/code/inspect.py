"""An inspection as a person reads it: tables by rich, plain text where there is no terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from meshwright.planner.plan.units import count, flops, nbytes, percent
from meshwright.planner.question.inspection import Inspection

WIDTH = 120
"""Columns where no terminal says how many it has, and on one with fewer: a line that wraps is better than a number that
is cut off."""

SHOWN_CUTS = 6
SHOWN_KINDS = 6


def show(found: Inspection) -> None:
    """Print to standard output."""
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, WIDTH) if console.is_terminal else WIDTH
    workload = found.workload
    console.print(f"[bold]{found.reference}[/]  digest {found.digest}")
    trained = "" if found.trainable == found.parameters else f", {found.trainable:,} of them trained"
    console.print(f"{found.parameters:,} parameters{trained}, {nbytes(found.parameter_bytes)}")
    console.print(
        f"one step of {workload.batch} x {workload.seq} tokens: forward {flops(found.total.forward_flops)}, "
        f"backward {flops(found.total.backward_flops)}; "
        f"{workload.style} on {workload.device} keeps {nbytes(found.saved_bytes)} for backward"
    )
    console.print()
    console.print(_blocks(found))
    console.print(f"runs as: {_order(found)}")
    console.print()
    console.print(_loops(found))
    console.print()
    console.print(_cuts(found))
    _show_legality(console, found)
    _show_coverage(console, found)
    for note in found.notes:
        console.print(f"note: {note}")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def _blocks(found: Inspection) -> Table:
    table = _table(
        "unique blocks", "block", "runs", "parameters", "ops", "forward", "backward", "moves", "keeps for backward"
    )
    for body in found.bodies:
        table.add_row(
            body.name,
            f"{body.runs:,}",
            count(body.parameters),
            str(body.account.ops),
            flops(body.account.forward_flops),
            flops(body.account.backward_flops),
            nbytes(body.account.nbytes),
            nbytes(body.saved_bytes),
        )
    return table


def _order(found: Inspection) -> str:
    parts = []
    for _, period, repeats in found.segments:
        text = " ".join(_runs(period))
        parts.append(text if repeats == 1 else (f"({text}) x {repeats}" if " " in text else f"{text} x {repeats}"))
    return ", ".join(parts)


def _runs(names: tuple[str, ...]) -> list[str]:
    """Names in order, equal neighbours joined."""
    runs: list[tuple[str, int]] = []
    for name in names:
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1] + 1)
        else:
            runs.append((name, 1))
    return [name if number == 1 else f"{number} {name}" for name, number in runs]


def _loops(found: Inspection) -> Table:
    table = _table("loops that a mesh axis may split", "loop", "size", "operators")
    table.columns[2].justify = "left"
    for loop in found.loops:
        kinds = ", ".join(loop.kinds[:SHOWN_KINDS]) + (", …" if len(loop.kinds) > SHOWN_KINDS else "")
        table.add_row(loop.name, f"{loop.size:,}", kinds)
    return table


def _cuts(found: Inspection) -> Table:
    places = sum(cut.count for cut in found.cuts)
    between = [cut for cut in found.cuts if cut.op is None]
    table = _table(
        f"{places:,} places to cut for a pipeline; between blocks:", "after", "places", "forward", "backward", "skips"
    )
    for cut in between[:SHOWN_CUTS]:
        _, period, _ = found.segments[cut.segment]
        table.add_row(
            f"{period[cut.position]} ({cut.segment}.{cut.position})",
            str(cut.count),
            nbytes(cut.forward_bytes),
            nbytes(cut.backward_bytes),
            str(len(cut.skips)),
        )
    if len(between) > SHOWN_CUTS:
        table.add_row(f"… {len(between) - SHOWN_CUTS} more, see --json")
    return table


def _show_legality(console: Console, found: Inspection) -> None:
    console.print()
    if found.workload.batch == 1:
        console.print("micro-batches: one sample has nothing to cut; inspect with --batch 2 or more")
        return
    if found.microbatch.legal:
        console.print("micro-batches: legal, every path to the loss is additive in the batch")
        return
    console.print("micro-batches: they would change the result")
    for blocker in found.microbatch.blockers:
        console.print(f"  {blocker}", markup=False)


def _show_coverage(console: Console, found: Inspection) -> None:
    total = found.total
    console.print(
        f"coverage: {percent(total.covered_flops)} of FLOPs and {percent(total.covered_bytes)} of bytes are under rules"
    )
    for opaque in total.opaque:
        console.print(
            f"  opaque: {opaque.target} x {opaque.count} in {opaque.module or 'the model'} {opaque.source}",
            markup=False,
        )
