"""A loop that is not written out is one operator: what devices may have parts of follows from the rules of its body.

    scan equation  ->  opaque operator with a rule (`meshwright.ir.rules.opaque`)

The body is translated like any jaxpr. Dimensions that a parallel loop of one of its operators runs through are one, and
so are those of what a step hands on and what the next one is given; operands and results of the whole stand for those
of the body, rows of them behind the dimension of steps. Along what is left, every step works on its own part: a device
may have a part of it from the first step to the last, as of a batch. Steps themselves stay in one place.

For its backward pass it keeps what JAX keeps (`residuals`): of every step what derivatives of the body read. Loops
that cut these are found in the same way.

Steps wait for each other, so that its kernels run one by one: in every step one for each product, and one for all else
that there is; for gradients, two for each product.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from meshwright.ir.frontends.folding.segment import names_of
from meshwright.ir.frontends.folding.terms import Term
from meshwright.ir.frontends.jax_.dtypes import is_key, type_of
from meshwright.ir.frontends.jax_.flat import Equation, Leaf, flattened
from meshwright.ir.frontends.jax_.primitives import constants
from meshwright.ir.frontends.jax_.primitives.residuals import Residuals, residuals_of
from meshwright.ir.frontends.jax_.primitives.translate import Lowering, Translator, flops, opaque
from meshwright.ir.graph.graph import Attr
from meshwright.ir.rules.base import Engine, Role
from meshwright.ir.rules.registry import rule_of, signature_of

Dim = tuple[str, int]
"""A dimension of a value of the body."""


@dataclass(slots=True)
class _Joined:
    """Dimensions that are one, and those that must be whole."""

    above: dict[Dim, Dim] = field(default_factory=dict)
    whole: set[Dim] = field(default_factory=set)

    def first(self, dim: Dim) -> Dim:
        """What stands for all that are one with it."""
        while (other := self.above.get(dim, dim)) != dim:
            dim = other
        return dim

    def join(self, dims: Sequence[Dim]) -> None:
        for dim in dims[1:]:
            self.above[self.first(dim)] = self.first(dims[0])

    def keep(self, dims: Sequence[Dim]) -> None:
        self.whole.update(dims)

    def cut(self) -> set[Dim]:
        """Those of which devices may have parts: what stands for them."""
        known = {*self.above, *self.above.values()}
        whole = {self.first(dim) for dim in self.whole}
        places: dict[tuple[Dim, str], int] = {}
        for dim in known:
            places[self.first(dim), dim[0]] = places.get((self.first(dim), dim[0]), 0) + 1
        twice = {first for (first, _), count in places.items() if count > 1}
        return {self.first(dim) for dim in known} - whole - twice


def scanned(t: Translator, equation: Equation, given: list[Any]) -> Any:
    """A loop as one operator, with the rule that its body leaves; opaque where that leaves none."""
    attrs = dict(_rule(t, equation, given))
    if not attrs:
        return opaque(t, equation, given)
    steps = int(equation.params["length"])
    place = equation.source or equation.room
    t.notes.append(f"{place}: a loop of {steps} steps is one operator, and stays whole along them")
    attrs |= {"target": "jax::scan", "types": tuple(str(type_) for type_ in equation.types), "steps": steps}
    results = t.emit_all("opaque", [t.read(one) for one in given], equation.types, attrs)
    return results[0] if len(results) == 1 else tuple(results)


def _rule(t: Translator, equation: Equation, given: Sequence[Any]) -> Iterator[tuple[str, Attr]]:
    """The attributes that say which loops it has; none where all of it must be whole."""
    fixed, carried = equation.params["num_consts"], equation.params["num_carry"]
    inner, entered, left = _body(t, equation.params, given)
    dims = _joined(inner, entered[fixed : fixed + carried], left)
    operands = [
        _dims_of(dims, value, t.types[t.read(one)].shape, rows=at >= fixed + carried)
        for at, (value, one) in enumerate(zip(entered, given, strict=True))
    ]
    results = [
        _dims_of(dims, value, type_.shape, rows=at >= carried)
        for at, (value, type_) in enumerate(zip(left, equation.types, strict=True))
    ]
    sizes = dict(_sizes(dims.cut(), operands, results))
    if not sizes:
        return
    names = {first: f"n{at}" for at, first in enumerate(sizes)}
    sides = [
        [[_word(first, extent, names, f"{side}{number}_{at}") for at, (first, extent) in enumerate(one)]
         for number, one in enumerate(tensors)]
        for side, tensors in (("i", operands), ("o", results))
    ]  # fmt: skip
    products, others = _kernels(inner)
    steps = int(equation.params["length"])
    yield "kernels", (steps * (products[0] + others), steps * (products[1] + others))
    yield "rule", "->".join(",".join(" ".join(words) or "()" for words in side) for side in sides)
    whole = {word for side in sides for words in side for word in words if word[0] in "io"}
    if whole:
        yield "whole", tuple(sorted(whole))
    if work := flops(equation.params):
        yield "flops", work / prod(sizes.values())
    if (found := residuals_of(equation.params)) is not None:
        yield "saved", found.operands
        yield "left", found.results
        cut = [[names.get(first, "") if first is not None else "" for first, _ in one] for one in operands]
        by_name = {names[first]: extent for first, extent in sizes.items()}
        yield "kept", tuple(_kept(t, found, given, cut, by_name))


def _kernels(inner: Translator) -> tuple[tuple[int, int], int]:
    """How many kernels multiply in a step, at least, in either pass, those of loops inside included; and whether there
    is more."""
    forward, backward, others = 0, 0, 0
    for op in inner.ops:
        signature, engine = signature_of(op, inner.types), rule_of(op, inner.types).engine
        if signature.attr("kernels") is not None:
            own = signature.integers("kernels")
            forward, backward = forward + own[0], backward + own[1]
        elif engine in (Engine.MATMUL, Engine.ATTENTION, Engine.CONV):
            forward, backward = forward + 1, backward + 2
        elif engine is Engine.MEMORY:
            others = 1
    return (forward, backward), others


def _kept(
    t: Translator, found: Residuals, given: Sequence[Any], cut: Sequence[Sequence[str]], sizes: Mapping[str, int]
) -> Iterator[str]:
    """What is kept besides operands and results: the loops that cut it, and its bytes at each point of these,
    `n0 n1:64`. `cut`: of the dimensions of operands, those of these sizes."""
    params, of = found.scan.params, found.given
    fixed, carried = params["num_consts"], params["num_carry"]
    inner, entered, left = _body(t, params, [given[at] if at >= 0 else None for at in of])
    dims = _joined(inner, entered[fixed : fixed + carried], left)
    names = {
        dims.first((value, dim)): name
        for number, (value, at) in enumerate(zip(entered, of, strict=True))
        if value and at >= 0
        for dim, name in enumerate(cut[at][number >= fixed + carried :])
        if name
    }
    nbytes: dict[tuple[str, ...], int] = {}
    for at in found.rows:
        type_, rank = type_of(found.scan.outvars[at].aval), len(found.scan.outvars[at].aval.shape) - 1
        ways = [names.get(dims.first((left[at], dim)), "") for dim in range(rank)]
        own = tuple(sorted({name for dim, name in enumerate(ways) if sizes.get(name) == type_.shape[dim + 1]}))
        nbytes[own] = nbytes.get(own, 0) + type_.nbytes
    nbytes[()] = nbytes.get((), 0) + sum(type_of(one).nbytes for one in found.apart)
    for own, size in sorted(nbytes.items()):
        if size:
            yield f"{' '.join(own)}:{size // prod(sizes[name] for name in own)}"


def _body(t: Translator, params: Mapping[str, Any], given: Sequence[Any]) -> tuple[Translator, list[str], list[str]]:
    """The body's operators, its operands (empty for what is drawn) and its results."""
    body = params["jaxpr"]
    leaves = []
    for at, (var, one) in enumerate(zip(body.jaxpr.invars, given, strict=True)):
        drawn = is_key(var.aval) or (isinstance(one, Term) and constants.drawn(one))
        leaves.append(Leaf("constant" if drawn else "input", f"in{at}", type_of(var.aval), random=drawn))
    inner = Translator(names_of(()), t.table)
    left = [inner.read(one) for one in inner.run(flattened(body, leaves), {})]
    entered = [inner.given[at] for at in range(len(leaves))]
    return inner, [one if isinstance(one, str) else "" for one in entered], left


