"""Micro-batches: whether the batch may be cut in time.

A step over a batch may be run as several smaller ones whose gradients are added if the loss is *additive* in the batch:
a sum over samples, or a mean, which is a sum weighted by shares. `microbatch` decides it from the rules. Every value on
the way to the loss has a kind:

    FIXED      it does not depend on the batch: parameters, tables
    SAMPLES    it runs over the batch: each part depends on its own samples only
    TOTAL      a sum over the batch
    AVERAGE    a mean over the batch, by samples or by valid tokens
    COUNT      a total without gradient, such as the number of valid tokens

An operator blocks if its result cannot be put together from the results of micro-batches:

    it needs the batch in one place, takes its maximum, picks from it by position, or normalises by its statistics
    it runs over the batch twice: it compares samples with each other (in-batch contrastive losses)
    it routes tokens to experts with a capacity that is counted over the whole batch (attribute `dropless` of dispatch
    says that the capacity is only an estimate and nothing is dropped)
    it is not linear in a total or an average, or shows one to single samples again
    it adds to a total what does not depend on the batch: every micro-batch would add it again

and a buffer blocks if its new value depends on the batch. Where nothing blocks, micro-batches change no result.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from math import prod

from meshwright.ir.analysis.loops import Atoms, Loops, atoms_of, loops
from meshwright.ir.graph.graph import Graph, Op
from meshwright.ir.rules.base import Law, Role, Rule
from meshwright.ir.rules.families.moe import routing_groups, tokens
from meshwright.ir.same import Same


class Kind(Enum):
    """The dependence of a value on the batch (see the module docstring)."""

    FIXED = "fixed"
    SAMPLES = "samples"
    TOTAL = "total"
    AVERAGE = "average"
    COUNT = "count"
    BLOCKED = "blocked"
    """It comes from an operator that blocks: nothing is known of it, so nothing more is held against it."""


_REDUCED = (Kind.TOTAL, Kind.AVERAGE, Kind.COUNT)

AVERAGING = (
    "mean", "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div",
)  # fmt: skip
"""Kinds that divide by the count of what they sum, unless attribute `reduction` says otherwise."""

COUNTING = ("cast", "clamp", "view", "expand")
"""What may be done to a count that a total is divided by; a lower limit only guards against a batch without tokens."""

ROUTING = ("dispatch", "combine")


@dataclass(frozen=True, slots=True)
class Blocker:
    """An operator that keeps the batch together: its place in the user's code, and the reason."""

    op: str
    kind: str
    module: str
    source: str
    reason: str

    def __str__(self) -> str:
        place = " ".join(
            filter(None, (f"@{self.module}" if self.module else "", f"<{self.source}>" * bool(self.source)))
        )
        return f"%{self.op} = {self.kind} {place}: it {self.reason}".replace(" :", ":")


@dataclass(frozen=True, slots=True)
class MicrobatchLegality:
    """`legal`: the batch may be cut in time. Blockers are in running order, one per operator."""

    legal: bool
    blockers: tuple[Blocker, ...] = ()


def microbatch(graph: Graph, label: str = "b") -> MicrobatchLegality:
    """Decide whether the loop that inputs label `b` may be cut in time. Without a loss, the outputs take its place."""
    walk = _Walk(graph, label)
    if not walk.batch:
        reason = f"has no dimension labelled {label!r} of more than one sample"
        return MicrobatchLegality(legal=False, blockers=(Blocker("inputs", "graph", "", "", reason),))
    found = walk.blockers()
    return MicrobatchLegality(not found, found)


