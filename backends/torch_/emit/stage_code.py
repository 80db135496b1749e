"""What one stage of a pipeline is: what enters and leaves it, what of the model it holds, and the lines of its forward
pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise

from meshwright.backends.torch_.emit.subject import Stack, Subject
from meshwright.backends.torch_.emit.turns import counted
from meshwright.ir.fold import joined
from meshwright.ir.graph import Type
from meshwright.ir.mesh import Mesh
from meshwright.ir.placement import Placement
from meshwright.ir.quoting import around, literal
from meshwright.ir.route import CALLED, DEVICE, LOSS, ROWS, Line, Route

CARRIED = "x"
"""What the value is called that goes from block to block."""
BLOCK = "%block"
"""What stands for the block of a loop."""
FIRST, FOLLOWING, HANDED = "entered", "Following", "handed"
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
    blocks: tuple[str, ...]
    """The paths of its blocks."""
    beside: tuple[str, ...]
    """The paths of the other modules."""
    ahead: int
    """How many of these run before the first block."""
    holds: tuple[str, ...]
    """The paths of parameters and buffers that it reads by themselves, and that no module of it has."""
    lines: tuple[str, ...]
    """Its forward pass."""
    late: tuple[str, ...] = ()
    """The entries of the batch that it is given by name."""
    given: tuple[str, ...] = ()
    """Those that it is given first, of a first stage that is printed."""


@dataclass(frozen=True, kw_only=True)
class Around:
    """What all stages have in common."""

    subject: Subject
    route: Route
    late: tuple[str, ...]
    """The entries of the batch that are read behind the first stage: all stages are given them."""
    cut: Mapping[str, tuple[tuple[str, int], ...]]
    """The entries that the model is called with and whose sequences are cut: how they are."""

    @cached_property
    def bodies(self) -> Mapping[str, str]:
        """Of every block the body."""
        return {path: one.period[0] for one in self.subject.segments if not one.glue for path in one.paths}

    @cached_property
    def shape(self) -> Mapping[str, Type]:
        return {name: Type(shape, dtype) for name, dtype, shape in self.route.shapes}

    @cached_property
    def trained(self) -> set[str]:
        """Modules that hold parameters, or are around such."""
        found = set()
        for call in self.subject.fold.calls():
            for path in (path for param in call.body.graph.params if not param.buffer for path in param.paths):
                parts = joined(call.path, path).split(".")[:-1]
                found |= {".".join(parts[: n + 1]) for n in range(len(parts))}
        return found

    def handed_on(self, block: str) -> list[Type]:
        """What a block makes that gradients flow through."""
        if block not in self.bodies:
            return []
        graph = self.subject.fold.body[self.bodies[block]].graph
        return [graph.types[value] for value in graph.outputs if value in graph.differentiable]

    @cached_property
    def apart(self) -> bool:
        """Whether gradients of weights are computed apart."""
        return any(action.kind == "W" for _, actions in self.subject.program.actions for action in actions)


class Writer:
    """Writes the forward pass of one stage."""

    def __init__(
        self,
        around: Around,
        rows: int,
        lines: Sequence[Line],
        enters: tuple[Crossing, ...],
        leaves: tuple[Crossing, ...],
    ) -> None:
        self.around, self.rows, self.lines, self.enters, self.leaves = around, rows, list(lines), enters, leaves
        entries = [name for name in around.subject.calls.read if name not in around.late]
        self.given = [one.name for one in enters] or entries
        self.results = [one.name for one in leaves] or [around.route.result]
        self.names = self.carried()
        self.follows = self.following()

    def carried(self) -> dict[str, str]:
        """What goes from block to block gets one name."""
        chain = {
            name
            for line in self.lines
            if line.module in self.around.bodies
            for name in (line.makes[0], *self.main(line))
        }
        last_read = {name: n for n, line in enumerate(self.lines) for name in line.reads}
        last_read |= dict.fromkeys(self.results, len(self.lines))
        born = {name: n for n, line in enumerate(self.lines) for name in line.named}
        alive = sorted(chain, key=lambda name: born.get(name, -1))
        for one, other in pairwise(alive):
            if last_read.get(one, -1) > born.get(other, -1):
                return {}  # two of them are needed at once
        return dict.fromkeys(chain, CARRIED)

    def following(self) -> tuple[str, ...]:
        """What a later stage makes of parameters alone, where gradients of weights are computed apart: torch takes
        those to lie behind what depends on the stage's input. A block may hand on such, beside what goes on."""
        if not (self.enters and self.around.apart):
            return ()
        created = {line.makes[0] for line in self.around.route.created}
        reached, found = {one.name for one in self.enters if one.differentiable}, list[str]()
        for line in self.lines:
            if not reached.isdisjoint(line.reads):
                handed = self.around.handed_on(line.module)
                found += [n for n in line.named[1:] if n not in created and self.around.shape[n] in handed]
            elif line.holds or line.module in self.around.trained:
                found += line.named
            else:
                continue
            reached.update(line.named)
        return tuple(found)

    def main(self, line: Line) -> tuple[str, ...]:
        """The argument of a block that goes on changed: the one of the type of its result."""
        shape = self.around.shape
        return tuple(name for name in line.reads if shape[name] == shape[line.makes[0]])[:1]

    def called(self, name: str) -> str:
        return self.names.get(name, name)

    def text(self) -> Iterator[str]:
        entering = {one.name for one in self.enters if one.cut}  # becomes a DTensor, which is another type
        arguments = [f"{self.called(name)}: {'Any' if name in entering else 'Tensor'}" for name in self.given]
        given = ", ".join([*arguments, *(f"{name}: Tensor" for name in self.around.late)])
        result = "Tensor" if len(self.results) == 1 else "tuple[Tensor, ...]"
        yield f"def forward(self, {given}) -> {result}:"
        for name, cut in self.sharded():
            over = ", ".join(f'"{axis}"' for axis, _ in cut)
            shards = ", ".join(f"Shard({dim})" for _, dim in cut)
            yield f"    {name} = DTensor.from_local({name}, self.mesh[{over}], [{shards}])"
        lines = list(self.loops(self.inlined()))
        if self.follows:
            entered = next(self.called(one.name) for one in self.enters if one.differentiable)
            lines.insert(0, f"{FIRST} = {entered}")
        sharded = {one.name for one in self.leaves if one.cut}
        apart = self.enters and self.around.apart
        local = ".to_local().clone()" if apart else ".to_local()"
        strided = set(self.around.route.strided) if self.leaves else set[str]()
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
            yield from self.around.cut.items()

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
            if more or line.module or name in (*self.results, *self.follows) or len(readers) != 1:
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
        for key, run in groupby(lines, key=self.stack):
            members = list(run)
            if key is None or len(members) == 1:
                for line in members:
                    yield self.written(line)
                    after = [self.called(name) for name in line.makes if name in self.follows]
                    yield from (f"{name} = {FOLLOWING}.apply({name}, {FIRST})" for name in after)
                continue
            yield from self.loop(members)

    def stack(self, line: Line) -> Stack | None:
        """The stack of a block that is called in a loop; None for what is in none."""
        return self.around.subject.stack_of.get(line.module) if self.names else None

    def loop(self, members: Sequence[Line]) -> Iterator[str]:
        """Blocks of a stack, one after the other; those that take turns as their bodies are called."""
        stack = self.around.subject.stack_of[members[0].module]
        instances = stack.instances
        calls: dict[str, dict[str, list[str]]] = {}
        for line in members:
            call = self.written(line).replace(f"self.get_submodule({literal(line.module)})", BLOCK)
            calls.setdefault(call, {}).setdefault(self.around.bodies[line.module], []).append(line.module)
        bodies = [body for found in calls.values() for body in found]
        if len(set(bodies)) < len(bodies):  # one body, called in several ways
            yield from map(self.written, members)
            return
        block = f"self.get_submodule({around(instances.before, 'index', instances.after)})"
        yield f"for index in {stack.constant}[self.index]:"
        if len(calls) == 1:
            yield f"    {next(iter(calls)).replace(BLOCK, block)}"
            return
        yield f"    block = {block}"
        *others, last = sorted(calls, key=lambda call: sum(len(self.every(body)) for body in calls[call]))
        for number, call in enumerate(others):
            numbers = sorted(instances.number(path) for body in calls[call] for path in self.every(body))
            yield f"    {'elif' if number else 'if'} index in {counted(tuple(numbers))}:"
            yield f"        {call.replace(BLOCK, 'block')}"
        yield "    else:"
        yield f"        {last.replace(BLOCK, 'block')}"

    def every(self, body: str) -> list[str]:
        """All instances of a body, those of other stages too."""
        return [path for path, own in self.around.bodies.items() if own == body]

    def written(self, line: Line) -> str:
        where = next((name for name in self.given), "")
        text = NAME.sub(lambda found: self.called(found[1]), line.expression)
        text = text.replace(LOSS, "self.loss").replace(CALLED, "self").replace(DEVICE, f"{self.called(where)}.device")
        text = re.sub(re.escape(ROWS).replace("%d", r"(\d+)"), lambda found: str(int(found[1]) * self.rows), text)
        return f"{', '.join(self.called(name) for name in line.makes)} = {text}"


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
