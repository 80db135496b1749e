"""What devices of a pipeline communicate, as one program that all of them run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.backends.jax_.emit.pipeline.stages import AXIS, carried_in, handed
from meshwright.backends.jax_.emit.pipeline.ticks import Ticks
from meshwright.backends.jax_.verify.hlo import Collective
from meshwright.ir.graph.fold import Fold
from meshwright.ir.graph.graph import ITEMSIZE, Type
from meshwright.ir.program.program import Program, local_elements


def calls_in_one(program: Program, fold: Fold) -> Iterator[tuple[int, str]]:
    """The calls that the program of a device has: all, but of blocks those of one device, as others have the same."""
    paths, blocks = [call.path for call in fold.calls()], set(fold.instances)
    for stage in program.stages:
        own = stage.ranks == program.stages[0].ranks
        yield from ((number, name) for number, name in stage.calls() if own or paths[number] not in blocks)


def passed_on(
    program: Program, fold: Fold, stacked: Sequence[Type], *, in_step: bool, made_again: bool
) -> Iterator[tuple[Collective, int]]:
    """What a device passes on, and how often: in every tick of a loop that does so (`in_step`), or in its own turns;
    numbers back, too. Stages are alike, so it is what the first one does: all of it, or what follows from parameters
    (`made_again`). What a scan stacks goes on as a whole, of these types."""
    if len(program.stages) == 1:
        return
    ticks, mesh, (first, *_) = Ticks.of(program), program.stages[0].mesh, handed(program, fold)
    hop = first if made_again else [one for one in program.transfers if not one.from_stage]
    carried = carried_in(hop, stacked, stacked[0].shape[0] // len(program.stages) if stacked else 0)
    rows = {(one.type.shape, one.type.dtype): one for one in hop}
    sent = [(one, 1) for one in carried] + [(rows[one.shape[1:], one.dtype], one.shape[0]) for one in stacked]
    for one, several in sent:
        size = several * local_elements(one.source, one.type.shape, mesh) * ITEMSIZE[one.type.dtype]
        for begin, end, (forth, back) in ticks.loops:
            ways = forth + (back and one.type.floating)
            yield ("permute", (AXIS,), int(size)), ways * (end - begin if in_step else ticks.turns)


def taken(program: Program) -> tuple[int, ...]:
    """How often a device runs what stands under a condition on its turn, and what stands under one more there."""
    if len(program.stages) == 1:
        return ()
    ticks = Ticks.of(program)
    return ticks.turns, ticks.microbatches
