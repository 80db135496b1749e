"""Functions: regions as lines of code.

What is read once, in the next lines, stands where it is read, as long as the line stays short. A value is called after
the module or the operator that makes it; a name is free again when nothing reads its value any more, so that what a
function no longer needs is let go. Where that is not enough, a statement lets go of it (`lifetimes`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from meshwright.backends.printing.items import Item, plain
from meshwright.backends.printing.lifetimes import as_one, let_go
from meshwright.backends.printing.regions import Region
from meshwright.ir.quoting import identifier, loose

WIDTH = 104
"""Characters, at most, of a statement that others are written into, with the names that values may get."""
READ = re.compile(r"%(\d+)")


@dataclass(frozen=True, slots=True)
class Function:
    """The code of a region: names of its arguments, its statements, the names that it returns, and its regions'."""

    path: str
    arguments: tuple[str, ...]
    lines: tuple[str, ...]
    returns: tuple[str, ...]
    inner: tuple[Function, ...]

    def all(self) -> Iterator[Function]:
        yield self
        for one in self.inner:
            yield from one.all()


Called = Callable[[str, Sequence[str]], str]
"""How a region is called: its path, relative to the region that calls it, and its arguments."""
LetGo = Callable[[Sequence[str]], str]
"""How variables let go of what they hold; empty where values go by themselves."""


def functions_of(
    region: Region,
    called: Called,
    lets_go: LetGo,
    reserved: Collection[str],
    given: Mapping[str, str] | None = None,
    *,
    beside: int,
) -> Function:
    """A region as a function. `given` are names that its arguments may get, `beside` bytes that are kept for the
    backward pass while it runs, by other calls."""
    inner = tuple(
        functions_of(one, called, lets_go, reserved, beside=beside) for one in region.members if isinstance(one, Region)
    )
    items = _inlined(
        [one if isinstance(one, Item) else _call(one, region.path, called) for one in region.members], region.gives
    )
    return _Naming(region, items, frozenset(reserved), dict(given or {})).function(inner, lets_go, beside)


def _call(region: Region, outer: str, called: Called) -> Item:
    inside = region.path[len(outer) + 1 :] if outer else region.path
    text = called(inside, [f"%{number}" for number in range(len(region.reads))])
    stem = region.path.rpartition(".")[2]
    memory = as_one(_items(region), region.gives)
    return Item(
        made=region.gives, text=text, reads=region.reads, stem=stem, alone=len(region.gives) != 1, memory=memory
    )


def _items(region: Region) -> Iterator[Item]:
    for one in region.members:
        yield from (one,) if isinstance(one, Item) else _items(one)


def _inlined(items: Sequence[Item], outputs: Sequence[str]) -> list[Item]:
    """Items, with expressions that are read once written where they are read."""
    counts: dict[str, int] = {}
    for item in items:
        for slot in READ.findall(item.text):
            counts[item.reads[int(slot)]] = counts.get(item.reads[int(slot)], 0) + 1
    stems = {name: stem for item in items for name, stem in item.called()}
    pending: dict[str, Item] = {}
    found: list[Item] = []
    for item in items:
        whole, early = _put(item, pending, stems)
        found += early
        (name,) = item.made if len(item.made) == 1 else ("",)
        if name and counts.get(name) == 1 and name not in outputs and not item.alone:
            pending[name] = whole
        else:
            found.append(whole)
    return found


def _put(item: Item, pending: dict[str, Item], stems: Mapping[str, str]) -> tuple[Item, list[Item]]:
    """An item with postponed expressions written into it; those that would make it too long come before it."""
    reads: list[str] = []
    texts: list[str] = []
    early: list[Item] = []
    inside: list[Item] = []
    room = WIDTH - _length(item, stems) - sum(len(stems.get(name, plain(name))) + 2 for name in item.made)
    for slot, name in enumerate(item.reads):
        inner = pending.pop(name, None)
        if inner is not None and _length(inner, stems) > room:
            early.append(inner)
            inner = None
        if inner is None:
            texts.append(f"%{_number(reads, name)}")
            continue
        room -= _length(inner, stems)
        inside.append(inner)
        text = _renumbered(inner, reads)
        alone = re.search(rf"(^|[(,=\[] ?)%{slot}($|[),\]])", item.text)
        texts.append(text if alone or not loose(text) else f"({text})")
    text = READ.sub(lambda found: texts[int(found[1])], item.text)
    return replace(item, text=text, reads=tuple(reads), inside=tuple(inside)), early


