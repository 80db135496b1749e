"""The problems of all bodies of a stage as one: what they hand to each other lies in one state for all.

    blocks, each with the states that its ends may be in -> one problem, every body weighed by its calls

Values that bodies hand on, and parameters that several of them hold, are one variable, or two that must agree. So the
solver chooses the interfaces of bodies together with what is inside, and its objective bounds every plan of these
bodies on this mesh.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from meshwright.ir.sharding.placement import State
from meshwright.planner.block.build import Building, Ends
from meshwright.planner.block.plan import Block
from meshwright.planner.block_solver.problem import Array, Limit, Mask, Pair, Problem, Variable
from meshwright.planner.refine.operators.interfaces import End

Places = Mapping[End, Hashable]
"""Of every value at the end of a body plan, what it shares its state with."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A variable of a block in the joint problem: which one it is there, and for each of its states there the state
    here."""

    number: int
    states: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Joint:
    """Blocks by body plan, their variables in the joint problem, and that."""

    blocks: Mapping[str, Block]
    members: Mapping[str, tuple[Member, ...]]
    calls: Mapping[str, int]
    problem: Problem

    def chosen(self, name: str, states: Sequence[int]) -> tuple[int, ...]:
        """The states of one block's variables in an answer."""
        return tuple(int(one.states[states[one.number]]) for one in self.members[name])

    def within(self, capacity_bytes: float, in_flight: int) -> Problem:
        """The problem with a limit on the states and on the saved bytes of so many micro-batches of all calls."""
        uses = [np.zeros(len(one.costs)) for one in self.problem.variables]
        for name, block in self.blocks.items():
            for member, saved, state in zip(self.members[name], block.saved, block.state, strict=True):
                uses[member.number] += self.calls[name] * (in_flight * saved + state)[member.states]
        return Problem(self.problem.variables, self.problem.pairs, (Limit("memory", capacity_bytes, tuple(uses)),))


def joined(
    opened: Mapping[str, Building],
    calls: Mapping[str, int],
    places: Places,
    tied: Iterable[Sequence[End]],
    fixed: Mapping[str, Ends],
) -> Joint:
    """The joint problem of bodies. `tied` are parameters, each by its body plans and paths; `fixed` are ends that
    nothing is shared of, with their states."""
    offered = _offered(opened, places)
    blocks = {
        name: one.block({**fixed[name], **{value: offered[key] for value, key in _ends(one, name, places)}})
        for name, one in opened.items()
    }
    return _Joining(blocks, calls, places, offered).joint(tied)


def _ends(one: Building, name: str, places: Places) -> list[tuple[str, Hashable]]:
    values = dict.fromkeys((*(item.value for item in one.graph.inputs), *one.graph.outputs))
    return [(value, places[name, value]) for value in values if (name, value) in places]


def _offered(opened: Mapping[str, Building], places: Places) -> dict[Hashable, tuple[State, ...]]:
    """The states that a shared value may be in: all that any body has it in."""
    found: dict[Hashable, dict[State, None]] = {}
    for name, one in opened.items():
        for value, key in _ends(one, name, places):
            whole = found.setdefault(key, {State.replicated(len(one.graph.types[value].shape)): None})
            if value in one.graph.differentiable:
                whole |= dict.fromkeys(one.hub_states((value,), ends=True))
    return {key: tuple(states) for key, states in found.items()}


