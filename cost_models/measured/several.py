"""Several profiles: joined to one, and held against each other.

A joined profile has every measurement that any of them has, of what several have that of the latest; what was fitted on
whole steps, and constants of the whole, are the latest's. What differs between two is the geometric mean of the ratios
of all times that both have, and the least and the largest of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean
from typing import Any, TypeVar

from meshwright.cost_models.collectives.curves import Curve
from meshwright.cost_models.measured.measured import AttentionTime, Busy, Measured, ProductTime, StreamTime
from meshwright.ir.errors import ProfilesUnlike

T = TypeVar("T")


def joined(profiles: Sequence[Measured], name: str) -> Measured:
    """One profile of the measurements of all. Raises `ProfilesUnlike` for such of several machines."""
    by_day = sorted(profiles, key=lambda one: one.made)
    last = by_day[-1]
    for one in by_day:
        if one.identity != last.identity:
            raise ProfilesUnlike(
                place=f"profile {one.name}",
                cause=f"it is of {one.identity.device} ({one.identity}), and {last.name} of {last.identity.device} "
                f"({last.identity})",
                fix="join profiles of one machine",
            )
    busy: dict[int, Busy] = {}
    for each in (each for one in by_day for each in one.busy):
        busy[each.ranks] = _both(busy[each.ranks], each) if each.ranks in busy else each
    return replace(
        last,
        name=name,
        forced=any(one.forced for one in by_day),
        busy=tuple(busy[ranks] for ranks in sorted(busy)),
        curves=_latest((one for of in by_day for one in of.curves), _group),
    )


def _both(before: Busy, after: Busy) -> Busy:
    """Measurements with as many busy ranks."""
    return replace(
        after,
        products=_latest((*before.products, *after.products), _product),
        attention=_latest((*before.attention, *after.attention), _attention),
        streams=_latest((*before.streams, *after.streams), _stream),
    )


def _latest(rows: Iterable[T], key: Callable[[T], Any]) -> tuple[T, ...]:
    """The last row of every key, in the order of their first ones."""
    return tuple({key(row): row for row in rows}.values())


def _product(row: ProductTime) -> tuple[Any, ...]:
    return row.dtype, row.shape


def _attention(row: AttentionTime) -> tuple[Any, ...]:
    return row.dtype, row.work, row.causal, row.shape


def _stream(row: StreamTime) -> float:
    return row.nbytes


def _group(curve: Curve) -> tuple[Any, ...]:
    return curve.kind, curve.libraries, curve.hosts, curve.per_host


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The times of one sort in a second profile over those in a first: how many both have, and their ratios."""

    what: str
    ranks: int
    count: int
    mean: float
    least: float
    largest: float


def differences(one: Measured, other: Measured) -> Iterator[Difference]:
    """Of everything that both have, by sort and by ranks at work. The mean is geometric."""
    others = {busy.ranks: busy for busy in other.busy}
    for busy in one.busy:
        if busy.ranks in others:
            second = others[busy.ranks]
            yield from _ratios(
                "products", busy.ranks, _times(busy.products, _product), _times(second.products, _product)
            )
            yield from _ratios(
                "attention", busy.ranks, _times(busy.attention, _attention), _times(second.attention, _attention)
            )
            yield from _ratios("streams", busy.ranks, _times(busy.streams, _stream), _times(second.streams, _stream))
            yield from _ratios("launches", busy.ranks, {0: busy.launch_s}, {0: second.launch_s})
            yield from _ratios("kernels in a step", busy.ranks, {0: busy.scale}, {0: second.scale})
            yield from _ratios(
                "bytes of products in a step", busy.ranks, {0: busy.cold_s_per_byte}, {0: second.cold_s_per_byte}
            )
    curves = {_group(curve): curve for curve in other.curves}
    for curve in one.curves:
        if _group(curve) in curves:
            again = curves[_group(curve)]
            yield from _ratios(
                f"{curve.kind} of {curve.libraries[0]}", curve.ranks, dict(curve.points), dict(again.points)
            )


def _times(rows: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, float]:
    return {key(row): row.p50_s for row in rows}


def _ratios(what: str, ranks: int, one: dict[Any, float], other: dict[Any, float]) -> Iterator[Difference]:
    """The ratios of what both have; of what takes no time in one of them there is none."""
    found = [other[key] / seconds for key, seconds in one.items() if key in other and seconds > 0 and other[key] > 0]
    if found:
        yield Difference(
            what=what, ranks=ranks, count=len(found), mean=geometric_mean(found), least=min(found), largest=max(found)
        )
