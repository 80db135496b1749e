"""The collectives of a Program as XLA executes them, by a closed list of rewrites.

    executed      what the target's library runs for a step (`Capabilities.executed`): CPUs reduce the whole for a
                  reduce-scatter
    read_whole    tokens and labels are not cut along axes that the script's batch is whole on
    by_bytes      what concerns parameters is compared by kind and axes, in bytes: XLA may join it
    at_once       a sum of a gradient over several axes may be one all-reduce over all, or one over each
    whole_sums    where the gradient of a parameter is summed step by step, every step sums the whole of it
    tied          what several parts of a model read is gathered once for all of them, and its gradient is summed for
                  each, before the sums are added; so may be what several operators of a part leave
    part_read     where a slice or rows of a parameter are taken before they meet the batch, the gradient of what was
                  taken is summed, if that is less
    log_softmax   a cross entropy that cuts classes, and is written with `jax.nn.log_softmax`, sums the gradient that
                  comes in once more, in as many bytes as one of its statistics
    scalars       terms of a loss may be added up before they are summed, along several axes at once or one by one: at
                  least one number along each, and no more than planned
    in_shards     what is gathered before a loss is made of it, whole on every rank, may be left in shards by XLA, which
                  then sums the loss: one number along the axes of that gather, or one for each sample; and gathers the
                  gradient of the last value before the loss, which it has made in shards
    unread        what blocks gather, and no derivative reads (biases of norms, and what is kept in another form), is
                  gathered again only where something that is read is made again of it
    known         the gradient of what only becomes a part of the loss, linearly, is one number: no rank asks for it
    counted       micro-batches that all devices share are weighed by what counts in each: one number more
    weighed       so is every micro-batch of a printed model
    once          of printed models: what is exchanged twice of one value is exchanged once, as gradients that additions
                  hand on unchanged, and parameters that several parts read; gradients of those that rest whole are
                  added before they are summed
    one_way       between two devices a ring's keys and values go the same way in both passes: code for CPUs, which
                  drops barriers, may pass them on once, where no loop keeps the passes apart
    merged        for the same reason, it may gather once what blocks gather again for their backward passes
    masks         what is dropped of is not made again for its mask, which is made of a key: moves on the way to it need
                  not be executed again
    added_up      where copies add up micro-batches by themselves, what is summed afterwards is the whole gradient of
                  every parameter, once: neither `tied` nor `part_read` holds
    one_program devices of a pipeline run one program: what the first stage and the last exchange is in it, and what all
                exchange, once (`pipelines`)
    in_step     they pass values on in every tick in which one of them has something to pass on
    made_again  what follows from the batch alone is made on every stage that reads it, and handed on by none
    stacked     what a scan stacks, a row for each block, is handed on as a whole, and not row by row
    told        every stage is told the loss: one number

Everything else is compared one by one: kind, mesh axes, bytes of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from meshwright.backends.jax_.emit.accumulation import EACH, ONCE, data_axes, form_of
from meshwright.backends.jax_.emit.pipeline.stages import AXIS
from meshwright.backends.jax_.emit.views import stem
from meshwright.backends.jax_.verify import bodies
from meshwright.backends.jax_.verify.hlo import Collective
from meshwright.backends.jax_.verify.pipelines import calls_in_one, passed_on
from meshwright.ir.analysis.weights import COUNT, weights_in
from meshwright.ir.graph.fold import Fold, FromInput
from meshwright.ir.graph.graph import Type
from meshwright.ir.program.program import (
    BodyProgram,
    Move,
    Program,
    Ring,
    Statement,
)
from meshwright.ir.same import Same
from meshwright.ir.target.capabilities import Capabilities

REWRITES = (
    "executed", "read_whole", "by_bytes", "at_once", "whole_sums", "tied", "part_read", "log_softmax", "scalars",
    "in_shards", "unread", "known", "counted", "masks", "added_up", "one_program", "in_step", "made_again", "stacked",
    "told",
)  # fmt: skip
OF_PRINTED = ("read_whole", "by_bytes", "scalars", "unread", "known", "weighed", "once", "one_way", "merged", "masks")
"""Those that hold of printed models, whose collectives stand in the code."""
SCALAR_BYTES = 4
Where = tuple[str, tuple[str, ...]]
"""Kind and mesh axes."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a step communicates: values one by one; what concerns parameters, and scalars, in bytes; and how many
    collectives of the plan are of tokens and labels, which are read whole."""

    values: Mapping[Collective, int]
    packed: Mapping[Where, int]
    scalars: Mapping[Where, int]
    whole: int
    perhaps: Mapping[Collective, int] = field(default_factory=dict)
    """Values that may be executed besides, where more is executed than is planned."""
    at_most: Mapping[Collective, int] = field(default_factory=dict)
    """Of `values`, those that may be executed less often."""
    spared: Mapping[Where, int] = field(default_factory=dict)
    """Of `packed`, what may not be executed."""
    at_once: bool = True

    def differences(self, executed: Mapping[Collective, int]) -> Iterator[str]:
        """What was executed and is not planned, or planned and not executed."""
        left = Counter(executed)
        for key, number in sorted(self.values.items()):
            found = min(number, left[key])
            left[key] -= found
            if found < number - self.at_most.get(key, 0):
                kind, axes, size = key
                yield f"{number - found} {kind} over {'.'.join(axes)} of {size} bytes are planned and not executed"
        for axis in self._take_scalars(left):
            yield f"all_reduce over {axis} of scalars is planned and not executed"
        rest, planned = Counter[Where](), Counter[Where]()
        for (kind, axes, size), number in left.items():
            self._add(rest, kind, axes, number * size)
        for (kind, axes), size in self.packed.items():
            self._add(planned, kind, axes, size)
        for (kind, axes, size), most in self.perhaps.items():
            beyond = min(rest[one] - planned[one] for one in self._under(kind, axes))
            number = max(0, min(most, left[kind, axes, size], beyond // size))
            left[kind, axes, size] -= number
            self._add(rest, kind, axes, -number * size)
        for where in sorted({*rest, *planned}):
            if not planned[where] - self.spared.get(where, 0) <= rest[where] <= planned[where]:
                kind, axes = where
                sizes = {size: n for (k, a, size), n in left.items() if k == kind and set(axes) <= set(a) and n}
                said = ", ".join(f"{n} of {size}" for size, n in sorted(sizes.items())) or "none"
                yield (
                    f"{kind} over {'.'.join(axes)}: {rest[where]} bytes beside values, "
                    f"{planned[where]} planned ({said})"
                )

    def _take_scalars(self, left: Counter[Collective]) -> list[str]:
        """Take off sums of one number each, at most as many along every axis as are planned, with other axes or alone;
        the axes along which there are none."""
        most: Counter[str] = Counter()
        for (_, axes), size in self.scalars.items():
            most.update(dict.fromkeys(axes, size // SCALAR_BYTES))
        missing = set(most)
        for key in sorted(one for one in left if one[0] == "all_reduce" and one[2] == SCALAR_BYTES):
            number = min(left[key], *(most[axis] for axis in key[1]))
            left[key] -= number
            most.subtract(dict.fromkeys(key[1], number))
            missing -= set(key[1]) if number else set()
        return sorted(missing)

    def _add(self, into: Counter[Where], kind: str, axes: tuple[str, ...], size: int) -> None:
        for one in self._under(kind, axes):
            into[one] += size

    def _under(self, kind: str, axes: tuple[str, ...]) -> list[Where]:
        """What bytes are counted under: a sum's, under each axis."""
        apart = self.at_once and kind == "all_reduce"
        return [(kind, (axis,)) for axis in axes] if apart else [(kind, axes)]


