"""`train_step` over micro-batches, one after the other: gradients add up, and are summed over ranks when the plan says
so: after the last micro-batch, or, where they are sharded, after each."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.torch_.emit.printed.bodies import ways_of
from meshwright.backends.torch_.emit.printed.language.dialect import TERMS
from meshwright.backends.torch_.emit.write.frame.lines import loss_of
from meshwright.backends.torch_.emit.write.parts import Parts
from meshwright.backends.torch_.emit.write.steps.scaling import SCALED
from meshwright.backends.torch_.emit.write.steps.step import (
    after_backward,
    contexts,
    given,
    own_loss,
    stepped,
)
from meshwright.backends.torch_.emit.write.steps.weighing import counted, mixed, parts_of_mean, terms, totals, weight_of
from meshwright.ir.analysis.weights import COUNT, MEAN, SUM
from meshwright.ir.quoting import literal


def accumulating_step(parts: Parts) -> Iterator[str]:
    shared = parts.shared if parts.printed is None else parts.axes.data
    called, how = given(parts, "micro"), weight_of(parts.subject)
    if parts.printed is not None and ways_of(parts.subject):
        called += f", {TERMS}={TERMS}[number : number + 1]"
    averaged = parts.axes.copied is not None and not parts.added
    yield "def train_step("
    yield f"    model: {parts.called}, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor], mesh: DeviceMesh"
    yield ") -> Tensor:"
    yield '    """One step; returns the loss of the global batch. Gradients stay until the next step."""'
    yield "    optimizer.zero_grad()"
    if how.kind == COUNT:
        of = f"batch[{literal(how.entry)}].chunk(MICROBATCHES)"
        yield f"    counts = [{counted(how, 'labels')} for labels in {of}]"
        yield "    targets = torch.stack(counts).float()"
    if shared is not None and (how.kind == COUNT or parts.printed is None):
        yield f'    group = mesh["{shared}"].get_group()'
    if how.kind == COUNT and shared is not None:
        yield "    dist.all_reduce(targets, group=group)"
    if parts.printed is not None:
        yield from terms(parts)
    elif mixed(parts.subject):
        yield from totals(parts)
    if how == MEAN:
        yield f"    share = 1 / ({parts_of_mean(parts)})  # of a mean over samples"
    yield "    losses = []"
    every = "number, count in enumerate(counts)" if how.kind == COUNT else "number in range(MICROBATCHES)"
    yield f"    for {every if parts.printed is None else 'number in range(MICROBATCHES)'}:"
    yield "        micro = {name: tensor.chunk(MICROBATCHES)[number] for name, tensor in batch.items()}"
    yield from (f"        {line}" for line in syncing(parts))
    yield from one_batch(parts, called, averaged)
    yield "        losses.append(loss.detach())"
    yield from after_backward(parts)
    yield from stepped(parts)
    if parts.shared is None:
        yield "    return torch.stack(losses).sum()"
    else:
        yield "    total = torch.stack(losses)"
        yield "    dist.all_reduce(total, group=group)"
        yield "    return total.sum()"


def syncing(parts: Parts) -> Iterator[str]:
    """Lines that tell `fully_shard` whether this is the last micro-batch."""
    if parts.kept.level == 1:
        yield "last = number == MICROBATCHES - 1"
        yield "if isinstance(model, FSDPModule):"
        yield "    model.set_requires_gradient_sync(last)"
        yield "    model.set_reshard_after_backward(last)"


def one_batch(parts: Parts, called: str, averaged: bool) -> Iterator[str]:
    """Lines for forward and backward of one micro-batch."""
    deep = 8
    within = contexts(parts, "share")
    if parts.wrapped:
        syncs = "nullcontext() if number == MICROBATCHES - 1 else model.no_sync()"
        within = f"{syncs}, {within}" if within else syncs
    if within:
        yield f"{' ' * deep}with {within}:"
        deep += 4
    how = weight_of(parts.subject)
    count = "(count / targets.sum())" if parts.printed is None else "(targets[number] / targets.sum())"
    by = "" if how == SUM else "share" if how == MEAN else count
    yield from loss_of(deep, called, "micro", by, own_loss(parts))
    if parts.precision.scaled:
        yield f"{' ' * deep}loss.{SCALED}"
    mean = "  # gradients are averaged over the group"
    yield f"{' ' * deep}{f'(loss * {parts.copies_said}).backward(){mean}' if averaged else 'loss.backward()'}"
