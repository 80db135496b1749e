"""Where the traced loss is cut: which values go from block to block, and what all blocks read besides, by place.

In: the equations of the traced step, and the paths of its blocks, a *unit* of which is what repeats: one block, or
several of different kinds in turn. Out: `Cuts`, or a refusal.

Equations that follow from parameters and the batch are in order, as many of them in each unit, one unit after the
other. What is made of parameters alone, or of none, is made where it is read, and lies nowhere. Blocks are parted where
the fewest values pass, behind the last equation that reads a parameter of the one and not behind the first of the next.

All units must do the same (`_Alike`): equations in the same places do, and read the same values, parameters of
the same names, what stands in the same places of their own unit, and what the unit before hands on. The first unit may
be given constants for that (a sum that begins with zero). So what the second does stands for all of them, with keys of
random numbers (`jax.random.key`) of each unit's own: what is drawn may differ in the key that it is drawn by.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from meshwright.ir.errors import EmissionSchedule
from meshwright.ir.graph.calls import TracedEquation, TracedStep

ONE_STAGE = ("--fix pp=1",)
UNLIKE = "devices run one program, and these are unlike: their equations do not stand one block after the other, alike"
LEFT = "what one makes is read behind the next, so later stages would hand on more than earlier ones"
Place = str
"""The number of an equation and which of its results, `17:0`, or of its operands, `17.0`."""
Value = int | str


@dataclass(frozen=True, slots=True)
class Cuts:
    """Places of values.

    - `handed` are what the blocks of the second unit are given, block by block, and what the last of them hands on.
    - `entering` and `leaving` are the same values where the first unit begins, and where the last ends.
    - `beside` is what a unit reads that follows from no parameter, and is the same for all; `keys` are those that each
      unit draws by, unit by unit.
    """

    handed: tuple[tuple[Place, ...], ...]
    entering: tuple[Place, ...]
    leaving: tuple[Place, ...]
    beside: tuple[Place, ...]
    keys: tuple[tuple[Place, ...], ...]

    @staticmethod
    def of(step: TracedStep, units: Sequence[tuple[str, ...]]) -> Cuts:
        """Those of a step for units of these blocks. Raises `EmissionSchedule` where units do not do the same."""
        return _Units(step, units).cuts()


class _Units:
    """The values of a step, by units; positions count the equations that follow from parameters and the batch."""

    def __init__(self, step: TracedStep, units: Sequence[tuple[str, ...]]) -> None:
        self.step, self.units, self.equations = step, units, step.equations
        self.made: dict[Value, tuple[int, int]] = {
            value: (at, n) for at, one in enumerate(self.equations) for n, value in enumerate(one.makes)
        }
        rooms = {room: (unit, kind) for unit, several in enumerate(units) for kind, room in enumerate(several)}
        self.own: dict[str, tuple[int, int, str]] = {}
        """Of every parameter of a block its unit, its place there, and its name."""
        for path in step.params.values():
            parts = path.split(".")
            for length in range(1, len(parts)):
                if (room := ".".join(parts[:length])) in rooms:
                    self.own[path] = (*rooms[room], ".".join(parts[length:]))
        self.roots: dict[Value, frozenset[str]] = {value: frozenset((path,)) for value, path in step.params.items()}
        """Of what follows from no batch, the parameters that it follows from."""
        self.active: set[Value] = set()
        self._follow()

    def _follow(self) -> None:
        """Find what follows from parameters alone, and what from parameters and the batch."""
        fed: set[Value] = set(self.step.given)
        for one in self.equations:
            roots = frozenset[str]().union(*(self.roots.get(value, frozenset()) for value in one.reads))
            if not self.active.isdisjoint(one.reads) or (roots and not fed.isdisjoint(one.reads)):
                self.active.update(one.makes)
            elif roots:
                self.roots |= dict.fromkeys(one.makes, roots)
            elif not fed.isdisjoint(one.reads):
                fed.update(one.makes)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The numbers of the equations that lead to the loss and follow from parameters and the batch."""
        needed: set[Value] = {self.step.loss}
        found = []
        for at in range(len(self.equations) - 1, -1, -1):
            one = self.equations[at]
            if not needed.isdisjoint(one.makes):
                needed.update(one.reads)
                found += [at] * (not self.active.isdisjoint(one.makes))
        return tuple(reversed(found))

    @cached_property
    def begins(self) -> dict[Value, int]:
        """The position at which every such value is made."""
        return {value: at for at, number in enumerate(self.order) for value in self.equations[number].makes}

    @cached_property
    def reads(self) -> tuple[tuple[int, int], ...]:
        """Of every block, unit by unit, the positions of the first and the last equation that reads its parameters."""
        found: dict[tuple[int, int], tuple[int, int]] = {}
        for at, number in enumerate(self.order):
            for value in self.equations[number].reads:
                for path in self.roots.get(value, frozenset()).intersection(self.own):
                    unit, kind, _ = self.own[path]
                    found[unit, kind] = found.get((unit, kind), (at, at))[0], at
        blocks = [(unit, kind) for unit, several in enumerate(self.units) for kind in range(len(several))]
        if set(found) != set(blocks):
            raise refuse("some read no parameter of their own")
        return tuple(found[one] for one in blocks)

    @cached_property
    def length(self) -> int:
        """The positions of a unit."""
        kinds = len(self.units[0])
        return self.reads[kinds][0] - self.reads[0][0]

    def between(self, kind: int) -> range:
        """The positions at which a block of the second unit may begin."""
        kinds = len(self.units[0])
        before, own = self.reads[kinds + kind - 1], self.reads[kinds + kind]
        found = range(max(before[1] + 1, self.length * (not kind)), own[0] + 1)
        if not found:
            raise refuse("the equations of some are among those of others")
        return found

    def own_of(self, value: Value) -> tuple[int, int, str] | None:
        """Of a parameter of a block its unit, its place there, and its name."""
        return self.own.get(self.step.params.get(value, "")) if isinstance(value, int) else None

    def drawn_by(self, value: Value) -> bool:
        """Whether it is a key of random numbers that follows from no parameter."""
        return value in self.step.keys and value not in self.roots and value not in self.active

    def at(self, position: int) -> TracedEquation:
        """The equation at a position."""
        return self.equations[self.order[position]]

    def passing(self, position: int) -> dict[Value, None]:
        """What was made before a position, or is made of parameters of no block and read by blocks, and is read there
        or later."""
        found: dict[Value, None] = {}
        for number in self.order[position:]:
            for value in self.equations[number].reads:
                if self.begins.get(value, position) < position or value in self.shared:
                    found.setdefault(value)
        return found

    @cached_property
    def shared(self) -> frozenset[Value]:
        """What is made of parameters of no block, and read by blocks."""
        within = self.order[self.reads[0][0] : self.reads[-1][1] + 1]
        return frozenset(
            value
            for number in within
            for value in self.equations[number].reads
            if not self.roots.get(value, frozenset()) <= self.own.keys()
        )

    def places(self, values: Iterable[Value]) -> tuple[Place, ...]:
        """Where they are made; parameters, where they are read."""
        found = []
        for value in values:
            if value in self.made:
                number, at = self.made[value]
                found.append(f"{number}:{at}")
            else:
                found.append(next(self.read(value)))
        return tuple(found)

    def read(self, value: Value) -> Iterator[Place]:
        """Where a value is read."""
        for number, one in enumerate(self.equations):
            yield from (f"{number}.{at}" for at, other in enumerate(one.reads) if other == value)

    def cuts(self) -> Cuts:
        """The first that there are, of those by which the fewest values pass on to the last unit."""
        last = (len(self.units) - 2) * self.length
        begins = sorted(self.between(0), key=lambda at: len(self.passing(at + last)))
        kinds = range(1, len(self.units[0]))
        inside = [min(self.between(kind), key=lambda at: len(self.passing(at))) for kind in kinds]
        refused = []
        for begin in begins:
            try:
                return _Alike(self, (begin, *inside, begin + self.length)).cuts()
            except EmissionSchedule as error:
                refused.append(error)
        raise refused[0]


