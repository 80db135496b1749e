"""Links: the first and the last host of every pool with what goes over their wires in a step, and a table of flows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.planner.plan.units import bytes_per_s, nbytes, percent
from meshwright.planner.report.facts.traffic import REASONS, TIERS, Flow, Pool, Seat, Traffic
from meshwright.planner.report.page.markup import Markup, drawing, label, num, scrolling, section, table, tag

WIDTH, HOST, MARGIN = 1000.0, 400.0, 20.0
SEAT, BETWEEN, IN_ROW = 42.0, 6.0, 8
MOST_SEATS = 16
MOST_NAMED = 3
"""Flows that are named on a wire; the others are in the table."""
LINE = 16.0


def links(traffic: Traffic) -> Markup:
    """The section on links."""
    total = sum(flow.nbytes for flow in traffic.flows)
    said = (
        f"{nbytes(total)} are received in a step by all ranks together. Bytes are booked on the widest link that a "
        "group spans: those of eight ranks on two hosts count as between hosts, though a library sends most inside."
    )
    if not traffic.flows:
        said = "Nothing is sent in a step."
    return section("links", "Links", tag("p", said), _drawing(traffic), _table(traffic.flows, total))


def name_of(flow: Flow) -> str:
    """A flow in short: the mesh axes that it goes along, or what it is for."""
    return "+".join(flow.axes) or {"stages": "pipeline", "tied": "tied parameters"}.get(flow.reason, flow.reason)


def _table(flows: Sequence[Flow], total: float) -> Markup:
    rows = (
        (
            TIERS[flow.tier],
            name_of(flow),
            REASONS.get(flow.reason, flow.reason),
            f"{flow.ranks:,}",
            nbytes(flow.nbytes),
            percent(flow.nbytes / total),
        )
        for flow in flows
    )
    columns = ("where", "along", "what for", "ranks of a group", "bytes a step", "share")
    return table("what is received in a step, by all ranks together", "wwwnnn", columns, rows)


def _on(flows: Sequence[Flow], tier: str) -> str:
    """What goes over a tier, in a line."""
    found: dict[str, float] = {}
    for flow in flows:
        if flow.tier == tier:
            found[name_of(flow)] = found.get(name_of(flow), 0.0) + flow.nbytes
    most = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    said = [f"{name} {nbytes(size)}" for name, size in most[:MOST_NAMED]]
    if len(most) > MOST_NAMED:
        said.append(f"{len(most) - MOST_NAMED} more {nbytes(sum(size for _, size in most[MOST_NAMED:]))}")
    return ", ".join(said) or "nothing"


def _drawing(traffic: Traffic) -> Markup:
    rows, y = list[Markup](), 24.0
    for index, pool in enumerate(traffic.pools):
        top, y = y, _pool(rows, y, pool)
        if index:
            middle, x = top - 2.5 * LINE, MARGIN + HOST
            rows.append(tag("path", d=f"M{num(x)} {num(middle)}h12V{num(top + 2 * LINE)}h-12", class_="wire"))
    for tier, where in TIERS.items():
        if any(flow.tier == tier for flow in traffic.flows):
            rows.append(label(MARGIN, y, f"{where}: {_on(traffic.flows, tier)}"))
            y += LINE
    told = "; ".join(f"{TIERS[tier]}: {_on(traffic.flows, tier)}" for tier in TIERS)
    made = drawing("links-drawing", "Hosts, and what goes over their links in a step", told, WIDTH, y, *rows)
    return scrolling(made, "hosts and links")


def _pool(rows: list[Markup], y: float, pool: Pool) -> float:
    """Draw a pool; the place below it."""
    several = f"{pool.hosts:,} hosts" if pool.hosts > 1 else "one host"
    rows.append(
        label(MARGIN, y - 8, f"pool {pool.name}: {several} of {len(pool.first)} x {pool.device}", class_="strong")
    )
    bottom = y
    ends = [(MARGIN, "first host" if pool.hosts > 1 else "the host", pool.first)]
    if pool.hosts > 1:
        ends.append((WIDTH - MARGIN - HOST, "last host", pool.last))
    for x, name, seats in ends:
        bottom = y + _host(rows, x, y, name, seats, pool)
    if pool.hosts > 2:
        rows.append(label(WIDTH / 2, (y + bottom) / 2, f"… {pool.hosts - 2:,} more …", anchor="middle", class_="quiet"))
    if pool.hosts > 1:
        middle = bottom + 12
        for x, _, _ in ends:
            rows.append(tag("path", d=f"M{num(x + HOST / 2)} {num(bottom)}V{num(middle)}", class_="wire"))
        across = f"M{num(MARGIN + HOST / 2)} {num(middle)}H{num(WIDTH - MARGIN - HOST / 2)}"
        rows.append(tag("path", d=across, class_="wire"))
        rate = f"{pool.network}, {bytes_per_s(pool.network_bytes_per_s)} a host" if pool.network else "network"
        rows.append(label(WIDTH / 2, middle + LINE, rate, anchor="middle", class_="quiet"))
        bottom = middle + LINE
    return bottom + 2 * LINE


def _host(rows: list[Markup], x: float, y: float, name: str, seats: Sequence[Seat], pool: Pool) -> float:
    """Draw a host; its height."""
    shown = seats if len(seats) <= MOST_SEATS else seats[: MOST_SEATS - 1]
    lines = -(-len(shown) // IN_ROW)
    height = 30 + lines * (SEAT + BETWEEN) + (24 if pool.island else 6)
    rows.append(tag("rect", x=x, y=y, width=HOST, height=height, rx=6.0, class_="box"))
    rows.append(label(x + 10, y + 18, name, class_="strong"))
    for index, seat in enumerate(shown):
        row, column = divmod(index, IN_ROW)
        rows += _seat(seat, x + 8 + column * (SEAT + BETWEEN), y + 26 + row * (SEAT + BETWEEN))
    if len(shown) < len(seats):
        rows.append(label(x + HOST - 46, y + 50 + (lines - 1) * (SEAT + BETWEEN), f"+{len(seats) - len(shown)}"))
    if pool.island:
        below = y + 28 + lines * (SEAT + BETWEEN)
        width = min(len(shown), IN_ROW) * (SEAT + BETWEEN) - BETWEEN
        rows.append(tag("rect", x=x + 8, y=below, width=width, height=4.0, class_="orange"))
        joined = f"{pool.island}, {bytes_per_s(pool.island_bytes_per_s)} a device, joins up to {pool.island_devices}"
        rows.append(label(x + 8, below + 17, joined, class_="quiet"))
    return height


def _seat(seat: Seat, x: float, y: float) -> Iterator[Markup]:
    colour, on = ("blue", "on") if seat.stages else ("wait", None)
    yield tag("rect", x=x, y=y, width=SEAT, height=SEAT, rx=3.0, class_=colour)
    yield label(x + SEAT / 2, y + 18, str(seat.rank), anchor="middle", class_=on)
    if not seat.stages:
        said = "idle"
    elif len(seat.stages) == 1:
        said = f"st. {seat.stages[0]}"
    else:
        said = f"{len(seat.stages)} st."
    yield label(x + SEAT / 2, y + 34, said, anchor="middle", class_=on)
