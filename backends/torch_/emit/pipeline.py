"""The stages of a pipeline as code: what of the model each one holds, what enters and leaves it, and the lines of its
forward pass.

The forward pass of the model is a list of lines (`meshwright.ir.route`); a stage is what lies between two cuts of it.
What crosses a cut is what the Program sends there: the same values, in the same order, or the plan is refused. Runs of
blocks that differ in nothing but their number become loops.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, pairwise
from math import prod

from meshwright.backends.torch_.emit.axes import Axes
from meshwright.backends.torch_.emit.context import SEQUENCE, Context
from meshwright.backends.torch_.emit.subject import Piece, Subject
from meshwright.ir.errors import EmissionSchedule
from meshwright.ir.fold import Call, joined
from meshwright.ir.graph import Param, Type
from meshwright.ir.mesh import Mesh
from meshwright.ir.placement import Placement
from meshwright.ir.route import CALLED, DEVICE, ROWS, Line, Route
from meshwright.ir.ties import slot_of

CARRIED = "x"
"""What the value is called that goes from block to block."""
NAME = re.compile(r"%(\w+)")
WIDTH = 110


@dataclass(frozen=True, slots=True)
class Crossing:
    """A value that goes from one stage to the next."""

    name: str
    type: Type
    placement: Placement
    differentiable: bool
    cut: tuple[tuple[str, int], ...] = ()
    """The dimension that the context axis and the tensor axis cut, where they do: stages hold it as a DTensor then, and
    send its shards."""


@dataclass(frozen=True, slots=True)
class StageCode:
    """One stage."""

    index: int
    mesh: Mesh
    enters: tuple[Crossing, ...]
    """Empty for the first stage, which is given entries of the batch."""
    leaves: tuple[Crossing, ...]
    """Empty for the last one."""
    blocks: tuple[tuple[str, int, int], ...]
    """For every stack: its body, and the numbers of its blocks from first to last, exclusive."""
    beside: tuple[str, ...]
    """The paths of the other modules."""
    ahead: int
    """How many of these run before the first block."""
    holds: tuple[str, ...]
    """The paths of parameters and buffers that it reads by themselves."""
    lines: tuple[str, ...]
    """Its forward pass."""


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

    def stage_of(self, piece: Piece) -> int:
        """The stage that has a piece which is not repeated."""
        return self.glue[piece.plan.body]


def pipeline_of(subject: Subject, axes: Sequence[Axes], context: Context | None) -> Pipeline | None:
    """The stages of a plan, whose axes are given for each; None where there is only one."""
    stages, groups = subject.decisions.stages, subject.decisions.groups
    if len(stages) == 1:
        return None
    route = subject.calls.route
    if route.problem or not route.lines:
        raise _refuse(f"the forward pass of {subject.calls.factory} cannot be cut: {route.problem}")
    schedule = subject.decisions.schedule
    for stage, own in zip(stages, axes, strict=True):
        if subject.workload.global_batch % prod((schedule.microbatches, *(stage.mesh.axis(a).size for a in own.batch))):
            along = ".".join(own.batch)
            raise EmissionSchedule(
                place=f"{schedule.microbatches} micro-batches",
                cause=f"on ranks along {along} they do not divide {subject.workload.global_batch} sequences",
                fix="plan with a --global-batch that they divide",
            )
    held = tuple(tuple(n for n, stage in enumerate(stages) if stage.ranks == ranks) for ranks in groups)
    codes = tuple(_Cutter(subject, route, axes, context).stages())
    calls = list(subject.fold.calls())
    glue = {calls[number].body.name: n for n, stage in enumerate(stages) for number in range(stage.first, stage.last)}
    tied = _tied(subject, codes)
    on = [len({stages[stage].ranks for stage, _ in names}) for names in tied]
    apart = [names for names, several in zip(tied, on, strict=True) if several > 1]
    twice = [names for names, several in zip(tied, on, strict=True) if several < len(names)]
    if len(apart) > 1 or any(len(names) > 2 for names in apart):
        raise _refuse("more than one parameter that two stages share")
    return Pipeline(codes, held, next(iter(apart), ()), tuple(twice), glue)


def _tied(subject: Subject, codes: Sequence[StageCode]) -> list[tuple[tuple[int, str], ...]]:
    """The stages and names of every parameter that several stages hold."""
    calls, found = list(subject.fold.calls()), []
    for tie, (_, by) in zip(subject.program.ties, subject.fold.tied, strict=True):
        names = []
        for stage, number in tie.holders:
            params = [one for one in calls[number].body.graph.params if tie.path in _names(calls[number], one)]
            inside = {*codes[stage].beside, calls[number].path}
            here = [name for name in _names(calls[number], params[0]) if name.rpartition(".")[0] in inside]
            if not here:
                raise _refuse(f"stage {stage} reads {tie.path} of a module that it does not call")
            names.append((stage, here[0]))
        parts = {_stored(subject, stage, *own) for (stage, _), own in zip(tie.holders, by, strict=True)}
        if len(parts) > 1:
            raise _refuse(f"{tie.path}, which stages hold in unlike parts")
        found.append(tuple(dict.fromkeys(names)))
    return [names for names in found if len(names) > 1]


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
        cut = () if context is None else context.entries
        self.entries = {name: ((str(axes[0].context), SEQUENCE),) for name in subject.calls.entries if name in cut}
        """Those that the model is called with and whose sequences are cut."""
        sequences = subject.workload.global_batch // subject.decisions.schedule.microbatches
        self.rows = [
            sequences // prod(stage.mesh.axis(axis).size for axis in own.batch)
            for stage, own in zip(subject.decisions.stages, axes, strict=True)
        ]
        """Sequences of one micro-batch on one rank of every stage."""
        self.calls = tuple(subject.fold.calls())
        self.at = {line.module: number for number, line in enumerate(route.lines) if line.module}
        self.stacks = {
            path: (segment.period[0], instances)
            for (_, instances), segment in zip(
                subject.stacks, (one for one in subject.fold.segments if not one.glue), strict=True
            )
            for path in segment.paths
        }
        self.shape = {name: Type(shape, dtype) for name, dtype, shape in route.shapes}
        self.apart = any(action.kind == "W" for _, actions in subject.program.actions for action in actions)
        """Whether gradients of weights are computed apart."""

    def stages(self) -> Iterator[StageCode]:
        plans = self.subject.decisions.stages
        ends = [self.end(plan.last) for plan in plans]
        starts = [0, *ends[:-1]]
        crossing = [self.crossing(index, end) for index, end in enumerate(ends[:-1])]
        for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
            enters = crossing[index - 1][1] if index else ()
            lines = (*self.again(start, end, enters), *self.route.lines[start:end])
            leaves = crossing[index][0] if index < len(crossing) else ()
            yield StageCode(
                index=index,
                mesh=plans[index].mesh,
                enters=enters,
                leaves=leaves,
                blocks=tuple(self.blocks(lines)),
                beside=tuple(line.module for line in lines if line.module and line.module not in self.stacks),
                ahead=self.ahead(lines),
                holds=tuple(dict.fromkeys(path for line in lines for path in line.holds)),
                lines=tuple(_Writer(self, self.rows[index], lines, enters, leaves).text()),
            )

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
        return tuple((axis, dim) for axis in self.cutting[stage] if isinstance(dim := placement.on(axis), int))

    def line(self, path: str) -> int:
        if path not in self.at:
            raise _refuse(f"{path} is not called as a module")
        return self.at[path]

    def blocks(self, lines: Sequence[Line]) -> Iterator[tuple[str, int, int]]:
        paths = [line.module for line in lines if line.module in self.stacks]
        for (body, counted), members in groupby(paths, key=lambda path: self.stacks[path]):
            numbers = [counted.number(path) for path in members]
            yield body, numbers[0], numbers[-1] + 1

    def ahead(self, lines: Sequence[Line]) -> int:
        called = [line.module for line in lines if line.module]
        return next((n for n, path in enumerate(called) if path in self.stacks), len(called))

    def crossing(self, stage: int, end: int) -> tuple[tuple[Crossing, ...], tuple[Crossing, ...]]:
        """What the Program sends from a stage to the next, by the names that it has in the route: as it leaves, and as
        it enters. Where both stages are arranged alike it leaves as it enters."""
        lines = self.route.lines
        made = [name for line in lines[:end] for name in line.makes]
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
        late = {name for line in lines[end:] for name in line.reads} & set(self.subject.calls.entries)
        if late:
            raise _refuse(f"{min(late)} of the batch is read behind the cut after stage {stage}")
        return tuple(left for left, _ in found), tuple(entered for _, entered in found)

    def again(self, start: int, end: int, enters: tuple[Crossing, ...]) -> list[Line]:
        """The lines before a stage that it runs again: what they make is read here and not sent, since it depends on no
        parameter. Where such a line reads what goes from block to block, for its shape, it reads what enters."""
        here = self.route.lines[start:end]
        known = {*(one.name for one in enters), *self.subject.calls.entries, *(n for line in here for n in line.makes)}
        missing = [name for line in here for name in line.reads if name not in known]
        maker = {name: line for line in self.route.lines[:start] for name in line.makes}
        entering = {self.shape[one.name]: one.name for one in enters if one.differentiable}
        wanted: dict[str, Line] = {}
        while missing:
            line = maker[missing.pop()]
            for name in line.reads:
                like = entering.get(self.shape[name])
                if name in self.subject.calls.entries:
                    raise _refuse(f"{name} of the batch is read for {line.makes[0]}, which later stages need")
                if like is not None and name != like:
                    line = replace(
                        line,
                        expression=re.sub(rf"%{name}\b", f"%{like}", line.expression),
                        reads=tuple(like if one == name else one for one in line.reads),
                    )
                elif name not in known and name not in wanted:
                    missing.append(name)
            if line.holds or line.module in self.trained:
                raise _refuse(
                    f"{line.makes[0]} depends on parameters, is needed by later stages, and not sent in the plan"
                )
            wanted[line.makes[0]] = line
        order = {line.makes[0]: number for number, line in enumerate(self.route.lines)}
        return sorted(wanted.values(), key=lambda line: order[line.makes[0]])

    @cached_property
    def trained(self) -> set[str]:
        """Modules that hold parameters, or are around such."""
        found = set()
        for call in self.calls:
            for param in call.body.graph.params:
                parts = [] if param.buffer else joined(call.path, param.path).split(".")[:-1]
                found |= {".".join(parts[: n + 1]) for n in range(len(parts))}
        return found


class _Writer:
    """Writes the forward pass of one stage."""

    def __init__(
        self,
        cutter: _Cutter,
        rows: int,
        lines: Sequence[Line],
        enters: tuple[Crossing, ...],
        leaves: tuple[Crossing, ...],
    ) -> None:
        self.cutter, self.rows, self.lines, self.enters, self.leaves = cutter, rows, list(lines), enters, leaves
        self.given = [one.name for one in enters] or list(cutter.subject.calls.entries)
        self.results = [one.name for one in leaves] or [cutter.route.result]
        self.names = self.carried()

    def carried(self) -> dict[str, str]:
        """What goes from block to block gets one name."""
        chain = {
            name
            for line in self.lines
            if line.module in self.cutter.stacks and len(line.makes) == 1
            for name in (*line.makes, *self.main(line))
        }
        last_read = {name: n for n, line in enumerate(self.lines) for name in line.reads}
        last_read |= dict.fromkeys(self.results, len(self.lines))
        born = {name: n for n, line in enumerate(self.lines) for name in line.makes}
        alive = sorted(chain, key=lambda name: born.get(name, -1))
        for one, other in pairwise(alive):
            if last_read.get(one, -1) > born.get(other, -1):
                return {}  # two of them are needed at once
        return dict.fromkeys(chain, CARRIED)

    def main(self, line: Line) -> tuple[str, ...]:
        """The argument of a block that goes on changed: the one of the type of its result."""
        shape = self.cutter.shape
        return tuple(name for name in line.reads if shape[name] == shape[line.makes[0]])[:1]

    def called(self, name: str) -> str:
        return self.names.get(name, name)

    def text(self) -> Iterator[str]:
        entering = {one.name for one in self.enters if one.cut}  # becomes a DTensor, which is another type
        given = ", ".join(f"{self.called(name)}: {'Any' if name in entering else 'Tensor'}" for name in self.given)
        result = "Tensor" if len(self.results) == 1 else "tuple[Tensor, ...]"
        yield f"def forward(self, {given}) -> {result}:"
        for name, cut in self.sharded():
            over = ", ".join(f'"{axis}"' for axis, _ in cut)
            shards = ", ".join(f"Shard({dim})" for _, dim in cut)
            yield f"    {name} = DTensor.from_local({name}, self.mesh[{over}], [{shards}])"
        lines = list(self.loops(self.inlined()))
        sharded = {one.name for one in self.leaves if one.cut}
        apart = self.enters and self.cutter.apart
        local = ".to_local().clone()" if apart else ".to_local()"
        strided = set(self.cutter.route.strided) if self.leaves else set[str]()
        returned = ", ".join(
            f"{self.called(name)}{local if name in sharded else ''}{'.contiguous()' if name in strided else ''}"
            for name in self.results
        )
        if lines and lines[-1].startswith(f"{returned} = "):
            *lines, last = lines
            returned = last.removeprefix(f"{returned} = ")
            if not self.leaves:
                lines.append(f"result: Tensor = {returned}")
                returned = "result"
        yield from (f"    {line}" for line in lines)
        yield f"    return {returned}{'  # no view: torch detaches it in place' if apart and sharded else ''}"

    def sharded(self) -> Iterator[tuple[str, tuple[tuple[str, int], ...]]]:
        """What is given in shards, and how it is cut."""
        yield from ((self.called(one.name), one.cut) for one in self.enters if one.cut)
        if not self.enters:
            yield from self.cutter.entries.items()

    def inlined(self) -> list[Line]:
        """The lines, with what is read once, by a line after it, written there."""
        lines = list(self.lines)
        for number in reversed(range(len(lines))):
            line = lines[number]
            if not line.module and not any(set(line.makes) & {*other.reads, *self.results} for other in lines):
                del lines[number]
                continue
            (name, *more) = line.makes
            readers = [n for n, other in enumerate(lines) if name in other.reads and n > number]
            if more or line.module or name in self.results or len(readers) != 1:
                continue
            reader = lines[readers[0]]
            if reader.module or len(re.findall(rf"%{name}\b", reader.expression)) != 1:
                continue
            expression = _put(line.expression, name, reader.expression)
            if len(expression) > WIDTH:
                continue
            reads = tuple(dict.fromkeys((*line.reads, *(one for one in reader.reads if one != name))))
            holds = (*line.holds, *reader.holds)
            lines[readers[0]] = Line(makes=reader.makes, expression=expression, reads=reads, holds=holds)
            del lines[number]
        return lines

    def loops(self, lines: Sequence[Line]) -> Iterator[str]:
        for key, run in groupby(lines, key=self.pattern):
            members = list(run)
            if key is None or len(members) == 1:
                yield from (self.written(line) for line in members)
                continue
            body, instances = self.cutter.stacks[members[0].module]
            yield f"for index in {numbers_of(self.cutter.subject, body)}[self.index]:"
            call = self.written(members[0]).replace(
                f'get_submodule("{members[0].module}")',
                f'get_submodule(f"{instances.before}{{index}}{instances.after}")',
            )
            yield f"    {call}"

    def pattern(self, line: Line) -> str | None:
        """What blocks of one loop have in common; None for what is in no loop."""
        if line.module not in self.cutter.stacks or not self.names:
            return None
        body, _ = self.cutter.stacks[line.module]
        return f"{body} {self.written(line).replace(line.module, '')}"

    def written(self, line: Line) -> str:
        where = next((name for name in self.given), "")
        text = NAME.sub(lambda found: self.called(found[1]), line.expression)
        text = text.replace(CALLED, "self").replace(DEVICE, f"{self.called(where)}.device")
        text = re.sub(re.escape(ROWS).replace("%d", r"(\d+)"), lambda found: str(int(found[1]) * self.rows), text)
        return f"{', '.join(self.called(name) for name in line.makes)} = {text}"


def numbers_of(subject: Subject, body: str) -> str:
    """The constant that says which blocks of a stack every stage has."""
    words = re.sub(r"\W", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", body)).upper()
    return "BLOCKS" if len(subject.stacks) == 1 else f"{words}_BLOCKS"


def _put(expression: str, name: str, into: str) -> str:
    """An expression in the place of a name, in brackets where it binds less."""

    def placed(found: re.Match[str]) -> str:
        before, after = into[: found.start()], into[found.end() :]
        alone = (not before or before.endswith(("(", ", ", "="))) and (not after or after[0] in "),")
        return expression if alone or not _loose(expression) else f"({expression})"

    return re.sub(rf"%{name}\b", placed, into)


def _loose(expression: str) -> bool:
    """Whether an operator stands outside of all brackets of it."""
    deep = [sum(1 if c in "([{" else -1 if c in ")]}" else 0 for c in expression[:n]) for n in range(len(expression))]
    return expression[0] in "-~" or any(c == " " and not depth for c, depth in zip(expression, deep, strict=True))


def _refuse(cause: str) -> EmissionSchedule:
    return EmissionSchedule(
        place="pipeline stages", cause=f"this is not emitted yet: {cause}", fix="plan with --fix pp=1"
    )
