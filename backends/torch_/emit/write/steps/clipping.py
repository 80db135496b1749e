"""`clip`: the norm of all gradients, limited. Gradients may be cut over different meshes, or not at all; a norm is
taken of those of one mesh at a time."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.torch_.emit.write.parts import Parts


def clip(parts: Parts) -> Iterator[str]:
    staged = parts.pipeline is not None
    tied = parts.pipeline is not None and bool(parts.pipeline.tied)
    yield f"def clip(model: {'Pipeline' if tied else 'nn.Module'}, most: float{', mesh: DeviceMesh' * staged}) -> None:"
    yield '    """Scale all gradients down together, to a norm of at most so much."""'
    if not parts.distributed and not staged:
        yield "    nn.utils.clip_grad_norm_(model.parameters(), most)"
        return
    if tied:
        yield "    stage_of, name = TIED[-1]  # the parameter of two stages counts on the first one"
        yield "    twice = {stage.get_parameter(name) for stage in model.stages if stage.index == stage_of}"
    yield from norms(" and p not in twice" if tied else "")
    yield "    total = nn.utils.get_total_norm(norms)"
    if staged:
        yield "    squares = total**2"
        yield '    dist.all_reduce(squares, group=mesh["pp"].get_group())'
        yield "    total = squares.sqrt()"
    yield from scaled("total")


def norms(counted: str = "") -> Iterator[str]:
    """Norms of gradients over one mesh each."""
    yield "    alike: dict[DeviceMesh | None, list[nn.Parameter]] = {}"
    yield "    for parameter in model.parameters():"
    yield "        if parameter.grad is not None:"
    yield "            over = parameter.grad.device_mesh if isinstance(parameter.grad, DTensor) else None"
    yield "            alike.setdefault(over, []).append(parameter)"
    yield "    norms = []"
    yield "    for parameters in alike.values():"
    yield f"        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None{counted}])"
    yield "        norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)"


def scaled(total: str) -> Iterator[str]:
    """Lines that scale all gradients by the norm of all of them."""
    yield "    for parameters in alike.values():"
    yield f"        nn.utils.clip_grads_with_norm_(parameters, most, {total})"
