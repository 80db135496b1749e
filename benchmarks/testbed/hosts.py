"""Hosts that are network namespaces of this machine, joined by a bridge, each with an adapter of a chosen rate.

Wants root, `ip` and `tc`. A token bucket holds both directions of an adapter at its rate: what a host sends is shaped
in its namespace, what it receives at the bridge. Buckets of 16 KB and queues of 1 MB leave TCP alone (less than that
distorts it, more than that hides the rate).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

BRIDGE, PREFIX = "mwbr", "mwhost"
SUBNET = "10.77.0"
SHAPED = ("burst", "16kb", "limit", "1mb")
MTU = "9000"


@dataclass(frozen=True, slots=True)
class Host:
    """A namespace with its address."""

    name: str
    address: str

    def command(self, *words: str) -> list[str]:
        """A command that runs there."""
        return ["ip", "netns", "exec", self.name, *words]


def lacking() -> str:
    """Why there can be no such hosts here; empty where there can."""
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"there is no {' and no '.join(missing)}"
    if os.geteuid():
        return "only root makes network namespaces"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"no network namespace can be made: {tried.stderr.strip()}"


@contextmanager
def hosts(mbits: Sequence[float]) -> Iterator[list[Host]]:
    """A host for each rate, in Mbit/s; all are removed at the end."""
    made = [Host(f"{PREFIX}{number}", f"{SUBNET}.{number + 1}") for number in range(len(mbits))]
    _remove(made)
    try:
        _run("ip", "link", "add", BRIDGE, "mtu", MTU, "type", "bridge")
        _run("ip", "link", "set", BRIDGE, "up")
        for host, rate in zip(made, mbits, strict=True):
            _add(host, rate)
        yield made
    finally:
        _remove(made)


def _add(host: Host, mbits: float) -> None:
    outside, shaped = f"{host.name}b", ("tbf", "rate", f"{mbits:g}mbit", *SHAPED)
    _run("ip", "netns", "add", host.name)
    pair = ("peer", "name", "eth0", "mtu", MTU, "netns", host.name)
    _run("ip", "link", "add", outside, "mtu", MTU, "type", "veth", *pair)
    _run("ip", "link", "set", outside, "master", BRIDGE, "up")
    _run(*host.command("ip", "addr", "add", f"{host.address}/24", "dev", "eth0"))
    for name in ("lo", "eth0"):
        _run(*host.command("ip", "link", "set", name, "up"))
    _run(*host.command("tc", "qdisc", "add", "dev", "eth0", "root", *shaped))
    _run("tc", "qdisc", "add", "dev", outside, "root", *shaped)


def _remove(made: Sequence[Host]) -> None:
    for words in (*(("netns", "del", host.name) for host in made), ("link", "del", BRIDGE)):
        subprocess.run(["ip", *words], capture_output=True, check=False)


def _run(*words: str) -> None:
    subprocess.run(words, capture_output=True, text=True, check=True)
