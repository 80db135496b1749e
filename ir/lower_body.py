"""Lowering one body: from a block's graph and its plan to the statements that one rank executes.

1. *Spread* the operators over the mesh: both passes, with the reshards between operators (`meshwright.ir.spread`).
2. *Gather.* Parameters that are stored in finer shards than operators want are gathered before the first operator.
3. *Again.* What must be computed again in the backward pass (recomputation, gathered parameters) is emitted just before
the first derivative that reads its value (`Rule.reads`): the sum that ends a block is not made again. What is kept of
the forward pass depends on the kernels that run it (`meshwright.ir.kept`). 4. *Store.* Gradients go to where they are
stored, and updated parameters back.

Plans that split operators alike share the first, made once, and those that gather and compute again alike the next two
(`_ran`): the statements, and where nothing is added the lists, of all their programs are the same objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from meshwright.ir import reshard as moves
from meshwright.ir.decisions import BodyPlan, Storage
from meshwright.ir.errors import StorageConflict
from meshwright.ir.graph import Graph, Param
from meshwright.ir.kept import Passes, kept
from meshwright.ir.mesh import Mesh
from meshwright.ir.placement import Placement
from meshwright.ir.program import (
    BodyProgram,
    Compute,
    Kept,
    Kernels,
    Move,
    ParamSlot,
    Statement,
    operands_of,
    results_of,
)
from meshwright.ir.same import Same
from meshwright.ir.spread import Names, Spread, spread_of
from meshwright.ir.workload import Stack


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

    def __post_init__(self) -> None:
        Kernels(self.style, self.device, self.attention)

    def for_stack(self, stack: Stack) -> Lowering:
        """The same target under a software stack: its attention, its loss, what it gathers again."""
        return replace(self, attention=stack.attention, fused_loss=stack.fused_loss, regathers=stack.regathers)

    @property
    def kernels(self) -> Kernels:
        return Kernels(self.style, self.device, self.attention, self.fused_loss)


def lower_body(graph: Graph, plan: BodyPlan, mesh: Mesh, lowering: Lowering) -> BodyProgram:
    """One body as a list of statements."""
    spread = spread_of(Same(graph), plan.strategies, plan.states, mesh, lowering.moves)
    return _Stored(spread, plan, lowering).program()


# Gathers, and what runs again ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Passes:
    """A body's passes, whole but for the gradients that are brought to where they are stored."""

    names: Names
    forward: tuple[Statement, ...]
    backward: tuple[Statement, ...]
    kept: tuple[Kept, ...]


Stored = tuple[tuple[Param, Placement], ...]
"""The parameters that are stored otherwise than operators want them, and how."""


@lru_cache(maxsize=1024)
def _ran(key: Same[Spread], stored: Stored, recompute: tuple[str, ...], regather: bool, lowering: Lowering) -> _Passes:
    return _Again(key.of, stored, recompute, regather, lowering).passes()


