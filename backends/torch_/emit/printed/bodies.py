"""The bodies of a plan as functions, and the model's forward pass, which runs one after the other."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from meshwright.backends.printing import Function, functions_of, items_of, regions_of
from meshwright.backends.printing.regions import NoRegion
from meshwright.backends.torch_.capabilities import TARGETS
from meshwright.backends.torch_.emit.axes import Axes, joined
from meshwright.backends.torch_.emit.printed.dialect import Torch
from meshwright.backends.torch_.emit.printed.moves import NAMES
from meshwright.backends.torch_.emit.printed.sources import names_of
from meshwright.backends.torch_.emit.sections import Fused, pattern, sections_on
from meshwright.backends.torch_.emit.subject import Piece, Subject
from meshwright.ir.errors import EmissionPrinted
from meshwright.ir.fold import Call, FromInput, FromPrevious, FromSegment, Source
from meshwright.ir.graph import Param
from meshwright.ir.placement import CONTIGUOUS, Sections
from meshwright.ir.quoting import identifier, is_name, literal
from meshwright.ir.routes import Routed, routed

RESERVED = (
    frozenset((*dir(builtins), *keyword.kwlist, *NAMES))
    | {"self", "model", "mesh", "torch", "nn", "F", "dist", "funcol", "Tensor", "Any", "partial", "index", "block"}
    | {"cast", "functools", "DTensor", "DeviceMesh", "Replicate", "Shard", "Partial", "Callable", "Sequence"}
)
"""Names that scripts have for something else."""


@dataclass(frozen=True)
class PrintedBody:
    """One body: the functions of it and of its regions."""

    piece: Piece
    routed: Routed
    name: str
    """What its function is called."""
    function: Function

    def functions(self) -> Iterator[tuple[str, Function]]:
        """Every function of it, and its name."""
        for one in self.function.all():
            yield self.name_of(one.path), one

    def name_of(self, path: str) -> str:
        return f"{self.name}_{identifier(path.replace('.', '_'))}" if path else self.name


@dataclass(frozen=True)
class Printed:
    """A printed model."""

    subject: Subject
    axes: Axes
    bodies: Mapping[str, PrintedBody]
    """By the name of the body."""
    entries: tuple[str, ...]
    """The entries of the batch that the model is called with, in order."""
    tensor: tuple[str, ...] = ()
    """The axes along which parameters are DTensors."""

    @cached_property
    def cuts(self) -> dict[str, int]:
        """The dimension of every parameter that the tensor axis cuts, by a regular expression of its names."""
        found: dict[str, int] = {}
        for body in self.bodies.values():
            for param in body.routed.graph.params:
                dim = self.dim(body, param)
                if dim is not None and not param.buffer:
                    found |= {pattern(body.piece, path): dim for path in param.paths}
        return found

    def dim(self, body: PrintedBody, param: Param) -> int | None:
        home = body.routed.hubs[param.value].home.value
        cut = [home.on(axis) for axis in self.tensor]
        return next((one for one in cut if isinstance(one, int)), None)

    @cached_property
    def fused(self) -> tuple[tuple[Piece, Fused], ...]:
        """The parameters that the tensor axis cuts in sections."""
        found = []
        for body in self.bodies.values():
            params = {}
            for param in body.routed.graph.params:
                for axis in self.tensor:
                    sections = sections_on(body.routed.hubs[param.value].home.value, axis)
                    if sections is not None:
                        params[param.path] = sections
            found.append((body.piece, Fused(params=params)))
        return tuple((piece, fused) for piece, fused in found if fused.params)

    @cached_property
    def partial(self) -> bool:
        """Whether gradients of parameters are sums over the tensor axis."""
        states = [body.routed.hubs[p.value].home for body in self.bodies.values() for p in body.routed.graph.params]
        return any(set(state.grad_partial) & set(self.tensor) for state in states)

    # the model

    def forward(self) -> Iterator[str]:
        """The lines of the model's forward pass."""
        chain = _Chain(self)
        for segment in self.subject.fold.segments:
            yield from chain.segment(segment.glue, len(segment.period))
        yield f"return {chain.named(self.subject.fold.outputs[self.subject.fold.loss or 0])}"

    @cached_property
    def named_axes(self) -> tuple[str, ...]:
        """What functions may call meshes: axes, and several as one."""
        return (*self.subject.mesh.names, *(self.flat(axes) for axes in self.together))

    def flat(self, axes: tuple[str, ...]) -> str:
        """What several axes are called that act as one."""
        return joined(in_order(axes, self.subject))

    @cached_property
    def together(self) -> tuple[tuple[str, ...], ...]:
        """The axes that moves take as one."""
        found = (
            in_order(step.axes, self.subject)
            for body in self.bodies.values()
            for hub in body.routed.hubs.values()
            for way in (hub.leaves, *hub.ways)
            for step in (*way.there, *way.back)
        )
        return tuple(dict.fromkeys(axes for axes in found if len(axes) > 1))

    @cached_property
    def argument_names(self) -> tuple[str, ...]:
        """What the model's forward pass calls the entries of the batch."""
        return tuple(_Chain(self).names.values())


