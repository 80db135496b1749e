"""What one mesh axis may do in a group: a choice for each of its operators.

Choices of the group's operators fit together where every value between them lies, forward and backward, as
its reader wants it: then nothing moves inside. They are found by walking the operators in order. A value that comes
from elsewhere is wanted in one state by all who read it here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.ir.analysis.fused import cut_apart
from meshwright.ir.analysis.loops import stem
from meshwright.ir.graph.graph import Graph, Op
from meshwright.ir.rules.base import Role
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


class Searching:
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


def added(wanted: States, states: States) -> States | None:
    """The states that an operator adds to the known ones; None if they disagree."""
    if any(states.get(value, state) != state for value, state in wanted.items()):
        return None
    return {value: state for value, state in wanted.items() if value not in states}
