"""The moves of a body that XLA executes otherwise than they are planned: what the rewrites of `predicted` go by."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.jax_.emit.shardings import parts_read
from meshwright.backends.jax_.emit.views import stem
from meshwright.ir.analysis.saved import reads
from meshwright.ir.graph.graph import Graph
from meshwright.ir.program.program import (
    Add,
    BodyProgram,
    Compute,
    Gradient,
    Kernels,
    Move,
    Statement,
    operands_of,
    results_of,
    values_read,
)
from meshwright.ir.rules.base import Law
from meshwright.ir.rules.registry import infer

ROW_BYTES = 4
"""Of a sample's loss, which is added up in fp32."""
WITH_BIAS, BIAS = ("layer_norm", "group_norm", "batch_norm"), 2
"""Norms, and the place of the operand that they add at last."""


def sizes(body: BodyProgram, graph: Graph, rewrites: tuple[str, ...]) -> dict[str, int]:
    """For names on the way of a parameter's gradient to where it is stored, the bytes that are summed."""
    found: dict[str, int] = {}
    for statement in (*body.backward, *body.sync):
        if isinstance(statement, Move) and statement.reason == "sync" and "whole_sums" in rewrites:
            first = found.setdefault(statement.operand, int(body.nbytes[statement.operand]))
            found[statement.result] = first
    parts = dict(parts_read(graph)) if "part_read" in rewrites else {}
    for slot in body.params:
        part = parts.get(slot.value)
        if part is not None and slot.grad is not None:
            shown = {one: body.locals[one].placement for one in body.locals if one.partition("@")[0] == part}
            for name, axes in way(body, slot.grad):
                # Where ranks along these axes read parts of it, what each gives is put into its place first.
                taken = [body.nbytes[one] for one, placement in shown.items() if not axes & set(placement.axes)]
                found[name] = int(min([*taken, found.get(name, body.nbytes[name])]))
    return found


def way(body: BodyProgram, name: str) -> Iterator[tuple[str, set[str]]]:
    """The names of a gradient on its way to the optimizer's shards, with the axes along which each is summed: in every
    micro-batch, then once."""
    moves = [one for one in (*body.backward, *body.sync) if isinstance(one, Move) and one.reason == "sync"]
    before = {one.result: one.operand for one in moves}
    while name in before:
        name = before[name]
    after = {one.operand: one for one in moves}
    while name in after:
        yield name, set(after[name].step.axes)
        name = after[name].result
    yield name, set()


def known(body: BodyProgram) -> Iterator[str]:
    """The gradients that are gathered of what only becomes one number, by operators that are linear in it alone."""
    readers: dict[str, list[Statement | None]] = {name: [None] for name in body.outputs}
    for one in body.forward:
        for name in dict.fromkeys(operands_of(one)):
            readers.setdefault(name, []).append(one)
    for move in body.backward:
        if not isinstance(move, Move) or move.step.kind != "all_gather" or move.reason != "gradient":
            continue
        name = move.operand.partition("@")[0].removeprefix("d")
        while name in body.locals and body.elements[name] > 1 and len(found := readers.get(name, [])) == 1:
            reader = found[0]
            if isinstance(reader, Move):
                name = reader.result
            elif isinstance(reader, Compute) and infer(reader.signature).laws == (Law.LINEAR,):
                name = reader.results[0]
            else:
                break
        if name in body.locals and body.elements[name] == 1:
            yield move.result


def again(body: BodyProgram) -> Iterator[str]:
    """The results of moves that take a value where another move has taken it. What is computed again is taken again:
    XLA keeps it apart."""
    same: dict[str, str] = {}
    for one in body.backward:
        if isinstance(one, Gradient) and one.signature.kind == "add" and not one.signature.attrs:
            (grad,) = one.grads
            types = {name: body.locals[name].type for name in (*one.results, *([grad] if grad else []))}
            same |= {name: same.get(grad, grad) for name in one.results if grad and types[name] == types[grad]}
    seen: dict[tuple[str, str], str] = {}
    for move in (*body.forward, *body.backward):
        if isinstance(move, Move) and not move.step.free:
            key = same.get(move.operand, move.operand), str(move.step)
            if seen.setdefault(key, move.result) != move.result:
                yield move.result


