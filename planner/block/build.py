"""The block problem of a body: groups and values as variables, prices as numbers.

    group   its options: what its kernels take (`kernels`), and what storing its parameters takes (`storage`)
    value   its *hub*, the state in which its readers find it: for values that several groups read, for inputs and for
            outputs. Bringing it there is paid once, however many read it, and its gradients are added there
    pair    group -> hub, hub -> group, or group -> group: forward from where one leaves a value to where the other
            wants it, and backward its gradient the other way (`moves`)

So the objective is what the lowered body asks for (`ir.program.lower_body`): one reshard from home to hub, one from hub
to reader, and the duals. Two readers that want a value in the same other state than the hub's are counted twice here,
and lowered once; the cheapest choice of hub seldom leaves such readers.

*Boundary.* A block of a stack ends in the state it begins with: what it hands on and what it takes in are one variable,
or it would dodge its last reduction. No partial sum crosses. `boundary` fixes states of inputs and outputs;
`Space.closed` turned off leaves both ends apart.

*Again.* What the backward pass needs and does not keep runs twice: all that `recompute` names, and, on stacks that let
gathered values go, what follows from a gather on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from meshwright.cost_models.ledger.ledger import Phase, streaming
from meshwright.ir.analysis.loops import Loops
from meshwright.ir.errors import BlockUnsolvable
from meshwright.ir.graph.fold import Fold, FromPrevious
from meshwright.ir.graph.graph import ITEMSIZE, Graph, Op
from meshwright.ir.names.cache import loops_of
from meshwright.ir.names.recompute import kind_of, recomputed
from meshwright.ir.program.program import local_elements
from meshwright.ir.rules.base import Engine
from meshwright.ir.same import Same
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import State
from meshwright.ir.sharding.rewrite import facts_of
from meshwright.planner.block.groups import Parts, parts
from meshwright.planner.block.kernels import Kernels, Times
from meshwright.planner.block.moves import Moves
from meshwright.planner.block.plan import Block, Hub
from meshwright.planner.block.space import ALL, Space, Terms
from meshwright.planner.block.storage import Storing
from meshwright.planner.block.strategies import Options, options
from meshwright.planner.block_solver.problem import Array, Pair, Problem, Variable


def build(
    fold: Fold,
    body: str,
    mesh: Mesh,
    terms: Terms,
    space: Space = ALL,
    boundary: Mapping[str, State] | None = None,
    like: Block | None = None,
) -> Block:
    """The block problem of a body on a mesh. `like` is one of the same body, mesh and terms with another storage,
    recomputation, boundary or number of micro-batches: what both have in common is taken from it."""
    fixed = {value: (state,) for value, state in (boundary or {}).items()}
    return Building(fold, body, mesh, terms, space, like).block(fixed)


Ends = Mapping[str, Sequence[State]]
"""States that inputs and outputs of a body may be in."""


class Building:
    """The construction of one block problem: first the options of its groups, then, given the states that its ends may
    be in, the problem."""

    def __init__(
        self,
        fold: Fold,
        body: str,
        mesh: Mesh,
        terms: Terms,
        space: Space = ALL,
        like: Block | None = None,
        elsewhere: frozenset[str] = frozenset(),
    ) -> None:
        found = loops_of(Same(fold))[body]
        self.fold, self.body, self.mesh, self.terms, self.space = fold, body, mesh, terms, space
        self.ends: Ends = {}
        self.graph = fold.body[body].graph
        self.like = like
        self.facts = facts_of(self.graph)
        self.exposure = terms.exposure
        again = space.recompute
        named = kind_of(fold, body, again) if isinstance(again, str) else ""
        self.recompute = recomputed(self.graph, found, named) if isinstance(again, str) else again
        self.needed, self.again = self.run_again()
        self.moves = Moves(mesh, terms, self.exposure, picks=_picks(self.graph)) if like is None else like.moves
        self.storing = Storing(self.graph, mesh, terms, self.exposure, space, elsewhere)
        self.chosen = frozenset(self.recompute)
        self.kernels = Kernels(self.graph, terms, self.exposure, self.again, self.chosen)
        self.parts, self.options = self.chosen_by_groups(found) if like is None else (like.parts, like.options)
        for one in self.options:
            if not len(one):
                raise BlockUnsolvable(
                    place=f"body {body}, %{one.group.name}",
                    cause=f"no choice is legal on ({mesh})",
                    fix="use sizes that divide the model's loops, or allow more",
                )
        self.costs: list[Array] = []
        self.pairs: dict[tuple[int, int], Array] = {}

    def chosen_by_groups(self, found: Loops) -> tuple[Parts, tuple[Options, ...]]:
        """Groups and their options. Where pins leave a group no option, a partial sum that no follower can take up for
        instance, its pinned operators stand alone."""
        cut: list[str] = []
        while True:
            grouped = parts(self.graph, found, joined=self.space.joined, cut=cut)
            made = tuple(options(grouped, group, self.mesh, self.space, self.terms) for group in grouped.groups)
            stuck = [op for one in made if not len(one) and len(one.group.ops) > 1 for op in one.group.ops]
            apart = [value for op in stuck if op.name in self.space.pins for value in op.results if value not in cut]
            if not apart:
                return grouped, made
            cut += apart

    def run_again(self) -> tuple[frozenset[str], frozenset[str]]:
        """Values that the backward pass reads, and the operators that are recomputed for them."""
        chosen, needed = frozenset(self.recompute), set[str]()
        again = set[str]()
        waiting = [
            value
            for op in self.graph.ops
            if self.facts[op.name].wanted and self.graph.differentiable.intersection(op.results)
            for value in (
                *(op.operands[slot] for slot in self.facts[op.name].reads),
                *op.results * self.facts[op.name].reruns,
            )
        ]
        while waiting:
            value = waiting.pop()
            if value in needed:
                continue
            needed.add(value)
            op = self.graph.producer.get(value)
            if op is not None and not chosen.isdisjoint(op.results):
                again.add(op.name)
                waiting.extend(op.operands)
        return frozenset(needed), frozenset(again)

    # variables

    def block(self, ends: Ends | None = None) -> Block:
        """The problem; inputs and outputs that `ends` does not name may be in any state that an operator has them
        in."""
        self.ends, self.pairs = ends or {}, {}
        hubs = tuple(self.hubs())
        self.hub_of = {value: number for number, hub in enumerate(hubs) if not hub.inner for value in hub.values}
        self.inner_of = {value: number for number, hub in enumerate(hubs) if hub.inner for value in hub.values}
        self.all_hubs = hubs
        times = (
            self.like.times
            if self.like is not None and self.like.recompute == self.recompute
            else tuple(tuple(self.kernels.times(one)) for one in self.options)
        )
        self.costs = [self.group_cost(one, took) for one, took in zip(self.options, times, strict=True)]
        self.costs += [self.hub_cost(hub) for hub in hubs]
        for value in self.between():
            self.connect(value)
        self.costs[0] = self.costs[0] + self.kernels.fixed_s(self.parts.fixed, self.mesh)
        names = [one.group.name for one in self.options] + ["hub " + " ".join(hub.values) for hub in hubs]
        problem = Problem(
            tuple(Variable(name, costs) for name, costs in zip(names, self.costs, strict=True)),
            tuple(Pair(first, second, costs) for (first, second), costs in sorted(self.pairs.items())),
        )
        return Block(
            self.body,
            self.graph,
            self.mesh,
            self.parts,
            self.options,
            hubs,
            self.storing,
            self.moves,
            self.recompute,
            self.space,
            problem,
            times,
            tuple(self.saved_bytes(times)),
            tuple(self.state_bytes()),
        )

    def between(self) -> list[str]:
        """Values that pass between groups, or into or out of the body."""
        inputs = [item.value for item in self.graph.inputs if item.value not in self.parts.tables]
        shared = [p.value for p in self.graph.params if p.value in self.parts.readers]
        made = [value for group in self.parts.groups for value in group.makes]
        return [*inputs, *shared, *made]

    def hubs(self) -> Iterable[Hub]:
        """One hub per input or output, tied ones as one, and per value that several groups read."""
        cycle = self.cycle()
        tied: dict[str, list[str]] = {}
        for value in self.between():
            tied.setdefault(cycle.get(value, value), []).append(value)
        inputs = [item.value for item in self.graph.inputs]
        done: set[str] = set()
        for value in self.between():
            readers = self.parts.readers.get(value, ())
            if value in done:
                continue
            ends = value in inputs or value in self.graph.outputs
            if not ends and len(readers) < 2 and value not in self.graph.param:
                continue
            values = tuple(tied[cycle.get(value, value)])
            done.update(values)
            yield Hub(values, self.hub_states(values, ends=ends))
            for inside in values:
                if inside in inputs and inside in self.ends and len(self.parts.readers.get(inside, ())) > 1:
                    own = dict.fromkeys(s for n in self.parts.readers[inside] for s in self.options[n].states[inside])
                    yield Hub((inside,), tuple(own), inner=True)

    def cycle(self) -> dict[str, str]:
        """For outputs that go on to the next block of a stack, the input that takes their place here."""
        found: dict[str, str] = {}
        if not self.space.closed:
            return found
        for segment in self.fold.segments:
            if segment.glue or segment.calls < 2:
                continue
            for position, name in enumerate(segment.period):
                wires = zip(self.graph.inputs, segment.wires[position], strict=True) if name == self.body else ()
                for item, source in wires:
                    if not isinstance(source, FromPrevious) or source.output >= len(self.graph.outputs):
                        continue
                    output = self.graph.outputs[source.output]
                    if self.graph.types[output] == self.graph.types[item.value]:
                        found[output] = item.value
        return found

    def hub_states(self, values: tuple[str, ...], *, ends: bool) -> tuple[State, ...]:
        """The states that these values, which are in one state, may be in."""
        known = [dict.fromkeys(self.settled(v, state) for state in self.ends[v]) for v in values if v in self.ends]
        if known:
            both = tuple(state for state in known[0] if all(state in other for other in known))
            if not both:
                asked = " and ".join(str(next(iter(one))) for one in known)
                raise BlockUnsolvable(
                    place=f"body {self.body}, %{values[0]}",
                    cause=f"its boundary is to be {asked}, and it feeds itself",
                    fix="give input and output one state",
                )
            return both
        found: dict[State, None] = {}
        for value in values:
            for number in (*self.makers(value), *self.parts.readers.get(value, ())):
                found |= dict.fromkeys(self.options[number].states[value])
        if ends:
            whole = dict.fromkeys(State(state.dims) for state in found)
            return tuple(whole) or (State.replicated(len(self.graph.types[values[0]].shape)),)
        if values[0] in self.graph.param:
            return tuple(dict.fromkeys(State(s.dims, (), s.grad_partial) for s in found))
        return tuple(found)

    def makers(self, value: str) -> tuple[int, ...]:
        return (self.parts.maker[value],) if value in self.parts.maker else ()

    def settled(self, value: str, state: State) -> State:
        return state if value in self.graph.differentiable else state.without_gradient()

    # costs

    def group_cost(self, one: Options, took: Sequence[Times]) -> Array:
        cost = np.array([times.total_s for times in took])
        for param in one.group.params:
            ways = [self.storing.best(param, state) for state in one.states[param.value]]
            seconds = np.array([way.total_s(self.terms.microbatches) for way in ways])
            cost = cost + seconds[one.at[param.value]]
        return cost

    def hub_cost(self, hub: Hub) -> Array:
        """Costs at a hub: adding the gradients of several readers, and storing a parameter that several groups read."""
        cost = np.zeros(len(hub.states))
        for value in hub.values:
            if value in self.graph.param:
                ways = [self.storing.best(self.graph.param[value], state) for state in hub.states]
                cost += np.array([way.total_s(self.terms.microbatches) for way in ways])
            if (number := self.gradients(value)) > 1 and hub.inner == (value in self.inner_of):
                cost += np.array([self.added_s(value, state, number) for state in hub.states])
        return cost

    def gradients(self, value: str) -> int:
        """The number of gradients of a value that meet at its hub. Gradients of products with stacked weights count as
        one."""
        if value not in self.graph.differentiable:
            return 0
        products = others = 0
        for number in self.parts.readers.get(value, ()):
            inside = [op for op in self.parts.groups[number].ops if value in op.operands]
            if any(self.passes_gradient(op, value) for op in inside):
                product = all(self.facts[op.name].rule.engine is Engine.MATMUL for op in inside)
                products, others = products + product, others + (not product)
        if self.terms.workload.stack.style in ("fused", "xla"):
            products = min(products, 1)
        return products + others + (value in self.graph.outputs)

    def passes_gradient(self, op: Op, value: str) -> bool:
        slots = [slot for slot, operand in enumerate(op.operands) if operand == value]
        return bool(set(slots) & set(self.facts[op.name].wanted))

    def added_s(self, value: str, state: State, number: int) -> float:
        type_ = self.graph.types[value]
        nbytes = local_elements(state.grad, type_.shape, self.mesh) * ITEMSIZE[type_.dtype]
        # By itself a sum reads all and writes one; in a chain it spares the write and a read beside it.
        moved = number + 1 if self.terms.workload.stack.style == "eager" else number - 1
        phase = Phase()
        phase.kernels[streaming(moved * nbytes, self.terms.workload)] = 1
        return self.terms.cost(phase, self.mesh).device_s

    # memory

    def saved_bytes(self, times: Sequence[Sequence[Times]]) -> list[Array]:
        """Bytes saved by groups, and by each value that a later derivative reads, counted once: where it is made, if it
        is saved there anyway or was gathered and released; at its hub, if it is brought from there once more; else
        shared out among those who need it, as they read it: what several read alike is gathered, and kept, once."""
        found = [
            np.zeros(len(one)) if one.group.names <= self.again else np.array([took.kept_bytes for took in its])
            for one, its in zip(self.options, times, strict=True)
        ]
        found += [np.zeros(len(hub.states)) for hub in self.all_hubs]
        for value in self.between():
            keepers = self.keepers(value, times)
            if not keepers or value in self.graph.param:
                continue
            makers = self.makers(value)
            if makers and {value, self.graph.storage[value]} & times[makers[0]][0].keeps:
                continue
            hub = self.hub_of.get(value)
            if makers and self.terms.lowering.regathers:
                keepers = list(makers)
            elif hub is not None and any(self.reruns(value, number) for number in keepers):
                keepers = [len(self.options) + hub]
            for at in keepers:
                nbytes = np.array([self.local_bytes(value, state) for state in self.states_of(value, at)])
                found[at] = found[at] + nbytes[self.rows(value, at)] / len(keepers)
        return found

    def keepers(self, value: str, times: Sequence[Sequence[Times]]) -> list[int]:
        """The groups whose derivatives need a value that they do not compute themselves, as they read it."""
        if value in self.chosen and value in self.graph.producer:
            return []
        found = []
        for number in self.parts.readers.get(value, ()):
            group = self.parts.groups[number]
            if self.reruns(value, number) or (value in times[number][0].keeps and not group.names <= self.again):
                found.append(number)
        return found

    def reruns(self, value: str, reader: int) -> bool:
        """Whether the backward pass runs anything again that reads a value in a group."""
        return any(op.name in self.again for op in self.parts.groups[reader].ops if value in op.operands)

    def local_bytes(self, value: str, state: State) -> float:
        type_ = self.graph.types[value]
        return local_elements(state.value, type_.shape, self.mesh) * ITEMSIZE[type_.dtype]

    def state_bytes(self) -> list[Array]:
        """Bytes of parameter state, as stored."""
        found = [np.zeros(len(variable)) for variable in self.costs]
        for number, one in enumerate(self.options):
            for param in one.group.params:
                ways = [self.storing.best(param, state) for state in one.states[param.value]]
                found[number] += np.array([way.nbytes for way in ways])[one.at[param.value]]
        for number, hub in enumerate(self.all_hubs):
            if hub.values[0] in self.graph.param:
                ways = [self.storing.best(self.graph.param[hub.values[0]], state) for state in hub.states]
                found[len(self.options) + number] += np.array([way.nbytes for way in ways])
        return found

    # moves

    def connect(self, value: str) -> None:
        """The pairs of variables between which a value travels."""
        hub = self.hub_of.get(value)
        makers, readers = self.makers(value), self.parts.readers.get(value, ())
        if hub is None:
            for maker in makers:
                for reader in readers:
                    self.travels(value, maker, reader, self.is_needed_by(value, reader))
            return
        at = len(self.options) + hub
        for maker in makers:
            self.travels(value, maker, at, value in self.needed)
        if value in self.inner_of:
            inner = len(self.options) + self.inner_of[value]
            self.travels(value, at, inner, value in self.needed)
            at = inner
        for reader in readers:
            self.travels(value, at, reader, self.is_needed_by(value, reader))

    def is_needed_by(self, value: str, reader: int) -> bool:
        """Whether the backward pass reads a value in the form in which this group takes it."""
        for op in self.parts.groups[reader].ops:
            if value not in op.operands:
                continue
            facts = self.facts[op.name]
            slots = {slot for slot, operand in enumerate(op.operands) if operand == value}
            if op.name in self.again or (facts.wanted and slots & set(facts.reads)):
                return True
        return False

    def travels(self, value: str, source: int, target: int, needed: bool) -> None:
        sources, targets = self.states_of(value, source), self.states_of(value, target)
        table = self.table(value, sources, targets, needed)
        rows, columns = self.rows(value, source), self.rows(value, target)
        full = table[np.ix_(rows, columns)]
        if source > target:
            source, target, full = target, source, full.T
        known = self.pairs.get((source, target))
        self.pairs[source, target] = full if known is None else known + full

    def states_of(self, value: str, variable: int) -> tuple[State, ...]:
        if variable >= len(self.options):
            return self.all_hubs[variable - len(self.options)].states
        return self.options[variable].states[value]

    def rows(self, value: str, variable: int) -> np.ndarray:
        """The number of the value's state for every state of a variable."""
        if variable >= len(self.options):
            return np.arange(len(self.all_hubs[variable - len(self.options)].states))
        return self.options[variable].at[value]

    def table(self, value: str, sources: Sequence[State], targets: Sequence[State], needed: bool) -> Array:
        """Costs of moving a value forward, once more where it is recomputed, and its gradient back."""
        nbytes = self.graph.types[value].nbytes
        there, here = [s.value for s in sources], [t.value for t in targets]
        cost = self.moves.seconds(nbytes, there, here, backward=False)
        if needed and value in self.chosen:
            cost = cost + self.moves.seconds(nbytes, there, here, backward=True)
        elif needed and self.terms.lowering.regathers:
            cost = cost + self.moves.again(nbytes, there, here)
        if value in self.graph.differentiable:
            cost = (
                cost + self.moves.seconds(nbytes, [t.grad for t in targets], [s.grad for s in sources], backward=True).T
            )
        return cost


def _picks(graph: Graph) -> int:
    """The number of experts that a token goes to."""
    return max((graph.types[op.operands[1]].shape[-1] for op in graph.ops if op.kind == "dispatch"), default=1)
