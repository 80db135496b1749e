"""Options of a group: choices of every mesh axis for all of its operators at once.

Every combination of what single axes may do (`singles`); where several cut one loop, with any of them as the major one:
heads that one axis cuts and another one cuts further, of a sequence that it brings together, move less that way. Where
all cuts are plain, states are composed from those of the single axes and a combination is legal if the parts divide
every loop and every extent; where layouts are in play (tokens as batch·sequence, sections), rules are applied jointly
and states compared again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import permutations, product
from math import prod

import numpy as np
import numpy.typing as npt

from meshwright.ir.graph.graph import Op
from meshwright.ir.names.pinned import Words
from meshwright.ir.rules.base import Rule
from meshwright.ir.sharding.adjoint import Choice, Split, Strategy
from meshwright.ir.sharding.layouts import Zigzag
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import State
from meshwright.planner.block.groups import Group, Parts
from meshwright.planner.block.layouts import Layouts
from meshwright.planner.block.singles import Indices, Searching, Single, States, added
from meshwright.planner.block.space import Space, Terms


@dataclass(frozen=True, eq=False)
class Offered:
    """The options of groups that are alike, apart from what their values are called.

    - `choices[axis]` are the ways in which an axis may be used: a choice for every operator.
    - `picks[i]` says which of these every axis takes in option i, and `orders[i]` in which of the `meshes`, that differ
      in the order of their axes, they cut one after the other.
    - `states[n]` are the states that value n of a group's ports may have here, `at[n][i]` which of them it has in
      option i.
    """

    mesh: Mesh
    ops: tuple[Op, ...]
    """Of the first of these groups, with their rules and layouts."""
    rules: tuple[Rule, ...]
    layouts: Layouts
    choices: tuple[tuple[tuple[Choice, ...], ...], ...]
    meshes: tuple[Mesh, ...]
    picks: Indices
    orders: Indices
    states: tuple[tuple[State, ...], ...]
    at: tuple[Indices, ...]
    _joint: dict[int, tuple[Strategy, ...]] = field(default_factory=dict)

    def strategies(self, option: int) -> tuple[Strategy, ...]:
        """The strategy of every operator under an option."""
        if option not in self._joint:
            picked = zip(self.mesh.names, self.choices, self.picks[option], strict=True)
            taken, mesh = {axis: ways[pick] for axis, ways, pick in picked}, self.meshes[self.orders[option]]
            self._joint[option] = tuple(
                self.layouts.joint(op, mesh, [taken[axis][at] for axis in mesh.names]) for at, op in enumerate(self.ops)
            )
        return self._joint[option]


@dataclass(frozen=True, eq=False)
class Options:
    """The options of one group on a mesh: `states` and `at` as of `Offered`, by value."""

    group: Group
    offered: Offered
    states: Mapping[str, tuple[State, ...]]
    at: Mapping[str, Indices]

    def __len__(self) -> int:
        return len(self.offered.picks)

    @property
    def mesh(self) -> Mesh:
        return self.offered.mesh

    def strategies(self, option: int) -> dict[str, Strategy]:
        """The strategy of every operator under an option."""
        return {op.name: made for op, made in zip(self.group.ops, self.offered.strategies(option), strict=True)}

    def state(self, value: str, option: int) -> State:
        return self.states[value][int(self.at[value][option])]


def options(parts: Parts, group: Group, mesh: Mesh, space: Space, terms: Terms) -> Options:
    """Every legal option of a group."""
    offered, ports = _offered(_Alike(Searching(parts, group, space, terms)), mesh), _ports(group)
    return Options(
        group,
        offered,
        dict(zip(ports, offered.states, strict=True)),
        dict(zip(ports, offered.at, strict=True)),
    )


def _ports(group: Group) -> tuple[str, ...]:
    """The values of a group that others have too, or that are stored."""
    return (*group.reads, *group.makes, *(param.value for param in group.params))


class _Alike:
    """A search for the options of a group as a key: equal to another one for a group that is the same but for the names
    of its values, under the same rules."""

    __slots__ = ("form", "searching")

    def __init__(self, searching: Searching) -> None:
        group, numbers = searching.group, dict[str, int]()

        def numbered(values: Iterable[str]) -> tuple[int, ...]:
            return tuple([numbers.setdefault(value, len(numbers)) for value in values])

        self.searching = searching
        ops = tuple((searching.form(op), numbered(op.operands), numbered(op.results)) for op in group.ops)
        ports = numbered(_ports(group))
        known, tables = searching.graph.differentiable, searching.parts.tables
        self.form = (ops, ports, tuple([(value in known, value in tables) for value in numbers]), searching.allowed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Alike) and other.form == self.form

    def __hash__(self) -> int:
        return hash(self.form)


@lru_cache(maxsize=4096)
def _offered(key: _Alike, mesh: Mesh) -> Offered:
    return _Combining(key.searching, mesh).offered()


class _Combining:
    """The combination of the options of single axes."""

    def __init__(self, searching: Searching, mesh: Mesh) -> None:
        self.searching, self.mesh = searching, mesh
        self.group, self.facts, self.graph = searching.group, searching.facts, searching.graph
        self.singles = tuple(searching.singles(axis) for axis in mesh.axes)

    def offered(self) -> Offered:
        counts = [len(singles) for singles in self.singles]
        picks = np.array(list(product(*map(range, counts))), dtype=np.int64).reshape(prod(counts), len(counts))
        picks = picks[self.divides(picks) & self.one_ring(picks)]
        picks = picks[self.granted(picks)]
        meshes, taken, orders, laid = list[Mesh](), list[Indices](), list[Indices](), list[Laid]()
        for order in permutations(range(len(counts))):
            own = picks[self.differs(picks, order)]
            laying = _Laying(self.searching, self.mesh, self.singles, order)
            found, legal = laying.laid(own[:, list(order)])
            orders.append(np.full(int(legal.sum()), len(meshes), dtype=np.int64))
            meshes.append(laying.mesh)
            taken.append(own[legal])
            laid.append(found)
        merged = [_merged(ways) for ways in zip(*laid, strict=True)]
        return Offered(
            self.mesh,
            self.group.ops,
            tuple(self.facts[op.name].rule for op in self.group.ops),
            self.searching.layouts,
            tuple(tuple(single.choices for single in singles) for singles in self.singles),
            tuple(meshes),
            np.concatenate(taken),
            np.concatenate(orders),
            tuple(states for states, _ in merged),
            tuple(numbers for _, numbers in merged),
        )

    def differs(self, picks: Indices, order: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Whether another order of axes lays out anything else: every two of them that change places cut one loop."""
        legal = np.ones(len(picks), dtype=bool)
        for at, axis in enumerate(order):
            for before in (one for one in order[:at] if one > axis):
                shared = np.zeros((len(self.singles[before]), len(self.singles[axis])), dtype=bool)
                for row, one in enumerate(self.singles[before]):
                    for column, other in enumerate(self.singles[axis]):
                        shared[row, column] = any(map(_cut_one_loop, one.choices, other.choices))
                legal &= shared[picks[:, before], picks[:, axis]]
        return legal

    def divides(self, picks: Indices) -> npt.NDArray[np.bool_]:
        """Whether the parts of all axes together divide every loop, and every extent that runs over loops."""
        legal = np.ones(len(picks), dtype=bool)
        for at, op in enumerate(self.group.ops):
            rule = self.facts[op.name].rule
            if rule.sections or rule.slots:
                continue
            parts = {factor.name: self.parts_of(picks, at, factor.name) for factor in rule.factors}
            for factor in rule.factors:
                legal &= factor.size % parts[factor.name] == 0
            types = (*self.graph.operand_types(op), *rule.types)
            for dims, type_ in zip((*rule.operands, *rule.results), types, strict=True):
                for dim, extent in zip(dims, type_.shape, strict=True):
                    if dim:
                        legal &= extent % prod(parts[name] for name in dim) == 0
        return legal

    def parts_of(self, picks: Indices, at: int, factor: str) -> Indices:
        """The number of parts of a factor of one operator; twice as many in a zigzag."""
        cut = np.ones(len(picks), dtype=np.int64)
        for column, (axis, singles) in enumerate(zip(self.mesh.axes, self.singles, strict=True)):
            made = [single.choices[at] for single in singles]
            cut *= np.array([_parts(choice, factor, axis.size) for choice in made], dtype=np.int64)[picks[:, column]]
        return cut

    def one_ring(self, picks: Indices) -> npt.NDArray[np.bool_]:
        rings = np.zeros(len(picks), dtype=np.int64)
        for column, singles in enumerate(self.singles):
            pairs = [any(isinstance(c, Split) and len(c.factors) == 2 for c in one.choices) for one in singles]
            rings += np.array(pairs, dtype=np.int64)[picks[:, column]]
        return rings <= 1

    def granted(self, picks: Indices) -> npt.NDArray[np.bool_]:
        """Whether pins allow what the axes do together."""
        pins, words = self.searching.space.pins, Words(self.graph, self.searching.parts.found)
        legal = np.ones(len(picks), dtype=bool)
        for at, op in enumerate(self.group.ops):
            allowed = pins.get(op.name)
            if allowed is not None:
                made = [[single.choices[at] for single in singles] for singles in self.singles]
                legal &= np.array(
                    [words.grants(op, allowed, self.strategy(made, pick), self.mesh) for pick in picks], dtype=bool
                )
        return legal

    def strategy(self, made: Sequence[Sequence[Choice]], pick: Indices) -> Strategy:
        """The strategy of one operator under a pick, with the layouts of each axis by itself."""
        return Strategy(tuple((axis, own[index]) for axis, own, index in zip(self.mesh.names, made, pick, strict=True)))


