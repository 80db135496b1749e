"""Folds: a deep model as a short list of bodies, each used many times.

A *body* is the graph of one unique block (a decoder layer), or of the *glue* between stacks (embedding; final norm,
head and loss). A *segment* is a period of p bodies repeated r times: Gemma-3 is five local layers and a global one,
repeated; DeepSeek-V3 is three dense layers, then 58 with experts; T5 has two stacks with glue between. Glue is a
segment of one body, once.

    segment 0  glue    embed                                x 1
    segment 1  stack   LlamaDecoderLayer                    x 126     model.layers.0 … model.layers.125
    segment 2  glue    head                                 x 1

Calls run in the order written. Every input of a call has a *source*: a model input, an output of the call before, or
an output of an earlier segment (RoPE tables, the encoder's result, T5's shared bias). So a fold is a call graph with
loops, and `unfold` is its meaning: it writes the loops out and gives every parameter its original name back.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from meshwright.ir.errors import FoldBroken, FoldInstances, FoldPort
from meshwright.ir.graph.graph import Graph, Input, Op, Param, Type, Update
from meshwright.ir.graph.numbers import numbers_of, with_numbers
from meshwright.ir.same import Same


@dataclass(frozen=True, slots=True)
class FromInput:
    """The model input of this name."""

    name: str

    def __str__(self) -> str:
        return f"input {self.name}"


@dataclass(frozen=True, slots=True)
class FromPrevious:
    """Output `output` of the call that runs just before."""

    output: int

    def __str__(self) -> str:
        return f"previous.{self.output}"


@dataclass(frozen=True, slots=True)
class FromSegment:
    """Output `output` of the body at `position` in the period of an earlier segment, on its last repeat."""

    segment: int
    position: int
    output: int

    def __str__(self) -> str:
        return f"segment {self.segment}[{self.position}].{self.output}"


Source = FromInput | FromPrevious | FromSegment


@dataclass(frozen=True, slots=True)
class Body:
    """A unique block. Its graph's parameter paths are relative to the instance's module path."""

    name: str
    graph: Graph
    module_class: str = ""


@dataclass(frozen=True, slots=True)
class Segment:
    """A period of bodies, repeated.

    - `paths` must name each instance once, in running order: repeats x period of them. Glue has the path "".
    - `entry` wires the first call of the first repeat; `wires[0]` the first call of every later repeat; `wires[i]`
      the i-th of the period.
    - `numbers`, where calls of a body differ in some, has the open numbers of every call
    (`meshwright.ir.graph.numbers`).
    """

    period: tuple[str, ...]
    paths: tuple[str, ...]
    entry: tuple[Source, ...]
    wires: tuple[tuple[Source, ...], ...]
    glue: bool = False
    numbers: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.period or not self.paths or len(self.paths) % len(self.period):
            raise FoldInstances(
                place=f"segment {self.period}",
                cause=f"{len(self.paths)} instances of a period of {len(self.period)}",
                fix="name every instance of every repeat",
            )
        if len(self.wires) != len(self.period):
            raise FoldBroken(
                place=f"segment {self.period}",
                cause=f"{len(self.wires)} wirings",
                fix="wire every position of the period",
            )
        if self.numbers and len(self.numbers) != len(self.paths):
            raise FoldInstances(
                place=f"segment {self.period}",
                cause=f"numbers of {len(self.numbers)} instances of {len(self.paths)}",
                fix="give those of every instance, or of none",
            )

    @property
    def repeats(self) -> int:
        return len(self.paths) // len(self.period)

    @property
    def calls(self) -> int:
        return len(self.paths)


@dataclass(frozen=True, slots=True)
class Call:
    """One run of a body, as `Fold.calls` lists it."""

    segment: int
    position: int
    repeat: int
    body: Body
    path: str
    sources: tuple[Source, ...]
    period: int
    """The length of its segment's period."""
    numbers: tuple[float, ...] | None = None
    """Its open numbers, where they may be others than its body's."""

    @property
    def graph(self) -> Graph:
        """The graph of the call's body, with the call's own numbers."""
        return self.body.graph if self.numbers is None else with_numbers(self.body.graph, self.numbers)


