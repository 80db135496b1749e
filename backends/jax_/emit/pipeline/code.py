"""`train_pipeline.py`: its constants and functions, put together for a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.backends.jax_.emit.pipeline import parts
from meshwright.backends.jax_.emit.pipeline.passes import PASSES, RUN
from meshwright.backends.jax_.emit.pipeline.stages import AXIS, Stages
from meshwright.backends.jax_.emit.recompute import keeps
from meshwright.backends.lines import WIDTH, quoted
from meshwright.ir.quoting import literal

PIPELINE = "train_pipeline.py"
CAST = """\
    leaves = {path: leaf.astype(sizes[path].dtype) for path, leaf in leaves.items()}  # what is kept is in fp32
"""
NARROW = """\
    grads = jax.tree.map(lambda one: one.astype(jnp.bfloat16), grads)
"""

HEAD = '''\
"""The pipeline of train.py: the traced loss in parts, and the ticks in which the stages run them.

In tick t stage s runs the forward pass of its turn t - s, then the backward pass of its turn
t - START - (STAGES - 1 - s), and passes on what came of them: values to the next stage, gradients to the one before.
"""

RE
import sys
from functools import partial
from typing import Any
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
from jax.dtypes import float0
from jax.extend.core import Literal
from jax.sharding import PartitionSpec as P
from jax.tree_util import tree_flatten_with_path, tree_map_with_path

from train_shardings import TRACE, IMPORTED

Tree = Any

'''


AGAIN = {
    (True, False): "jax.checkpoint",
    (False, True): "partial(jax.checkpoint, policy=but_cheap)",
    (False, False): "lambda block: block",
}
"""Of blocks that are computed again, and of those of which what costs little is."""


def text(stages: Stages, data: tuple[str, ...], whole: str) -> str:
    """The file. `data`: the axes that cut a batch; `whole`: what all micro-batches weigh together, as code."""
    written_out, casts = stages.scan is None, stages.subject.workload.states.casts
    along = ", ".join(literal(axis) for axis in data)
    divided = parts.WRITTEN_OUT if written_out else parts.SCANNED
    imported = ["made", "path_of", "primitives", "read", *(["evaluate", "pinned"] * (not written_out))]
    imported += ["but_cheap"] * (written_out and any(_cheaply(stages)))
    return "".join(
        (
            HEAD.replace("IMPORTED", ", ".join(sorted(imported))).replace("RE\n", "import re\n" * written_out),
            *(f"{line}\n" for line in _numbers(stages)),
            "\n\n",
            _state(stages),
            parts.PLACED if written_out else "",
            parts.PARTS.replace("DIVIDED\n", divided),
            PASSES,
            RUN.replace("WHOLE", whole)
            .replace("AXES", f'("{AXIS}", {along})' if data else f'"{AXIS}"')
            .replace("SUMMED", (NARROW * casts + f"    grads = jax.lax.psum(grads, ({along},))\n") * bool(data))
            .replace("CAST", CAST * casts)
            .replace("SUMS", "jax.tree.map(lambda one: one.astype(jnp.float32), SUMS)" if casts else "SUMS")
            .replace("SUMS", "(zeros(before), zeros(stack), zeros(behind))")
            .replace("WIDE", ".astype(jnp.float32)" * casts),
        )
    )


def _state(stages: Stages) -> str:
    """How the user's parameters become those of stages, and back."""
    if stages.scan is None:
        forms = parts.STAGED_BLOCKS, parts.UNSTAGED_BLOCKS, parts.STACK_BLOCKS, parts.LEAVES_BLOCKS
    elif stages.ticks.chunks > 1:
        forms = parts.STAGED_CHUNKS, parts.UNSTAGED_CHUNKS, parts.STACK_SCAN, parts.LEAVES_SCAN
    else:
        forms = parts.STAGED_SCAN, parts.UNSTAGED_SCAN, parts.STACK_SCAN, parts.LEAVES_SCAN
    held = "    leaves = by_path(tree)\n" * (stages.scan is None)
    text = (parts.UNIT_OF if stages.scan is None else "") + parts.STATE.replace("HELD", f"{held}\n")
    for number, form in enumerate(forms):
        text = text.replace(f"FORM_{number}\n", form)
    return text