class _Joining:
    """The construction of a joint problem."""

    def __init__(
        self,
        blocks: Mapping[str, Block],
        calls: Mapping[str, int],
        places: Places,
        offered: Mapping[Hashable, tuple[State, ...]],
    ) -> None:
        self.blocks, self.calls, self.places, self.offered = blocks, calls, places, offered
        self.names: list[str] = []
        self.costs: list[Array] = []
        self.known: dict[Hashable, int] = {}
        self.pairs: dict[tuple[int, int], Array] = {}
        self.allowed: dict[tuple[int, int], Mask] = {}

    def joint(self, tied: Iterable[Sequence[End]]) -> Joint:
        members = {name: self.entered(name, block) for name, block in self.blocks.items()}
        for name, block in self.blocks.items():
            own = members[name]
            for variable, member in zip(block.problem.variables, own, strict=True):
                self.costs[member.number] += self.calls[name] * variable.costs[member.states]
            for pair in block.problem.pairs:
                one, other = own[pair.first], own[pair.second]
                self.travel(one, other, self.calls[name] * pair.costs)
        for held in tied:
            self.agree(members, held)
        pairs = tuple(
            Pair(first, second, costs, self.allowed.get((first, second)))
            for (first, second), costs in sorted(self.pairs.items())
        )
        variables = tuple(Variable(name, costs) for name, costs in zip(self.names, self.costs, strict=True))
        return Joint(self.blocks, members, self.calls, Problem(variables, pairs))

    def entered(self, name: str, block: Block) -> tuple[Member, ...]:
        """The variables of a block, each with its number here; those of shared values have one."""
        found = []
        for at, variable in enumerate(block.problem.variables):
            hub = block.hubs[at - len(block.options)] if at >= len(block.options) else None
            shared = [] if hub is None or hub.inner else [v for v in hub.values if (name, v) in self.places]
            if hub is None or not shared:
                found.append(
                    Member(self.added(f"{name}: {variable.name}", len(variable.costs)), np.arange(len(variable.costs)))
                )
                continue
            key = self.places[name, shared[0]]
            if key not in self.known:
                self.known[key] = self.added(f"{name}: {variable.name}", len(self.offered[key]))
            bare = shared[0] not in block.graph.differentiable
            states = [hub.states.index(one.without_gradient() if bare else one) for one in self.offered[key]]
            found.append(Member(self.known[key], np.array(states)))
        return tuple(found)

    def added(self, name: str, states: int) -> int:
        self.names.append(name)
        self.costs.append(np.zeros(states))
        return len(self.names) - 1

    def travel(self, one: Member, other: Member, costs: Array) -> None:
        """Add the costs of a pair of variables of a block."""
        full = costs[np.ix_(one.states, other.states)]
        first, second = one.number, other.number
        if first == second:
            self.costs[first] += full.diagonal()
            return
        if first > second:
            first, second, full = second, first, full.T
        known = self.pairs.get((first, second))
        self.pairs[first, second] = full if known is None else known + full

    def agree(self, members: Mapping[str, tuple[Member, ...]], held: Sequence[End]) -> None:
        """Read a parameter that several bodies hold in one state in all of them."""
        found = [
            one for name, path in held if name in members for one in [self.reading(members[name], name, path)] if one
        ]
        for one, other in pairwise(found):
            if one[0] == other[0]:
                continue
            (first, here), (second, there) = sorted((one, other), key=lambda read: read[0])
            same = np.array([[a == b for b in there] for a in here])
            self.pairs.setdefault((first, second), np.zeros(same.shape))
            known = self.allowed.get((first, second))
            self.allowed[first, second] = same if known is None else known & same

    def reading(self, members: tuple[Member, ...], name: str, path: str) -> tuple[int, list[object]] | None:
        """The variable that says how a body reads a parameter, and what each of its states says."""
        block = self.blocks[name]
        value = next((param.value for param in block.graph.params if param.path == path), "")
        if value in block.hub_of:
            at = block.variable_of(value)
            states: list[State] = list(block.hubs[at - len(block.options)].states)
        else:
            numbers = [number for number, one in enumerate(block.options) if value in one.states]
            if not numbers:
                return None
            at, one = numbers[0], block.options[numbers[0]]
            states = [one.state(value, option) for option in range(len(one))]
        dims = [tuple(dim for dim in state.dims) for state in states]
        return members[at].number, [dims[at] for at in members[at].states]
