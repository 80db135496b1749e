"""What one output is, told by its content, and what was gathered of several hosts.

In: a text, and the place that errors name. Out: a `Source`: the facts that its parser finds, and by which tool.
`SOURCES` has all tools, in the order in which a text is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from meshwright.calibrate.detect.outputs import adapters, names, nccl, processors, smi, topo
from meshwright.calibrate.detect.outputs.adapters import Adapters
from meshwright.calibrate.detect.outputs.names import Declared
from meshwright.calibrate.detect.outputs.nccl import System
from meshwright.calibrate.detect.outputs.processors import Processors
from meshwright.calibrate.detect.outputs.smi import Gpus
from meshwright.calibrate.detect.outputs.topo import Wiring
from meshwright.ir.errors import OutputUnknown

Facts = Gpus | Wiring | System | Adapters | Processors | Declared


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """An output that is read: how it is told, and its parser."""

    by: str
    told: Callable[[str], bool]
    read: Callable[[str, str], Facts]


SOURCES = (
    Kind(by=nccl.BY, told=nccl.is_system, read=nccl.read_system),
    Kind(by=smi.BY_QUERY, told=smi.is_query, read=smi.read_query),
    Kind(by=smi.BY_LIST, told=smi.is_list, read=smi.read_list),
    Kind(by=topo.BY, told=topo.is_topo, read=topo.read_topo),
    Kind(by=adapters.BY_IBSTAT, told=adapters.is_ibstat, read=adapters.read_ibstat),
    Kind(by=adapters.BY_VERBS, told=adapters.is_verbs, read=adapters.read_verbs),
    Kind(by=adapters.BY_ETHTOOL, told=adapters.is_ethtool, read=adapters.read_ethtool),
    Kind(by=adapters.BY_NET, told=adapters.is_net, read=adapters.read_net),
    Kind(by=processors.BY_LSCPU, told=processors.is_lscpu, read=processors.read_lscpu),
    Kind(by=processors.BY_CPUINFO, told=processors.is_cpuinfo, read=processors.read_cpuinfo),
    Kind(by=names.BY_SLURM, told=names.is_slurm, read=names.read_slurm),
    Kind(by=names.BY_HOSTFILE, told=names.is_hostfile, read=names.read_hostfile),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What was read, where, and by which tool."""

    place: str
    by: str
    facts: Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Outputs of a machine or several.

    - `hosts`: those of one host each, by its name; "" is any host that has none of its own.
    - `shared`: the lists of hosts.
    """

    hosts: tuple[tuple[str, tuple[Source, ...]], ...]
    shared: tuple[Source, ...] = ()
    remarks: tuple[str, ...] = ()


def recognised(text: str, place: str) -> Source:
    """A text as what it is."""
    for kind in SOURCES:
        if kind.told(text):
            return Source(place=place, by=kind.by, facts=kind.read(text, place))
    start = next((line.strip() for line in text.splitlines() if line.strip()), "")
    raise OutputUnknown(
        place=place,
        cause=f"it begins with {start[:60]!r}" if start else "it is empty",
        fix="give outputs of nvidia-smi (--query-gpu=… --format=csv, -L, topo -m), ibstat, ethtool, lscpu, "
        "env | grep SLURM, NCCL's topology, or a hostfile",
    )


def gathered(texts: Iterator[tuple[str, str, str]]) -> Gathered:
    """Texts of hosts: the name of the host, the place, and the text."""
    hosts: dict[str, tuple[Source, ...]] = {}
    shared: tuple[Source, ...] = ()
    for host, place, text in texts:
        found = recognised(text, place)
        if isinstance(found.facts, Declared):
            shared = (*shared, found)
        else:
            hosts[host] = (*hosts.get(host, ()), found)
    return Gathered(hosts=tuple(hosts.items()), shared=shared)