@dataclass(frozen=True)
class Fold:
    """A model as bodies and segments.

    - Every source must name an existing output of the same type as the input it feeds.
    - Bodies are named uniquely and each is used.
    """

    bodies: tuple[Body, ...]
    segments: tuple[Segment, ...]
    inputs: tuple[tuple[Input, Type], ...]
    outputs: tuple[Source, ...]
    loss: int | None = None
    """The index in `outputs` of the scalar loss."""

    def __post_init__(self) -> None:
        names = [body.name for body in self.bodies]
        used = {name for segment in self.segments for name in segment.period}
        if len(set(names)) != len(names) or used != set(names):
            raise FoldBroken(
                place="fold", cause=f"bodies {names}, used {sorted(used)}", fix="name each body once, use each"
            )
        if len(set(self.instances)) != len(self.instances):
            raise FoldInstances(
                place="fold", cause="a module path is used by two instances", fix="name each block once"
            )
        self._check_wires()
        for segment in (one for one in self.segments if one.numbers):
            self._check_numbers(segment)

    def _check_numbers(self, segment: Segment) -> None:
        wanted = [len(numbers_of(self.body[name].graph)) for name in segment.period]
        for index, numbers in enumerate(segment.numbers):
            if len(numbers) != wanted[index % len(wanted)]:
                raise FoldInstances(
                    place=f"segment {segment.period}, {segment.paths[index]}",
                    cause=f"{len(numbers)} numbers, where {wanted[index % len(wanted)]} are open in its body",
                    fix="give each open number of the body once",
                )

    @cached_property
    def body(self) -> dict[str, Body]:
        return {body.name: body for body in self.bodies}

    @property
    def instances(self) -> tuple[str, ...]:
        """The paths of all blocks."""
        return tuple(path for segment in self.segments if not segment.glue for path in segment.paths)

    def calls(self) -> Iterator[Call]:
        """Every call, in running order."""
        return iter(self._calls)

    @cached_property
    def _calls(self) -> tuple[Call, ...]:
        return tuple(self._each_call())

    def _each_call(self) -> Iterator[Call]:
        for index, segment in enumerate(self.segments):
            for number, path in enumerate(segment.paths):
                repeat, position = divmod(number, len(segment.period))
                sources = segment.entry if number == 0 else segment.wires[position]
                body, period = self.body[segment.period[position]], len(segment.period)
                numbers = segment.numbers[number] if segment.numbers else None
                yield Call(index, position, repeat, body, path, sources, period, numbers)

    @cached_property
    def tied(self) -> tuple[tuple[str, tuple[tuple[int, str], ...]], ...]:
        """Trained parameters that several calls hold: the name, and for every holder the number of the call and the
        parameter's path in it."""
        holders: dict[str, list[tuple[int, str]]] = {}
        for number, call in enumerate(self.calls()):
            for param in call.body.graph.parameters():
                if param.requires_grad:
                    holders.setdefault(joined(call.path, param.path), []).append((number, param.path))
        return tuple((name, tuple(held)) for name, held in holders.items() if len(held) > 1)

    def count(self, body: str) -> int:
        """The number of runs of a body."""
        return sum(segment.period.count(body) * segment.repeats for segment in self.segments)

    def _check_wires(self) -> None:
        types = {item.value: type_ for item, type_ in self.inputs}
        previous: Body | None = None
        for index, segment in enumerate(self.segments):
            bodies = [self.body[name] for name in segment.period]
            self._check_ports(index, bodies[0], segment.entry, previous, types)
            for position, body in enumerate(bodies):
                if position or segment.repeats > 1:
                    self._check_ports(index, body, segment.wires[position], bodies[position - 1], types)
            previous = bodies[-1]
        for source in self.outputs:
            self._type(source, previous, types, len(self.segments))

    def _check_ports(
        self, segment: int, body: Body, sources: tuple[Source, ...], previous: Body | None, types: dict[str, Type]
    ) -> None:
        place = f"segment {segment}, {body.name}"
        if len(sources) != len(body.graph.inputs):
            raise FoldBroken(
                place=place,
                cause=f"{len(sources)} sources for {len(body.graph.inputs)} inputs",
                fix="wire every input once",
            )
        for item, source in zip(body.graph.inputs, sources, strict=True):
            given, wanted = self._type(source, previous, types, segment), body.graph.types[item.value]
            if given != wanted:
                raise FoldPort(
                    place=f"{place}, input %{item.value}",
                    cause=f"{source} is {given}, not {wanted}",
                    fix="wire like types",
                )

    def _type(self, source: Source, previous: Body | None, types: dict[str, Type], segment: int) -> Type:
        try:
            if isinstance(source, FromInput):
                return types[source.name]
            if isinstance(source, FromSegment):
                if source.segment >= segment or min(source.segment, source.position) < 0:
                    raise IndexError
                body = self.body[self.segments[source.segment].period[source.position]]
            elif previous is None:
                raise IndexError
            else:
                body = previous
            if source.output < 0:
                raise IndexError
            return body.graph.types[body.graph.outputs[source.output]]
        except (KeyError, IndexError):
            raise FoldBroken(
                place=f"segment {segment}", cause=f"no such source: {source}", fix="name an earlier output"
            ) from None


