"""The order of fused weights, in which shards are parts of every section."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.torch_.emit.read.sections import named
from meshwright.backends.torch_.emit.write.parts import Parts
from meshwright.ir.quoting import literal, pattern


def table(parts: Parts) -> Iterator[str]:
    """The constant `SECTIONS`."""
    sizes = "their sizes, parts by stage" if parts.sections_by_stage else "their sizes, the axis"
    yield f"SECTIONS = {{  # parameters by name: the dimension that holds several values side by side, {sizes}"
    found = parts.sections_by_stage or named(parts.subject.pieces, parts.fused)
    for name, cut in found.items():
        shown = ", ".join(literal(one) if isinstance(one, str) else str(one) for one in cut)
        yield f"    {pattern(name)}: ({shown}),"
    yield "}"


def in_order(parts: Parts) -> Iterator[str]:
    """The first lines of `parallelize`, which reorder fused weights, and statistics that are cut like them."""
    yield "    for name, parameter in model.named_parameters():"
    yield "        parameter.data = reordered(name, parameter.data)"
    held = {path for piece, _ in parts.fused for param in piece.graph.params if param.buffer for path in param.paths}
    if not held.isdisjoint(path for _, cut in parts.fused for path in cut):
        yield "    for name, buffer in model.named_buffers():"
        yield "        buffer.data = reordered(name, buffer.data)"


def in_order_of_ranks(parts: Parts) -> Iterator[str]:
    said, begins, ranks = BY_STAGE if parts.sections_by_stage else BY_AXIS
    yield from REORDERED.replace("SAID", said).replace("BEGINS", begins).replace("PARTS", ranks).split("\n")


BY_STAGE = (
    ", ranks",
    "    stage = next(stage for stage, ranks in enumerate(RANKS) if dist.get_rank() in ranks)\n",
    "ranks[stage]",
)
"""What differs in `reordered` where every stage has a mesh of its own."""
BY_AXIS = (", axis", "", "MESH[axis]")
"""The same where all have one."""

REORDERED = '''\
def reordered(name: str, tensor: Tensor, *, back: bool = False) -> Tensor:
    """What SECTIONS says of a parameter, or of a state of it: shards in order hold a part of every section. Or `back`
    in the model's own order."""
BEGINS    for pattern, (dim, sizesSAID) in SECTIONS.items():
        if tensor.ndim and re.fullmatch(rf"(state\\.)?{pattern}(\\.\\w+)?", name):
            sections = torch.arange(sum(sizes), device=tensor.device).split(sizes)
            parts = zip(*(section.chunk(PARTS) for section in sections), strict=True)
            order = torch.cat([one for part in parts for one in part])
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            moved = whole.index_select(dim, order.argsort() if back else order)
            if isinstance(tensor, DTensor):
                return distribute_tensor(moved, tensor.device_mesh, tensor.placements, src_data_rank=None)
            return moved
    return tensor


def all_reordered(state: dict[str, Any], *, back: bool = False) -> dict[str, Any]:
    """The same of all parameters, or of all states of them."""
    return {name: reordered(name, one, back=back) if isinstance(one, Tensor) else one for name, one in state.items()}'''
