"""`train_step`: forward, backward, and the optimizer's step."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.torch_.emit.write.frame.lines import loss_of
from meshwright.backends.torch_.emit.write.parts import Parts
from meshwright.backends.torch_.emit.write.steps.scaling import SCALED
from meshwright.backends.torch_.emit.write.steps.weighing import (
    MODE,
    counted,
    mixed,
    share_of,
    totals,
    weighs_apart,
    weight_of,
)
from meshwright.ir.analysis.weights import COUNT, MEAN, SUM
from meshwright.ir.quoting import keywords, literal


def given(parts: Parts, batch: str) -> str:
    """Arguments of the model: entries of a batch."""
    if parts.printed is not None:
        return ", ".join(entry(parts, batch, name) for name in parts.printed.entries)
    return ", ".join(keywords({name: entry(parts, batch, name) for name in parts.subject.calls.entries}))


def entry(parts: Parts, batch: str, name: str) -> str:
    """An entry of a batch as the model is given it: cast where parameters are in bf16, and `fully_shard` casts
    nothing."""
    numbers = {item.value for item, type_ in parts.subject.fold.inputs if type_.dtype == "f32"}
    low = ".to(torch.bfloat16)" if parts.precision.low and name in numbers else ""
    return f"{batch}[{literal(name)}]{low if name in parts.subject.calls.entries else ''}"


def train_step(parts: Parts) -> Iterator[str]:
    called = given(parts, "batch")
    yield "def train_step("
    yield "    model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor], mesh: DeviceMesh"
    yield ") -> Tensor:"
    yield '    """One step; returns the loss of the global batch. Gradients stay until the next step."""'
    yield "    optimizer.zero_grad()"
    yield from weight(parts)
    within = contexts(parts, "share")
    deep = 8 if within else 4
    if within:
        yield f"    with {within}:"
    yield from loss_of(deep, called, "batch", weighed_by(parts), own_loss(parts))
    if parts.precision.scaled:
        yield f"{' ' * deep}loss.{SCALED}"
    if parts.axes.copied is None or parts.added:
        yield f"{' ' * deep}loss.backward()"
    else:
        yield f"{' ' * deep}(loss * {parts.copies_said}).backward()  # gradients are averaged over the group"
    yield from after_backward(parts)
    yield from stepped(parts)
    if parts.printed is not None:
        yield "    return loss.detach()"
        return
    yield "    total = loss.detach()"
    if parts.shared is not None:
        yield "    dist.all_reduce(total, group=group)"
    yield "    return total"


def own_loss(parts: Parts) -> str | None:
    """The place of the loss in the model's result; printed models return it."""
    return parts.subject.calls.own_loss if parts.printed is None else ""


def after_backward(parts: Parts) -> Iterator[str]:
    """Lines for gradients before the optimizer's step."""
    if parts.summed:
        yield "    sum_copies(model, mesh)"
    elif parts.partial_gradients:
        yield "    for parameter in model.parameters():"
        yield "        grad = parameter.grad"
        yield "        if isinstance(grad, DTensor) and any(placement.is_partial() for placement in grad.placements):"
        yield "            parameter.grad = grad.redistribute(placements=[Replicate()])"
    if parts.sums_scalars:
        yield "    sum_scalars(model, mesh)"
    if parts.sums_apart:
        yield "    sum_apart(model, mesh)"
    if parts.stays_gathered:
        yield "    for unit in model.modules():"
        yield "        if isinstance(unit, FSDPModule):"
        yield "            unit.reshard()"
    yield from summed(parts)


def summed(parts: Parts) -> Iterator[str]:
    """Lines that sum the gradients of all stages."""
    if parts.untied or parts.held_twice:
        yield "    join_tied(model)"
    if parts.pipeline is not None and parts.pipeline.tied:
        yield "    sum_tied(model)"
    yield from clipping(parts)


def clipping(parts: Parts) -> Iterator[str]:
    """Lines that limit the norm of gradients."""
    if parts.precision.scaled:
        yield "    finite = SCALE.undo(model)"
    yield "    if CLIP:"
    yield f"        clip(model, CLIP{', mesh' * (parts.pipeline is not None)})"


def stepped(parts: Parts) -> Iterator[str]:
    if parts.precision.scaled:
        yield "    if finite:"
        yield "        optimizer.step()"
    else:
        yield "    optimizer.step()"
    if parts.untied or parts.held_twice:
        yield "    copy_tied(model)"


def weight(parts: Parts) -> Iterator[str]:
    """The share of this rank in the loss of the whole batch."""
    if parts.shared is None:
        return
    yield f'    group = mesh["{parts.shared}"].get_group()'
    how, several = weight_of(parts.subject), mixed(parts.subject)
    if several:
        yield from totals(parts)
    if how == MEAN:
        yield f"    share = {share_of(parts)}  # of a mean over samples"
    elif how.kind == COUNT:
        yield f"    targets = {counted(how, f'batch[{literal(how.entry)}]')}.float()"
        yield "    share = targets.clone()"
        yield "    dist.all_reduce(share, group=group)"
        yield "    share = targets / share  # of all positions that have a target, those of this rank"


def weighed_by(parts: Parts) -> str:
    """The factor of the loss in `train_step`; nothing where it is a sum, or that of the whole batch."""
    return "" if parts.shared is None or weight_of(parts.subject) == SUM else "share"


def contexts(parts: Parts, share: str) -> str:
    """Contexts in which the loss and its gradients are computed; nothing where there are none."""
    return f"{MODE}(totals, {share})" if weighs_apart(parts) else ""
