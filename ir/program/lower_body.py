"""Lowering one body: from a block's graph and its plan to the statements that one rank executes.

1. *Spread* the operators over the mesh: both passes, with the reshards between operators
(`meshwright.ir.program.spread`). 2. *Gather.* Parameters that are stored in finer shards than operators want are
gathered before the first operator. 3. *Again.* What must be computed again in the backward pass (recomputation,
gathered parameters) is emitted just before the first derivative that reads its value (`Rule.reads`): the sum that ends
a block is not made again. What is kept of the forward pass depends on the kernels that run it
(`meshwright.ir.program.kept`). 4. *Store.* Gradients go to where they are stored, and updated parameters back.

Each of these is made once for all plans that are alike in what it depends on, so that programs of plans that differ in
storage or recomputation share statements, and often whole lists, as the same objects: what is derived from those can be
shared too (`meshwright.cost_models.ledger.ledger`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from meshwright.ir.decisions.decisions import BodyPlan, Storage
from meshwright.ir.errors import StorageConflict
from meshwright.ir.graph.graph import Graph, Param
from meshwright.ir.program.kept import Passes, kept, saves_of
from meshwright.ir.program.program import (
    BodyProgram,
    Compute,
    Kept,
    Kernels,
    Local,
    Move,
    ParamSlot,
    Statement,
    operands_of,
    results_of,
)
from meshwright.ir.program.spread import Spread, spread_of
from meshwright.ir.same import Same
from meshwright.ir.sharding import reshard as moves
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement
from meshwright.ir.sharding.rewrite import facts_of
from meshwright.ir.target.workload import Stack


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
    sums_first: bool = False
    """Gradients are summed over axes inside of those that cut their storage before they are scattered over these, at
    once over all of them (as FSDP2 does with DTensors), not in the order of least traffic. Axes outside of them sum
    what is scattered. Of a body's parameters all are gathered again for the backward pass, or none."""
    adds_first: bool = True
    """Gradients that several operators leave of one value are added before they are reduced, not each reduced."""
    in_turn: bool = False
    """Gradients are added up over micro-batches before they are summed over axes that cut the batch; over others they
    are summed in every micro-batch."""
    waiting: tuple[str, ...] | None = None
    """The axes over which sums of gradients wait for the last micro-batch; None: all. `lower` finds those of `in_turn`,
    where there are several micro-batches."""
    reduces_last: bool = False
    """In a pipeline no gradients are reduced before all backward passes are done, whatever the stack hides."""
    casts: bool = False
    """With `sums_first`: what is computed with is made in another dtype of what is stored (FSDP2's mixed precision), so
    that gradients of copies, too, are summed along the outermost axis apart, after the others."""
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
    spread = spread_of(Same(graph), plan.strategies, plan.states, mesh, lowering.moves, lowering.adds_first)
    spread = _gathered(Same(spread), _finer(spread, plan))
    if lowering.copied and any(spread.graph.types[value].shape == () for value in spread.graph.outputs):
        lowering = replace(lowering, copied="")  # the head multiplies in the dtype it was traced in
    ran = _ran(Same(spread), plan.recompute, plan.regather, lowering)
    stored = _stored(Same(spread), plan.name, plan.storage, lowering)
    return BodyProgram(
        name=plan.name,
        body=plan.body,
        mesh=mesh,
        locals=stored.locals,
        inputs=tuple(item.value for item in spread.graph.inputs),
        outputs=spread.outputs,
        params=stored.slots,
        forward=spread.forward,
        backward=(*ran.backward, *stored.sharded) if stored.sharded else ran.backward,
        output_grads=spread.output_grads,
        input_grads=tuple(spread.grad_of[item.value] for item in spread.graph.inputs),
        kept=ran.kept,
        updates=spread.updates,
        sync=stored.sync,
        publish=stored.publish,
        kernels=lowering.kernels,
    )


# Gathers -------------------------------------------------------------------------------------------------------------

Finer = tuple[tuple[Param, Placement], ...]
"""The parameters that are stored otherwise than operators want them, and how."""


def _finer(spread: Spread, plan: BodyPlan) -> Finer:
    params = {param.path: param for param in spread.graph.params}
    found = []
    for item in plan.storage:
        param = params.get(item.path)
        if param is not None and item.params != spread.home[param.value].value:
            _check_refines(plan.name, param, item.params, spread.home[param.value].value)
            found.append((param, item.params))
    return tuple(found)


def _check_refines(plan: str, param: Param, stored: Placement, compute: Placement) -> None:
    fits = not stored.partial and all(
        longer[: len(shorter)] == shorter for longer, shorter in zip(stored.dims, compute.dims, strict=True)
    )
    if not fits:
        raise StorageConflict(
            place=f"plan {plan}, {param.path}",
            cause=f"{stored} does not refine {compute}",
            fix="keep the shards of compute and add axes at their minor end",
        )


