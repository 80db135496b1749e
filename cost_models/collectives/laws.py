"""Laws of collectives: the time that a library needs for a kind and a size over the shape of a group.

**Bytes** are, for every kind, of one tensor as one rank sees it whole:

    all_gather      the gathered result             broadcast   the tensor
    reduce_scatter  the operand before it is cut    p2p         what the sender sends
    all_reduce      the tensor                      shift       what one rank sends to its neighbour in the ring
    all_to_all      the whole buffer of one rank, the part that it keeps included

**A law** is the least of several lines, one for each algorithm and protocol that the library may choose,

    T(x) = min over choices of  alpha + x beta + sqrt(ramp x beta),

so it grows with the bytes and is concave. The root is the way to the full rate of what passes from rank to rank in
chunks: not of LL, nor of plain sends; its share falls as the message grows. With n ranks, U_l parts that level l joins
in all (U_1 = n, the last level leaves 1), s_l = U_l - U_(l+1) steps of a ring over its wires, hops h_l by protocol, and
b the narrowest level's rate:

    ring   alpha = base + r sum s_l h_l                      beta = r (n-1)/n / b      r = 2 all_reduce, else 1
    tree   alpha = base + 2 ((m-1) h_in + log2(U) h_net)     beta = 2 / (0.92 b)       all_reduce only
    NVLS   alpha = 25 us                                     beta = (1 + 1/n) / (e b)  all_reduce, NVSwitch from H100 on
    NVLS-tree  + 2 log2(U) h_net         beta = max(that, (1 if U = 2 else 2) / b_net)
    PAT    alpha = 8 us + log2(U) h/3.5 + 2.8 us n           beta = 1 / (0.75 b)       one rank per host

LL sends 4 of 8 bytes and is capped, LL128 120 of 128 and needs NVLink inside and no TCP outside (NCCL 2.23, tuning.cc,
for all of this but NVLS's beta and the root). NVLS: the switch reads every rank's tensor once and writes the sum of 1/n
of it to all, x (1 + 1/n) over each device's wires; e is NCCL's nvlsEfficiency. Exchanges go over all levels at once:
with M ranks in a part of a level, which sends what leaves it over the wires of that level (a NIC is reached through the
host link), and gamma >= 1 the load of the fullest rank over the mean,

    all_to_all   alpha = base + (n-1) peer       beta = gamma max over levels of  M (n - M)/n / b_l

**Other libraries.** `rccl` chooses like NCCL with its own base latencies. `gloo` has rings for all_reduce and
all_gather, runs reduce_scatter as an all_reduce, broadcasts along a binomial tree and exchanges pairwise; it is what
CPUs have, whatever is asked for. `xla` on ICI runs rings on all axes of a torus that the group spans at once; on GPUs
it calls NCCL.

What a law says is worth the least of what is known of the wires' rates and of the shares that reach the receiver.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log2, sqrt
from typing import Literal

from meshwright.cost_models.collectives.facts import facts, fit, wire_share
from meshwright.cost_models.collectives.topology import GroupShape, Level
from meshwright.cost_models.hardware.devices import latency_of
from meshwright.cost_models.hardware.quantity import Kind
from meshwright.ir.errors import CollectiveUnknown

Collective = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "p2p", "shift"]
COLLECTIVES: tuple[Collective, ...] = (
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "p2p",
    "shift",
)
Library = Literal["nccl", "rccl", "gloo", "xla"]
LIBRARIES: tuple[Library, ...] = ("nccl", "rccl", "gloo", "xla")

PROTOCOLS = ("LL", "LL128", "Simple")
ORDER: tuple[Kind, ...] = ("assumed", "datasheet", "fitted", "user", "measured")


@dataclass(frozen=True, slots=True)
class Line:
    """One algorithm of a library: with t = bytes x beta_s_per_byte, it takes alpha_s + t + sqrt(ramp_s t)."""

    how: str
    alpha_s: float
    beta_s_per_byte: float
    ramp_s: float = 0.0


class Law:
    """The least of several algorithms' times."""

    __slots__ = ("_terms", "lines", "provenance")

    def __init__(self, lines: tuple[Line, ...], provenance: Kind) -> None:
        self.lines = lines
        self.provenance: Kind = provenance
        self._terms = tuple((line.alpha_s, line.beta_s_per_byte, line.ramp_s, line.how) for line in lines)

    def best(self, nbytes: float) -> tuple[float, str]:
        """The least seconds, and the line that they are of."""
        seconds, how = float("inf"), ""
        for alpha, beta, ramp, name in self._terms:
            bulk = nbytes * beta
            this = alpha + bulk + sqrt(ramp * bulk)
            if this < seconds:
                seconds, how = this, name
        return seconds, how

    def seconds(self, nbytes: float) -> float:
        return self.best(nbytes)[0]

    def clock(self, nbytes: float) -> float:
        """Seconds without the root, for reading measured curves, which show the rise to the full rate themselves."""
        return min(alpha + nbytes * beta for alpha, beta, _, _ in self._terms)


