"""A profile file: a `Measured` as JSON, and back.

Writing is deterministic, and what has been read must be what is written of it, so a plan may hold the same text and be
held against it. The digest of a profile is that of this text.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from meshwright.cost_models.collectives.curves import Curve
from meshwright.cost_models.measured.measured import (
    FAMILIES,
    AttentionTime,
    Busy,
    Identity,
    Learned,
    Measured,
    Overheads,
    ProductTime,
    Shape4,
    Shape7,
    Spread,
    StreamTime,
)
from meshwright.ir.errors import BadQuantity, ProfileBroken, ProfileUnreadable
from meshwright.ir.files.schema import Amount, Count, FileForm, Name, OneOf, Parsed, Positive, Some, Table, Tuple

FORMAT_VERSION = 4


def _day(text: str) -> str:
    year, *rest = text.split("-")
    if not (len(year) == 4 and len(rest) == 2 and all(part.isdigit() and len(part) == 2 for part in rest)):
        raise ProfileBroken(place="a date", cause=f"{text[:20]!r} is no day", fix="write YYYY-MM-DD")
    return text


class IdentityTable(Table):
    """The machine and the software that were measured."""

    device: Name
    processor: Name
    driver: str
    libraries: dict[Name, Name]
    cores: Count
    threads: Count


class ProductTable(Table):
    """A matrix product: (groups, m, n, k) in a precision."""

    dtype: Name
    shape: Annotated[Tuple[Count], Some]
    p50_s: Positive
    p90_s: Positive


class AttentionTable(Table):
    """Fused attention: (batch, heads, kv_heads, sq, sk, d_qk, d_v) in a precision."""

    dtype: Name
    work: Annotated[str, OneOf(("forward", "backward"))]
    causal: bool
    shape: Annotated[Tuple[Count], Some]
    p50_s: Positive
    p90_s: Positive


class StreamTable(Table):
    """A kernel that only moves bytes."""

    nbytes: Positive
    p50_s: Positive
    p90_s: Positive


class BusyTable(Table):
    """Times on one rank while so many ranks of its host are at work."""

    ranks: Count
    launch_s: Amount
    cold_s_per_byte: Amount
    scale: Positive
    products: Annotated[Tuple[ProductTable], Some]
    attention: Tuple[AttentionTable]
    streams: Annotated[Tuple[StreamTable], Some]


class CurveTable(Table):
    """A collective of one kind over one group, by bytes."""

    kind: Name
    library: Name
    hosts: Count
    per_host: Count
    bytes_s: Annotated[Tuple[Annotated[Tuple[Positive], Some]], Some]


class OverheadsTable(Table):
    """Seconds of a training step beside launches, kernels and wires."""

    action_s: Amount
    weights_s: Amount
    sharing_s: Amount
    copying_s_per_byte: Amount
    moving_s: Amount
    again_s: Amount
    choosing_s: Amount
    step_s: Amount


class SpreadTable(Table):
    """How far whole steps of one family of plans are from what is predicted of them."""

    family: Annotated[str, OneOf(FAMILIES)]
    plans: Count
    low: Positive
    high: Positive


class LearnedTable(Table):
    """A run of a plan that was taken in: the seconds of its step, and what was predicted then."""

    config: Name
    made: Annotated[str, Parsed(_day)]
    steps: Count
    measured_s: Positive
    predicted_s: Positive


class MeasuredTable(Table):
    """A profile file."""

    format_version: int
    name: Name
    made: Annotated[str, Parsed(_day)]
    forced: bool
    identity: IdentityTable
    synchronous: bool
    covered: Amount
    slowdown: Amount
    overheads: OverheadsTable
    spreads: Tuple[SpreadTable]
    learned: Tuple[LearnedTable]
    busy: Annotated[Tuple[BusyTable], Some]
    collectives: Tuple[CurveTable]


FORM: FileForm[MeasuredTable] = FileForm(
    table=MeasuredTable,
    broken=ProfileBroken,
    missing=ProfileBroken,
    unknown=ProfileBroken,
    value=ProfileBroken,
    unreadable=ProfileUnreadable,
    give="name a file that `plan calibrate` wrote",
)


def load_measured(path: str | Path) -> Measured:
    """The measurements of a profile file."""
    return measured_of(FORM.read(FORM.json(FORM.text(path), str(path)), str(path)), str(path))


def measured_of(table: MeasuredTable, place: str) -> Measured:
    """The measurements of a checked table."""
    if table.format_version != FORMAT_VERSION:
        raise ProfileBroken(
            place=f"{place}: format_version",
            cause=f"it is {table.format_version}, and this release reads {FORMAT_VERSION}",
            fix="calibrate again",
        )
    try:
        return _made(table)
    except (BadQuantity, TypeError) as error:
        cause = error.cause if isinstance(error, BadQuantity) else str(error)
        raise ProfileBroken(place=place, cause=cause, fix="calibrate again") from error


def _made(table: MeasuredTable) -> Measured:
    named = table.identity
    identity = Identity(**dict(named) | {"libraries": tuple(named.libraries.items())})
    return Measured(
        name=table.name,
        made=table.made,
        forced=table.forced,
        identity=identity,
        synchronous=table.synchronous,
        covered=table.covered,
        slowdown=table.slowdown,
        overheads=Overheads(**dict(table.overheads)),
        spreads=tuple(Spread(**dict(one)) for one in table.spreads),
        learned=tuple(Learned(**dict(one)) for one in table.learned),
        busy=tuple(
            Busy(
                ranks=one.ranks,
                launch_s=one.launch_s,
                cold_s_per_byte=one.cold_s_per_byte,
                scale=one.scale,
                products=tuple(ProductTime(**dict(row) | {"shape": _four(row.shape)}) for row in one.products),
                attention=tuple(AttentionTime(**dict(row) | {"shape": _seven(row.shape)}) for row in one.attention),
                streams=tuple(StreamTime(**dict(row)) for row in one.streams),
            )
            for one in table.busy
        ),
        curves=tuple(
            Curve(
                kind=one.kind,
                device=identity.device,
                hosts=one.hosts,
                per_host=one.per_host,
                points=tuple(_pair(point) for point in one.bytes_s),
                source=f"profile {table.name}",
                libraries=(one.library,),
            )
            for one in table.collectives
        ),
    )


def _four(shape: tuple[int, ...]) -> Shape4:
    groups, m, n, k = _sized(shape, 4)
    return groups, m, n, k


def _seven(shape: tuple[int, ...]) -> Shape7:
    batch, heads, kv, sq, sk, d_qk, d_v = _sized(shape, 7)
    return batch, heads, kv, sq, sk, d_qk, d_v


def _pair(point: tuple[float, ...]) -> tuple[float, float]:
    if len(point) != 2:
        raise BadQuantity(place="a curve", cause=f"a point of {len(point)} numbers", fix="give bytes and seconds")
    return point[0], point[1]


def _sized(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    if len(shape) != count:
        raise BadQuantity(place="a shape", cause=f"{len(shape)} sizes", fix=f"give {count}")
    return shape


def measured_to_json(found: Measured) -> dict[str, Any]:
    """The measurements as docs/calibrate.md describes them."""
    named = found.identity
    return {
        "format_version": FORMAT_VERSION,
        "name": found.name,
        "made": found.made,
        "forced": found.forced,
        "identity": {
            "device": named.device,
            "processor": named.processor,
            "driver": named.driver,
            "libraries": dict(named.libraries),
            "cores": named.cores,
            "threads": named.threads,
        },
        "synchronous": found.synchronous,
        "covered": found.covered,
        "slowdown": found.slowdown,
        "overheads": asdict(found.overheads),
        "spreads": [asdict(one) for one in found.spreads],
        "learned": [asdict(one) for one in found.learned],
        "busy": [_busy_to_json(one) for one in found.busy],
        "collectives": [
            {
                "kind": curve.kind,
                "library": curve.libraries[0],
                "hosts": curve.hosts,
                "per_host": curve.per_host,
                "bytes_s": [list(point) for point in curve.points],
            }
            for curve in found.curves
        ],
    }


def _busy_to_json(one: Busy) -> dict[str, Any]:
    return {
        "ranks": one.ranks,
        "launch_s": one.launch_s,
        "cold_s_per_byte": one.cold_s_per_byte,
        "scale": one.scale,
        "products": [
            {"dtype": row.dtype, "shape": list(row.shape), "p50_s": row.p50_s, "p90_s": row.p90_s}
            for row in one.products
        ],
        "attention": [
            {
                "dtype": row.dtype,
                "work": row.work,
                "causal": row.causal,
                "shape": list(row.shape),
                "p50_s": row.p50_s,
                "p90_s": row.p90_s,
            }
            for row in one.attention
        ],
        "streams": [{"nbytes": row.nbytes, "p50_s": row.p50_s, "p90_s": row.p90_s} for row in one.streams],
    }


def measured_text(found: Measured) -> str:
    """The bytes of a profile file."""
    return json.dumps(measured_to_json(found), indent=1, ensure_ascii=False) + "\n"
