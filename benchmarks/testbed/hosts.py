"""Hosts that are network namespaces of this machine, joined by a bridge, each with an adapter of a chosen rate.

Wants root, `ip` and `tc`. A token bucket holds both directions of an adapter at its rate: what a host sends is shaped
in its namespace, what it receives at the bridge. Pairs of hosts may have less: then what a host sends goes through
classes of its adapter's rate, one for every such receiver, told by its address. Buckets of 16 KB and queues of 1 MB
leave TCP alone (less than that distorts it, more than that hides the rate); `timeouts` says whether it was.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PREFIX, ADAPTER = "mw", "eth0"
"""What namespaces and links outside of them are called, before the number of this process; the link inside."""
SUBNET = "10.77.0"
SHAPED = ("burst", "16kb", "limit", "1mb")
MTU = "9000"
OTHERS = "fff"
"""The class of all that a host sends to others than those of its limited pairs."""
NO_PAIRS: Mapping[tuple[int, int], float] = {}


@dataclass(frozen=True, slots=True)
class Host:
    """A namespace with its address."""

    name: str
    address: str

    def command(self, *words: str) -> list[str]:
        """A command that runs there."""
        return ["ip", "netns", "exec", self.name, *words]

    def timeouts(self) -> int:
        """How often a sender of TCP there waited in vain for an acknowledgement, since the host was made."""
        text = subprocess.run(self.command("cat", "/proc/net/netstat"), capture_output=True, text=True, check=True)
        names, numbers = (line.split() for line in text.stdout.splitlines() if line.startswith("TcpExt:"))
        return int(dict(zip(names, numbers, strict=True))["TCPTimeouts"])


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
def hosts(mbits: Sequence[float], pairs: Mapping[tuple[int, int], float] = NO_PAIRS) -> Iterator[list[Host]]:
    """A host for each rate, in Mbit/s; all are removed at the end. `pairs` have less than their adapters, in both
    directions."""
    bridge = f"{PREFIX}{os.getpid()}"
    made = [Host(f"{bridge}h{number}", f"{SUBNET}.{number + 1}") for number in range(len(mbits))]
    _remove_left()
    try:
        _run("ip", "link", "add", bridge, "mtu", MTU, "type", "bridge")
        _run("ip", "link", "set", bridge, "up")
        for number, (host, rate) in enumerate(zip(made, mbits, strict=True)):
            _add(host, bridge, rate)
            less = {made[sum(pair) - number]: most for pair, most in pairs.items() if number in pair}
            if less:
                _classes(host, rate, less)
            else:
                _run(*host.command("tc", "qdisc", "add", "dev", ADAPTER, "root", *_bucket(rate)))
        yield made
    finally:
        _remove(bridge, [host.name for host in made])


def _add(host: Host, bridge: str, mbits: float) -> None:
    outside = f"{host.name}b"
    _run("ip", "netns", "add", host.name)
    pair = ("peer", "name", ADAPTER, "mtu", MTU, "netns", host.name)
    _run("ip", "link", "add", outside, "mtu", MTU, "type", "veth", *pair)
    _run("ip", "link", "set", outside, "master", bridge, "up")
    _run(*host.command("ip", "addr", "add", f"{host.address}/24", "dev", ADAPTER))
    for name in ("lo", ADAPTER):
        _run(*host.command("ip", "link", "set", name, "up"))
    _run("tc", "qdisc", "add", "dev", outside, "root", *_bucket(mbits))


def _classes(host: Host, mbits: float, less: Mapping[Host, float]) -> None:
    """Give a host a class for each of these receivers and one for all others, which share its adapter's rate."""
    at = ("dev", ADAPTER, "parent")
    each = mbits / (len(less) + 1)
    _run(*host.command("tc", "qdisc", "add", "dev", ADAPTER, "root", "handle", "1:", "htb", "default", OTHERS))
    _run(*host.command("tc", "class", "add", *at, "1:", "classid", "1:1", *_class(mbits, mbits)))
    classes = {OTHERS: mbits} | {f"{number:x}": rate for number, rate in enumerate(less.values(), 0x100)}
    for name, rate in classes.items():
        _run(*host.command("tc", "class", "add", *at, "1:1", "classid", f"1:{name}", *_class(min(each, rate), rate)))
        _run(*host.command("tc", "qdisc", "add", *at, f"1:{name}", "bfifo", *SHAPED[2:]))
    for number, other in enumerate(less, 0x100):
        to = ("match", "ip", "dst", f"{other.address}/32", "flowid", f"1:{number:x}")
        _run(*host.command("tc", "filter", "add", *at, "1:", "protocol", "ip", "u32", *to))


def _class(least: float, most: float) -> tuple[str, ...]:
    burst = SHAPED[1]
    return ("htb", "rate", f"{least:g}mbit", "ceil", f"{most:g}mbit", "burst", burst, "cburst", burst)


def _bucket(mbits: float) -> tuple[str, ...]:
    return ("tbf", "rate", f"{mbits:g}mbit", *SHAPED)


def _remove(bridge: str, names: Sequence[str]) -> None:
    for words in (*(("netns", "del", name) for name in names), ("link", "del", bridge)):
        subprocess.run(["ip", *words], capture_output=True, check=False)


def _remove_left() -> None:
    """Remove what processes left that were ended before they could."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    for name, process in re.findall(rf"^({PREFIX}(\d+)h\d+)\b", listed, re.MULTILINE):
        if not Path("/proc", process).exists():
            _remove(f"{PREFIX}{process}", [name])


def _run(*words: str) -> None:
    subprocess.run(words, capture_output=True, text=True, check=True)
