"""`train_step`: forward, backward, and the optimizer's step."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.torch_.emit.parts import Parts
from meshwright.backends.torch_.emit.styles import LOSS
from meshwright.backends.torch_.emit.subject import Piece, Subject
from meshwright.backends.torch_.emit.writing.lines import WIDTH, call, loss_of_result, quoted
from meshwright.backends.torch_.emit.writing.scaling import SCALED
from meshwright.ir.errors import EmissionAxis
from meshwright.ir.fold import FromInput
from meshwright.ir.graph import Op
from meshwright.ir.quoting import keywords, literal

OWN = "own"
"""What steps call this rank's parts of the entries of a batch that are cut by positions."""


def own_parts(parts: Parts, batch: str, deep: str) -> Iterator[str]:
    """The line that makes them."""
    cut = [name for name in parts.subject.calls.entries if parts.context is not None and name in parts.context.entries]
    if cut:
        names = f"({quoted(cut)}{',' * (len(cut) == 1)})"
        made = f'name: DTensor.from_local({batch}[name], mesh["{parts.axes.context}"], [Shard(1)])'
        line = f"{deep}{OWN} = {{{made} for name in {names}}}"
        if len(line) <= WIDTH:
            yield line
        else:
            yield from (f"{deep}{OWN} = {{", f"{deep}    {made}", f"{deep}    for name in {names}", f"{deep}}}")


def given(parts: Parts, batch: str) -> str:
    """What the model is called with: entries of a batch, or this rank's parts of them."""
    if parts.printed is not None:
        return ", ".join(f"{batch}[{literal(name)}]" for name in parts.printed.entries)
    cut = parts.context.entries if parts.context is not None else ()
    held = {name: OWN if name in cut else batch for name in parts.subject.calls.entries}
    return ", ".join(keywords({name: f"{where}[{literal(name)}]" for name, where in held.items()}))


def train_step(parts: Parts) -> Iterator[str]:
    called = given(parts, "batch")
    yield "def train_step("
    yield "    model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor], mesh: DeviceMesh"
    yield ") -> Tensor:"
    yield '    """One step; returns the loss of the global batch. Gradients stay until the next step."""'
    yield "    optimizer.zero_grad()"
    yield from weight(parts)
    yield from own_parts(parts, "batch", "    ")
    deep = 8 if parts.sharded_loss else 4
    if parts.sharded_loss:
        yield f"    with {parts.loss_context}:"
    yield from loss_of(parts, deep, called, "batch", "" if parts.shared is None else "share")
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
    if parts.sharded_loss:
        yield "    if isinstance(total, DTensor):"
        yield "        total = total.to_local()  # all ranks of the tensor axis hold the whole sum"
    if parts.shared is not None:
        yield "    dist.all_reduce(total, group=group)"
    yield "    return total"


def loss_of(parts: Parts, deep: int, called: str, batch: str, weight: str = "") -> Iterator[str]:
    """The loss of a batch, times its weight: of what the model makes of it, or what a printed model returns."""
    if parts.printed is None:
        yield from loss_of_result(deep, called, batch, weight)
    else:
        product = f" * {weight}" if weight else ""
        yield from call(deep, "loss: Tensor = model", called.split(", "), product)


def after_backward(parts: Parts) -> Iterator[str]:
    """What is done to gradients before the optimizer's step."""
    if parts.summed:
        yield "    sum_copies(model, mesh)"
    elif parts.partial_gradients:
        yield "    for parameter in model.parameters():"
        yield "        grad = parameter.grad"
        yield "        if isinstance(grad, DTensor) and any(placement.is_partial() for placement in grad.placements):"
        yield "            parameter.grad = grad.redistribute(placements=[Replicate()])"
    if parts.sums_scalars:
        yield "    sum_scalars(model, mesh)"
    if parts.stays_gathered:
        yield "    for unit in model.modules():"
        yield "        if isinstance(unit, FSDPModule):"
        yield "            unit.reshard()"
    yield from summed(parts)


def summed(parts: Parts) -> Iterator[str]:
    """What is done to the gradients of all stages."""
    if parts.untied or parts.held_twice:
        yield "    join_tied(model)"
    if parts.pipeline is not None and parts.pipeline.tied:
        yield "    sum_tied(model)"
    yield from clipping(parts)


def clipping(parts: Parts) -> Iterator[str]:
    """The norm of gradients, limited."""
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
    """The share of this rank in the mean over all positions that have a target."""
    if parts.shared is None:
        return
    labels, ignored = targets_of(parts.subject)
    yield f'    group = mesh["{parts.shared}"].get_group()'
    yield f"    targets = (batch[{literal(labels)}] != {ignored}).sum().float()"
    yield "    share = targets.clone()"
    yield "    dist.all_reduce(share, group=group)"
    yield "    share = targets / share  # of all positions that have a target, those of this rank"


def targets_of(subject: Subject) -> tuple[str, int]:
    """The entry of the batch that holds the targets, and the value that says that there is none."""
    for piece in subject.pieces:
        for op in piece.graph.ops:
            if op.kind == LOSS and op.attr("reduction") == "mean":
                return _entry(piece, op), op.integer("ignore_index")
    raise _unweighed("the loss is no mean cross entropy")


def _entry(piece: Piece, op: Op) -> str:
    values = [item.value for item in piece.graph.inputs]
    if op.operands[1] in values:
        source = piece.segment.entry[values.index(op.operands[1])]
        if isinstance(source, FromInput):
            return source.name
    raise _unweighed("its targets are no entry of the batch")


def _unweighed(cause: str) -> EmissionAxis:
    return EmissionAxis(
        place="the loss",
        cause=f"what part each rank has in it cannot be told: {cause}",
        ways=("--fix dp=1",),
        fix="use F.cross_entropy on an entry of the batch",
    )
