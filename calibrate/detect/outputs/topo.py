"""How the GPUs of a host are joined, as `nvidia-smi topo -m` draws it.

In: a matrix with a row and a column for each GPU and each adapter, whose cells say what a way crosses:

    NV#   so many NVLinks, each GPU's own to another GPU, or all of its links to a switch
    PIX   one PCIe switch      PXB   several      PHB   a host bridge
    NODE  bridges of one NUMA node      SYS (once SOC)   the link between processors      X   the device itself

Adapters are columns under their own names (`mlx5_0`), or numbered (`NIC0`) with a legend of names below. Out: `Wiring`,
which NCCL's topology gives as well (`nccl`).

*Islands* are what NVLinks join, directly or by way of others. Links of one GPU count in one of two ways: on a switch
each cell has all of them; without one, cells add up to all of them. Which it is follows from how many the device has
at all: they add up where the sum is no more than that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import networkx as nx

from meshwright.ir.errors import OutputBroken

BY = "nvidia-smi topo -m"
BESIDE = ("PIX", "PXB")
"""A way that leaves the processors aside."""

_WAYS = re.compile(r"X|NV\d+|SYS|SOC|NODE|PHB|PXB|PIX|N/A")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_HEADING = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID|NUMA|\S+")
_LEGEND = re.compile(r"\s*(NIC\d+):\s*(\S+)\s*")
_GPU = re.compile(r"GPU\d+")
_FIX = "save the whole output of `nvidia-smi topo -m` again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The NVLinks of one GPU: those to its best-joined neighbour, and the sum over all neighbours."""

    most: int
    together: int

    def of(self, own: int) -> int:
        """How many links this GPU uses, of a device that has so many of its `own`."""
        return self.together if self.together <= own else self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """The GPUs of a host and what joins them."""

    gpus: int
    islands: tuple[tuple[int, ...], ...]
    """Numbers of GPUs that NVLinks join, one alone where none do."""
    links: tuple[Links, ...]
    adapters: tuple[str, ...] = ()
    beside: frozenset[str] = frozenset()
    """Adapters that share a PCIe switch with a GPU."""


def is_topo(text: str) -> bool:
    """Whether a text begins with the heading of the matrix."""
    return _COLOURS.sub("", text).split(maxsplit=1)[:1] == ["GPU0"]


def read_topo(text: str, place: str) -> Wiring:
    """The wiring that a matrix draws."""
    lines = [_COLOURS.sub("", line) for line in text.splitlines()]
    start = next(index for index, line in enumerate(lines) if line.strip())
    columns = [word for word in _HEADING.findall(lines[start]) if "NUMA" not in word and word != "CPU Affinity"]
    rows: dict[str, list[str]] = {}
    for number, line in enumerate(lines[start + 1 :], start + 2):
        words = line.split()
        if words and words[0] in columns:
            rows[words[0]] = _row(words, len(columns), f"{place}:{number}")
    if missing := [name for name in columns if name not in rows and _GPU.fullmatch(name)]:
        raise OutputBroken(place=place, cause=f"there is no row of {missing[0]}", fix=_FIX)
    names = {found[1]: found[2] for line in lines if (found := _LEGEND.fullmatch(line))}
    return _wiring(columns, rows, names, place)


def _row(words: list[str], width: int, place: str) -> list[str]:
    cells = words[1 : width + 1]
    strange = [cell for cell in cells if not _WAYS.fullmatch(cell)]
    if strange or len(cells) < width:
        cause = (
            f"{strange[0][:20]!r} is no kind of way" if strange else f"{len(cells)} cells stand under {width} columns"
        )
        raise OutputBroken(place=place, cause=cause, fix=_FIX)
    return cells


def _wiring(columns: list[str], rows: dict[str, list[str]], names: dict[str, str], place: str) -> Wiring:
    gpus = [index for index, name in enumerate(columns) if _GPU.fullmatch(name)]
    counts = [[_nvlinks(rows[columns[one]][other]) for other in gpus] for one in gpus]
    for one, row in enumerate(counts):
        for other, count in enumerate(row[:one]):
            if bool(count) != bool(counts[other][one]):
                cause = f"GPU{one} and GPU{other} are joined by NVLink one way only"
                raise OutputBroken(place=place, cause=cause, fix=_FIX)
    adapters = [index for index, name in enumerate(columns) if not _GPU.fullmatch(name)]
    called = {index: names.get(columns[index], columns[index]) for index in adapters}
    near = {called[index] for index in adapters if any(rows[columns[gpu]][index] in BESIDE for gpu in gpus)}
    return Wiring(
        gpus=len(gpus),
        islands=islands([[other for other, count in enumerate(row) if count] for row in counts]),
        links=tuple(Links(most=max(row), together=sum(row)) for row in counts),
        adapters=tuple(called.values()),
        beside=frozenset(near),
    )


def _nvlinks(cell: str) -> int:
    return int(cell[2:]) if cell.startswith("NV") else 0


def islands(neighbours: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    """The parts of a graph, each in order, by their first members."""
    graph = nx.Graph()
    graph.add_nodes_from(range(len(neighbours)))
    graph.add_edges_from((one, other) for one, others in enumerate(neighbours) for other in others)
    return tuple(sorted(tuple(sorted(part)) for part in nx.connected_components(graph)))