class _Alike:
    """Units, by the positions at which the blocks of the second begin, and the third would."""

    def __init__(self, whole: _Units, bounds: tuple[int, ...]) -> None:
        self.whole, self.bounds, self.length = whole, bounds, whole.length
        self.count, self.begin = len(whole.units), bounds[0] - whole.length
        self.given = tuple(whole.passing(bounds[0]))
        self.keys: dict[Value, dict[int, Value]] = {}
        """Of every key by which the second draws, those of other units in its place."""
        if self.begin + self.count * self.length > len(whole.order):
            raise refuse(UNLIKE)
        does = [whole.at(at).does for at in range(self.begin, self.begin + self.count * self.length)]
        if does != does[: self.length] * self.count:
            raise refuse(UNLIKE)

    def cuts(self) -> Cuts:
        """The places of all values."""
        places = self.whole.places
        made, leaving = ([self.moved(value, units) for value in self.given] for units in (1, self.count - 1))
        entering = self.check()
        return Cuts(
            entering=entering,
            handed=(*(places(self.whole.passing(at)) for at in self.bounds[:-1]), places(made)),
            leaving=places(leaving),
            beside=tuple(self.beside().values()),
            keys=tuple(places(own.get(unit, key) for key, own in self.keys.items()) for unit in range(self.count)),
        )

    def moved(self, value: Value, units: int) -> Value:
        """The value that stands in its place so many units later; itself, if no unit makes it."""
        at = self.whole.begins.get(value, -1)
        if at < self.begin:
            return value
        makes = self.whole.at(at + units * self.length).makes
        return makes[self.whole.at(at).makes.index(value)]

    def check(self) -> tuple[Place, ...]:
        """Must: all units do as the second does. Returns the places at which the first is given what it is."""
        passed = {value: value for value in self.given if self.whole.begins.get(value, -1) < self.begin}
        entering = dict(zip(passed, self.whole.places(passed), strict=True))
        self._compare(0, passed, entering)
        for unit in range(2, self.count):
            self._compare(unit, {value: self.moved(value, unit - 1) for value in self.given}, {})
        for unit in range(2, self.count + 1):
            handed = {self.moved(value, unit - 1) for value in self.given}
            if not handed.issuperset(self.whole.passing(self.begin + unit * self.length)):
                raise refuse(LEFT)
        return tuple(entering[value] for value in self.given)

    def _compare(self, unit: int, known: dict[Value, Value], entering: dict[Value, Place]) -> None:
        """Hold a unit against the second, given these values for those of the second; the first is given what it reads
        in their places."""
        for at in range(self.bounds[0], self.bounds[-1]):
            its_number = self.whole.order[at + (unit - 1) * self.length]
            one, its = self.whole.at(at), self.whole.equations[its_number]
            for n, (value, other) in enumerate(zip(one.reads, its.reads, strict=True)):
                if value in self.given and value not in known and self._is_before(other):
                    known[value], entering[value] = other, f"{its_number}.{n}"
                elif not self._same(value, other, known, unit):
                    raise refuse(UNLIKE)
            known |= dict(zip(one.makes, its.makes, strict=True))

    def _is_before(self, value: Value) -> bool:
        """Whether a value is there before the first unit begins."""
        own = self.whole.roots.get(value, frozenset()) & self.whole.own.keys()
        return not own and self.whole.begins.get(value, -1) < self.begin

    def _same(self, value: Value, other: Value, known: dict[Value, Value], unit: int) -> bool:
        """Whether what a unit reads is what the second reads in its place."""
        if value in known:
            return known[value] == other
        own, its = self.whole.own_of(value), self.whole.own_of(other)
        if own is not None or its is not None:
            return own is not None and its == (unit, *own[1:])
        if value == other:
            return self.whole.roots.get(value, frozenset()).isdisjoint(self.whole.own)
        if self.whole.drawn_by(value) and self.whole.drawn_by(other):
            known[value] = self.keys.setdefault(value, {})[unit] = other
            return True
        if value in self.whole.active or value not in self.whole.made or other not in self.whole.made:
            return False
        (number, at), (its_number, its_at) = self.whole.made[value], self.whole.made[other]
        one, another = self.whole.equations[number], self.whole.equations[its_number]
        alike = one.does == another.does and at == its_at and len(one.reads) == len(another.reads)
        if alike and all(self._same(*pair, known, unit) for pair in zip(one.reads, another.reads, strict=True)):
            known |= dict(zip(one.makes, another.makes, strict=True))
            return True
        return False

    def beside(self) -> dict[Value, Place]:
        """What equations there read that follows from no parameter, and from no key of the second's own, where that is
        read first."""
        apart = set(self.keys)
        for one in self.whole.equations:
            apart |= set() if apart.isdisjoint(one.reads) else set(one.makes)
        found: dict[Value, Place] = {}
        left, seen = [self.whole.order[at] for at in reversed(range(self.bounds[0], self.bounds[-1]))], set[int]()
        while left:
            number = left.pop()
            for at, value in enumerate(self.whole.equations[number].reads if number not in seen else ()):
                if isinstance(value, str) or value in self.whole.active or value in (*self.given, *self.keys):
                    continue
                if value not in self.whole.roots and value not in apart:
                    found.setdefault(value, f"{number}.{at}")
                elif value in self.whole.made:
                    left.append(self.whole.made[value][0])
            seen.add(number)
        return found


def refuse(cause: str) -> EmissionSchedule:
    """The refusal of blocks that no stages share."""
    return EmissionSchedule(place="the blocks", cause=cause, ways=ONE_STAGE)
