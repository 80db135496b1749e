"""The stages of a pipeline as code: what of the model each one holds, what enters and leaves it, and the lines of its
forward pass.

The forward pass of the model is a list of lines (`meshwright.ir.route`); a stage is what lies between two cuts of it.
What crosses a cut is what the Program sends there: the same values, in the same order, or the plan is refused. Runs of
blocks that differ in nothing but their number become loops.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from meshwright.backends.torch_.emit.axes import Axes
from meshwright.backends.torch_.emit.context import SEQUENCE, Context
from meshwright.backends.torch_.emit.stage_code import Around, Crossing, StageCode, Writer
from meshwright.backends.torch_.emit.subject import Piece, Subject
from meshwright.ir.errors import EmissionSchedule
from meshwright.ir.fold import Call, joined
from meshwright.ir.graph import Param
from meshwright.ir.placement import Placement
from meshwright.ir.route import Line, Route
from meshwright.ir.ties import slot_of


@dataclass(frozen=True)
class Pipeline:
    """All stages, and which of them each group of ranks holds."""

    stages: tuple[StageCode, ...]
    held: tuple[tuple[int, ...], ...]
    tied: tuple[tuple[int, str], ...] = ()
    """The stage and name of every copy of a parameter that groups of ranks share."""
    twice: tuple[tuple[tuple[int, str], ...], ...] = ()
    """The same of parameters that ranks hold in several stages."""

    glue: Mapping[str, int] = field(default_factory=dict)
    """The stage of every body that is not repeated."""

    late: tuple[str, ...] = ()
    """The entries of the batch that are read behind the first stage: all stages are given them."""

    def stage_of(self, piece: Piece) -> int:
        """The stage that has a piece which is not repeated."""
        return self.glue[piece.plan.body]


def pipeline_of(subject: Subject, axes: Sequence[Axes], context: Context | None) -> Pipeline | None:
    """The stages of a plan, whose axes are given for each; None where there is only one."""
    stages = subject.decisions.stages
    if len(stages) == 1:
        return None
    check_rows(subject, axes)
    route = subject.calls.route
    if route.problem or not route.lines:
        raise _refuse(f"the forward pass of {subject.calls.factory} cannot be cut: {route.problem}")
    cutter = _Cutter(subject, route, axes, context)
    codes = tuple(cutter.stages())
    calls = list(subject.fold.calls())
    glue = {calls[number].body.name: n for n, stage in enumerate(stages) for number in range(stage.first, stage.last)}
    tied, twice = shared_by(subject, codes)
    return Pipeline(codes, held_by(subject), tied, twice, glue, cutter.around.late)


def check_rows(subject: Subject, axes: Sequence[Axes]) -> None:
    """Must: micro-batches divide the batch, on the ranks of every stage."""
    schedule = subject.decisions.schedule
    for stage, own in zip(subject.decisions.stages, axes, strict=True):
        if subject.workload.global_batch % prod((schedule.microbatches, *(stage.mesh.axis(a).size for a in own.batch))):
            along = ".".join(own.batch)
            raise EmissionSchedule(
                place=f"{schedule.microbatches} micro-batches",
                cause=f"on ranks along {along} they do not divide {subject.workload.global_batch} sequences",
                fix="plan with a --global-batch that they divide",
            )


def held_by(subject: Subject) -> tuple[tuple[int, ...], ...]:
    """The stages that each group of ranks holds."""
    stages = subject.decisions.stages
    groups = subject.decisions.groups
    return tuple(tuple(n for n, stage in enumerate(stages) if stage.ranks == ranks) for ranks in groups)


def shared_by(
    subject: Subject, codes: Sequence[StageCode]
) -> tuple[tuple[tuple[int, str], ...], tuple[tuple[tuple[int, str], ...], ...]]:
    """The parameter that groups of ranks share, and those that ranks hold in several stages."""
    held, tied = held_by(subject), _tied(subject, codes)
    by_group = [[tuple(one for one in names if one[0] in group) for group in held] for names in tied]
    twice = tuple(names for groups in by_group for names in groups if len(names) > 1)
    apart = [tuple(names[0] for names in groups if names) for groups in by_group if sum(map(bool, groups)) > 1]
    if len(apart) > 1 or any(len(names) > 2 for names in apart):
        raise _refuse("more than one parameter that two stages share")
    return next(iter(apart), ()), twice


def _tied(subject: Subject, codes: Sequence[StageCode]) -> list[tuple[tuple[int, str], ...]]:
    """The stages and names of every parameter that several stages hold."""
    calls, found = list(subject.fold.calls()), []
    for tie, (_, by) in zip(subject.program.ties, subject.fold.tied, strict=True):
        names = []
        for stage, number in tie.holders:
            params = [one for one in calls[number].body.graph.params if tie.path in _names(calls[number], one)]
            inside = {*codes[stage].beside, calls[number].path}
            here = [
                name
                for name in _names(calls[number], params[0])
                if name in codes[stage].holds or is_inside(name.rpartition(".")[0], inside)
            ]
            if not here:
                raise _refuse(f"stage {stage} reads {tie.path} of a module that it does not call")
            names += [(stage, name) for name in here]
        parts = {
            (subject.decisions.stages[stage].mesh, _stored(subject, stage, *own))
            for (stage, _), own in zip(tie.holders, by, strict=True)
        }
        if len(parts) > len({mesh for mesh, _ in parts}):
            raise _refuse(f"{tie.path}, which stages hold in unlike parts")
        found.append(tuple(dict.fromkeys(names)))
    return [names for names in found if len(names) > 1]


def is_inside(module: str, around: Collection[str]) -> bool:
    """Whether a module is one of these, or within one."""
    return module in around or any(one and module.startswith(f"{one}.") for one in around)


def _stored(subject: Subject, stage: int, number: int, path: str) -> Placement:
    """Where a stage holds a parameter of a call."""
    body = subject.program.body(dict(subject.program.stages[stage].calls())[number])
    return body.locals[slot_of(body, path).stored].placement


def _names(call: Call, param: Param) -> tuple[str, ...]:
    return tuple(joined(call.path, path) for path in param.paths)


class _Cutter:
    """Cuts the route of a model where its plan cuts the fold."""

    def __init__(self, subject: Subject, route: Route, axes: Sequence[Axes], context: Context | None) -> None:
        self.subject, self.route = subject, route
        self.cutting = [tuple(axis for axis in (own.context, own.tensor) if axis is not None) for own in axes]
        sequences = subject.workload.global_batch // subject.decisions.schedule.microbatches
        self.rows = [
            sequences // prod(stage.mesh.axis(axis).size for axis in own.batch)
            for stage, own in zip(subject.decisions.stages, axes, strict=True)
        ]
        """Sequences of one micro-batch on one rank of every stage."""
        self.calls = tuple(subject.fold.calls())
        self.at = {line.module: number for number, line in enumerate(route.lines) if line.module}
        cut = () if context is None else context.entries
        self.around = Around(
            subject=subject,
            route=route,
            late=tuple(self.late()),
            cut={
                subject.calls.named(name): ((str(axes[0].context), SEQUENCE),)
                for name in subject.calls.entries
                if name in cut
            },
        )
        self.shape = self.around.shape
        if self.around.late and context is not None:
            raise _refuse(f"{self.around.late[0]} of the batch is read by later stages, beside cut sequences")

    def stages(self) -> Iterator[StageCode]:
        plans = self.subject.decisions.stages
        ends = [self.end(plan.last) for plan in plans]
        starts = [0, *ends[:-1]]
        crossing = [self.crossing(index, end) for index, end in enumerate(ends[:-1])]
        for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
            enters = crossing[index - 1][1] if index else ()
            lines = (*self.again(start, end, enters), *self.route.lines[start:end])
            leaves = crossing[index][0] if index < len(crossing) else ()
            modules = tuple(dict.fromkeys(line.module for line in lines if line.module))
            yield StageCode(
                index=index,
                mesh=plans[index].mesh,
                enters=enters,
                leaves=leaves,
                blocks=tuple(path for path in modules if path in self.around.bodies),
                beside=tuple(path for path in modules if path not in self.around.bodies),
                ahead=self.ahead(lines),
                holds=tuple(
                    path
                    for path in dict.fromkeys((*(path for line in lines for path in line.holds), *self.unread(index)))
                    if not any(path.startswith(f"{module}.") for module in modules)
                ),
                lines=tuple(Writer(self.around, self.rows[index], lines, enters, leaves).text()),
            )

    def unread(self, stage: int) -> Iterator[str]:
        """Parameters that nothing is made of, of the calls outside of blocks that a stage has; and buffers that no
        stage reads nor has a module for, of which the first one takes care."""
        plan = self.subject.decisions.stages[stage]
        for call in self.calls[plan.first : plan.last]:
            graph = call.body.graph
            yield from (
                one.path
                for one in graph.params
                if not call.path and not graph.readers.get(one.value) and one.value not in graph.outputs
            )
        if stage == 0:
            lines = self.route.lines
            held, called = {path for line in lines for path in line.holds}, {line.module for line in lines}
            yield from (path for path in self.subject.calls.buffers if path not in held and not is_inside(path, called))

    def late(self) -> Iterator[str]:
        """The entries of the batch that stages behind the first one read."""
        end = self.end(self.subject.decisions.stages[0].last)
        read = {name for line in self.route.lines[end:] for name in line.reads}
        yield from (name for name in self.subject.calls.read if name in read)

    def end(self, call: int) -> int:
        """The line before which a stage ends whose last call is this one."""
        if call == len(self.calls):
            return len(self.route.lines)
        before, after = self.calls[call - 1], self.calls[call]
        if before.path:
            return self.line(before.path) + 1
        if after.path:
            return self.line(after.path)
        raise _refuse(f"there is no block on either side of the cut after {before.body.name}")

    def cut(self, placement: Placement, stage: int) -> tuple[tuple[str, int], ...]:
        """The cuts of a DTensor: of sequences. Of a bias of positions a rank has a plain part, that of its heads."""
        if len(placement.dims) > len(("batch", "sequence", "width")):
            return ()
        return tuple((axis, dim) for axis in self.cutting[stage] if isinstance(dim := placement.on(axis), int))

    def line(self, path: str) -> int:
        if path not in self.at:
            raise _refuse(f"{path} is not called as a module")
        return self.at[path]

    def ahead(self, lines: Sequence[Line]) -> int:
        called = [line.module for line in lines if line.module]
        return next((n for n, path in enumerate(called) if path in self.around.bodies), len(called))

    def crossing(self, stage: int, end: int) -> tuple[tuple[Crossing, ...], tuple[Crossing, ...]]:
        """What the Program sends from a stage to the next, by the names that it has in the route: as it leaves, and as
        it enters. Where both stages are arranged alike it leaves as it enters."""
        lines = self.route.lines
        made = [name for line in lines[:end] for name in line.named]
        read = {name for line in lines[end:] for name in line.reads} | {self.route.result}
        live = [name for name in made if name in read]
        hops = [hop for hop in self.subject.program.transfers if hop.from_stage == stage]
        plans = self.subject.decisions.stages
        alike = plans[stage].mesh == plans[stage + 1].mesh
        found = []
        for hop in hops:
            fits = [name for name in live if self.shape[name] == hop.type]
            if fits:
                live.remove(fits[0])
                ends = ((stage, hop.target if alike else hop.source), (stage + 1, hop.target))
                found.append(
                    [Crossing(fits[0], hop.type, how, hop.differentiable, self.cut(how, at)) for at, how in ends]
                )
        if len(found) < len(hops):
            raise _refuse(
                f"{len(hops)} values cross from stage {stage} in the plan, and not the same ones in the model's code"
            )
        return tuple(left for left, _ in found), tuple(entered for _, entered in found)

    def again(self, start: int, end: int, enters: tuple[Crossing, ...]) -> list[Line]:
        """The lines before a stage that it runs again: what they make is read here and not sent, since it depends on no
        parameter. Where such a line reads what goes from block to block, for its shape, it reads what enters."""
        here = self.route.lines[start:end]
        known = {*(one.name for one in enters), *self.subject.calls.read, *(n for line in here for n in line.named)}
        missing = [name for line in here for name in line.reads if name not in known]
        maker = {name: line for line in self.route.lines[:start] for name in line.named}
        maker |= {line.makes[0]: line for line in self.route.created}
        entering = {self.shape[one.name]: one.name for one in enters if one.differentiable}
        wanted: dict[str, Line] = {}
        while missing:
            line = maker[missing.pop()]
            for name in line.reads:
                like = entering.get(self.shape[name])
                if name in self.subject.calls.read and name not in self.around.late:
                    raise _refuse(f"{name} of the batch is read for {line.makes[0]}, which later stages need")
                if like is not None and name != like:
                    line = replace(
                        line,
                        expression=re.sub(rf"%{name}\b", f"%{like}", line.expression),
                        reads=tuple(like if one == name else one for one in line.reads),
                    )
                elif name not in known and name not in wanted:
                    missing.append(name)
            if line.holds or line.module in self.around.trained:
                raise _refuse(
                    f"{line.makes[0]} depends on parameters, is needed by later stages, and not sent in the plan"
                )
            wanted[line.makes[0]] = line
        order = {name: number for number, line in enumerate(self.route.lines) for name in line.named}
        return sorted(wanted.values(), key=lambda line: order[line.makes[0]])


def _refuse(cause: str) -> EmissionSchedule:
    return EmissionSchedule(place="pipeline stages", cause=f"this is not emitted yet: {cause}", ways=("--fix pp=1",))
