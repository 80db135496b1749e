"""The cluster file: what was found as the TOML that `--cluster` reads, each number with a comment on how it is known.

In: `Found`. Out: a text, which is read back before it is given out, by the reader of cluster files. Same outputs,
same text.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

from meshwright import __version__
from meshwright.calibrate.detect.outputs.names import folded
from meshwright.calibrate.detect.pools import Found, FoundLink, FoundPool
from meshwright.calibrate.detect.told import Host, Told
from meshwright.cost_models.hardware import toml as cluster_toml
from meshwright.cost_models.hardware.devices import device
from meshwright.cost_models.hardware.quantity import weakest
from meshwright.ir.target.capabilities import PROCESSOR

FORMAT_VERSION = 1

HEADING = (
    "# A cluster, as outputs of its machines describe it (`plan cluster detect`, `plan cluster import`).",
    "# measured: a tool read it off the machine; declared: a scheduler, a hostfile or a person says so;",
    "# datasheet: of the table of devices; assumed: nobody said it.",
)
Own = tuple[str, tuple[tuple[str, Told], ...]]
"""A device of the table, and the keys in which another differs from it."""

NAMED = 200
"""Characters of names in a comment."""


def write(found: Found) -> str:
    """The text of a cluster."""
    lines = [*HEADING, *(f"# warning: {_comment(warning)}" for warning in warnings(found)), ""]
    own = _own_devices(found)
    for pool in found.pools:
        lines += [*_pool(pool, own), ""]
    for link in found.links:
        lines += [*_link(link), ""]
    for (gpu, keys), name in own.items():
        lines += ["[[device]]", f'name = "{name}"', f'like = "{gpu}"']
        lines += [_line(key, told) for key, told in keys]
        lines.append("")
    text = "\n".join(lines)
    cluster_toml.read(text, place="the cluster that was found", folder=Path())
    return text


def numbers(found: Found) -> Iterator[tuple[str, str, Told]]:
    """Every number with its table and key."""
    for pool in found.pools:
        yield pool.name, "hosts", pool.hosts
        yield pool.name, "gpus_per_host", pool.host.count
        if pool.host.nics:
            yield pool.name, "nics.gbps", pool.host.nics.gbps
            yield pool.name, "nics.count", pool.host.nics.count
        for key, told in pool.host.own:
            yield pool.name, key, told
    for link in found.links:
        yield " - ".join(link.between), "gbps", link.gbps


def warnings(found: Found) -> tuple[str, ...]:
    """What the file has as warnings."""
    several = len(found.pools) > 1
    of_pools = [
        f"pool {pool.name}: {remark}" if several else remark for pool in found.pools for remark in pool.host.remarks
    ]
    return tuple(dict.fromkeys([*found.remarks, *of_pools]))


def _own_devices(found: Found) -> dict[Own, str]:
    """Names of devices that differ from those of the table."""
    names: dict[Own, str] = {}
    for pool in found.pools:
        kind = (pool.host.gpu, pool.host.own)
        if pool.host.own and kind not in names:
            before = sum(gpu == pool.host.gpu for gpu, _ in names)
            names[kind] = f"{pool.host.gpu}-found{f'-{before + 1}' if before else ''}"
    return names


def _pool(pool: FoundPool, own: dict[Own, str]) -> Iterator[str]:
    host = pool.host
    name = own.get((host.gpu, host.own), host.gpu)
    yield "[[pool]]"
    yield f'name = "{pool.name}"'
    yield _line("hosts", pool.hosts, f": {_short(folded(pool.names))}" if pool.names else "")
    yield f'gpu = "{name}"  # {_comment(f"{_by_name(host)}: {host.called}; its peaks are {_peaks(host)}")}'
    yield _line("gpus_per_host", host.count)
    if host.nics is None:
        usual = device(host.gpu).nic
        if usual is not None:
            yield f"# nics: the usual ones, {usual.kind} of {usual.rate.value:g} Gb/s beside each (datasheet)"
        return
    nics = host.nics
    keys: dict[str, list[str]] = {}
    for key, known, by in (
        ("kind", nics.kind_known, nics.kind_by),
        ("gbps", nics.gbps.known, nics.gbps.by),
        ("count", nics.count.known, nics.count.by),
    ):
        keys.setdefault(f"{known}: {by}", []).append(key)
    for said, of in keys.items():
        yield f"# {', '.join(of)} of nics: {_comment(said)}"
    yield f'nics = [{{ kind = "{nics.kind}", gbps = {_number(nics.gbps)}, count = {_number(nics.count)} }}]'


def _by_name(host: Host) -> str:
    return "measured" if host.gpu != PROCESSOR else "a rank for each core"


def _peaks(host: Host) -> str:
    return weakest(*(peak for _, peak in device(host.gpu).peaks)).kind


def _link(link: FoundLink) -> Iterator[str]:
    one, other = link.between
    yield "[[link]]"
    yield f'between = ["{one}", "{other}"]'
    yield f'kind = "{link.kind}"'
    yield _line("gbps", link.gbps)


def _line(key: str, told: Told, more: str = "") -> str:
    return f"{key} = {_number(told)}  # {_comment(f'{told.known}: {told.by}{more}')}"


def _number(told: Told) -> str:
    return f"{Decimal(repr(float(told.value))):f}".removesuffix(".0")


def _short(names: str) -> str:
    return names if len(names) <= NAMED else f"{names[:NAMED]}…"


def _comment(text: str) -> str:
    """A text that stays in its comment, whatever a tool printed."""
    return "".join(one if one.isprintable() else "?" for one in text)


def to_json(found: Found, text: str, out: str | None) -> dict[str, object]:
    """What was found as docs/cluster.md describes it."""
    return {
        "format_version": FORMAT_VERSION,
        "meshwright": __version__,
        "out": out,
        "text": text,
        "pools": [
            {
                "name": pool.name,
                "hosts": list(pool.names),
                "device": pool.host.gpu,
                "called": pool.host.called,
                "nics": pool.host.nics.kind if pool.host.nics else None,
            }
            for pool in found.pools
        ],
        "numbers": [
            {"of": of, "key": key, "value": told.value, "known": told.known, "by": told.by}
            for of, key, told in numbers(found)
        ],
        "warnings": list(warnings(found)),
    }
