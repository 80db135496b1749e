"""Faults in the parts of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from meshwright.cost_models.hardware.parts import ASYMMETRY, SHOWN_ENTRIES, Fault, LinkMatrix, Pool, PoolLink, route
from meshwright.ir.errors import (
    ClusterValueBad,
    LinkEndUnknown,
    LinkMatrixSize,
    LinkMatrixValue,
    NicsUnknown,
    PoolRepeated,
    PoolsDisconnected,
    instead,
)
from meshwright.ir.limits import POOLS, RANKS


def spelled(path: tuple[str | int, ...]) -> str:
    """A path as a person counts: `("pool", 0, "hosts")` is pool 1, key 'hosts'."""
    words: list[str] = []
    for step in path:
        if isinstance(step, int):
            words[-1] = f"{words[-1].removeprefix('key ').strip(chr(39))} {step + 1}"
        else:
            words.append(f"key {step!r}")
    return ", ".join(words)


def faults(pools: tuple[Pool, ...], links: tuple[PoolLink, ...], matrix: LinkMatrix | None) -> Iterator[Fault]:
    """Every reason why these parts are no cluster."""
    if not pools:
        yield Fault(("pool",), ClusterValueBad, "there is no pool", "describe at least one [[pool]]")
    beyond = POOLS.refused(len(pools)) or RANKS.refused(sum(pool.ranks for pool in pools))
    if beyond:
        yield Fault(("pool",), ClusterValueBad, beyond, "give fewer")
        return
    for index, pool in enumerate(pools):
        yield from _pool_faults(index, pool)
        if pool.name in [earlier.name for earlier in pools[:index]]:
            yield Fault(
                ("pool", index, "name"), PoolRepeated, f"there are two pools {pool.name!r}", "give each its own name"
            )
    known = [pool.name for pool in pools]
    for index, link in enumerate(links):
        yield from _link_faults(index, link, links[:index], known)
    if matrix is not None:
        if len(pools) > 1:
            yield from (_no_nics(index, pool, "other pools") for index, pool in enumerate(pools) if not pool.adapters)
        yield from _matrix_faults(matrix, sum(pool.hosts for pool in pools), sum(pool.ranks for pool in pools))
    elif pools:
        apart = [name for name in known if route(known[0], name, links) is None]
        if apart:
            yield Fault(
                ("pool", known.index(apart[0])),
                PoolsDisconnected,
                f"no chain of links leads from {known[0]!r} to {', '.join(map(repr, apart))}",
                f'add [[link]] between = ["{known[0]}", "{apart[0]}"], kind, gbps, latency_us; or a link_matrix',
            )


def _pool_faults(index: int, pool: Pool) -> Iterator[Fault]:
    for key, value in (("hosts", pool.hosts), ("gpus_per_host", pool.gpus_per_host)):
        if value < 1:
            yield Fault(("pool", index, key), ClusterValueBad, f"{value} is below 1", "give at least 1")
    island, each = pool.device.island, pool.gpus_per_island
    if each is not None and (island is None or not island.spans_hosts):
        yield Fault(
            ("pool", index, "gpus_per_island"),
            ClusterValueBad,
            f"islands of {pool.device.name} end with the host",
            "leave it out, or give island_spans_hosts = true in a [[device]]",
        )
    elif each is not None and island is not None and (each > island.devices or each % max(1, pool.gpus_per_host)):
        yield Fault(
            ("pool", index, "gpus_per_island"),
            ClusterValueBad,
            f"{each} GPUs are not whole hosts of {pool.gpus_per_host} in an island of {island.devices}",
            f"give a multiple of {pool.gpus_per_host}, at most {island.devices}",
        )
    if any(nic.count < 1 for nic in pool.nics):
        yield Fault(("pool", index, "nics"), ClusterValueBad, "a count is below 1", "give at least 1, or drop the NIC")
    if not pool.adapters and pool.hosts > 1 and pool.gpus_per_host > 0 and _islands(pool) > 1:
        yield _no_nics(index, pool, f"{pool.hosts} hosts")


def _no_nics(index: int, pool: Pool, others: str) -> Fault:
    return Fault(
        ("pool", index, "nics"),
        NicsUnknown,
        f"there are {others}, and {pool.device.name} has no usual NIC",
        'add nics = [{ kind = "ethernet", gbps = 100, count = 1 }], or inter=100G (per GPU) to a shorthand',
    )


def _islands(pool: Pool) -> int:
    """The number of parts into which the pool falls without a network."""
    return -(-pool.hosts // pool.hosts_per_island)


def _link_faults(index: int, link: PoolLink, earlier: tuple[PoolLink, ...], known: list[str]) -> Iterator[Fault]:
    path = ("link", index, "between")
    strangers = [name for name in link.between if name not in known]
    if strangers:
        yield Fault(path, LinkEndUnknown, f"there is no pool {strangers[0]!r}", instead(strangers[0], known))
    elif link.between[0] == link.between[1]:
        yield Fault(path, LinkEndUnknown, f"both ends are {link.between[0]!r}", "name two pools")
    if any(set(link.between) == set(other.between) for other in earlier):
        yield Fault(path, PoolRepeated, f"{' and '.join(link.between)} are linked already", "join both into one")


def _matrix_faults(matrix: LinkMatrix, hosts: int, ranks: int) -> Iterator[Fault]:
    size = len(matrix.rows)
    widths = sorted({len(row) for row in matrix.rows})
    if size not in (hosts, ranks) or widths != [size]:
        shape = f"{size} x {' or '.join(map(str, widths)) or 0}"
        yield Fault(
            ("link_matrix",),
            LinkMatrixSize,
            f"it is {shape}",
            f"give {hosts} x {hosts}, one row per host, or {ranks} x {ranks}, one per device",
        )
        return
    yield from islice(_entry_faults(matrix), SHOWN_ENTRIES)


def _entry_faults(matrix: LinkMatrix) -> Iterator[Fault]:
    size = len(matrix.rows)
    for row in range(size):
        for column in range(size):
            entry, back = matrix.rows[row][column], matrix.rows[column][row]
            where = f"row {row + 1}, column {column + 1}"
            if row != column and not 0 < entry < float("inf"):
                yield Fault(("link_matrix",), LinkMatrixValue, f"{where} is {entry:g}", "give a positive rate in Gb/s")
            elif row < column and back > 0 and abs(entry - back) > ASYMMETRY * max(entry, back):
                yield Fault(
                    ("link_matrix",),
                    LinkMatrixValue,
                    f"{where} is {entry:g}, the way back {back:g}",
                    f"measure again: directions may differ by {ASYMMETRY:.0%}",
                )
