"""Spreading a body over a mesh: its forward and backward pass, with operators split as its plan says.

1. *Rewrite.* Operators whose split needs communication inside (a vocabulary-sharded cross entropy) are replaced by
their expansion (`meshwright.ir.sharding.rewrite`). 2. *States.* `adjoint.apply` says in which state every operator
wants each operand and leaves each result. A value has a *home* (the state its producer leaves it in) and a *hub* (where
the plan wants it once; the home unless said otherwise). 3. *Forward.* A reader that wants another placement than the
hub gets a materialisation, made once per placement and shared by all readers that want it. So a value that is gathered
once and read by three linears is paid once. 4. *Backward.* Operators in reverse. Gradients that readers leave in one
placement are first added there, still partial, and then brought to the hub by one reshard, the dual of the forward one;
from hub to home likewise. Hence one reduce-scatter for q, k and v together, where pricing by edges would count three.
(A library that reduces the gradient of every reader by itself has three: `adds_first`.)

What is stored where, and what is computed again, does not concern these passes: `meshwright.ir.program.lower_body` adds
it. So plans that differ in nothing else share them, made once (`spread_of`) and known by the operators' strategies and
the states at hubs; their statements are the same objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.errors import IllegalStrategy
from meshwright.ir.graph.graph import Graph, Op, Param, Type, Update
from meshwright.ir.program.program import Add, Compute, Gradient, Local, Move, Ring, Statement, Zero
from meshwright.ir.same import Same
from meshwright.ir.sharding import reshard as moves
from meshwright.ir.sharding.adjoint import Applied, Split, Strategy
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement, State
from meshwright.ir.sharding.rewrite import expanded_from, facts_of, rewritten

IDLE_STRATEGY = Strategy()


@dataclass(slots=True)
class Names:
    """The local names of a body, and the emission of reshards between them. Local names: `v` a value at home, `v@k` a
    materialisation, `dv…` gradients, `v!…` stored forms."""

    mesh: Mesh
    moves: tuple[str, ...]
    locals: dict[str, Local]
    count: int = 0

    def define(self, name: str, type_: Type, placement: Placement) -> str:
        self.locals[name] = Local(type_, placement)
        return name

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def move_all(
        self,
        stem: str,
        name: str,
        source: Placement,
        target: Placement,
        reason: str,
        into: list[Statement],
        final: str | None = None,
        *,
        at_once: bool = False,
    ) -> str:
        """Emit the steps from one placement to another, reduce-scatters `at_once` where asked; returns the last
        name."""
        if source == target:
            return name
        steps = moves.path(source, target, self.mesh, self.moves)
        if at_once:
            steps = moves.at_once(steps, self.mesh)
        type_ = self.locals[name].type
        for index, (step, reached) in enumerate(steps):
            result = final if final and index == len(steps) - 1 else self.fresh(f"{stem}@")
            self.define(result, type_, reached)
            into.append(Move(step, name, result, reason))
            name = result
        return name

    def copy(self) -> Names:
        return Names(self.mesh, self.moves, dict(self.locals), self.count)


# Operators over the mesh ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """The passes of a body spread over a mesh, apart from storage and recomputation."""

    graph: Graph
    names: Names
    forward: tuple[Statement, ...]
    entered: int
    """How many statements of it bring inputs to where they are wanted: parameters are gathered after those."""
    backward: tuple[Statement, ...]
    reads: tuple[tuple[str, ...], ...]
    """For every backward statement, the names of the forward pass that must be at hand."""
    home: Mapping[str, State]
    outputs: tuple[str, ...]
    output_grads: tuple[str | None, ...]
    grad_of: Mapping[str, str | None]
    updates: tuple[Update, ...]
    sizes: Mapping[str, Mapping[str, int]]
    """The local factors of every operator."""
    expanded_from: Mapping[str, str]
    """For operators that stand for a part of another one, which."""
    gathered: frozenset[str] = frozenset()
    """The parameters that are stored otherwise than operators want them: `forward` gathers them."""


@lru_cache(maxsize=8192)
def spread_of(
    key: Same[Graph],
    strategies: tuple[tuple[str, Strategy], ...],
    states: tuple[tuple[str, State], ...],
    mesh: Mesh,
    known_moves: tuple[str, ...],
    adds_first: bool = True,
) -> Spread:
    """The passes of a body under these strategies, and these states at hubs."""
    chosen = dict(strategies)
    body = Body(*rewritten(key.of, chosen), states, mesh, known_moves, adds_first=adds_first)
    body.forward_pass()
    body.backward_pass()
    return body.spread(expanded_from(key.of, chosen))


def compute_placements(graph: Graph, plan: BodyPlan, mesh: Mesh) -> dict[str, Placement]:
    """The placement in which operators read every parameter and buffer, by path."""
    body = Body(*rewritten(graph, dict(plan.strategies)), plan.states, mesh, moves.MOVES)
    return {param.path: body.settle(param.value, body.param_home(param)).value for param in graph.params}


class Body:
    """A body while its passes are written: placed values, and the statements so far."""

    def __init__(
        self,
        graph: Graph,
        strategies: Mapping[str, Strategy],
        states: Sequence[tuple[str, State]],
        mesh: Mesh,
        known_moves: tuple[str, ...],
        *,
        adds_first: bool = True,
    ) -> None:
        self.graph, self.mesh, self.adds_first = graph, mesh, adds_first
        self.facts = facts_of(graph)
        self.strategies = {op.name: strategies.get(op.name, IDLE_STRATEGY) for op in graph.ops}
        self.applied: dict[str, Applied] = {}
        for op in graph.ops:
            self.applied[op.name] = self.facts[op.name].applied(self.strategies[op.name], mesh)
            self.check_gradient(op, self.facts[op.name].maximised)
        self.wanted_states = dict(states)
        self.param_of = {path: param.value for param in reversed(graph.params) for path in param.paths}
        self.names = Names(mesh, known_moves, {})
        self.define, self.fresh, self.move_all = self.names.define, self.names.fresh, self.names.move_all
        self.forward: list[Statement] = []
        self.backward: list[Statement] = []
        self.reads: dict[int, tuple[str, ...]] = {}
        self.entered = 0
        self.home: dict[str, State] = {}
        self.hub: dict[str, State] = {}
        self.hub_name: dict[str, str] = {}
        self.made: dict[tuple[str, Placement], str] = {}
        self.ran: dict[str, Compute | Ring] = {}
        self.gradients: dict[str, dict[Placement, list[str]]] = {}
        self.grad_of: dict[str, str | None] = {}
        self.output_grads: list[str | None] = []

    def check_gradient(self, op: Op, maxima: frozenset[str]) -> None:
        """Refuse a gradient through a partial maximum: ranks do not know which of them held the maximum."""
        if maxima.isdisjoint(self.strategies[op.name].split):
            return
        splits = [choice for _, choice in self.strategies[op.name].choices if isinstance(choice, Split)]
        maximised = [name for split in splits for name in split.factors if name in maxima]
        if self.graph.differentiable.intersection(op.results):
            raise IllegalStrategy(
                place=f"%{op.name} ({op.kind})",
                cause=f"a gradient flows through the maximum over {maximised[0]}",
                fix="keep that factor whole here",
            )

    # names and states

    def settle(self, value: str, state: State) -> State:
        """A state without its gradient part where no gradient flows."""
        return state if value in self.graph.differentiable else state.without_gradient()

    def required(self, op: Op, slot: int) -> State:
        return self.settle(op.operands[slot], self.applied[op.name].operands[slot])

    def param_home(self, param: Param) -> State:
        """The compute state of a parameter: as its first reader wants it, but never as a partial sum."""
        readers = self.graph.readers[param.value]
        if param.value in self.wanted_states:
            return self.wanted_states[param.value]
        if not readers:
            return State.replicated(len(self.graph.types[param.value].shape))
        index, slot = readers[0]
        state = self.required(self.graph.ops[index], slot)
        return replace(state, partial=()) if state.partial else state

    # forward

    def forward_pass(self) -> None:
        for item in self.graph.inputs:
            rank = len(self.graph.types[item.value].shape)
            self.place(item.value, self.wanted_states.get(item.value, State.replicated(rank)))
        self.entered = len(self.forward)
        for param in self.graph.params:
            self.place(param.value, self.param_home(param))
        for op in self.graph.ops:
            operands = tuple(
                self.materialise(value, self.required(op, slot).value) for slot, value in enumerate(op.operands)
            )
            self.ran[op.name] = self.compute(op, operands)
            self.forward.append(self.ran[op.name])
            for value, state in zip(op.results, self.applied[op.name].results, strict=True):
                self.place(value, state)
        for update in self.graph.updates:
            self.stored(update)

    def compute(self, op: Op, operands: tuple[str, ...]) -> Compute | Ring:
        strategy, signature = self.strategies[op.name], self.facts[op.name].signature
        rings = [axis for axis, choice in strategy.choices if isinstance(choice, Split) and len(choice.factors) == 2]
        if len(rings) > 1:
            raise IllegalStrategy(
                place=f"%{op.name} ({op.kind})", cause=f"rings on {' and '.join(rings)}", fix="use one ring axis"
            )
        if rings:
            return Ring(signature, strategy, rings[0], operands, op.results, op.name)
        return Compute(signature, strategy, operands, op.results, op.name)

    def place(self, value: str, home: State) -> None:
        """Put a value into its home placement, and into its hub if the plan names another one."""
        home = self.settle(value, home)
        hub = self.settle(value, self.wanted_states.get(value, home))
        self.home[value], self.hub[value], self.hub_name[value] = home, hub, value
        self.define(value, self.graph.types[value], home.value)
        if hub.value != home.value:
            self.hub_name[value] = self.move_all(value, value, home.value, hub.value, "value", self.forward)

    def materialise(self, value: str, placement: Placement) -> str:
        """The local name of a value in a placement; made on first use, then shared."""
        if placement == self.hub[value].value:
            return self.hub_name[value]
        if (value, placement) not in self.made:
            self.made[value, placement] = self.move_all(
                value, self.hub_name[value], self.hub[value].value, placement, "value", self.forward
            )
        return self.made[value, placement]

    # backward

    def backward_pass(self) -> None:
        for index, value in enumerate(self.graph.outputs):
            self.output_grads.append(self.output_grad(index, value))
        for op in reversed(self.graph.ops):
            self.differentiate(op)
        for item in self.graph.inputs:
            self.grad_of[item.value] = self.collect(item.value, item.requires_grad)
        for param in self.graph.params:
            self.grad_of[param.value] = self.collect(param.value, param.requires_grad and not param.buffer)

    def output_grad(self, index: int, value: str) -> str | None:
        if value not in self.graph.differentiable:
            return None
        name = self.define(f"d{value}!out{index}", self.graph.types[value], self.hub[value].grad)
        self.contribute(value, self.hub[value].grad, name)
        return name

    def contribute(self, value: str, placement: Placement, name: str) -> None:
        self.gradients.setdefault(value, {}).setdefault(placement, []).append(name)

    def differentiate(self, op: Op) -> None:
        grads = tuple(self.collect(value, False) for value in op.results)
        for value, name in zip(op.results, grads, strict=True):
            self.grad_of[value] = name
        facts = self.facts[op.name]
        wanted = facts.wanted
        if not wanted or not any(grads):
            return
        made = self.ran[op.name]
        results = []
        for slot in wanted:
            state, value = self.required(op, slot), op.operands[slot]
            results.append(self.define(self.fresh(f"d{value}@"), self.graph.types[value], state.grad))
            self.contribute(value, state.grad, results[-1])
        read = *(made.operands[slot] for slot in facts.reads), *made.results * facts.reruns
        self.reads[len(self.backward)] = read
        if isinstance(made, Ring):
            self.backward.append(
                replace(made, outputs=made.results, grads=grads, wanted=wanted, results=tuple(results))
            )
            return
        self.backward.append(
            Gradient(made.signature, made.strategy, made.operands, made.results, grads, wanted, tuple(results), op.name)
        )

    def collect(self, value: str, required: bool) -> str | None:
        """Add up the gradients of a value, in the hub's placement, then move the sum home."""
        groups = self.gradients.get(value, {})
        if not groups:
            if not required:
                return None
            name = self.define(f"d{value}", self.graph.types[value], self.home[value].grad)
            self.backward.append(Zero(name))
            return name
        hub, home = self.hub[value].grad, self.home[value].grad
        at_hub = []
        for placement, names in groups.items():
            apart = [self.add(value, names, placement)] if self.adds_first else names
            at_hub += [self.move_all(f"d{value}", name, placement, hub, "gradient", self.backward) for name in apart]
        name = self.add(value, at_hub, hub)
        return self.move_all(f"d{value}", name, hub, home, "gradient", self.backward)

    def add(self, value: str, names: Sequence[str], placement: Placement) -> str:
        if len(names) == 1:
            return names[0]
        name = self.define(self.fresh(f"d{value}+"), self.graph.types[value], placement)
        self.backward.append(Add(tuple(names), name))
        return name

    # the result

    def spread(self, expanded_from: Mapping[str, str]) -> Spread:
        graph = self.graph
        return Spread(
            graph=graph,
            names=self.names,
            forward=tuple(self.forward),
            entered=self.entered,
            backward=tuple(self.backward),
            reads=tuple(self.reads.get(index, ()) for index in range(len(self.backward))),
            home=self.home,
            outputs=tuple(self.hub_name[value] for value in graph.outputs),
            output_grads=tuple(self.output_grads),
            grad_of=self.grad_of,
            updates=tuple(replace(update, value=self.stored(update)) for update in graph.updates),
            sizes={op: dict(applied.sizes) for op, applied in self.applied.items()},
            expanded_from=expanded_from,
        )

    def stored(self, update: Update) -> str:
        """The local name of a buffer's new value, placed as operators read the buffer."""
        return self.materialise(update.value, self.home[self.param_of[update.buffer]].value)
