"""Memory of the passes of one call of a body, by liveness over its statements.

A *storage* is what the allocator hands out; names share one (views, gradients of sums, sums written into a gradient
that dies there). `pass_memory` walks the two lists of a `BodyProgram`, statement by statement: results take their
storage, and a storage goes back after the last statement that reads it. Two walks give all that a stage needs to know:

    kept        bytes between a micro-batch's forward and its backward pass, without what calls share
    forward     the fullest instant of the forward list: inputs, what is kept so far, what dies inside
    backward    the fullest instant of the backward list, from all that is kept to the gradients that leave. Gradients
                of weights are added to those that are there; where there are none yet (`first`), they stay. Where a
                schedule computes them apart, a pass makes those of inputs alone (`inputs`)

What takes no storage of its own:

    interiors       in every style but eager: elementwise values and gradients that only elementwise statements read run
                    inside one kernel
    fused losses    (`Stack.fused_loss`) everything as large as the logits between their product and the loss, forward
                    and backward, lies where the logits lie, in their dtype
    weight gradients of stacks that write them straight to the main gradients (`Stack.placeholders`)

Inputs without gradient (rotary tables, tokens, masks) are the same tensors for all calls of a micro-batch; a stage
counts them once (`shared`).

Tokens sent to experts take `Workload.imbalance` times their mean on the busiest rank, from dispatch to combine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from meshwright.cost_models.ledger.signatures import statement_signatures
from meshwright.cost_models.memory.fullest import Fullest, Mix
from meshwright.cost_models.memory.routing import routing_of
from meshwright.cost_models.memory.storages import Names, Shared, rule_of, shared
from meshwright.cost_models.memory.walk import Walk
from meshwright.ir.program.program import BodyProgram, Compute, Gradient, Ring, Statement, operands_of, results_of
from meshwright.ir.rules.base import Engine
from meshwright.ir.target.workload import Workload, sizeless


@dataclass(frozen=True, slots=True)
class PassMemory:
    """Memory of the passes of a body program, wherever the states of its parameters lie.

    - `entered` is the part of `kept` that is the differentiable inputs, `left` the part that is outputs: storages that
      neighbouring calls may both keep, on the device.
    - `weight_kept` is what gradients of weights alone still need, where a schedule puts them off.
    """

    kept: Mix
    shared: tuple[tuple[Shared, float], ...]
    entered: tuple[tuple[Shared, float], ...]
    left: tuple[tuple[Shared, float], ...]
    forward: Fullest
    backward: Fullest
    first: Fullest
    """The backward pass that finds no gradients of weights: those that it makes stay."""
    inputs: Fullest | None
    """The pass that makes gradients of inputs alone, where a schedule has one: what is kept stays, and what gradients
    of weights need is added to it."""
    weight_kept: float
    captured: float
    """The part of `weight_kept` that is gradients."""
    beside_waiting: float
    """What is there beside `weight_kept`, at most, while gradients of weights alone are made."""
    beyond: float
    """The part of `kept` that is let go when gradients of inputs are made, if no later call has trained weights."""
    offloaded: float
    """Bytes of `kept` that wait in the host's memory, and are on the device only while the call runs."""
    entering_gradients: float
    """Bytes of the gradients of its inputs, which the backward pass leaves."""

    @property
    def has_logits(self) -> bool:
        return self.backward.held.logits > 0 or self.forward.held.logits > 0


class _Alike:
    """A body program as a key: equal to another one that runs lists of the same signatures between the same ends and
    keeps the same, as programs do that differ only in where the optimizer's states lie, or in copies."""

    __slots__ = ("body", "form")

    def __init__(self, body: BodyProgram) -> None:
        self.body = body
        ends = (*body.inputs, *body.outputs, *(name for name in (*body.input_grads, *body.output_grads) if name))
        self.form = (
            statement_signatures(body.forward, body),
            statement_signatures(body.backward, body),
            body.kept,
            (body.inputs, body.outputs, body.input_grads, body.output_grads),
            tuple([shared(body, name) for name in ends]),
            tuple([(slot.value, slot.stored, slot.grad, slot.buffer) for slot in body.params]),
            body.kernels,
            routing_of(body),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Alike) and other.form == self.form

    def __hash__(self) -> int:
        return hash(self.form)


