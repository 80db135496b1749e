"""Storages: where the names of a body program lie, and one walk over a list of its statements.

A *storage* is what the allocator hands out. `Names` says what a name takes and which names share one (the rules stand
in `liveness`); its `walk` gives results their storages statement by statement, takes a storage back after the last
statement that reads it, and remembers the fullest instant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf

from meshwright.cost_models.memory.extras import extras_again
from meshwright.cost_models.memory.fullest import Fullest, Mix
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
from meshwright.ir.rules.base import Engine, Law, Rule, Signature, infer
from meshwright.ir.sharding.placement import Placement
from meshwright.ir.target.workload import Workload

Shared = tuple[str, tuple[int, ...], Placement]
"""What tells two inputs without gradient apart: dtype, shape on a rank, placement."""


_NEARLY = 1 - 1e-9
"""Of a sum: what rounding cannot take from it."""


def shared(body: BodyProgram, name: str) -> Shared:
    """What tells an input or output apart."""
    local = body.locals[name]
    return local.type.dtype, local.placement.local_shape(local.type.shape, body.mesh), local.placement


class Names:
    """What the names of one body program take under one workload."""

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
        """Bytes that are there while a statement runs, and are no value of the program."""
        if (
            self.runtime.style == "eager"
            and not self.logits
            and takes_two_steps(statement, self.logits_names, self.exps_again)
        ):
            return self.size(statement.results[0])
        return self.modules.beside(statement, self.size, self.graded) if self.modules.ops else 0.0

    def graded(self, name: str) -> float:
        """Bytes of a parameter's gradient, if it has one, as it is made."""
        return self.elements(name) * self.states.used if name in self.trained else 0.0

    def shared(self, name: str) -> Shared:
        return shared(self.body, name)

    def own(self, statement: Statement, *, backward: bool) -> Mapping[str, float]:
        """What an operator keeps of its own, with bytes."""
        if not isinstance(statement, Compute | Ring) or (isinstance(statement, Ring) and statement.backward):
            return {}
        if backward:
            return {name: size for name, size in self.again.get(statement.op, {}).items() if name not in self.kept}
        return {name: self.kept[name] for name in self.extras.get(statement.op, ()) if name in self.kept}

    # what names are

    def made_for_weights(self) -> set[str]:
        """Gradients of parameters."""
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
        """These values, their gradients, and what gradients become on their way."""
        found = set(values)
        for statement in self.body.backward:
            if isinstance(statement, Gradient):
                made = zip(statement.wanted, statement.results, strict=True)
                found |= {name for slot, name in made if statement.operands[slot] in found}
            elif isinstance(statement, (Move, Add)) and found.intersection(operands_of(statement)):
                found.add(statement.result)
        return found

    def logits_like(self) -> set[str]:
        """In a body that ends in a loss: the last product and whatever is made of it, as large as it is, forward and
        backward."""
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
        """For everything that lies where the logits lie, the logits; empty where losses are not fused."""
        self.logits_names = self.logits_like()
        if not self.runtime.fused_loss or not self.logits_names:
            return {}
        root = next(name for s in self.body.forward for name in results_of(s) if name in self.logits_names)
        return dict.fromkeys(self.logits_names, root)

    def taking_nothing(self) -> set[str]:
        """Parameters, units, tables; main gradients that are written straight."""
        piecewise = self.runtime.piecewise and bool(self.reduces)
        straight = piecewise or (self.runtime.placeholders and self.repeated)
        return self.resident | self.gathers | self.reduces | self.tables | (self.weight_grads if straight else set())

    # storages

    def kept_storages(self) -> dict[str, float]:
        """Everything kept, by storage, units and tables left out."""
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
        """What a statement needs at hand; an operator's own extras under the names that `Kept` gives them."""
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
        """What autograd has at hand for a derivative: what kernels keep for it. Compilers read what they like."""
        if self.runtime.style == "eager":
            ring = isinstance(statement, Ring)
            saves = saves_of(statement.signature, statement.wanted, self.body.kernels, in_ring=ring)
            sides = {"operand": statement.operands, "result": statement.outputs}
            return tuple(sides[save.what][save.index] for save in saves if save.what in sides)
        slots, reruns = _read(statement.signature, statement.wanted)
        return (*(statement.operands[slot] for slot in slots), *(statement.outputs if reruns else ()))

    def copies(self, operands: tuple[str, ...]) -> tuple[str, ...]:
        """What is kept of these as copies."""
        if not self.body.kernels.copied:
            return ()
        return tuple(name + COPY for name in operands if name + COPY in self.kept)

    def walk(self, statements: Sequence[Statement], begin: dict[str, float], stay: set[str]) -> Fullest:
        """The fullest instant of a list that begins with some storages and leaves the names in `stay`."""
        return _List(self, statements, begin, stay).run()


