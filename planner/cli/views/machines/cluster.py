"""A cluster as a person reads it: a drawing of its pools, and tables in which every number says where it comes from.

What is more than a screen is shown whole if that is asked for. Else it is the first pools, a row of all links that are
alike, and one of each device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.cost_models.compute.known import SIXTEEN_BITS
from meshwright.cost_models.hardware.devices import Device, Island
from meshwright.cost_models.hardware.parts import Pool
from meshwright.cost_models.hardware.quantity import weakest
from meshwright.planner.cli.views.machines import numbers
from meshwright.planner.cli.views.machines.numbers import NONE, labelled, number_table, numbered, say_sources
from meshwright.planner.cli.views.tables import INDENT, Column, Page, Table, Way, number, text
from meshwright.planner.plan.units import bytes_per_s, decimal_bytes, flops_per_s, seconds
from meshwright.planner.question.clusters import Sample, Shown

LINK_COLUMNS = (
    text("between", 4),
    number("ranks"),
    text("tier", 2, Way.DROP),
    text("kind", 5),
    number("alone"),
    number("all send"),
    number("latency", 3),
    text("provenance", 1, least=10),
)
"""A rate is that of one sender alone, and its share when all send."""
LINKS = "links, each alone and when all send"


DEVICE_COLUMNS = (
    text("device", 5),
    number("memory"),
    number("16 bits"),
    number("bandwidth"),
    text("island", 4, Way.DROP),
    text("host link", 3, Way.DROP),
    text("usual NIC", 2, Way.DROP),
    text("numbers", 1, Way.DROP),
)
"""Of a line for each device: 16 bits are bf16 but where (fp16) is said, `numbers` its weakest provenance."""
POOL_COLUMNS = (
    text("pool", 3),
    text("hosts", 4),
    number("ranks"),
    text("NICs of a host", 2),
    number("each per hour", 1),
)
SCREEN, MOST = 45, 5
"""Lines of what is shown whole unless asked for, and rows of a table where that is more."""


def show(shown: Shown) -> None:
    """Print what fits a screen to standard output."""
    page = _whole(shown)
    (page if len(page.lines) <= SCREEN else _short(shown)).print()


def show_whole(shown: Shown) -> None:
    """Print everything to standard output."""
    _whole(shown).print()


def _whole(shown: Shown) -> Page:
    page, first = Page(), 0
    _say_head(page, shown)
    for pool in shown.cluster.pools:
        _say_pool(page, pool, first)
        first += pool.ranks
    page.blank()
    table = Table(LINKS, LINK_COLUMNS)
    for sample in shown.samples:
        table.add(sample.where, *_link_cells(sample))
    page.table(table)
    _say_matrix(page, shown)
    sources = numbered(quantity for device in shown.devices for _, quantity in device.quantities())
    for device in shown.devices:
        page.blank()
        like = f", like {device.like}" if device.like else ""
        page.table(number_table(f"{device.name}{like}", device.quantities(), sources))
    page.blank()
    say_sources(page, sources)
    page.blank()
    _say_totals(page, shown)
    return page


def _short(shown: Shown) -> Page:
    page = Page()
    _say_head(page, shown)
    page.blank()
    _say_first(page, "pools", POOL_COLUMNS, list(_pool_rows(shown)))
    page.blank()
    _say_first(page, LINKS, LINK_COLUMNS, _alike(shown))
    _say_matrix(page, shown)
    page.blank()
    _say_first(page, "devices; peaks are dense", DEVICE_COLUMNS, [_device_row(device) for device in shown.devices])
    page.blank()
    _say_totals(page, shown)
    page.blank()
    page.say("With -v: every number of every device with its source, all pools, and all links.")
    return page


def _say_first(page: Page, title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Add a table of the first rows, and how many more there are."""
    table = Table(title, columns)
    for row in rows[:MOST]:
        table.add(*row)
    page.table(table)
    if len(rows) > MOST:
        page.say(f"and {len(rows) - MOST:,} more")


def _say_head(page: Page, shown: Shown) -> None:
    cluster = shown.cluster
    hosts = "1 host" if cluster.hosts == 1 else f"{cluster.hosts:,} hosts"
    page.say(f"{shown.reference}: {cluster.ranks:,} ranks on {hosts}", "bold")


def _say_matrix(page: Page, shown: Shown) -> None:
    if shown.cluster.matrix:
        size = len(shown.cluster.matrix.rows)
        page.say(f"link matrix: {size} x {size}, its rates replace those of the pairs that it covers (user)")