def passes_of(body: BodyProgram, workload: Workload, repeated: bool, *, apart: bool) -> PassMemory:
    """The memory of a body program's passes, computed once for all programs of one signature."""
    return _of_signature(_Alike(body), sizeless(workload), repeated, apart)


@lru_cache(maxsize=8192)
def _of_signature(key: _Alike, workload: Workload, repeated: bool, apart: bool) -> PassMemory:
    return pass_memory(key.body, workload, repeated, apart=apart)


def pass_memory(body: BodyProgram, workload: Workload, repeated: bool, *, apart: bool = False) -> PassMemory:
    """The memory of a body program's passes, computed anew."""
    return _Passes(body, workload, repeated).summary(apart)


class _Passes(Names):
    """The passes of one body program under one workload, summed up."""

    def forward(self) -> Fullest:
        inputs = {name: self.size(name) for name in self.body.inputs if name not in self.free}
        stay = {*self.kept, *(name for name in self.body.outputs)}
        return Walk(self, self.body.forward, inputs, stay).run()

    def backward(self, *, first: bool = False) -> Fullest:
        arrive = {name: self.size(name) for name in self.body.output_grads if name}
        stay = {name for name in self.body.input_grads if name}
        if first:
            stay |= {slot.grad for slot in self.slots if slot.grad}
        again = {name: self.size(name) for name in self.exps_again}
        return Walk(self, self.body.backward, self.kept | again | arrive, stay).run()

    def inputs(self) -> Fullest:
        arrive = {name: self.size(name) for name in self.body.output_grads if name}
        again = {name: self.size(name) for name in self.exps_again}
        stay = {name for name in self.body.input_grads if name} | self.weight_kept().keys()
        stay |= {name for name in self.kept if name not in self.logits_names}
        return Walk(self, self.without_weights, self.kept | again | arrive, stay).run()

    @cached_property
    def without_weights(self) -> tuple[Statement, ...]:
        """The backward pass without gradients of weights and what becomes of them."""
        found: list[Statement] = []
        gone = set(self.apart)
        for statement in self.body.backward:
            if isinstance(statement, Gradient):
                made = zip(statement.wanted, statement.results, strict=True)
                left = [(slot, name) for slot, name in made if name not in gone]
                if left:
                    slots, names = zip(*left, strict=True)
                    found.append(replace(statement, wanted=slots, results=names))
            elif gone.isdisjoint(operands_of(statement)):
                found.append(statement)
            else:
                gone.update(results_of(statement))
        return tuple(found)

    @cached_property
    def roots(self) -> Mapping[str, frozenset[str]]:
        """Parameters behind every value that is made of parameters alone."""
        found = {slot.value: frozenset([slot.value]) for slot in self.slots}
        for statement in self.body.forward:
            if isinstance(statement, Compute) and statement.operands and found.keys() >= {*statement.operands}:
                of = frozenset[str]().union(*(found[name] for name in statement.operands))
                found |= dict.fromkeys(statement.results, of)
        return found

    @cached_property
    def apart(self) -> set[str]:
        """Weight gradients of these parameters: where they come apart, autograd stops at operators that read them and
        something else, and goes on from there later."""
        found = set(self.weight_grads)
        for statement in self.body.backward:
            if isinstance(statement, Gradient):
                results = zip(statement.wanted, statement.results, strict=True)
                found |= {name for slot, name in results if statement.operands[slot] in self.roots}
        return found

    def summary(self, apart: bool) -> PassMemory:
        logits = sum(size for name, size in self.kept.items() if name in self.logits_names)
        kept = Mix(activations=sum(self.kept.values()) - logits, logits=logits)
        outputs = {name for name, grad in zip(self.body.outputs, self.body.output_grads, strict=True) if grad}
        here = self.kept.keys() - self.waiting
        tables = {*self.tables, *(set(self.body.outputs) - outputs)}
        return PassMemory(
            kept=kept,
            shared=tuple((self.shared(name), float(self.body.nbytes[name])) for name in sorted(tables)),
            entered=tuple((self.shared(name), self.kept[name]) for name in self.body.inputs if name in here),
            left=tuple((self.shared(name), self.kept[name]) for name in sorted(outputs) if name in here),
            forward=self.forward(),
            backward=self.backward(),
            first=self.backward(first=True),
            inputs=self.inputs() if apart else None,
            weight_kept=sum(self.weight_kept().values()),
            captured=sum(size for name, size in self.weight_kept().items() if name not in self.kept),
            beside_waiting=self.beside_waiting() if apart else 0.0,
            beyond=self.beyond() if apart else 0.0,
            offloaded=sum(size for name, size in self.kept.items() if name in self.waiting),
            entering_gradients=sum(self.size(name) for name in set(self.body.input_grads) if name),
        )

    @cached_property
    def lying(self) -> Mapping[str, str]:
        """The name whose storage a name shares, its own if none."""
        owner = {name: name for name in self.body.locals}
        for statement in self.body.forward:
            if isinstance(statement, Compute) and rule_of(statement).engine is Engine.VIEW:
                owner |= dict.fromkeys(statement.results, owner[statement.operands[0]])
        return owner

    def beyond(self) -> float:
        """Values saved for operators that no operator with trained weights comes after: nobody waits for them when
        gradients of inputs are made."""
        gradients = [one for one in self.body.backward if isinstance(one, Gradient)]
        found = {one.op for one in gradients if not self.apart.isdisjoint(one.results)}
        before: set[str] = set()
        for statement in reversed(self.body.forward):
            op = statement.op if isinstance(statement, Compute | Ring) else ""
            if op in found or not before.isdisjoint(results_of(statement)):
                before.update(operands_of(statement))
                found.add(op)
        needed = {name for one in gradients if one.op in found for name in self.reads(one)}
        needed |= {self.lying.get(name, name) for name in needed}
        return sum(size for name, size in self.kept.items() if name not in self.logits_names | needed)

    @cached_property
    def needed_by(self) -> Mapping[str, Mapping[str, float]]:
        """Values that a parameter's gradient alone still needs: operands of products with it, and gradients of
        results."""
        found: dict[str, dict[str, float]] = {slot.value: {} for slot in self.slots}
        for statement in self.body.backward:
            if isinstance(statement, Gradient) and not self.apart.isdisjoint(statement.results):
                at = {self.lying.get(name, name): name for name in self.reads(statement)}
                sizes = {
                    own: self.kept.get(own, 0.0) or self.size(own)
                    for own, name in at.items()
                    if own in self.kept or name in statement.grads
                }
                for slot in statement.wanted:
                    for parameter in self.roots.get(statement.operands[slot], ()):
                        found[parameter] |= sizes
        return found

    def weight_kept(self) -> dict[str, float]:
        """Bytes that gradients of weights still need."""
        return {name: size for sizes in self.needed_by.values() for name, size in sizes.items()}

    def beside_waiting(self) -> float:
        """The most bytes beside everything that gradients of weights need, while these are made parameter by parameter:
        torch frees one when it has the next one's, with what no other one needs."""
        most = gone = before = 0.0
        left = Counter(name for sizes in self.needed_by.values() for name in sizes)
        for parameter, sizes in self.needed_by.items():
            own = self.graded(parameter)
            most, before = max(most, before + own - gone), own
            for name, size in sizes.items():
                left[name] -= 1
                gone += 0.0 if left[name] else size
        return most
