"""Printed bodies: the bodies of a plan as functions, and the model's forward pass, which calls them in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, combinations

from meshwright.backends.printing import Function, Item, functions_of, items_of, regions_of
from meshwright.backends.printing.naming import free, function_names, names_of, snake
from meshwright.backends.printing.regions import NoRegion
from meshwright.backends.subject import Piece, Subject
from meshwright.backends.torch_.capabilities import TARGETS
from meshwright.backends.torch_.emit.printed.constants import Made, constants_of, laws_in
from meshwright.backends.torch_.emit.printed.language.dialect import OTHER_ORDER, TERMS, Torch
from meshwright.backends.torch_.emit.printed.language.ring import PLAIN_MASKS, kernel_of
from meshwright.backends.torch_.emit.printed.naming import (
    GIVEN,
    RESERVED,
    axes_in,
    call_of,
)
from meshwright.backends.torch_.emit.read.allowed import device_of
from meshwright.backends.torch_.emit.read.axes import Axes, joined
from meshwright.backends.torch_.emit.read.copies import Copies
from meshwright.backends.torch_.emit.read.precision import precision_of
from meshwright.backends.torch_.emit.read.sections import Fused, Sizes, by_name, sizes_of
from meshwright.ir.analysis.weights import Weight, counted_in, weights_in
from meshwright.ir.errors import EmissionPrinted
from meshwright.ir.graph.fold import FromInput, FromSegment
from meshwright.ir.graph.graph import Param
from meshwright.ir.graph.numbers import numbers_of
from meshwright.ir.program.routes import Routed, routed
from meshwright.ir.quoting import identifier
from meshwright.ir.same import Same
from meshwright.ir.sharding.adjoint import Split
from meshwright.ir.sharding.layouts import CONTIGUOUS, ZIGZAG
from meshwright.ir.sharding.placement import Shard


@dataclass(frozen=True)
class PrintedBody:
    """One body as functions: its own and those of its regions."""

    piece: Piece
    routed: Routed
    names: Mapping[str, str]
    """What its functions are called, by the path of the region; its own by the empty one."""
    function: Function
    inputs_of: Callable[[tuple[int, ...]], Sequence[str]]
    """The inputs that it reads."""
    numbers: Mapping[str, Mapping[tuple[float, ...], str]] = field(default_factory=dict)
    """What it is given by name, where calls differ in open numbers: as code, for those of a call."""

    @property
    def name(self) -> str:
        return self.names[""]

    def given(self, one: Function, printed: Printed) -> list[str]:
        """The keyword arguments of one of its functions."""
        return axes_in(one.lines, (*printed.named_axes, *self.numbers))

    def number(self, name: str, numbers: tuple[float, ...] | None) -> str:
        """What a call with these open numbers, or with those of the body, is given by a name."""
        return self.numbers[name][numbers_of(self.piece.graph) if numbers is None else numbers]

    def functions(self) -> Iterator[tuple[str, Function]]:
        """Every function of the body, with its name."""
        for one in self.function.all():
            yield self.names[one.path], one


@dataclass(frozen=True)
class Printed:
    """A printed model."""

    subject: Subject
    axes: Axes
    bodies: Mapping[str, PrintedBody]
    """By the name of the body."""
    entries: tuple[str, ...]
    """The entries of the batch that the model is called with, in order."""
    copies: Copies
    """The parameters that have anything else than copies along data and context axes."""
    constants: Mapping[str, Made] = field(default_factory=dict)
    """The functions that make constants, by name."""
    beside: frozenset[str] = frozenset()
    """Names that code of stages with other meshes has for something else."""

    @property
    def tensor(self) -> tuple[str, ...]:
        """The axis along which all parameters are DTensors."""
        return (self.axes.tensor,) if self.axes.tensor is not None else ()

    @property
    def cutting(self) -> tuple[str, ...]:
        """The axes along which parameters are DTensors, in the order of the mesh: all of them, or those that cut
        parameters."""
        return in_order((*self.tensor, *chain.from_iterable(self.copies.of_apart.values())), self.subject)

    @cached_property
    def alike(self) -> dict[str, tuple[str, ...]]:
        """The axes along which all ranks compute a parameter's whole gradient, by a regular expression of its names."""
        return by_name(
            (piece, piece.read_as(param), self.copies.alike(piece, param.path) or None)
            for piece in self.subject.pieces
            for param in piece.graph.params
        )

    @cached_property
    def cuts(self) -> dict[str, dict[str, int]]:
        """The dimensions that axes cut of every parameter and buffer, by a regular expression of its names."""
        return by_name(
            (piece, path, self.dims(body, param) or None)
            for piece, body in self.pieces
            for param in body.routed.graph.params
            for path in param.paths
        )

    @property
    def cuts_buffers(self) -> bool:
        """Whether any of these is a buffer."""
        params = ((body, param) for _, body in self.pieces for param in body.routed.graph.params if param.buffer)
        return any(self.dims(body, param) for body, param in params)

    @property
    def pieces(self) -> Iterator[tuple[Piece, PrintedBody]]:
        """Every segment of the model with its body; several may share one."""
        yield from ((piece, self.bodies[piece.plan.body]) for piece in self.subject.pieces)

    def dims(self, body: PrintedBody, param: Param) -> dict[str, int]:
        cut = {axis: body.routed.hubs[param.value].home.value.on(axis) for axis in self.cutting}
        return {axis: dim for axis, dim in cut.items() if isinstance(dim, int)}

    @cached_property
    def fused(self) -> tuple[tuple[Piece, Fused], ...]:
        """The parameters that such an axis cuts in sections."""
        found = []
        for piece, body in self.pieces:
            cut = ((param, one) for param in body.routed.graph.params for one in _sections(body, param, self.cutting))
            found.append((piece, {param.path: one for param, one in cut}))
        return tuple((piece, fused) for piece, fused in found if fused)

    @cached_property
    def partial(self) -> bool:
        """Whether gradients of parameters are sums over the tensor axis."""
        states = [body.routed.hubs[p.value].home for body in self.bodies.values() for p in body.routed.graph.params]
        return any(set(state.grad_partial) & set(self.tensor) for state in states)

    @cached_property
    def named_axes(self) -> tuple[str, ...]:
        """Keyword arguments of functions: axes, several as one, the model, and weights of terms of the loss."""
        return (*self.subject.mesh.names, *self.joined_axes, "model", TERMS)

    @property
    def joined_axes(self) -> tuple[str, ...]:
        """The name of several axes that act as one."""
        return tuple(joined(axes) for axes in self.together)

    @cached_property
    def together(self) -> tuple[tuple[str, ...], ...]:
        """Axes that moves and operators treat as one."""
        found = (
            in_order(step.axes, self.subject)
            for body in self.bodies.values()
            for hub in body.routed.hubs.values()
            for way in (hub.leaves, *hub.ways)
            for step in (*way.there, *way.back)
        )
        of_operators = (axes for body in self.bodies.values() for axes in _named_together(body, self.subject))
        return tuple(dict.fromkeys(axes for axes in (*found, *of_operators) if len(axes) > 1))

    @cached_property
    def entry_names(self) -> Mapping[str, str]:
        """The names of the batch's entries in forward passes."""
        taken = self.reserved | GIVEN
        return {name: free(identifier(name), taken) for name in self.entries}

    @property
    def reserved(self) -> set[str]:
        """Names that forward passes use otherwise."""
        return {*RESERVED, *self.subject.mesh.names, *self.named_axes, *self.called, *self.constants, *self.beside}

    @property
    def called(self) -> set[str]:
        """The names of the functions."""
        return {name for body in self.bodies.values() for name in body.names.values()}


