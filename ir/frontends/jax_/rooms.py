"""Which block every equation of an unrolled model lies in.

A jaxpr says nothing of modules, so blocks are told by the parameters that equations read. Parameters are grouped by
their paths: numbered siblings of which some are alike (`blocks.0.…`, `Block_0.…`) are a stack, the outermost ones
first. An equation that reads a parameter of a block lies in it. Between two blocks the cut goes where the fewest bytes
are live: after a residual sum, before the norm that follows. Where there are several such places (what is dropped after
an embedding may be its last equation or the first of a block), the cuts are taken that leave the most blocks alike.

In: the flat equations. Out: the same with a room each, and the stacks. A stack whose blocks are entered in turns (a
block that is called twice) is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise, product

from meshwright.ir.frontends.folding.stacks import Stack
from meshwright.ir.frontends.jax_.flat import Flat

_NUMBERED = re.compile(r"(?:^|(?<=\.))([A-Za-z]\w*_)?(\d+)(?=\.|$)")


@dataclass(frozen=True, slots=True)
class Block:
    """Where a path lies: the stack's prefix, with what joins it to a number, and the number."""

    prefix: str
    number: int
    rest: str

    @property
    def room(self) -> str:
        return f"{self.prefix}{self.number}"


def blocks_of(path: str) -> list[Block]:
    """Every way of reading a path as one inside a numbered block, the outermost first."""
    return [
        Block(path[: found.start(2)], int(found[2]), path[found.end() :].lstrip("."))
        for found in _NUMBERED.finditer(path)
    ]


def stacks_of(shapes: Mapping[str, object]) -> dict[str, Stack]:
    """The stacks among parameters, by prefix; `shapes` has what tells parameters apart beside their names."""
    members: dict[str, dict[int, list[tuple[str, object]]]] = {}
    for path, shape in shapes.items():
        for block in blocks_of(path):
            members.setdefault(block.prefix, {}).setdefault(block.number, []).append((block.rest, shape))
    found: dict[str, Stack] = {}
    for prefix, by_number in sorted(members.items(), key=lambda item: len(item[0])):
        depth = len(by_number)
        keys = [tuple(sorted(by_number.get(at, ()), key=str)) for at in range(depth)]
        known: dict[object, int] = {}
        classes = tuple(known.setdefault(key, len(known)) for key in keys)
        inside = any(prefix.startswith(outer) for outer in found)
        if sorted(by_number) == list(range(depth)) and len(known) < depth and not inside:
            path, _, stem = prefix.rpartition(".")
            found[prefix] = Stack(path, classes, tuple(range(depth)), stem)
    return found


def placed(flat: Flat) -> Flat:
    """The equations with rooms, and the stacks of unrolled blocks beside those of scans."""
    taken = tuple(stack.prefix for stack in flat.stacks)
    shapes = {
        leaf.path: leaf.type
        for leaf in flat.leaves.values()
        if leaf.kind in ("param", "buffer") and not leaf.path.startswith(taken)
    }
    stacks = stacks_of(shapes)
    live = _live(flat)
    while True:
        anchors = _anchors(flat, stacks, live)
        broken = _entered_twice(anchors)
        if not broken:
            break
        stacks = {prefix: stack for prefix, stack in stacks.items() if prefix not in broken}
    rooms = min(
        (_shared(flat, _rooms(flat, anchors, live, late), live) for late in _lateness(flat, anchors, live)),
        key=lambda rooms: _kinds(flat, rooms, live),
    )
    equations = [replace(one, room=one.room or room) for one, room in zip(flat.equations, rooms, strict=True)]
    used = {room for room in rooms if room}
    kept = [stack for stack in stacks.values() if any(stack.holds(room) for room in used)]
    return replace(flat, equations=equations, stacks=[*flat.stacks, *kept])


def _shared(flat: Flat, rooms: Sequence[str], live: Set[int]) -> list[str]:
    """The rooms, but for constants that several rooms read: these lie outside of blocks, as a table of positions
    does."""
    readers: dict[int, set[str]] = {}
    for equation, room in zip(flat.equations, rooms, strict=True):
        if live.isdisjoint(equation.outputs):
            continue
        for atom in equation.inputs:
            if isinstance(atom, int) and atom not in live:
                readers.setdefault(atom, set()).add(equation.room or room)
    found = list(rooms)
    for at, equation in enumerate(flat.equations):
        if any(len(readers.get(value, ())) > 1 for value in equation.outputs):
            found[at] = ""
    return found


