"""Does a Program do what it says? Checked statement by statement, without trusting the lowering that wrote it.

A body program is right if every name is defined before it is read, every operator finds its operands in the states
that its strategy asks for and leaves its results and gradients as it must, every move leads from the placement of its
operand to that of its result, and every trained parameter leaves a gradient where its optimizer expects it. A whole
program is right if, besides, values cross stages unchanged, sends and receives pair up, and every stage works on
every micro-batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from meshwright.ir.adjoint import Applied, Split, apply
from meshwright.ir.errors import (
    ActionMismatch,
    MissingGradient,
    NameRedefined,
    NameUnknown,
    NoReshard,
    OperatorUncovered,
    WrongPlacement,
    WrongRing,
    WrongStep,
    WrongTransfer,
)
from meshwright.ir.graph import Graph, Type
from meshwright.ir.placement import Placement
from meshwright.ir.program import (
    Add,
    BodyProgram,
    Compute,
    Gradient,
    Move,
    Program,
    Ring,
    Statement,
    Zero,
    operands_of,
    results_of,
)
from meshwright.ir.reshard import after
from meshwright.ir.rules.base import infer


def verify_program(program: Program) -> None:
    """Check all bodies and what strings them together."""
    for body in program.bodies:
        verify_body(body)
    _verify_transfers(program)
    _verify_actions(program)


def verify_body(body: BodyProgram) -> None:
    """Check one body program (see the module docstring)."""
    outside = {*body.inputs, *(slot.stored for slot in body.params)}
    forward = _verify_list(body, body.forward, outside)
    again = {name for statement in body.backward for name in results_of(statement)} & forward
    arriving = {name for name in body.output_grads if name}
    backward = _verify_list(body, body.backward, (outside | forward | arriving) - again)
    for name in body.outputs:
        _known(body, name, outside | forward, "an output")
    for name in filter(None, body.input_grads):
        _known(body, name, backward | arriving, "an input's gradient")
    _verify_params(body, backward | arriving)


def verify_coverage(body: BodyProgram, graph: Graph) -> None:
    """Must: every operator of the graph runs, once; one that was rewritten runs as its expansion (`name.…`)."""
    ran = Counter(s.op for s in body.forward if isinstance(s, (Compute, Ring)))
    for op in graph.ops:
        expanded = any(name.startswith(f"{op.name}.") for name in ran)
        if ran[op.name] != 1 and not (expanded and ran[op.name] <= 1):
            raise OperatorUncovered(
                place=f"{body.name}, %{op.name}", cause=f"it runs {ran[op.name]} times", fix="run every operator once"
            )


def _verify_list(body: BodyProgram, statements: Sequence[Statement], known: set[str]) -> set[str]:
    """Check a list of statements in order; returns the names it defines."""
    defined: set[str] = set()
    for statement in statements:
        for name in operands_of(statement):
            _known(body, name, known | defined, str(statement))
        for name in results_of(statement):
            if name in defined:
                raise NameRedefined(place=f"{body.name}: {statement}", cause=f"%{name} again", fix="name it once")
            if name not in body.locals:
                raise NameUnknown(place=f"{body.name}: {statement}", cause=f"%{name} has no type", fix="declare it")
            defined.add(name)
        _verify_statement(body, statement)
    return defined


def _known(body: BodyProgram, name: str, known: set[str], place: str) -> None:
    if name not in known or name not in body.locals:
        raise NameUnknown(place=f"{body.name}: {place}", cause=f"%{name} is not there", fix="define it first")


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
            for name in statement.operands:
                _lies(
                    body, name, body.locals[statement.result].type, body.locals[statement.result].placement, statement
                )
        case Zero():
            pass


def _lies(body: BodyProgram, name: str, type_: Type, placement: Placement, statement: object) -> None:
    local = body.locals[name]
    if local.type != type_ or local.placement != placement:
        raise WrongPlacement(
            place=f"{body.name}: {statement}",
            cause=f"%{name} is {local.type} {local.placement}, not {type_} {placement}",
            fix="reshard it first",
        )


def _verify_compute(body: BodyProgram, statement: Compute | Gradient | Ring, results: Sequence[str]) -> Applied:
    signature = statement.signature
    rule = infer(signature)
    applied = apply(rule, signature.operands, statement.strategy, body.mesh)
    for name, state, type_ in zip(statement.operands, applied.operands, signature.operands, strict=True):
        _lies(body, name, type_, state.value, statement)
    for name, state, type_ in zip(results, applied.results, rule.types, strict=True):
        _lies(body, name, type_, state.value, statement)
    return applied


def _verify_gradient(body: BodyProgram, statement: Gradient | Ring) -> None:
    applied = _verify_compute(body, statement, statement.outputs)
    types = infer(statement.signature).types
    for grad, state, type_ in zip(statement.grads, applied.results, types, strict=True):
        if grad is not None:
            _lies(body, grad, type_, state.grad, statement)
    for slot, name in zip(statement.wanted, statement.results, strict=True):
        _lies(body, name, statement.signature.operands[slot], applied.operands[slot].grad, statement)


def _verify_ring(body: BodyProgram, statement: Ring) -> None:
    choice = statement.strategy.of(statement.axis)
    if not (isinstance(choice, Split) and len(choice.factors) == 2):
        raise WrongRing(
            place=f"{body.name}: {statement}", cause=f"{statement.axis} does {choice}", fix="split a coupled pair on it"
        )
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
    if reached != target.placement or source.type != target.type:
        raise WrongStep(
            place=f"{body.name}: {statement}",
            cause=f"it leads to {reached}, the result says {target.placement}",
            fix="replan the reshard",
        )


def _verify_params(body: BodyProgram, backward: set[str]) -> None:
    sync = _verify_list(body, body.sync, backward)
    updated = {slot.updated for slot in body.params if slot.updated}
    publish = _verify_list(body, body.publish, updated)
    for slot in body.params:
        if slot.grad is None:
            continue
        type_ = body.locals[slot.stored].type
        for name, there, placement in (
            (slot.grad, backward, None),
            (slot.synced, sync | backward, slot.optimizer),
            (slot.updated, updated, slot.optimizer),
            (slot.published, publish | updated, body.locals[slot.stored].placement),
        ):
            if name is None or name not in there:
                raise MissingGradient(
                    place=f"{body.name}, {slot.path}",
                    cause=f"%{name} is not made",
                    fix="carry its gradient to the optimizer",
                )
            if placement is not None:
                _lies(body, name, type_, placement, slot.path)


def _verify_transfers(program: Program) -> None:
    makers = {number: program.body(name) for stage in program.stages for number, name in stage.calls()}
    for hop in program.transfers:
        place = f"transfer of call {hop.call} output {hop.output}, stage {hop.from_stage} -> {hop.to_stage}"
        body = makers.get(hop.call)
        if body is None or hop.output >= len(body.outputs) or hop.to_stage != hop.from_stage + 1:
            raise WrongTransfer(
                place=place, cause="there is no such value or hop", fix="relay an output stage by stage"
            )
        if body.locals[body.outputs[hop.output]].type != hop.type:
            raise WrongTransfer(place=place, cause=f"it is not {hop.type}", fix="carry the output's own type")
        for stage, placement in ((hop.from_stage, hop.source), (hop.to_stage, hop.target)):
            placement.check(hop.type.shape, program.stages[stage].mesh, place)
            if placement.partial:
                raise WrongTransfer(place=place, cause=f"{placement} is partial", fix="reduce it before it crosses")


def _verify_actions(program: Program) -> None:
    """Must: each stage's work on each micro-batch exactly once, and as many receives as sends for every crossing."""
    counts: Counter[tuple[str, int, int, int]] = Counter()
    for ranks, actions in program.actions:
        held = {index for index, stage in enumerate(program.stages) if stage.ranks == ranks}
        for action in actions:
            if action.stage >= 0 and action.stage not in held:
                raise ActionMismatch(
                    place=f"ranks {ranks}", cause=f"{action} is not theirs", fix="move it to its stage"
                )
            counts[action.kind, action.stage, action.microbatch, action.peer] += 1
    for stage in range(len(program.stages)):
        for mb in range(program.microbatches):
            done = tuple(counts[kind, stage, mb, -1] for kind in "FBIW")
            if done not in ((1, 1, 0, 0), (1, 0, 1, 1)):
                raise ActionMismatch(
                    place=f"stage {stage}, micro-batch {mb}", cause=f"F, B, I, W run {done} times", fix="run each once"
                )
    for (kind, stage, mb, peer), number in counts.items():
        if kind.startswith(("send", "recv")):
            other = ("recv" if kind.startswith("send") else "send") + kind[4:]
            if counts[other, peer, mb, stage] != number:
                raise ActionMismatch(
                    place=f"stage {stage}, micro-batch {mb}", cause=f"{kind} with {peer} has no partner", fix="add it"
                )
