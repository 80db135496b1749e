"""Time and memory: every configuration that plan.json has a price of, as a point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from math import log

from meshwright.planner.plan.units import nbytes, seconds
from meshwright.planner.report.facts.priced import Priced
from meshwright.planner.report.page.markup import Markup, breaking, drawing, label, num, scrolling, section, table, tag

WIDTH, HEIGHT = 900.0, 420.0
LEFT, RIGHT, TOP, BOTTOM = 90.0, 40.0, 20.0, 50.0
SPREAD = 4.0
"""Where the slowest takes so many times as long as the fastest, the scale of time is logarithmic."""
ROOM = 0.06
"""Around the points, as a share of what they span."""
TICKS = 5
FAR = 3.0
"""So many times the most that is held: what may be used of a device is not drawn beyond."""
CLOSE = 20.0
"""Pixels between points that have one label."""
KINDS = {"plan": "pink", "baseline": "blue", "alternative": "green", "frontier": "brown"}
NAMES = {
    "plan": "the plan", "baseline": "what a person would write", "alternative": "alternatives",
    "frontier": "others that none undercuts in both",
}  # fmt: skip
SQUARES = ("alternative", "frontier")
"""Kinds that are drawn as squares; the others are circles."""


def tradeoff(priced: Sequence[Priced], capacity_bytes: float) -> Markup:
    """The section on time and memory; `capacity_bytes` may be used of a device of the fullest rank."""
    usable = f"what may be used of a device, {nbytes(capacity_bytes)}"
    limit = f"The line is {usable}" if _has_line(priced, capacity_bytes) else f"All are far below {usable}"
    told = (
        "Each point is a configuration of plan.json: its step time and the memory of its fullest rank. "
        f"{limit}; hollow points do not fit. Numbers are those of the table."
    )
    rows = (
        (
            f"{number}: {one.name}",
            NAMES[one.kind],
            breaking(one.config),
            seconds(one.step_s),
            nbytes(one.peak_bytes),
            "yes" if one.fits else "no",
        )
        for number, one in enumerate(priced)
    )
    columns = ("configuration", "kind", "pins", "step time", "memory", "fits")
    return section(
        "tradeoff",
        "Time and memory",
        tag("p", told),
        tag("ul", *_legend({one.kind for one in priced}), class_="legend", aria_label="kinds of points"),
        _drawing(priced, capacity_bytes),
        table("configurations with their prices", "wwwnnw", columns, rows),
    )


def _legend(used: Set[str]) -> Iterator[Markup]:
    for kind, colour in KINDS.items():
        if kind not in used:
            continue
        shape = "" if kind in SQUARES else " round"
        yield tag("li", tag("span", class_=f"swatch{shape} {colour}", aria_hidden="true"), NAMES[kind])


def _drawing(priced: Sequence[Priced], capacity_bytes: float) -> Markup:
    times, has_line = [one.step_s for one in priced], _has_line(priced, capacity_bytes)
    most = max(capacity_bytes * has_line, *(one.peak_bytes for one in priced)) * (1 + ROOM)
    logarithmic = max(times) > SPREAD * min(times)
    seen = [log(one) if logarithmic else one for one in times]
    low, high = min(seen), max(seen)
    room = (high - low or abs(low) or 1.0) * ROOM
    low, high = low - room, high + room

    def x(step_s: float) -> float:
        return LEFT + ((log(step_s) if logarithmic else step_s) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(size: float) -> float:
        return HEIGHT - BOTTOM - size / most * (HEIGHT - TOP - BOTTOM)

    rows = list[Markup]()
    for tick in range(TICKS + 1):
        size, bottom = most * tick / TICKS, HEIGHT - BOTTOM
        rows.append(tag("path", d=f"M{num(LEFT)} {num(y(size))}H{num(WIDTH - RIGHT)}", class_="grid"))
        rows.append(label(LEFT - 6, y(size) + 4, nbytes(size), anchor="end", class_="quiet"))
    for step_s in _instants(min(times), max(times), logarithmic=logarithmic):
        rows.append(tag("path", d=f"M{num(x(step_s))} {num(bottom)}v5", class_="line"))
        rows.append(label(x(step_s), bottom + 18, seconds(step_s), anchor="middle", class_="quiet"))
    scale = ", logarithmic" if logarithmic else ""
    rows.append(label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, f"step time{scale}", anchor="middle"))
    if has_line:
        rows.append(tag("path", d=f"M{num(LEFT)} {num(y(capacity_bytes))}H{num(WIDTH - RIGHT)}", class_="limit"))
    places = [(x(one.step_s), y(one.peak_bytes)) for one in priced]
    for one, place in reversed(list(zip(priced, places, strict=True))):
        rows.append(_point(one, *place))
    rows += (label(at_x + 9, at_y - 7, numbers, class_="halo") for at_x, at_y, numbers in _numbered(places))
    told = "; ".join(f"{one.name}: {seconds(one.step_s)}, {nbytes(one.peak_bytes)}" for one in priced)
    made = drawing("tradeoff-drawing", "Step time against memory", told, WIDTH, HEIGHT, *rows)
    return scrolling(made, "step time against memory")


def _has_line(priced: Sequence[Priced], capacity_bytes: float) -> bool:
    """Whether what may be used of a device is near enough to be drawn."""
    return capacity_bytes <= FAR * max(one.peak_bytes for one in priced)


def _instants(least_s: float, most_s: float, *, logarithmic: bool) -> list[float]:
    """Instants of the axis of time."""
    if most_s <= least_s:
        return [least_s]
    if logarithmic:
        ratio = (most_s / least_s) ** (1 / TICKS)
        return [least_s * ratio**tick for tick in range(TICKS + 1)]
    return [least_s + (most_s - least_s) * tick / TICKS for tick in range(TICKS + 1)]


def _numbered(places: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float, str]]:
    """Where numbers stand; points that are close have theirs together, right of and above all of them."""
    found: list[list[int]] = []
    for number, (x, y) in enumerate(places):
        near = (own for own in found if all(abs(a - b) < CLOSE for a, b in zip(places[own[0]], (x, y), strict=True)))
        own = next(near, None)
        if own is None:
            found.append([number])
        else:
            own.append(number)
    for own in found:
        xs, ys = zip(*(places[number] for number in own), strict=True)
        yield max(xs), min(ys), ", ".join(map(str, own))


def _point(one: Priced, x: float, y: float) -> Markup:
    colour = KINDS[one.kind]
    told = tag("title", f"{one.name}, {one.config}: {seconds(one.step_s)}, {nbytes(one.peak_bytes)}")
    fill = colour if one.fits else "hollow"
    radius = 7.0 if one.kind == "plan" else 5.0
    stroke = None if one.fits else f"stroke:var(--{colour})"
    if one.kind in SQUARES:
        side = 2 * radius - (1 if one.kind == "alternative" else 4)
        return tag("rect", told, x=x - side / 2, y=y - side / 2, width=side, height=side, class_=fill, style=stroke)
    return tag("circle", told, cx=x, cy=y, r=radius, class_=fill, style=stroke)
