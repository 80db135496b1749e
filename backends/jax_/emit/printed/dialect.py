"""The JAX dialect: operators, moves between devices, entries and parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.backends.jax_.emit.printed.expressions import group, part
from meshwright.backends.jax_.emit.printed.operators import WRITERS
from meshwright.backends.printing import LocalOp
from meshwright.backends.printing.common import CommonDialect
from meshwright.backends.printing.expressions import called, refuse, value
from meshwright.ir.errors import EmissionPrinted
from meshwright.ir.graph.graph import Attr, Param, Type
from meshwright.ir.program.routes import Way
from meshwright.ir.quoting import literal
from meshwright.ir.sharding.layouts import Layout
from meshwright.ir.sharding.placement import Placement, State
from meshwright.ir.sharding.reshard import Step

PARAMS = "params"
"""What functions call the parameters that they read, by path."""
KEY = "key"
"""What they call the key that they draw by."""
CHANGED = "changed"
"""What they call what buffers are set to, by path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """How a parameter is read: where it is stored, the type of a shard, the steps that gather it, and those that its
    gradient takes back in every micro-batch."""

    stored: Placement
    type: Type
    there: tuple[Step, ...]
    back: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Jax(CommonDialect):
    """The dialect."""

    reads: Mapping[str, Read]
    """The parameters of the body, by value."""
    sites: Sequence[str] = ()
    """The operators that draw, by name."""
    regathers: bool = False
    """Whether nothing but parameters is made again for the backward pass: what else is moved is kept by name then."""

    def ranks(self, step: Step) -> str:
        return group(step.axes)

    def operator(self, call: LocalOp) -> str:
        if call.op.kind == "constant":
            return self.constant(call)
        if call.op.kind == "dropout" and not call.rows:
            same = call.op.integers("same") if "same" in call.attrs else ()
            rank = len(call.given[0].shape)
            return self.dropped("%0", call, "p", [f"d{dim}" for dim in range(rank) if dim not in same], same)
        if call.op.kind not in WRITERS or call.rows or call.op.attr("random"):
            raise refuse(call.op, "no code is written for it yet")
        text = WRITERS[call.op.kind](call)
        if not call.op.draws:
            return text
        dropped = self.dropped("shares", call, "dropout", ("b", "hk", "g", "sq"), ())
        return f"{text[:-1]}, dropped=lambda shares: {dropped})"

    def dropped(self, text: str, call: LocalOp, rate: str, factors: Sequence[str], same: tuple[int, ...]) -> str:
        """Dropout. Devices draw alike what all of them have, and apart what they have parts of: by these factors."""
        axes = dict.fromkeys(axis for factor in factors for axis, _ in call.cuts.get(factor, ()))
        named: dict[str, Attr] = {"axes": tuple(axes)} if axes else {}
        named |= {"same": same} if same else {}
        keep = value(round(1 - float(str(call.attrs.get(rate, 0.0))), 6))
        return called("dropout", text, KEY, str(self.sites.index(call.op.name)), keep, **named)

    def part(self, text: str, axis: str, dim: int, layout: Layout, extent: int, where: str) -> str:
        return part(text, axis, dim, layout, extent, where)

    def trip(self, step: Step) -> str:
        raise EmissionPrinted(place=str(step), cause="rows of experts travel in numbers that are known at run time")

    def parameter(self, param: Param, state: State, path: str) -> str:
        text, read = f"{PARAMS}[{literal(path)}]", self.reads[param.value]
        if not read.there and not read.back:
            return text
        way = Way(state, read.there, read.back, read.stored)
        return super(Jax, self).move(way, read.type, trained=True)[0].replace("%0", text)

    def move(self, way: Way, type_: Type, *, trained: bool) -> tuple[str, str]:
        return self._kept(*super(Jax, self).move(way, type_, trained=trained))

    def moves(self, ways: Sequence[Way], type_: Type) -> tuple[str, str]:
        return self._kept(*super(Jax, self).moves(ways, type_))

    def _kept(self, text: str, says: str) -> tuple[str, str]:
        return (f"kept({text})" if self.regathers else text), says

    def by_rank(self, axis: str, numbers: Sequence[str]) -> str:
        raise EmissionPrinted(place=axis, cause="devices have unequal parts")

    def update(self) -> str:
        return ""

    def detached(self, text: str) -> str:
        return f"jax.lax.stop_gradient({text})"

    def let_go(self, names: Sequence[str]) -> str:
        return ""