def _cheaply(stages: Stages) -> tuple[bool, ...]:
    """Of the blocks of a unit, whether they keep only what costs something to make."""
    pieces = {room: piece for piece in stages.subject.pieces for room in piece.segment.paths}
    return tuple(keeps(pieces[room]) and not again for room, again in zip(stages.units[0], stages.again, strict=True))


def _numbers(stages: Stages) -> Iterator[str]:
    """The constants of a plan."""
    ticks = stages.ticks
    ring = ticks.stages - (ticks.chunks == 1)
    forth = [(at, (at + 1) % ticks.stages) for at in range(ring)]
    longest = ticks.start + ticks.stages * ticks.chunks
    least = max(1, ticks.start - ticks.stages * ticks.chunks + 2)
    kept = min(ticks.turns, longest), min(ticks.microbatches, longest), min(ticks.microbatches, least)
    loops = tuple((first, end, *ways) for first, end, ways in ticks.loops)
    yield f"STAGES, CHUNKS = {ticks.stages}, {ticks.chunks}  # and the chunks of blocks on each"
    yield f"TURNS, START = {ticks.turns}, {ticks.start}"
    yield f"EACH = {stages.each}  # blocks of a chunk"
    yield f"LOOPS = {loops}  # over ticks, and whether forward and backward passes run"
    yield f"KEPT, KEPT_FIRST, KEPT_LAST = {kept[0]}, {kept[1]}, {kept[2]}  # turns that wait for their backward passes"
    yield f"FORTH, BACK = {forth}, {[(to, at) for at, to in forth]}"
    yield "ENDS: dict[str, tuple[int, ...]] = {  # the stages that hold parameters beside blocks"
    yield from (f"    {literal(path)}: {where}," for path, where in stages.ends.items())
    yield "}"
    yield "SHARED = [path for path, stages in ENDS.items() if len(stages) > 1]"
    if stages.scan is not None:
        yield f"SCAN = {stages.scan.place}  # the equation that runs the blocks"
        yield f"STACKS: list[int] = {[at for at, _ in stages.scan.stacks]}  # its results with a row for each block"
        if ticks.chunks > 1:
            yield f"ORDER = {list(stages.order)}  # of the blocks, as stages hold them"
        return
    _, cuts = stages.cut
    assert cuts is not None
    yield "UNITS = (  # of blocks: all run the same"
    for unit in stages.units:
        yield from listed("    (", unit, ",)," if len(unit) == 1 else "),")
    yield ")"
    yield "FIRST_UNITS = [unit for unit in range(len(UNITS)) if unit // EACH % STAGES == 0]  # of the first stage"
    again = [AGAIN[kind] for kind in zip(stages.again, _cheaply(stages), strict=True)]
    if len(again) == 1:
        yield f"AGAIN: list[Any] = [{again[0]}]  # how a block runs: what it computes again"
    else:
        yield from ("AGAIN: list[Any] = [  # how blocks of a unit run", *(f"    {one}," for one in again), "]")
    yield "HANDED = (  # what the blocks of the second unit are given, one after the other, and what it hands on"
    for places in cuts.handed:
        yield from listed("    [", places, "],")
    yield ")"
    yield "# the same where the first unit begins, and where the last ends; and what follows from a micro-batch alone"
    yield from listed("ENTERING = [", cuts.entering, "]")
    yield from listed("LEAVING = [", cuts.leaving, "]")
    yield from listed("BESIDE = [", cuts.beside, "]")


def listed(opens: str, names: Sequence[str], closes: str) -> Iterator[str]:
    """Names in brackets, on a line if they fit, else on one of their own, or on one each."""
    indent, line = " " * (len(opens) - len(opens.lstrip())), quoted(names)
    if len(opens) + len(line) + len(closes) <= WIDTH:
        yield f"{opens}{line}{closes}"
        return
    yield opens
    if len(indent) + 4 + len(line) <= WIDTH:
        yield f"{indent}    {line}"
    else:
        yield from (f"{indent}    {literal(name)}," for name in names)
    yield f"{indent}{closes.removeprefix(',')}"