def for_masks(body: BodyProgram) -> Iterator[Move]:
    """The moves that are made again only of what is dropped of."""
    if not any(isinstance(one, Gradient) and one.signature.kind == "dropout" for one in body.backward):
        return
    read = {*body.input_grads, *(slot.grad for slot in body.params)}
    one: Statement
    for one in reversed(body.backward):
        if isinstance(one, Gradient):
            drops = one.signature.kind == "dropout"
            read.update(filter(None, one.grads) if drops else values_read(one))
        elif not read.isdisjoint(results_of(one)):
            read.update(operands_of(one))
        elif isinstance(one, Move) and one.reason == "value" and not one.step.free:
            yield one


def statistics(body: BodyProgram) -> Iterator[tuple[tuple[str, ...], int]]:
    """The mesh axes and bytes of what a cross entropy that cuts classes sums, each once."""
    found = {
        (tuple(sorted(one.step.axes)), int(body.nbytes[one.operand]))
        for one in body.forward
        if isinstance(one, Move)
        and one.step.kind == "all_reduce"
        and one.operand.startswith("cross_entropy.")
        and body.elements[one.operand] > 1
    }
    yield from sorted(found)


def before_the_loss(body: BodyProgram) -> set[int]:
    """The bytes of what operators read, whole on every rank, that make one number of it."""
    return {
        int(body.nbytes[name])
        for one in body.forward
        if isinstance(one, Compute) and all(body.elements[result] == 1 for result in one.results)
        for name in one.operands
        if body.elements[name] > 1 and not body.locals[name].placement.axes
    }


def rows_of_the_loss(body: BodyProgram) -> list[int]:
    """The bytes of one number for each sample of a cross entropy."""
    return [
        int(body.elements[one.operands[1]]) * ROW_BYTES
        for one in body.forward
        if isinstance(one, Compute) and one.signature.kind == "cross_entropy"
    ]


def gathered_for_the_loss(body: BodyProgram) -> set[tuple[str, ...]]:
    """The mesh axes along which the values that only a loss is made of are gathered."""
    return {
        tuple(sorted(one.step.axes))
        for one in body.forward
        if isinstance(one, Move) and one.reason == "value" and one.step.kind == "all_gather"
    }


def added_up(body: BodyProgram) -> Iterator[tuple[Move, int]]:
    """The sums over devices of gradients that several operators of a body leave of one parameter, and how many more
    sums there are where those of each are summed by themselves."""
    added = {one.result: len(one.operands) - 1 for one in body.backward if isinstance(one, Add)}
    for move in (*body.backward, *body.sync):
        if isinstance(move, Move) and move.reason == "sync" and move.operand in added:
            added[move.result] = added[move.operand]
            if not move.step.free:
                yield move, added[move.operand]


def unread(body: BodyProgram, kernels: Kernels) -> Iterator[str]:
    """The parameters that the backward pass gathers for no derivative's sake."""
    gathered = {one.result for one in body.backward if isinstance(one, Move) and one.reason == "parameter"}
    read: set[str] = set()
    for one in body.backward:
        if not isinstance(one, Gradient):
            read.update(operands_of(one))
            continue
        saves = reads(infer(one.signature), one.signature, one.wanted, kernels)
        slots = {save.index for save in saves if save.what == "operand"}
        slots -= {BIAS} if one.signature.kind in WITH_BIAS else set()
        read.update(one.operands[slot] for slot in slots)
    yield from gathered - read


def once(body: BodyProgram) -> Iterator[Move]:
    """The gathers of parameters of which there is none in the backward pass, where others are gathered again."""
    of_each = (
        [one for one in part if isinstance(one, Move) and one.reason == "parameter"]
        for part in (body.forward, body.backward)
    )
    forward, backward = of_each
    again = {stem(move.operand) for move in backward}
    yield from (move for move in forward if again and not move.step.free and stem(move.operand) not in again)
