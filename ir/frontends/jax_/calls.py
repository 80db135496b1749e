"""How a model of JAX is made and called, and where its values are made, for code that is written for it
(`meshwright.ir.graph.calls`).

Code runs the jaxpr of the user's own function, as it is traced there, and says of some values where they lie. So the
step is translated once more, with the place of every equation (`sites`) instead of its source line: an operator, and a
composite that was recognised, then says where its result is made. A place is left out where that result is not the
equation's, in its shape or with dimensions joined, and where blocks that are alike have it otherwise.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from meshwright.ir.errors import EmissionModel
from meshwright.ir.frontends.folding.segment import calls_traced
from meshwright.ir.frontends.foreign import blamed
from meshwright.ir.frontends.jax_.capture import Folded, folded, labels_of, translated
from meshwright.ir.frontends.jax_.dtypes import is_key, type_of
from meshwright.ir.frontends.jax_.flat import Flat, Leaf, flattened
from meshwright.ir.frontends.jax_.models import TRAINING, keys_taken
from meshwright.ir.frontends.jax_.rooms import placed
from meshwright.ir.frontends.jax_.sites import Sites
from meshwright.ir.frontends.jax_.source import JaxSource, Step, example_batch, named, traced, where_its_loss_is
from meshwright.ir.graph.calls import Calls, Invoked, Places, Scanned, TracedEquation, TracedStep
from meshwright.ir.graph.constants import Constant
from meshwright.ir.graph.graph import Graph, Op

ADDRESS = re.compile("0x[0-9a-f]+")
"""What tells functions apart, in text, that do the same."""


def calls_of(
    source: JaxSource, reference: str, *, batch: int, seq: int, constants: Mapping[str, Constant] | None
) -> Calls:
    """How the model of a reference is made and called. Raises `EmissionModel` for one that no code is written for."""
    with blamed(source.place):
        example = example_batch(source, batch, seq)
        labels, _ = labels_of(source, example, batch, seq)
    step = traced(source, example)
    found = folded(source, step, labels, seed=0)
    check_plain(source, example)
    file, _, factory = reference.rpartition(":")
    return Calls(
        file=Path(file).resolve(),
        factory=factory,
        entries=tuple(named(example)),
        called=frozenset(),
        has_optimizer=source.hooks["optimizer"] is not None,
        own_loss=where_its_loss_is(source, example),
        constants=found.made if constants is None else constants,
        untrained=frozenset(leaf.path for leaf in step.leaves if leaf.kind == "param" and not leaf.trained),
        places=places_of(step, labels, found, alone=traced(source, example_batch(source, 1, seq))),
        invoked=invoked_of(source, step, example),
    )


def check_plain(source: JaxSource, example: Any) -> None:
    """Must: a batch of named arrays."""
    if not isinstance(example, dict) or set(example) != set(named(example)):
        raise EmissionModel(
            place=f"{source.place}, example_inputs", cause="the batch is no dict", fix="return a dict of named arrays"
        )


def invoked_of(source: JaxSource, step: Step, example: Mapping[str, Any]) -> Invoked:
    """How the factory's model is made and called."""
    made = source.made(example)
    taken = [name for name in made.accepted if name in example]
    return Invoked(
        way=made.way,
        arguments=tuple(("" if made.accepted[name] else name, name) for name in taken),
        modes=tuple((name, TRAINING[name]) for name in made.accepted if name in TRAINING and name not in example),
        keys=keys_taken(made.accepted, example),
        forward=source.hooks["forward"] is not None,
        paths=tuple(leaf.path for leaf in step.leaves if leaf.kind == "param"),
        rest=tuple(leaf.path for leaf in step.leaves if leaf.kind in ("buffer", "constant")),
        named=made.named,
        keyed=made.keyed,
        draws=step.draws,
    )


def places_of(step: Step, labels: Mapping[str, tuple[str, ...]], found: Folded, alone: Step) -> Places:
    """Where the values of the fold's bodies are made; `alone` is the step for a batch of one."""
    sites = Sites(step.whole)
    flat = placed(flattened(step.jaxpr, step.leaves, whole=found.whole, sites=sites))
    whole, _ = translated(flat, step, labels, found.stacks)
    at, seen = _made_at(whole.graph, flat), _shapes(flat)
    products = _products(translated(flat, step, labels, found.stacks, raw=True)[0].graph, flat)
    values: dict[str, dict[str, str]] = {}
    apart: dict[str, tuple[tuple[int, ...], ...]] = {}
    begins: dict[str, int] = {}
    before: dict[str, str] = {}
    for name, room, ops in calls_traced(found.graph, found.stacks, found.fold):
        named = list(zip(found.fold.body[name].graph.ops, ops, strict=True))
        own = {op.name: at[other.name] for op, other in named if other.name in at}
        others = {at[other.name]: whole.graph.types[other.name].shape for _, other in named if other.name in at}
        parts = {place: joined(seen[place], shape) for place, shape in others.items() if shape != seen[place]}
        if room and not any(stack.holds(room) for stack in found.stacks if stack.path in flat.scans):
            first = begins[room] = min((_first(place) for place in own.values()), default=0)
            inside = [place for place in own.values() if place in products]
            before |= {_counted(place, first): _counted(products[place], first) for place in inside}
            own = {value: _counted(place, first) for value, place in own.items()}
            parts = {_counted(place, first): one for place, one in parts.items()}
        known = values.setdefault(name, own)
        values[name] = {value: place for value, place in known.items() if own.get(value) == place}
        apart |= parts
    return Places(
        values=values,
        apart=apart,
        products=products | before,
        begins=begins,
        spans={room: span for room, span in _spans(flat).items() if room in begins},
        scans={
            path: Scanned(place=one.site, stacks=one.stacks, operands=one.operands) for path, one in flat.scans.items()
        },
        check=sites.check,
        check_alone=Sites(alone.whole).check,
        step=step_of(step.whole, step.leaves),
    )


