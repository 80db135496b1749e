"""Verification that a Program computes its model, against the fold, without trusting the lowering.

`programs` asks whether a program keeps its own promises; here it is compared with what it should compute. Must:

- the stages run every call of the fold once, in order, each by a body program for its body, on the stage's mesh;
- a body program runs every operator of its graph once and no other; each reads the values that the graph says, however
  they lie, with the same signature; an operator may run as its expansion, whose values are called `op.value`;
- every operator that a gradient reaches is differentiated for every operand that wants one, and nothing else is;
  trained parameters, and inputs that ask for it, get a gradient;
- what the kernels named read in the backward pass is counted as kept, once per storage, or can be made again cheaply;
- a value leaves one call as the next expects it, its gradient comes back as it left, and what a later stage reads is
  carried there stage by stage; what leaves the model is no partial sum;
- gradients of a parameter that several calls hold are added over all of them; what one borrows another lends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from meshwright.ir.analysis.saved import Need, made_again
from meshwright.ir.errors import (
    BoundaryMismatch,
    CallsRepeated,
    CallsUncovered,
    MissingGradient,
    OperatorUncovered,
    TransferMissing,
    WrongDerivative,
    WrongKept,
    WrongOperand,
    WrongPlacement,
    WrongRun,
    WrongTransfer,
    WrongUpdate,
)
from meshwright.ir.graph.fold import Call, Fold, Source
from meshwright.ir.graph.graph import Graph, Op, Type
from meshwright.ir.program.crossing import Transfer
from meshwright.ir.program.kept import COPY, Copies, is_derivative, local_bytes, needs_of, owners, step_of
from meshwright.ir.program.lower import Port, port_of, sources_of
from meshwright.ir.program.program import (
    BodyProgram,
    Compute,
    Entry,
    Gradient,
    Program,
    Ring,
    operands_of,
    results_of,
)
from meshwright.ir.rules.base import Law
from meshwright.ir.rules.registry import expand, infer, signature_of
from meshwright.ir.sharding.adjoint import apply
from meshwright.ir.sharding.placement import Placement
from meshwright.ir.verify.gradients import origins
from meshwright.ir.verify.tied import verify_ties


def verify_meaning(program: Program, fold: Fold) -> None:
    """Check a program against the model that it was lowered from (see the module docstring)."""
    calls = tuple(fold.calls())
    _verify_runs(program, calls)
    for body in program.bodies:
        verify_body_meaning(body, fold.body[body.body].graph)
    boundaries = _Boundaries(program, calls)
    boundaries.verify()
    boundaries.verify_outputs(fold.outputs)
    verify_ties(program, calls)


# Bodies --------------------------------------------------------------------------------------------------------------


def verify_body_meaning(body: BodyProgram, graph: Graph) -> None:
    """Check one body program against its graph."""
    graph = rewritten(graph, body)
    _verify_ports(body, graph)
    _verify_operators(body, graph)
    _verify_differentiation(body, graph)
    _verify_updates(body, graph)
    _verify_kept(body, graph)


def rewritten(graph: Graph, body: BodyProgram) -> Graph:
    """The graph with those operators expanded that the body program runs expanded."""
    ran = [s.op for s in body.forward if isinstance(s, (Compute, Ring))]
    ops: list[Op] = []
    types = dict(graph.types)
    for op in graph.ops:
        if any(name.startswith(f"{op.name}.") for name in ran):
            ops += _expanded(op, types)
        else:
            ops.append(op)
    return Graph(types, graph.inputs, graph.params, tuple(ops), graph.outputs, graph.updates, graph.loss)


def _expanded(op: Op, types: dict[str, Type]) -> list[Op]:
    inner = expand(signature_of(op, types)).graph
    names = {str(index): value for index, value in enumerate(op.operands)}
    names |= dict(zip(inner.outputs, op.results, strict=True))
    names |= {value: f"{op.name}.{value}" for one in inner.ops for value in one.results if value not in names}
    types |= {names[value]: inner.types[value] for one in inner.ops for value in one.results}
    return [
        replace(
            one,
            operands=tuple(names[value] for value in one.operands),
            results=tuple(names[value] for value in one.results),
            no_grad=one.no_grad or op.no_grad,
        )
        for one in inner.ops
    ]


def _verify_ports(body: BodyProgram, graph: Graph) -> None:
    origin = origins(body)
    for what, found, expected in (
        ("inputs", body.inputs, tuple(item.value for item in graph.inputs)),
        ("outputs", tuple(origin.get(name, name) for name in body.outputs), graph.outputs),
        ("parameters", tuple(slot.path for slot in body.params), tuple(param.path for param in graph.params)),
        ("parameter values", tuple(slot.value for slot in body.params), tuple(param.value for param in graph.params)),
    ):
        if found != expected:
            raise WrongOperand(
                place=f"{body.name}, {what}", cause=f"{', '.join(found)}", fix=f"give {', '.join(expected)}"
            )


def _verify_operators(body: BodyProgram, graph: Graph) -> None:
    statements = [s for s in body.forward if isinstance(s, (Compute, Ring))]
    ran = Counter(s.op for s in statements)
    ops = {op.name: op for op in graph.ops}
    for name in ops:
        if ran[name] != 1:
            raise OperatorUncovered(
                place=f"{body.name}, %{name}", cause=f"it runs {ran[name]} times", fix="run every operator once"
            )
    origin = origins(body)
    for statement in statements:
        op = ops.get(statement.op)
        read = tuple(origin.get(name, name) for name in statement.operands)
        facts = (statement.signature, read, statement.results)
        if op is None or facts != (signature_of(op, graph.types), op.operands, op.results):
            raise WrongOperand(
                place=f"{body.name}: {statement}",
                cause=f"it reads {', '.join(f'%{name}' for name in read)}, unlike its operator",
                fix=f"compute {op.kind}({', '.join(f'%{v}' for v in op.operands)})" if op else "remove it",
            )


def _verify_differentiation(body: BodyProgram, graph: Graph) -> None:
    """Check the gradients of a graph backwards from the outputs: a gradient that arrives must be passed on."""
    for output, grad in zip(graph.outputs, body.output_grads, strict=True):
        _has_gradient(body, f"output %{output}", grad is not None, output in graph.differentiable)
    reached = {output for output in graph.outputs if output in graph.differentiable}
    wanted: dict[str, set[int]] = {}
    for op in reversed(graph.ops):
        laws = infer(signature_of(op, graph.types)).laws
        slots = {
            slot
            for slot, value in enumerate(op.operands)
            if value in graph.differentiable and laws[slot] is not Law.INDEX
        }
        if slots and not op.no_grad and reached & set(op.results):
            wanted[op.name] = slots
            reached |= {op.operands[slot] for slot in slots}
    given: dict[str, set[int]] = {}
    for statement in body.backward:
        if isinstance(statement, Gradient) or (isinstance(statement, Ring) and statement.backward):
            given.setdefault(statement.op, set()).update(statement.wanted)
    for name in dict.fromkeys((*wanted, *given)):
        must, does = wanted.get(name, set()), given.get(name, set())
        missing, extra = must - does, does - must
        if extra:
            raise WrongDerivative(
                place=f"{body.name}, %{name}",
                cause=f"no gradient flows to its operands {sorted(extra)}",
                fix="differentiate what is trained through",
            )
        _has_gradient(body, f"%{name}, operands {sorted(missing)}", not missing, wanted=True)
    for item, grad in zip(graph.inputs, body.input_grads, strict=True):
        _has_gradient(body, f"input %{item.value}", grad is not None, item.value in graph.differentiable)
    for param, slot in zip(graph.params, body.params, strict=True):
        trained = param.requires_grad and not param.buffer
        _has_gradient(body, f"parameter {param.path}", slot.grad is not None, trained)


def _has_gradient(body: BodyProgram, place: str, given: bool, wanted: bool) -> None:
    if wanted and not given:
        raise MissingGradient(place=f"{body.name}, {place}", cause="it has no gradient", fix="differentiate for it")
    if given and not wanted:
        raise WrongDerivative(place=f"{body.name}, {place}", cause="it has a gradient", fix="leave the gradient out")


def _verify_updates(body: BodyProgram, graph: Graph) -> None:
    origin = origins(body)
    found = [(update.buffer, origin.get(update.value, update.value), update.reduction) for update in body.updates]
    expected = [(update.buffer, update.value, update.reduction) for update in graph.updates]
    if found != expected:
        raise WrongUpdate(
            place=f"{body.name}, updates", cause=f"{found}", fix=f"update {', '.join(map(str, expected)) or 'nothing'}"
        )


def _verify_kept(body: BodyProgram, graph: Graph) -> None:
    """Check saved tensors: every storage once and at its size, and everything that the body's kernels read of the
    forward pass available in the backward pass: saved, in place, computed there, or made from such by operators that
    the style runs again."""

    def wrong(name: str, cause: str, fix: str) -> WrongKept:
        return WrongKept(place=f"{body.name}, kept %{name}", cause=cause, fix=fix)

    copies = Copies.of(body.forward, body.backward, (slot.value for slot in body.params), body.kernels)
    extra = dict(_extra(body, copies))
    names = [kept.name for kept in body.kept]
    for kept in body.kept:
        if names.count(kept.name) > 1:
            raise wrong(kept.name, "it is counted twice", "count every storage once")
        if kept.name not in body.locals and kept.name not in extra:
            raise wrong(kept.name, "nothing reads it", "leave it out")
        size = local_bytes(body.locals[kept.name], body.mesh) if kept.name in body.locals else extra[kept.name]
        if kept.nbytes != size:
            raise wrong(kept.name, f"{kept.nbytes} bytes", f"count {size}")
    had = _had(body, graph, frozenset(names))
    for name in (*_read(body, copies), *extra):
        if name not in had:
            raise wrong(name, "it is not counted", "count what the backward pass reads")


def _had(body: BodyProgram, graph: Graph, kept: frozenset[str]) -> frozenset[str]:
    """Values of the forward pass that are available to the backward pass."""
    owner = owners(body.forward, {op.name: op.alias for op in graph.ops})
    there = kept | {slot.stored for slot in body.params}
    own = {name for statement in body.backward for name in results_of(statement)} | set(body.arriving)
    had = there | own | {name for name, storage in owner.items() if storage in there}
    steps = tuple(map(step_of, body.forward))
    again = made_again(steps, body.outputs, body.kernels)
    for step in steps:
        if had.issuperset(step.operands):
            had |= again.intersection(step.results)
    return frozenset(had)


def _read(body: BodyProgram, copies: Copies) -> Iterator[str]:
    """The forward names that the backward pass reads."""
    for statement in body.backward:
        if is_derivative(statement):
            needs = _needs(body, statement)
            yield from (n.value for n in needs if n.extra_bytes is None and not copies.reads(statement, n))
        elif not copies.gathers(statement):
            yield from operands_of(statement)


def _extra(body: BodyProgram, copies: Copies) -> Iterator[tuple[str, int]]:
    """Extra tensors that operators save, where they do not run again, and copies that products keep of values that are
    not made again; with their bytes."""
    own = {name for statement in body.backward if not is_derivative(statement) for name in results_of(statement)}
    copied: list[str] = []
    for statement in body.backward:
        if copies.gathers(statement):
            copied += operands_of(statement)
        if not is_derivative(statement) or statement.outputs[0] in own:
            continue
        for need in _needs(body, statement):
            if need.extra_bytes is not None:
                yield need.value, need.extra_bytes
            elif copies.reads(statement, need):
                copied.append(need.value)
    yield from ((name + COPY, copies.nbytes(body.locals[name], body.mesh)) for name in copied if name not in own)


def _needs(body: BodyProgram, statement: Gradient | Ring) -> Iterator[Need]:
    rule = infer(statement.signature)
    applied = apply(rule, statement.signature.operands, statement.strategy, body.mesh)
    return needs_of(statement, dict(applied.sizes), body.kernels)


# What strings them together ------------------------------------------------------------------------------------------


def _verify_runs(program: Program, calls: Sequence[Call]) -> None:
    expected = 0
    for index, stage in enumerate(program.stages):
        for number, name in stage.calls():
            place = f"stage {index}, call {number}"
            if number > expected or number >= len(calls):
                raise CallsUncovered(place=place, cause=f"call {expected} comes next", fix="run every call in order")
            if number < expected:
                raise CallsRepeated(place=place, cause=f"call {expected} comes next", fix="run every call once")
            body = next((body for body in program.bodies if body.name == name), None)
            if body is None or body.body != calls[number].body.name or body.mesh != stage.mesh:
                raise WrongRun(
                    place=place,
                    cause=f"{name!r} runs, on ({stage.mesh})",
                    fix=f"run a body program for {calls[number].body.name!r} on that mesh",
                )
            expected += 1
    if expected != len(calls):
        raise CallsUncovered(place="stages", cause=f"{expected} of {len(calls)} calls run", fix="run every call")


class _Boundaries:
    """The reads of every call, by where they come from."""

    def __init__(self, program: Program, calls: Sequence[Call]) -> None:
        self.program = program
        self.calls = calls
        self.bodies: dict[int, BodyProgram] = {}
        self.stage_of: dict[int, int] = {}
        for index, stage in enumerate(program.stages):
            for number, name in stage.calls():
                self.bodies[number], self.stage_of[number] = program.body(name), index
        self.hops: Mapping[tuple[Port, int], Transfer] = {
            (Port(hop.call, hop.output), hop.from_stage): hop for hop in program.transfers
        }
        self.used: set[tuple[Port, int]] = set()

    def verify(self) -> None:
        entries: dict[str, Entry] = {}
        for number, sources in enumerate(sources_of(self.calls)):
            for slot, port in enumerate(sources):
                if isinstance(port, Port):
                    self.verify_read(number, slot, port)
                elif port not in entries:
                    body = self.bodies[number]
                    local = body.locals[body.inputs[slot]]
                    entries[port] = Entry(port, local.type, local.placement, body.mesh)
        for one in self.program.entries:
            self.same(f"input {one.name}", f"it is {one}", entries.get(one.name) == one, f"{entries.get(one.name)}")
        for (port, stage), hop in self.hops.items():
            if (port, stage) not in self.used:
                raise WrongTransfer(
                    place=f"transfer of call {port.call} output {port.output}, stage {stage} -> {hop.to_stage}",
                    cause="nobody reads it",
                    fix="leave it out",
                )

    def verify_outputs(self, outputs: Sequence[Source]) -> None:
        last_of = {(call.segment, call.position): number for number, call in enumerate(self.calls)}
        for index, source in enumerate(outputs):
            port = port_of(source, len(self.calls), last_of)
            if isinstance(port, Port):
                body = self.bodies[port.call]
                lies = body.locals[body.outputs[port.output]].placement
                if lies.partial:
                    raise WrongPlacement(
                        place=f"model output {index}", cause=f"it leaves as {lies}", fix="reduce it in its body"
                    )

    def verify_read(self, number: int, slot: int, port: Port) -> None:
        maker, reader = self.bodies[port.call], self.bodies[number]
        place = f"call {port.call} ({maker.name}) -> call {number} ({reader.name})"
        left = lies = maker.locals[maker.outputs[port.output]].placement
        hops: list[Transfer] = []
        for stage in range(self.stage_of[port.call], self.stage_of[number]):
            hops.append(self.hop(place, port, stage, lies))
            lies = hops[-1].target
        arrives = reader.locals[reader.inputs[slot]].placement
        self.same(place, f"the value is {lies}", lies == arrives, f"{arrives}")
        grad, back = reader.input_grads[slot], maker.output_grads[port.output]
        if grad is None or back is None:
            return
        given = reader.locals[grad].placement
        expected = maker.locals[back].placement
        if hops:
            wanted = hops[-1].gradient(arrives), hops[0].gradient(left)
            travels = (given, expected) == wanted and len({hop.waiting for hop in hops}) == 1
            self.same(place, f"its gradient is {given} -> {expected}", travels, "that of the value")
            return
        self.same(place, f"its gradient is {given}", given == expected, f"{expected}")

    def hop(self, place: str, port: Port, stage: int, lies: Placement) -> Transfer:
        hop = self.hops.get((port, stage))
        if hop is None:
            raise TransferMissing(place=place, cause=f"it is not carried on from stage {stage}", fix="add a transfer")
        self.used.add((port, stage))
        self.same(f"{place}, stage {stage}", f"it leaves as {lies}", hop.source == lies, f"{hop.source}")
        graph = self.calls[port.call].body.graph
        if hop.differentiable != (graph.outputs[port.output] in graph.differentiable):
            raise MissingGradient(
                place=f"{place}, stage {stage}",
                cause=f"the transfer is marked {'with' if hop.differentiable else 'without'} gradient",
                fix="carry gradients back exactly where they flow",
            )
        return hop

    def same(self, place: str, cause: str, holds: bool, wanted: str) -> None:
        if not holds:
            raise BoundaryMismatch(place=place, cause=cause, fix=f"make it {wanted}")
