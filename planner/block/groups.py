"""Groups: operators of a body that share one choice.

A view, a cast, a rotation by tables or the inside of a norm follows what it reads: to reshard in its middle never pays
more than to reshard before or after it. So such a *follower* is tied to the group that makes its operands, if they all
come from one, and if nobody else reads them; a chain that begins with a value which others read too (an upcast, a
norm), or that sums over what a product may leave partial, is a group of its own. What is left apart are products,
attention, sums of two branches: between groups values may change their state, inside they may not.

*Tables* (rotary angles, masks) have neither gradient nor samples: they are made whole on every rank and cut where they
are read, which moves nothing, so they are no variables. What is made of parameters alone belongs to the one who reads
it; what several read (a decay in every step of a recurrence) is a group of its own, or their choices would multiply.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from meshwright.ir.analysis.loops import Loops, stem
from meshwright.ir.graph.graph import Graph, Input, Op, Param
from meshwright.ir.rules.base import Engine, Role, Rule
from meshwright.ir.sharding.rewrite import facts_of

BATCH = "b"
_LEADERS = ("embedding", "dispatch", "combine", "route", "opaque")
"""Memory-bound kinds that choose for themselves."""


@dataclass(frozen=True)
class Group:
    """Operators that share one choice, in running order.

    - `reads` are values that come from elsewhere, but for tables and for parameters that nobody else reads (`params`);
      `tables` the tables among the operands.
    - `makes` are values that others read, or that leave the body.
    """

    ops: tuple[Op, ...]
    reads: tuple[str, ...]
    tables: tuple[str, ...]
    params: tuple[Param, ...]
    makes: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.ops[0].name

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(op.name for op in self.ops)


@dataclass(frozen=True, eq=False)
class Parts:
    """A body as groups, and the values between them."""

    graph: Graph
    found: Loops
    groups: tuple[Group, ...]
    tables: frozenset[str]
    fixed: tuple[Op, ...]
    """Operators that make tables: they are idle on every axis."""

    @cached_property
    def maker(self) -> Mapping[str, int]:
        """The group that makes a value, by number."""
        return {value: index for index, group in enumerate(self.groups) for value in group.makes}

    @cached_property
    def readers(self) -> Mapping[str, tuple[int, ...]]:
        """The groups that read a value."""
        found: dict[str, list[int]] = {}
        for index, group in enumerate(self.groups):
            for value in group.reads:
                found.setdefault(value, []).append(index)
        return {value: tuple(numbers) for value, numbers in found.items()}


def parts(graph: Graph, found: Loops, *, joined: bool = True, cut: Iterable[str] = ()) -> Parts:
    """Divide a body into groups, none across a value in `cut`; without `joined` every operator is a group."""
    grouping = _Grouping(graph, found)
    return grouping.parts(grouping.ties(cut) if joined else {op.name: op.name for op in grouping.ops})


class _Grouping:
    """The grouping of operators, repeated where a value turns out to be read from inside and outside a group."""

    def __init__(self, graph: Graph, found: Loops) -> None:
        self.graph, self.found, self.facts = graph, found, facts_of(graph)
        self.tables = self.find_tables()
        self.ops = [op for op in graph.ops if not self.tables.issuperset(op.results)]
        self.fixed = tuple(op for op in graph.ops if self.tables.issuperset(op.results))
        self.weights = {param.value for param in graph.params}
        self.of_weights: set[str] = set()
        for op in self.ops:
            if op.operands and (self.weights | self.of_weights | self.tables).issuperset(op.operands):
                self.of_weights.update(op.results)

    def find_tables(self) -> frozenset[str]:
        """Values without gradient and without samples, computed from such values only."""
        tables = {item.value for item in self.graph.inputs if self.is_plain(item)}
        for op in self.graph.ops:
            known = tables.issuperset(op.operands)
            if known and not any(self.sampled(value) or value in self.graph.differentiable for value in op.results):
                tables.update(op.results)
        return frozenset(tables)

    def is_plain(self, item: Input) -> bool:
        return item.value not in self.graph.differentiable and not self.sampled(item.value)

    def sampled(self, value: str) -> bool:
        return any(stem(name) == BATCH for names in self.found.dims[value] for name in names)

    def ties(self, apart: Iterable[str] = ()) -> dict[str, str]:
        """For every operator the leader of its group."""
        cut = set(apart)
        while True:
            leader = self.tied(cut)
            torn = (self.torn(leader) | self.added_up(leader)) - cut
            if not torn:
                return leader
            cut |= torn

    def tied(self, cut: set[str]) -> dict[str, str]:
        """Followers joined to the makers of their operands, except across the values in `cut`."""
        leader: dict[str, str] = {}
        taken: set[str] = set()
        """Groups that read what is made of parameters: nobody else takes that from them."""
        producer = self.graph.producer
        for op in self.ops:
            sources: set[str] = set()
            loose = []
            for value in op.operands:
                if value in self.tables or value in self.weights:
                    continue
                made = producer.get(value)
                if value in self.of_weights and made is not None:
                    loose.append(leader[made.name])
                else:
                    sources.add(f"%{value}" if made is None or value in cut else leader[made.name])
            own = op.name
            if len(sources) == 1 and self.follows(self.facts[op.name].rule, op):
                (source,) = sources
                own = op.name if source.startswith("%") else source
            leader[op.name] = own
            if not self.of_weights.intersection(op.results):
                if joins := {at for at in loose if at not in cut and at not in taken}:
                    leader |= {name: own for name, at in leader.items() if at in joins}
                taken.add(own)
        return leader

    def follows(self, rule: Rule, op: Op) -> bool:
        """Whether an operator takes the choice of its operands' maker."""
        if op.kind in _LEADERS or rule.gathered or rule.pairs or any(factor.expanded for factor in rule.factors):
            return False
        return rule.engine in (Engine.VIEW, Engine.MEMORY)

    def torn(self, leader: Mapping[str, str]) -> set[str]:
        """Values that are read both inside the group that makes them and outside."""
        found = set()
        for op in self.ops:
            for value in op.results:
                readers = {leader[self.graph.ops[index].name] for index, _ in self.graph.readers[value]}
                leaves = value in self.graph.outputs or any(u.value == value for u in self.graph.updates)
                if leader[op.name] in readers and (len(readers) > 1 or leaves):
                    found.add(value)
        return found

    def added_up(self, leader: Mapping[str, str]) -> set[str]:
        """What products make whose followers sum over a loop, a norm's statistics for instance: an axis that cuts the
        product's own sum leaves partial results, which have to be added before that."""
        sums = [op for op in self.ops if any(factor.role is Role.SUM for factor in self.facts[op.name].rule.factors)]
        products = [op for op in sums if self.facts[op.name].rule.engine in (Engine.MATMUL, Engine.CONV)]
        norms = {leader[op.name] for op in sums if self.facts[op.name].rule.engine is Engine.MEMORY}
        return {value for op in products if leader[op.name] in norms for value in op.results}

    def parts(self, leader: Mapping[str, str]) -> Parts:
        members: dict[str, list[Op]] = {}
        for op in self.ops:
            members.setdefault(leader[op.name], []).append(op)
        groups = tuple(self.group(tuple(ops), leader) for ops in members.values())
        return Parts(self.graph, self.found, groups, self.tables, self.fixed)

    def group(self, ops: tuple[Op, ...], leader: Mapping[str, str]) -> Group:
        inside = {value for op in ops for value in op.results}
        operands = dict.fromkeys(value for op in ops for value in op.operands if value not in inside)
        own = leader[ops[0].name]
        params = [p for p in self.graph.params if p.value in operands and self.only_reader(p.value, own, leader)]
        held = {param.value for param in params}
        return Group(
            ops=ops,
            reads=tuple(value for value in operands if value not in self.tables and value not in held),
            tables=tuple(value for value in operands if value in self.tables),
            params=tuple(params),
            makes=tuple(value for op in ops for value in op.results if self.leaves(value, own, leader)),
        )

    def only_reader(self, value: str, own: str, leader: Mapping[str, str]) -> bool:
        ops = self.graph.ops
        return all(leader.get(ops[index].name) == own for index, _ in self.graph.readers[value])

    def leaves(self, value: str, own: str, leader: Mapping[str, str]) -> bool:
        if value in self.graph.outputs or any(update.value == value for update in self.graph.updates):
            return True
        return not self.only_reader(value, own, leader)