def step_of(closed: Any, leaves: Sequence[Leaf]) -> TracedStep:
    """The equations of a step, whose arguments are these."""
    jaxpr, numbers = closed.jaxpr, dict[Any, int]()

    def read(one: Any) -> int | str:
        return str(one) if hasattr(one, "val") else numbers.setdefault(one, len(numbers))

    arguments = list(zip(map(read, jaxpr.invars), leaves, strict=True))
    equations = tuple(
        TracedEquation(
            _does(one),
            tuple(map(read, one.invars)),
            tuple(numbers.setdefault(var, len(numbers)) for var in one.outvars),
            tuple(type_of(var.aval) for var in one.outvars),
        )
        for one in jaxpr.eqns
    )
    params = {value: leaf.path for value, leaf in arguments if leaf.kind == "param" and isinstance(value, int)}
    given = frozenset(value for value, leaf in arguments if leaf.kind != "param" and isinstance(value, int))
    keys = frozenset(number for var, number in numbers.items() if is_key(var.aval))
    return TracedStep(equations=equations, params=params, given=given, loss=read(jaxpr.outvars[0]), keys=keys)


def _does(equation: Any) -> int:
    """What an equation does, to values of which types, as a number."""
    text = f"{equation.primitive} {equation.params} {[str(var.aval) for var in equation.invars]}"
    return zlib.crc32(ADDRESS.sub("", text).encode())


def _spans(flat: Flat) -> dict[str, tuple[int, int]]:
    """Of every room the numbers of the first outermost equation in it, and after that of the last."""
    found: dict[str, tuple[int, int]] = {}
    for one in flat.equations:
        if one.room and one.source:
            number = _first(one.source)
            first, last = found.get(one.room, (number, number))
            found[one.room] = min(first, number), max(last, number + 1)
    return found


def _shapes(flat: Flat) -> dict[str, tuple[int, ...]]:
    """The shape of what every equation makes that makes one thing, by place."""
    return {one.source: tuple(one.types[0].shape) for one in flat.equations if one.source and len(one.types) == 1}


def _made_at(graph: Graph, flat: Flat) -> dict[str, str]:
    """The place of every value that has one: of several operators at it, the last that has the equation's shape, else
    the last that dimensions of it are joined to."""
    shapes = _shapes(flat)
    rooms: dict[tuple[str, str], tuple[bool, str]] = {}
    for op in graph.ops:
        if len(op.results) != 1 or op.source not in shapes:
            continue
        shape, there, room = graph.types[op.name].shape, shapes[op.source], (op.source, op.module)
        same = shape == there
        if same or (joined(there, shape) and not rooms.get(room, (False, ""))[0]):
            rooms[room] = same, op.name
    return {value: place for (place, _), (_, value) in rooms.items()}


def joined(shape: tuple[int, ...], other: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Of every dimension of the other shape the extents of those, side by side, that make it up; nothing where some are
    made up otherwise."""
    found, at = [], 0
    for extent in other:
        first, size = at, 1
        while at < len(shape) and (size < extent or at == first):
            size *= shape[at]
            at += 1
        if size != extent:
            return ()
        found.append(shape[first:at])
    return tuple(found) if at == len(shape) else ()


def _products(graph: Graph, flat: Flat) -> dict[str, str]:
    """Of places at which something is added to a product, before composites are recognised, those of the products."""
    at = _made_at(graph, flat)
    made = {op.name: op for op in graph.ops}
    found: dict[str, str] = {}
    for op in graph.ops:
        for value in op.operands if op.kind == "add" and op.name in at else ():
            before = made.get(value)
            while before is not None and before.kind in ("view", "permute") and before.name not in at:
                before = made.get(before.operands[0])
            products = {before.name, *_under(before, made)} if before is not None else set()
            if (
                before is not None
                and before.name in at
                and any(made[one].kind in ("linear", "matmul") for one in products)
            ):
                found[at[op.name]] = at[before.name]
    return found


def _under(op: Op, made: Mapping[str, Op]) -> Iterator[str]:
    """What an operator shows in another shape."""
    while op.kind in ("view", "permute") and op.operands[0] in made:
        op = made[op.operands[0]]
        yield op.name


_NUMBER = re.compile(r"\d+")


def _first(place: str) -> int:
    """The number of the outermost equation."""
    found = _NUMBER.match(place)
    assert found is not None
    return int(found[0])


def _counted(place: str, begin: int) -> str:
    """A place as it is counted from where its block begins."""
    return _NUMBER.sub(f"+{_first(place) - begin}", place, count=1)
