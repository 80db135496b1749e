"""The PyTorch dialect: operators, moves between ranks, entries and parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from meshwright.backends.printing import LocalOp
from meshwright.backends.printing.common import CommonDialect
from meshwright.backends.printing.expressions import called, every, refuse
from meshwright.backends.torch_.emit.printed.language.attention import NO_RING
from meshwright.backends.torch_.emit.printed.language.experts import of_rows
from meshwright.backends.torch_.emit.printed.language.expressions import part
from meshwright.backends.torch_.emit.printed.language.operators import WRITERS
from meshwright.backends.torch_.emit.printed.language.ring import MULTIPLE, rows_fit
from meshwright.backends.torch_.emit.read.axes import joined
from meshwright.ir.errors import EmissionPrinted
from meshwright.ir.graph.graph import Param
from meshwright.ir.quoting import attribute, is_name, literal
from meshwright.ir.sharding.layouts import Layout
from meshwright.ir.sharding.placement import State
from meshwright.ir.sharding.reshard import Step

TERMS = "terms"
"""What functions call that which terms of the loss count for in a micro-batch."""
OTHER_ORDER = "its axes are in another order than in the mesh"
FLOAT8_TILE = 16
"""What kernels in float8 want the sizes of a weight to be multiples of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch(CommonDialect):
    """The dialect.

    - `tensor` is the axis along which all parameters are DTensors; along others those are that it cuts.
    """

    tensor: str | None
    flat: Callable[[tuple[str, ...]], str]
    """What several axes are called that act as one."""
    device: str
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

    def ranks(self, step: Step) -> str:
        if len(step.axes) > 1 and step.kind != "all_reduce" and self.flat(step.axes) != joined(step.axes):
            raise EmissionPrinted(place=str(step), cause=OTHER_ORDER)
        return self.flat(step.axes)

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

    def part(self, text: str, axis: str, dim: int, layout: Layout, extent: int, where: str) -> str:
        return part(text, axis, dim, layout, extent, where)

    def parameter(self, param: Param, state: State, path: str, parted: Sequence[str] = ()) -> str:
        """A parameter or buffer as it is read; along the axes in `parted`, ranks contribute parts of its gradient."""
        text = self._local(param, state, path, summed=self.tensor in (*state.grad_partial, *parted))
        for axis in parted:
            text = f"in_parts({text}, {axis})"
        return text

    def _local(self, param: Param, state: State, path: str, *, summed: bool) -> str:
        text = path_of("self", path)
        if param.buffer and any(state.dims):
            return f"local({text})"
        if param.buffer or (self.tensor is None and not any(state.dims)):
            return text
        text = f"{'local_of_sum' if summed else 'local'}({text})"
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
