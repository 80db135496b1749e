"""Regions: the items that stand in a function of their own.

Some modules must be *called*, since something is hung on their calls: parameters that are gathered before and let go
after, values that are computed again. The items of such a module are a region: a function that is given what it reads
of the outside, and returns what the outside reads of it. A change of placement belongs to the innermost region that has
all that it is made of and made for. Reads of parameters stand where they are read, and their changes of placement with
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from meshwright.backends.printing.items import Item


class NoRegion(Exception):
    """A module whose items are no function: something outside of it stands between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """The items of a module, of a body, and the regions among them.

    - `reads` are the local names of the outside that it reads, `gives` those that the outside reads of it.
    - A member is an item, or a region that is called there.
    """

    path: str
    reads: tuple[str, ...]
    gives: tuple[str, ...]
    members: tuple[Item | Region, ...]


Read = Callable[[str, str], str]
"""The expression of a parameter, by its value and the region that it is read in."""


def regions_of(
    items: Sequence[Item], inputs: Sequence[str], outputs: Sequence[str], paths: Iterable[str], read: Read
) -> Region:
    """The items as regions: the body, and the modules at `paths` in it, relative to the body."""
    wanted = sorted({path for path in paths if path}, key=lambda path: path.count("."))
    params = {name: item for item in items if item.param for name in item.made}
    rest = [item for item in items if not item.param]
    where = _places(rest, frozenset(params), outputs, wanted)
    return _region("", rest, where, (inputs, outputs), wanted, (params, read))


def _innermost(module: str, paths: Sequence[str]) -> str:
    """The innermost of these modules that is, or contains, a module."""
    around = [path for path in paths if module == path or module.startswith(f"{path}.")]
    return max(around, key=len, default="")


def _places(
    items: Sequence[Item], params: frozenset[str], outputs: Sequence[str], paths: Sequence[str]
) -> dict[int, str]:
    """The region of every item, by its position. Values of parameters alone are made where they are read, since
    parameters may be gathered only there."""
    maker = {name: n for n, item in enumerate(items) for name in item.made}
    readers: dict[str, list[int]] = {}
    for number, item in enumerate(items):
        for name in item.reads:
            readers.setdefault(name, []).append(number)
    done = [n for n, item in enumerate(items) if (item.module or item.outer) and not item.moves]
    found = {n: "" if items[n].outer else _innermost(items[n].module, paths) for n in done}
    for number in range(len(items)):
        if number in found:
            continue
        together, around, left = {number}, set[str](), [number]  # moves, and what no module does, that touch
        while left:
            item = items[left.pop()]
            made_elsewhere = any(name not in maker and name not in params for name in item.reads)
            around |= {""} if made_elsewhere or not item.made or not set(outputs).isdisjoint(item.made) else set()
            touched = {maker[name] for name in item.reads if name in maker}
            touched.update(n for name in item.made for n in readers.get(name, ()))
            around.update(found[n] for n in touched if n in found)
            fresh = {n for n in touched if n not in found} - together
            together |= fresh
            left += fresh
        found |= dict.fromkeys(together, _around_all(around, paths))
    return found


def _around_all(regions: set[str], paths: Sequence[str]) -> str:
    """The innermost region that is around all of these."""
    common = [path for path in paths if regions and all(_inside(one, path) for one in regions)]
    return max(common, key=len, default="")


def _region(
    path: str,
    items: Sequence[Item],
    where: Mapping[int, str],
    ends: tuple[Sequence[str], Sequence[str]],
    paths: Sequence[str],
    reading: tuple[Mapping[str, Item], Read],
) -> Region:
    params, read = reading
    child_of = {one: _child(one, path, paths) for one in set(where.values()) if _inside(one, path)}
    children: dict[str, list[int]] = {}
    units: list[tuple[list[int], str | None]] = []
    for number in (n for n in range(len(items)) if where[n] in child_of):
        child = child_of[where[number]]
        if child is None:
            units.append(([number], None))
        else:
            children.setdefault(child, []).append(number)
    units += [(group, child) for child, group in children.items()]
    members: list[Item | Region] = []
    for group, child in _ordered(units, items, path):
        if child is None:
            members.append(items[group[0]])
            continue
        made = {name for n in group for name in items[n].made}
        reads = dict.fromkeys(name for n in group for name in items[n].reads if name not in made and name not in params)
        rest = set(range(len(items))).difference(group)
        outside = {name for n in rest for name in items[n].reads} | set(ends[1])
        gives = [name for n in group for name in items[n].made if name in outside]
        members.append(_region(child, items, where, (tuple(reads), gives), paths, reading))
    members = list(_with_params(members, ends[1], params, lambda param: read(param, path)))
    return Region(path=path, reads=tuple(ends[0]), gives=tuple(ends[1]), members=tuple(members))


def _inside(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")


def _child(path: str, outer: str, paths: Sequence[str]) -> str | None:
    """The outermost region inside `outer` that is, or contains, a region; None if the region is `outer` itself."""
    around = [one for one in paths if one != outer and _inside(one, outer) and path and _inside(path, one)]
    return min(around, key=len, default=None)


def _ordered(
    units: Sequence[tuple[list[int], str | None]], items: Sequence[Item], path: str
) -> list[tuple[list[int], str | None]]:
    """Units in an order in which all that they read is made before, close to the order in which they were written."""
    maker = {name: at for at, (group, _) in enumerate(units) for n in group for name in items[n].made}
    waits = {
        at: {maker[name] for n in group for name in items[n].reads if name in maker} - {at}
        for at, (group, _) in enumerate(units)
    }
    left, done, found = sorted(waits, key=lambda at: units[at][0][0]), set[int](), []
    while left:
        ready = next((at for at in left if waits[at] <= done), None)
        if ready is None:
            raise NoRegion(f"what stands between the parts of {units[left[0]][1] or path}")
        left.remove(ready)
        done.add(ready)
        found.append(units[ready])
    return found


def _with_params(
    members: Iterable[Item | Region], gives: Iterable[str], params: Mapping[str, Item], read: Callable[[str], str]
) -> Iterator[Item | Region]:
    """Reads of parameters before the first item that needs them, or last, where they are only passed on."""
    known: set[str] = set()

    def reads(names: Iterable[str]) -> Iterator[Item]:
        for name in names:
            if name in params and name not in known:
                known.add(name)
                yield replace(params[name], text=read(params[name].param))

    for member in members:
        if isinstance(member, Item):
            yield from reads(member.reads)
        yield member
    yield from reads(gives)