class _Walk:
    """One pass over the operators that reach the loss."""

    def __init__(self, graph: Graph, label: str) -> None:
        self.graph = graph
        self.atoms = atoms_of(Same(graph))
        self.loops: Loops = loops(graph)
        self.batch = batch_atoms(self.atoms, label)
        self.kinds: dict[str, Kind] = {value: self._given(value) for value in graph.types}
        self.found: dict[str, Blocker] = {}

    def blockers(self) -> tuple[Blocker, ...]:
        reach = reaching(self.graph)
        for index, op in enumerate(self.graph.ops):
            if op.name in reach:
                self._visit(index, op)
        self._visit_updates()
        return tuple(self.found.values())

    def _given(self, value: str) -> Kind:
        return Kind.SAMPLES if self._batched(value) else Kind.FIXED

    def _batched(self, value: str) -> bool:
        return any(atom in self.batch for dim in self.atoms.dims(value) for atom in dim)

    def _visit(self, index: int, op: Op) -> None:
        kinds = [self.kinds[value] for value in op.operands]
        reason = self._reason(index, op, kinds)
        if reason:
            self._block(op, reason)
        for value in op.results:
            blocked = reason or Kind.BLOCKED in kinds
            self.kinds[value] = Kind.BLOCKED if blocked else self._result(index, op, value, kinds)

    def _visit_updates(self) -> None:
        for update in self.graph.updates:
            op = self.graph.producer.get(update.value)
            if op is not None and self.kinds[update.value] not in (Kind.FIXED, Kind.BLOCKED):
                self._block(op, f"gives buffer {update.buffer!r} a value that depends on the whole batch")

    def _block(self, op: Op, reason: str) -> None:
        self.found[op.name] = Blocker(op.name, op.kind, op.module, op.source, reason)

    # Why an operator blocks.

    def _reason(self, index: int, op: Op, kinds: list[Kind]) -> str | None:
        rule = self.atoms.rules[index]
        if op.kind in ROUTING:
            return self._routing(op, index)
        return self._loop_reason(index, op, rule) or self._twice(index, op) or self._reduced_reason(op, rule, kinds)

    def _routing(self, op: Op, index: int) -> str | None:
        """Check dispatch and combine: capacity is counted per routing group, and groups must not straddle samples."""
        if op.kind == "combine" or op.attr("dropless"):
            return None
        idx, capacity = self.graph.types[op.operands[1]], self.graph.types[op.name].shape[1]
        names = tokens(len(idx.shape) - 1)
        groups = routing_groups(dict(op.attrs), idx.shape[:-1], capacity)
        samples = [
            prod(self.atoms.size[atom] for atom in self.atoms.factor(index, name) if atom in self.batch)
            for name in names
        ]
        apart = not any(count % size for count, size in zip(groups, samples, strict=True))
        if prod(samples) == 1 or capacity >= prod(idx.shape[:-1]) or apart:
            return None
        return "routes to experts with a capacity that is counted over the whole batch"

    def _loop_reason(self, index: int, op: Op, rule: Rule) -> str | None:
        """The reason against a batch loop that is not simply parallel or summed."""
        for factor in rule.factors:
            if not self._over_batch(index, factor.name):
                continue
            if factor.role is Role.MAX:
                return "takes a maximum over the batch"
            if factor.role in (Role.WHOLE, Role.HALO):
                return "needs the whole batch in one place"
            if factor.role is Role.PARALLEL and factor.expanded:
                return "normalises by statistics of the whole batch"
            if factor.role is Role.SUM and _selects(rule, factor.name):
                return "picks from the whole batch by position"
        sectioned = [(op.operands if side == "operand" else op.results)[slot] for side, slot, *_ in rule.sections]
        dims = [dim for _, _, dim, _ in rule.sections]
        for value, dim in zip(sectioned, dims, strict=True):
            if any(atom in self.batch for atom in self.atoms.dims(value)[dim]):
                return "joins or cuts runs of the batch"
        return None

    def _twice(self, index: int, op: Op) -> str | None:
        seen: set[str] = set()
        for factor in self.atoms.rules[index].factors:
            for atom, name in zip(
                self.atoms.factor(index, factor.name), self.loops.factors[op.name][factor.name], strict=True
            ):
                if atom in self.batch and name in seen:
                    return "compares samples of the batch with each other"
                seen.add(name)
        return None

    def _reduced_reason(self, op: Op, rule: Rule, kinds: list[Kind]) -> str | None:
        """The reason against an operator on totals and averages: only linear ones, one at a time, are allowed."""
        reduced = [slot for slot, kind in enumerate(kinds) if kind in _REDUCED]
        if (
            not reduced
            or Kind.BLOCKED in kinds
            or self._by_count(op, kinds)
            or (kinds == [Kind.COUNT] and op.kind in COUNTING)
        ):
            return None
        if Kind.SAMPLES in kinds:
            return "shows a sum over the batch to single samples again"
        affine = op.kind in ("add", "sub") and len(op.operands) == 1
        laws = [rule.laws[slot] for slot in reduced]
        if affine and kinds[0] is Kind.AVERAGE:
            return None
        if any(law in (Law.NONLINEAR, Law.INDEX) for law in laws) or laws.count(Law.LINEAR) > 1:
            return "is not linear in a sum over the batch"
        if Law.ADDITIVE in laws and len(set(kinds)) > 1 and set(kinds) != {Kind.AVERAGE, Kind.FIXED}:
            return "adds to a sum over the batch what micro-batches would weigh differently"
        return None

    def _by_count(self, op: Op, kinds: list[Kind]) -> bool:
        """A total divided by a count: an average, weighed by the counts of the micro-batches."""
        return op.kind == "div" and kinds in ([Kind.TOTAL, Kind.COUNT], [Kind.COUNT, Kind.COUNT])

    # What a result is.

    def _result(self, index: int, op: Op, value: str, kinds: list[Kind]) -> Kind:
        if self._batched(value):
            return Kind.SAMPLES
        if self._by_count(op, kinds):
            return Kind.AVERAGE
        reduced = [kind for kind in kinds if kind in _REDUCED]
        if reduced:
            return reduced[0]
        if Kind.SAMPLES not in kinds:
            return Kind.FIXED
        return self._summed(index, op, value)

    def _summed(self, index: int, op: Op, value: str) -> Kind:
        """The result of an operator that sums over the batch; of samples without a batch loop, when the batch is 1."""
        if not any(self._over_batch(index, factor.name) for factor in self.atoms.rules[index].factors):
            return Kind.SAMPLES
        if op.kind in AVERAGING and op.attr("reduction", "mean") == "mean":
            return Kind.AVERAGE
        return Kind.TOTAL if value in self.graph.differentiable else Kind.COUNT

    def _over_batch(self, index: int, factor: str) -> bool:
        return any(atom in self.batch for atom in self.atoms.factor(index, factor))


