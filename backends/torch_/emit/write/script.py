"""The training script of a plan, as text that is read from top to bottom: its sections are made by `writing`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping

from meshwright.backends.lines import WIDTH
from meshwright.backends.torch_.emit.read.heterogeneous import Heterogeneous
from meshwright.backends.torch_.emit.read.storage import WHOLE
from meshwright.backends.torch_.emit.write.frame.attention import within
from meshwright.backends.torch_.emit.write.frame.checkpoints import FLAT, resume, save
from meshwright.backends.torch_.emit.write.frame.entry import load, main, make_optimizer, start
from meshwright.backends.torch_.emit.write.frame.imports import imports, names_in
from meshwright.backends.torch_.emit.write.frame.initial import draw
from meshwright.backends.torch_.emit.write.frame.model import along, build, in_float8, parallelize, read_cast
from meshwright.backends.torch_.emit.write.frame.printed import functions, otherwise, printed_constants
from meshwright.backends.torch_.emit.write.frame.speed import flops, speed
from meshwright.backends.torch_.emit.write.memory.host import on_host
from meshwright.backends.torch_.emit.write.memory.recompute import recomputing
from meshwright.backends.torch_.emit.write.memory.waiting import waiting
from meshwright.backends.torch_.emit.write.parts import Parts
from meshwright.backends.torch_.emit.write.stages.heterogeneous import (
    heterogeneous_axes,
    heterogeneous_batches,
    heterogeneous_clip,
    heterogeneous_constants,
    heterogeneous_draw,
    heterogeneous_sections,
    heterogeneous_start,
    heterogeneous_step,
    shards,
)
from meshwright.backends.torch_.emit.write.stages.pipeline import pipeline_step, stage_constants, stage_sections, staged
from meshwright.backends.torch_.emit.write.steps.alike import shard_alike
from meshwright.backends.torch_.emit.write.steps.batch import batches, draws_along, seeded, shares
from meshwright.backends.torch_.emit.write.steps.clipping import clip
from meshwright.backends.torch_.emit.write.steps.copies import sum_apart, sum_copies, sum_scalars
from meshwright.backends.torch_.emit.write.steps.microbatches import accumulating_step
from meshwright.backends.torch_.emit.write.steps.scaling import loss_scale
from meshwright.backends.torch_.emit.write.steps.sections import in_order_of_ranks, table
from meshwright.backends.torch_.emit.write.steps.statistics import shared_by_copies
from meshwright.backends.torch_.emit.write.steps.step import train_step
from meshwright.backends.torch_.emit.write.steps.tied import constant, joining, name_again
from meshwright.backends.torch_.emit.write.steps.weighing import means_of_all, weighs_apart
from meshwright.backends.turns import merged
from meshwright.ir.quoting import literal, said

Section = Iterable[str]
SCRIPT, HELPERS = "train.py", "train_parts"
ABOUT = '"""Parts of train.py that PyTorch has no functions for."""'
MEANING = {
    "data": "every rank trains on its own sequences",
    "context": "every rank trains on its own part of each sequence",
    "tensor": "ranks share every block",
}


def scripts(parts: Parts) -> tuple[tuple[str, str], ...]:
    """train.py, and, where stages make it long, the file beside it, by name."""
    one = train_step if parts.microbatches == 1 else accumulating_step
    step = one(parts) if parts.pipeline is None else pipeline_step(parts, parts.pipeline)
    added = [sum_copies(parts)] if parts.summed else [sum_scalars(parts)] if parts.sums_scalars else []
    added += [sum_apart(parts)] if parts.sums_apart else []
    added += joining(parts)
    if parts.precision.scaled:
        added.append(loss_scale())
    ahead = needed([parts])
    cut = (
        parallelize(parts),
        *([staged()] if parts.pipeline is not None else []),
    )
    if parts.drawn_in_parts:
        cut = (*cut, draw(parts))
    head, fixed = title(parts, axes_told(parts)), constants(parts, mesh_constants(parts))
    if parts.spread:
        beside = (*ahead, *around(parts), *added, clip(parts))
        return two_files(head, fixed, sections(parts, cut, (batches(parts), step), start(parts)), beside)
    steps = (batches(parts), *added, clip(parts), step)
    text = sections(parts, (*ahead, *cut), steps, start(parts))
    return ((SCRIPT, written(head, statements(fixed), joined_sections(text))),)


def heterogeneous_scripts(heterogeneous: Heterogeneous) -> tuple[tuple[str, str], ...]:
    """The same of a pipeline whose stages have different meshes."""
    parts = heterogeneous.main
    ahead = needed(heterogeneous.kinds)
    cut = (
        *shards(heterogeneous),
        staged(),
        *([heterogeneous_draw(heterogeneous)] if parts.drawn_in_parts else []),
    )
    text = sections(
        parts,
        cut,
        (heterogeneous_batches(heterogeneous), heterogeneous_step(heterogeneous)),
        heterogeneous_start(heterogeneous),
    )
    head, fixed = (
        title(parts, heterogeneous_axes(heterogeneous)),
        constants(parts, heterogeneous_constants(heterogeneous)),
    )
    scaled = [*joining(parts), *([loss_scale()] if parts.precision.scaled else [])]
    return two_files(
        head, fixed, text, (*ahead, *heterogeneous_sections(heterogeneous), *scaled, heterogeneous_clip(heterogeneous))
    )


def needed(kinds: Iterable[Parts]) -> list[Section]:
    """What `parallelize` calls, of all kinds of stages, and torch lacks: every function once."""
    texts = (text for parts in kinds for lines in _needed(parts) for text in "\n".join(lines).split("\n\n\n"))
    return [text.split("\n") for text in dict.fromkeys(texts)]


def _needed(parts: Parts) -> Iterator[Section]:
    if parts.printed is not None:
        yield from functions(parts)
    if any(unit.along for unit in parts.kept.units):
        yield along()
    if parts.alike:
        yield shard_alike(parts)
    if parts.cast_whole:
        yield read_cast(parts)
    if parts.unread:
        yield name_again()
    yield from recomputing(parts)
    if parts.statistics:
        yield shared_by_copies()
    if parts.subject.decisions.offload.activations:
        yield waiting(parts)
    if parts.fused:
        yield in_order_of_ranks(parts)
    if weighs_apart(parts):
        yield means_of_all()
    yield from within(parts)


def sections(parts: Parts, cut: Iterable[Section], steps: Iterable[Section], start: Section) -> Iterator[Section]:
    """train.py, but for what stands first: the model, how it is `cut`, batches and `steps`, and what runs them."""
    yield load()
    yield ("model_file = load(Path(__file__).resolve().parent / MODEL)",)
    if parts.precision.float8 and parts.printed is None:
        yield in_float8(parts)
    yield build(parts)
    yield from cut
    yield from steps
    if parts.offloaded:
        yield on_host(parts)
    yield make_optimizer(parts)
    if draws_along(parts):
        yield seeded(parts)
    yield start
    yield save(parts)
    yield resume(parts)
    yield speed(parts)
    yield main(parts)
    yield ('if __name__ == "__main__":', "    main()")


def two_files(
    head: Iterator[str], fixed: Iterator[str], inside: Iterable[Section], around: Iterable[Section]
) -> tuple[tuple[str, str], ...]:
    """train.py, and the file beside it with what is around; constants stand where they are used."""
    text, beside, given = joined_sections(inside), joined_sections(around), statements(fixed)
    used = names_in(beside)
    shared = [one for one in given if one.partition(" ")[0].rstrip(":") in used]
    ours = [one for one in given if one not in shared]
    helpers = written(iter((ABOUT,)), shared, beside)
    return (SCRIPT, written(head, ours, text, {HELPERS: helpers})), (f"{HELPERS}.py", helpers)


def around(parts: Parts) -> Iterator[Section]:
    """What stages need."""
    if parts.pipeline is not None:
        yield from stage_sections(parts, parts.pipeline)


def statements(lines: Iterator[str]) -> list[str]:
    """Constants, each with all of its lines."""
    found: list[str] = []
    for line in lines:
        if line.startswith((" ", ")", "}")):
            found[-1] += f"\n{line}"
        else:
            found.append(line)
    return found


def joined_sections(sections: Iterable[Section]) -> str:
    return "\n\n\n".join("\n".join(merged(lines)) for lines in sections) + "\n"


def written(head: Iterator[str], fixed: list[str], text: str, beside: Mapping[str, str] | None = None) -> str:
    """A file: what it is, its imports, constants, and the rest."""
    constant = "\n".join(fixed)
    first = "\n".join((*head, "", *imports(f"{constant}\n{text}", beside or {})))
    return f"{first}\n\n{constant}\n\n\n{text}" if fixed else f"{first}\n\n\n{text}"


def title(parts: Parts, axes: Iterable[str]) -> Iterator[str]:
    subject, calls = parts.subject, parts.subject.calls
    yield f'"""Train {said(calls.file.name)}:{said(calls.factory)} on {subject.ranks} ranks.'
    yield ""
    yield "    ./launch.sh --steps 10"
    yield ""
    yield from textwrap.wrap(f"Planned as {said(subject.config.replace(',', ' '))}.", WIDTH)
    if parts.pipeline is not None:
        schedule, groups = subject.decisions.schedule, f"groups of ranks{' (mesh axis pp)' * (not parts.by_stage)}"
        yield (
            f"{len(parts.pipeline.stages)} stages on {len(parts.pipeline.held)} {groups}, "
            f"schedule {schedule.name}, {schedule.microbatches} micro-batches."
        )
    yield from axes
    if parts.kept.whole:
        yield f"Mesh axis {WHOLE} (1 rank): fully_shard keeps parameters whole over it, and casts them."
    yield '"""'


