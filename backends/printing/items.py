"""Items: the steps of a body in order, as expressions of a dialect.

A local name is a value as it lies somewhere: `v` where it is made, `v@hub` at its hub, `v@0` on the first way from
there. Every local name is made by one item. Expressions name what they read by position: `add(%0, %1)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from meshwright.backends.printing.dialect import Dialect, LocalOp
from meshwright.backends.printing.naming import free
from meshwright.backends.printing.rows import (
    ENDS,
    PLACES,
    Lead,
    Trip,
    Trips,
    along_rows,
    lead,
    merged,
    renumbered,
    rows_of,
    travelled,
)
from meshwright.ir.errors import EmissionPrinted
from meshwright.ir.graph.graph import Op, Type
from meshwright.ir.graph.numbers import differing
from meshwright.ir.program.program import Kernels
from meshwright.ir.program.routes import Routed, Way
from meshwright.ir.sharding.adjoint import Split
from meshwright.ir.sharding.layouts import Layout, Uneven
from meshwright.ir.sharding.placement import Placement, State

NUMBER = re.compile(r"((?<![\w%.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.]))")
"""A number in an expression, and no part of a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory of what one expression makes on a rank, and keeps.

    - `lies`: for local names that it makes, in whose memory they lie: their own, or that of a name that is viewed. Of
      names that are not here nothing is known.
    - `nbytes`: of those that lie in their own.
    """

    lies: Mapping[str, str] = field(default_factory=dict)
    nbytes: Mapping[str, int] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    """The names that its derivative reads."""
    beside: int = 0
    """Bytes that its derivative reads beside these."""
    graded: int = 0
    """Bytes of the gradients that its derivative reads and makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One expression, and the local names that it makes and reads."""

    made: tuple[str, ...]
    text: str
    reads: tuple[str, ...] = ()
    module: str = ""
    """The module that does this, relative to the body; of a move, that of none."""
    says: str = ""
    """A remark."""
    stem: str = ""
    """What its result may be called."""
    stems: tuple[str, ...] = ()
    """The same of several results that are not to be called alike."""
    alone: bool = False
    """Whether it must stand in a line of its own."""
    moves: bool = False
    outer: bool = False
    """Whether it must stand in the function of the body, and in none of a module in it."""
    param: str = ""
    """The value of the graph that is a parameter, where it reads one; its text is that of the function it stands in."""
    memory: Memory = Memory()
    inside: tuple[Item, ...] = ()
    """The expressions that are written into it."""
    writes: str = ""
    """The path of the buffer that it writes: what it reads first, with what it reads last."""

    def called(self) -> Iterator[tuple[str, str]]:
        """The local names that an item makes, each with a proposed variable name."""
        for number, name in enumerate(self.made):
            yield name, self.stems[number] if self.stems else self.stem or plain(name)


@dataclass(slots=True)
class _Items:
    """The items of a body so far."""

    routed: Routed
    dialect: Dialect
    entries: frozenset[str]
    names: Mapping[str, str]
    rows: Mapping[str, str]
    kernels: Kernels
    numbered: Mapping[str, Sequence[Op]] = field(default_factory=dict)
    """Operators in which calls differ, as every set of open numbers has them."""
    found: list[Item] = field(default_factory=list)
    numbers: dict[tuple[str, ...], str] = field(default_factory=dict)
    """The names of numbers in which calls differ, by what each set has."""
    known: set[str] = field(default_factory=set)
    trips: dict[tuple[str, Lead], Trips] = field(default_factory=dict)
    """The trips that rows have made which lie so, by what was dispatched."""
    unlike: tuple[str, tuple[int, ...]] = field(init=False)
    """The axis whose ranks have unequal parts, if there is one, and these; else the first rank."""

    def __post_init__(self) -> None:
        mesh, strategies = self.routed.mesh, self.routed.body.strategies.values()
        splits = ((axis, one) for strategy in strategies for axis, one in strategy.choices if isinstance(one, Split))
        uneven = next((axis for axis, one in splits if isinstance(one.layout, Uneven)), "")
        self.unlike = uneven, mesh.group(0, (uneven,) if uneven else ())

    def walk(self) -> None:
        graph = self.routed.graph
        for item in graph.inputs:
            self.known.add(item.value)
            self.to_hub(item.value)
        for op in graph.ops:
            self.run(op)
        for update in graph.updates:
            param = self.routed.body.param_of[update.buffer]
            self.hub(param)
            made = self.at(update.value, self.routed.body.home[param].without_gradient())
            text = self.dialect.update()
            self.found.append(Item(made=(), text=text, reads=(param, made), alone=True, writes=update.buffer))

    def outputs(self) -> tuple[str, ...]:
        hubs = self.routed.hubs
        return tuple(self.at(value, hubs[value].leaves.state) for value in self.routed.graph.outputs)

    # names

    def hub(self, value: str) -> str:
        if value in self.routed.graph.param and value not in self.known:
            self.read(value)
        leaves = self.routed.hubs[value].leaves
        return value if leaves.stays or self.given_whole(value) else f"{value}@hub"

    def at(self, value: str, state: State) -> str:
        """The local name of a value in the state that a reader wants; the value is moved there on first use."""
        if self.given_whole(value):
            return self.entry(value, state)
        hub, name = self.routed.hubs[value], self.hub(value)
        number = hub.way(state)
        return name if number < 0 or hub.ways[number].stays else self.reached(value, name, number)

    def reached(self, value: str, name: str, number: int) -> str:
        hub, way = self.routed.hubs[value], self.routed.hubs[value].ways[number]
        there = f"{value}@{number}"
        if there not in self.known:
            like = [n for n, one in enumerate(hub.ways) if n == number or _shares(one, way)]
            self.move(value, name, [f"{value}@{n}" for n in like], [hub.ways[n] for n in like])
        return there

    def move(self, value: str, name: str, made: Sequence[str], ways: Sequence[Way]) -> None:
        local, trained = self.type_of(value, ways[0].starts), value in self.routed.graph.differentiable
        trips: tuple[str, ...] = ()
        if value in self.rows:
            ways, trips = self.of_rows(self.rows[value], ways)
        if len(ways) == 1:
            text, says = self.dialect.move(ways[0], local, trained=trained)
        else:
            text, says = self.dialect.moves(ways, local)
        self.known.update(made)
        self.found.append(
            Item(
                made=tuple(made),
                text=text,
                reads=(name, *trips),
                says=says,
                stem=self.stem(value),
                alone=True,
                moves=True,
                memory=self.moved(value, name, dict(zip(made, ways, strict=True))),
            )
        )

    def moved(self, value: str, name: str, made: Mapping[str, Way]) -> Memory:
        """The memory of a value in other placements; where its gradient alone moves, it stays where it lies."""
        return Memory(
            lies={there: there if way.there else name for there, way in made.items()},
            nbytes={there: self.type_of(value, way.state.value).nbytes for there, way in made.items() if way.there},
        )

    def of_rows(self, own: str, ways: Sequence[Way]) -> tuple[list[Way], tuple[str, ...]]:
        """Moves of rows of experts, of what was dispatched, and the local names of the trips that they take: each is
        made once."""
        found: dict[Trip, int] = {}
        begin = [self.made_by(own, lead(way.starts)) for way in ways]
        for way, trips in zip(ways, begin, strict=True):
            far = travelled(own, trips, way.there)
            near = travelled(own, far, way.back) if way.back else trips
            if near != trips or self.trips.setdefault((own, lead(way.state.value)), far) != far:
                raise EmissionPrinted(place=f"%{own}", cause="rows of experts come back another way")
            for trip in (one for one in (*trips, *far) if (one in trips) != (one in far)):
                found.setdefault(trip, len(found) + 1)
        for trip in found:
            if trip.name not in self.known:
                text, made = self.dialect.trip(trip.step), (trip.name, f"{trip.name}{ENDS}")
                self.known.add(trip.name)
                reads = (f"{trip.behind}{ENDS}",)
                self.found.append(
                    Item(made=made, text=text, reads=reads, stems=("trip", "ends"), alone=True, moves=True)
                )
        named = [along_rows(way, own, trips, found) for way, trips in zip(ways, begin, strict=True)]
        return named, tuple(trip.name for trip in found)

    def made_by(self, own: str, where: Lead) -> Trips:
        """The trips by which rows with this placement came."""
        if (own, where) not in self.trips:
            raise EmissionPrinted(place=f"%{own}", cause="rows of experts lie otherwise than any trip takes them")
        return self.trips[own, where]

    def to_hub(self, value: str) -> None:
        leaves = self.routed.hubs[value].leaves
        if not leaves.stays and not self.given_whole(value):
            self.move(value, value, [f"{value}@hub"], [leaves])

    def given_whole(self, value: str) -> bool:
        """Whether a value is an entry of the batch of which every rank is given all, but for the batch."""
        return value in self.entries

    def entry(self, value: str, state: State) -> str:
        text = self.dialect.entry(state, self.routed.graph.types[value])
        if text == "%0":
            return value
        name = f"{value}@{state.value}"
        if name not in self.known:
            self.known.add(name)
            self.found.append(Item(made=(name,), text=text, reads=(value,), stem=self.stem(value), alone=True))
        return name

    def stem(self, value: str) -> str:
        op = self.routed.graph.producer.get(value)
        return self.names.get(value) or (stem_of(op) if op is not None else value)

    # parameters and operators

    def read(self, value: str) -> None:
        param = self.routed.graph.param[value]
        self.known.add(value)
        self.found.append(Item(made=(value,), text="", param=value, stem=param.path.rpartition(".")[2]))
        self.to_hub(value)

    def run(self, op: Op) -> None:
        states = self.routed.wanted[op.name]
        reads = tuple(self.at(value, state) for value, state in zip(op.operands, states, strict=True))
        text = self.operator(op)
        made, beside = self.beside(op)
        if op.no_grad:
            trained = {f"%{slot}" for slot, one in enumerate(op.operands) if one in self.routed.graph.differentiable}
            text = re.sub(
                r"%\d+", lambda found: self.dialect.detached(found[0]) if found[0] in trained else found[0], text
            )
        self.known.update(op.results)
        self.found.append(
            Item(
                made=made,
                text=text,
                reads=(*reads, *beside),
                module=op.module,
                stem=self.stem(op.results[0]) if len(made) == 1 else stem_of(op),
                stems=("rows", "ends", "places") if len(made) > len(op.results) else (),
                alone=len(made) > 1 or op.kind in ("dropout", "constant"),
                outer=op.kind == "constant",
                memory=self.memory(op, reads),
            )
        )
        for value in op.results:
            self.to_hub(value)

    def memory(self, op: Op, reads: Sequence[str]) -> Memory:
        """The memory of an operator's results and its derivative, as these kernels run it."""
        base = None if op.alias is None else reads[op.alias]
        there = zip(op.results, self.routed.made(op.name), strict=True)
        sizes = {value: self.type_of(value, state.value).nbytes for value, state in there}
        trained = not self.routed.graph.differentiable.isdisjoint(op.results) and not op.no_grad
        saves, made = self.routed.derivative(op.name, self.kernels) if trained else ((), ())
        given = zip(op.operands, self.routed.wanted[op.name], strict=True)
        grads = [self.type_of(value, state.grad).nbytes for value, state in given]
        sides = {"operand": reads, "result": op.results}
        return Memory(
            lies={value: value if base is None else base for value in op.results},
            nbytes=sizes if base is None else {},
            kept=tuple(sides[save.what][save.index] for save in saves if save.what in sides),
            beside=sum(self.routed.extra_bytes(op.name, save) for save in saves if save.what not in sides),
            graded=sum(sizes.values()) * bool(made) + sum(grads[slot] for slot in made),
        )

    def operator(self, op: Op) -> str:
        """The expression of an operator for all calls: numbers in which these differ have names."""
        texts = [self.of_ranks(one) for one in self.numbered.get(op.name, (op,))]
        each = _in_columns(op, texts, "calls of one body")
        return "".join(one[0] if len(set(one)) == 1 else self.number(op, one) for one in each)

    def of_ranks(self, op: Op) -> str:
        """The expression of an operator for all ranks: where they have unequal parts of the batch, each has its own
        numbers in it."""
        axis, ranks = self.unlike
        texts = [self.dialect.operator(self.local(op, rank)) for rank in ranks]
        each = _in_columns(op, texts, "ranks with unequal parts of the batch")
        return "".join(one[0] if len(set(one)) == 1 else self.dialect.by_rank(axis, one) for one in each)

    def number(self, op: Op, each: tuple[str, ...]) -> str:
        """The name of a number that calls have each its own of, after the attribute that it comes from."""
        if each not in self.numbers:
            given = zip(*(one.attrs for one in self.numbered[op.name]), strict=True)
            (name, _), *more = [one[0] for one in given if any(other != one[0] for other in one)]
            self.numbers[each] = free(f"{op.kind}_{'number' if more else name}", set(self.numbers.values()))
        return self.numbers[each]

    def beside(self, op: Op) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The local names that an operator makes, and those that it reads beside its operands."""
        own = next((self.rows[value] for value in (*op.operands, *op.results) if value in self.rows), None)
        if own is None:
            return op.results, ()
        if own in op.results:
            self.trips[own, lead(self.routed.hubs[own].home.value)] = ()
            return (own, f"{own}{ENDS}", f"{own}{PLACES}"), ()
        wanted = zip(op.operands, self.routed.wanted[op.name], strict=True)
        trips = self.made_by(own, next(lead(state.value) for value, state in wanted if value in self.rows))
        if op.kind == "combine" and trips:
            raise EmissionPrinted(
                place=f"%{op.name} ({op.kind}) {op.source}", cause="its rows of experts are elsewhere"
            )
        return op.results, (f"{trips[-1].name if trips else own}{PLACES if op.kind == 'combine' else ENDS}",)

    def type_of(self, value: str, placement: Placement, rank: int = 0) -> Type:
        """The type of a value on one rank; for rows, with their average number."""
        local = self.routed.local(value, placement, rank)
        return merged(local) if value in self.rows else local

    def local(self, op: Op, rank: int) -> LocalOp:
        routed, facts = self.routed, self.routed.facts[op.name]
        cuts: dict[str, list[tuple[str, Layout]]] = {}
        coupled = []
        for axis, choice in routed.body.strategies[op.name].choices:
            if isinstance(choice, Split):
                coupled += [axis] * (len(choice.factors) > 1)
                for name in choice.factors:
                    cuts.setdefault(name, []).append((axis, choice.layout))
        states = zip(op.operands, routed.wanted[op.name], strict=True)
        made = zip(op.results, routed.made(op.name), strict=True)
        rows = tuple(value in self.rows for value in op.operands)
        return LocalOp(
            op=renumbered(op) if any(rows) else op,
            given=tuple(self.type_of(value, state.value, rank) for value, state in states),
            made=tuple(self.type_of(value, state.value, rank) for value, state in made),
            whole=tuple(
                merged(type_) if own else type_ for own, type_ in zip(rows, routed.graph.operand_types(op), strict=True)
            ),
            cuts={name: tuple(found) for name, found in cuts.items()},
            sizes={factor.name: factor.size for factor in facts.rule.factors},
            parts={name: prod(routed.mesh.axis(axis).size for axis, _ in found) for name, found in cuts.items()},
            coupled=tuple(coupled),
            rows=rows if any(rows) else (),
        )


@dataclass(frozen=True, slots=True)
class Walked:
    """The items of a body."""

    items: tuple[Item, ...]
    outputs: tuple[str, ...]
    """The local names of its outputs."""
    numbers: Mapping[str, tuple[str, ...]]
    """The numbers that it is given by name, as every set of open numbers has them."""


def items_of(
    routed: Routed,
    dialect: Dialect,
    entries: frozenset[str],
    names: Mapping[str, str],
    kernels: Kernels,
    numbers: Sequence[Sequence[float]] = (),
) -> Walked:
    """The items of a body. `entries` are its inputs that come from the batch; `names` are the variables of the model's
    own code, `kernels` those that run it, `numbers` the sets of open numbers that its calls have."""
    numbered = differing(routed.graph, numbers)
    walk = _Items(routed, dialect, entries, names, rows_of(routed.graph), kernels, numbered)
    walk.walk()
    outputs = walk.outputs()
    return Walked(tuple(walk.found), outputs, {name: each for each, name in walk.numbers.items()})


def _in_columns(op: Op, texts: Sequence[str], whose: str) -> Iterator[tuple[str, ...]]:
    """Expressions of an operator that differ in numbers alone, taken apart at these: what each has, part by part."""
    if len({NUMBER.sub("", text) for text in texts}) > 1:
        place = f"%{op.name} ({op.kind}) {op.source}".strip()
        raise EmissionPrinted(place=place, cause=f"{whose} run it in different ways")
    return zip(*map(NUMBER.split, texts), strict=True)


def _shares(one: Way, other: Way) -> bool:
    """Whether two moves are to be made at once: they move the value alike, or its gradient."""
    return bool((one.there and one.there == other.there) or (one.back and one.back == other.back))


def stem_of(op: Op) -> str:
    """A variable name for the result of an operator: after the module that makes it, or after the operator."""
    last = op.module.rpartition(".")[2]
    products = ("linear", "embedding", "layer_norm", "rms_norm", "batch_norm", "group_norm", "conv2d")
    return last if op.kind in products and last and not last.isdecimal() else op.kind


def plain(name: str) -> str:
    """A variable name for a local name by itself."""
    return re.sub(r"@.*$", "", name).replace(".", "_")
