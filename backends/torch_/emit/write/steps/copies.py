"""`sum_copies`: gradients of parameters that a tensor axis cuts and other axes copy. DDP knows nothing of DTensors."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.torch_.emit.read.axes import joined
from meshwright.backends.torch_.emit.write.parts import Parts


def sum_copies(parts: Parts) -> Iterator[str]:
    sums = parts.partial_gradients
    yield "def sum_copies(model: nn.Module, mesh: DeviceMesh) -> None:"
    yield '    """Add up the gradients of all copies of each parameter."""'
    yield f'    copies = mesh["{parts.axes.copied}"].get_group()'
    if sums:
        everyone = (*parts.axes.copies, str(parts.axes.tensor))
        yield f'    everyone = mesh["{joined(everyone)}"].get_group()'
    if parts.summed_otherwise and parts.axes.tensor is None:
        yield from _by_name("copies", tensor=False)
        return
    chosen = sums or bool(parts.summed_otherwise)
    yield "    works = []"
    named = bool(parts.summed_otherwise)
    yield f"    for {'name, ' * named}parameter in model.{'named_' * named}parameters():"
    yield f"        grad{', group' * chosen} = parameter.grad{', copies' * chosen}"
    yield "        if grad is None:"
    yield "            continue"
    yield "        if isinstance(grad, DTensor) and isinstance(parameter, DTensor):"
    if sums:
        yield "            if any(placement.is_partial() for placement in grad.placements):"
        yield f"                group = everyone  # sums over {parts.axes.tensor} besides"
        yield "                grad = DTensor.from_local(grad.to_local(), grad.device_mesh, parameter.placements)"
    yield "            parameter.grad = grad.redistribute(placements=parameter.placements)"
    yield "            grad = parameter.grad.to_local()"
    if parts.summed_otherwise:
        yield from _groups()
    else:
        yield f"        works.append(dist.all_reduce(grad, group={'group' if sums else 'copies'}, async_op=True))"
    yield "    for work in works:"
    yield "        work.wait()"


def sum_scalars(parts: Parts) -> Iterator[str]:
    """The function that sums gradients of parameters that `fully_shard` does not take."""
    low = parts.precision.sums not in ("", "torch.float32")
    yield "def sum_scalars(model: nn.Module, mesh: DeviceMesh) -> None:"
    yield '    """Add up the gradients of all copies of scalar parameters."""'
    yield f'    copies = mesh["{parts.axes.copied}"].get_group()'
    if parts.alike:
        yield "    for name, parameter in model.named_parameters():"
        yield '        if any(re.search(rf"(^|\\.){pattern}$", name) for pattern in ALIKE):'
        yield "            continue  # all ranks compute the whole gradient"
    else:
        yield "    for parameter in model.parameters():"
    yield "        if parameter.grad is None or parameter.ndim:"
    yield "            continue"
    yield "        grad = parameter.grad"
    if parts.axes.tensor is not None:
        yield "        if isinstance(grad, DTensor) and isinstance(parameter, DTensor):"
        yield "            parameter.grad = grad.redistribute(placements=parameter.placements)"
        yield "            grad = parameter.grad.to_local()"
    if low:
        yield f"        whole = grad.to({parts.precision.sums})"
        yield "        dist.all_reduce(whole, group=copies)"
        yield "        grad.copy_(whole)"
    else:
        yield "        dist.all_reduce(grad, group=copies)"


def sum_apart(parts: Parts) -> Iterator[str]:
    """The function that sums gradients of parameters that axes cut apart and no other axis shards."""
    yield "def sum_apart(model: nn.Module, mesh: DeviceMesh) -> None:"
    yield '    """Add up the gradients of parameters of which every rank holds a part whole, and others have copies."""'
    tensor = {axis for axes in parts.summed_otherwise.values() for axis in axes} - set(parts.axes.copies)
    yield from _by_name("None", tensor=bool(tensor))


def _by_name(group: str, *, tensor: bool) -> Iterator[str]:
    """Lines by parameter name: some parameters have copies along some axes alone, and ranks along others have their
    whole gradient; `group`: the group of all others; `tensor`: gradients of some are sums over a tensor axis, too."""
    yield "    works = []"
    yield "    for name, parameter in model.named_parameters():"
    yield "        if parameter.grad is None:"
    yield "            continue"
    yield f"        grad, group = parameter.grad, {group}"
    yield "        if isinstance(grad, DTensor):"
    yield "            grad = grad.to_local()"
    yield from _groups()
    if tensor:
        yield "        if group is not None and isinstance(parameter, DTensor):  # no sum over ranks any more"
        yield "            ranks, placed = parameter.device_mesh, parameter.placements"
        yield "            size, stride = parameter.shape, parameter.stride()"
        yield "            parameter.grad = DTensor.from_local(grad, ranks, placed, shape=size, stride=stride)"
    yield "    for work in works:"
    yield "        work.wait()"


def _groups() -> Iterator[str]:
    """The axes along which gradients of each parameter add up, if there are any."""
    yield "        for pattern, axis in SUMMED.items():"
    yield '            if re.search(rf"(^|\\.){pattern}$", name):'
    yield "                group = mesh[axis].get_group() if axis else None"
    yield "        if group is not None:"
    yield "            works.append(dist.all_reduce(grad, group=group, async_op=True))"