@dataclass(frozen=True, slots=True)
class Rings:
    """The ring attention of a plan."""

    masked: bool
    """Whether any is under a mask that torch's kernels do not make themselves."""
    zigzag: bool
    """Whether any is of tokens that lie zigzag."""
    kernel: str
    """The kernel of torch that computes it."""

    @staticmethod
    def of(subject: Subject) -> Rings:
        found = [
            (op.attr("mask"), choice.layout)
            for piece in subject.pieces
            for op in piece.graph.ops
            for _, choice in (piece.plan.strategy(op.name).choices if op.kind == "attention" else ())
            if isinstance(choice, Split) and len(choice.factors) > 1
        ]
        masked = any(mask not in PLAIN_MASKS for mask, _ in found)
        kernel = kernel_of(device_of(subject), subject.workload.precision, masked=masked)
        return Rings(masked=masked, zigzag=any(layout == ZIGZAG for _, layout in found), kernel=kernel)


def printed_of(
    subject: Subject, axes: Axes, copies: Copies, inside: Mapping[str, Iterable[str]], beside: Set[str]
) -> Printed:
    """The printed bodies of a plan. `inside` are the modules of every body, by name, that must be called; `beside` are
    the function names of other stages."""
    if subject.calls.unsaid:
        cause = f"{subject.calls.unsaid[0]}: its own code runs, or none"
        raise EmissionPrinted(place="the model", cause=cause, depends=())
    meshes = [stage.mesh.names for stage in subject.decisions.stages]
    several = (axes for names in meshes for n in range(1, len(names) + 1) for axes in combinations(names, n))
    taken = {*RESERVED, *beside, *map(joined, several)}
    precision = precision_of(subject)
    made = constants_of(subject, taken)
    lowering, kernel = TARGETS[subject.decisions.target].lowering(), Rings.of(subject).kernel
    bodies: dict[str, PrintedBody] = {}
    for piece in subject.pieces:
        if piece.plan.body in bodies:
            continue  # of another segment
        dialect = Torch(
            tensor=axes.tensor,
            batch=axes.batch,
            flat=lambda axes: joined(in_order(axes, subject)),
            constants={law: f"{name}({one.holder(piece)})" for law, (name, one) in made.items()},
            device=device_of(subject),
            sizes={axis.name: axis.size for axis in subject.mesh.axes},
            computes=precision.used if precision.sums else "",
            ring=kernel,
            terms=terms_of(subject, piece.plan.body),
            float8=_products(piece) if precision.float8 else frozenset(),
            compiled=subject.compiled,
        )
        way = routed(piece.graph, piece.plan, subject.mesh, lowering.moves)
        name = free(f"{identifier(snake(piece.plan.body))}_forward", taken)
        entries = frozenset(_entries(piece))
        called = {op.results[0]: made[str(op.attr("law"))][1].called for op in way.graph.ops if op.kind == "constant"}
        numbers = _numbers(subject, piece)
        names = called | names_of(way.graph, subject.calls.file)
        walked = items_of(way, dialect, entries, names, subject.program.kernels, numbers)

        def read(value: str, path: str, way: Routed = way, dialect: Torch = dialect, piece: Piece = piece) -> str:
            param = way.graph.param[value]
            names = dict.fromkeys((piece.read_as(param), *param.paths))
            inner = [one[len(path) + 1 :] for one in names if one.startswith(f"{path}.")] if path else list(names)
            if not inner:
                raise NoRegion(f"{param.path} is read in {path}")
            return dialect.parameter(param, way.hubs[value].home, inner[0], copies.parted(piece, param.path))

        inputs = tuple(item.value for item in way.graph.inputs)
        arguments = _argument_names(subject, piece, bodies)
        try:
            region = regions_of(walked.items, inputs, walked.outputs, inside.get(piece.plan.body, ()), read)
        except NoRegion as reason:
            raise EmissionPrinted(place=f"plan {piece.plan.name}", cause=str(reason)) from None
        reserved, beside_it = taken.union(walked.numbers), _kept_beside(subject, piece)
        function = functions_of(region, call_of, dialect.let_go, reserved, arguments, beside=beside_it)
        if any((one.path or piece.repeated) and axes_in(one.lines, (TERMS,)) for one in function.all()):
            raise EmissionPrinted(place="the loss", cause="a module takes a term that weighs in its own way")
        bodies[piece.plan.body] = PrintedBody(
            piece=piece,
            routed=way,
            names=function_names(name, (one.path for one in function.all()), taken),
            function=function,
            inputs_of=partial(_needed_of, walked.items, inputs, walked.outputs),
            numbers={one: dict(zip(numbers, each, strict=True)) for one, each in walked.numbers.items()},
        )
    inputs = tuple(item.value for item, _ in subject.fold.inputs)
    laws = dict.fromkeys(law for piece in subject.pieces for law in laws_in(piece.graph))
    printed = Printed(subject, axes, bodies, inputs, copies, dict(made[law] for law in laws))
    for body in bodies.values():
        _check(body, printed.cutting)
    return printed


