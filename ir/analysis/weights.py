"""Weights: the share of a part of a batch in the loss of the whole batch.

Copies of a model that each run on some sequences, and micro-batches, add up their losses; so each is multiplied by its
part in the whole. That part follows from how the loss sums over the batch, and is read off the graph. Every term of it
that reduces the batch is one of

    MEAN     a mean over samples, or over elements of which each sample has as many: the samples of the part, of all
    SUM      a sum: 1
    Count    a mean over what counts: targets that are not ignored, positions that a mask lets through. Its part is
             the count of the part, of the count of all, and is counted in one entry of the batch, by `steps`

and is followed through operators that are linear in it (`a·x + b·y`, also with weights that are learned). Terms that do
not depend on the batch (penalties on parameters) belong to any mean. `weights_of` returns the distinct weights, in the
order in which the loss takes them, and refuses a loss that has no such parts:

    it is no linear function of sums over the batch: the root of a mean, a maximum, a product of two means
    it compares samples with each other, and keeps no sum over them
    sums and means, or sums and what does not depend on the batch, are added

Normalising by statistics of the batch (batch norm) is another matter: what comes of it still belongs to samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from meshwright.ir.analysis.loops import atoms_of, loops, stem
from meshwright.ir.analysis.microbatch import AVERAGING, COUNTING, batch_atoms, reaching
from meshwright.ir.errors import EmissionLoss
from meshwright.ir.graph.fold import Fold, short_of, unfold, unfolded_short
from meshwright.ir.graph.graph import Attr, Graph, Op
from meshwright.ir.rules.base import Law, Role, Rule
from meshwright.ir.same import Same

CLASSIFIED = ("cross_entropy", "nll_loss")
"""Losses whose mean is over the labels that are not ignored."""
SAME_COUNT = ("view", "transpose", "permute", "cast", "contiguous", "clone", "alias", "detach", "copy")
"""What changes nothing about how many elements of a tensor are of some value."""
COMPARED = ("ne", "eq", "lt", "le", "gt", "ge")
"""What is asked of every element, against a number."""
MOST_FOLDS = 64


@dataclass(frozen=True, slots=True)
class Step:
    """One step from an entry of the batch to what is counted: an operator on it, with its attributes."""

    kind: str
    attrs: tuple[tuple[str, Attr], ...]


@dataclass(frozen=True, slots=True)
class Weight:
    """The way in which a term of a loss sums over the batch (see the module docstring): `entry` and `steps` are those
    of a count."""

    kind: str
    entry: str = ""
    steps: tuple[Step, ...] = ()


MEAN, SUM, COUNT = Weight("mean"), Weight("sum"), "count"


@lru_cache(maxsize=MOST_FOLDS)
def weights_in(fold: Same[Fold]) -> tuple[Weight, ...]:
    """The weights of a model's loss, as it is trained. Raises `EmissionLoss`."""
    return weights_of(unfolded_short(fold).graph)


@lru_cache(maxsize=MOST_FOLDS)
def terms_in(fold: Same[Fold]) -> tuple[Weight, ...]:
    """The counts of all mean cross entropies of a model's loss, in the order in which they are called."""
    graph = unfold(fold.of)
    walk = _walked(graph, "b")
    mean = [op for op in graph.ops if op.kind in CLASSIFIED and op.attr("reduction", "mean") == "mean"]
    return tuple(walk.reduced[op.results[0]][0] for op in mean if op.results[0] in walk.reduced)


@lru_cache(maxsize=MOST_FOLDS)
def counted_in(fold: Same[Fold]) -> Mapping[tuple[str, str], Weight]:
    """Means over counted elements in a model's loss, by their bodies and values. Raises `EmissionLoss`."""
    whole, found = unfolded_short(fold), dict[tuple[str, str], Weight]()
    counts = _walked(whole.graph, "b").counts
    for call, names in zip(short_of(fold).calls(), whole.names, strict=True):
        for value, name in ((value, names[value]) for value in call.body.graph.producer):
            if name in counts and found.setdefault((call.body.name, value), counts[name]) != counts[name]:
                raise EmissionLoss(
                    place="the loss",
                    cause=f"calls of {call.body.name} take means over what counts in several entries of the batch",
                    ways=("--fix microbatches=1",),
                    fix="take these means outside of what is repeated",
                )
    return found


@lru_cache(maxsize=MOST_FOLDS)
def shows_sums(fold: Same[Fold]) -> bool:
    """Whether samples are shown sums over the batch, by which a model's own code normalises, say: what a copy makes of
    its own samples alone is something else then."""
    return _walked(unfolded_short(fold).graph, "b").shown