def _live(flat: Flat) -> Set[int]:
    """Values that depend on an input or a parameter."""
    live = {at for at, leaf in flat.leaves.items() if leaf.kind in ("param", "buffer", "input")}
    for equation in flat.equations:
        if any(atom in live for atom in equation.inputs if isinstance(atom, int)):
            live.update(equation.outputs)
    return live


def _anchors(flat: Flat, stacks: Mapping[str, Stack], live: Set[int]) -> list[str | None]:
    """For every equation the room that its parameters lie in, "" outside of blocks, None if it reads none."""
    room_of: dict[int, str] = {}
    for at, leaf in flat.leaves.items():
        if leaf.kind in ("param", "buffer"):
            room_of[at] = next((b.room for b in blocks_of(leaf.path) if b.prefix in stacks), "")
    found: list[str | None] = []
    for equation in flat.equations:
        if equation.room:
            found.append(equation.room)
            continue
        read = [atom for atom in equation.inputs if isinstance(atom, int) and atom in live]
        rooms = dict.fromkeys(room_of[atom] for atom in read if atom in room_of)
        if read and all(atom in room_of for atom in read):  # made of parameters alone, as a cast of one
            room_of |= dict.fromkeys(equation.outputs, next((room for room in rooms if room), ""))
            found.append(None)
            continue
        found.append(next((room for room in rooms if room), next(iter(rooms), None)))
    return _lent(found)


def _lent(anchors: Sequence[str | None]) -> list[str | None]:
    """With what is read of the whole model amid a block, a shared bias, counted as the block's."""
    found = list(anchors)
    inside = [at for at, room in enumerate(found) if room]
    for before, after in pairwise(inside):
        if found[before] == found[after]:
            found[before + 1 : after] = [None if room == "" else room for room in found[before + 1 : after]]
    return found


def _entered_twice(anchors: Sequence[str | None]) -> set[str]:
    """Prefixes of stacks of which a block is entered again after another room."""
    runs: list[str] = []
    for room in anchors:
        if room is not None and (not runs or runs[-1] != room):
            runs.append(room)
    again = {room for room in runs if room and runs.count(room) > 1}
    return {block.prefix for room in again for block in blocks_of(room)}


Late = tuple[bool, bool, bool]
"""Of several places where a gap may be cut, whether the last is taken: before blocks, between two, and behind them."""


def _lateness(flat: Flat, anchors: Sequence[str | None], live: Set[int]) -> Iterator[Late]:
    """The ways to cut gaps that differ, as far as one is needed: none where all blocks are alike as they are."""
    first = (False, False, False)
    yield first
    rooms = _rooms(flat, anchors, live, first)
    if _kinds(flat, rooms, live) > len({_stem(room) for room in rooms if room}):
        yield from (late for late in product((False, True), (False, True), (False, True)) if late != first)


def _stem(room: str) -> str:
    return room.rstrip("0123456789")


def _kinds(flat: Flat, rooms: Sequence[str], live: Set[int]) -> int:
    """How many blocks of a stack do something else than others, with what depends on inputs or parameters."""
    found: dict[str, list[object]] = {}
    for equation, room in zip(flat.equations, rooms, strict=True):
        if room and not live.isdisjoint(equation.outputs):
            found.setdefault(room, []).append((equation.name, equation.types))
    return len({(_stem(room), tuple(done)) for room, done in found.items()})


def _rooms(flat: Flat, anchors: Sequence[str | None], live: Set[int], late: Late) -> list[str]:
    """A room for every equation: gaps between anchors of two rooms are cut where the fewest bytes pass."""
    last = {atom: at for at, one in enumerate(flat.equations) for atom in one.inputs if isinstance(atom, int)}
    last |= {atom: len(flat.equations) for atom in flat.outputs if isinstance(atom, int)}
    born = {value: at for at, one in enumerate(flat.equations) for value in one.outputs}
    passing = [0] * (len(flat.equations) + 2)
    for value, at in born.items():
        if value in live and value in last:
            passing[at + 1] += flat.types[value].nbytes
            passing[last[value] + 1] -= flat.types[value].nbytes
    for at in range(1, len(passing)):
        passing[at] += passing[at - 1]
    rooms = [""] * len(anchors)
    previous, room = -1, ""
    marks = [(at, found) for at, found in enumerate(anchors) if found is not None]
    for at, following in [*marks, (len(anchors), "")]:
        places = range(previous + 1, at + 1)
        if late[1 if room and following else 2 if room else 0]:
            places = places[::-1]
        cut = at if following == room else min(places, key=passing.__getitem__)
        for between in range(previous + 1, at):
            rooms[between] = room if between < cut else following
        if at < len(anchors):
            rooms[at] = following
        previous, room = at, following
    return rooms