class _Again:
    """Gathers parameters, and has run again in the backward pass what is not kept for it."""

    def __init__(
        self, spread: Spread, stored: Stored, recompute: Sequence[str], regather: bool, lowering: Lowering
    ) -> None:
        self.spread, self.lowering, self.regather = spread, lowering, regather
        self.alias = {op.name: op.alias for op in spread.graph.ops}
        self.stored = [param.value for param, _ in stored]
        self.names = spread.names.copy() if stored else spread.names
        gathers: list[Statement] = []
        for param, placement in stored:
            value = param.value
            name = self.names.define(stored_name(value), spread.graph.types[value], placement)
            home = spread.home[value].value
            self.names.move_all(name, name, placement, home, "parameter", gathers, final=value)
        self.forward = (*spread.forward[: spread.entered], *gathers, *spread.forward[spread.entered :])
        self.chosen = frozenset(recompute)
        self.again: set[str] = set()
        """What the backward pass computes again, as far as it needs it."""
        self.let_go = set(self.stored) if regather else set[str]()
        """Gathered parameters that are not kept for the backward pass, and views of them, which would keep them."""
        self.maker: dict[str, Statement] = {}
        self.redone: set[str] = set()
        self.backward: list[Statement] = []

    def passes(self) -> _Passes:
        spread = self.spread
        forward = self.forward if len(self.forward) > len(spread.forward) else spread.forward
        if self.chosen or self.let_go or self.lowering.regathers:
            for statement in forward:
                self.mark(statement)
        if not self.again:
            return _Passes(self.names, forward, spread.backward, self.kept(spread.backward))
        for statement, reads in zip(spread.backward, spread.reads, strict=True):
            for name in reads:
                self.need(name)
            self.backward.append(statement)
        return _Passes(self.names, forward, tuple(self.backward), self.kept(self.backward))

    def mark(self, statement: Statement) -> None:
        """Note what a forward statement makes, and whether that is made again."""
        for result in results_of(statement):
            self.maker[result] = statement
        if isinstance(statement, Move):
            if (
                (statement.reason == "value" and (statement.operand in self.again or statement.operand in self.chosen))
                or (statement.reason == "parameter" and self.regather)
                or (statement.step.kind == "all_gather" and self.lowering.regathers)
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

    def need(self, name: str) -> None:
        """Have a forward name at hand in the backward pass: kept, or computed again here."""
        if name not in self.again or name in self.redone:
            return
        statement = self.maker[name]
        for operand in operands_of(statement):
            self.need(operand)
        self.redone |= set(results_of(statement))
        self.backward.append(statement)

    def kept(self, backward: Sequence[Statement]) -> tuple[Kept, ...]:
        params = self.spread.graph.params
        resident = {stored_name(param.value) if param.value in self.stored else param.value for param in params}
        resident |= {param.value for param in params if self.regather}
        passes = Passes(
            forward=self.forward,
            backward=backward,
            locals=self.names.locals,
            mesh=self.names.mesh,
            outputs=self.spread.outputs,
            alias=self.alias,
            sizes=self.spread.sizes,
            resident=frozenset(resident),
            again=frozenset(self.redone),
        )
        return kept(passes, self.lowering.kernels)


def stored_name(value: str) -> str:
    """The local name of a parameter as it is stored, if that is not how operators want it."""
    return f"{value}!stored"


# States of training --------------------------------------------------------------------------------------------------


class _Stored:
    """Brings gradients to where they are stored, and updated parameters back."""

    def __init__(self, spread: Spread, plan: BodyPlan, lowering: Lowering) -> None:
        self.spread, self.plan, self.lowering = spread, plan, lowering
        self.storage: dict[str, Storage] = {item.path: item for item in plan.storage}
        self.stored = tuple(
            (param, self.storage[param.path].params)
            for param in spread.graph.params
            if param.path in self.storage and self.storage[param.path].params != spread.home[param.value].value
        )
        for param, placement in self.stored:
            self.check_refines(param, placement, spread.home[param.value].value)
        self.passes = _ran(Same(spread), self.stored, plan.recompute, plan.regather, lowering)
        self.names = self.passes.names.copy()
        self.sharded: list[Statement] = []
        """Gradients on their way to finer shards after every micro-batch."""
        self.sync: list[Statement] = []
        self.publish: list[Statement] = []

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

    def program(self) -> BodyProgram:
        spread, passes = self.spread, self.passes
        otherwise = {param.value for param, _ in self.stored}
        slots = tuple(self.slot(param, otherwise) for param in spread.graph.params)
        return BodyProgram(
            name=self.plan.name,
            body=self.plan.body,
            mesh=self.names.mesh,
            locals=self.names.locals,
            inputs=tuple(item.value for item in spread.graph.inputs),
            outputs=spread.outputs,
            params=slots,
            forward=passes.forward,
            backward=(*passes.backward, *self.sharded) if self.sharded else passes.backward,
            output_grads=spread.output_grads,
            input_grads=tuple(spread.grad_of[item.value] for item in spread.graph.inputs),
            kept=passes.kept,
            updates=spread.updates,
            sync=tuple(self.sync),
            publish=tuple(self.publish),
            kernels=self.lowering.kernels,
        )

    def slot(self, param: Param, otherwise: set[str]) -> ParamSlot:
        """Where a parameter is stored, and the statements that bring its gradient there and its update back. A gradient
        that is stored as it is computed is added up unreduced over the micro-batches, and reduced once, straight to
        the optimizer's shards; one that is stored in finer shards is reduced to them after every micro-batch."""
        home, value, type_ = self.spread.home[param.value], param.value, self.spread.graph.types[param.value]
        compute, move_all = home.value, self.names.move_all
        storage = self.storage.get(param.path, Storage(param.path, compute, compute, compute))
        grad = self.spread.grad_of[value]
        stored = stored_name(value) if value in otherwise else value
        held = ParamSlot(param.path, value, stored, storage.grads, storage.optimizer, buffer=param.buffer)
        if grad is None:
            return held
        for placement in (storage.grads, storage.optimizer):
            self.check_refines(param, placement, compute)
        held_in = home.grad
        if storage.grads != compute:
            grad = move_all(f"d{value}", grad, held_in, storage.grads, "sync", self.sharded)
            held_in = storage.grads
        synced = move_all(f"d{value}", grad, held_in, storage.optimizer, "sync", self.sync)
        updated = self.names.define(f"{value}!updated", type_, storage.optimizer)
        published = move_all(f"{value}!", updated, storage.optimizer, storage.params, "update", self.publish)
        return replace(held, grad=grad, synced=synced, updated=updated, published=published)
