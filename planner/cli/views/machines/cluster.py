"""A cluster as a person reads it: a drawing of its pools, and tables in which every number says where it comes from."""

from __future__ import annotations

from meshwright.cost_models.hardware.devices import Island
from meshwright.cost_models.hardware.parts import Pool
from meshwright.cost_models.hardware.quantity import weakest
from meshwright.planner.cli.views.machines.numbers import labelled, number_table, numbered, say_sources
from meshwright.planner.cli.views.tables import INDENT, Page, Table, Way, number, text
from meshwright.planner.plan.units import bytes_per_s, decimal_bytes, flops_per_s, seconds
from meshwright.planner.question.clusters import Shown

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


def show(shown: Shown) -> None:
    """Print to standard output."""
    page = Page()
    cluster = shown.cluster
    hosts = "1 host" if cluster.hosts == 1 else f"{cluster.hosts:,} hosts"
    page.say(f"{shown.reference}: {cluster.ranks:,} ranks on {hosts}", "bold")
    first = 0
    for pool in cluster.pools:
        _say_pool(page, pool, first)
        first += pool.ranks
    page.blank()
    page.table(_links(shown))
    if cluster.matrix:
        size = len(cluster.matrix.rows)
        page.say(f"link matrix: {size} x {size}, its rates replace those of the pairs that it covers (user)")
    sources = numbered(quantity for device in shown.devices for _, quantity in device.quantities())
    for device in shown.devices:
        page.blank()
        like = f", like {device.like}" if device.like else ""
        page.table(number_table(f"{device.name}{like}", device.quantities(), sources))
    page.blank()
    say_sources(page, sources)
    page.blank()
    _say_totals(page, shown)
    for warning in shown.warnings:
        page.say(f"warning: {warning}")
    page.print()


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


def _links(shown: Shown) -> Table:
    table = Table("links, each alone and when all send", LINK_COLUMNS)
    for sample in shown.samples:
        link = sample.link
        table.add(
            sample.where,
            "{} - {}".format(*sample.ranks),
            link.tier,
            link.kind,
            bytes_per_s(link.bandwidth.value),
            bytes_per_s(link.share_bytes_per_s),
            seconds(link.latency.value),
            f"{link.bandwidth.kind}, {link.latency.kind}",
        )
    return table


def _say_totals(page: Page, shown: Shown) -> None:
    peaks = ", ".join(f"{dtype} {flops_per_s(peak)}" for dtype, peak in shown.peaks_flops_per_s.items())
    memory = weakest(*(device.memory for device in shown.devices)).kind
    kind = weakest(*(peak for device in shown.devices for _, peak in device.peaks)).kind
    page.say(f"total memory: {decimal_bytes(shown.memory_bytes)} ({memory})")
    page.say(f"total dense peaks: {peaks or 'no dtype in common'} ({kind})")
    if shown.price_per_hour is not None:
        page.say(f"price: {shown.price_per_hour:,.2f} per hour (user)")
    page.say(f"the weakest provenance among these numbers: {shown.weakest.kind}")
