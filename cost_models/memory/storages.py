"""Storages: the memory of the names of a body program, and one walk over a list of its statements.

A *storage* is what the allocator hands out. `Names` says what a name takes and which names share one (the rules stand
in `liveness`); its `walk` gives results their storages statement by statement, takes a storage back after the last
statement that reads it, and remembers the fullest instant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from meshwright.cost_models.memory.extras import extras_again
from meshwright.cost_models.memory.losses import exponentials, inside_losses, made_again, takes_two_steps
from meshwright.cost_models.memory.routing import NOTHING, routing_of
from meshwright.ir.program.kept import COPY, saves_of
from meshwright.ir.program.program import (
    Add,
    BodyProgram,
    Compute,
    Gradient,
    Move,
    Ring,
    Statement,
    operands_of,
    results_of,
)
from meshwright.ir.rules.base import Engine, Law, Rule, Signature
from meshwright.ir.rules.registry import infer
from meshwright.ir.sharding.placement import Placement
from meshwright.ir.target.workload import Workload

Shared = tuple[str, tuple[int, ...], Placement]
"""What tells two inputs without gradient apart: dtype, shape on a rank, placement."""


def shared(body: BodyProgram, name: str) -> Shared:
    """The key of an input or output that tells it apart."""
    local = body.locals[name]
    return local.type.dtype, local.placement.local_shape(local.type.shape, body.mesh), local.placement


class Step(NamedTuple):
    """One statement of a list, as walks over storages take it."""

    results: tuple[str, ...]
    lies: tuple[str | None, ...]
    """For every result the name whose storage it shares, if that has one: views, and gradients handed through."""
    sums: tuple[str, ...]
    """The operands whose storage the result may take: of sums, which are written in place."""
    own: tuple[tuple[str, float], ...]
    """Extras that the operator keeps, and their bytes."""
    beside: float
    """Bytes of temporaries that are no values of the program."""
    computes: bool
    """Whether it runs an operator, forward or as a ring."""
    recomputes: bool
    """Whether it does so for its values, not for gradients."""
    routed: bool
    """Whether experts run."""


class Names:
    """The memory of one body program's names under one workload."""

    def __init__(self, body: BodyProgram, workload: Workload, repeated: bool) -> None:
        self.body, self.workload, self.repeated = body, workload, repeated
        self.runtime, self.states = workload.stack, workload.states
        self.statements = (*body.forward, *body.backward)
        self.slots = [slot for slot in body.params if not slot.buffer]
        self.trained = {slot.value for slot in self.slots if slot.grad}
        self.resident = {name for slot in body.params for name in (slot.value, slot.stored)}
        self.gathers = {s.result for s in self.statements if isinstance(s, Move) and s.reason == "parameter"}
        self.reduces = {s.result for s in body.backward if isinstance(s, Move) and s.reason == "sync"}
        self.weight_grads = self.made_for_weights()
        self.routing = routing_of(body)
        self.routed = self.sent_to_experts()
        self.modules = self.routing if self.runtime.style == "eager" else NOTHING
        """What of it runs as modules of their own."""
        self.logits = self.fused_logits()
        self.tables = {name for name, grad in zip(body.inputs, body.input_grads, strict=True) if grad is None}
        self.free = self.taking_nothing()
        kernels = self.runtime.style == "eager" and not self.logits
        self.exps = exponentials(body, self.logits_names) if kernels else {}
        self.inner = inside_losses(body, self.exps)
        self.exps_again = made_again(body, self.exps, self.inner)
        self.kept = self.kept_storages()
        self.waiting = {kept.name for kept in body.kept if kept.host and kept.name in self.kept}
        """Of it, what waits in the host's memory."""
        self.extras: dict[str, list[str]] = {}
        """What operators keep of their own."""
        for name in self.kept:
            op, mark, _ = name.partition("!")
            if mark:
                self.extras.setdefault(op, []).append(name)
        self.again = {op: dict(sizes) for op, sizes in extras_again(body).items()}
        if self.modules.looped and self.modules.weighted not in self.kept:
            self.again.setdefault(self.modules.last, {})[self.modules.weighted] = self.size(self.modules.returned)
        for op, sizes in self.again.items():
            self.extras.setdefault(op, []).extend(name for name in sizes if name not in self.kept)
        self.read: dict[int, tuple[str, ...]] = {}
        self.steps: tuple[dict[int, Step], dict[int, Step]] = {}, {}
        """Statements of forward lists, and of backward ones, by identity."""

    # sizes

    def elements(self, name: str) -> int:
        return self.body.elements[name]

    def size(self, name: str) -> float:
        """Bytes of a value or gradient on one rank, as if it had a storage of its own."""
        scale = self.workload.imbalance if name in self.routed else 1.0
        if name in self.weight_grads:
            return self.elements(name) * self.states.used
        return self.body.nbytes[name] * scale

    def beside(self, statement: Statement) -> float:
        """Temporaries of a statement that are no values of the program."""
        if self.runtime.style == "eager" and not self.logits and takes_two_steps(statement):
            return self.size(statement.results[0])
        return self.modules.beside(statement, self.size, self.graded) if self.modules.ops else 0.0

    def graded(self, name: str) -> float:
        """Bytes of a parameter's gradient, if it has one, as it is made."""
        return self.elements(name) * self.states.used if name in self.trained else 0.0

    def shared(self, name: str) -> Shared:
        return shared(self.body, name)

    def own(self, statement: Statement, *, backward: bool) -> Mapping[str, float]:
        """Bytes of the extras that an operator keeps."""
        if not isinstance(statement, Compute | Ring) or (isinstance(statement, Ring) and statement.backward):
            return {}
        if backward:
            return {name: size for name, size in self.again.get(statement.op, {}).items() if name not in self.kept}
        return {name: self.kept[name] for name in self.extras.get(statement.op, ()) if name in self.kept}

    # statements

    def step(self, statement: Statement, *, backward: bool) -> Step:
        """A statement as walks take it."""
        known = self.steps[backward]
        found = known.get(id(statement))
        if found is None:
            found = known[id(statement)] = self._step(statement, backward=backward)
        return found

    def _step(self, statement: Statement, *, backward: bool) -> Step:
        results = results_of(statement)
        added = isinstance(statement, Add) and self.inner.isdisjoint(statement.operands)
        computes = isinstance(statement, (Compute, Ring))
        return Step(
            results=results,
            lies=tuple(self.lies(statement, results)),
            sums=operands_of(statement) if added else (),
            own=tuple(self.own(statement, backward=backward).items()),
            beside=self.beside(statement),
            computes=computes,
            recomputes=computes and not getattr(statement, "wanted", ()),
            routed=isinstance(statement, (Compute, Gradient)) and statement.op in self.routing.ops,
        )

    def lies(self, statement: Statement, results: tuple[str, ...]) -> Iterator[str | None]:
        """For every result the name whose storage it shares: views, and gradients handed through."""
        if isinstance(statement, Compute) and rule_of(statement).engine is Engine.VIEW:
            yield from (statement.operands[0] for _ in results)
        elif isinstance(statement, Gradient) and len(statement.grads) == 1 and (grad := statement.grads[0]):
            rule = rule_of(statement)
            for slot, name in zip(statement.wanted, results, strict=True):
                alike = rule.engine is Engine.VIEW or (rule.laws[slot] is Law.ADDITIVE and rule.elementwise)
                yield grad if alike and self.size(grad) == self.size(name) else None
        else:
            yield from (None for _ in results)

    @cached_property
    def views(self) -> Mapping[str, str]:
        """The names that views of the forward pass are views of, in the end."""
        owner: dict[str, str] = {}
        for statement in self.body.forward:
            if isinstance(statement, Compute) and rule_of(statement).engine is Engine.VIEW:
                base = statement.operands[0]
                owner |= dict.fromkeys(statement.results, owner.get(base, base))
        return owner

    # what names are

    def made_for_weights(self) -> set[str]:
        """The gradients of parameters."""
        values = {slot.value for slot in self.slots}
        found = {slot.grad for slot in self.slots if slot.grad} - self.reduces
        for statement in self.body.backward:
            if isinstance(statement, Gradient):
                made = zip(statement.wanted, statement.results, strict=True)
                found |= {name for slot, name in made if statement.operands[slot] in values}
        return found

    def sent_to_experts(self) -> set[str]:
        """Values and gradients between dispatch and combine."""
        if self.workload.imbalance == 1:
            return set()
        return self.with_gradients(set(self.routing.values)) - self.weight_grads

    def with_gradients(self, values: set[str]) -> set[str]:
        """These values, their gradients, and what the gradients become on their way."""
        found = set(values)
        for statement in self.body.backward:
            if isinstance(statement, Gradient):
                made = zip(statement.wanted, statement.results, strict=True)
                found |= {name for slot, name in made if statement.operands[slot] in found}
            elif isinstance(statement, (Move, Add)) and found.intersection(operands_of(statement)):
                found.add(statement.result)
        return found

    def logits_like(self) -> set[str]:
        """Values of the size of the logits, in a body that ends in a loss: the last product and what is made of it,
        forward and backward."""
        if not self.body.outputs or self.body.locals[self.body.outputs[0]].type.shape:
            return set()
        products = [s for s in self.body.forward if isinstance(s, Compute) and rule_of(s).engine is Engine.MATMUL]
        if not products:
            return set()
        root = products[-1].results[0]
        width = self.elements(root)
        found = {root}
        for statement in self.body.forward:
            if found.intersection(operands_of(statement)):
                results = results_of(statement)
                found |= {name for name in results if self.elements(name) == width}
                found |= {
                    kept.name
                    for kept in self.body.kept
                    if kept.name.partition("!")[0] in results and kept.name not in results and kept.nbytes >= width
                }
        return self.with_gradients(found)

    def fused_logits(self) -> dict[str, str]:
        """The logits, for every name that lies in their storage; empty where losses are not fused."""
        self.logits_names = self.logits_like()
        if not self.runtime.fused_loss or not self.logits_names:
            return {}
        root = next(name for s in self.body.forward for name in results_of(s) if name in self.logits_names)
        return dict.fromkeys(self.logits_names, root)

    def taking_nothing(self) -> set[str]:
        """Names without memory of their own: parameters, units, tables; main gradients that are written directly."""
        leave_at_once = self.runtime.one_by_one and bool(self.reduces)
        straight = leave_at_once or (self.runtime.placeholders and self.repeated)
        return self.resident | self.gathers | self.reduces | self.tables | (self.weight_grads if straight else set())

    # storages

    def kept_storages(self) -> dict[str, float]:
        """All storages that are kept, without units and tables."""
        found: dict[str, float] = {}
        for kept in self.body.kept:
            if kept.name in self.exps or (kept.name in self.free and kept.name in self.body.locals):
                continue
            name = self.logits.get(kept.name, kept.name)
            if name in self.logits.values():
                found[name] = self.size(name)
            else:
                routed = kept.name.removesuffix(COPY) in self.routed
                found[kept.name] = kept.nbytes * (self.workload.imbalance if routed else 1.0)
        back = {one.name.partition("!")[0] for one in self.body.kept}
        if self.modules.looped and self.modules.back in back:
            found[self.modules.weighted] = self.size(self.modules.returned)
        return found

    def interiors(self, statements: Sequence[Statement], pinned: set[str]) -> set[str]:
        """Values and gradients that elementwise statements make for elementwise statements alone."""
        if self.runtime.style == "eager":
            return set()
        readers: dict[str, list[bool]] = {}
        for statement in statements:
            for name in self.reads(statement):
                readers.setdefault(name, []).append(_elementwise(statement))
        return {
            name
            for statement in statements
            if _elementwise(statement)
            for name in results_of(statement)
            if name not in pinned and readers.get(name) and all(readers[name])
        }

    def reads(self, statement: Statement) -> tuple[str, ...]:
        """Names that a statement needs; an operator's own extras under the names that `Kept` gives them."""
        found = self.read.get(id(statement))
        if found is None:
            found = self.read[id(statement)] = self._reads(statement)
        return found

    def _reads(self, statement: Statement) -> tuple[str, ...]:
        if not (isinstance(statement, Gradient) or (isinstance(statement, Ring) and statement.backward)):
            operands = operands_of(statement)
            logs = () if self.inner.isdisjoint(operands) else self.exps.values()
            return (*operands, *logs, *self.copies(operands))
        extras = self.extras.get(statement.op, ())
        grads = (name for name in statement.grads if name)
        return (*self.held_for(statement), *grads, *extras, *self.copies(statement.operands[:1]))

    def held_for(self, statement: Gradient | Ring) -> tuple[str, ...]:
        """Names that autograd holds for a derivative: what kernels keep for it. Compilers read what they like."""
        if self.runtime.style == "eager":
            ring = isinstance(statement, Ring)
            saves = saves_of(statement.signature, statement.wanted, self.body.kernels, in_ring=ring)
            sides = {"operand": statement.operands, "result": statement.outputs}
            return tuple(sides[save.what][save.index] for save in saves if save.what in sides)
        slots, reruns = _read(statement.signature, statement.wanted)
        return (*(statement.operands[slot] for slot in slots), *(statement.outputs if reruns else ()))

    def copies(self, operands: tuple[str, ...]) -> tuple[str, ...]:
        """Those of these names that are kept as copies."""
        if not self.body.kernels.copied:
            return ()
        return tuple(name + COPY for name in operands if name + COPY in self.kept)


@lru_cache(maxsize=65536)
def _read(signature: Signature, wanted: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
    """The operands that derivatives read, and whether they read results."""
    rule = infer(signature)
    return rule.reads(wanted), rule.reruns(wanted)


def rule_of(statement: Compute | Gradient | Ring) -> Rule:
    return infer(statement.signature)


def _elementwise(statement: Statement) -> bool:
    if not isinstance(statement, (Compute, Gradient)):
        return False
    rule = rule_of(statement)
    return rule.elementwise or rule.engine is Engine.VIEW
