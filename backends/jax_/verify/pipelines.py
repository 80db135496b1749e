"""What devices of a pipeline communicate, as one program that all of them run."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.jax_.emit.pipeline.stages import AXIS
from meshwright.backends.jax_.emit.pipeline.ticks import Ticks
from meshwright.backends.jax_.verify.hlo import Collective
from meshwright.ir.graph.graph import ITEMSIZE
from meshwright.ir.program.program import Program, local_elements


def calls_in_one(program: Program) -> Iterator[tuple[int, str]]:
    """The calls that the program of a device has: all, but of bodies that every stage runs those of one device."""
    first, *_ = program.stages
    everywhere = set.intersection(*({name for _, name in stage.calls()} for stage in program.stages))
    for stage in program.stages:
        own = stage.ranks == first.ranks
        yield from ((number, name) for number, name in stage.calls() if own or name not in everywhere)


def passed_on(program: Program, *, in_step: bool) -> Iterator[tuple[Collective, int]]:
    """What a device passes on, and how often: in every tick of a loop that does so (`in_step`), or in its own turns."""
    if len(program.stages) == 1:
        return
    ticks, one = Ticks.of(program), program.transfers[0]
    size = local_elements(one.source, one.type.shape, program.stages[0].mesh) * ITEMSIZE[one.type.dtype]
    for first, last, ways in ticks.loops:
        yield ("permute", (AXIS,), int(size)), sum(ways) * (last - first if in_step else ticks.turns)


def taken(program: Program) -> tuple[int, ...]:
    """How often a device runs what stands under a condition on its turn, and what stands under one more there."""
    if len(program.stages) == 1:
        return ()
    ticks = Ticks.of(program)
    return ticks.turns, ticks.microbatches