def weights_of(graph: Graph, label: str = "b") -> tuple[Weight, ...]:
    """The weights of the terms of a graph's loss, each once. Raises `EmissionLoss`."""
    walk = _walked(graph, label)
    loss = graph.loss or graph.outputs[0]
    if loss in walk.problems:
        raise walk.problems[loss]
    found = walk.reduced.get(loss)
    if found is None:
        raise EmissionLoss(
            place="the loss",
            cause="it " + ("has an element for every sample" if loss in walk.samples else "does not read the batch"),
            fix="let the loss be a mean, or a sum, over the samples of the batch",
        )
    return found


def _walked(graph: Graph, label: str) -> _Walk:
    walk, reach = _Walk(graph, label), reaching(graph)
    for index, op in enumerate(graph.ops):
        if op.name in reach:
            walk.visit(index, op)
    return walk


class _Walk:
    """The kind of every value: of samples, reduced over the batch (with its weights), or neither, which is fixed."""

    def __init__(self, graph: Graph, label: str) -> None:
        self.graph, self.atoms, self.loops, self.label = graph, atoms_of(Same(graph)), loops(graph), label
        self.batch = batch_atoms(self.atoms, label)
        labelled = [item for item in graph.inputs if label in item.labels]
        self.samples = {item.value for item in labelled or graph.inputs}
        """Values that belong to samples."""
        self.rows = max((prod(graph.types[item.value].shape[:1]) for item in labelled), default=1)
        self.reduced: dict[str, tuple[Weight, ...]] = {}
        self.counts: dict[str, Weight] = {}
        """The values that are means over what counts."""
        self.problems: dict[str, EmissionLoss] = {}
        self.statistics: set[str] = set()
        """Those with a problem that are made of sums over the batch: what samples become by them belongs to samples."""
        self.shown = False
        """Whether samples are shown sums over the batch."""

    def visit(self, index: int, op: Op) -> None:
        """Determine the kind of an operator's results."""
        for value in op.results:
            self._result(index, op, value)

    def _result(self, index: int, op: Op, value: str) -> None:
        sums = [one for one in op.operands if one in self.reduced]
        own = [one for one in op.operands if one in self.samples]
        faulty = [one for one in op.operands if one in self.problems]
        if not (sums or own or faulty):
            return
        if unknown := [one for one in faulty if one not in self.statistics]:
            self.problems[value] = self.problems[unknown[0]]
        elif self._twice(index, op):
            self._refuse(op, value, "compares samples of the batch with each other")
        elif self._batched(value):
            self.samples.add(value)  # also of statistics of the batch
            self.shown |= bool(sums or faulty)
        elif faulty:
            self.problems[value] = self.problems[faulty[0]]
            self.statistics.add(value)
        elif own:
            self._reduce(index, op, value)
        else:
            self._combine(index, op, value)
            self.statistics.update([value] * (value in self.problems))

    def _batched(self, value: str) -> bool:
        """Whether a value has the batch: with one sample that cannot be told, and all but scalars are taken to have
        it."""
        if not self.batch:
            return bool(self.graph.types[value].shape)
        return any(atom in self.batch for dim in self.atoms.dims(value) for atom in dim)

    def _twice(self, index: int, op: Op) -> bool:
        """Whether an operator runs over the batch in two of its loops."""
        over = [
            self.loops.factors[op.name][factor.name]
            for factor in self.atoms.rules[index].factors
            if any(atom in self.batch for atom in self.atoms.factor(index, factor.name))
        ]
        labelled = [name for names in over for name in names if stem(name).partition(".")[0] == self.label]
        return len(labelled) > len(set(labelled))

    def _reduce(self, index: int, op: Op, value: str) -> None:
        """The result of an operator that sums over the batch."""
        rule = self.atoms.rules[index]
        role = self._role(index, rule)
        if role is Role.MAX:
            self._refuse(op, value, "takes a maximum over the batch")
        elif role is Role.WHOLE:
            self._refuse(op, value, "needs the whole batch in one place")
        elif any(one in self.reduced for one in op.operands):
            self._refuse(op, value, "shows a sum over the batch to single samples again")
        elif op.kind in CLASSIFIED and op.attr("reduction", "mean") == "mean":
            self._count(op, value, op.operands[1], (Step("ne", (("scalar", op.attr("ignore_index", -100)),)),))
        elif op.kind in AVERAGING and op.attr("reduction", "mean") == "mean":
            self.reduced[value] = (MEAN,)
        else:
            self.reduced[value] = (SUM,)

    def _role(self, index: int, rule: Rule) -> Role:
        """The role in which an operator reduces the batch."""
        roles = [
            factor.role
            for factor in rule.factors
            if not self.batch or any(atom in self.batch for atom in self.atoms.factor(index, factor.name))
        ]
        if Role.SUM in roles:
            return Role.SUM
        return next((role for role in (Role.MAX, Role.WHOLE, Role.HALO) if role in roles), Role.SUM)

    def _count(self, op: Op, value: str, counted: str, last: tuple[Step, ...]) -> None:
        """A mean over what counts in `counted`, an entry of the batch or a value made of one."""
        steps = list(last)
        while counted not in {item.value for item in self.graph.inputs}:
            made = self.graph.producer.get(counted)
            step = self._step(made) if made is not None and len(made.operands) == 1 else None
            if made is None or step is None:
                self._refuse(op, value, "is a mean over what cannot be counted in one entry of the batch")
                return
            steps[:0] = step
            (counted,) = made.operands
        self.counts[value] = Weight(COUNT, counted, tuple(steps))
        self.reduced[value] = (self.counts[value],)

    def _step(self, op: Op) -> tuple[Step, ...] | None:
        """The step that an operator adds to a count; None if it cannot be repeated on a part of the batch."""
        if op.kind in SAME_COUNT or op.kind == "sum":
            return ()
        if op.kind in COMPARED and isinstance(op.attr("scalar"), int | float):
            return (Step(op.kind, (("scalar", op.attr("scalar")),)),)
        if op.kind == "logical_not":
            return (Step("not", ()),)
        if op.kind == "slice" and not self._is_batch(op, op.integer("dim")):
            names = ("dim", "start", "end", "step")
            return (Step("slice", tuple((name, op.attr(name)) for name in names)),)
        if op.kind == "pad" and len(tuple(_numbers(op.attr("pad")))) < 2 * len(self.graph.types[op.operands[0]].shape):
            return (Step("pad", (("pad", op.attr("pad")), ("value", op.attr("value")))),)
        if op.kind == "clamp":
            return ()  # a lower limit guards against a batch of which nothing counts
        return None

    def _is_batch(self, op: Op, dim: int) -> bool:
        return any(atom in self.batch for atom in self.atoms.dims(op.operands[0])[dim])

    def _combine(self, index: int, op: Op, value: str) -> None:
        """The result of an operator on sums over the batch: a linear one."""
        sums = [slot for slot, one in enumerate(op.operands) if one in self.reduced]
        weights = tuple(dict.fromkeys(weight for slot in sums for weight in self.reduced[op.operands[slot]]))
        if op.kind == "div" and len(sums) == 2 and op.operands[1] not in self.graph.differentiable:
            if set(weights) <= {SUM}:
                self._count(op, value, op.operands[1], ())
            elif self.reduced[op.operands[1]] == (SUM,):
                self._refuse(op, value, "divides a mean over the batch by a sum over it")
            else:
                self._refuse(op, value, "is not linear in a sum over the batch")
            return
        laws = [self.atoms.rules[index].laws[slot] for slot in sums]
        scalar = op.kind in ("add", "sub") and len(op.operands) == 1
        counts = value not in self.graph.differentiable and op.kind in COUNTING
        if counts or (scalar and SUM not in weights):
            self.reduced[value] = weights
        elif any(law in (Law.NONLINEAR, Law.INDEX) for law in laws) or laws.count(Law.LINEAR) > 1 or scalar:
            self._refuse(op, value, "is not linear in a sum over the batch")
        elif SUM in weights and (len(weights) > 1 or (Law.ADDITIVE in laws and len(sums) < len(op.operands))):
            self._refuse(op, value, "adds to a sum over the batch what parts of it weigh differently")
        elif op.kind == "div" and weights == (SUM,) and self._per_sample(op):
            self.reduced[value] = (MEAN,)
        else:
            self.reduced[value] = weights

    def _per_sample(self, op: Op) -> bool:
        """Whether a sum is divided by the number of samples, or by something that each sample has as many of."""
        by = op.attr("scalar")
        return len(op.operands) == 1 and isinstance(by, int) and self.rows > 1 and by > 0 and by % self.rows == 0

    def _refuse(self, op: Op, value: str, reason: str) -> None:
        place = f"%{op.name} = {op.kind}" + f" <{op.source}>" * bool(op.source)
        self.problems[value] = EmissionLoss(
            place=place,
            cause=f"copies and micro-batches add up losses, and this one has no parts: it {reason}",
            ways=("--fix dp=1,microbatches=1",),
            fix="let the loss be a mean, or a sum, over the samples of the batch",
        )


def _numbers(attr: Attr) -> tuple[Attr, ...]:
    return attr if isinstance(attr, tuple) else (attr,)
