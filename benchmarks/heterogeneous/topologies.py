"""Topologies of the testbed: hosts, what joins them, how fast their ranks are, and the cluster file that says so.

The file has a pool for each run of equal hosts, a device of its own for those that are not of full speed, and a matrix
of what each pair of hosts can send: the least of both adapters and of the pair's own limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

FLOPS_PER_S = 5e9
"""The rate of a rank of full speed."""
GBPS_OF_MBITS = 1e-3
FAST, SLOW, BAD = 200.0, 50.0, 25.0
"""Rates, in Mbit/s."""
HALVES = "dp=2,pp=2,zero=0,schedule=1f1b"
PINS = ("", "dp=4,zero=0", "pp=4,schedule=1f1b", HALVES, f"{HALVES},stage_blocks=1+3", f"{HALVES},stage_blocks=3+1")
"""What plans are asked for: nothing, degrees, and layers too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Hosts of one rank each."""

    name: str
    mbits: tuple[float, ...]
    """Of the adapter of every host."""
    pairs: tuple[tuple[int, int, float], ...] = ()
    """Two hosts, and what they can send to each other, where that is less."""
    speeds: tuple[float, ...] = ()
    """Of the ranks of every host, as shares of full speed; all are of full speed where nothing is said."""
    pins: tuple[str, ...] = PINS

    @property
    def limits(self) -> dict[tuple[int, int], float]:
        return {(one, other): rate for one, other, rate in self.pairs}

    @property
    def rates(self) -> tuple[float, ...]:
        """FLOPs per second of every host's ranks."""
        return tuple(FLOPS_PER_S * share for share in self.speeds or (1.0,) * len(self.mbits))

    def mbits_between(self, one: int, other: int) -> float:
        limit = self.limits.get((one, other)) or self.limits.get((other, one)) or float("inf")
        return min(self.mbits[one], self.mbits[other], limit)

    def cluster(self) -> str:
        """The cluster file."""
        return "\n".join([*self._matrix(), *self._pools(), *self._devices()]) + "\n"

    def _matrix(self) -> Iterator[str]:
        count = range(len(self.mbits))
        yield "link_matrix = ["
        for one in count:
            row = (0.0 if one == other else self.mbits_between(one, other) * GBPS_OF_MBITS for other in count)
            yield f"    [{', '.join(f'{rate:g}' for rate in row)}],"
        yield "]"

    def _pools(self) -> Iterator[str]:
        sorts = [(rate, _device(rate)) for rate in self.rates]
        at = 0
        for number, ((_, device), same) in enumerate(groupby(sorts)):
            count = len(list(same))
            fastest = max(self.mbits[at : at + count]) * GBPS_OF_MBITS
            at += count
            yield f'\n[[pool]]\nname = "pool{number}"\nhosts = {count}\ngpu = "{device}"\ngpus_per_host = 1'
            yield f'nics = [{{ kind = "ethernet", gbps = {fastest:g}, count = 1 }}]'

    def _devices(self) -> Iterator[str]:
        for rate in dict.fromkeys(self.rates):
            if rate != FLOPS_PER_S:
                yield f'\n[[device]]\nname = "{_device(rate)}"\nlike = "CPU"\nfp32_tflops = {rate / 1e12:g}'


def _device(rate: float) -> str:
    return "CPU" if rate == FLOPS_PER_S else f"CPU at {rate / FLOPS_PER_S:.0%}"


def _across(*islands: tuple[int, ...]) -> tuple[tuple[int, int, float], ...]:
    """Slow links between all hosts of different islands."""
    of = {host: number for number, island in enumerate(islands) for host in island}
    return tuple((one, other, SLOW) for one in of for other in of if one < other and of[one] != of[other])


TOPOLOGIES = (
    Topology(name="a fast and a slow pair", mbits=(FAST, FAST, SLOW, SLOW)),
    Topology(name="two islands", mbits=(FAST,) * 4, pairs=_across((0, 2), (1, 3))),
    Topology(name="one slow adapter", mbits=(FAST, SLOW, FAST, FAST)),
    Topology(name="one bad pair", mbits=(FAST,) * 4, pairs=((0, 1, BAD),)),
    Topology(name="ranks of unlike speeds", mbits=(FAST,) * 4, speeds=(1.0, 1.0, 0.5, 0.5)),
)