def unused(name: str, taken: Container[str]) -> str:
    """This name, or the same with a number behind it if another body has it."""
    fresh, number = name, 1
    while fresh in taken:
        number += 1
        fresh = f"{name}.{number}"
    return fresh


def joined(path: str, name: str) -> str:
    """The full name of something inside an instance."""
    return f"{path}.{name}" if path and name else path or name


def shortened(fold: Fold, repeats: int) -> Fold:
    """The fold with at most this many repeats of every segment, the first ones. With two, every wire is still used, so
    that facts about the unfolded short fold that do not depend on its numbers hold for the long one at any depth."""

    def first(segment: Segment) -> Segment:
        calls = repeats * len(segment.period)
        return replace(segment, paths=segment.paths[:calls], numbers=segment.numbers[:calls])

    return replace(fold, segments=tuple(map(first, fold.segments)))


SHORT = 2
"""Repeats that tell all that there is to say of more."""
MOST_SHORT = 16


@lru_cache(maxsize=MOST_SHORT)
def short_of(fold: Same[Fold]) -> Fold:
    """The fold with its segments repeated `SHORT` times at most, made once: facts that hold at all depths are read off
    it."""
    return shortened(fold.of, SHORT)


@lru_cache(maxsize=MOST_SHORT)
def unfolded_short(fold: Same[Fold]) -> Unfolded:
    """The whole graph of `short_of`, with the way back."""
    return unfolded(short_of(fold))


@dataclass(frozen=True, slots=True)
class Unfolded:
    """The whole graph, and for every call the name in it of each value of the call's body."""

    graph: Graph
    names: tuple[Mapping[str, str], ...]


def unfold(fold: Fold) -> Graph:
    """The whole graph: every loop written out, every parameter under its original name. The inverse of folding."""
    return unfolded(fold).graph


def unfolded(fold: Fold) -> Unfolded:
    """The unfolded graph, with the way back."""
    builder = _Unfolding(fold)
    names = tuple(builder.run(call) for call in fold.calls())
    return Unfolded(builder.graph(), names)


class _Unfolding:
    """The unfolding of calls, one after another; value names get the call's number as prefix."""

    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        self.types: dict[str, Type] = {item.value: type_ for item, type_ in fold.inputs}
        self.params: dict[str, Param] = {}
        self.ops: list[Op] = []
        self.updates: list[Update] = []
        self.previous: tuple[str, ...] = ()
        self.results: dict[tuple[int, int], tuple[str, ...]] = {}
        self.number = 0

    def resolve(self, source: Source) -> str:
        if isinstance(source, FromInput):
            return source.name
        if isinstance(source, FromPrevious):
            return self.previous[source.output]
        return self.results[source.segment, source.position][source.output]

    def run(self, call: Call) -> dict[str, str]:
        """Write out one call; returns the new names of its values."""
        graph = call.graph
        names = {item.value: self.resolve(source) for item, source in zip(graph.inputs, call.sources, strict=True)}
        for param in graph.params:
            names[param.value] = self.param(call, param, graph.types[param.value])
        for op in graph.ops:
            for value in op.results:
                names[value] = f"c{self.number}.{value}"
                self.types[names[value]] = graph.types[value]
            self.ops.append(
                Op(
                    op.kind,
                    tuple(names[value] for value in op.operands),
                    tuple(names[value] for value in op.results),
                    op.attrs,
                    joined(call.path, op.module),
                    op.source,
                    op.no_grad,
                    op.alias,
                )
            )
        self.updates += [
            Update(joined(call.path, update.buffer), names[update.value], update.reduction) for update in graph.updates
        ]
        self.previous = tuple(names[value] for value in graph.outputs)
        self.results[call.segment, call.position] = self.previous
        self.number += 1
        return names

    def param(self, call: Call, param: Param, type_: Type) -> str:
        """The value of a parameter, one for all bodies that read it (tied embeddings)."""
        paths = tuple(joined(call.path, path) for path in param.paths)
        if paths[0] not in self.params:
            self.params[paths[0]] = Param(f"p.{paths[0]}", paths, param.requires_grad, param.buffer)
            self.types[f"p.{paths[0]}"] = type_
        return f"p.{paths[0]}"

    def graph(self) -> Graph:
        outputs = tuple(self.resolve(source) for source in self.fold.outputs)
        return Graph(
            types=self.types,
            inputs=tuple(item for item, _ in self.fold.inputs),
            params=tuple(self.params.values()),
            ops=tuple(self.ops),
            outputs=outputs,
            updates=tuple(self.updates),
            loss=None if self.fold.loss is None else outputs[self.fold.loss],
        )
