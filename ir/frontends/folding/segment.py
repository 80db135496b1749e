"""Segmentation: from the trace of a few blocks to a `Fold` of all of them.

In: a graph in which every operator knows its module path, and the stacks of the model with the walks that were traced.
Out: the fold: unique bodies, segments, wires.

    cut       Operators are cut where the block changes: a *call* is the run of operators of one block, or the glue
              between blocks. Glue between two blocks of one list belongs to the block that follows.
    bodies    Each call is closed into a graph of its own: live-in values become inputs, parameters get block-relative
              names, values are named in order of appearance. Calls with equal graphs share a body. What any of them
              passes on is an output of the body.
    sources   Each input of a call comes from a model input, from the call before, or from an earlier call.
    expand    A walked list is written out to its full depth: the block at position i is called like the walked block of
              its class that was entered from the same class. Here the guess of `reduce.py` is checked: walked blocks
              that agree in both must agree in body and sources.
    segments  The longest repetition is taken at each point: period p, r repeats, p * r as large as possible, p as small
              as possible.

What does not fit raises `NotFoldable` with the reason, and the caller traces the model at full depth instead: a block
that is entered twice, a value that skips over blocks of a shortened list, blocks that look alike and compute different
things. As a check that trusts none of the above, the walk itself is folded, unfolded and compared with the trace.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from meshwright.ir.frontends.folding.assemble import FromCall, NotFoldable, Use, Wire, assembled, expanded, read_beyond
from meshwright.ir.frontends.folding.handles import Names
from meshwright.ir.frontends.folding.stacks import Stack
from meshwright.ir.graph.fold import Body, Fold, FromInput, FromPrevious, unfold, unused
from meshwright.ir.graph.graph import Graph, Input, Op, Param, Type, Update
from meshwright.ir.graph.numbers import numbers_of, without_numbers


@dataclass(frozen=True, slots=True)
class Cut:
    """One call of the trace: the block it runs ("" for glue) and its operators."""

    room: str
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class Closed:
    """A call as a graph of its own. `inner` gives its name for each value of the trace; `given` the trace's value for
    each input."""

    graph: Graph
    given: tuple[str, ...]
    inner: Mapping[str, str]


def names_of(stacks: Sequence[Stack]) -> Names:
    """The names of the reduced model's paths in the full one, with the block that a path lies in."""
    patterns = [(re.compile(re.escape(stack.prefix) + r"(\d+)(?=\.|$)"), stack) for stack in stacks]

    def path(reduced: str) -> str:
        for pattern, stack in patterns:
            found = pattern.match(reduced)
            if found:
                return stack.block(stack.walk[stack.position(found[1])]) + reduced[found.end() :]
        return reduced

    def room(full: str) -> str:
        found = next((found for pattern, _ in patterns if (found := pattern.match(full))), None)
        return found[0] if found else ""

    return Names(path, room)


def fold_trace(graph: Graph, stacks: Sequence[Stack], classes: Mapping[str, str]) -> Fold:
    """The fold of the full model. `classes` names the module class of each traced block."""
    names = names_of(stacks)
    cuts = _cut(graph, names, stacks)
    entered = {cut.room for cut in cuts}
    graph = _with_uncalled(graph, [stack for stack in stacks if not any(map(stack.holds, entered))])
    owner = _owners(graph, names, cuts)
    borrowed = {value for cut in cuts if cut.room for op in cut.ops for value in op.operands if owner.get(value) == ""}
    unread = {param.value for param in graph.params if not graph.readers[param.value]} - set(graph.outputs)
    closed = [_close(graph, cut, index == 0, owner, borrowed, unread) for index, cut in enumerate(cuts)]
    uses, bodies = _share(graph, cuts, closed, classes)
    kept = read_beyond(uses, stacks)
    checked = assembled(graph, uses, bodies, uses, kept)
    difference = unlike(unfold(checked), replaced_ops(graph, tuple(op for cut in cuts for op in cut.ops)))
    if difference:
        raise NotFoldable(f"folding the traced blocks changes them: {difference}")
    return assembled(graph, expanded(uses, stacks), bodies, uses, kept)