def _selects(rule: Rule, factor: str) -> bool:
    """Whether the loop is taken away by an index rather than a sum: the index does not run over it."""
    indices = [dims for dims, law in zip(rule.operands, rule.laws, strict=True) if law is Law.INDEX]
    floats = [dims for dims, law in zip(rule.operands, rule.laws, strict=True) if law is not Law.INDEX]
    return bool(indices and floats) and not any(factor in dim for dims in indices for dim in dims)


def batch_atoms(atoms: Atoms, label: str) -> frozenset[int]:
    """Atoms with the label, and atoms that are images of them: the slots that tokens fill."""
    batch = {
        atom
        for item in atoms.graph.inputs
        for name, dim in zip(item.labels, atoms.dims(item.value), strict=False)
        if name == label
        for atom in dim
    }
    # Slots that batch and sequence fill together are of the batch, but do not make the sequence so.
    shared = Counter((value, dim, op) for value, dim, op, _ in atoms.images)
    grown = True
    while grown:
        before = len(batch)
        for value, dim, op, factor in atoms.images:
            if batch.intersection(atoms.factor(op, factor)):
                batch.update(atoms.dims(value)[dim])
            elif shared[value, dim, op] == 1 and batch.intersection(atoms.dims(value)[dim]):
                batch.update(atoms.factor(op, factor))
        grown = len(batch) > before
    return frozenset(batch)


def reaching(graph: Graph) -> frozenset[str]:
    """Operators, by name, that the loss, or the outputs, and the updates depend on."""
    wanted = {update.value for update in graph.updates}
    wanted |= {graph.loss} if graph.loss is not None else set(graph.outputs)
    reach = set()
    for op in reversed(graph.ops):
        if wanted.intersection(op.results):
            wanted.update(op.operands)
            reach.add(op.name)
    return frozenset(reach)
