"""The collectives of a compiled program: kind, mesh axes and bytes that each device gives, as often as they run.

In: the text of an HLO module after XLA's passes. A computation runs as often as those that call it; the body of a loop,
that many times its trip count, which XLA notes where it knows it. What stands under a condition runs as often as is
said from outside (`taken`), else always. Devices that communicate are written in three ways:

    {{0,2},{1,3}}                     groups
    [2,2]<=[2,2]T(1,0)                0, 1, 2, … in the shape behind the arrow, transposed, cut into rows
    mesh['a'=2,'b'=2] {'a'}           0, 1, 2, … in the shape of the mesh; groups along these axes. Where the devices
                                      have another order, `device_ids=([2,4]T(1,0))` says it, as above
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod

from meshwright.ir.errors import HLOUnreadable
from meshwright.ir.sharding.mesh import Mesh

KINDS = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "collective-permute": "permute",
}
BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}
Collective = tuple[str, tuple[str, ...], int]
"""Kind, mesh axes, bytes that each device gives."""

_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%(?P<name>[\w.-]+) \(")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%[\w.-]+ = (?P<type>.*?) (?P<kind>[\w-]+)\(")
_CALLED = re.compile(
    r"(?:to_apply|calls|body|condition|branch_computations|called_computations)=\{?((?:%[\w.-]+(?:, )?)+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_COMMENT = re.compile(r"/\*.*?\*/")
_TENSOR = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")


def collectives(text: str, mesh: Mesh, taken: Sequence[int] = ()) -> Counter[Collective]:
    """Those of one run of a program on the devices of a mesh. `taken`: how often what stands under a condition runs,
    then what stands under one more there."""
    found: Counter[Collective] = Counter()
    bodies, entry = _computations(text)
    for name, times in _runs(bodies, entry, taken).items():
        for line in bodies[name]:
            kind, made = KINDS.get(_kind(line)), _INSTRUCTION.match(line)
            if kind is None or made is None or len(group := _group(line)) == 1:
                continue
            size = sum(_nbytes(dtype, dims, line) for dtype, dims in _TENSOR.findall(made["type"]))
            given = {"all_gather": size // len(group), "reduce_scatter": size * len(group)}.get(kind, size)
            found[kind, _axes(mesh, group), given] += times
    return found


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """The lines of every computation, and the name of the one that is run."""
    bodies: dict[str, list[str]] = {}
    entry, current = "", list[str]()
    for line in _COMMENT.sub("", text).splitlines():
        head = _COMPUTATION.match(line)
        if head is not None:
            current = bodies.setdefault(head["name"], [])
            entry = head["name"] if head["entry"] else entry
        else:
            current.append(line)
    if not entry:
        raise _unreadable(text.partition("\n")[0], "it has no ENTRY")
    return bodies, entry


def _runs(bodies: Mapping[str, Sequence[str]], entry: str, taken: Sequence[int]) -> Counter[str]:
    """How often every computation runs that holds a collective, or calls one that does."""
    runs: Counter[str] = Counter()
    calls = {name: [one for line in lines for one in _calls(line)] for name, lines in bodies.items()}
    holding = {name for name, lines in bodies.items() if any(_kind(line) in KINDS for line in lines)}
    while more := {name for name, called in calls.items() if not holding.isdisjoint(called)} - holding:
        holding |= more

    def run(name: str, times: int, conditions: int) -> None:
        runs[name] += times
        for line in bodies[name]:
            under = _kind(line) == "conditional" and conditions < len(taken)
            each = times * _trips(line)
            if under:
                each = taken[0] if not conditions else times * taken[conditions] // taken[conditions - 1]
            for one in holding.intersection(_calls(line)):
                run(one, each, conditions + under)

    run(entry, 1, 0)
    return runs


def _calls(line: str) -> list[str]:
    """The computations that an instruction runs."""
    return [one.strip(" %") for names in _CALLED.findall(line) for one in names.split(",") if one.strip()]


def _kind(line: str) -> str:
    """What an instruction is, whether it is awaited at once or later; empty for a line that is none."""
    made = _INSTRUCTION.match(line)
    return made["kind"].removesuffix("-start") if made is not None else ""


def _trips(line: str) -> int:
    """How often an instruction runs what it calls."""
    if _kind(line) != "while":
        return 1
    trips = _TRIPS.search(line)
    if trips is None:
        raise _unreadable(line, "a loop of unknown length has collectives")
    return int(trips[1])


def _nbytes(dtype: str, dims: str, line: str) -> int:
    """The bytes of a tensor, `f32[16,64]`."""
    if dtype not in BYTES:
        raise _unreadable(line, f"elements of {dtype} have no known size")
    return BYTES[dtype] * prod(int(one) for one in dims.split(",") if one)


def _group(line: str) -> tuple[int, ...]:
    """The first group of devices that communicate."""
    return next(iter(_groups(line)))


def _groups(line: str) -> Iterator[tuple[int, ...]]:
    if found := re.search(r"(?:replica_groups|source_target_pairs)=\{\{([\d,{}]*)\}\}", line):
        yield from (tuple(map(int, one.split(","))) for one in found[1].split("},{"))
    elif found := re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line):
        devices, size = _iota(found[3], found[4]), int(found[2])
        yield from (tuple(devices[at : at + size]) for at in range(0, len(devices), size))
    elif found := re.search(
        r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{([^}]*)\}", line
    ):
        axes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", found[1])}
        along = [name.strip(" '") for name in found[4].split(",")]
        if not set(along) <= set(axes):
            raise _unreadable(line, f"groups along {found[4]}")
        ids = _iota(found[2], found[3]) if found[2] else list(range(prod(axes.values())))
        names = list(axes)
        order = tuple(names.index(one) for one in (*(one for one in names if one not in along), *along))
        devices = [ids[at] for at in _transposed(tuple(axes.values()), order)]
        size = prod(axes[one] for one in along)
        yield from (tuple(devices[at : at + size]) for at in range(0, len(devices), size))
    else:
        raise _unreadable(line, "its groups are written in no known way")


def _iota(shape: str, order: str | None) -> list[int]:
    """0, 1, 2, … in a shape, transposed where an order is given."""
    dims = tuple(map(int, shape.split(",")))
    return _transposed(dims, tuple(map(int, order.split(","))) if order else range(len(dims)))


def _transposed(shape: Sequence[int], order: Sequence[int]) -> list[int]:
    """0, 1, 2, … in a shape, read in another order of its dimensions."""
    strides = [prod(shape[at + 1 :]) for at in range(len(shape))]
    return [
        sum(at * strides[dim] for at, dim in zip(point, order, strict=True))
        for point in product(*(range(shape[dim]) for dim in order))
    ]


def _axes(mesh: Mesh, group: Sequence[int]) -> tuple[str, ...]:
    """The mesh axes along which these devices differ, by name."""
    at = [mesh.coordinates(device) for device in group]
    return tuple(sorted(axis for axis in mesh.names if len({one[axis] for one in at}) > 1))


def _unreadable(line: str, why: str) -> HLOUnreadable:
    return HLOUnreadable(
        place=f"compiled HLO: {line.strip()[:160]}", cause=why, fix="report this line, with the version of jaxlib"
    )
