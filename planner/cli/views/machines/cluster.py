"""A cluster as a person reads it: a drawing of its pools, and tables in which every number says where it comes from."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table
from rich.tree import Tree

from meshwright.cost_models.hardware.devices import Island
from meshwright.cost_models.hardware.parts import Pool
from meshwright.cost_models.hardware.quantity import weakest
from meshwright.planner.cli.views.machines.numbers import labelled, new_table, number_table, numbered
from meshwright.planner.plan.units import bytes_per_s, decimal_bytes, flops_per_s, seconds
from meshwright.planner.question.clusters import Shown

WIDTH = 120
"""Columns where no terminal says how many it has."""


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
    sources = numbered(quantity for device in shown.devices for _, quantity in device.quantities())
    for device in shown.devices:
        console.print()
        like = f", like {device.like}" if device.like else ""
        console.print(number_table(f"{device.name}{like}", device.quantities(), sources))
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
        tree.add(f"{size}: {island.kind}, {labelled(island.bandwidth)} each way per device")
    wire = pool.device.host_link
    tree.add(f"host link: {wire.kind}, {labelled(wire.bandwidth)} each way")
    for nic in pool.adapters:
        tree.add(f"NICs of a host: {nic.count} x {nic.kind}, {labelled(nic.rate)}")
    if not pool.adapters:
        tree.add("no NICs")
    if pool.price:
        tree.add(labelled(pool.price))
    return tree


def _filled(pool: Pool, island: Island) -> str:
    """Who says how much of an island the pool has."""
    if pool.gpus_per_island is not None:
        return "user"
    taken = pool.hosts_per_island * pool.gpus_per_host
    segmented = island.segment if island.spans_hosts and taken < min(island.devices, pool.ranks) else None
    return f"of which jobs get {taken}: {segmented.kind}" if segmented else island.size.kind


def _links(shown: Shown) -> Table:
    table = new_table("links", "between", "ranks", "tier", "kind", "alone", "when all send", "latency", "provenance")
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


def _totals(console: Console, shown: Shown) -> None:
    peaks = ", ".join(f"{dtype} {flops_per_s(peak)}" for dtype, peak in shown.peaks_flops_per_s.items())
    memory = weakest(*(device.memory for device in shown.devices)).kind
    kind = weakest(*(peak for device in shown.devices for _, peak in device.peaks)).kind
    console.print(f"total memory: {decimal_bytes(shown.memory_bytes)} ({memory})")
    console.print(f"total dense peaks: {peaks or 'no dtype in common'} ({kind})")
    if shown.price_per_hour is not None:
        console.print(f"price: {shown.price_per_hour:,.2f} per hour (user)")
    console.print(f"the weakest provenance among these numbers: {shown.weakest.kind}")
