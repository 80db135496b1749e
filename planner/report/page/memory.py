"""Memory: one waterfall of the fullest rank, and a bar for each group of ranks, under what may be used of a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.planner.plan.units import nbytes
from meshwright.planner.report.facts.memory import PARTS, GroupMemory, fullest
from meshwright.planner.report.page.colours import PARTS as COLOURS
from meshwright.planner.report.page.markup import (
    Markup,
    details,
    drawing,
    join,
    label,
    legend,
    num,
    scrolling,
    section,
    table,
    tag,
)

WIDTH, LEFT, RIGHT = 900.0, 130.0, 70.0
ROW, BAR, TOP = 26.0, 18.0, 34.0
MOST = 24
"""Groups that are drawn; of more, the first and the last half, and the fullest."""


def memory(groups: Sequence[GroupMemory]) -> Markup:
    """The section on memory."""
    least = fullest(groups)
    told = (
        f"What one rank holds at its fullest instant, by the prediction's ledger. The line is what may be used of a "
        f"device: {nbytes(least.capacity_bytes)} of {nbytes(least.device_bytes)}."
    )
    shown = drawn(groups)
    left_out = len(groups) - len(shown)
    own = "; stages that share ranks share their memory" if least.several else ""
    rest = f" {left_out} rows between are in the table alone." if left_out else ""
    return section(
        "memory",
        "Memory",
        tag("p", told),
        tag("h3", f"The fullest rank: {least.name}, at the {least.instant}"),
        _waterfall(least),
        tag("h3", "Every group of ranks"),
        legend(((COLOURS[name], name) for name in PARTS), "memory-groups", "what memory is held by"),
        tag("p", f"Neighbours that hold the same are one row{own}.{rest}", class_="quiet"),
        _bars(shown),
        details("Memory of all groups in figures", _table(groups)),
    )


def drawn(groups: Sequence[GroupMemory]) -> tuple[GroupMemory, ...]:
    """The rows that are drawn."""
    if len(groups) <= MOST:
        return tuple(groups)
    half, least = MOST // 2, fullest(groups)
    kept = {*range(half), *range(len(groups) - half, len(groups)), groups.index(least)}
    return tuple(groups[index] for index in sorted(kept))


def _scale(groups: Sequence[GroupMemory]) -> float:
    """Pixels of a byte."""
    return (WIDTH - LEFT - RIGHT) / max(max(one.device_bytes, one.peak_bytes) for one in groups)


def _waterfall(group: GroupMemory) -> Markup:
    scale, rows, at = _scale((group,)), [], 0.0
    for index, (name, size) in enumerate(group.parts):
        y, start, width = TOP + index * ROW, LEFT + at * scale, size * scale
        rows += [
            label(LEFT - 8, y + 13, name, anchor="end"),
            tag("rect", x=start, y=y, width=max(width, 0.5), height=BAR, class_=f"part edge {COLOURS[name]}"),
            label(min(start + width + 5, WIDTH - RIGHT + 5), y + 13, nbytes(size), class_="halo"),
        ]
        at += size
        rows.append(tag("path", d=f"M{num(LEFT + at * scale)} {num(y)}v{num(ROW + BAR)}", class_="grid"))
    y = TOP + len(group.parts) * ROW
    rows += [
        label(LEFT - 8, y + 13, "together", anchor="end", class_="strong"),
        tag("rect", x=LEFT, y=y, width=at * scale, height=BAR, class_="box"),
        label(LEFT + at * scale + 5, y + 13, nbytes(group.peak_bytes), class_="strong halo"),
    ]
    rows = [*_limits(group, scale, 16.0, y + BAR + 6), *rows]
    parts = ", ".join(f"{name} {nbytes(size)}" for name, size in group.parts)
    told = f"{parts}: together {nbytes(group.peak_bytes)} of {nbytes(group.capacity_bytes)}."
    height = y + ROW + 8
    made = drawing("memory-waterfall", "Memory of the fullest rank", told, WIDTH, height, *rows)
    return scrolling(made, "memory of the fullest rank")


def _limits(group: GroupMemory, scale: float, top: float, bottom: float) -> Iterator[Markup]:
    """The lines of what may be used, and of what the device has."""
    x, end = LEFT + group.capacity_bytes * scale, LEFT + group.device_bytes * scale
    yield tag("path", d=f"M{num(x)} {num(top)}V{num(bottom)}", class_="limit")
    yield label(x - 4, top - 4, f"may be used: {nbytes(group.capacity_bytes)}", anchor="end")
    yield tag("path", d=f"M{num(end)} {num(top)}V{num(bottom)}", class_="line")
    yield label(end + 4, top - 4, "device")


def _bars(groups: Sequence[GroupMemory]) -> Markup:
    scale, rows = _scale(groups), list[Markup]()
    for index, group in enumerate(groups):
        y, at = TOP + index * ROW, LEFT
        bars = []
        for name, size in group.parts:
            width = size * scale
            if width >= 0.05:
                bars.append(tag("rect", x=at, y=y, width=width, height=BAR, class_=f"part edge {COLOURS[name]}"))
            at += width
        told = ", ".join(f"{name} {nbytes(size)}" for name, size in group.parts)
        rows += [
            label(LEFT - 8, y + 13, group.name, anchor="end"),
            tag("g", tag("title", f"{group.name}: {told}"), *bars),
            label(at + 5, y + 13, nbytes(group.peak_bytes), class_="halo"),
        ]
    height = TOP + len(groups) * ROW + 8
    alike = len({(one.capacity_bytes, one.device_bytes) for one in groups}) == 1
    limits = _limits(groups[0], scale, 16.0, height - 4) if alike else _own_limits(groups, scale)
    rows = [*limits, *rows]
    told = f"{len(groups)} rows of stacked bars; the fullest holds {nbytes(max(one.peak_bytes for one in groups))}."
    made = drawing("memory-groups", "Memory of every group", told, WIDTH, height, *rows)
    return scrolling(made, "memory of every group")


def _own_limits(groups: Sequence[GroupMemory], scale: float) -> list[Markup]:
    """What may be used, row by row, where devices differ."""
    xs = [(LEFT + one.capacity_bytes * scale, TOP + index * ROW - 3) for index, one in enumerate(groups)]
    lines = [tag("path", d=f"M{num(x)} {num(y)}v{num(ROW - 2)}", class_="limit") for x, y in xs]
    return [label(LEFT, 12.0, "red lines: what may be used of each stage's devices"), *lines]


def _table(groups: Sequence[GroupMemory]) -> Markup:
    columns = ("of", "ranks", *PARTS, "together", "may be used", "left", "fullest at", "host memory")
    rows = (
        (
            one.name,
            f"{one.ranks:,}",
            *(nbytes(size) for _, size in one.parts),
            nbytes(one.peak_bytes),
            nbytes(one.capacity_bytes),
            nbytes(one.left_bytes)
            if one.left_bytes >= 0
            else join((tag("span", f"short {nbytes(-one.left_bytes)}", class_="mark"),)),
            one.instant,
            nbytes(one.host_bytes) if one.host_bytes else "-",
        )
        for one in groups
    )
    return table("memory of one rank, by group of ranks", "wn" + "n" * len(PARTS) + "nnnwn", columns, rows)