@lru_cache(maxsize=8192)
def _gathered(key: Same[Spread], finer: Finer) -> Spread:
    """The passes with parameters gathered before the first operator."""
    spread = key.of
    if not finer:
        return spread
    names, gathers = spread.names.copy(), list[Statement]()
    for param, placement in finer:
        value = param.value
        name = names.define(_stored_name(value), spread.graph.types[value], placement)
        names.move_all(name, name, placement, spread.home[value].value, "parameter", gathers, final=value)
    forward = (*spread.forward[: spread.entered], *gathers, *spread.forward[spread.entered :])
    return replace(spread, forward=forward, names=names, gathered=frozenset(param.value for param, _ in finer))


def _stored_name(value: str) -> str:
    """The local name of a parameter's stored form, if operators want another."""
    return f"{value}!stored"


# What runs again -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Ran:
    """The backward pass with everything that is recomputed in it, and the values saved for it."""

    backward: tuple[Statement, ...]
    kept: tuple[Kept, ...]


@lru_cache(maxsize=8192)
def _ran(key: Same[Spread], recompute: tuple[str, ...], regather: bool, lowering: Lowering) -> _Ran:
    return _Again(key.of, recompute, regather, lowering).ran()


class _Again:
    """The recomputation of values that are not saved for the backward pass."""

    def __init__(self, spread: Spread, recompute: Sequence[str], regather: bool, lowering: Lowering) -> None:
        self.spread, self.lowering, self.regather = spread, lowering, regather
        self.alias = {op.name: op.alias for op in spread.graph.ops}
        again = frozenset(recompute)
        inside = (op for op in spread.graph.ops if spread.expanded_from.get(op.name) in again)
        self.chosen = again | {value for op in inside for value in op.results}
        self.again: set[str] = set()
        """What the backward pass computes again, as far as it needs it."""
        self.let_go = set(spread.gathered) if regather else set[str]()
        """Gathered parameters that are not kept for the backward pass, and views of them, which would keep them."""
        self.maker: dict[str, Statement] = {}
        self.redone: set[str] = set()
        self.backward: list[Statement] = []

    def ran(self) -> _Ran:
        spread = self.spread
        if self.chosen or self.let_go or self.lowering.regathers:
            for statement in spread.forward:
                self.mark(statement)
        if not self.again:
            return _Ran(spread.backward, self.kept(spread.backward))
        for statement, reads in zip(spread.backward, spread.reads, strict=True):
            for name in reads:
                self.need(name)
            self.backward.append(statement)
        if self.lowering.sums_first and not self.redone.isdisjoint(spread.gathered):
            for name in sorted(spread.gathered):
                self.need(name)
        return _Ran(tuple(self.backward), self.kept(self.backward))

    def mark(self, statement: Statement) -> None:
        """Note the results of a forward statement, and whether they are recomputed."""
        for result in results_of(statement):
            self.maker[result] = statement
        if isinstance(statement, Move):
            if (
                (statement.reason == "value" and (statement.operand in self.again or statement.operand in self.chosen))
                or (statement.reason == "parameter" and self.regather)
                or (statement.reason == "value" and statement.step.kind == "all_gather" and self.lowering.regathers)
            ):
                self.again.add(statement.result)
            return
        lets_go = isinstance(statement, Compute) and self.aliased(statement) in self.let_go
        if lets_go:
            self.let_go.update(results_of(statement))
        if lets_go or not self.chosen.isdisjoint(results_of(statement)) or self.taken_along(statement):
            self.again.update(results_of(statement))

    def taken_along(self, statement: Statement) -> bool:
        """Whether attention runs again since what it attends to does: in eager execution the policy of a checkpoint
        knows it by its kernel, and one that is written out has none."""
        if not isinstance(statement, Compute) or statement.signature.kind != "attention":
            return False
        within = self.again.issuperset(statement.operands[:3]) and self.lowering.style == "eager"
        wanted = facts_of(self.spread.graph)[statement.op].wanted
        saves = saves_of(statement.signature, wanted, self.lowering.kernels, in_ring=False) if within and wanted else ()
        return bool(saves) and all(save.what != "result" for save in saves)

    def aliased(self, statement: Compute) -> str | None:
        """The operand whose storage the results share."""
        slot = self.alias[statement.op]
        return None if slot is None else statement.operands[slot]

    def need(self, name: str) -> None:
        """Provide a forward name to the backward pass: saved, or recomputed here."""
        waits = [name] * self.lacks(name)
        while waits:
            statement = self.maker[waits[-1]]
            missing = next((operand for operand in operands_of(statement) if self.lacks(operand)), None)
            if missing is not None:
                waits.append(missing)
                continue
            self.redone |= set(results_of(statement))
            self.backward.append(statement)
            waits.pop()

    def lacks(self, name: str) -> bool:
        return name in self.again and name not in self.redone

    def kept(self, backward: Sequence[Statement]) -> tuple[Kept, ...]:
        spread, params = self.spread, self.spread.graph.params
        resident = {_stored_name(value) if value in spread.gathered else value for value in (p.value for p in params)}
        resident |= {param.value for param in params if self.regather}
        passes = Passes(
            forward=spread.forward,
            backward=backward,
            locals=spread.names.locals,
            mesh=spread.names.mesh,
            outputs=spread.outputs,
            alias=self.alias,
            sizes=spread.sizes,
            resident=frozenset(resident),
            again=frozenset(self.redone),
            params=frozenset(param.value for param in params),
        )
        return kept(passes, self.lowering.kernels)


