"""The training script of a plan, as text that is read from top to bottom: its sections are made by `writing`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping

from meshwright.backends.torch_.emit.parts import Parts
from meshwright.backends.torch_.emit.storage import WHOLE
from meshwright.backends.torch_.emit.writing.batch import batches
from meshwright.backends.torch_.emit.writing.clipping import clip
from meshwright.backends.torch_.emit.writing.context import attend, own_tokens
from meshwright.backends.torch_.emit.writing.copies import sum_copies
from meshwright.backends.torch_.emit.writing.entry import load, main, make_optimizer, start
from meshwright.backends.torch_.emit.writing.experts import send
from meshwright.backends.torch_.emit.writing.imports import imports, names_in
from meshwright.backends.torch_.emit.writing.initial import draw
from meshwright.backends.torch_.emit.writing.keeping import FLAT, resume, save
from meshwright.backends.torch_.emit.writing.lines import WIDTH
from meshwright.backends.torch_.emit.writing.microbatches import accumulating_step
from meshwright.backends.torch_.emit.writing.model import along, build, parallelize
from meshwright.backends.torch_.emit.writing.pipeline import pipeline_step, stage_constants, stage_sections, staged
from meshwright.backends.torch_.emit.writing.recompute import recomputing
from meshwright.backends.torch_.emit.writing.sections import of_sections, table, transposed
from meshwright.backends.torch_.emit.writing.speed import flops, speed
from meshwright.backends.torch_.emit.writing.step import train_step
from meshwright.backends.torch_.emit.writing.tied import constant, copy_tied, join_tied

Section = Iterable[str]
SCRIPT, HELPERS = "train.py", "train_parts"
ABOUT = '"""Parts of train.py that PyTorch has no functions for."""'
MEANING = {
    "data": "every rank trains on its own sequences",
    "context": "every rank trains on its own part of each sequence",
    "experts": "every rank trains on its own sequences, and holds its own experts",
    "tensor": "ranks share every block",
}


def scripts(parts: Parts) -> tuple[tuple[str, str], ...]:
    """train.py, and, where stages or cut sequences make it long, the file beside it, by name."""
    one = train_step if parts.microbatches == 1 else accumulating_step
    step = one(parts) if parts.pipeline is None else pipeline_step(parts)
    added = [sum_copies(parts)] if parts.summed else []
    if parts.untied:
        added += [join_tied(), copy_tied()]
    ahead = [*([along()] if any(unit.along for unit in parts.kept.units) else []), *recomputing(parts)]
    if parts.fused:
        ahead.append(of_sections(parts))
    if parts.transposed:
        ahead.append(transposed())
    sent = [send(parts.experts)] if parts.experts is not None else []
    sections = (
        load(),
        ("model_file = load(Path(__file__).resolve().parent / MODEL)",),
        build(parts),
        *([] if parts.spread else ahead),
        parallelize(parts),
        *([staged()] if parts.pipeline is not None else []),
        *([draw(parts)] if parts.drawn_in_parts else []),
        *([] if parts.spread else sent),
        batches(parts),
        *([] if parts.spread else [*added, clip(parts)]),
        step,
        make_optimizer(parts),
        start(parts),
        save(parts),
        resume(parts),
        speed(parts),
        main(parts),
        ('if __name__ == "__main__":', "    main()"),
    )
    text, fixed = joined_sections(sections), statements(constants(parts))
    if not parts.spread:
        return ((SCRIPT, written(title(parts), fixed, text)),)
    beside = joined_sections((*ahead, *around(parts), *sent, *added, clip(parts)))
    used = names_in(beside)
    shared = [one for one in fixed if one.partition(" ")[0].rstrip(":") in used]
    ours = [one for one in fixed if one not in shared]
    helpers = written(iter((ABOUT,)), shared, beside)
    return (SCRIPT, written(title(parts), ours, text, {HELPERS: helpers})), (f"{HELPERS}.py", helpers)


def around(parts: Parts) -> Iterator[Section]:
    """What stages and cut sequences need."""
    if parts.context is not None:
        yield own_tokens(parts.context, parts.cut_again)
        yield attend(parts.context)
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
    return "\n\n\n".join("\n".join(lines) for lines in sections) + "\n"


def written(head: Iterator[str], fixed: list[str], text: str, beside: Mapping[str, str] | None = None) -> str:
    """A file: what it is, its imports, constants, and the rest."""
    constant = "\n".join(fixed)
    first = "\n".join((*head, "", *imports(f"{constant}\n{text}", beside or {})))
    return f"{first}\n\n{constant}\n\n\n{text}" if fixed else f"{first}\n\n\n{text}"


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
    if parts.fused:
        yield from table(parts)
    if parts.untied:
        yield from constant(parts)
    yield "CLIP = 0.0  # the largest norm of all gradients together; 0: whatever it is"
    yield FLAT
