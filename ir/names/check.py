"""Checks of a configuration against a model, a cluster and a batch, before any plan is made.

`template` is lenient: an axis that finds nothing to split is idle. A person who writes tp=8 for a model of six heads
wants to be told, and what would do. One kind of error for each thing that does not divide; only the vocabulary may be
left whole, as trainers pad it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from meshwright.ir.analysis.loops import stem
from meshwright.ir.decisions.offload import Offload
from meshwright.ir.errors import (
    BatchIndivisible,
    ExpertsIndivisible,
    HeadsIndivisible,
    MeshwrightError,
    OffloadImpossible,
    SequenceIndivisible,
    WidthIndivisible,
)
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names.cache import loops_of
from meshwright.ir.names.counts import among, divisors, indivisible, microbatches
from meshwright.ir.names.degrees import CONTEXTS, SEQUENCE, Degrees
from meshwright.ir.names.stages import cuts
from meshwright.ir.same import Same


def check(degrees: Degrees, fold: Fold, ranks: int, global_batch: int) -> None:
    """Refuse degrees that this model, this many ranks or this global batch (in sequences) cannot have.

    The batch of the fold is that of one micro-batch over all of dp.
    """
    degrees.check_ranks(ranks)
    _blocks(degrees, fold)
    for error in (*_heads(degrees, fold), *_experts(degrees, fold), *_widths(degrees, fold), *_sequence(degrees, fold)):
        raise error
    for batch in extents(fold, "b"):
        if batch % degrees.dp:
            raise indivisible(batch, degrees.dp, 1, "of one micro-batch")
        microbatches(global_batch, degrees.dp, batch // degrees.dp)
        if degrees.microbatches * batch != global_batch:
            raise BatchIndivisible(
                place="micro-batches",
                cause=f"{degrees.microbatches} micro-batches of {batch} sequences are not {global_batch}",
                fix=f"use {global_batch // batch}",
            )


def _blocks(degrees: Degrees, fold: Fold) -> None:
    """Check that layers divide, and that no stage is asked to offload more blocks than the fullest has."""
    segments = [call.segment for call in fold.calls()]
    layers = [sum(not fold.segments[at].glue for at in segments[first:last]) for first, last in cuts(fold, degrees)]
    asked = Offload.parse(degrees.offload).blocks
    if asked > max(layers):
        raise OffloadImpossible(
            place="offload",
            cause=f"activations of {asked} blocks, and no stage has more than {max(layers)}",
            fix=f"use activations:{max(layers)} at most, or activations for all",
        )


def _heads(degrees: Degrees, fold: Fold) -> Iterator[MeshwrightError]:
    by = degrees.tp * (degrees.cp if CONTEXTS[degrees.context].heads else 1)
    name = "tp * cp" if by != degrees.tp else "tp"
    for size in extents(fold, "heads") or extents(fold, "group"):
        if size % by:
            yield HeadsIndivisible(
                place=name,
                cause=f"{size} heads (key-value heads where queries share them) for {name} = {by}",
                fix=f"use {among(divisors(size))}",
            )


def _experts(degrees: Degrees, fold: Fold) -> Iterator[MeshwrightError]:
    sizes = extents(fold, "experts")
    if degrees.ep > 1 and not sizes:
        yield ExpertsIndivisible(place="ep", cause=f"ep={degrees.ep}, and the model has no experts", fix="use ep=1")
    for size in sizes:
        if size % degrees.ep:
            yield ExpertsIndivisible(
                place="ep", cause=f"{size} experts for ep={degrees.ep}", fix=f"use {among(divisors(size))}"
            )


def _widths(degrees: Degrees, fold: Fold) -> Iterator[MeshwrightError]:
    """The width of the feed-forward block: split by tp in dense ones, by etp in experts. The width of a parameter that
    no operator of the body reads is no loop of the body."""
    for body, found in loops_of(Same(fold)).items():
        graph, sizes = fold.body[body].graph, {loop.name: loop.size for loop in found.loops}
        for param in graph.params:
            names = {stem(name) for dim in found.dims[param.value] for name in dim}
            by, place = (degrees.expert_tp, "etp") if "experts" in names else (degrees.tp, "tp")
            for dim in found.dims[param.value]:
                size = sizes.get(dim[0], by) if dim and stem(dim[0]) == "ffn" else by
                if size % by:
                    yield WidthIndivisible(
                        place=place,
                        cause=f"{param.path} is {size} wide, for {place}={by}",
                        fix=f"use {among(divisors(size))}",
                    )


def _sequence(degrees: Degrees, fold: Fold) -> Iterator[MeshwrightError]:
    factors = {
        "cp": degrees.cp,
        "2, for zigzag": 2 if degrees.zigzag and degrees.cp > 1 else 1,
        "tp, for sequence parallelism": degrees.tp if degrees.sequence_parallel else 1,
    }
    by = prod(factors.values())
    if degrees.cp > 1 and not extents(fold, SEQUENCE):
        cause = f"cp={degrees.cp}, and no input of the model is a sequence of tokens"
        yield SequenceIndivisible(place="cp", cause=cause, fix="use cp=1")
    for outer, *inner in parts_of(fold, SEQUENCE):
        if outer % by:
            named = " * ".join(f"{factor} ({name})" for name, factor in factors.items() if factor > 1)
            run = prod(inner)
            tokens = f"{outer} runs of {run} tokens" if inner else f"{outer} tokens"
            yield SequenceIndivisible(
                place="sequence",
                cause=f"{tokens} for {named} = {by}",
                fix=f"use a sequence of {-(-outer // by) * by * run}, or degrees whose product divides {outer}",
            )


def extents(fold: Fold, loop: str) -> list[int]:
    """The sizes that a loop has in the model, largest first; those of 1 have no loop."""
    return sorted({prod(parts) for parts in parts_of(fold, loop)}, reverse=True)


def parts_of(fold: Fold, loop: str) -> list[tuple[int, ...]]:
    """The sizes that a loop has in the model, the largest first, each as those of its parts, outermost first."""
    found = set[tuple[int, ...]]()
    for loops in loops_of(Same(fold)).values():
        outermost = [one for one in loops.loops if stem(one.name) == loop]
        inner = [one.size for one in loops.loops if one.name.startswith(f"{loop}.") and one not in outermost]
        found |= {(one.size, *inner) if "." in one.name else (one.size,) for one in outermost}
    return sorted(found, key=prod, reverse=True)