# States of training --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Stored:
    """The storage of parameters, gradients and optimizer states, with the statements that move them there."""

    locals: Mapping[str, Local]
    slots: tuple[ParamSlot, ...]
    sharded: tuple[Statement, ...]
    """Gradients on their way to finer shards after every micro-batch."""
    sync: tuple[Statement, ...]
    publish: tuple[Statement, ...]


@lru_cache(maxsize=8192)
def _stored(key: Same[Spread], plan: str, storage: tuple[Storage, ...], lowering: Lowering) -> _Stored:
    return _Storing(key.of, plan, storage, lowering).stored()


class _Storing:
    """The statements that move gradients to storage, and updated parameters back."""

    def __init__(self, spread: Spread, plan: str, storage: Sequence[Storage], lowering: Lowering) -> None:
        self.spread, self.plan, self.lowering = spread, plan, lowering
        self.storage = {item.path: item for item in storage}
        self.names = spread.names.copy()
        self.sharded: list[Statement] = []
        self.sync: list[Statement] = []
        self.publish: list[Statement] = []

    def stored(self) -> _Stored:
        slots = tuple(self.slot(param) for param in self.spread.graph.params)
        return _Stored(self.names.locals, slots, tuple(self.sharded), tuple(self.sync), tuple(self.publish))

    def slot(self, param: Param) -> ParamSlot:
        """Where a parameter is stored, and the statements that bring its gradient there and its update back. A gradient
        that is stored as it is computed is added up unreduced over the micro-batches, and reduced once, straight to
        the optimizer's shards; one that is stored in finer shards is reduced to them after every micro-batch."""
        home, value, type_ = self.spread.home[param.value], param.value, self.spread.graph.types[param.value]
        compute, move_all = home.value, self.names.move_all
        storage = self.storage.get(param.path, Storage(param.path, compute, compute, compute))
        grad = self.spread.grad_of[value]
        stored = _stored_name(value) if value in self.spread.gathered else value
        held = ParamSlot(param.path, value, stored, storage.grads, storage.optimizer, buffer=param.buffer)
        if grad is None:
            return held
        for placement in (storage.grads, storage.optimizer):
            _check_refines(self.plan, param, placement, compute)
        held_in = home.grad
        if storage.grads != compute:
            grad = self.scattered(value, grad, held_in, storage.grads, self.sharded)
            held_in = storage.grads
        elif self.lowering.waiting is not None:
            left = tuple(part for part in held_in.partial if part.axis in self.lowering.waiting)
            summed = Placement(held_in.dims, left)
            grad, held_in = move_all(f"d{value}", grad, held_in, summed, "sync", self.sharded), summed
        synced = self.scattered(value, grad, held_in, storage.optimizer, self.sync)
        updated = self.names.define(f"{value}!updated", type_, storage.optimizer)
        published = move_all(f"{value}!", updated, storage.optimizer, storage.params, "update", self.publish)
        return replace(held, grad=grad, synced=synced, updated=updated, published=published)

    def scattered(self, value: str, grad: str, held_in: Placement, target: Placement, into: list[Statement]) -> str:
        """A gradient, moved to the shards of `target`."""
        if self.lowering.sums_first:
            order = self.names.mesh.names
            summed_over = [order.index(part.axis) for part in held_in.partial]
            outermost = min(summed_over) if self.lowering.casts and summed_over else -1
            inner = max((at for at in summed_over if target.on(order[at]) is not None), default=outermost)
            left = tuple(part for part in held_in.partial if order.index(part.axis) <= inner)
            summed = Placement(held_in.dims, left)
            grad, held_in = self.names.move_all(f"d{value}", grad, held_in, summed, "sync", into), summed
        return self.names.move_all(f"d{value}", grad, held_in, target, "sync", into, at_once=self.lowering.sums_first)