@lru_cache(maxsize=65_536)
def law(kind: Collective, shape: GroupShape, library: Library = "nccl", imbalance: float = 1.0) -> Law:
    """The law of a library for a collective over groups of this shape, of two ranks or more."""
    if kind not in COLLECTIVES or library not in LIBRARIES or not imbalance >= 1 or not shape.levels:
        raise CollectiveUnknown(
            place=f"{kind} by {library}",
            cause=f"imbalance {imbalance:g}, {shape.ranks} ranks",
            fix=f"use {', '.join(COLLECTIVES)}; {', '.join(LIBRARIES)}; an imbalance of 1 or more; 2 ranks or more",
        )
    wires = _Wires(shape)
    if library == "gloo" or wires.levels[0].kind == "loopback":
        lines = _gloo(kind, wires, imbalance)
    elif library == "xla" and wires.levels[0].kind == "ici":
        lines = _torus(kind, wires, imbalance)
    else:
        lines = _nccl(kind, wires, imbalance, "rccl" if library == "rccl" else "ring")
    kinds = (shape.weakest, *(wire_share(level.kind)[1] for level in shape.levels))
    return Law(lines, min(kinds, key=ORDER.index))


class _Wires:
    """A group's shape as a library meets it: rates after losses, steps per level, hops by protocol."""

    def __init__(self, shape: GroupShape) -> None:
        self.shape = shape
        self.levels = shape.levels
        self.ranks, self.units = shape.ranks, shape.units
        self.shares = tuple(wire_share(level.kind)[0] for level in shape.levels)
        self.ring = min(level.part_bytes_per_s * share for level, share in zip(self.levels, self.shares, strict=True))
        self.alone = min(level.rank_bytes_per_s * share for level, share in zip(self.levels, self.shares, strict=True))
        self.steps = self._steps()
        self.tcp = any(level.kind == "ethernet" for level in self.levels)
        self.inside = tuple(level for level in self.levels if level.tier in ("island", "host"))
        self.outside = tuple(level for level in self.levels if level.tier not in ("island", "host"))

    def _steps(self) -> tuple[int, ...]:
        """The number of the n - 1 steps of a ring that go over each level."""
        steps, left = [], self.ranks
        for level in self.levels[:-1]:
            parts = ceil(left / level.parts)
            steps.append(left - parts)
            left = parts
        return (*steps, left - 1)

    @property
    def fast(self) -> bool:
        """The condition of LL128: stores of 128 bytes stay whole on NVLink, and on RDMA between GPUs."""
        return all(level.kind.startswith("nvlink") for level in self.inside) and not self.tcp

    @property
    def generation(self) -> str:
        return _GENERATIONS.get(self.levels[0].kind, "ampere")

    def hop(self, level: Level, algorithm: str, protocol: str) -> float:
        table = facts()["hop_s"]
        if level.tier not in ("island", "host"):
            # With one rank per host the latency of the network is fully exposed, as on a tree.
            exposed = "tree" if self.units == self.ranks else algorithm
            known: float = table["net"][exposed][protocol]
            return known + _network_extra(level)
        wire: float = table["pci" if level.kind.startswith("pcie") else "nvlink"][algorithm][protocol]
        overhead: float = facts()["net_overhead_s"][protocol] if self.outside else 0.0
        return max(wire, overhead)

    @property
    def slowest_hop(self) -> float:
        return max(self.hop(level, "ring", "LL") for level in self.levels)


