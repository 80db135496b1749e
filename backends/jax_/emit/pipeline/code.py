"""`train_pipeline.py`: its constants and functions, put together for a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.backends.jax_.emit import accumulation
from meshwright.backends.jax_.emit.model import carried, draws
from meshwright.backends.jax_.emit.pipeline import parts
from meshwright.backends.jax_.emit.pipeline.passes import ARGUMENTS, ARGUMENTS_DRAWN, PASSES, RUN
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
    written_out = stages.scan is None
    imported = ["made", "path_of", "primitives", "read", *(["evaluate", "pinned"] * (not written_out))]
    imported += ["but_cheap"] * (written_out and any(_cheaply(stages)))
    return "".join(
        (
            HEAD.replace("IMPORTED", ", ".join(sorted(imported))).replace("RE\n", "import re\n" * written_out),
            *(f"{line}\n" for line in _numbers(stages)),
            "\n\n",
            _state(stages),
            parts.PLACED if written_out else "",
            accumulation.KEYS if data and draws(stages.subject) else "",
            _parts(stages),
            PASSES,
            _run(stages, data, whole),
        )
    )


def _parts(stages: Stages) -> str:
    """The function of the parts of the loss."""
    drawn, keyed = draws(stages.subject), any(_keys(stages))
    shared = "reach(jaxpr, common, known({}, micro))"
    text = parts.PARTS.replace("DIVIDED\n", parts.WRITTEN_OUT if stages.scan is None else parts.SCANNED)
    return (
        text.replace("PARTS_OF\n", parts.PARTS_OF_DRAWN if drawn else parts.PARTS_OF)
        .replace("RETURNED\n", parts.RETURNED_DRAWN if drawn else parts.RETURNED)
        .replace("GIVEN", ("micro[:2]" if keyed else "micro") if drawn else "(micro, *rest)")
        .replace("KEYS_TOLD", "the keys of units, " * keyed)
        .replace("KEYED", "keys_of, " * keyed)
        .replace("KEYS_OF\n", parts.KEYS_OF if keyed else "\n")
        .replace("READ", "*common, *keys[1]" if keyed else "*common")
        .replace("BESIDE_IT", "*read_by(beside)" if keyed else "*beside[0]")
        .replace("BESIDE_ALL", f"lambda micro: {f'({shared}, micro[2])' if keyed else shared}")
    )


def _run(stages: Stages, data: tuple[str, ...], whole: str) -> str:
    """The function that runs them."""
    drawn, keyed, casts = draws(stages.subject), any(_keys(stages)), stages.subject.workload.states.casts
    along = ", ".join(literal(axis) for axis in data)
    told = f"jax.lax.psum(carry[0][2], {f'({literal(AXIS)}, {along})' if data else literal(AXIS)})"
    return (
        carried(RUN, drawn)
        .replace("WHOLE", whole)
        .replace("ARGUMENTS", ARGUMENTS_DRAWN if drawn else ARGUMENTS)
        .replace("KEYED", "keys, " * keyed)
        .replace("DRAWN_BY", ", jax.vmap(keys)((batch, rests))" * keyed)
        .replace("ENTRIES", "micro[0]" if drawn else "micro")
        .replace("OF_COPY", f"    own = of_copy(rest, jax.lax.axis_index(({along},)))\n" * bool(data))
        .replace("OF_IT", "own" if data else "rest")
        .replace("OF_ALL", "    then = of_all(rest, then)\n" * bool(data))
        .replace("TOLD", f"({told}, then)" if drawn else told)
        .replace("SUMMED", (NARROW * casts + f"    grads = jax.lax.psum(grads, ({along},))\n") * bool(data))
        .replace("CAST", CAST * casts)
        .replace("SUMS", "jax.tree.map(lambda one: one.astype(jnp.float32), SUMS)" if casts else "SUMS")
        .replace("SUMS", "(zeros(before), zeros(stack), zeros(behind))")
        .replace("WIDE", ".astype(jnp.float32)" * casts)
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


def _keys(stages: Stages) -> tuple[tuple[str, ...], ...]:
    """Where the keys of random numbers are made by which units draw, where these are written out."""
    _, cuts = stages.cut
    return cuts.keys if cuts is not None else ()


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
    if any(cuts.keys):
        yield "KEYS = (  # what each unit draws by"
        yield from (line for places in cuts.keys for line in listed("    [", places, "],"))
        yield ")"


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
