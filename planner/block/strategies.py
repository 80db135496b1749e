"""Options of a group: choices of every mesh axis for all of its operators at once.

One axis. Choices of the group's operators fit together where every value between them lies, forward and backward, as
its reader wants it: then nothing moves inside. They are found by walking the operators in order. A value that comes
from elsewhere is wanted in one state by all who read it here.

All axes jointly. Every combination of one option per axis, in the order of the mesh (major to minor). Where all cuts
are plain, states are composed from those of the single axes and a combination is legal if the parts divide every loop
and every extent; where layouts are in play (tokens as batch·sequence, sections), rules are applied jointly and states
compared again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt

from meshwright.ir.analysis.fused import cut_apart
from meshwright.ir.analysis.loops import stem
from meshwright.ir.graph.graph import Graph, Op
from meshwright.ir.names.pinned import Words
from meshwright.ir.rules.base import Role, Rule
from meshwright.ir.same import Same
from meshwright.ir.sharding.adjoint import Choice, Idle, Pass, Split, Strategy, choices
from meshwright.ir.sharding.layouts import ZIGZAG, Contiguous, Sections, Zigzag
from meshwright.ir.sharding.mesh import Mesh, MeshAxis
from meshwright.ir.sharding.placement import State
from meshwright.ir.sharding.rewrite import Facts, facts_of
from meshwright.ir.target.capabilities import layout_names
from meshwright.planner.block.groups import Group, Parts
from meshwright.planner.block.layouts import REFUSED, SEQUENCE, SLOTS, Layouts
from meshwright.planner.block.space import Space, Terms

Indices = npt.NDArray[np.int64]
States = Mapping[str, State]
"""Of every value, where it lies."""


@dataclass(frozen=True, slots=True, eq=False)
class Single:
    """The use of one axis in a group: a choice for every operator, and the state of every value that it touches."""

    choices: tuple[Choice, ...]
    states: Mapping[str, State]

    @property
    def is_plain(self) -> bool:
        """Whether every value is cut in equal runs, or in a zigzag."""
        return all(
            isinstance(shard.layout, (Contiguous, Zigzag))
            for state in self.states.values()
            for dim in state.dims
            for shard in dim
        )


@dataclass(frozen=True, eq=False)
class Offered:
    """The options of groups that are alike, apart from what their values are called.

    - `choices[axis]` are the ways in which an axis may be used: a choice for every operator.
    - `picks[i]` says which of these every axis takes in option i.
    - `states[n]` are the states that value n of a group's ports may have here, `at[n][i]` which of them it has in
      option i.
    """

    mesh: Mesh
    ops: tuple[Op, ...]
    """Of the first of these groups, with their rules and layouts."""
    rules: tuple[Rule, ...]
    layouts: Layouts
    choices: tuple[tuple[tuple[Choice, ...], ...], ...]
    picks: Indices
    states: tuple[tuple[State, ...], ...]
    at: tuple[Indices, ...]
    _joint: dict[int, tuple[Strategy, ...]] = field(default_factory=dict)

    def strategies(self, option: int) -> tuple[Strategy, ...]:
        """The strategy of every operator under an option."""
        if option not in self._joint:
            taken = [ways[pick] for ways, pick in zip(self.choices, self.picks[option], strict=True)]
            self._joint[option] = tuple(
                self.layouts.joint(op, self.mesh, [one[at] for one in taken]) for at, op in enumerate(self.ops)
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
    offered, ports = _offered(_Alike(_Searching(parts, group, space, terms)), mesh), _ports(group)
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

    def __init__(self, searching: _Searching) -> None:
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


class _Searching:
    """The search for what one axis may do in a group."""

    def __init__(self, parts: Parts, group: Group, space: Space, terms: Terms) -> None:
        self.parts, self.group, self.space, self.terms = parts, group, space, terms
        self.graph: Graph = parts.graph
        self.facts = facts_of(self.graph)
        self.layouts = Layouts(parts.graph, parts.found, frozenset(space.zigzag))
        self.known_layouts = frozenset(line.name for line in terms.target.layouts)
        self.attention = frozenset(line.name for line in terms.target.attention)

    @property
    def allowed(self) -> Hashable:
        """What the space and the target allow, whatever the group is."""
        space = self.space
        partial = space.partial_gradients, space.partial_values
        return partial, space.zigzag, space.whole, self.known_layouts, self.attention

    def form(self, op: Op) -> Hashable:
        """What the options of an operator depend on, but for the names of its values. Pins, and places of experts,
        which depend on more, are the same only in one graph."""
        factors, sizes = self.parts.found.factors[op.name], self.layouts.sizes
        loops = tuple([(one, tuple([(stem(name), sizes[name]) for name in names])) for one, names in factors.items()])
        pinned, slots = (
            self.space.pins.get(op.name),
            any(stem(name) == SLOTS for one in factors.values() for name in one),
        )
        only = (op.name, pinned, Same(self.graph), Same(self.parts.found)) if pinned is not None or slots else None
        cut = tuple([self.layouts.sections(op, factor) for factor in factors])
        apart = tuple([sections and cut_apart(self.graph, op, Sections(sections)) for sections in cut])
        return self.facts[op.name], loops, cut, apart, only

    def singles(self, axis: MeshAxis) -> tuple[Single, ...]:
        """All choices that fit together, depth first: of one operator after the other, in running order."""
        mesh = Mesh((axis,))
        ways = [self.ways(op, mesh) for op in self.group.ops]
        found, states = list[Single](), dict[str, State]()
        made: list[tuple[Choice, States]] = []
        open_ = [iter(ways[0])]
        while open_:
            if len(made) == len(open_):
                for value in made.pop()[1]:
                    del states[value]
            choice, wanted = next(open_[-1], (None, None))
            if choice is None or wanted is None:
                open_.pop()
            elif (new := added(wanted, states)) is not None:
                states.update(new)
                made.append((choice, new))
                if len(made) == len(ways):
                    found.append(Single(tuple(one for one, _ in made), dict(states)))
                else:
                    open_.append(iter(ways[len(made)]))
        return tuple(found)

    def ways(self, op: Op, mesh: Mesh) -> list[tuple[Choice, States]]:
        """Choices of one axis in an operator, with the states of its values."""
        found: list[tuple[Choice, States]] = []
        for choice in self.candidates(op, mesh):
            states = self.states(op, Strategy(((mesh.names[0], choice),)), mesh)
            if states is None or (isinstance(choice, Idle) and any(states == other for _, other in found)):
                continue  # idle is idle: without a gradient there is nothing partial to pass
            found.append((choice, states))
        return found

    def states(self, op: Op, strategy: Strategy, mesh: Mesh) -> States | None:
        """The states of an operator's values, tables aside; nothing if the choice is impossible."""
        try:
            applied = self.facts[op.name].applied(strategy, mesh)
        except REFUSED:
            return None
        found: dict[str, State] = {}
        for value, state in zip((*op.operands, *op.results), (*applied.operands, *applied.results), strict=True):
            own = state if value in self.graph.differentiable else state.without_gradient()
            if value not in self.parts.tables and found.setdefault(value, own) != own:
                return None
        return found

    def candidates(self, op: Op, mesh: Mesh) -> Iterator[Choice]:
        """Choices that the rule, the space and the target allow."""
        facts = self.facts[op.name]
        for choice in choices(facts.rule):
            if isinstance(choice, Idle):
                allowed = self.space.partial_gradients or not choice.grad_partial
            elif isinstance(choice, Pass):
                allowed = self.space.partial_values
            else:
                allowed = self.splits(op, facts, choice)
            if allowed and isinstance(choice, Split):
                yield from self.laid_out(op, choice, mesh)
            elif allowed:
                yield choice

    def splits(self, op: Op, facts: Facts, choice: Split) -> bool:
        loops = self.parts.found.factors[op.name]
        if any(stem(name) in self.space.whole for factor in choice.factors for name in loops[factor][:1]):
            return False
        roles = {facts.rule.factor(name).role for name in choice.factors}
        if Role.MAX in roles and self.graph.differentiable.intersection(op.results):
            return False
        if len(choice.factors) == 2:
            return "ring" in self.attention and choice.layout != ZIGZAG
        return op.kind != "attention" or choice.factors != ("sq",) or "all_gather" in self.attention

    def laid_out(self, op: Op, choice: Split, mesh: Mesh) -> Iterator[Split]:
        """A choice in its possible layouts: a zigzag where the axis cuts the sequence in one."""
        loops = self.parts.found.factors[op.name][choice.factors[0]]
        if mesh.names[0] in self.space.zigzag and loops and stem(loops[0]) == SEQUENCE:
            found: tuple[Split, ...] = (Split(choice.factors, ZIGZAG),)
        else:
            found = self.layouts.single(op, choice, mesh)
        for one in dict.fromkeys(found):
            names = layout_names(one.layout, apart=cut_apart(self.graph, op, one.layout))
            if self.known_layouts.issuperset(names):
                yield one