def ways_of(subject: Subject) -> tuple[Weight, ...]:
    """The ways in which terms of the loss weigh micro-batches, other than as means over samples; none where all weigh
    alike."""
    fold = Same(subject.fold)
    several = subject.decisions.schedule.microbatches > 1 and len(weights_in(fold)) > 1
    return tuple(dict.fromkeys(counted_in(fold).values())) if several else ()


def terms_of(subject: Subject, body: str) -> dict[str, int]:
    """The values of a body that weigh in these ways, by the number of the way."""
    ways = ways_of(subject)
    counted = counted_in(Same(subject.fold)).items() if ways else ()
    return {value: ways.index(way) for (name, value), way in counted if name == body}


def _needed_of(
    items: Sequence[Item], inputs: Sequence[str], outputs: Sequence[str], wanted: tuple[int, ...]
) -> list[str]:
    needed = _reached(items, outputs, wanted)
    return [name for name in inputs if name in needed]


def _reached(items: Sequence[Item], outputs: Sequence[str], wanted: tuple[int, ...]) -> set[str]:
    """Values that some outputs of a body are made of."""
    needed = {outputs[number] for number in wanted}
    for item in reversed(items):
        if needed.intersection(item.made):
            needed.update(item.reads)
    return needed


def _kept_beside(subject: Subject, piece: Piece) -> int:
    """Bytes that other calls of a stage keep for the backward pass, at least, beside one of a piece."""
    bodies = {body.name: body for body in subject.program.bodies}
    kept = {name: sum(one.nbytes for one in body.kept if not one.host) for name, body in bodies.items()}
    stages = [stage for at, stage in enumerate(subject.program.stages) if at in (subject.only or (at,))]
    each = [[name for _, name in stage.calls()] for stage in stages]
    own = [(names, one) for names in each for one in names if bodies[one].body == piece.plan.body]
    return min((sum(kept[name] for name in names) - kept[one] for names, one in own), default=0)


