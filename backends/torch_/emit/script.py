"""The training script of a plan, as text that is read from top to bottom: its sections are made by `writing`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from meshwright.backends.torch_.emit.parts import Parts
from meshwright.backends.torch_.emit.storage import WHOLE
from meshwright.backends.torch_.emit.writing.batch import batches
from meshwright.backends.torch_.emit.writing.clipping import clip
from meshwright.backends.torch_.emit.writing.context import attend, own_tokens
from meshwright.backends.torch_.emit.writing.copies import sum_copies
from meshwright.backends.torch_.emit.writing.entry import load, main, make_optimizer, start
from meshwright.backends.torch_.emit.writing.experts import send
from meshwright.backends.torch_.emit.writing.imports import imports
from meshwright.backends.torch_.emit.writing.initial import draw
from meshwright.backends.torch_.emit.writing.keeping import FLAT, resume, save
from meshwright.backends.torch_.emit.writing.lines import WIDTH
from meshwright.backends.torch_.emit.writing.microbatches import accumulating_step
from meshwright.backends.torch_.emit.writing.model import along, build, parallelize
from meshwright.backends.torch_.emit.writing.pipeline import pipeline_step, stage_constants, staged
from meshwright.backends.torch_.emit.writing.recompute import recomputing
from meshwright.backends.torch_.emit.writing.speed import flops, speed
from meshwright.backends.torch_.emit.writing.step import train_step

MEANING = {
    "data": "every rank trains on its own sequences",
    "context": "every rank trains on its own part of each sequence",
    "experts": "every rank trains on its own sequences, and holds its own experts",
    "tensor": "ranks share every block",
}


def script(parts: Parts) -> str:
    """train.py."""
    pipeline = parts.pipeline
    part = (parallelize(parts),) if pipeline is None else staged(parts, pipeline)
    one = train_step if parts.microbatches == 1 else accumulating_step
    step = one(parts) if pipeline is None else pipeline_step(parts)
    sections = (
        load(),
        ("model_file = load(Path(__file__).resolve().parent / MODEL)",),
        build(parts),
        *([along()] if any(unit.along for unit in parts.kept.units) else []),
        *recomputing(parts),
        *part,
        *([draw(parts)] if parts.drawn_in_parts else []),
        *([own_tokens(parts.context, parts.cut_again), attend(parts.context)] if parts.context is not None else []),
        *([send(parts.experts)] if parts.experts is not None else []),
        batches(parts),
        *([sum_copies(parts)] if parts.summed else []),
        clip(parts),
        step,
        make_optimizer(parts),
        start(parts),
        save(parts),
        resume(parts),
        speed(parts),
        main(parts),
        ('if __name__ == "__main__":', "    main()"),
    )
    text = "\n\n\n".join("\n".join(lines) for lines in sections) + "\n"
    fixed = "\n".join(constants(parts))
    head = "\n".join((*title(parts), "", *imports(f"{fixed}\n{text}")))
    return f"{head}\n\n{fixed}\n\n\n{text}"


def title(parts: Parts) -> Iterator[str]:
    subject, calls = parts.subject, parts.subject.calls
    yield f'"""Train {calls.file.name}:{calls.factory} on {subject.ranks} ranks.'
    yield ""
    yield "    ./launch.sh --steps 10"
    yield ""
    yield from textwrap.wrap(f"Planned as {subject.config.replace(',', ' ')}.", WIDTH)
    if parts.pipeline is not None:
        schedule = subject.decisions.schedule
        yield (
            f"{len(parts.pipeline.stages)} stages on {len(parts.pipeline.held)} groups of ranks (mesh axis pp), "
            f"schedule {schedule.name}, {schedule.microbatches} micro-batches."
        )
    of = parts.axes
    for use, axes in (("data", of.batch), ("context", (of.context,)), ("tensor", (of.tensor,))):
        for axis in filter(None, axes):
            meaning = MEANING["experts" if axis in of.experts else use]
            yield f"Mesh axis {axis} ({subject.mesh.axis(axis).size} ranks): {meaning}."
    if parts.kept.whole:
        yield f"Mesh axis {WHOLE} (1 rank): fully_shard keeps parameters whole over it, and casts them."
    yield '"""'


def constants(parts: Parts) -> Iterator[str]:
    workload, mesh = parts.subject.workload, parts.subject.mesh
    groups = len(parts.subject.decisions.groups)
    axes = [*([("pp", groups)] if groups > 1 else []), *((axis.name, axis.size) for axis in mesh.axes)]
    if parts.kept.whole:
        axes.append((WHOLE, 1))
    sizes = ", ".join(f'"{name}": {size}' for name, size in axes)
    yield f'MODEL = "{parts.model}"'
    yield f"MESH{': dict[str, int]' * (not sizes)} = {{{sizes}}}"
    yield f"GLOBAL_BATCH = {workload.global_batch}"
    yield f"SEQ = {workload.seq}"
    yield "SEED = 0"
    if parts.microbatches > 1:
        yield f"MICROBATCHES = {parts.microbatches}"
    yield from flops(parts)
    if parts.pipeline is not None:
        yield from stage_constants(parts, parts.pipeline)
    yield "CLIP = 0.0  # the largest norm of all gradients together; 0: whatever it is"
    yield FLAT
