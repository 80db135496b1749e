"""What dialects have in common: moves between ranks, as expressions, and a rank's parts of what all are given.

A move is a call of one of the functions that a dialect has for a pair of ways, there and back (`NAMED`), or of `moved`,
which is given both as functions of steps. Arguments are the value, the ranks, and dimensions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from meshwright.backends.printing.dialect import LocalOp
from meshwright.backends.printing.expressions import nested, refuse
from meshwright.backends.printing.rows import ARRIVE, ARRIVE_WHOLE, LEAVE, LEAVE_IN_PARTS, OWN, in_parts
from meshwright.ir.graph.graph import Type
from meshwright.ir.program.routes import Way
from meshwright.ir.quoting import literal
from meshwright.ir.sharding.layouts import Layout
from meshwright.ir.sharding.placement import Placement, State
from meshwright.ir.sharding.reshard import Step, after

NAMED = {
    (("all_gather",), ("reduce_scatter",)): "gather_from",
    (("all_gather",), ("slice",)): "gather_copies",
    ((), ("all_reduce",)): "copy_to",
    (("all_reduce",), ()): "reduce_from",
    (("reduce_scatter",), ("all_gather",)): "reduce_scatter_to",
    (("slice",), ("all_gather",)): "scatter_to",
    (("all_to_all",), ("all_to_all",)): "exchange",
}
"""What a move is called, by its steps there and back."""
STEPS = {"slice": "cut", "mask": "on_first", "pad": "among_zeros"}
"""What a step is called; the others are called as they are."""
SAID = {
    "slice": "each rank takes its part",
    "mask": "on the first rank alone",
    "pad": "each part among zeros",
    "all_gather": "parts are put together",
    "all_to_all": "cut along another dimension",
    "reduce_scatter": "added up and cut",
    "all_reduce": "added up",
    ARRIVE: "rows reach their experts",
    LEAVE: "rows come back from their experts",
    OWN: "each rank takes back its own rows",
    ARRIVE_WHOLE: "rows reach their experts, whole",
    LEAVE_IN_PARTS: "parts of rows come back from their experts",
}
ROWS = (ARRIVE, LEAVE, OWN, ARRIVE_WHOLE, LEAVE_IN_PARTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonDialect(ABC):
    """What dialects have in common: moves, and a rank's parts of constants and of a batch."""

    sizes: Mapping[str, int]
    """How many ranks there are along every axis."""
    batch: tuple[str, ...]
    """The axes along which a rank is given its part of a batch."""
    constants: Mapping[str, str]
    """The expression of every constant, by its law."""

    @abstractmethod
    def ranks(self, step: Step) -> str:
        """The ranks that a step is among, as an argument."""

    @abstractmethod
    def part(self, text: str, axis: str, dim: int, layout: Layout, extent: int, where: str) -> str:
        """A rank's part of a value that all have, along an axis that cuts a dimension of so many elements."""

    def constant(self, call: LocalOp) -> str:
        """A rank's part of a constant."""
        law, shape = str(call.attrs["law"]), call.attrs["shape"]
        if law not in self.constants:
            raise refuse(call.op, f"the constant {law}, whose lines are not known")
        assert isinstance(shape, tuple)
        text = self.constants[law]
        for dim, extent in enumerate(shape):
            for axis, layout in call.cuts.get(f"d{dim}", ()):
                assert isinstance(extent, int)
                text = self.part(text, axis, dim, layout, extent, call.op.name)
        return text

    def entry(self, state: State, type_: Type) -> str:
        """A rank's part of an input that it is given whole, but for the batch."""
        text = "%0"
        for dim, shards in enumerate(state.dims):
            for shard in shards:
                if dim or shard.axis not in self.batch:
                    text = self.part(text, shard.axis, dim, shard.layout, type_.shape[dim], str(state))
        return text

    def move(self, way: Way, type_: Type, *, trained: bool) -> tuple[str, str]:
        if not trained:
            return self.steps("%0", way.there, way.starts, type_.shape), self.told(way)
        name = NAMED.get((tuple(s.kind for s in way.there), tuple(s.kind for s in way.back)))
        if name is not None and not self.unlike(way):
            step, shape = (way.there or way.back)[0], type_.shape if way.there else self.after(way.there, type_.shape)
            return f"{name}({self.arguments('%0', step, shape)})", self.told(way)
        return f"moved(%0, {self.there(way, type_)}, {self.back(way, type_)})", self.told(way)

    def unlike(self, way: Way) -> bool:
        """Whether the steps of a named way concern other axes, dimensions or reductions."""
        if len(way.there) != 1 or len(way.back) != 1:
            return any(step.reduction != "sum" for step in way.there)
        there, back = way.there[0], way.back[0]
        if there.kind == "all_to_all":
            return (there.axes, there.dim, there.target) != (back.axes, back.target, back.dim) or bool(
                str(there.layout) or str(back.layout)
            )
        return (there.axes, there.dim) != (back.axes, back.dim) or str(there.layout) != str(back.layout)

    def function(self, name: str, steps: Sequence[Step], starts: Placement, shape: tuple[int, ...]) -> str:
        return f"lambda {name}: {self.steps(name, steps, starts, shape)}" if steps else "as_it_is"

    def there(self, way: Way, type_: Type) -> str:
        return self.function("x", way.there, way.starts, type_.shape)

    def back(self, way: Way, type_: Type) -> str:
        return self.function("grad", way.back, way.state.grad, self.after(way.there, type_.shape))

    def steps(self, text: str, steps: Sequence[Step], starts: Placement, shape: tuple[int, ...]) -> str:
        for step in steps:
            if step.kind in ROWS:
                text = f"{step.kind}({text}, %{step.dim}{f', {step.target}' * (step.target >= 0)})"
                shape = self.after((step,), shape)
                continue
            text, held = f"{STEPS.get(step.kind, step.kind)}({self.arguments(text, step, shape)})", starts.dims
            shape, starts = self.after((step,), shape), after(starts, step)
            if step.kind == "all_to_all" and (layout := nested(held[step.dim][-1].layout, shape[step.dim], str(step))):
                text = f"in_order({text}, {self.ranks(step)}, {step.dim}{layout})"
        return text

    def after(self, steps: Sequence[Step], shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a shard after these steps."""
        found = list(shape)
        for step in steps:
            parts = prod(self.sizes[axis] for axis in step.axes)
            if step.kind in ("all_gather", "all_to_all", "pad"):
                found[step.dim] *= parts
            if step.kind in ("slice", "reduce_scatter"):
                found[step.dim] //= parts
            if step.kind in ("all_to_all", LEAVE_IN_PARTS):
                found[step.target] //= parts
            if step.kind == ARRIVE_WHOLE:
                found[step.target] *= parts
        return tuple(found)

    def arguments(self, text: str, step: Step, shape: tuple[int, ...]) -> str:
        """The arguments of a step on a shard of this shape, or of a named move that begins with it."""
        given = [text, self.ranks(step)]
        if step.dim >= 0:
            given.append(str(step.dim))
        if step.target >= 0:
            given.append(str(step.target))
        if step.reduction != "sum":
            given.append(literal(step.reduction))
        cut = step.target if step.kind == "all_to_all" else step.dim
        gathers = step.kind in ("all_gather", "pad")
        whole = (self.after((step,), shape) if gathers else shape)[cut] if cut >= 0 else 0
        return ", ".join(given) + nested(step.layout, whole, str(step))

    def told(self, way: Way) -> str:
        there = " and ".join(f"{SAID[step.kind]} over {'.'.join(step.axes)}" for step in way.there)
        back = " and ".join(f"{SAID[step.kind]} over {'.'.join(step.axes)}" for step in way.back)
        return "; ".join([*([there] if there else []), *([f"gradient: {back}"] if back and not there else [])])

    def moves(self, ways: Sequence[Way], type_: Type) -> tuple[str, str]:
        there, back = list(dict.fromkeys(way.there for way in ways)), list(dict.fromkeys(way.back for way in ways))
        given = [
            f"({there.index(w.there)}, {self.there(w, type_)}, {back.index(w.back)}, {self.back(w, type_)})"
            for w in ways
        ]
        return f"several(%0, {', '.join(given)})", "for several readers"

    def trip(self, step: Step) -> str:
        name = "to_all" if step.kind == "all_gather" else "parts_to_experts" if in_parts(step) else "to_experts"
        return f"{name}(%0, {self.ranks(step)})"