class _List:
    """One walk: allocates and frees, and remembers the fullest instant."""

    def __init__(self, of: Names, statements: Sequence[Statement], begin: dict[str, float], stay: set[str]) -> None:
        self.of, self.statements, self.stay = of, statements, stay
        self.inside = of.interiors(statements, {*stay, *of.kept}) | of.inner
        self.size: dict[str, float] = dict(begin)
        self.kind: dict[str, str] = {}
        self.backward = statements is not of.body.forward
        self.last: dict[str, int] = {}
        for index, statement in enumerate(statements):
            for name in of.reads(statement):
                self.last[name] = index
        self.views = self.forward_views() if self.backward else {}
        self.through = self.followers()
        self.owner: dict[str, str] = {}
        self.home: dict[str, str] = {}
        """For every name that holds on to a storage, which."""
        self.lying: dict[str, set[str]] = {}
        """The same by storage."""
        self.until: dict[str, float] = {}
        """The last statement that reads a storage, as far as that was asked for since names came to it or went."""
        self.changed: set[str] = set()
        """Storages that names came to, or left, since the last statement."""
        for name in begin:
            self.own(name, name)
        self.spared = {at for at in of.kept if self.backward and not self.ever_read(at)}

    def forward_views(self) -> dict[str, str]:
        """For names of the forward pass, the kept storage that they are views of."""
        owner: dict[str, str] = {}
        for statement in self.of.body.forward:
            if isinstance(statement, Compute) and rule_of(statement).engine is Engine.VIEW:
                base = statement.operands[0]
                owner |= dict.fromkeys(statement.results, owner.get(base, base))
        return owner

    def followers(self) -> dict[str, list[str]]:
        """For every name, those that lie where it lies, as long as they are not made themselves."""
        found: dict[str, list[str]] = {}
        for name, base in (*self.views.items(), *self.of.logits.items()):
            found.setdefault(base, []).append(name)
        return found

    def storage(self, name: str) -> str | None:
        """Where a name lies, if that is counted here."""
        if name in self.of.logits:
            name = self.of.logits[name]
        if name not in self.owner and name in self.views:
            name = self.views[name]
        return self.owner.get(name)

    def own(self, name: str, at: str) -> None:
        """Have a name lie in a storage; what follows it comes along."""
        self.owner[name] = at
        self.settle(name)
        if name in self.through:
            near = self.through[name]
            far = [one for other in near for one in self.through.get(other, ()) if one != name and one not in near]
            for one in (*near, *far):
                self.settle(one)

    def settle(self, name: str) -> None:
        """Note where a name lies now. Names that are not made yet, or were made forward, count for the storage that
        they are views of, no other."""
        at = self.storage(name)
        if name not in self.owner and at not in (self.views.get(name), self.of.logits.get(name)):
            at = None
        before = self.home.get(name)
        if at == before:
            return
        if before is not None:
            self.lying[before].discard(name)
            self.until.pop(before, None)
            self.changed.add(before)
        if at is None:
            del self.home[name]
            return
        self.home[name] = at
        self.lying.setdefault(at, set()).add(name)
        self.until.pop(at, None)
        self.changed.add(at)

    def run(self) -> Fullest:
        most, total = self.sums()
        now = total  # added up as it comes: near enough to tell when to sum anew
        recomputing = routed = False
        due: dict[float, list[str]] = {}
        for index, statement in enumerate(self.statements):
            made, beside = self.make(statement, index), self.of.beside(statement)
            now += made
            if (made or beside) and now + beside >= total * _NEARLY:
                sums, now = self.sums()
                if now + beside > total:
                    most, total = sums | {"transient": sums["transient"] + beside}, now + beside
                    recomputing = self.backward and isinstance(statement, (Compute, Ring))
                    routed = isinstance(statement, Compute | Gradient) and statement.op in self.of.routing.ops
            for at in (*self.changed, *due.pop(index, ())):
                if at not in self.size or at in self.spared:
                    continue
                if self.needed(at, index):
                    due.setdefault(self.until[at], []).append(at)
                else:
                    now -= self.size.pop(at)
            self.changed.clear()
        return Fullest(Mix(**most), recomputing, routed)

    def make(self, statement: Statement, index: int) -> float:
        """Give the results of a statement their storages; the bytes of those that are new."""
        new = 0.0
        for position, name in enumerate(results_of(statement)):
            at = self.lies(statement, position, name, index)
            if at is not None:
                self.own(name, at)
                continue
            if name in self.of.free or name in self.inside:
                continue
            root = self.of.logits.get(name, name)
            self.own(root, root)
            if name != root:
                self.own(name, root)
            if root not in self.size:
                self.size[root] = self.of.size(root)
                self.kind[root] = self.kind_of(root, statement)
                self.changed.add(root)
                new += self.size[root]
        for name, size in self.of.own(statement, backward=self.backward).items():
            self.own(name, name)
            self.size[name], self.kind[name] = size, "recomputed" if self.backward else "activations"
            self.changed.add(name)
            new += size
        return new

    def kind_of(self, name: str, statement: Statement) -> str:
        if name in self.of.logits_names:
            return "logits"
        if not self.backward and name in self.of.kept:
            return "activations"
        if self.backward and isinstance(statement, (Compute, Ring)) and not getattr(statement, "wanted", ()):
            return "recomputed"
        return "transient"

    def lies(self, statement: Statement, position: int, name: str, index: int) -> str | None:
        """The storage that a result shares, if it does: views, gradients handed through, sums in place."""
        if isinstance(statement, Compute) and rule_of(statement).engine is Engine.VIEW:
            return self.storage(statement.operands[0])
        if isinstance(statement, Gradient) and len(statement.grads) == 1 and statement.grads[0]:
            rule = rule_of(statement)
            through = rule.engine is Engine.VIEW or (
                rule.laws[statement.wanted[position]] is Law.ADDITIVE and rule.elementwise
            )
            if not through:
                return None
            grad = statement.grads[0]
            at = self.storage(grad)
            return at if at is not None and self.of.size(grad) == self.of.size(name) else None
        if isinstance(statement, Add) and self.of.inner.isdisjoint(statement.operands):
            for operand in statement.operands:
                at = self.storage(operand)
                if at is not None and at not in self.of.kept and not self.needed(at, index):
                    return at
        return None

    def needed(self, at: str, index: int) -> bool:
        """Whether a storage is read after a statement, or stays."""
        until = self.until.get(at)
        if until is None:
            until = self.until[at] = max(map(self.ends, self.lying.get(at, ())), default=-1)
        return until > index

    def ends(self, name: str) -> float:
        """The last statement that reads a name."""
        return inf if name in self.stay else self.last.get(name, -1)

    def ever_read(self, at: str) -> bool:
        return at in self.last or any(name in self.last for name in self.through.get(at, ()))

    def sums(self) -> tuple[dict[str, float], float]:
        """Bytes by the names of `Mix`, and all of them."""
        sums = {"activations": 0.0, "recomputed": 0.0, "transient": 0.0, "logits": 0.0}
        kept, logits, kind = self.of.kept, self.of.logits_names, self.kind
        for name, size in self.size.items():
            of = "logits" if name in logits else "activations" if name in kept else kind.get(name, "transient")
            sums[of] += size
        return sums, sums["activations"] + sums["recomputed"] + sums["transient"] + sums["logits"]


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