def _joined(inner: Translator, carry: Sequence[str], left: Sequence[str]) -> _Joined:
    """The dimensions of a body's values, by the rules of its operators. Of a dimension that is made up of several loops
    a part is one of the outermost: the others are whole. What a step hands on (`left` begins with it) is what the next
    one is given."""
    dims = _Joined()
    for op in inner.ops:
        rule = rule_of(op, inner.types)
        found: dict[str, list[Dim]] = {}
        inside: set[str] = set()
        for value, names in zip((*op.operands, *op.results), (*rule.operands, *rule.results), strict=True):
            for at, (outermost, *others) in enumerate(one or ("",) for one in names):
                found.setdefault(outermost, []).append((value, at))
                inside.update(others)
        for factor in rule.factors:
            places = found.get(factor.name, [])
            dims.join(places)
            if factor.role is not Role.PARALLEL or factor.expanded or factor.name in inside:
                dims.keep(places)
    for before, after in zip(carry, left, strict=False):
        for dim in range(len(inner.types[after].shape)):
            dims.join([(after, dim), (before, dim)] if before else [(after, dim)])
            dims.keep([] if before else [(after, dim)])
    return dims


def _dims_of(dims: _Joined, value: str, shape: Sequence[int], *, rows: bool) -> list[tuple[Dim | None, int]]:
    """Of every dimension of an operand or a result what it is one with in the body, and its extent; of rows, the first
    counts steps."""
    return [
        (dims.first((value, at - rows)) if value and at >= rows else None, extent) for at, extent in enumerate(shape)
    ]


def _sizes(
    parts: Collection[Dim],
    operands: Sequence[list[tuple[Dim | None, int]]],
    results: Sequence[list[tuple[Dim | None, int]]],
) -> Iterator[tuple[Dim, int]]:
    """The loops that are left, with their extents: of one extent wherever they are, and in each result."""
    for first in dict.fromkeys(first for one in operands for first, extent in one if first is not None and extent > 1):
        extents = {extent for one in (*operands, *results) for other, extent in one if other == first}
        if first in parts and len(extents) == 1 and all(any(other == first for other, _ in one) for one in results):
            yield first, extents.pop()


def _word(first: Dim | None, extent: int, names: Mapping[Dim, str], other: str) -> str:
    if extent == 1:
        return "1"
    return names.get(first, other) if first is not None else other


TABLE: dict[str, Lowering] = {"scan": scanned}
