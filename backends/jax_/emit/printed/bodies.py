"""Printed bodies: the bodies of a plan as functions of their parameters, by path, and of what they read."""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from meshwright.backends.jax_.capabilities import TARGETS
from meshwright.backends.jax_.emit.printed.dialect import CHANGED, KEY, PARAMS, Jax, Read
from meshwright.backends.jax_.emit.printed.moves import NAMES
from meshwright.backends.jax_.emit.shardings import Shardings
from meshwright.backends.printing import Function, functions_of, items_of, regions_of
from meshwright.backends.printing.naming import free, names_of, snake
from meshwright.backends.subject import Piece, Subject
from meshwright.ir.errors import EmissionPrinted
from meshwright.ir.graph.fold import FromInput
from meshwright.ir.graph.graph import Graph
from meshwright.ir.program.program import BodyProgram, Move, ParamSlot
from meshwright.ir.program.routes import Routed, routed
from meshwright.ir.quoting import identifier
from meshwright.ir.sharding.placement import Placement
from meshwright.ir.sharding.reshard import Step

RESERVED = frozenset(
    (
        *(*dir(builtins), *keyword.kwlist, *NAMES),
        *("jax", "jnp", "np", "math", "itertools", "partial", "re", "os", "Any", "Array", "Axes", "Move", "Ways"),
        *("MESH", "PARAMS", "GRADS", "STATES", "SUMS", "P", "mesh", "devices", "types", "lie", "by_path", "specs_of"),
        *(
            "loss_of",
            "summed",
            "batch",
            "own",
            "rngs",
            "held",
            KEY,
            PARAMS,
            "Params",
            "Sequence",
            "Callable",
            "rest",
            "left",
            CHANGED,
        ),
    )
)
"""Names that the file has for something else."""


@dataclass(frozen=True)
class PrintedBody:
    """One body as a function."""

    piece: Piece
    name: str
    function: Function
    """It returns the outputs of the body, and then what buffers are set to."""
    writes: tuple[str, ...] = ()
    """The paths of these buffers."""

    @property
    def draws(self) -> bool:
        """Whether it is given a key to draw by."""
        return bool(drawing(self.piece.graph))


@dataclass(frozen=True)
class Printed:
    """A printed model."""

    subject: Subject
    bodies: Mapping[str, PrintedBody]
    """By the name of the body."""
    batch: tuple[str, ...]
    """The axes along which a device is given its part of a batch."""
    constants: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    """The functions that make constants: of each the lines, by its name."""

    @property
    def names(self) -> set[str]:
        """What nothing else in the file may be called."""
        return {*RESERVED, *self.constants, *(body.name for body in self.bodies.values())}


def printed_of(subject: Subject) -> Printed:
    """The printed bodies of a plan. Raises `EmissionPrinted` for what no code is written for."""
    taken = set(RESERVED)
    made = _constants(subject, taken)
    moves = TARGETS[subject.decisions.target].lowering().moves
    shardings = Shardings(subject)
    own = summed_apart(shardings)
    bodies: dict[str, PrintedBody] = {}
    ways = [routed(piece.graph, piece.plan, subject.mesh, moves) for piece in subject.pieces]
    batch = given_in_parts(subject, ways)
    for piece, way in zip(subject.pieces, ways, strict=True):
        if piece.plan.body in bodies:
            continue  # of another segment
        if piece.segment.numbers:
            raise EmissionPrinted(place=f"plan {piece.plan.name}", cause="its blocks have numbers of their own")
        dialect = Jax(
            sizes={axis.name: axis.size for axis in subject.mesh.axes},
            batch=batch,
            constants={law: f"{name}()" for law, (name, _) in made.items()},
            reads=dict(_reads(subject.bodies[piece.plan.name], subject, own)),
            sites=drawing(piece.graph),
            regathers=shardings.gathers_again(piece) and not piece.plan.recompute,
        )
        entries = frozenset(_entries(piece))
        called = {op.results[0]: made[str(op.attr("law"))][1][-1][0] for op in way.graph.ops if op.kind == "constant"}
        names = called | names_of(way.graph, subject.calls.file)
        walked = items_of(way, dialect, entries, names, subject.program.kernels)
        inputs = tuple(item.value for item in way.graph.inputs)
        writes = [one for one in walked.items if one.writes]
        items = tuple(one for one in walked.items if not one.writes)
        outputs = (*walked.outputs, *(one.reads[-1] for one in writes))

        def read(value: str, path: str, way: Any = way, dialect: Jax = dialect, piece: Piece = piece) -> str:
            param = way.graph.param[value]
            return dialect.parameter(param, way.hubs[value].home, piece.read_as(param))

        region = regions_of(items, inputs, outputs, (), read)
        name = free(f"{identifier(snake(piece.plan.body))}_forward", taken)
        given = {inputs[0]: "x"} if inputs and inputs[0] not in entries else {}
        function = functions_of(region, _no_call, dialect.let_go, taken, given, beside=0)
        bodies[piece.plan.body] = PrintedBody(piece, name, function, tuple(one.writes for one in writes))
    return Printed(subject, bodies, batch, dict(made.values()))


def drawing(graph: Graph) -> tuple[str, ...]:
    """The operators that draw random numbers."""
    return tuple(op.name for op in graph.ops if op.draws)