# Cut -----------------------------------------------------------------------------------------------------------------


def calls_traced(graph: Graph, stacks: Sequence[Stack], fold: Fold) -> list[tuple[str, str, tuple[Op, ...]]]:
    """For every call of a trace that was folded: its body, its block ("" for glue), and its operators in the trace, in
    the order of the body's."""
    body = {path: one.period[at % len(one.period)] for one in fold.segments for at, path in enumerate(one.paths)}
    glue = iter([one.period[0] for one in fold.segments if one.glue])
    cuts = _cut(graph, names_of(stacks), stacks)
    return [(body[cut.room] if cut.room else next(glue), cut.room, cut.ops) for cut in cuts]


def _cut(graph: Graph, names: Names, stacks: Sequence[Stack]) -> list[Cut]:
    runs: list[tuple[str, list[Op]]] = [("", [])]
    for op in graph.ops:
        room = names.room(op.module)
        if room != runs[-1][0]:
            runs.append((room, []))
        runs[-1][1].append(op)
    if runs[-1][0]:
        runs.append(("", []))
    cuts: list[Cut] = []
    for index, (room, ops) in enumerate(runs):
        follows = runs[index + 1][0] if index + 1 < len(runs) else ""
        if not room and index and follows and _stack_of(runs[index - 1][0], stacks) == _stack_of(follows, stacks):
            runs[index + 1][1][:0] = [replace(op, module=follows) for op in ops]
        elif room or ops or index in (0, len(runs) - 1):
            cuts.append(Cut(room, tuple(ops)))
    rooms = [cut.room for cut in cuts if cut.room]
    twice = next((room for room in rooms if rooms.count(room) > 1), None)
    if twice is not None:
        raise NotFoldable(f"{twice} is entered twice")
    return cuts


def _stack_of(room: str, stacks: Sequence[Stack]) -> str:
    return next((stack.prefix for stack in stacks if stack.holds(room)), "")


def _owners(graph: Graph, names: Names, cuts: Sequence[Cut]) -> Mapping[str, str]:
    """The room that owns each parameter: the one with all its paths, if it is entered and alone reads it; else none."""
    entered, readers = {cut.room for cut in cuts}, dict[str, set[str]]()
    for cut in cuts:
        for value in (value for op in cut.ops for value in op.operands):
            readers.setdefault(value, set()).add(cut.room)
    found: dict[str, str] = {}
    for param in graph.params:
        rooms = {names.room(path) for path in param.paths}
        (alone,) = rooms if len(rooms) == 1 else ("",)
        found[param.value] = alone if alone in entered and readers.get(param.value, rooms) == rooms else ""
    return found


def _with_uncalled(graph: Graph, stacks: Sequence[Stack]) -> Graph:
    """The graph with the parameters of all blocks of stacks that nothing calls (the images' half of a model that is
    given text): those that were traced stand for the others of their class."""
    types, params = dict(graph.types), list(graph.params)
    for stack in stacks:
        traced = {stack.classes[at]: at for at in reversed(stack.walk)}
        for position in sorted(set(range(stack.depth)) - set(stack.walk)):
            like = f"{stack.block(traced[stack.classes[position]])}."
            for param in (one for one in graph.params if all(path.startswith(like) for path in one.paths)):
                paths = tuple(f"{stack.block(position)}.{path.removeprefix(like)}" for path in param.paths)
                value = f"p.{paths[0]}"
                types[value] = graph.types[param.value]
                params.append(replace(param, value=value, paths=paths))
    return replace(graph, types=types, params=tuple(params))


# Bodies --------------------------------------------------------------------------------------------------------------