def predicted(
    program: Program,
    fold: Fold,
    target: Capabilities,
    rewrites: tuple[str, ...] = REWRITES,
    stacked: tuple[Type, ...] = (),
    batch: tuple[str, ...] | None = None,
) -> Predicted:
    """The collectives of one step, by these rewrites. `stacked`: what a scan stacks that stages share; `batch`: the
    axes along which devices are given parts of a batch, if not all that cut one."""
    values, packed, scalars = Counter[Collective](), Counter[Where](), Counter[Where]()
    perhaps, at_most, whole, calls = Counter[Collective](), Counter[Collective](), 0, list(fold.calls())
    spared = Counter[Where]()
    data = data_axes(program, program.stages[0].mesh.names)
    form = form_of(program, data)
    if form == ONCE and "added_up" in rewrites:
        rewrites = tuple(one for one in rewrites if one not in ("tied", "part_read"))
    executed: Callable[[str], str] = target.executed if "executed" in rewrites else str
    every = (call for stage in program.stages for call in stage.calls())
    for number, name in calls_in_one(program, fold) if "one_program" in rewrites else every:
        body, call = program.body(name), calls[number]
        inputs = zip(call.body.graph.inputs, call.sources, strict=True)
        given = {item.value for item, source in inputs if isinstance(source, FromInput)}
        sizes, known = bodies.sizes(body, call.body.graph, rewrites), set(bodies.known(body))
        again = set(bodies.again(body)) if "once" in rewrites else set()
        unread = set(bodies.unread(body, program.kernels)) if "unread" in rewrites else set()
        for statement, times in _all(body, program.microbatches):
            if isinstance(statement, Ring):
                for size in (int(body.nbytes[one]) for one in statement.operands[1:3]):
                    values["permute", (statement.axis,), size] += times * statement.shifts(body.mesh)
                    if "one_way" in rewrites and statement.backward and body.mesh.axis(statement.axis).size == 2:
                        at_most["permute", (statement.axis,), size] += times
            if not isinstance(statement, Move) or statement.step.free:
                continue
            where = executed(statement.step.kind), tuple(sorted(statement.step.axes))
            size = sizes.get(statement.operand, int(body.nbytes[statement.operand]))
            if ("known" in rewrites and statement.result in known) or statement.result in again:
                continue
            if "read_whole" in rewrites and statement.operand.partition("@")[0] in given:
                whole += times
            elif "by_bytes" in rewrites and statement.reason not in ("value", "gradient"):
                packed[where] += size * times
            elif "scalars" in rewrites and body.elements[statement.operand] == 1:
                scalars[where] += max(size, SCALAR_BYTES) * times
            else:
                values[*where, size] += times
        for spare in bodies.for_masks(body) if "masks" in rewrites else ():
            where, size = (executed(spare.step.kind), tuple(sorted(spare.step.axes))), int(body.nbytes[spare.operand])
            at_most[*where, size] += program.microbatches
        for move in body.backward:
            merged = "merged" in rewrites and isinstance(move, Move) and move.reason == "parameter"
            if isinstance(move, Move) and (merged or move.result in unread):
                where = executed(move.step.kind), tuple(sorted(move.step.axes))
                spared[where] += int(body.nbytes[move.operand]) * program.microbatches
        for move in bodies.once(body) if "unread" in rewrites else ():
            where, size = (executed(move.step.kind), tuple(sorted(move.step.axes))), int(body.nbytes[move.operand])
            packed[where] += size * program.microbatches
            spared[where] += size * program.microbatches
        for move, more in bodies.added_up(body) if "tied" in rewrites else ():
            where = executed(move.step.kind), tuple(sorted(move.step.axes))
            size = sizes.get(move.operand, int(body.nbytes[move.operand]))
            packed[where] += more * size
            spared[where] += more * size
        if "log_softmax" in rewrites:
            perhaps.update({(executed("all_reduce"), *one): program.microbatches for one in bodies.statistics(body)})
        if "in_shards" in rewrites and all(body.elements[one] == 1 for one in body.outputs):
            for axes in bodies.gathered_for_the_loss(body):
                perhaps["all_reduce", axes, SCALAR_BYTES] += program.microbatches
                parts = prod(body.mesh.axis(axis).size for axis in axes)
                for size in bodies.before_the_loss(body):
                    perhaps["all_gather", axes, size // parts] += program.microbatches
                for size in bodies.rows_of_the_loss(body):
                    perhaps["all_reduce", axes, size] += program.microbatches
    steps, remade, stacked = "in_step" in rewrites, "made_again" in rewrites, stacked if "stacked" in rewrites else ()
    for one, number in passed_on(program, fold, stacked, in_step=steps, made_again=remade):
        values[one] += number
    for where, size in _shared(program, executed) if "one_program" in rewrites else ():
        packed[where] += size
    if len(program.stages) > 1 and "told" in rewrites:
        scalars["all_reduce", (AXIS,)] += SCALAR_BYTES
    for where, size in _gathered_again(program, executed) if {"tied", "once"}.intersection(rewrites) else ():
        packed[where] -= size
    for where, size in _added_before(program, executed) if "once" in rewrites else ():
        packed[where] -= size
    for where, size in _summed_apart(program, executed) if "tied" in rewrites else ():
        packed[where] += size
    counting = ("counted" in rewrites and form == EACH) or ("weighed" in rewrites and program.microbatches > 1)
    data = data if batch is None else batch
    if counting and weights_in(Same(fold))[0].kind == COUNT and data:
        scalars["all_reduce", tuple(sorted(data))] += SCALAR_BYTES * program.microbatches
    return Predicted(values, packed, scalars, whole, perhaps, at_most, spared, at_once="at_once" in rewrites)


def _gathered_again(program: Program, executed: Callable[[str], str]) -> Iterator[tuple[Where, int]]:
    """The gathers of what several calls of a stage read, of all but the first."""
    for tie in program.ties:
        for stage, call in tie.holders[1:]:
            for where, size in _gathers(program, stage, call, tie.path, executed):
                yield where, size * program.microbatches


def _added_before(program: Program, executed: Callable[[str], str]) -> Iterator[tuple[Where, int]]:
    """The sums that backward passes make of what several calls of a stage read and hold whole, of all but the first
    that makes any."""
    for tie in program.ties:
        several = (list(_sums_again(program, stage, call, tie.path, executed)) for stage, call in tie.holders)
        for sums in list(filter(None, several))[1:]:
            yield from sums


def _sums_again(
    program: Program, stage: int, call: int, path: str, executed: Callable[[str], str]
) -> Iterator[tuple[Where, int]]:
    """The sums that the backward pass of a call makes of the gradient of a parameter that it holds whole."""
    body = _body_of(program, stage, call)
    slot = next(one for one in body.params if one.path == path)
    names = {name for name, _ in bodies.way(body, slot.grad)} if slot.grad and slot.stored == slot.value else set()
    for one in body.backward:
        if isinstance(one, Move) and one.reason == "sync" and one.operand in names and not one.step.free:
            where = executed(one.step.kind), tuple(sorted(one.step.axes))
            yield where, int(body.nbytes[one.operand]) * program.microbatches


def _summed_apart(program: Program, executed: Callable[[str], str]) -> Iterator[tuple[Where, int]]:
    """The sums of what several calls of a stage read, for each but the one that has them."""
    for tie in program.ties:
        syncs = [list(_sync(program, stage, call, tie.path)) for stage, call in tie.holders]
        having = next((one for one in syncs if one), [])
        for one in syncs:
            for move, size in having if not one else ():
                yield (executed(move.step.kind), tuple(sorted(move.step.axes))), size


def _shared(program: Program, executed: Callable[[str], str]) -> Iterator[tuple[Where, int]]:
    """The sums over stages of what several of them hold; and, taken off, the sums over copies of all but the first."""
    for tie in program.ties:
        (stage, call), *others = ((stage, call) for stage, call in tie.holders)
        for other, number in others:
            if other != stage:
                own = [(move, size) for move, size in _sync(program, other, number, tie.path)]
                yield from (((executed(one.step.kind), tuple(sorted(one.step.axes))), -size) for one, size in own)
        if any(other != stage for other, _ in others):
            body = _body_of(program, stage, call)
            slot = next(one for one in body.params if one.path == tie.path)
            yield ("all_reduce", (AXIS,)), int(body.nbytes[slot.value])


def _gathers(
    program: Program, stage: int, call: int, path: str, executed: Callable[[str], str]
) -> Iterator[tuple[Where, int]]:
    """The gathers of a parameter in a call, in bytes."""
    body = _body_of(program, stage, call)
    slot = next((one for one in body.params if one.path == path), None)
    for one in (*body.forward, *body.backward) if slot is not None else ():
        if isinstance(one, Move) and one.reason == "parameter" and not one.step.free and stem(one.operand) == path:
            yield (executed(one.step.kind), tuple(sorted(one.step.axes))), int(body.nbytes[one.operand])


def _sync(program: Program, stage: int, call: int, path: str) -> Iterator[tuple[Move, int]]:
    """The collectives that a call's gradient of a parameter is summed by, with the bytes of the whole of it."""
    body = _body_of(program, stage, call)
    for slot in body.params:
        if slot.path != path or slot.grad is None or slot.synced is None:
            continue
        names = {name for name, _ in bodies.way(body, slot.grad)}
        for one in body.sync:
            if isinstance(one, Move) and one.operand in names and not one.step.free:
                yield one, int(body.nbytes[slot.grad])


def _body_of(program: Program, stage: int, call: int) -> BodyProgram:
    """The body program that a call of a stage runs."""
    return program.body(dict(program.stages[stage].calls())[call])


def _all(body: BodyProgram, microbatches: int) -> Iterator[tuple[Statement, int]]:
    """All statements, and how often each runs in a step."""
    yield from ((statement, microbatches) for statement in (*body.forward, *body.backward))
    yield from ((statement, 1) for statement in (*body.sync, *body.publish))