def _length(item: Item, stems: Mapping[str, str]) -> int:
    """The approximate length of an expression."""
    names = [stems.get(name, plain(name)) for name in item.reads]
    return len(READ.sub(lambda found: names[int(found[1])], item.text))


def _renumbered(item: Item, reads: list[str]) -> str:
    """The text of an item, with what it reads numbered as in `reads`."""
    return READ.sub(lambda found: f"%{_number(reads, item.reads[int(found[1])])}", item.text)


def _number(reads: list[str], name: str) -> int:
    if name not in reads:
        reads.append(name)
    return reads.index(name)


def _read_later(item: Item) -> Iterator[str]:
    """Names that functions of an item read, which may run at the very end: in the backward pass."""
    yield from (item.reads[int(slot)] for slot in READ.findall(item.text.partition("lambda ")[2]))


def _read_inside(item: Item) -> Iterator[str]:
    """Names that functions of an item read, whenever these run: their variables must stay bound."""
    yield from (item.reads[int(slot)] for slot in READ.findall(item.text.partition("lambda")[2]))


class _Naming:
    """The naming of local names as variables."""

    def __init__(self, region: Region, items: Sequence[Item], reserved: frozenset[str], given: dict[str, str]) -> None:
        self.region, self.items, self.reserved = region, items, reserved
        self.last = {name: number for number, item in enumerate(items) for name in item.reads}
        self.last |= {name: number for number, item in enumerate(items) for name in item.made if name not in self.last}
        self.last |= dict.fromkeys((*region.gives, *chain.from_iterable(map(_read_later, items))), len(items))
        self.called: dict[str, str] = {}
        self.holds: dict[str, str] = {}
        self.again: dict[str, int] = {}
        """The item that binds a name's variable anew."""
        for name, variable in given.items():
            if name in region.reads:
                self.bind(name, variable, -1)
        for name in region.reads:
            if name not in given:
                self.bind(name, plain(name), -1)

    def bind(self, name: str, stem: str, now: int) -> str:
        """The variable for a local name: after its stem, unless that name is still in use."""
        number, variable = 1, identifier(stem)
        while variable in self.reserved or self.busy(variable, now):
            number += 1
            variable = f"{identifier(stem)}_{number}"
        if variable in self.holds:
            self.again[self.holds[variable]] = now
        self.called[name], self.holds[variable] = variable, name
        self.again[name] = len(self.items)
        return variable

    def busy(self, variable: str, now: int) -> bool:
        held = self.holds.get(variable)
        return held is not None and self.last.get(held, -1) > now

    def function(self, inner: tuple[Function, ...], lets_go: LetGo, beside: int) -> Function:
        lines: list[str] = []
        arguments = tuple(self.called[name] for name in self.region.reads)
        made = [[self.bind(*one, number) for one in item.called()] for number, item in enumerate(self.items)]
        inside = dict.fromkeys(chain.from_iterable(map(_read_inside, self.items)), len(self.items))
        gone = let_go(self.items, self.last | inside, self.again | inside, beside)
        for number, item in enumerate(self.items):
            text = self.text(item)
            if item.says:
                lines.append(f"# {item.says}")
            lines.append(f"{', '.join(made[number])} = {text}" if made[number] else text)
            if number in gone and (said := lets_go([self.called[name] for name in gone[number]])):
                lines.append(said)
        returns = tuple(self.called[name] for name in self.region.gives)
        return Function(self.region.path, arguments, tuple(lines), returns, inner)

    def text(self, item: Item) -> str:
        return READ.sub(lambda found: self.called[item.reads[int(found[1])]], item.text)