class _Combining:
    """The combination of the options of single axes."""

    def __init__(self, searching: _Searching, mesh: Mesh) -> None:
        self.searching, self.mesh = searching, mesh
        self.group, self.facts, self.graph = searching.group, searching.facts, searching.graph
        self.singles = tuple(searching.singles(axis) for axis in mesh.axes)

    def offered(self) -> Offered:
        counts = [len(singles) for singles in self.singles]
        picks = np.array(list(product(*map(range, counts))), dtype=np.int64).reshape(prod(counts), len(counts))
        picks = picks[self.divides(picks) & self.one_ring(picks)]
        picks = picks[self.granted(picks)]
        plain = self.plain(picks)
        joint = {int(row): self.applied(picks[row]) for row in np.flatnonzero(~plain)}
        legal = plain.copy()
        legal[[row for row, states in joint.items() if states is not None]] = True
        numbered = [self.numbered(value, picks, plain, joint) for value in _ports(self.group)]
        found = [_in_order(states, numbers[legal]) for states, numbers in numbered]
        return Offered(
            self.mesh,
            self.group.ops,
            tuple(self.facts[op.name].rule for op in self.group.ops),
            self.searching.layouts,
            tuple(tuple(single.choices for single in singles) for singles in self.singles),
            picks[legal],
            tuple(states for states, _ in found),
            tuple(numbers for _, numbers in found),
        )

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


def _in_order(states: Sequence[State], numbers: Indices) -> tuple[tuple[State, ...], Indices]:
    """States in the order in which they first occur, with their new numbers: those that do not occur are left out."""
    _, first, classes = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return tuple(states[numbers[first[at]]] for at in order), np.argsort(order)[classes.reshape(-1)]


def added(wanted: States, states: States) -> States | None:
    """The states that an operator adds to the known ones; None if they disagree."""
    if any(states.get(value, state) != state for value, state in wanted.items()):
        return None
    return {value: state for value, state in wanted.items() if value not in states}


def _parts(choice: Choice, factor: str, size: int) -> int:
    if not isinstance(choice, Split) or factor not in choice.factors:
        return 1
    return size * 2 if isinstance(choice.layout, Zigzag) else size