def given_in_parts(subject: Subject, ways: Sequence[Routed]) -> tuple[str, ...]:
    """The axes along which a device is given its part of a batch: those that cut the samples of an entry wherever one
    is read. Along others it is given all, and takes what it reads: nothing is sent for entries."""
    states = [
        one.state
        for piece, way in zip(subject.pieces, ways, strict=True)
        for value in _entries(piece)
        for one in (way.hubs[value].leaves, *way.hubs[value].ways)
        if one.state.dims
    ]
    cut = [{shard.axis for shard in state.dims[0]} for state in states]
    return tuple(axis for axis in subject.mesh.names if states and all(axis in axes for axes in cut))


def _entries(piece: Piece) -> Iterator[str]:
    """The inputs of a body that are entries of the batch."""
    for item, source in zip(piece.graph.inputs, piece.segment.entry, strict=True):
        if isinstance(source, FromInput):
            yield item.value


def _no_call(path: str, arguments: Sequence[str]) -> str:
    raise EmissionPrinted(place=path, cause="a module stands in a function of its own")


def _reads(body: BodyProgram, subject: Subject, own: Mapping[Slot, tuple[Step, ...]]) -> Iterator[tuple[str, Read]]:
    """How the parameters of a body are read, by value; `own` are sums that a read's gradient takes by itself."""
    gathers = {one.result: one for one in body.forward if isinstance(one, Move) and one.reason == "parameter"}
    for slot in body.params:
        stored = body.locals[slot.stored]
        yield (
            slot.value,
            Read(
                stored=stored.placement,
                type=replace(stored.type, shape=stored.placement.local_shape(stored.type.shape, subject.mesh, 0)),
                there=_steps(gathers, slot.value),
                back=(
                    *(() if _after(body, slot) else _steps(_syncs(body.backward), slot.grad)),
                    *own.get((body.name, slot.value), ()),
                ),
            ),
        )


def _after(body: BodyProgram, slot: ParamSlot) -> bool:
    """Whether the gradient of a parameter, as a micro-batch leaves it, lies otherwise than the parameter, so that no
    read of that gives it."""
    return slot.grad is not None and body.locals[slot.grad].placement.dims != body.locals[slot.stored].placement.dims


@dataclass(frozen=True, slots=True)
class Sums:
    """The steps that a parameter's gradient takes after the backward pass: in each micro-batch, and after the last; and
    where it lies then."""

    each: tuple[Step, ...]
    once: tuple[Step, ...]
    there: Placement


Slot = tuple[str, str]
"""A parameter of a body, by the body's name and the value."""


def summed_apart(shardings: Shardings) -> dict[Slot, tuple[Step, ...]]:
    """The sums that one part of a model makes of a gradient and another one that shares the parameter does not: each
    takes its own where it reads the parameter, and what is left to do is what all do last."""
    readers: dict[str, dict[Slot, Sums]] = {}
    for path, slot, body, _ in shardings.slots():
        if (sums := sums_of(body, slot)) is not None:
            readers.setdefault(path, {})[body.name, slot.value] = sums
    found: dict[Slot, tuple[Step, ...]] = {}
    for path, several in readers.items():
        last = common_end([sums.once for sums in several.values()])
        for name, sums in several.items():
            steps = sums.once[: len(sums.once) - len(last)]
            if any(step.kind != "all_reduce" for step in steps) or (
                steps and shardings.subject.program.microbatches > 1
            ):
                raise EmissionPrinted(place=path, cause="parts of the model that share it sum its gradient otherwise")
            if steps:
                found[name] = steps
    return found


def common_end(several: Sequence[tuple[Step, ...]]) -> tuple[Step, ...]:
    """The steps that all end with."""
    backwards = takewhile(lambda steps: len(set(steps)) == 1, zip(*map(reversed, several), strict=False))
    return tuple(reversed([steps[0] for steps in backwards]))


def sums_of(body: BodyProgram, slot: ParamSlot) -> Sums | None:
    """Those of a trained parameter; None where another call has its sums."""
    if slot.grad is None or slot.synced is None:
        return None
    each = _steps(_syncs(body.backward), slot.grad) if _after(body, slot) else ()
    return Sums(each, _steps(_syncs(body.sync), slot.synced), body.locals[slot.synced].placement)


def _syncs(statements: Sequence[object]) -> dict[str, Move]:
    return {one.result: one for one in statements if isinstance(one, Move) and one.reason == "sync"}


def _steps(moves: Mapping[str, Move], name: str | None) -> tuple[Step, ...]:
    """The steps by which a name was made."""
    found: list[Step] = []
    while name is not None and name in moves:
        found.insert(0, moves[name].step)
        name = moves[name].operand
    return tuple(found)


def _constants(subject: Subject, taken: set[str]) -> dict[str, tuple[str, tuple[tuple[str, str], ...]]]:
    """The function of every constant that the model's bodies have, by its law."""
    found: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {}
    for law in dict.fromkeys(law for piece in subject.pieces for law in _laws(piece.graph)):
        one = subject.calls.constants.get(law)
        if one is None or one.problem or not one.lines:
            cause = one.problem if one is not None and one.problem else "it is not known"
            raise EmissionPrinted(place=f"the constant {law}", cause=cause)
        lines = one.code(device="", held=str, taken=RESERVED)
        found[law] = free(f"make_{lines[-1][0]}", taken), lines
    return found


def _laws(graph: Graph) -> Iterator[str]:
    """The laws of the constants in a body."""
    yield from (str(op.attr("law")) for op in graph.ops if op.kind == "constant")