def _products(piece: Piece) -> frozenset[str]:
    """The products of weights in a block that is repeated."""
    weights = {param.value for param in piece.graph.params} if piece.repeated else set()
    return frozenset(op.name for op in piece.graph.ops if op.kind == "linear" and op.operands[1] in weights)


def _named_together(body: PrintedBody, subject: Subject) -> Iterator[tuple[str, ...]]:
    """The axes that cut one loop of an operator, where its code names their ranks together."""
    lines = [line for one in body.function.all() for line in one.lines]
    for op, strategy in body.piece.plan.strategies:
        splits = [(axis, choice.factors) for axis, choice in strategy.choices if isinstance(choice, Split)]
        for factor in dict.fromkeys(factor for _, factors in splits for factor in factors):
            axes = tuple(axis for axis, factors in splits if factor in factors)
            if len(axes) > 1 and axes_in(lines, (joined(axes),)):
                if axes != in_order(axes, subject):
                    raise EmissionPrinted(place=f"%{op}", cause=OTHER_ORDER)
                yield axes


def in_order(axes: Sequence[str], subject: Subject) -> tuple[str, ...]:
    """Axes in the order of the mesh, in which torch joins them."""
    return tuple(axis for axis in subject.mesh.names if axis in axes)


def _cuts(body: PrintedBody, param: Param) -> Iterator[tuple[int, int, tuple[Shard, ...]]]:
    """The dimensions in which a parameter is cut, with their lengths and the layouts of axes."""
    shape = body.routed.graph.types[param.value].shape
    for dim, shards in enumerate(body.routed.hubs[param.value].home.dims):
        if shards:
            yield dim, shape[dim], shards


