"""The JAX dialect: operators, moves between devices, entries and parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.backends.jax_.emit.printed.expressions import group, part
from meshwright.backends.jax_.emit.printed.operators import WRITERS
from meshwright.backends.printing import LocalOp
from meshwright.backends.printing.expressions import refuse
from meshwright.backends.printing.moves import Moves
from meshwright.ir.errors import EmissionPrinted
from meshwright.ir.graph.graph import Param, Type
from meshwright.ir.program.routes import Way
from meshwright.ir.quoting import literal
from meshwright.ir.sharding.placement import Placement, State
from meshwright.ir.sharding.reshard import Step

PARAMS = "params"
"""What functions call the parameters that they read, by path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """How a parameter is read: its type where it is stored, the steps that gather it, and those that its gradient takes
    back in every micro-batch."""

    stored: Placement
    shape: tuple[int, ...]
    there: tuple[Step, ...]
    back: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Jax(Moves):
    """The dialect."""

    batch: tuple[str, ...]
    """The axes along which a device is given its part of a batch."""
    constants: Mapping[str, str]
    """The expression of every constant, by its law."""
    reads: Mapping[str, Read]
    """The parameters of the body, by value."""

    def ranks(self, step: Step) -> str:
        return group(step.axes)

    def operator(self, call: LocalOp) -> str:
        if call.op.kind == "constant":
            return self.constant(call)
        if call.op.kind not in WRITERS or call.rows or call.op.draws:
            raise refuse(call.op, "no code is written for it yet")
        return WRITERS[call.op.kind](call)

    def constant(self, call: LocalOp) -> str:
        text, shape = self.constants[str(call.attrs["law"])], call.attrs["shape"]
        assert isinstance(shape, tuple)
        for dim, extent in enumerate(shape):
            for axis, layout in call.cuts.get(f"d{dim}", ()):
                assert isinstance(extent, int)
                text = part(text, axis, dim, layout, extent, call.op.name)
        return text

    def trip(self, step: Step) -> str:
        raise EmissionPrinted(place=str(step), cause="rows of experts travel in numbers that are known at run time")

    def entry(self, state: State, type_: Type) -> str:
        text, cut = "%0", {shard.axis for shard in (state.dims[0] if state.dims else ())}
        if state.dims and not cut.issuperset(self.batch):
            raise EmissionPrinted(place="an entry of the batch", cause="it is read whole where devices have parts")
        for dim, shards in enumerate(state.dims):
            for shard in shards:
                if dim or shard.axis not in self.batch:
                    text = part(text, shard.axis, dim, shard.layout, type_.shape[dim], str(state))
        return text

    def parameter(self, param: Param, state: State, path: str) -> str:
        text, read = f"{PARAMS}[{literal(path)}]", self.reads[param.value]
        if not read.there and not read.back:
            return text
        way = Way(state, read.there, read.back, read.stored)
        return self.move(way, Type(read.shape, "f32"), trained=True)[0].replace("%0", text)

    def by_rank(self, axis: str, numbers: Sequence[str]) -> str:
        raise EmissionPrinted(place=axis, cause="devices have unequal parts")

    def update(self) -> str:
        raise EmissionPrinted(place="a buffer", cause="no code is written yet for a state that is not trained")

    def detached(self, text: str) -> str:
        return f"jax.lax.stop_gradient({text})"

    def let_go(self, names: Sequence[str]) -> str:
        return ""