def printed_of(subject: Subject, axes: Axes, inside: Mapping[str, Iterable[str]]) -> Printed:
    """The printed bodies of a plan. `inside` are the modules of every body, by name, that must be called."""
    tensor = (axes.tensor,) if axes.tensor is not None else ()
    dialect = Torch(
        tensor=tensor,
        batch=axes.batch,
        flat=lambda axes: joined(in_order(axes, subject)),
        constants=subject.constants,
        device=subject.device,
    )
    lowering = TARGETS[subject.decisions.target].lowering()
    taken = set(RESERVED) | set(subject.mesh.names)
    bodies: dict[str, PrintedBody] = {}
    for piece in subject.pieces:
        mesh = subject.mesh
        way = routed(piece.graph, piece.plan, mesh, lowering.moves)
        name = _free(f"{identifier(_snake(piece.plan.body))}_forward", taken)
        entries = frozenset(_entries(subject, piece))
        items, outputs = items_of(way, dialect, entries, names_of(way.graph, subject.calls.file))

        def read(value: str, path: str, way: Routed = way) -> str:
            param = way.graph.param[value]
            inner = (
                [one[len(path) + 1 :] for one in param.paths if one.startswith(f"{path}.")] if path else [param.path]
            )
            if not inner:
                raise NoRegion(f"{param.path} is read in {path}")
            return dialect.parameter(param, way.hubs[value].home, inner[0])

        inputs = tuple(item.value for item in way.graph.inputs)
        try:
            region = regions_of(items, inputs, outputs, inside.get(piece.plan.body, ()), read)
        except NoRegion as reason:
            raise EmissionPrinted(place=f"plan {piece.plan.name}", cause=str(reason)) from None
        bodies[piece.plan.body] = PrintedBody(
            piece, way, name, functions_of(region, _called, taken, _argument_names(subject, piece, bodies))
        )
        _check(bodies[piece.plan.body], tensor)
    return Printed(subject, axes, bodies, tuple(item.value for item, _ in subject.fold.inputs), tensor)


def in_order(axes: Sequence[str], subject: Subject) -> tuple[str, ...]:
    """Axes in the order of the mesh, in which torch makes them one."""
    return tuple(axis for axis in subject.mesh.names if axis in axes)


def _check(body: PrintedBody, tensor: Sequence[str]) -> None:
    """Must: parameters are cut plainly, or in sections, along one axis at most."""
    for param in body.routed.graph.params:
        for dim in body.routed.hubs[param.value].home.dims:
            for shard in dim:
                if shard.axis not in tensor or not (shard.layout == CONTIGUOUS or isinstance(shard.layout, Sections)):
                    raise EmissionPrinted(place=f"{param.path}", cause=f"it is cut {shard}")
                if param.buffer:
                    raise EmissionPrinted(place=f"{param.path}", cause="it is a buffer that is cut")


