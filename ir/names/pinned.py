"""Pins of single operators: the words for what a plan does to them, and whether it may.

    sharding   replicate     every rank computes with the whole weight
               column        axes cut what the weight makes: the output width of a product, the columns of a table
               row           axes cut what the weight is summed, or looked up, over
               expert        axes cut the experts apart
    split      b s heads …   the loops that axes cut (as `plan inspect` lists them); none
    recompute  on off        whether its results are computed again in the backward pass

Words are read off a strategy, not off a table of degrees, so they fit plans that no template wrote. An operator has a
word for every axis that cuts it, or the one for none; `Allowed` holds where all of its words are allowed. Sharding is
asked of operators that read a weight of two dimensions or more: a norm's scale is small, and lies as its values lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

from meshwright.ir.analysis.loops import Loops, stem
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.graph.graph import Graph, Op
from meshwright.ir.names.degrees import BATCH, SEQUENCE
from meshwright.ir.same import Same
from meshwright.ir.sharding.adjoint import SPLITTABLE, Split, Strategy
from meshwright.ir.sharding.layouts import Nested
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.rewrite import facts_of

SHARDING = ("replicate", "column", "row", "expert")
NO_CUT = {"sharding": "replicate", "split": "none"}
"""The word of an operator that no axis cuts."""
SWITCH = ("on", "off")
WHAT = ("sharding", "split", "recompute")


@dataclass(frozen=True, slots=True)
class Allowed:
    """The options of one operator; None where nothing is asked."""

    sharding: frozenset[str] | None = None
    split: frozenset[str] | None = None
    recompute: frozenset[str] | None = None

    def __str__(self) -> str:
        asked = ((what, getattr(self, what)) for what in WHAT)
        return ", ".join(f"{what}={'|'.join(sorted(words))}" for what, words in asked if words is not None)


FREE = Allowed()


@dataclass(frozen=True, eq=False)
class Pinned:
    """The pins of a fold's operators, by body and operator; interned, as keys."""

    bodies: Mapping[str, Mapping[str, Allowed]] = field(default_factory=dict)

    def of(self, body: str) -> Mapping[str, Allowed]:
        return self.bodies.get(body, {})


NOTHING_PINNED = Pinned()


@dataclass(frozen=True, eq=False)
class Words:
    """The words of one body's operators."""

    graph: Graph
    found: Loops

    def slots(self, op: Op) -> tuple[int, ...]:
        """Operands that are weights of two dimensions or more, of operators that read anything besides."""
        weights = of_weights(Same(self.graph))
        if weights.issuperset(op.operands):
            return ()
        return tuple(
            slot
            for slot, value in enumerate(op.operands)
            if value in weights and len(self.graph.types[value].shape) > 1
        )

    def of_factor(self, op: Op, what: str, factor: str, *, nested: bool = False) -> str | None:
        """The word for an axis on a factor; None if there is none. `nested`: an inner loop of the factor is cut, which
        for tokens is the sequence, sample by sample."""
        names = [stem(name) for name in self.found.factors[op.name][factor]]
        if what == "split":
            inner = nested and SEQUENCE in names
            return SEQUENCE if inner else names[0] if names else None
        rule = facts_of(self.graph)[op.name].rule
        if names[:1] == [BATCH]:
            return None  # every sample's copy of a weight, as of tokens that a model learns
        if not any(factor in dims for slot in self.slots(op) for dims in rule.operands[slot]):
            return None
        if names[:1] == ["experts"]:
            return "expert"
        return "column" if any(factor in dims for result in rule.results for dims in result) else "row"

    def of_cuts(self, op: Op, what: str, strategy: Strategy, mesh: Mesh) -> set[str]:
        """The words for the cuts of axes; none if they cut nothing."""
        return {word for _, word in self.by_axis(op, what, strategy, mesh)}

    def by_axis(self, op: Op, what: str, strategy: Strategy, mesh: Mesh) -> Iterator[tuple[str, str]]:
        """Every axis that cuts something, with the word for it."""
        samples = dict[str, int]()
        for axis, choice in strategy.choices:
            if not isinstance(choice, Split):
                continue
            for factor in choice.factors:
                left = samples.get(factor) or self.samples(op, factor)
                inner = isinstance(choice.layout, Nested) or left == 1
                if not inner:
                    samples[factor] = max(1, left // mesh.axis(axis).size)
                word = self.of_factor(op, what, factor, nested=inner)
                if word is not None:
                    yield axis, word

    def samples(self, op: Op, factor: str) -> int:
        """The part of a factor before the sequence: a cut in plain runs cuts it first."""
        names = self.found.factors[op.name][factor]
        at = next((index for index, name in enumerate(names) if stem(name) == SEQUENCE), 0)
        return prod(self.found.loop(name).size for name in names[:at])

    def known(self, op: Op, what: str) -> tuple[str, ...]:
        """Every word that an operator can have."""
        if what == "recompute":
            return SWITCH
        if what == "sharding" and not self.slots(op):
            return ()
        factors = [one.name for one in facts_of(self.graph)[op.name].rule.factors if one.role in SPLITTABLE]
        tokens = (self.of_factor(op, what, factor, nested=True) for factor in factors)
        found = (*(self.of_factor(op, what, factor) for factor in factors), *tokens)
        return tuple(dict.fromkeys((*(word for word in found if word), NO_CUT[what])))

    def grants(self, op: Op, allowed: Allowed, strategy: Strategy, mesh: Mesh, *, partly: bool = False) -> bool:
        """Whether axes together do what is allowed; `partly`: so far, with axes that are still to be decided."""
        if allowed is FREE:
            return True
        for what, none in NO_CUT.items():
            words = getattr(allowed, what)
            if words is None:
                continue
            cuts = self.of_cuts(op, what, strategy, mesh)
            if not cuts <= words or not (cuts or partly or none in words):
                return False
        return True


def refused(plan: BodyPlan, graph: Graph, found: Loops, pins: Mapping[str, Allowed], mesh: Mesh) -> Iterable[Op]:
    """Operators to which a plan does what pins rule out."""
    words, again = Words(graph, found), set(plan.recompute)
    chosen = dict(plan.strategies)
    for op in graph.ops:
        allowed = pins.get(op.name, FREE)
        state = "on" if again.issuperset(op.results) else "off"
        held = words.grants(op, allowed, chosen.get(op.name, Strategy()), mesh)
        if not held or state not in (allowed.recompute or SWITCH):
            yield op


@lru_cache(maxsize=256)
def of_weights(graph: Same[Graph]) -> frozenset[str]:
    """Parameters, and values made of nothing else."""
    weights = {param.value for param in graph.of.params if not param.buffer}
    for op in graph.of.ops:
        if op.operands and weights.issuperset(op.operands):
            weights.update(op.results)
    return frozenset(weights)


def recomputing(graph: Graph, pins: Mapping[str, Allowed], values: tuple[str, ...]) -> tuple[str, ...]:
    """These values to be recomputed, as pins change them."""
    asked = {value: pins[op.name].recompute for op in graph.ops if op.name in pins for value in op.results}
    kept = tuple(value for value in values if asked.get(value) in (None, frozenset(SWITCH), frozenset(("on",))))
    more = (value for op in graph.ops for value in op.results if asked.get(value) == frozenset(("on",)))
    return tuple(dict.fromkeys((*kept, *more)))
