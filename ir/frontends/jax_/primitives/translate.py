"""The walk from flat equations to operators.

An equation of constants becomes a constant (`constants.py`); any other is lowered by its entry in the table, and one
without an entry is opaque. JAX writes every broadcast out; here a value that is only repeated is a `Wide`, which
elementwise operators read as it was before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.ir.annotated.annotations import Spec
from meshwright.ir.frontends.folding.emit import Emitter
from meshwright.ir.frontends.folding.handles import Names, Place
from meshwright.ir.frontends.folding.layout import broadcast
from meshwright.ir.frontends.folding.terms import Term
from meshwright.ir.frontends.jax_.flat import Equation, Flat, Leaf, Number
from meshwright.ir.frontends.jax_.primitives import constants
from meshwright.ir.graph.graph import Attr, Type


@dataclass(frozen=True, slots=True)
class Wide:
    """A value that is repeated to a shape: `value` has extents of 1, or lacks leading dimensions, where it is."""

    value: str
    shape: tuple[int, ...]


Given = str | Term | Wide
"""What a value of the jaxpr is here."""

Lowering = Callable[["Translator", Equation, list[Any]], Any]


class Translator(Emitter):
    """The state of one walk."""

    def __init__(self, names: Names, table: dict[str, Lowering]) -> None:
        super().__init__(names)
        self.table = table
        self.given: dict[int, Given] = {}
        self.opaque_count = 0
        self.covered = 0
        self.annotated: dict[str, Spec] = {}
        """Of values, where the model's own code says that they lie."""

    def run(self, flat: Flat, labels: dict[str, tuple[str, ...]]) -> list[Given]:
        """Translate everything; what the outputs are."""
        for number, leaf in flat.leaves.items():
            self.given[number] = self.leaf(leaf, labels)
        for equation in flat.equations:
            self.equation(equation)
        return [self.atom(atom) for atom in flat.outputs]

    def leaf(self, leaf: Leaf, labels: dict[str, tuple[str, ...]]) -> Given:
        if leaf.kind == "input":
            return self.add_input(leaf.path, leaf.type, tuple(labels.get(leaf.path, ())))  # type: ignore[return-value]
        if leaf.kind == "param":
            return self.add_param((leaf.path,), leaf.type, requires_grad=leaf.trained)  # type: ignore[return-value]
        if leaf.kind == "buffer":
            return self.add_param((leaf.path,), leaf.type, requires_grad=False, buffer=True)  # type: ignore[return-value]
        if leaf.random:
            return Term(constants.RANDOM, leaf.type.shape, leaf.type.dtype)
        return self.keep(constants.array(leaf.data, leaf.type))

    def atom(self, atom: int | Number) -> Given:
        if isinstance(atom, Number):
            return constants.full(atom.type, atom.value)
        return self.given[atom]

    def equation(self, equation: Equation) -> None:
        self.place = Place(equation.room, equation.source)
        given = [self.atom(atom) for atom in equation.inputs]
        results = self.lowered(equation, given)
        results = results if isinstance(results, tuple) else (results,)
        self.given |= dict(zip(equation.outputs, results, strict=True))

    def lowered(self, equation: Equation, given: list[Given]) -> Any:
        if all(isinstance(one, Term) for one in given):
            made = self.constant(equation, given)
            if made is not None:
                return made
        entry = self.table.get(equation.name)
        return opaque(self, equation, given) if entry is None else entry(self, equation, given)

    def constant(self, equation: Equation, given: list[Any]) -> Any:
        if equation.name == "split":
            return self.split_constant(equation, given[0])
        made = [constants.term(equation.name, equation.params, given, type_) for type_ in equation.types]
        if any(one is None for one in made):
            return None
        kept = tuple(self.keep(one) if one not in given else one for one in made if one is not None)
        return kept if len(kept) != 1 else kept[0]

    def split_constant(self, equation: Equation, one: Term) -> tuple[Term, ...]:
        dim, start, parts = int(equation.params["axis"]), 0, []
        for type_ in equation.types:
            starts = [0] * len(type_.shape)
            ends = list(one.shape)
            starts[dim], ends[dim] = start, start + type_.shape[dim]
            start = ends[dim]
            cut = {"start_indices": starts, "limit_indices": ends, "strides": None}
            made = constants.term("slice", cut, [one], type_)
            assert made is not None
            parts.append(self.keep(made))
        return tuple(parts)

    # Handles ----------------------------------------------------------------------------------------------------------

    def shape(self, given: Given) -> tuple[int, ...]:
        return given.shape if isinstance(given, Wide) else self.type(given).shape

    def dtype(self, given: Given) -> str:
        return self.types[given.value].dtype if isinstance(given, Wide) else self.type(given).dtype

    def read(self, given: Given) -> str:
        """As a value of the graph, in its whole shape."""
        if not isinstance(given, Wide):
            return self.value(given)
        type_ = Type(given.shape, self.types[given.value].dtype)
        return self.emit("expand", [given.value], (type_,), {"shape": given.shape}, alias=0)

    def narrow(self, given: Given) -> str | Term:
        """As an operand that is broadcast from the right: without repetition, and without extents of 1 in front."""
        if isinstance(given, Term):
            inner = given.args[0] if given.op == "expand" else given
            source = inner.args[0] if inner.op == "view" else inner
            missing = len(inner.shape) - len(source.shape)
            return source if inner.shape == (*(1 for _ in range(missing)), *source.shape) else inner
        value = given.value if isinstance(given, Wide) else given
        before = self.producer.get(value)
        if before is not None and before.kind == "view" and not before.no_grad:
            source = self.types[before.operands[0]].shape
            shape = self.types[value].shape
            if shape == (*(1 for _ in range(len(shape) - len(source))), *source):
                return before.operands[0]
        return value

    def elementwise(
        self, kind: str, given: Sequence[Given], type_: Type, attrs: dict[str, Attr] | None = None
    ) -> Given:
        """One elementwise operator; its result is as narrow as its operands."""
        operands = [self.narrow(one) for one in given]
        shape: tuple[int, ...] = ()
        for one in operands:
            shape = broadcast(shape, self.type(one).shape)
        value = self.emit(kind, operands, (Type(shape, type_.dtype),), attrs)
        return value if shape == type_.shape else Wide(value, type_.shape)

    def seen(self, given: Given, shape: tuple[int, ...]) -> Given:
        """The elements in another shape."""
        if isinstance(given, Term):
            return self.keep(constants.seen_as(given, shape))
        if isinstance(given, Wide):
            kept = _reshaped(self.types[given.value].shape, given.shape, shape)
            if kept is not None:
                return Wide(self.view(given.value, kept), shape)
        return self.view(self.read(given), shape)

    def permuted(self, given: Given, order: Sequence[int]) -> Given:
        order = [int(dim) for dim in order]
        if order == sorted(order):
            return given
        if isinstance(given, Wide) and len(self.types[given.value].shape) == len(given.shape):
            inner = self.permuted(given.value, order)
            return Wide(inner, tuple(given.shape[dim] for dim in order))  # type: ignore[arg-type]
        value = self.read(given)
        before = self.producer.get(value)
        if before is not None and before.kind == "permute" and self._same_room(before.module):
            perm = before.integers("perm")
            return self.permuted(before.operands[0], [perm[dim] for dim in order])
        source = self.types[value]
        type_ = Type(tuple(source.shape[dim] for dim in order), source.dtype)
        return self.emit("permute", [value], (type_,), {"perm": tuple(order)}, alias=0)

    def _same_room(self, module: str) -> bool:
        return self.names.room(module) == self.names.room(self.place.module)