def _say_pool(page: Page, pool: Pool, first: int) -> None:
    def say(part: str) -> None:
        page.say(f"{INDENT}{part}", indent=2 * INDENT)

    last = first + pool.ranks - 1
    page.say(f"pool {pool.name}: {pool.hosts:,} x {pool.gpus_per_host} {pool.device.name}, ranks {first} to {last}")
    island = pool.device.island
    if island is not None:
        extent = f"across {pool.hosts_per_island} hosts" if island.spans_hosts else "in one host"
        size = f"island of up to {island.devices:,} {extent} ({_filled(pool, island)})"
        say(f"{size}: {island.kind}, {labelled(island.bandwidth)} each way per device")
    wire = pool.device.host_link
    say(f"host link: {wire.kind}, {labelled(wire.bandwidth)} each way")
    for nic in pool.adapters:
        say(f"NICs of a host: {nic.count} x {nic.kind}, {labelled(nic.rate)}")
    if not pool.adapters:
        say("no NICs")
    if pool.price:
        say(labelled(pool.price))


def _filled(pool: Pool, island: Island) -> str:
    """Who says how much of an island the pool has."""
    if pool.gpus_per_island is not None:
        return "user"
    taken = pool.hosts_per_island * pool.gpus_per_host
    segmented = island.segment if island.spans_hosts and taken < min(island.devices, pool.ranks) else None
    return f"of which jobs get {taken}: {segmented.kind}" if segmented else island.size.kind


def _pool_rows(shown: Shown) -> Iterator[tuple[str, ...]]:
    first = 0
    for pool in shown.cluster.pools:
        nics = ", ".join(f"{nic.count} x {nic.kind} {numbers.shown(nic.rate)}" for nic in pool.adapters)
        yield (
            pool.name,
            f"{pool.hosts:,} x {pool.gpus_per_host} {pool.device.name}",
            f"{first} - {first + pool.ranks - 1}",
            nics or NONE,
            f"{pool.price.value:g}" if pool.price else "",
        )
        first += pool.ranks


def _link_cells(sample: Sample) -> tuple[str, ...]:
    """What a row says of a link, but for where it is."""
    link = sample.link
    return (
        "{} - {}".format(*sample.ranks),
        link.tier,
        link.kind,
        bytes_per_s(link.bandwidth.value),
        bytes_per_s(link.share_bytes_per_s),
        seconds(link.latency.value),
        ", ".join(dict.fromkeys((link.bandwidth.kind, link.latency.kind))),
    )


def _alike(shown: Shown) -> list[tuple[str, ...]]:
    """Rows of links: the first of those that are alike, and how many there are."""
    found: dict[tuple[str, ...], list[Sample]] = {}
    for sample in shown.samples:
        found.setdefault(_link_cells(sample)[1:], []).append(sample)
    return [
        (f"{first.where} and {len(more)} like it" if more else first.where, *_link_cells(first))
        for first, *more in found.values()
    ]


def _device_row(device: Device) -> tuple[str, ...]:
    island, wire, nic = device.island, device.host_link, device.nic
    dtype = next((one for one in SIXTEEN_BITS if one in device.dtypes), None)
    peak = device.peak(dtype) if dtype else None
    told = [device.memory, device.memory_bandwidth, wire.bandwidth]
    told += [peak] if peak else []
    told += [island.bandwidth, island.size] if island else []
    told += [nic.rate] if nic else []
    return (
        device.name,
        decimal_bytes(device.memory.value),
        flops_per_s(peak.value) + " (fp16)" * (dtype == "fp16") if peak else NONE,
        bytes_per_s(device.memory_bandwidth.value),
        f"{island.kind} {bytes_per_s(island.bandwidth.value)} x {island.devices:,}" if island else NONE,
        f"{wire.kind} {bytes_per_s(wire.bandwidth.value)}",
        f"{nic.kind} {numbers.shown(nic.rate)}" if nic else NONE,
        weakest(*told).kind,
    )


def _say_totals(page: Page, shown: Shown) -> None:
    peaks = ", ".join(f"{dtype} {flops_per_s(peak)}" for dtype, peak in shown.peaks_flops_per_s.items())
    memory = weakest(*(device.memory for device in shown.devices)).kind
    kind = weakest(*(peak for device in shown.devices for _, peak in device.peaks)).kind
    page.say(f"total memory: {decimal_bytes(shown.memory_bytes)} ({memory})")
    page.say(f"total dense peaks: {peaks or 'no dtype in common'} ({kind})")
    if shown.price_per_hour is not None:
        page.say(f"price: {shown.price_per_hour:,.2f} per hour (user)")
    page.say(f"the weakest provenance among these numbers: {shown.weakest.kind}")
    for warning in shown.warnings:
        page.say(f"warning: {warning}")