_GENERATIONS = {
    "nvlink2": "volta",
    "nvlink3": "ampere",
    "nvlink4": "hopper",
    "nvlink5": "blackwell",
    "pcie3": "volta",
    "pcie4": "ampere",
    "pcie5": "hopper",
}
"""Of GPUs with such a link: the rows of NCCL's tables. NCCL takes others for Ampere."""


def _network_extra(level: Level) -> float:
    """The latency of a hop beyond RDMA inside one fabric, which NCCL's tables contain: TCP's way through two kernels,
    and the latency that a link between pools is given."""
    usual = latency_of("infiniband").value
    return max(0.0, level.latency_s - usual) + (fit("tcp_hop_s") if level.kind == "ethernet" else 0.0)


def _protocols(wires: _Wires) -> tuple[str, ...]:
    return PROTOCOLS if wires.fast else ("LL", "Simple")


def _ll_cap(wires: _Wires) -> float:
    """The rate limit of LL's flags: by GPU in one host, by CPU over several (Intel's is the lower)."""
    caps: list[float] = facts()["ll_bytes_per_s"][wires.generation]
    return caps[min(wires.units, 3) - 1]


def _nccl(kind: Collective, wires: _Wires, imbalance: float, base: str) -> tuple[Line, ...]:
    if kind == "all_to_all":
        return _exchange(wires, imbalance, base)
    if kind in ("p2p", "shift"):
        return _send(wires, base)
    lines = _rings(kind, wires, base)
    if kind == "all_reduce":
        lines += _trees(wires, "rccl" if base == "rccl" else "tree") + _nvls(wires)
    if kind in ("all_gather", "reduce_scatter") and wires.units == wires.ranks and base == "ring":
        lines += _pat(wires)
    return lines


def _rings(kind: Collective, wires: _Wires, base: str) -> tuple[Line, ...]:
    rounds = 2 if kind == "all_reduce" else 1
    share = 1.0 if kind == "broadcast" else rounds * (wires.ranks - 1) / wires.ranks
    lines = []
    for protocol in _protocols(wires):
        hops = sum(
            steps * wires.hop(level, "ring", protocol) for steps, level in zip(wires.steps, wires.levels, strict=True)
        )
        rate = _protocol_rate(wires, protocol, wires.ring)
        alpha = facts()["base_s"][base][protocol] + rounds * hops
        lines.append(Line(f"ring {protocol}", alpha, share / rate, _ramp(protocol)))
    return tuple(lines)


def _protocol_rate(wires: _Wires, protocol: str, rate: float) -> float:
    if protocol == "LL":
        return min(rate * 0.5, _ll_cap(wires))
    return rate * 0.92 if protocol == "LL128" else rate


def _ramp(protocol: str) -> float:
    return 0.0 if protocol == "LL" else fit("ramp_s")


def _trees(wires: _Wires, base: str) -> tuple[Line, ...]:
    """The tree algorithm: a chain inside the host, a double binary tree over hosts, up and down."""
    inside = ceil(wires.ranks / wires.units) - 1
    lines = []
    for protocol in _protocols(wires):
        hops = sum(log2(level.parts) * wires.hop(level, "tree", protocol) for level in wires.outside)
        if wires.inside:
            hops += inside * max(wires.hop(level, "tree", protocol) for level in wires.inside)
        rate = 0.92 * wires.ring
        if protocol == "LL":
            rate = min(rate / 3.8, _ll_cap(wires))
        elif protocol == "LL128":
            rate *= 7 / 9 if wires.units == 1 else 120 / 128
        alpha = facts()["base_s"][base][protocol] + 2 * hops
        lines.append(Line(f"tree {protocol}", alpha, 2 / rate, _ramp(protocol)))
    return tuple(lines)