def _close(
    graph: Graph, cut: Cut, opening: bool, owner: Mapping[str, str], borrowed: Set[str], unread: Set[str]
) -> Closed:
    """A call as a graph: inputs and values named in order of appearance, parameters by their path inside the block.

    Parameters that a block borrows from outside enter through the opening glue. A parameter that nothing reads still
    has an owner: the opening glue, if its block is not called.
    """
    inner: dict[str, str] = {}
    types: dict[str, Type] = {}
    inputs: list[Input] = []
    params: list[Param] = []
    given: list[str] = []
    model_inputs = {item.value: item for item in graph.inputs}
    numbers: dict[str, int] = {}

    def name(value: str, wanted: str) -> str:
        number = numbers.get(wanted, 1)
        fresh = wanted if number == 1 else f"{wanted}_{number}"
        while fresh in types:
            number += 1
            fresh = f"{wanted}_{number}"
        inner[value], numbers[wanted] = fresh, number
        types[fresh] = graph.types[value]
        return fresh

    def take(value: str) -> None:
        param = graph.param.get(value)
        if param is not None and owner[value] == cut.room and value not in inner:
            paths = tuple(_inside(path, cut.room) for path in param.paths)
            params.append(replace(param, value=name(value, paths[0]), paths=paths))
            return
        labels = model_inputs[value].labels if value in model_inputs else ()
        inputs.append(Input(name(value, f"in{len(inputs)}"), labels, value in graph.differentiable))
        given.append(value)

    for param in graph.params:
        first = opening or cut.room  # what stands outside of blocks and is read nowhere belongs to the first call
        if owner[param.value] == cut.room and (
            (param.value in unread and first) or (opening and param.value in borrowed)
        ):
            take(param.value)
    ops = []
    for op in cut.ops:
        for value in op.operands:
            if value not in inner:
                take(value)
        results = tuple(
            name(value, op.kind if len(op.results) == 1 else f"{op.kind}.{i}") for i, value in enumerate(op.results)
        )
        operands = tuple(inner[value] for value in op.operands)
        ops.append(replace(op, operands=operands, results=results, module=_inside(op.module, cut.room)))
    made = {value for op in cut.ops for value in op.results}
    updates = tuple(
        Update(_inside(update.buffer, cut.room), inner[update.value], update.reduction)
        for update in graph.updates
        if update.value in made
    )
    closed = Graph(types=types, inputs=tuple(inputs), params=tuple(params), ops=tuple(ops), outputs=(), updates=updates)
    return Closed(closed, tuple(given), inner)


def _inside(path: str, room: str) -> str:
    return path.removeprefix(room).removeprefix(".") if room and (path == room or path.startswith(f"{room}.")) else path


def _key(graph: Graph) -> tuple[Any, ...]:
    return graph.inputs, graph.params, graph.ops, graph.updates, tuple(graph.types.items())


def _share(
    graph: Graph, cuts: Sequence[Cut], closed: Sequence[Closed], classes: Mapping[str, str]
) -> tuple[list[Use], dict[str, Body]]:
    """Calls with equal graphs sharing a body, whatever the numbers of blocks; a value that any of them passes on is an
    output of it."""
    keys = [
        (True, _key(without_numbers(call.graph))) if cut.room else (False, _key(call.graph))
        for cut, call in zip(cuts, closed, strict=True)
    ]
    passed = _passed_on(graph, cuts, closed)
    order = {value: index for index, value in enumerate(_defined(closed))}
    names: dict[Any, str] = {}
    bodies: dict[str, Body] = {}
    for index, key in enumerate(keys):
        if key in names:
            continue
        members = [i for i, other in enumerate(keys) if other == key]
        first = closed[index]
        outer = {inside: value for value, inside in first.inner.items()}
        wanted = {closed[i].inner[value] for i in members for value in passed[i]}
        outputs = tuple(sorted(wanted, key=lambda inside: order.get(outer[inside], -1)))
        own = classes.get(cuts[index].room, "") if cuts[index].room else _glue_name(index, len(cuts))
        title = unused(own.rpartition(".")[2], bodies)
        names[key] = title
        bodies[title] = Body(title, _with_outputs(first.graph, outputs), own if cuts[index].room else "")
    uses = [Use(names[key], cut.room, (), index) for index, (key, cut) in enumerate(zip(keys, cuts, strict=True))]
    where = _positions(uses, closed, bodies)
    wired = [
        replace(
            use,
            wires=tuple(_wire(graph, value, use.trace, where) for value in closed[use.trace].given),
            numbers=numbers_of(closed[use.trace].graph) if use.path else (),
        )
        for use in uses
    ]
    return wired, bodies