def axes_told(parts: Parts) -> Iterator[str]:
    """What every mesh axis is for."""
    of = parts.axes
    for use, axes in (("data", of.batch), ("context", of.context), ("tensor", (of.tensor,))):
        for axis in filter(None, axes):
            yield f"Mesh axis {axis} ({parts.subject.mesh.axis(axis).size} ranks): {MEANING[use]}."


def constants(parts: Parts, meshes: Iterable[str]) -> Iterator[str]:
    workload = parts.subject.workload
    yield f"MODEL = {literal(parts.model)}"
    yield from meshes
    yield f"GLOBAL_BATCH = {workload.global_batch}"
    if parts.shares:
        yield from shares(parts)
    yield f"SEQ = {workload.seq}"
    yield "SEED = 0"
    if parts.microbatches > 1 or parts.by_stage:
        yield f"MICROBATCHES = {parts.microbatches}"
    yield from flops(parts)
    if parts.pipeline is not None and not parts.by_stage:
        yield from stage_constants(parts, parts.pipeline)
    if parts.reorders:
        yield from table(parts)
    if parts.printed is not None and not parts.by_stage:
        yield from printed_constants(parts, parts.printed)
    if parts.summed_otherwise:
        yield from otherwise(parts)
    yield from constant(parts)
    yield "CLIP = 0.0  # the largest norm of all gradients together; 0: whatever it is"
    yield FLAT


def mesh_constants(parts: Parts) -> Iterator[str]:
    groups = len(parts.subject.decisions.groups)
    axes = [*([("pp", groups)] if groups > 1 else []), *((axis.name, axis.size) for axis in parts.subject.mesh.axes)]
    if parts.kept.whole:
        axes.append((WHOLE, 1))
    sizes = ", ".join(f'"{name}": {size}' for name, size in axes)
    yield f"MESH{': dict[str, int]' * (not sizes)} = {{{sizes}}}"
