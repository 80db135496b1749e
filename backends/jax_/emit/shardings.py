"""Where parameters and values of a plan lie, as PartitionSpecs of whole arrays.

In: a plan with its Program, and where values are made in the traced loss (`Calls.places`). Out: `Shardings`: for every
parameter where it is stored, computed with, and where its optimizer's state lies; and for values, by place, the
placements that they pass through.

A value is pinned where it matters, since XLA carries shardings on by itself: what products, normalisations, lookups and
losses of parameters give, what is moved, and what leaves a body. Its placements are the one that its operator leaves it
in, unless that is a sum, and those that its readers take it in, if all of them take the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from meshwright.backends.jax_.emit import accumulation
from meshwright.backends.jax_.emit.accumulation import ONCE, data_axes, form_of
from meshwright.backends.jax_.emit.model import RNGS, invoked, rest_paths
from meshwright.backends.jax_.emit.pipeline.stages import AXIS
from meshwright.backends.jax_.emit.specs import Spec, spec_of, without
from meshwright.backends.jax_.emit.views import Nearest, Shown, apart, stem
from meshwright.backends.subject import Piece, Subject
from meshwright.ir.errors import EmissionModule
from meshwright.ir.graph.calls import Places, Scanned
from meshwright.ir.graph.fold import FromInput, Segment
from meshwright.ir.graph.graph import Graph
from meshwright.ir.program.program import BodyProgram, Compute, Move, ParamSlot, Ring
from meshwright.ir.rules.base import Engine
from meshwright.ir.rules.registry import infer
from meshwright.ir.sharding.layouts import CONTIGUOUS, ZIGZAG
from meshwright.ir.target.combined import mixed_uses

WHOLE = ("--fix tp=1", "--fix cp=1")
"""What helps where tables cannot say how axes cut values."""


@dataclass(frozen=True, slots=True)
class Held:
    """Where a parameter lies: between steps, as operators read it, and as the optimizer's state does; and its gradient
    while micro-batches add up to it."""

    stored: Spec
    used: Spec
    states: Spec
    grads: Spec


@dataclass(frozen=True, slots=True)
class Constraint:
    """The PartitionSpecs of a value and of its gradient; None where nothing is said."""

    value: Spec | None
    gradient: Spec | None

    def shown(self, other: Shown, sizes: Mapping[str, int]) -> Constraint:
        """Those of another value that shows this one, on mesh axes of these sizes."""
        return Constraint(other.carried(self.value, sizes), other.carried(self.gradient, sizes))

    def apart_from(self, axes: tuple[str, ...]) -> Constraint:
        """The same where these axes are not spoken of."""
        return Constraint(without(self.value, axes), without(self.gradient, axes))


@dataclass(frozen=True, slots=True)
class Pin:
    """A value of a body: what it is called there, and the placements that it passes through."""

    value: str
    constraints: tuple[Constraint, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """The pins of blocks that are alike, by what follows the number of the equation that they begin at."""

    begins: tuple[int, ...]
    pins: Mapping[str, Pin]


@dataclass(frozen=True)
class Shardings:
    """Those of a whole plan."""

    subject: Subject

    @cached_property
    def params(self) -> dict[str, Held]:
        """By path, as the user's state has it: parameters of scanned blocks are stacked."""
        found: dict[str, Held] = {}
        shared = {tie.path for tie in self.subject.program.ties if len({stage for stage, _ in tie.holders}) > 1}
        for path, slot, body, stacked in self.slots():
            if slot.buffer:
                continue
            own_gather = stacked or body in self.regathering
            held = [
                spec_of(one, slot.path)
                for one in (
                    body.locals[slot.stored].placement,
                    body.locals[slot.value].placement,
                    slot.optimizer,
                    slot.grads,
                )
            ]
            if self.piped and slot.path not in shared:
                held = [_over_stages(one, stacked=stacked) for one in held]
            stored, used, states, grads = (((), *one) if stacked and one and not self.piped else one for one in held)
            own = Held(stored, stored if own_gather else used, states, grads)  # a loop or a block gathers its own
            if found.setdefault(path, own) != own:
                raise EmissionModule(
                    place=path, cause="parts of the model that share it want it otherwise", ways=("--fix tp=1",)
                )
        return found

    @cached_property
    def rest(self) -> dict[str, Spec]:
        """Where what the model holds beside its parameters lies, by path, if any of it is read or changed."""
        model = invoked(self.subject)
        found: dict[str, Spec] = {}
        for path, slot, body, stacked in self.slots():
            if not slot.buffer:
                continue
            own = spec_of(body.locals[slot.stored].placement, slot.path)
            own = ((), *own) if stacked and own else own
            if found.setdefault(path, own) != own:
                raise EmissionModule(
                    place=path, cause="parts of the model that share it want it otherwise", ways=("--fix tp=1",)
                )
        if not found and not model.draws:
            return {}
        placed = {there: found.get(path, ()) for path, there in rest_paths(model).items()}
        return placed | dict.fromkeys(RNGS if model.keyed else (), ())

    @property
    def used_apart(self) -> bool:
        """Whether operators read some parameter otherwise than it is stored."""
        return any(one.used != one.stored for one in self.params.values())

    @property
    def states_apart(self) -> bool:
        """Whether some optimizer's state lies otherwise than its parameter."""
        return any(one.states != one.stored for one in self.params.values())

    @property
    def piped(self) -> bool:
        """Whether stages share the model."""
        return len(self.subject.decisions.stages) > 1

    @property
    def data(self) -> tuple[str, ...]:
        """The mesh axes that cut a batch."""
        return data_axes(self.subject.program, self.subject.mesh.names)

    @property
    def form(self) -> str:
        """How micro-batches are added up (`accumulation`)."""
        return form_of(self.subject.program, self.data)

    @property
    def manual(self) -> tuple[str, ...]:
        """The axes along which the step is manual: a device sees its own part of values, and nothing is said of it."""
        return self.data if self.form == ONCE else ()

    def slots(self) -> Iterator[tuple[str, ParamSlot, BodyProgram, bool]]:
        """Every parameter of every call, its slot, and whether it is a part of a stacked one."""
        for segment, _, body in self._bodies():
            for slot in body.params:
                for room in segment.paths:
                    scan, path = self.scan(room), slot.path
                    if scan is not None and path in scan.operands:
                        yield scan.operands[path][1], slot, body, True
                    else:
                        yield (f"{room}.{path}" if room and not segment.glue else path), slot, body, False

    @property
    def _sizes(self) -> Mapping[str, int]:
        return {axis.name: axis.size for axis in self.subject.mesh.axes}

    @property
    def _places(self) -> Places:
        places = self.subject.calls.places
        assert places is not None
        return places

    @property
    def spans(self) -> Mapping[str, tuple[int, int]]:
        """Where blocks are that are written out."""
        return self._places.spans

    def scan(self, room: str) -> Scanned | None:
        """The loop that a block belongs to; None if it is written out."""
        return next((one for path, one in self._places.scans.items() if room.startswith(f"{path}.")), None)

    def _bodies(self) -> Iterator[tuple[Segment, str, BodyProgram]]:
        """Every segment with the plan that its body has."""
        for piece in self.subject.pieces:
            yield piece.segment, piece.plan.body, self.subject.bodies[piece.plan.name]

    @cached_property
    def gathers(self) -> dict[str, Spec]:
        """Parameters of scanned blocks that are gathered in the loop, and kept for its backward pass: by place and
        operand of its body, `17.3`, where they lie then."""
        return dict(self._gathered(again=False))

    @cached_property
    def gathered_again(self) -> dict[str, Spec]:
        """Parameters that blocks gather when they run, and again for their backward passes: where they lie then, by
        place and operand of a loop's body, `17@3`, or by path."""
        return dict(self._gathered(again=True))

    @property
    def blocks_gather(self) -> bool:
        """Whether any block that is written out does."""
        return any("@" not in name for name in self.gathered_again)

    def _gathered(self, *, again: bool) -> Iterator[tuple[str, Spec]]:
        for segment, _, body in self._bodies():
            if (body in self.regathering) != again:
                continue
            scan = self.scan(segment.paths[0])
            for slot in body.params:
                stored, used = (body.locals[name].placement for name in (slot.stored, slot.value))
                if stored == used or slot.buffer:
                    continue
                if scan is not None and slot.path in scan.operands:
                    yield f"{scan.place}{'@' if again else '.'}{scan.operands[slot.path][0]}", spec_of(used, slot.path)
                elif again:
                    yield from ((f"{room}.{slot.path}", spec_of(used, slot.path)) for room in segment.paths)

    @cached_property
    def regathering(self) -> list[BodyProgram]:
        """The body programs that gather parameters again in their backward passes."""
        every = (body for _, _, body in self._bodies())
        return [
            body for body in every if any(isinstance(one, Move) and one.reason == "parameter" for one in body.backward)
        ]

    def gathers_again(self, piece: Piece) -> bool:
        """Whether the backward passes of a piece's blocks gather parameters again."""
        return self.subject.bodies[piece.plan.name] in self.regathering

    @cached_property
    def values(self) -> dict[str, Pin]:
        """Of what stands once in the traced loss, by place."""
        return {place: pin for _, pins in self._pinned() for place, pin in pins.items() if not place.startswith("+")}

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Of blocks that are written out."""
        found = []
        for segment, pins in self._pinned():
            own = {place[1:]: pin for place, pin in pins.items() if place.startswith("+")}
            if own:
                found.append(Block(tuple(self._places.begins[room] for room in segment.paths), own))
        return tuple(found)

    def check(self) -> None:
        """Refuse micro-batches that do not add up, and what tables cannot say: axes with several uses, rings, shards
        in another order; values that are moved where no equation of the traced loss makes them, in several steps, or to
        several placements in which readers take them; gradients that are added up in other blocks; and what XLA cannot
        cut."""
        accumulation.check(self.subject, self.data)
        if used := mixed_uses(self.subject.decisions, self.subject.fold):
            raise EmissionModule(
                place="the plan", cause=f"{used}: XLA cuts products as it finds it cheaper", ways=WHOLE
            )
        for segment, name, body in self._bodies():
            if any(isinstance(one, Ring) for one in body.forward):
                raise EmissionModule(place=f"plan {body.name}", cause="keys and values pass in a ring", ways=WHOLE)
            nearest, given = Nearest(body, self._places.values.get(name, {})), self._entries(segment)
            held = {slot.value for slot in body.params} | {body.inputs[index] for index in given}
            graph = self.subject.fold.body[name].graph
            moves = [one for one in body.forward if isinstance(one, Move) and one.reason == "value"]
            makers = {result: one for one in body.forward if isinstance(one, Compute) for result in one.results}
            for value in dict.fromkeys(stem(one.operand) for one in moves):
                inside = value not in graph.types  # a statistic of a loss or a norm, which XLA moves as it must
                constant = value in makers and not makers[value].operands  # every device makes its own part
                if value in held or inside or constant or body.locals[value].type.shape == ():
                    continue
                several = len(_taken(body, value))
                steps = sum(stem(one.operand) == value and not one.step.free for one in moves)
                why = _unsaid(steps, several, placed=nearest.of(value) is not None)
                if not why:
                    continue
                raise EmissionModule(
                    place=f"plan {body.name}, %{value}", cause=f"it is moved {why}", ways=("--fix tp=1",)
                )
            if summed := next((one for one in body.input_grads if one and body.locals[one].placement.partial), None):
                raise EmissionModule(
                    place=f"plan {body.name}, %{summed}",
                    cause="this gradient leaves as parts of a sum, and XLA adds them up in every block",
                    ways=WHOLE,
                )
            if value := _rows_apart(body, graph, self.data):
                raise EmissionModule(
                    place=f"plan {body.name}, %{value}",
                    cause="rows of a parameter are cut, and XLA puts what each device gives into its place first",
                    ways=WHOLE,
                )
            if value := _convolved_apart(body):
                raise EmissionModule(
                    place=f"plan {body.name}, %{value}",
                    cause="a convolution's channels or pixels are cut, and XLA exchanges them as it finds it cheaper",
                    ways=WHOLE,
                )
            if value := _uneven(body, moves, self._sizes):
                raise EmissionModule(
                    place=f"plan {body.name}, %{value}",
                    cause="it is of a length that devices do not divide, and XLA cuts it when a neighbour is cut",
                    ways=WHOLE,
                )
            for value, local in body.locals.items():
                if any(one.layout == ZIGZAG for dim in local.placement.dims for one in dim):
                    raise EmissionModule(place=f"plan {body.name}, %{value}", cause="it lies zigzag", ways=WHOLE)

    def _entries(self, segment: Segment) -> list[int]:
        """Which inputs of a body are entries of the batch."""
        return [at for at, source in enumerate(segment.entry) if isinstance(source, FromInput)]

    def _pinned(self) -> Iterator[tuple[Segment, dict[str, Pin]]]:
        for segment, name, body in self._bodies():
            at, products = self._places.values.get(name, {}), self._places.products
            pins: dict[str, Pin] = {}
            for value, several in _constraints(body, Nearest(body, at), self._sizes).items():
                if set(self.manual) == set(self.subject.mesh.names):
                    continue
                place = at[value]
                there = Shown(value, (apart(self._places.apart[place]),) if place in self._places.apart else ())
                carried = (one.shown(there, self._sizes).apart_from(self.manual) for one in several)
                constraints = tuple(dict.fromkeys(carried))
                if constraints[0].value is None and place in products:  # the sum is made before a bias is added to it
                    whole = Constraint(constraints[0].gradient, constraints[0].gradient)
                    pins[products[place]] = Pin(f"{value}, without its bias", (whole,))
                pins[place] = Pin(value, constraints)
            yield segment, pins


def _over_stages(spec: Spec, *, stacked: bool) -> Spec:
    """That of rows of every stage, one stage's after the other's; blocks that are stacked are such rows."""
    first, *others = spec if spec and not stacked else ((), *spec)
    return ((AXIS, *first), *others)


def parts_read(graph: Graph) -> Iterator[tuple[str, str]]:
    """The parameters of which something is taken that depends on nothing else, with what meets the batch in the end."""
    live = {item.value for item in graph.inputs}
    for op in graph.ops:
        live |= set(op.results) if not live.isdisjoint(op.operands) else set()
    for param in graph.params:
        value = param.value
        while len(readers := graph.readers[value]) == 1:
            op = graph.ops[readers[0][0]]
            if len(op.results) > 1 or op.name in live:
                break
            value = op.name
        if value != param.value:
            yield param.value, value


def _rows_apart(body: BodyProgram, graph: Graph, data: Sequence[str]) -> str:
    """What is a part of a parameter, and cut otherwise than over samples on a mesh of several axes; empty if there is
    none. Along one axis it is known what XLA does (`verify.predicted`)."""
    types = graph.types
    parts = {value for param, value in parts_read(graph) if types[value].elements < types[param].elements}
    for name, local in body.locals.items():
        if stem(name) in parts and not set(local.placement.axes) <= set(data) and len(body.mesh.axes) > 1:
            return name
    return ""


def _convolved_apart(body: BodyProgram) -> str:
    """What a convolution makes of which more is cut than samples; empty if there is none."""
    for one in body.forward:
        if isinstance(one, Compute) and infer(one.signature).engine is Engine.CONV:
            image, kernel = (body.locals[name].placement for name in one.operands[:2])
            if any((*image.dims[1:], *kernel.dims, *body.locals[one.results[0]].placement.dims[1:])):
                return one.results[0]
    return ""


def _uneven(body: BodyProgram, moves: Sequence[Move], sizes: Mapping[str, int]) -> str:
    """The first result of a slice or a pad whose new length some axis does not divide, along a dimension in which
    values are moved over that axis; empty if there is none. The plan has it whole; XLA cuts it, as it does what is made
    of it later, and its partitioner fails on parts of unequal lengths."""
    moved = {(axis, dim) for move in moves for axis in move.step.axes for dim in (move.step.dim, move.step.target)}
    for one in body.forward:
        if isinstance(one, Compute) and one.signature.kind in ("slice", "pad"):
            before, after = (body.locals[name].type.shape for name in (one.operands[0], one.results[0]))
            changed = [dim for dim, length in enumerate(after) if before[dim] != length]
            if any(dim in changed and after[dim] % sizes[axis] for axis, dim in moved):
                return one.results[0]
    return ""


def _unsaid(steps: int, several: int, *, placed: bool) -> str:
    """The reason why tables cannot say how a value is moved; empty if they can."""
    if several > 1:
        return f"to {several} placements in which readers take it"
    if steps > 1:
        return f"along axes one after the other, in {steps} steps whose order XLA chooses"
    return "" if placed else "where no traced equation makes it"


def _is_pinned(body: BodyProgram, made: Compute) -> bool:
    """Whether what an operator makes is pinned: one value with dimensions, in even shards. What is made element by
    element, or shows all of a parameter, lies where its operands do, unless it is moved then or leaves the body."""
    value, *more = made.results
    local = body.locals[value]
    if more or not local.type.shape or any(one.layout != CONTIGUOUS for dim in local.placement.dims for one in dim):
        return False
    moved = any(isinstance(one, Move) and one.operand == value for one in body.forward)
    rule, (first, *_) = infer(made.signature), made.operands or ("",)
    shows = rule.engine is Engine.VIEW and first in {slot.value for slot in body.params}
    whole = shows and local.type.elements == body.locals[first].type.elements
    return not (rule.elementwise or whole) or moved or value in map(stem, body.outputs)


def _taken(body: BodyProgram, value: str) -> list[str]:
    """The local names under which a value is read, or leaves."""
    names = [name for one in body.forward if isinstance(one, Compute) for name in one.operands]
    return list(dict.fromkeys(name for name in (*names, *body.outputs) if stem(name) == value))


def _constraints(body: BodyProgram, nearest: Nearest, sizes: Mapping[str, int]) -> dict[str, tuple[Constraint, ...]]:
    """Of every value that is pinned, its placements in order. One that no equation makes has them where the nearest
    does that shows it: behind those of what it is made of, before those of what is made of it."""
    found: dict[str, list[Constraint]] = {}
    for one in body.forward:
        if not isinstance(one, Compute) or not _is_pinned(body, one):
            continue
        value = one.results[0]
        home = body.locals[value].placement
        whole = spec_of(replace(home, partial=()), value)
        taken = _taken(body, value)
        read = [name for name in taken if name != value]
        summed = one.signature.kind == "embedding" and value not in taken  # a table that is cut would be gathered
        constraints = [Constraint(None if home.partial and not summed else whole, whole)]
        if len(read) == 1:
            there = body.locals[read[0]].placement
            gathered = not set(home.axes) <= set(there.axes)
            constraints.append(Constraint(spec_of(there, value), None if gathered else spec_of(there, value)))
        if value in nearest.placed:
            found.setdefault(value, []).extend(constraints)
        elif read and (shown := nearest.of(value)) is not None:
            found.setdefault(shown.value, []).extend(each.shown(shown, sizes) for each in constraints)
    return {value: tuple(dict.fromkeys(several)) for value, several in found.items()}
