"""Lowering one body: from a block's graph and its plan to the statements that one rank executes.

1. *Rewrite.* Operators whose split needs communication inside (a vocabulary-sharded cross entropy) are replaced by
their expansion (`meshwright.ir.rewrite`). 2. *States.* `adjoint.apply` says in which state every operator wants each
operand and leaves each result. A value has a *home* (the state its producer leaves it in) and a *hub* (where the plan
wants it once; the home unless said otherwise). 3. *Forward.* A reader that wants another placement than the hub gets a
materialisation, made once per placement and shared by all readers that want it. So a value that is gathered once and
read by three linears is paid once. 4. *Backward.* Operators in reverse. Gradients that readers leave in one placement
are first added there, still partial, and then brought to the hub by one reshard, the dual of the forward one; from hub
to home likewise. Hence one reduce-scatter for q, k and v together, where pricing by edges would count three.

What must be computed again in the backward pass (recomputation, gathered parameters) is emitted just before the first
derivative that reads its value (`Rule.reads`): the sum that ends a block is not made again. What is kept of the forward
pass depends on the kernels that run it (`meshwright.ir.kept`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from meshwright.ir import reshard as moves
from meshwright.ir.adjoint import Applied, Split, Strategy
from meshwright.ir.decisions import BodyPlan, Storage
from meshwright.ir.errors import IllegalStrategy, StorageConflict
from meshwright.ir.graph import Graph, Op, Param, Type
from meshwright.ir.kept import Passes, kept
from meshwright.ir.mesh import Mesh
from meshwright.ir.placement import Placement, State
from meshwright.ir.program import (
    Add,
    BodyProgram,
    Compute,
    Gradient,
    Kept,
    Kernels,
    Local,
    Move,
    ParamSlot,
    Ring,
    Statement,
    Zero,
    operands_of,
    results_of,
)
from meshwright.ir.rewrite import facts_of, rewritten
from meshwright.ir.rules.base import Role, Rule
from meshwright.ir.workload import Stack

IDLE_STRATEGY = Strategy()


@dataclass(frozen=True, slots=True)
class Lowering:
    """How a target lowers: the reshard steps it can execute, and the kernels (device, attention and, from the
    decisions, style) that decide what is kept for the backward pass. Must: kernels that exist."""

    moves: tuple[str, ...] = moves.MOVES
    device: str = "cuda"
    style: str = "eager"
    attention: str = "flash2"
    fused_loss: bool = False
    regathers: bool = False
    """Values gathered for use are gathered again in the backward pass, not kept (Megatron's sequence parallelism)."""
    copied: str = ""
    """The precision in which products inside repeated blocks keep their inputs (`Kernels.copied`)."""

    def __post_init__(self) -> None:
        Kernels(self.style, self.device, self.attention, self.fused_loss, self.copied)

    def for_stack(self, stack: Stack) -> Lowering:
        """The same target under a software stack: its attention, its loss, what it gathers again."""
        return replace(self, attention=stack.attention, fused_loss=stack.fused_loss, regathers=stack.regathers)

    @property
    def kernels(self) -> Kernels:
        return Kernels(self.style, self.device, self.attention, self.fused_loss, self.copied)


def lower_body(graph: Graph, plan: BodyPlan, mesh: Mesh, lowering: Lowering) -> BodyProgram:
    """One body as a list of statements."""
    graph, strategies = rewritten(graph, dict(plan.strategies))
    if lowering.copied and any(graph.types[value].shape == () for value in graph.outputs):
        lowering = replace(lowering, copied="")  # the head multiplies in the dtype it was traced in
    lowered = _Body(graph, plan, mesh, strategies, lowering)
    lowered.forward_pass()
    lowered.backward_pass()
    return lowered.program()


def compute_placements(graph: Graph, plan: BodyPlan, mesh: Mesh) -> dict[str, Placement]:
    """For every parameter and buffer, by path, where the operators that read it want it."""
    graph, strategies = rewritten(graph, dict(plan.strategies))
    lowered = _Body(graph, plan, mesh, strategies, Lowering())
    return {param.path: lowered.settle(param.value, lowered.param_home(param)).value for param in graph.params}


# Bodies --------------------------------------------------------------------------------------------------------------


class _Body:
    """Lowers one body. Local names: `v` a value at home, `v@k` a materialisation, `dv…` gradients, `v!…` stored
    forms."""

    def __init__(
        self, graph: Graph, plan: BodyPlan, mesh: Mesh, strategies: Mapping[str, Strategy], lowering: Lowering
    ) -> None:
        self.graph, self.plan, self.mesh, self.lowering = graph, plan, mesh, lowering
        self.facts = facts_of(graph)
        self.strategies = {op.name: strategies.get(op.name, IDLE_STRATEGY) for op in graph.ops}
        self.applied: dict[str, Applied] = {}
        for op in graph.ops:
            self.applied[op.name] = self.facts[op.name].applied(self.strategies[op.name], mesh)
            self.check_gradient(op, self.facts[op.name].rule)
        self.wanted_states = dict(plan.states)
        self.storage: dict[str, Storage] = {item.path: item for item in plan.storage}
        self.locals: dict[str, Local] = {}
        self.forward: list[Statement] = []
        self.backward: list[Statement] = []
        self.home: dict[str, State] = {}
        self.hub: dict[str, State] = {}
        self.hub_name: dict[str, str] = {}
        self.made: dict[tuple[str, Placement], str] = {}
        self.alias = {op.name: op.alias for op in graph.ops}
        self.chosen = frozenset(plan.recompute)
        self.again: set[str] = set()
        """What the backward pass computes again, as far as it needs it."""
        self.let_go: set[str] = set()
        """Gathered parameters that are not kept for the backward pass, and views of them, which would keep them."""
        self.maker: dict[str, Statement] = {}
        self.redone: set[str] = set()
        self.gradients: dict[str, dict[Placement, list[str]]] = {}
        self.grad_of: dict[str, str | None] = {}
        self.output_grads: list[str | None] = []
        self.count = 0

    def check_gradient(self, op: Op, rule: Rule) -> None:
        """A partial maximum has no gradient: which rank held the maximum is not known to the others."""
        splits = [choice for _, choice in self.strategies[op.name].choices if isinstance(choice, Split)]
        maximised = [name for split in splits for name in split.factors if rule.factor(name).role is Role.MAX]
        if maximised and self.graph.differentiable.intersection(op.results):
            raise IllegalStrategy(
                place=f"%{op.name} ({op.kind})",
                cause=f"a gradient flows through the maximum over {maximised[0]}",
                fix="keep that factor whole here",
            )

    # names and states

    def define(self, name: str, type_: Type, placement: Placement) -> str:
        self.locals[name] = Local(type_, placement)
        return name

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def settle(self, value: str, state: State) -> State:
        """A state, without its gradient part where no gradient flows."""
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
        for param in self.graph.params:
            self.place_param(param)
        for op in self.graph.ops:
            operands = tuple(
                self.materialise(value, self.required(op, slot).value) for slot, value in enumerate(op.operands)
            )
            self.emit(self.compute(op, operands))
            for value, state in zip(op.results, self.applied[op.name].results, strict=True):
                self.place(value, state)
        for update in self.graph.updates:
            self.materialise(update.value, Placement.replicated(len(self.graph.types[update.value].shape)))

    def compute(self, op: Op, operands: tuple[str, ...]) -> Statement:
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
        """Give a value its home; bring it to its hub if the plan names another one."""
        home = self.settle(value, home)
        hub = self.settle(value, self.wanted_states.get(value, home))
        self.home[value], self.hub[value], self.hub_name[value] = home, hub, value
        self.define(value, self.graph.types[value], home.value)
        if hub.value != home.value:
            self.hub_name[value] = self.move_all(value, value, home.value, hub.value, "value", self.forward)

    def place_param(self, param: Param) -> None:
        home = self.settle(param.value, self.param_home(param))
        self.home[param.value] = self.hub[param.value] = home
        self.hub_name[param.value] = param.value
        stored = self.storage[param.path].params if param.path in self.storage else home.value
        if stored != home.value:
            self.check_refines(param, stored, home.value)
            name = self.define(f"{param.value}!stored", self.graph.types[param.value], stored)
            self.move_all(name, name, stored, home.value, "parameter", self.forward, final=param.value)
            if self.plan.regather:
                self.again.add(param.value)
                self.let_go.add(param.value)
        self.define(param.value, self.graph.types[param.value], home.value)

    def check_refines(self, param: Param, stored: Placement, compute: Placement) -> None:
        fits = not stored.partial and all(
            longer[: len(shorter)] == shorter for longer, shorter in zip(stored.dims, compute.dims, strict=True)
        )
        if not fits:
            raise StorageConflict(
                place=f"plan {self.plan.name}, {param.path}",
                cause=f"{stored} does not refine {compute}",
                fix="keep the shards of compute and add axes at their minor end",
            )

    def materialise(self, value: str, placement: Placement) -> str:
        """The local name of a value in a placement; made on first use, then shared."""
        if placement == self.hub[value].value:
            return self.hub_name[value]
        if (value, placement) not in self.made:
            self.made[value, placement] = self.move_all(
                value, self.hub_name[value], self.hub[value].value, placement, "value", self.forward
            )
        return self.made[value, placement]

    def move_all(
        self,
        stem: str,
        name: str,
        source: Placement,
        target: Placement,
        reason: str,
        into: list[Statement],
        final: str | None = None,
    ) -> str:
        """Emit the steps from one placement to another; returns the last name."""
        if source == target:
            return name
        steps = moves.path(source, target, self.mesh, self.lowering.moves)
        type_ = self.locals[name].type
        for index, (step, reached) in enumerate(steps):
            result = final if final and index == len(steps) - 1 else self.fresh(f"{stem}@")
            self.define(result, type_, reached)
            self.emit(Move(step, name, result, reason), into)
            name = result
        return name

    def emit(self, statement: Statement, into: list[Statement] | None = None) -> None:
        into = self.forward if into is None else into
        into.append(statement)
        if into is not self.forward:
            return
        for result in results_of(statement):
            self.maker[result] = statement
        if isinstance(statement, Move):
            if (
                (statement.reason == "value" and (statement.operand in self.again or statement.operand in self.chosen))
                or (statement.reason == "parameter" and self.plan.regather)
                or (statement.reason == "value" and statement.step.kind == "all_gather" and self.lowering.regathers)
            ):
                self.again.add(statement.result)
            return
        lets_go = isinstance(statement, Compute) and self.aliased(statement) in self.let_go
        if lets_go:
            self.let_go.update(results_of(statement))
        if lets_go or not self.chosen.isdisjoint(results_of(statement)):
            self.again.update(results_of(statement))

    def aliased(self, statement: Compute) -> str | None:
        """The operand whose storage the results share."""
        slot = self.alias[statement.op]
        return None if slot is None else statement.operands[slot]

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
        made = self.maker[op.results[0]]
        assert isinstance(made, (Compute, Ring))
        for name in (*(made.operands[slot] for slot in facts.reads), *made.results * facts.reruns):
            self.need(name)
        results = []
        for slot in wanted:
            state, value = self.required(op, slot), op.operands[slot]
            results.append(self.define(self.fresh(f"d{value}@"), self.graph.types[value], state.grad))
            self.contribute(value, state.grad, results[-1])
        if isinstance(made, Ring):
            self.backward.append(
                replace(made, outputs=made.results, grads=grads, wanted=wanted, results=tuple(results))
            )
            return
        self.backward.append(
            Gradient(made.signature, made.strategy, made.operands, made.results, grads, wanted, tuple(results), op.name)
        )

    def need(self, name: str) -> None:
        """Have a forward name at hand in the backward pass: kept, or computed again here."""
        if name not in self.again or name in self.redone:
            return
        statement = self.maker[name]
        for operand in operands_of(statement):
            self.need(operand)
        self.redone |= set(results_of(statement))
        self.backward.append(statement)

    def collect(self, value: str, required: bool) -> str | None:
        """Add up the gradients of a value, in the hub's placement, then bring the sum home."""
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
            name = self.add(value, names, placement)
            at_hub.append(self.move_all(f"d{value}", name, placement, hub, "gradient", self.backward))
        name = self.add(value, at_hub, hub)
        return self.move_all(f"d{value}", name, hub, home, "gradient", self.backward)

    def add(self, value: str, names: Sequence[str], placement: Placement) -> str:
        if len(names) == 1:
            return names[0]
        name = self.define(self.fresh(f"d{value}+"), self.graph.types[value], placement)
        self.backward.append(Add(tuple(names), name))
        return name

    # the result

    def program(self) -> BodyProgram:
        sync: list[Statement] = []
        publish: list[Statement] = []
        slots = tuple(self.slot(param, sync, publish) for param in self.graph.params)
        return BodyProgram(
            name=self.plan.name,
            body=self.plan.body,
            mesh=self.mesh,
            locals=self.locals,
            inputs=tuple(item.value for item in self.graph.inputs),
            outputs=tuple(self.hub_name[value] for value in self.graph.outputs),
            params=slots,
            forward=tuple(self.forward),
            backward=tuple(self.backward),
            output_grads=tuple(self.output_grads),
            input_grads=tuple(self.grad_of[item.value] for item in self.graph.inputs),
            kept=self.kept(),
            updates=tuple(
                replace(u, value=self.materialise(u.value, Placement.replicated(len(self.graph.types[u.value].shape))))
                for u in self.graph.updates
            ),
            sync=tuple(sync),
            publish=tuple(publish),
            kernels=self.lowering.kernels,
        )

    def slot(self, param: Param, sync: list[Statement], publish: list[Statement]) -> ParamSlot:
        """Where a parameter is stored, and the statements that bring its gradient there and its update back. A gradient
        that is stored as it is computed is added up unreduced over the micro-batches, and reduced once, straight to
        the optimizer's shards; one that is stored in finer shards is reduced to them after every micro-batch."""
        compute, value, type_ = self.home[param.value].value, param.value, self.graph.types[param.value]
        storage = self.storage.get(param.path, Storage(param.path, compute, compute, compute))
        grad = self.grad_of[value]
        held = ParamSlot(
            param.path, value, self.stored_name(param), storage.grads, storage.optimizer, buffer=param.buffer
        )
        if grad is None:
            return held
        for placement in (storage.grads, storage.optimizer):
            self.check_refines(param, placement, compute)
        held_in = self.home[value].grad
        if storage.grads != compute:
            grad = self.move_all(f"d{value}", grad, held_in, storage.grads, "sync", self.backward)
            held_in = storage.grads
        synced = self.move_all(f"d{value}", grad, held_in, storage.optimizer, "sync", sync)
        updated = self.define(f"{value}!updated", type_, storage.optimizer)
        published = self.move_all(f"{value}!", updated, storage.optimizer, storage.params, "update", publish)
        return replace(held, grad=grad, synced=synced, updated=updated, published=published)

    def stored_name(self, param: Param) -> str:
        stored = f"{param.value}!stored"
        return stored if stored in self.locals else param.value

    def kept(self) -> tuple[Kept, ...]:
        resident = {self.stored_name(param) for param in self.graph.params}
        resident |= {param.value for param in self.graph.params if self.plan.regather}
        passes = Passes(
            forward=self.forward,
            backward=self.backward,
            locals=self.locals,
            mesh=self.mesh,
            outputs=tuple(self.hub_name[value] for value in self.graph.outputs),
            alias=self.alias,
            sizes={op: dict(applied.sizes) for op, applied in self.applied.items()},
            resident=frozenset(resident),
            again=frozenset(self.redone),
            params=frozenset(param.value for param in self.graph.params),
        )
        return kept(passes, self.lowering.kernels)
