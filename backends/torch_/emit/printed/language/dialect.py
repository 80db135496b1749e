"""The PyTorch dialect: operators, moves between ranks, entries and parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from meshwright.backends.printing import LocalOp
from meshwright.backends.printing.rows import ARRIVE, LEAVE, OWN
from meshwright.backends.torch_.emit.printed.language.attention import NO_RING
from meshwright.backends.torch_.emit.printed.language.experts import of_rows
from meshwright.backends.torch_.emit.printed.language.expressions import called, every, nested, part, refuse
from meshwright.backends.torch_.emit.printed.language.operators import WRITERS
from meshwright.backends.torch_.emit.printed.language.ring import MULTIPLE, rows_fit
from meshwright.backends.torch_.emit.read.axes import joined
from meshwright.ir.errors import EmissionPrinted
from meshwright.ir.graph.graph import Param, Type
from meshwright.ir.program.routes import Way
from meshwright.ir.quoting import attribute, is_name, literal
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
}
TERMS = "terms"
"""What functions call that which terms of the loss count for in a micro-batch."""
FLOAT8_TILE = 16
"""What kernels in float8 want the sizes of a weight to be multiples of."""
ROWS = (ARRIVE, LEAVE, OWN)


@dataclass(frozen=True, slots=True)
class Torch:
    """The dialect.

    - `tensor` is the axis along which all parameters are DTensors; along others those are that it cuts.
    - `constants` has the expression of every constant, by its law.
    """

    tensor: str | None
    batch: tuple[str, ...]
    """The axes along which a rank is given its part of a batch."""
    flat: Callable[[tuple[str, ...]], str]
    """What several axes are called that act as one."""
    constants: Mapping[str, str]
    device: str
    sizes: Mapping[str, int]
    """How many ranks there are along every axis."""
    computes: str = ""
    """What parameters are cast to that no unit of `fully_shard` holds and casts; empty if they are not."""
    ring: str = "cpu"
    """Torch's fused kernel that computes attention in a ring."""
    terms: Mapping[str, int] = field(default_factory=dict)
    """Values that are weighed in the loss each in its own way, by their numbers among these ways."""
    float8: frozenset[str] = frozenset()
    """The operators that multiply in float8, by name, if kernels take what a rank has of the weight."""

    compiled: bool = False
    """Whether torch compiles blocks, and so lets go of what they no longer need by itself."""

    def operator(self, call: LocalOp) -> str:
        if call.op.kind == "constant":
            return self.constant(call)
        if call.coupled and not rows_fit(self.ring, many := call.given[0].shape[2]):
            cause = f"a ring of {many} tokens per rank; this kernel of CUDA counts rows in {MULTIPLE}s"
            raise refuse(call.op, cause, NO_RING)
        if call.op.name in self.float8 and not any(extent % FLOAT8_TILE for extent in call.given[1].shape):
            x, weight, *bias = every(call)
            return called("linear_in_float8", x, f"{weight}.t()" if call.attrs.get("transposed") else weight, *bias)
        write = WRITERS[call.op.kind]
        text = (of_rows(call, write) if call.rows else write(call)).replace("DEVICE", literal(self.device))
        if call.op.results[0] in self.terms:
            return f"{text} * {TERMS}[0, {self.terms[call.op.results[0]]}]"
        return self.drawn(call, text) if call.op.draws else text

    def drawn(self, call: LocalOp, text: str) -> str:
        """An operator that draws: ranks with different parts of its value draw different numbers, and ranks with the
        same part the same ones. Ranks with samples of their own do so anyway."""
        cut = {axis for axes in call.cuts.values() for axis, _ in axes}
        apart = [axis for axis in self.sizes if axis in cut and axis not in self.batch]
        return f"drawn_apart(lambda: {text}, {', '.join(apart)})" if apart else text

    def constant(self, call: LocalOp) -> str:
        law = str(call.attrs["law"])
        if law not in self.constants:
            raise refuse(call.op, f"the constant {law}, whose lines are not known")
        text, shape = self.constants[law], call.attrs["shape"]
        assert isinstance(shape, tuple)
        for dim, extent in enumerate(shape):
            for axis, layout in call.cuts.get(f"d{dim}", ()):
                assert isinstance(extent, int)
                text = part(text, axis, dim, layout, extent, call.op.name)
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
                text = f"{step.kind}({text}, %{step.dim})"
                continue
            text, held = f"{STEPS.get(step.kind, step.kind)}({self.arguments(text, step, shape)})", starts.dims
            shape, starts = self.after((step,), shape), after(starts, step)
            if step.kind == "all_to_all" and (layout := nested(held[step.dim][-1].layout, shape[step.dim], str(step))):
                text = f"in_order({text}, {self.flat(step.axes)}, {step.dim}{layout})"
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
            if step.kind == "all_to_all":
                found[step.target] //= parts
        return tuple(found)

    def arguments(self, text: str, step: Step, shape: tuple[int, ...]) -> str:
        """The arguments of a step on a shard of this shape, or of a named move that begins with it."""
        if len(step.axes) > 1 and step.kind != "all_reduce" and self.flat(step.axes) != joined(step.axes):
            raise EmissionPrinted(place=str(step), cause="its axes are in another order than in the mesh")
        given = [text, self.flat(step.axes)]
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
        return f"{'to_all' if step.kind == 'all_gather' else 'to_experts'}(%0, {self.flat(step.axes)})"

    def entry(self, state: State, type_: Type) -> str:
        text, cut = "%0", {shard.axis for shard in (state.dims[0] if state.dims else ())}
        if state.dims and not cut.issuperset(self.batch):
            raise EmissionPrinted(place="an entry of the batch", cause="it is read whole where ranks have a part of it")
        for dim, shards in enumerate(state.dims):
            extent = type_.shape[dim]
            for shard in shards:
                if dim == 0 and shard.axis in self.batch:
                    continue
                text = part(text, shard.axis, dim, shard.layout, extent, str(state))
        return text

    def parameter(self, param: Param, state: State, path: str, parted: Sequence[str] = ()) -> str:
        """A parameter or buffer as it is read; along the axes in `parted`, ranks contribute parts of its gradient."""
        text = self._local(param, state, path)
        for axis in parted:
            text = f"in_parts({text}, {axis})"
        return text

    def _local(self, param: Param, state: State, path: str) -> str:
        text = path_of("self", path)
        if param.buffer and any(state.dims):
            return f"local({text})"
        if param.buffer or (self.tensor is None and not any(state.dims)):
            return text
        text = f"{'local_of_sum' if self.tensor in state.grad_partial else 'local'}({text})"
        apart = any(shard.axis != self.tensor for dim in state.dims for shard in dim)
        return f"{text}.to({self.computes})" if self.computes and apart else text

    def by_rank(self, axis: str, numbers: Sequence[str]) -> str:
        return f"({', '.join(numbers)})[{axis}.get_local_rank()]"

    def update(self) -> str:
        return "%0.copy_(%1.detach())"

    def detached(self, text: str) -> str:
        return f"{text}.detach()"

    def let_go(self, names: Sequence[str]) -> str:
        return "" if self.compiled else f"del {', '.join(names)}"


def path_of(holder: str, path: str) -> str:
    """A parameter or buffer of a module, as the module's own code reads it: casts put another value there."""
    *modules, last = path.split(".")
    if all(map(is_name, modules)):
        return attribute(".".join([holder, *modules]), last)
    return attribute(f"{holder}.get_submodule({literal('.'.join(modules))})", last)