def _reshaped(narrow: tuple[int, ...], wide: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...] | None:
    """The narrow shape where the wide one becomes a target that differs in extents of 1 alone; None otherwise."""
    full = (*(1 for _ in range(len(wide) - len(narrow))), *narrow)
    pairs = [(n, w) for n, w in zip(full, wide, strict=True) if w != 1]
    if [w for _, w in pairs] != [extent for extent in target if extent != 1]:
        return None
    found = iter(pairs)
    return tuple(1 if extent == 1 else next(found)[0] for extent in target)


def opaque(t: Translator, equation: Equation, given: list[Given]) -> Any:
    """An operator that nothing is known of: all its operands, and the types of its results."""
    t.opaque_count += 1
    attrs: dict[str, Attr] = {"target": f"jax::{equation.name}", "types": tuple(str(type_) for type_ in equation.types)}
    if work := flops(equation.params):
        attrs["flops"] = work
    t.notes.append(f"{equation.source or equation.room}: no rule for jax::{equation.name}; it is opaque")
    results = t.emit_all("opaque", [t.read(one) for one in given], equation.types, attrs)
    return results[0] if len(results) == 1 else tuple(results)


def flops(params: Any) -> int:
    """The products inside of a body that is not written out, as often as it runs; a loop of unknown length runs
    once."""
    total = 0
    for body in _bodies(params):
        for equation in getattr(body, "jaxpr", body).eqns:
            if equation.primitive.name == "dot_general":
                (contracted, _), _ = equation.params["dimension_numbers"]
                left, out = equation.invars[0].aval.shape, equation.outvars[0].aval.size
                points = out
                for dim in contracted:
                    points *= left[dim]
                total += 2 * int(points)
            else:
                total += flops(equation.params)
    return total * int(params.get("length", 1))


def _bodies(params: Any) -> list[Any]:
    found = []
    for value in params.values():
        several = value if isinstance(value, tuple | list) else (value,)
        found += [one for one in several if hasattr(getattr(one, "jaxpr", one), "eqns")]
    return found