def _sections(body: PrintedBody, param: Param, cutting: Sequence[str]) -> Iterator[tuple[int, Sizes, str]]:
    """The dimension that a parameter is cut in by sections, the sections, and the axis that cuts each. A DTensor is cut
    along the axes of a mesh in its order; in another one, the second axis cuts what would be the parts of the first."""
    for dim, extent, shards in _cuts(body, param):
        axes = [shard.axis for shard in shards]
        if axes != _as_in(cutting, axes):
            parts = body.routed.mesh.axis(axes[0]).size
            yield dim, (extent // parts,) * parts, axes[1]
        yield from ((dim, sizes, one.axis) for one in shards if (sizes := sizes_of(one.layout, extent)))


def _as_in(cutting: Sequence[str], axes: Sequence[str]) -> list[str]:
    return [axis for axis in cutting if axis in axes]


def _check(body: PrintedBody, cutting: Sequence[str]) -> None:
    """Check that parameters are cut plainly, or in sections of one dimension."""
    for param in body.routed.graph.params:
        for _, extent, shards in _cuts(body, param):
            axes = [shard.axis for shard in shards]
            plain = all(shard.layout == CONTIGUOUS for shard in shards)
            alone = len(shards) == 1 and bool(sizes_of(shards[0].layout, extent))
            turned = len(shards) > 2 and axes != _as_in(cutting, axes)
            if not set(axes) <= set(cutting) or not (plain or alone) or turned:
                raise EmissionPrinted(place=f"{param.path}", cause=f"it is cut {' and '.join(map(str, shards))}")
        if len(list(_sections(body, param, cutting))) > 1:
            raise EmissionPrinted(place=f"{param.path}", cause="several axes cut it in sections")


def _numbers(subject: Subject, piece: Piece) -> tuple[tuple[float, ...], ...]:
    """The sets of open numbers that calls of a body have; none where all have those of the body."""
    segments = [one.segment for one in subject.pieces if one.plan.body == piece.plan.body]
    found = dict.fromkeys(numbers for segment in segments for numbers in segment.numbers)
    if found and not all(segment.numbers for segment in segments):
        found[numbers_of(piece.graph)] = None
    return tuple(found)


def _entries(piece: Piece) -> Iterator[str]:
    """The inputs of a piece that are entries of the batch."""
    for item, source in zip(piece.graph.inputs, piece.segment.entry, strict=True):
        if isinstance(source, FromInput):
            yield item.value


def _argument_names(subject: Subject, piece: Piece, bodies: Mapping[str, PrintedBody]) -> dict[str, str]:
    """The names of a function's arguments: entries of the batch as they are, `x` for what goes from block to block, and
    others after where they come from."""
    found, before = dict[str, str](), subject.fold.segments
    run = [(at, position) for at, one in enumerate(before) for position in range(len(one.period))]
    first = next(n for n, (at, position) in enumerate(run) if before[at].period[position] == piece.plan.body)
    for item, source in zip(piece.graph.inputs, piece.segment.entry, strict=True):
        if isinstance(source, FromInput):
            found[item.value] = source.name
            continue
        at, position = (source.segment, source.position) if isinstance(source, FromSegment) else run[first - 1]
        made = bodies.get(before[at].period[position])
        main = item.requires_grad and "x" not in found.values()
        found[item.value] = "x" if main else made.function.returns[source.output] if made is not None else item.value
    return found