Laid = list[tuple[tuple[State, ...], Indices]]
"""Of every value of a group's ports, its states, and of every pick the number of its own."""


class _Laying:
    """The states of a group's values where axes cut in one order."""

    def __init__(
        self, searching: Searching, mesh: Mesh, singles: Sequence[tuple[Single, ...]], order: Sequence[int]
    ) -> None:
        self.searching, self.group, self.facts = searching, searching.group, searching.facts
        self.mesh = Mesh(tuple(mesh.axes[axis] for axis in order))
        self.singles = tuple(singles[axis] for axis in order)

    def laid(self, picks: Indices) -> tuple[Laid, npt.NDArray[np.bool_]]:
        """The states that values have under legal picks, and which are."""
        plain = self.plain(picks)
        joint = {int(row): self.applied(picks[row]) for row in np.flatnonzero(~plain)}
        legal = plain.copy()
        legal[[row for row, states in joint.items() if states is not None]] = True
        numbered = [self.numbered(value, picks, plain, joint) for value in _ports(self.group)]
        return [_in_order(states, numbers[legal]) for states, numbers in numbered], legal

    def numbered(
        self, value: str, picks: Indices, plain: npt.NDArray[np.bool_], joint: Mapping[int, States | None]
    ) -> tuple[list[State], Indices]:
        """The states of a value, and for every pick the number of its own: of plain picks, one state is composed for
        all that are alike on every axis."""
        codes = np.zeros(len(picks), dtype=np.int64)
        for column, singles in enumerate(self.singles):
            own: dict[State, int] = {}
            alike = [own.setdefault(single.states[value], len(own)) for single in singles]
            codes = codes * max(1, len(own)) + np.array(alike, dtype=np.int64)[picks[:, column]]
        rows = np.flatnonzero(plain)
        _, first, classes = np.unique(codes[rows], return_index=True, return_inverse=True)
        known: dict[State, int] = {}
        composed = [known.setdefault(self.composed(picks[rows[row]], value), len(known)) for row in first]
        numbers = np.zeros(len(picks), dtype=np.int64)
        numbers[rows] = np.array(composed, dtype=np.int64)[classes.reshape(-1)]
        for row, states in joint.items():
            if states is not None:
                numbers[row] = known.setdefault(states[value], len(known))
        return list(known), numbers

    def plain(self, picks: Indices) -> npt.NDArray[np.bool_]:
        rules = [self.facts[op.name].rule for op in self.group.ops]
        plain = np.full(len(picks), not any(rule.sections or rule.slots for rule in rules))
        for column, singles in enumerate(self.singles):
            plain &= np.array([single.is_plain for single in singles], dtype=bool)[picks[:, column]]
        return plain

    def composed(self, pick: Indices, value: str) -> State:
        """The state of a value under plain cuts: in every dimension the axes, major to minor."""
        own = [singles[index].states[value] for singles, index in zip(self.singles, pick, strict=True)]
        return State(
            tuple(tuple(s for state in own for s in state.dims[at]) for at in range(len(own[0].dims))),
            tuple(p for state in own for p in state.partial),
            tuple(g for state in own for g in state.grad_partial),
        )

    def applied(self, pick: Indices) -> Mapping[str, State] | None:
        """States by the rules, if they agree within the group."""
        states: dict[str, State] = {}
        for at, op in enumerate(self.group.ops):
            made = [singles[index].choices[at] for singles, index in zip(self.singles, pick, strict=True)]
            wanted = self.searching.states(op, self.searching.layouts.joint(op, self.mesh, made), self.mesh)
            new = None if wanted is None else added(wanted, states)
            if new is None:
                return None
            states.update(new)
        return states


def _merged(laid: Sequence[tuple[tuple[State, ...], Indices]]) -> tuple[tuple[State, ...], Indices]:
    """The states of several orders of axes as one list, and the numbers of all their picks in it."""
    known: dict[State, int] = {}
    numbers = [
        np.array([known.setdefault(state, len(known)) for state in states], dtype=np.int64)[own] for states, own in laid
    ]
    return tuple(known), np.concatenate(numbers)


def _cut_one_loop(one: Choice, other: Choice) -> bool:
    """Whether two axes cut the same loop of an operator."""
    return isinstance(one, Split) and isinstance(other, Split) and not set(one.factors).isdisjoint(other.factors)


def _in_order(states: Sequence[State], numbers: Indices) -> tuple[tuple[State, ...], Indices]:
    """States in the order in which they first occur, with their new numbers: those that do not occur are left out."""
    _, first, classes = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return tuple(states[numbers[first[at]]] for at in order), np.argsort(order)[classes.reshape(-1)]


def _parts(choice: Choice, factor: str, size: int) -> int:
    if not isinstance(choice, Split) or factor not in choice.factors:
        return 1
    return size * 2 if isinstance(choice.layout, Zigzag) else size
