"""A cluster as a person reads it: a drawing of its pools, and tables in which every number says where it comes from."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.console import Console
from rich.table import Table
from rich.tree import Tree

from meshwright.cost_models.hardware.devices import Device, Island
from meshwright.cost_models.hardware.parts import Pool
from meshwright.cost_models.hardware.quantity import Quantity, weakest
from meshwright.planner.plan.units import bytes_per_s, count, decimal_bytes, flops_per_s, nbytes, seconds
from meshwright.planner.question.clusters import Shown

WIDTH = 120
"""Columns where no terminal says how many it has."""

_SHOW: dict[str, Callable[[float], str]] = {
    "flop/s": flops_per_s,
    "bytes": lambda number: f"{decimal_bytes(number)} = {nbytes(number)}",
    "bytes/s": bytes_per_s,
    "s": seconds,
    "devices": lambda number: f"{count(number)} devices",
    "Gb/s": lambda number: f"{number:g} Gb/s",
    "1/device-hour": lambda number: f"{number:g} per GPU-hour",
}


def show(shown: Shown) -> None:
    """Print to standard output."""
    console = Console(highlight=False, soft_wrap=True, markup=False, width=None if sys.stdout.isatty() else WIDTH)
    cluster = shown.cluster
    hosts = "1 host" if cluster.hosts == 1 else f"{cluster.hosts:,} hosts"
    console.print(f"{shown.reference}: {cluster.ranks:,} ranks on {hosts}", style="bold")
    first = 0
    for pool in cluster.pools:
        console.print(_tree(pool, first))
        first += pool.ranks
    console.print()
    console.print(_links(shown))
    if cluster.matrix:
        size = len(cluster.matrix.rows)
        console.print(f"link matrix: {size} x {size}, its rates replace those of the pairs that it covers (user)")
    sources = _sources(shown)
    for device in shown.devices:
        console.print()
        console.print(_device(device, sources))
    console.print()
    for source, number in sources.items():
        console.print(f"[{number}] {source}")
    console.print()
    _totals(console, shown)
    for warning in shown.warnings:
        console.print(f"warning: {warning}")


def _tree(pool: Pool, first: int) -> Tree:
    last = first + pool.ranks - 1
    tree = Tree(f"pool {pool.name}: {pool.hosts:,} x {pool.gpus_per_host} {pool.device.name}, ranks {first} to {last}")
    island = pool.device.island
    if island is not None:
        extent = f"across {pool.hosts_per_island} hosts" if island.spans_hosts else "in one host"
        size = f"island of up to {island.devices:,} {extent} ({_filled(pool, island)})"
        tree.add(f"{size}: {island.kind}, {_labelled(island.bandwidth)} each way per device")
    wire = pool.device.host_link
    tree.add(f"host link: {wire.kind}, {_labelled(wire.bandwidth)} each way")
    for nic in pool.adapters:
        tree.add(f"NICs of a host: {nic.count} x {nic.kind}, {_labelled(nic.rate)}")
    if not pool.adapters:
        tree.add("no NICs")
    if pool.price:
        tree.add(_labelled(pool.price))
    return tree


def _filled(pool: Pool, island: Island) -> str:
    """Who says how much of an island the pool has."""
    if pool.gpus_per_island is not None:
        return "user"
    taken = pool.hosts_per_island * pool.gpus_per_host
    segmented = island.segment if island.spans_hosts and taken < min(island.devices, pool.ranks) else None
    return f"of which jobs get {taken}: {segmented.kind}" if segmented else island.size.kind


def _labelled(quantity: Quantity) -> str:
    return f"{_SHOW[quantity.unit](quantity.value)} ({quantity.kind})"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def _links(shown: Shown) -> Table:
    table = _table("links", "between", "ranks", "tier", "kind", "alone", "when all send", "latency", "provenance")
    for sample in shown.samples:
        link = sample.link
        table.add_row(
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


def _sources(shown: Shown) -> dict[str, int]:
    """Sources of the devices' numbers, numbered in order of appearance."""
    numbers: dict[str, int] = {}
    for device in shown.devices:
        for _, quantity in device.quantities():
            numbers.setdefault(_source(quantity), len(numbers) + 1)
    return numbers


def _source(quantity: Quantity) -> str:
    return f"{quantity.source}, {quantity.date}" if quantity.date else quantity.source


def _device(device: Device, sources: dict[str, int]) -> Table:
    like = f", like {device.like}" if device.like else ""
    table = _table(f"{device.name}{like}", "number", "value", "provenance")
    table.columns[2].justify = "left"
    for name, quantity in device.quantities():
        shown = _SHOW[quantity.unit](quantity.value)
        table.add_row(name, shown, f"{quantity.kind} [{sources[_source(quantity)]}]")
    return table


def _totals(console: Console, shown: Shown) -> None:
    peaks = ", ".join(f"{dtype} {flops_per_s(peak)}" for dtype, peak in shown.peaks_flops_per_s.items())
    memory = weakest(*(device.memory for device in shown.devices)).kind
    kind = weakest(*(peak for device in shown.devices for _, peak in device.peaks)).kind
    console.print(f"total memory: {decimal_bytes(shown.memory_bytes)} ({memory})")
    console.print(f"total dense peaks: {peaks or 'no dtype in common'} ({kind})")
    if shown.price_per_hour is not None:
        console.print(f"price: {shown.price_per_hour:,.2f} per hour (user)")
    console.print(f"the weakest provenance among these numbers: {shown.weakest.kind}")
