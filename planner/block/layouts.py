"""Layouts: how an axis cuts a loop that does not stand alone in its dimension.

    tokens    batch and sequence as one dimension: the sequence is cut sample by sample, of which there are as many as
              are left on the rank
    fused     a product that is cut into sections afterwards (q|k|v, gate|up): each section by itself
    slots     of experts: as the tokens lie that fill them, whatever dispatch makes of that

On one axis a layout follows from the sizes of the loops; jointly, from what the axes before have left of them: cuts of
the batch come first, and leave fewer samples to cut the sequence of. The same layouts as a person's plan has
(`ir.names.body`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod

from meshwright.ir.analysis.loops import Loops, stem
from meshwright.ir.errors import IllegalStrategy, IndivisibleExtent, SectionsMismatch
from meshwright.ir.graph.graph import Graph, Op
from meshwright.ir.same import Same
from meshwright.ir.sharding.adjoint import Choice, Split, Strategy
from meshwright.ir.sharding.layouts import CONTIGUOUS, ZIGZAG, Layout, Nested, Sections
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.rewrite import facts_of

SEQUENCE, SLOTS = "s", "slots"
REFUSED = (IllegalStrategy, IndivisibleExtent, SectionsMismatch)


@dataclass(frozen=True, slots=True)
class Tokens:
    """A factor over samples, sequence and inner loops: the number of samples, and how axes cut the sequence."""

    outer: int
    zigzag: frozenset[str]

    def layout(self, axis: str) -> Layout:
        own = ZIGZAG if axis in self.zigzag else CONTIGUOUS
        return own if self.outer == 1 else Nested(self.outer, own)


@dataclass(eq=False)
class Layouts:
    """The layouts of one body; `zigzag` are the axes that cut the sequence in a zigzag."""

    graph: Graph
    found: Loops
    zigzag: frozenset[str] = frozenset()

    @cached_property
    def sizes(self) -> dict[str, int]:
        return {loop.name: loop.size for loop in self.found.loops}

    @cached_property
    def fused(self) -> Mapping[str, tuple[int, tuple[int, ...]]]:
        return _fused(Same(self.graph))

    @cached_property
    def dispatch(self) -> Op | None:
        return next((op for op in self.graph.ops if op.kind == "dispatch"), None)

    def tokens(self, op: Op, factor: str) -> Tokens | None:
        """The parts of a factor in which the sequence lies under samples."""
        names = self.found.factors[op.name][factor]
        at = next((index for index, name in enumerate(names) if stem(name) == SEQUENCE), 0)
        if not at:
            return None
        return Tokens(prod(self.sizes[name] for name in names[:at]), self.zigzag)

    def sections(self, op: Op, factor: str) -> tuple[int, ...] | None:
        """The sections into which the results of a factor are cut later."""
        for dims, value in zip(facts_of(self.graph)[op.name].rule.results, op.results, strict=True):
            dim, sizes = self.fused.get(value, (0, ()))
            if sizes and dims[dim] == (factor,):
                return sizes
        return None

    def is_slots(self, op: Op, factor: str) -> bool:
        names = self.found.factors[op.name][factor]
        return bool(names) and stem(names[0]) == SLOTS and op.kind not in ("dispatch", "combine")

    def single(self, op: Op, choice: Split, mesh: Mesh) -> tuple[Split, ...]:
        """The cuts by one axis, in every possible layout."""
        if len(choice.factors) > 1:
            return (choice,)
        (factor,) = choice.factors
        tokens, sizes = self.tokens(op, factor), self.sections(op, factor)
        if tokens is not None:
            return (choice, Split((factor,), tokens.layout(mesh.names[0])))
        if sizes is not None:
            return (Split((factor,), Sections(sizes)),)
        if self.is_slots(op, factor) and self.dispatch is not None:
            filled = self.filled(mesh, (True,))
            return (choice, Split((factor,), filled[mesh.names[0]])) if filled else (choice,)
        return (choice,)

    def filled(self, mesh: Mesh, by_sequence: Sequence[bool | None]) -> dict[str, Layout]:
        """The layout of dispatch slots on every axis, where tokens are cut by sample (False) or by sequence (True)."""
        op = self.dispatch
        assert op is not None
        factor = facts_of(self.graph)[op.name].rule.operands[0][0][0]
        tokens = self.tokens(op, factor)
        if tokens is None:
            return {}
        made: list[Choice | None] = [
            None if cut is None else Split((factor,), tokens.layout(axis) if cut else CONTIGUOUS)
            for axis, cut in zip(mesh.names, by_sequence, strict=True)
        ]
        try:
            applied = facts_of(self.graph)[op.name].applied(self.joint(op, mesh, made), mesh)
        except REFUSED:
            return {}
        return {shard.axis: shard.layout for dim in applied.results[0].dims for shard in dim}

    def joint(self, op: Op, mesh: Mesh, choices: Sequence[Choice | None]) -> Strategy:
        """Choices of single axes joined to one strategy: cuts of samples first, each layout on what remains."""
        pairs = [(axis, made) for axis, made in zip(mesh.names, choices, strict=True) if made is not None]
        pairs.sort(key=lambda pair: self.is_inner(op, pair[1]))
        left: dict[str, Tokens | tuple[int, ...]] = {}
        slots: dict[str, list[bool | None]] = {}
        found = []
        for axis, chosen in pairs:
            made = chosen
            if isinstance(made, Split) and len(made.factors) == 1:
                made = self.laid_out(op, mesh, axis, made, left)
                if self.is_slots(op, made.factors[0]):
                    cuts = slots.setdefault(made.factors[0], [None] * len(mesh.names))
                    cuts[mesh.names.index(axis)] = made.layout != CONTIGUOUS
            found.append((axis, made))
        for factor, cuts in slots.items():
            if any(cuts):
                layouts = self.filled(mesh, cuts)
                found = [
                    (axis, Split((factor,), layouts.get(axis, CONTIGUOUS)))
                    if isinstance(made, Split) and made.factors == (factor,)
                    else (axis, made)
                    for axis, made in found
                ]
        return Strategy(tuple(found))

    def is_inner(self, op: Op, made: Choice) -> bool:
        """Whether a choice cuts the sequence under samples."""
        if not isinstance(made, Split) or len(made.factors) > 1 or made.layout == CONTIGUOUS:
            return False
        return self.tokens(op, made.factors[0]) is not None or self.is_slots(op, made.factors[0])

    def laid_out(self, op: Op, mesh: Mesh, axis: str, made: Split, left: dict[str, Tokens | tuple[int, ...]]) -> Split:
        """The layout of one cut on what earlier axes leave of its factor."""
        (factor,) = made.factors
        parts = mesh.axis(axis).size
        whole = left.get(factor) or self.tokens(op, factor) or self.sections(op, factor)
        if isinstance(whole, Tokens):
            if made.layout == CONTIGUOUS:
                left[factor] = replace(whole, outer=max(1, whole.outer // parts))
                return made
            return Split((factor,), whole.layout(axis))
        if whole and isinstance(made.layout, Sections):
            left[factor] = tuple(size // parts for size in whole)
            return Split((factor,), Sections(whole))
        return made


@lru_cache(maxsize=256)
def _fused(key: Same[Graph]) -> Mapping[str, tuple[int, tuple[int, ...]]]:
    """Values that are cut into sections, with their dimension and sections."""
    facts = facts_of(key.of)
    return {
        op.operands[slot]: (dim, sizes)
        for op in key.of.ops
        for side, slot, dim, sizes in facts[op.name].rule.sections
        if side == "operand"
    }