def replaced_ops(graph: Graph, ops: tuple[Op, ...]) -> Graph:
    """The same graph with other operators."""
    return Graph(graph.types, graph.inputs, graph.params, ops, graph.outputs, graph.updates, graph.loss)


def _with_outputs(graph: Graph, outputs: tuple[str, ...]) -> Graph:
    return Graph(graph.types, graph.inputs, graph.params, graph.ops, outputs, graph.updates)


def _glue_name(index: int, count: int) -> str:
    return "model" if count == 1 else "embed" if index == 0 else "head" if index == count - 1 else "between"


def _defined(closed: Sequence[Closed]) -> list[str]:
    return [
        value
        for call in closed
        for value, inside in call.inner.items()
        if inside not in {i.value for i in call.graph.inputs}
    ]


def _passed_on(graph: Graph, cuts: Sequence[Cut], closed: Sequence[Closed]) -> list[set[str]]:
    """For each call, the values it defines that a later call, or the model's output, reads."""
    read = {value for call in closed for value in call.given} | set(graph.outputs)
    own = [{value for op in cut.ops for value in op.results} for cut in cuts]
    own[0] |= {param.value for param in graph.params if param.value in closed[0].inner}
    return [{value for value in defined if value in read} for defined in own]


def _positions(uses: Sequence[Use], closed: Sequence[Closed], bodies: Mapping[str, Body]) -> dict[str, tuple[int, int]]:
    """The source of each value that is passed on: (call, output)."""
    where: dict[str, tuple[int, int]] = {}
    for index, use in enumerate(uses):
        outputs = bodies[use.body].graph.outputs
        for value, inside in closed[index].inner.items():
            if inside in outputs and value not in where:
                where[value] = (index, outputs.index(inside))
    return where


def _wire(graph: Graph, value: str, call: int, where: Mapping[str, tuple[int, int]]) -> Wire:
    if value in {item.value for item in graph.inputs}:
        return FromInput(value)
    source, output = where[value]
    return FromPrevious(output) if source == call - 1 else FromCall(source, output)


# The check -----------------------------------------------------------------------------------------------------------


def unlike(left: Graph, right: Graph) -> str:
    """The first difference between two graphs, value names aside; "" if there is none."""
    same: dict[str, str] = {}
    by_path = {param.paths: param.value for param in right.params}
    for param in left.params:
        if param.paths not in by_path:
            return f"parameter {param.path}"
        same[param.value] = by_path[param.paths]
    same |= {a.value: b.value for a, b in zip(left.inputs, right.inputs, strict=True)}
    if len(left.ops) != len(right.ops):
        return f"{len(left.ops)} operators, not {len(right.ops)}"
    for a, b in zip(left.ops, right.ops, strict=True):
        operands = tuple(same.get(value, "") for value in a.operands)
        if replace(a, operands=operands, results=b.results) != b:
            return f"{a.kind} in {a.module}"
        if left.result_types(a) != right.result_types(b):
            return f"a type in {a.module}"
        same |= dict(zip(a.results, b.results, strict=True))
    if tuple(same.get(value) for value in left.outputs) != right.outputs:
        return "the outputs"
    changed = [
        tuple((u.buffer, same.get(u.value) if g is left else u.value, u.reduction) for u in g.updates)
        for g in (left, right)
    ]
    return "" if sorted(changed[0]) == sorted(changed[1]) else "the buffer updates"