def _nvls(wires: _Wires) -> tuple[Line, ...]:
    """The NVLS algorithm: sums in the NVLink switch, alone or under a tree over hosts."""
    shares = facts()["nvls_share"]
    if len(wires.inside) != 1 or wires.inside[0].kind not in shares or wires.tcp:
        return ()
    island = wires.inside[0]
    rate = island.part_bytes_per_s * wires.shares[0] * shares[island.kind][0]
    alpha, beta = facts()["nvls_s"], (1 + 1 / island.parts) / rate
    if not wires.outside:
        return (Line("NVLS", alpha, beta, fit("ramp_s")),)
    for level, share in zip(wires.levels[1:], wires.shares[1:], strict=True):
        alpha += 2 * log2(level.parts) * wires.hop(level, "tree", "Simple")
        beta = max(beta, (1 if wires.units == 2 else 2) / (level.part_bytes_per_s * share))
    return (Line("NVLS tree", alpha, beta, fit("ramp_s")),)


def _pat(wires: _Wires) -> tuple[Line, ...]:
    hops = sum(log2(level.parts) * wires.hop(level, "tree", "Simple") / 3.5 for level in wires.outside)
    return (Line("PAT", 8e-6 + hops + 2.8e-6 * wires.ranks, 1 / (0.75 * wires.ring), fit("ramp_s")),)


def _send(wires: _Wires, base: str) -> tuple[Line, ...]:
    start = facts()["base_s"][base]
    return tuple(
        Line(f"send {protocol}", start[protocol] + wires.slowest_hop, 1 / _protocol_rate(wires, protocol, wires.alone))
        for protocol in ("LL", "Simple")
    )


def _exchange(wires: _Wires, imbalance: float, base: str) -> tuple[Line, ...]:
    """The all-to-all: every rank sends to every other at once."""
    alpha = facts()["base_s"][base]["LL"] + (wires.ranks - 1) * fit("peer_s") + _extra_hops(wires)
    return (Line("send to all", alpha, imbalance * _volume(wires) / fit("all_to_all_share")),)


def _extra_hops(wires: _Wires) -> float:
    return max((_network_extra(level) for level in wires.outside), default=0.0)


def _volume(wires: _Wires) -> float:
    """Seconds per byte of the buffer, at the narrowest level, when every rank sends 1/n of it to each."""
    n, inner, slowest = wires.ranks, 1, 0.0
    for level, share in zip(wires.levels, wires.shares, strict=True):
        out = inner * max(n - inner, 1) / n / (level.part_bytes_per_s * share)
        pair = inner * inner / n / (level.pair_bytes_per_s * share)
        slowest, inner = max(slowest, out, pair), min(n, inner * level.parts)
    return slowest


def _gloo(kind: Collective, wires: _Wires, imbalance: float) -> tuple[Line, ...]:
    table, n = facts()["gloo"], wires.ranks
    hop = table["hop_s"][0] + max(level.latency_s for level in wires.levels)
    # The process that adds and copies is slower than most wires.
    rate = min(wires.ring, table["bytes_per_s"][0])
    slice_s = (n - 1) / n / rate
    if kind in ("all_reduce", "reduce_scatter"):
        return (Line("ring", 2 * (n - 1) * hop, 2 * slice_s),)
    if kind == "all_gather":
        return (Line("ring", (n - 1) * hop, slice_s),)
    if kind == "broadcast":
        return (Line("binomial tree", ceil(log2(n)) * hop, ceil(log2(n)) / wires.alone),)
    if kind == "all_to_all":
        return (Line("pairwise", (n - 1) * hop, imbalance * max(_volume(wires), slice_s)),)
    return (Line("send", hop, 1 / wires.alone),)


def _torus(kind: Collective, wires: _Wires, imbalance: float) -> tuple[Line, ...]:
    """The torus algorithm: rings over all axes of the torus at once, both ways round each."""
    n = wires.ranks
    hop = wires.levels[0].latency_s
    start = hop * sum(steps for steps in wires.steps)
    if kind == "all_to_all":
        return (Line("torus", start, imbalance * _volume(wires)),)
    if kind in ("p2p", "shift"):
        return (Line("neighbour", hop, 1 / wires.alone),)
    rounds = {"all_reduce": 2.0, "broadcast": n / (n - 1)}.get(kind, 1.0)
    return (Line("torus", start, rounds * (n - 1) / n / wires.ring),)
