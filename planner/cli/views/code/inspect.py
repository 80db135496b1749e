"""An inspection as a person reads it."""

from __future__ import annotations

from meshwright.planner.cli.views.tables import INDENT, Page, Table, columns, number, text
from meshwright.planner.plan.units import count, flops, nbytes, percent
from meshwright.planner.question.inspection import Inspection

SHOWN_CUTS = 6
SHOWN_KINDS = 6

BLOCK_COLUMNS = (
    text("block", 7),
    number("runs"),
    number("parameters"),
    number("ops", 2),
    number("forward", 5),
    number("backward", 3),
    number("moves", 1),
    number("kept", 4),
)


def show(found: Inspection) -> None:
    """Print to standard output."""
    page = Page()
    workload = found.workload
    page.say(f"{found.reference}  digest {found.digest}", "bold")
    trained = "" if found.trainable == found.parameters else f", {found.trainable:,} of them trained"
    page.say(f"{found.parameters:,} parameters{trained}, {nbytes(found.parameter_bytes)}")
    page.say(
        f"one step of {workload.batch} x {workload.seq} tokens: forward {flops(found.total.forward_flops)}, "
        f"backward {flops(found.total.backward_flops)}; "
        f"{workload.style} on {workload.device} keeps {nbytes(found.saved_bytes)} for backward"
    )
    page.blank()
    page.table(_blocks(found))
    page.say(f"runs as: {_order(found)}")
    page.blank()
    page.table(_loops(found))
    page.blank()
    page.table(_cuts(found))
    _say_legality(page, found)
    _say_coverage(page, found)
    for note in found.notes:
        page.say(f"note: {note}")
    page.print()


def _blocks(found: Inspection) -> Table:
    table = Table('unique blocks; "kept" is for backward', BLOCK_COLUMNS)
    for body in found.bodies:
        table.add(
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
    heads = text("loop", 2), number("size"), text("operators", 1)
    table = Table("loops that a mesh axis may split", heads)
    for loop in found.loops:
        kinds = ", ".join(loop.kinds[:SHOWN_KINDS]) + (", .." if len(loop.kinds) > SHOWN_KINDS else "")
        table.add(loop.name, f"{loop.size:,}", kinds)
    return table


def _cuts(found: Inspection) -> Table:
    places = sum(cut.count for cut in found.cuts)
    between = [cut for cut in found.cuts if cut.op is None]
    heads = columns("after", "places", "forward", "backward", "skips")
    table = Table(f"{places:,} places to cut for a pipeline; between blocks:", heads)
    for cut in between[:SHOWN_CUTS]:
        _, period, _ = found.segments[cut.segment]
        table.add(
            f"{period[cut.position]} ({cut.segment}.{cut.position})",
            str(cut.count),
            nbytes(cut.forward_bytes),
            nbytes(cut.backward_bytes),
            str(len(cut.skips)),
        )
    if len(between) > SHOWN_CUTS:
        table.add(f".. {len(between) - SHOWN_CUTS} more, see --json", *[""] * (len(heads) - 1))
    return table


def _say_legality(page: Page, found: Inspection) -> None:
    page.blank()
    if found.workload.batch == 1:
        page.say("micro-batches: one sample has nothing to cut; inspect with --batch 2 or more")
        return
    if found.microbatch.legal:
        page.say("micro-batches: legal, every path to the loss is additive in the batch")
        return
    page.say("micro-batches: they would change the result")
    for blocker in found.microbatch.blockers:
        page.say(str(blocker), label=INDENT)


def _say_coverage(page: Page, found: Inspection) -> None:
    total = found.total
    page.say(
        f"coverage: {percent(total.covered_flops)} of FLOPs and {percent(total.covered_bytes)} of bytes are under rules"
    )
    for opaque in total.opaque:
        page.say(
            f"opaque: {opaque.target} x {opaque.count} in {opaque.module or 'the model'} {opaque.source}", label=INDENT
        )
