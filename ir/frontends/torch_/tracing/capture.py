"""Capture of torch models: a source and a workload in, a fold out.

    reduce      the stacks of the model, shortened to short walks          reduce.py
    trace       one training step of what is left                          export.py, operators/
    fold        bodies, segments, wires, written out to full depth         folding/segment.py

If the trace does not repeat as the stacks promise, the model is traced again at full depth, where folding has nothing
to assume; and if even that does not fold, the fold is one body. Both are said in the notes: they cost time, not truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from meshwright.ir.analysis.account import parameters
from meshwright.ir.analysis.rebatch import batched_laws
from meshwright.ir.errors import DataDependentControlFlow, ForwardRaised, MeshwrightError, SequenceTooLong
from meshwright.ir.frontends.folding.assemble import NotFoldable
from meshwright.ir.frontends.folding.captured import Captured
from meshwright.ir.frontends.folding.handles import Traced
from meshwright.ir.frontends.folding.segment import fold_trace, names_of
from meshwright.ir.frontends.folding.stacks import LONG_WALK, Stack
from meshwright.ir.frontends.foreign import blamed
from meshwright.ir.frontends.torch_.sources.factory import TorchSource, example_batch
from meshwright.ir.frontends.torch_.sources.labels import labelled
from meshwright.ir.frontends.torch_.tracing.export import Identity, alike, failure, trace
from meshwright.ir.frontends.torch_.tracing.places import called_alike
from meshwright.ir.frontends.torch_.tracing.reduce import find_stacks, reduced
from meshwright.ir.graph.constants import batched
from meshwright.ir.graph.fold import Fold

MOST_TRIED = 12
"""Lengths of sequences that are tried where a model does not run with the one that was asked for."""


def capture(source: TorchSource, *, batch: int, seq: int, seed: int = 0) -> Captured:
    """The fold of a model's training step on `batch` sequences of `seq` tokens.

    The seed draws the blocks that are traced for all that are like them; it changes nothing if they are. Where the
    model does not run, and does with the most positions that it has, that is said.
    """
    try:
        with blamed(source.place):
            return _captured(source, batch, seq, seed)
    except ForwardRaised as refused:
        most = _most_positions(source, batch, seq, seed, refused)
        if not most:
            raise
        raise SequenceTooLong(
            place=refused.place,
            cause=f"sequences of {seq} tokens: the model runs with {most}, and not with one more ({refused.cause})",
            fix=f"give sequences of {most} tokens at most (--seq), or the model more positions",
        ) from refused


def _most_positions(source: TorchSource, batch: int, seq: int, seed: int, refused: ForwardRaised) -> int:
    """The greatest extent of a buffer or parameter with which, as its sequence, the model runs, and not with one token
    more; 0 if there is none, or if the model runs as asked and only its trace fails."""
    if failure(source, example_batch(source, batch, seq)) is None:
        return 0

    def runs(tokens: int) -> bool:
        if alike(failure(source, example_batch(source, batch, tokens)), refused):
            return False
        try:
            _captured(source, batch, tokens, seed)
        except MeshwrightError:
            return False
        return True

    tensors = (*source.module.buffers(), *source.module.parameters())
    extents = sorted({size for tensor in tensors for size in tensor.shape if 1 < size < seq}, reverse=True)
    found = next((size for size in extents[:MOST_TRIED] if runs(size)), 0)
    return found if found and not runs(found + 1) else 0


def _captured(source: TorchSource, batch: int, seq: int, seed: int) -> Captured:
    example = example_batch(source, batch, seq)
    source, unlabelled = labelled(source, example, batch=batch, seq=seq)
    found = find_stacks(source.module, seed)
    fold, traced, stacks, notes = _folded(source, example, found, seed)
    notes = (*notes, *_untrained(source, fold))
    return Captured(
        fold=fold,
        parameters=sum(p.numel() for p in source.module.parameters()),
        stacks=stacks,
        notes=(*unlabelled, *notes),
        constants=batched(traced.made, batched_laws(fold, batch)),
    )


def _untrained(source: TorchSource, fold: Fold) -> Iterator[str]:
    """Notes on parameters that the model would train, but that no gradient reaches."""
    given = source.module.named_parameters(remove_duplicate=False)
    would = {path for path, parameter in given if parameter.requires_grad}
    held = {path for path, (param, _) in parameters(fold).items() if not param.requires_grad}
    if left := sorted(would & held):
        others = f" and {len(left) - 1} more" if len(left) > 1 else ""
        yield f"no gradient of the loss comes to {left[0]}{others}: not trained"


def _folded(
    source: TorchSource, example: Any, found: tuple[Stack, ...], seed: int
) -> tuple[Fold, Traced, tuple[Stack, ...], tuple[str, ...]]:
    longer = find_stacks(source.module, seed, most=LONG_WALK)
    whole = tuple(replace(stack, walk=tuple(range(stack.depth))) for stack in found)
    refused: list[str] = []
    by_place = False

    @cache
    def of_whole() -> MeshwrightError | None:
        return failure(source, example)

    for stacks in dict.fromkeys((found, longer, whole, ())):
        shortened = any(stack.shortened for stack in stacks)
        if by_place and shortened:
            continue
        try:
            traced = trace_reduced(source, example, stacks)
            fold = fold_trace(traced.graph, stacks, block_classes(source, stacks))
        except NotFoldable as reason:
            then = "the model is one body" if stacks == whole else "tracing at full depth"
            if stacks in (longer, whole):  # before that, a longer walk may clear it up
                refused.append(f"folding failed, {then}: {reason}")
            continue
        except MeshwrightError as reason:
            if stacks in (whole, ()) or not _for_lack_of_blocks(source, example, stacks, reason, of_whole):
                raise
            if stacks == longer:
                refused.append("the model cannot run with fewer blocks; tracing at full depth")
            continue
        if by_place := shortened and not called_alike(source, example, stacks):
            refused.append("the model treats blocks by their place: tracing at full depth")
            continue
        return fold, traced, stacks, (*refused, *traced.notes)
    raise AssertionError("a graph without stacks is one body")


def _for_lack_of_blocks(
    source: TorchSource,
    example: Any,
    stacks: Sequence[Stack],
    refused: MeshwrightError,
    of_whole: Callable[[], MeshwrightError | None],
) -> bool:
    """Whether a trace of a shortened model may be refused because it is shorter: not if that model runs, so that the
    trace is to blame, nor if the whole one does not, whose failure is told by `of_whole`. Where both need values, they
    do so in other calls: a run without values has none where a trace has them."""
    if isinstance(refused, ForwardRaised):
        with reduced(source.module, stacks):
            if failure(source, example) is None:
                return False
    in_values = isinstance(refused, DataDependentControlFlow) and isinstance(of_whole(), DataDependentControlFlow)
    return not in_values and not alike(of_whole(), refused)


def trace_reduced(source: TorchSource, example: Any, stacks: Sequence[Stack]) -> Traced:
    """The training step with the stacks shortened to their walks, under the paths of the full model."""
    identity = Identity.of(source.module)
    with reduced(source.module, stacks):
        return trace(source, example, names=names_of(stacks), identity=identity, buffers=source.buffers)


def block_classes(source: TorchSource, stacks: Sequence[Stack]) -> dict[str, str]:
    """The class of each block."""
    found: dict[str, str] = {}
    for stack in stacks:
        for position, block in enumerate(source.module.get_submodule(stack.path).children()):
            found[stack.block(position)] = f"{type(block).__module__}.{type(block).__qualname__}"
    return found
