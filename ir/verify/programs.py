"""Verification of a Program statement by statement, without trusting the lowering that wrote it.

A body program is right if every name is defined before it is read, every operator finds its operands in the states
that its strategy asks for and leaves its results and gradients as it must, every move leads from the placement of its
operand to that of its result, gradients are whole sums (`meshwright.ir.verify.gradients`), and every trained parameter
leaves a gradient where its optimizer expects it, and is published again from there. A whole program is right if,
besides, values cross stages unchanged and the action lists make a step (`meshwright.ir.verify.actions`).

All of this is read off the program. Whether it computes the model that it was made for is a question to the fold as
well, and is asked by `meshwright.ir.verify.meaning`.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.ir.errors import (
    GradientMixed,
    MissingGradient,
    NameRedefined,
    NameUnknown,
    NameUntyped,
    NoReshard,
    OffloadImpossible,
    PartialAcross,
    StorageConflict,
    WrongAddition,
    WrongDerivative,
    WrongOperand,
    WrongPlacement,
    WrongRing,
    WrongStep,
    WrongTransfer,
    WrongType,
)
from meshwright.ir.graph.graph import Type
from meshwright.ir.program.crossing import Transfer
from meshwright.ir.program.program import (
    Add,
    BodyProgram,
    Compute,
    Gradient,
    Move,
    ParamSlot,
    Program,
    Ring,
    Statement,
    Zero,
    results_of,
    values_read,
)
from meshwright.ir.rules.registry import infer
from meshwright.ir.sharding.adjoint import Applied, Split, apply
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement
from meshwright.ir.sharding.reshard import after
from meshwright.ir.verify.actions import verify_actions
from meshwright.ir.verify.gradients import verify_gradients


def verify_program(program: Program) -> None:
    """Check all bodies and their connections."""
    for body in program.bodies:
        verify_body(body)
    _verify_transfers(program)
    verify_actions(program)


def verify_body(body: BodyProgram) -> None:
    """Check one body program (see the module docstring)."""
    _verify_arity(body)
    outside = {*body.inputs, *(slot.stored for slot in body.params)}
    forward = _verify_list(body, body.forward, outside)
    again = {name for statement in body.backward for name in results_of(statement)} & forward
    arriving = set(body.arriving)
    backward = _verify_list(body, body.backward, (outside | forward | arriving) - again)
    for name in (*body.outputs, *(update.value for update in body.updates), *(slot.value for slot in body.params)):
        _known(body, name, outside | forward, "an output, update or parameter")
    for name in filter(None, body.input_grads):
        _known(body, name, backward | arriving, "an input's gradient")
    _verify_params(body, backward | arriving)
    verify_gradients(body)


def _verify_arity(body: BodyProgram) -> None:
    for what, ports, grads in (
        ("inputs", body.inputs, body.input_grads),
        ("outputs", body.outputs, body.output_grads),
    ):
        if len(ports) != len(grads):
            raise MissingGradient(
                place=f"{body.name}, {what}",
                cause=f"{len(grads)} entries for {len(ports)} {what}",
                fix="give one entry each, None where no gradient flows",
            )


def _verify_list(body: BodyProgram, statements: Sequence[Statement], known: set[str]) -> set[str]:
    """Check a list of statements in order; returns the names it defines."""
    defined: set[str] = set()
    for statement in statements:
        for name in values_read(statement):
            _known(body, name, known | defined, str(statement))
        for name in results_of(statement):
            if name in defined:
                raise NameRedefined(place=f"{body.name}: {statement}", cause=f"%{name} again", fix="name it once")
            if name not in body.locals:
                raise NameUntyped(place=f"{body.name}: {statement}", cause=f"%{name} has no type", fix="declare it")
            defined.add(name)
        _verify_statement(body, statement)
    return defined


def _known(body: BodyProgram, name: str, known: set[str], place: str) -> None:
    if name not in known:
        raise NameUnknown(place=f"{body.name}: {place}", cause=f"%{name} is not there", fix="define it first")
    if name not in body.locals:
        raise NameUntyped(place=f"{body.name}: {place}", cause=f"%{name} has no type", fix="declare it")


def _verify_statement(body: BodyProgram, statement: Statement) -> None:
    match statement:
        case Compute():
            _verify_compute(body, statement, statement.results)
        case Gradient():
            _verify_gradient(body, statement)
        case Ring():
            _verify_ring(body, statement)
        case Move():
            _verify_move(body, statement)
        case Add():
            _verify_add(body, statement)
        case Zero():
            pass


def _verify_add(body: BodyProgram, statement: Add) -> None:
    result = body.locals[statement.result]
    for name in statement.operands:
        placement = body.locals[name].placement
        if placement != result.placement or any(p.reduction != "sum" for p in placement.partial):
            raise WrongAddition(
                place=f"{body.name}: {statement}",
                cause=f"%{name} is {placement}, the sum {result.placement}",
                fix="bring the terms into one placement first",
            )
        _lies(body, name, result.type, placement, statement)


def _lies(body: BodyProgram, name: str, type_: Type, placement: Placement, statement: object) -> None:
    local = body.locals[name]
    if local.type != type_:
        raise WrongType(
            place=f"{body.name}: {statement}", cause=f"%{name} is {local.type}, not {type_}", fix="name another value"
        )
    if local.placement != placement:
        raise WrongPlacement(
            place=f"{body.name}: {statement}",
            cause=f"%{name} is {local.placement}, not {placement}",
            fix="reshard it first",
        )


def _verify_compute(body: BodyProgram, statement: Compute | Gradient | Ring, results: Sequence[str]) -> Applied:
    signature = statement.signature
    rule = infer(signature)
    if (len(statement.operands), len(results)) != (len(signature.operands), len(rule.types)):
        raise WrongOperand(
            place=f"{body.name}: {statement}",
            cause=f"{len(statement.operands)} operands and {len(results)} results",
            fix=f"give {len(signature.operands)} and {len(rule.types)}",
        )
    applied = apply(rule, signature.operands, statement.strategy, body.mesh)
    pairs = [
        axis for axis, choice in statement.strategy.choices if isinstance(choice, Split) and len(choice.factors) == 2
    ]
    if pairs != ([statement.axis] if isinstance(statement, Ring) else []):
        raise WrongRing(
            place=f"{body.name}: {statement}",
            cause=f"coupled pairs are split on {', '.join(pairs) or 'no axis'}",
            fix="run a ring on the one axis that splits a coupled pair, and nowhere else",
        )
    for name, state, type_ in zip(statement.operands, applied.operands, signature.operands, strict=True):
        _lies(body, name, type_, state.value, statement)
    for name, state, type_ in zip(results, applied.results, rule.types, strict=True):
        _lies(body, name, type_, state.value, statement)
    return applied


def _verify_gradient(body: BodyProgram, statement: Gradient | Ring) -> None:
    applied = _verify_compute(body, statement, statement.outputs)
    types, operands = infer(statement.signature).types, statement.signature.operands
    slots = set(statement.wanted)
    if (
        len(statement.grads) != len(types)
        or len(statement.results) != len(statement.wanted)
        or not slots <= set(range(len(operands)))
        or not any(statement.grads)
    ):
        raise WrongDerivative(
            place=f"{body.name}: {statement}",
            cause=f"{len(statement.grads)} gradients give those of operands {sorted(slots)}",
            fix="give one entry per result and one result per wanted operand",
        )
    for grad, state, type_ in zip(statement.grads, applied.results, types, strict=True):
        if grad is not None:
            _lies(body, grad, type_, state.grad, statement)
    for slot, name in zip(statement.wanted, statement.results, strict=True):
        _lies(body, name, operands[slot], applied.operands[slot].grad, statement)


def _verify_ring(body: BodyProgram, statement: Ring) -> None:
    if statement.backward:
        _verify_gradient(body, statement)
    else:
        _verify_compute(body, statement, statement.results)


def _verify_move(body: BodyProgram, statement: Move) -> None:
    source, target = body.locals[statement.operand], body.locals[statement.result]
    try:
        reached = after(source.placement, statement.step)
    except NoReshard as error:
        raise WrongStep(place=f"{body.name}: {statement}", cause=error.cause, fix="replan the reshard") from error
    if reached != target.placement:
        raise WrongStep(
            place=f"{body.name}: {statement}",
            cause=f"it leads to {reached}, the result says {target.placement}",
            fix="replan the reshard",
        )
    _lies(body, statement.result, source.type, target.placement, statement)


def _verify_params(body: BodyProgram, backward: set[str]) -> None:
    sync = _verify_list(body, body.sync, backward)
    updated = {slot.updated for slot in body.params if slot.updated}
    publish = _verify_list(body, body.publish, updated)
    for slot in body.params:
        _verify_shared(body, slot)
        if slot.grad is None:
            if slot.host:
                raise OffloadImpossible(
                    place=f"{body.name}, {slot.path}", cause="it is not trained, and steps on the host", fix="leave it"
                )
            continue
        left = slot.synced is slot.updated is slot.published is None  # to another call: `meaning` looks for it
        after = (
            ()
            if left
            else ((slot.synced, sync | backward), (slot.updated, updated), (slot.published, publish | updated))
        )
        for name, there in ((slot.grad, backward), *after):
            if name is None or name not in there:
                raise MissingGradient(
                    place=f"{body.name}, {slot.path}",
                    cause=f"%{name} is not made",
                    fix="carry its gradient to the optimizer, and the result back",
                )
        if not left:
            _verify_slot(body, slot)


def _verify_shared(body: BodyProgram, slot: ParamSlot) -> None:
    """Check lending: what is lent is trained here, and comes back as the gradient that operators leave here; what is
    borrowed is stored nowhere and steps nowhere."""
    place = f"{body.name}, {slot.path}"
    if slot.borrowed is not None and (
        slot.stored != slot.value or slot.synced is not None or slot.lent is not None or slot.host
    ):
        raise StorageConflict(
            place=place, cause="it is borrowed, and stored here besides", fix="leave it to the call that lends it"
        )
    if slot.lent is not None and (slot.grad is None or slot.synced is None):
        raise MissingGradient(
            place=place, cause=f"%{slot.lent} comes back to what is not trained here", fix="lend what is trained"
        )


def _verify_slot(body: BodyProgram, slot: ParamSlot) -> None:
    """Check the way of a parameter's own gradient, by where gradients are stored, to the optimizer's shards, and of the
    result back to where the parameter is stored. Storage must refine the placement in compute."""
    place, type_ = f"{body.name}, {slot.path}", body.locals[slot.value].type
    compute, stored = body.locals[slot.value].placement, body.locals[slot.stored].placement
    for where in (stored, slot.grads, slot.optimizer):
        prefixes = [long[: len(short)] == short for long, short in zip(where.dims, compute.dims, strict=True)]
        if where.partial or not all(prefixes):
            raise StorageConflict(
                place=place, cause=f"{where} does not refine {compute}", fix="add axes at the minor end of its shards"
            )
    synced, published = _chain(body.sync, slot.synced), _chain(body.publish, slot.published)
    if synced[0] != slot.grad or published[0] != slot.updated:
        raise GradientMixed(
            place=place,
            cause=f"it is synced from %{synced[0]} and published from %{published[0]}",
            fix="sync its own gradient and publish its own update",
        )
    for name, where in ((synced[-1], slot.optimizer), (published[0], slot.optimizer), (published[-1], stored)):
        _lies(body, name, type_, where, slot.path)
    if slot.grads != compute and body.locals[slot.grad].placement != slot.grads:
        raise WrongPlacement(
            place=place, cause=f"its gradient is never {slot.grads}", fix="bring it to where gradients are stored"
        )


def _chain(statements: Sequence[Statement], end: str | None) -> list[str]:
    """Names through which moves lead to `end`."""
    before = {s.result: s.operand for s in statements if isinstance(s, Move)}
    names = [end or ""]
    while names[0] in before:
        names.insert(0, before[names[0]])
    return names


def _verify_transfers(program: Program) -> None:
    makers = {number: program.body(name) for stage in program.stages for number, name in stage.calls()}
    seen: set[tuple[int, int, int]] = set()
    for hop in program.transfers:
        place = f"transfer of call {hop.call} output {hop.output}, stage {hop.from_stage} -> {hop.to_stage}"
        body, stages = makers.get(hop.call), (hop.from_stage, hop.to_stage)
        key = (hop.call, hop.output, hop.from_stage)
        exists = body is not None and hop.output < len(body.outputs) and stages[1] < len(program.stages)
        if body is None or not exists or stages[1] != stages[0] + 1 or key in seen:
            raise WrongTransfer(
                place=place, cause="there is no such value or hop", fix="relay an output stage by stage, once"
            )
        seen.add(key)
        if body.locals[body.outputs[hop.output]].type != hop.type:
            raise WrongType(place=place, cause=f"it is not {hop.type}", fix="carry the output's own type")
        for stage, placement in zip(stages, (hop.source, hop.target), strict=True):
            placement.check(hop.type.shape, program.stages[stage].mesh, place)
            if placement.partial:
                raise PartialAcross(place=place, cause=f"{placement} is partial", fix="reduce it before it crosses")
        if hop.waiting:
            _verify_waiting(hop, place, *(program.stages[stage].mesh for stage in stages))


def _verify_waiting(hop: Transfer, place: str, mesh: Mesh, other: Mesh) -> None:
    """Verify that a gradient crosses partial only between ranks that stand alike: who sends it is asked by turns."""
    for value in (hop.source, hop.target):
        hop.gradient(value).check(hop.type.shape, mesh, place)
    if not hop.differentiable or mesh != other or hop.source != hop.target:
        raise PartialAcross(
            place=place,
            cause=f"its gradient is partial over {', '.join(hop.waiting)}",
            fix="reduce it before it crosses",
        )