def _free(name: str, taken: set[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    taken.add(found)
    return found


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _called(path: str, arguments: Sequence[str]) -> str:
    parts = path.split(".")
    holder = f"self.{path}" if all(map(is_name, parts)) else f"self.get_submodule({literal(path)})"
    return f"{holder}({', '.join(arguments)})"


def _entries(subject: Subject, piece: Piece) -> Iterator[str]:
    """The inputs of a piece that are entries of the batch."""
    for item, source in zip(piece.graph.inputs, piece.segment.entry, strict=True):
        if isinstance(source, FromInput):
            yield item.value


def _argument_names(subject: Subject, piece: Piece, bodies: Mapping[str, PrintedBody]) -> dict[str, str]:
    """What the arguments of a function are called: entries of the batch as they are, what goes from block to block `x`,
    and others as where they come from."""
    found, before = dict[str, str](), list(subject.fold.segments)
    at = next(n for n, one in enumerate(before) if piece.plan.body in one.period)
    for item, source in zip(piece.graph.inputs, piece.segment.entry, strict=True):
        if isinstance(source, FromInput):
            found[item.value] = source.name
            continue
        if isinstance(source, FromSegment):
            maker = before[source.segment].period[source.position]
        else:
            maker = before[at - 1].period[-1]
        made = bodies.get(maker)
        main = item.requires_grad and "x" not in found.values()
        found[item.value] = "x" if main else made.function.returns[source.output] if made is not None else item.value
    return found


@dataclass
class _Chain:
    """Runs the calls of a fold, one after the other."""

    printed: Printed
    made: dict[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)
    previous: tuple[str, ...] = ()
    number: int = 0
    used: set[str] = field(default_factory=set)

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        return tuple(self.printed.subject.fold.calls())

    @cached_property
    def names(self) -> dict[str, str]:
        taken = set(RESERVED) | set(self.printed.subject.mesh.names)
        return {name: _free(identifier(name), taken) for name in self.printed.entries}

    def named(self, source: Source) -> str:
        if isinstance(source, FromInput):
            return self.names[source.name]
        if isinstance(source, FromPrevious):
            return self.previous[source.output]
        return self.made[source.segment, source.position][source.output]

    def segment(self, glue: bool, period: int) -> Iterator[str]:
        first = self.calls[self.number]
        calls = [call for call in self.calls if call.segment == first.segment]
        self.number += len(calls)
        rolled = self.rolled(calls) if not glue and len(calls) > period else None
        if rolled is not None:
            yield from rolled
            return
        for call in calls:
            yield from self.call(call)

    def call(self, call: Call, holder: str = "") -> Iterator[str]:
        body = self.printed.bodies[call.body.name]
        given = [self.named(source) for source in call.sources]
        results = self.results(call)
        axes = axes_in(body.function, self.printed.named_axes)
        if call.path or holder:
            text = f"{holder or f'self.get_submodule({literal(call.path)})'}({', '.join(given)})"
        else:
            text = f"{body.name}({', '.join(['self', *given, *(f'{axis}={axis}' for axis in axes)])})"
        yield f"{', '.join(results)} = {text}" if results else text
        self.previous = self.made[call.segment, call.position] = results

    def results(self, call: Call) -> tuple[str, ...]:
        """Names for what a call makes: what goes on is `x`."""
        graph = call.body.graph
        body = self.printed.bodies[call.body.name]
        taken = set(RESERVED) | set(self.printed.subject.mesh.names) | set(self.names.values()) | self.live(call)
        found = []
        for value, name in zip(graph.outputs, body.function.returns, strict=True):
            stem = "loss" if value == graph.loss or not graph.types[value].shape else name
            chained = value in graph.differentiable and graph.types[value].shape
            found.append(_free("x" if chained else stem, taken))
        return tuple(found)

    def live(self, call: Call) -> set[str]:
        """The names of what later calls read of earlier segments."""
        later = [one for one in self.calls if one.segment >= call.segment]
        sources = (*(source for one in later for source in one.sources), *self.printed.subject.fold.outputs)
        held = {one for one in sources if isinstance(one, FromSegment)}
        known = {one for one in held if (one.segment, one.position) in self.made and one.segment < call.segment}
        return {self.named(one) for one in known}

    def rolled(self, calls: Sequence[Call]) -> Iterator[str] | None:
        """Repeats as a loop, where the names that go round are the same."""
        if len({call.body.name for call in calls}) > 1:
            return None
        before = self.previous, dict(self.made)
        texts = []
        for call in calls[:2]:
            texts += list(self.call(call, holder="block"))
        if len(set(texts)) > 1:
            self.previous, self.made = before[0], before[1]
            return None
        piece = self.printed.bodies[calls[0].body.name].piece
        loop, block = piece.instances().loop("block")
        return iter((loop, block.replace("model.", "self."), f"    {texts[0]}"))


def axes_in(function: Function, axes: Collection[str]) -> list[str]:
    """The mesh axes, or what several are called together, that a function is given."""
    used = set(re.findall(r"[A-Za-z_]\w*", "\n".join(function.lines)))
    return [axis for axis in axes if axis in used]
