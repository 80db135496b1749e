"""`draw`: memory and weights for this rank's part of a model that was built without any."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.lines import quoted
from meshwright.backends.torch_.emit.read.allowed import device_of
from meshwright.backends.torch_.emit.read.axes import joined
from meshwright.backends.torch_.emit.write.parts import Parts
from meshwright.ir.quoting import literal


def draw(parts: Parts) -> Iterator[str]:
    """The function `draw`, along the axes of a plan."""
    tensor = parts.axes.tensor
    if parts.kept.units:
        both = parts.kept.over != parts.axes.copies
        shards = parts.axes.copies if both else (str(parts.axes.copied),)
    else:
        shards = (parts.axes.copied,) if parts.axes.copied is not None else ()
    yield from drawn(parts, (*shards, *([tensor] if tensor is not None else [])), distributed=parts.distributed)


def drawn(parts: Parts, axes: tuple[str, ...], *, distributed: bool) -> Iterator[str]:
    """The function `draw`, where these axes copy parameters, or cut those that are DTensors."""
    device = device_of(parts.subject)
    yield "def draw(model: nn.Module, mesh: DeviceMesh) -> None:"
    yield '    """Weights for this rank\'s part, as modules draw them; those of copies are one rank\'s."""'
    yield f'    model.to_empty(device="{device}")'
    held = "(*model.named_parameters(), *model.named_buffers())"
    yield f"    named = {held}"
    yield "    floats = {name: one.detach() for name, one in named if one.is_floating_point()}"
    yield "    for tensor in floats.values():"
    yield '        tensor.fill_(float("nan"))  # until it is drawn'
    yield "    torch.manual_seed(SEED + dist.get_rank())"
    yield "    for module in model.modules():"
    if parts.subject.calls.draws:
        yield "        model_file.draw_weights(module)"
    else:
        yield '        if hasattr(module, "reset_parameters"):'
        yield "            module.reset_parameters()"
    yield "    for name, tensor in floats.items():"
    if parts.reorders:
        yield "        tensor.copy_(reordered(name, tensor))"
    if not distributed:
        yield "        if tensor.isnan().any():"
        yield '            raise SystemExit(f"no module draws {name}")'
        for axis in axes:
            yield f'        dist.broadcast(tensor, group=mesh["{axis}"].get_group(), group_src=0)'
        return
    yield "        own = tensor.to_local() if isinstance(tensor, DTensor) else tensor"
    yield "        if own.isnan().any():"
    yield '            raise SystemExit(f"no module draws {name}")'
    yield "        over = set()"
    yield "        if isinstance(tensor, DTensor):"
    yield "            lies = zip(tensor.device_mesh.mesh_dim_names or (), tensor.placements, strict=True)"
    yield "            over = {axis for axis, how in lies if how.is_shard()}"
    if parts.copies.of_apart:
        made = {joined(one): one for one in (parts.kept.over, *parts.inside) if len(one) > 1}
        if made:
            shown = ", ".join(f"{literal(name)}: ({quoted(one)})" for name, one in made.items())
            yield f"            over |= {{one for axis in over for one in {{{shown}}}.get(axis, ())}}"
        axes = (*parts.axes.copies, *filter(None, (parts.axes.tensor,)))
    yield f"        for axis in ({quoted(axes)}{',' * (len(axes) == 1)}):"
    yield "            if axis not in over:"
    yield "                dist.broadcast(own, group=mesh[axis].get_group(), group_src=0)"
