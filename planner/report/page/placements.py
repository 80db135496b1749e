"""Operators: what every mesh axis does in them, body by body, and where parameters lie between uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.planner.report.facts.placements import BodyUse, Stored, Use
from meshwright.planner.report.page.markup import Content, Markup, details, section, table, tag

NAMED = 6
"""Operators and parameters that are named at once; the others are there to be opened."""


def placements(bodies: Sequence[BodyUse]) -> Markup:
    """The section on operators."""
    told = (
        "What every mesh axis does in the operators of a block: it cuts a loop (b is the batch, s the sequence), or it "
        "does nothing. In the second table [dp, -] is a tensor whose first dimension is cut along dp, and whose second "
        "is whole."
    )
    return section("operators", "Operators", tag("p", told), *(part for body in bodies for part in _body(body)))


def _body(body: BodyUse) -> Iterator[Markup]:
    runs = f"runs {body.calls:,} times" if body.calls > 1 else "runs once"
    yield tag("h3", f"{body.module}: {runs}, mesh {body.mesh or 'of one rank'}")
    again = f"{body.recomputed:,} values are computed again in the backward pass; " if body.recomputed else ""
    several = f"{body.operators:,} operators" if body.operators > 1 else "1 operator"
    yield tag("p", f"{again}{several}; in plan.json: {', '.join(body.plans)}.", class_="quiet")
    if body.uses:
        columns = ("axis", "used as", "what it does", "in operators", "number")
        yield table(f"axes of {body.plans[0]}", "wwwwn", columns, map(_use, body.uses))
    if body.stored:
        columns = ("parameters", "gradients", "optimizer", "which", "number")
        yield table(f"parameters of {body.plans[0]} between uses", "wwwwn", columns, map(_stored, body.stored))


def _use(use: Use) -> tuple[Content, ...]:
    axis = f"{use.axis} = {use.size:,}"
    return axis, use.named, use.what, _some(use.operators), f"{len(use.operators):,}"


def _stored(one: Stored) -> tuple[Content, ...]:
    return one.parameters, one.gradients, one.optimizer, _some(one.paths), f"{len(one.paths):,}"


def _some(names: Sequence[str]) -> Content:
    """The first few names, and the others where they can be opened."""
    if len(names) <= NAMED:
        return ", ".join(names)
    return details(f"{', '.join(names[:NAMED])}, and {len(names) - NAMED} more", ", ".join(names[NAMED:]))
