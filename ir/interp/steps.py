"""The reference interpreter for whole training steps over stages and micro-batches.

Groups of ranks work through their action lists; an action that waits for a value which is not there yet is tried again
when others have moved on, and a circle of waiting is an error. Parameters are cut to where they are stored, gradients
accumulate over micro-batches and are brought to the optimizer's shards by the program's own statements, so ZeRO's
claims are executed too. What a call lends (`meshwright.ir.program.units`) others read where it is, and their gradients
go back there before its own backward pass. I and W run the halves of the backward pass apart
(`meshwright.ir.program.split_backward`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from meshwright.ir.errors import WaitCircle
from meshwright.ir.graph.fold import Call, Fold, joined
from meshwright.ir.interp.bodies import BodyRun, Environment, Kernels, Shards, Tensor, collect, shard
from meshwright.ir.program.crossing import Transfer
from meshwright.ir.program.lower import Port, port_of, sources_of
from meshwright.ir.program.program import Action, BodyProgram, ParamSlot, Program, Statement
from meshwright.ir.program.split_backward import halves


@dataclass(frozen=True, slots=True)
class StepResult:
    """The results of a step, reassembled: the model's outputs per micro-batch, gradients, new parameters and
    buffers."""

    outputs: tuple[tuple[Tensor, ...], ...]
    gradients: Mapping[str, Tensor]
    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]


def run_step(
    program: Program,
    fold: Fold,
    parameters: Mapping[str, Tensor],
    batches: Sequence[Mapping[str, Tensor]],
    kernels: Kernels,
    *,
    seeds: Sequence[Mapping[int, Tensor]],
    update: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> StepResult:
    """Execute one training step.

    `parameters` holds whole tensors by path (buffers too), `batches` the model inputs of every micro-batch, `seeds`
    for every micro-batch the gradients of the model's outputs by index (the loss's weight), `update` the optimizer on
    any shard of (parameter, gradient).
    """
    return _Step(program, fold, parameters, batches, kernels, seeds, update).run()


@dataclass(slots=True)
class _Step:
    program: Program
    fold: Fold
    parameters: Mapping[str, Tensor]
    batches: Sequence[Mapping[str, Tensor]]
    kernels: Kernels
    seeds: Sequence[Mapping[int, Tensor]]
    update: Callable[[Tensor, Tensor], Tensor] | None
    calls: tuple[Call, ...] = field(init=False)
    sources: tuple[tuple[Port | str, ...], ...] = field(init=False)
    body_of: dict[int, BodyProgram] = field(init=False)
    stage_of: dict[int, int] = field(init=False)
    finals: dict[Port, list[int]] = field(init=False)
    stored: dict[int, Environment] = field(default_factory=dict)
    runs: dict[tuple[int, int], BodyRun] = field(default_factory=dict)
    values: dict[tuple[int, int, Port], Shards] = field(default_factory=dict)
    grads: dict[tuple[int, int, Port], Shards] = field(default_factory=dict)
    param_grads: dict[tuple[int, str], Shards] = field(default_factory=dict)
    lenders: dict[tuple[int, str], tuple[int, str]] = field(default_factory=dict)
    """For what a call borrows, by path, who lends it: the call, and its name there."""
    lent_grads: dict[tuple[int, int, str], Shards] = field(default_factory=dict)
    """What came back of it: gradients by call, micro-batch and name."""
    outputs: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    mail: dict[tuple[str, int, int, Port], Shards | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.calls = tuple(self.fold.calls())
        self.sources = sources_of(self.calls)
        self.body_of, self.stage_of, self.finals = {}, {}, {}
        for index, stage in enumerate(self.program.stages):
            for number, name in stage.calls():
                self.body_of[number], self.stage_of[number] = self.program.body(name), index
        last = {(call.segment, call.position): number for number, call in enumerate(self.calls)}
        for index, source in enumerate(self.fold.outputs):
            port = port_of(source, len(self.calls), last)
            if isinstance(port, Port):
                self.finals.setdefault(port, []).append(index)
        lent: dict[tuple[int, str, str], tuple[int, str]] = {}
        for number, body in self.body_of.items():
            own = [slot for slot in body.params if slot.borrowed is None]
            self.stored[number] = {slot.stored: self.load(number, slot, body) for slot in own}
            for slot in body.params:
                at = self.stage_of[number], self.path(number, slot)
                if slot.borrowed is not None:
                    self.lenders[number, slot.path] = lent[(*at, slot.borrowed)]
                if slot.lent is not None:
                    lent[(*at, body.body)] = number, slot.value

    def path(self, number: int, slot: ParamSlot) -> str:
        return joined(self.calls[number].path, slot.path)

    def load(self, number: int, slot: ParamSlot, body: BodyProgram) -> Shards:
        local = body.locals[slot.stored]
        path = self.path(number, slot)
        now = self.buffers[path] if path in self.buffers else self.parameters[path]
        return shard(self.kernels, now, local.type, local.placement, body.mesh)

    def run(self) -> StepResult:
        at = [0] * len(self.program.actions)
        progress = True
        while progress:
            progress = False
            for group, (_, actions) in enumerate(self.program.actions):
                while at[group] < len(actions) and self.attempt(actions[at[group]]):
                    at[group] += 1
                    progress = True
        for group, (ranks, actions) in enumerate(self.program.actions):
            if at[group] < len(actions):
                raise WaitCircle(
                    place=f"ranks {ranks}", cause=f"{actions[at[group]]} waits for ever", fix="this is a wrong program"
                )
        return self.finish()

    def attempt(self, action: Action) -> bool:
        """Carry out an action if its inputs are there."""
        stage, mb = action.stage, action.microbatch
        match action.kind:
            case "F":
                self.forward(stage, mb)
                self.hand_on(stage, mb)
            case "B":
                self.backward(stage, mb, "B")
                self.hand_back(stage, mb)
                self.weight_gradients(stage, mb, "B")
            case "I":
                self.backward(stage, mb, "I")
                self.hand_back(stage, mb)
            case "W":
                self.weight_gradients(stage, mb, "W")
            case "send_F":
                for port in self.crossing(stage, action.peer):
                    self.mail["F", action.peer, mb, port] = self.across(
                        port, self.values[stage, mb, port], stage, action.peer
                    )
            case "recv_F":
                return self.receive("F", action, self.crossing(action.peer, stage), self.values)
            case "send_B":
                for port in self.crossing(action.peer, stage, gradients=True):
                    held = self.grads.get((stage, mb, port))
                    self.mail["B", action.peer, mb, port] = (
                        None if held is None else self.back(port, held, stage, action.peer)
                    )
            case "recv_B":
                return self.receive("B", action, self.crossing(stage, action.peer, gradients=True), self.grads)
        return True

    def crossing(self, from_stage: int, to_stage: int, *, gradients: bool = False) -> list[Port]:
        return [
            Port(hop.call, hop.output)
            for hop in self.program.transfers
            if (hop.from_stage, hop.to_stage) == (from_stage, to_stage) and (hop.differentiable or not gradients)
        ]

    def receive(
        self, kind: str, action: Action, ports: Sequence[Port], into: dict[tuple[int, int, Port], Shards]
    ) -> bool:
        stage, mb = action.stage, action.microbatch
        if any((kind, stage, mb, port) not in self.mail for port in ports):
            return False
        for port in ports:
            arrived = self.mail.pop((kind, stage, mb, port))
            if arrived is not None:
                self.accumulate(into, (stage, mb, port), arrived)
        return True

    def hand_on(self, stage: int, mb: int) -> None:
        """Pass values to the next stage, where the same ranks hold it, and no send does."""
        if self.alike(stage, stage + 1):
            for port in self.crossing(stage, stage + 1):
                self.values[stage + 1, mb, port] = self.across(port, self.values[stage, mb, port], stage, stage + 1)

    def hand_back(self, stage: int, mb: int) -> None:
        """Pass gradients to the stage before, where the same ranks hold it, and no send does."""
        if self.alike(stage - 1, stage):
            for port in self.crossing(stage - 1, stage, gradients=True):
                if (stage, mb, port) in self.grads:
                    given = self.back(port, self.grads[stage, mb, port], stage, stage - 1)
                    self.accumulate(self.grads, (stage - 1, mb, port), given)

    def alike(self, stage: int, later: int) -> bool:
        """Whether both stages exist and have the same ranks."""
        stages = self.program.stages
        return stage >= 0 and later < len(stages) and stages[stage].ranks == stages[later].ranks

    def across(self, port: Port, shards: Shards, from_stage: int, to_stage: int) -> Shards:
        hop = self.hop(port, from_stage, to_stage)
        one, other = self.program.stages[from_stage].mesh, self.program.stages[to_stage].mesh
        whole = collect(self.kernels, shards, hop.source, one, f"transfer of {port}")
        return shard(self.kernels, whole, hop.type, hop.target, other)

    def back(self, port: Port, shards: Shards, from_stage: int, to_stage: int) -> Shards:
        hop = self.hop(port, to_stage, from_stage)
        one, other = self.program.stages[from_stage].mesh, self.program.stages[to_stage].mesh
        whole = collect(self.kernels, shards, hop.gradient(hop.target), one, f"gradient of {port}")
        return shard(self.kernels, whole, hop.type, hop.gradient(hop.source), other)

    def hop(self, port: Port, from_stage: int, to_stage: int) -> Transfer:
        return next(
            hop
            for hop in self.program.transfers
            if (hop.call, hop.output, hop.from_stage, hop.to_stage) == (port.call, port.output, from_stage, to_stage)
        )

    def forward(self, stage: int, mb: int) -> None:
        for number, _ in self.program.stages[stage].calls():
            body = self.body_of[number]
            env: Environment = dict(self.stored[number])
            for name, source in zip(body.inputs, self.sources[number], strict=True):
                env[name] = self.input(source, body, name, stage, mb)
            for slot in (slot for slot in body.params if slot.borrowed is not None):
                lender, value = self.lenders[number, slot.path]
                env[slot.value] = self.runs[lender, mb].read(value)
            run = self.runs[number, mb] = BodyRun(body, self.kernels, env)
            run.execute(body.forward)
            for index, name in enumerate(body.outputs):
                self.values[stage, mb, Port(number, index)] = env[name]
                for output in self.finals.get(Port(number, index), ()):
                    local = body.locals[name]
                    self.outputs[mb, output] = collect(self.kernels, env[name], local.placement, body.mesh, f"%{name}")
            for update in body.updates:
                place = body.locals[update.value].placement
                path = joined(self.calls[number].path, update.buffer)
                self.buffers[path] = collect(self.kernels, env[update.value], place, body.mesh, path)
            updated = {update.buffer for update in body.updates}
            self.stored[number] |= {
                slot.stored: self.load(number, slot, body) for slot in body.params if slot.path in updated
            }
            run.forget()

    def input(self, source: Port | str, body: BodyProgram, name: str, stage: int, mb: int) -> Shards:
        if isinstance(source, Port):
            return self.values[stage, mb, source]
        local = body.locals[name]
        return shard(self.kernels, self.batches[mb][source], local.type, local.placement, body.mesh)

    def backward(self, stage: int, mb: int, half: str) -> None:
        """The whole backward pass of a stage (B), or the half that leaves gradients of inputs (I)."""
        for number, _ in reversed(list(self.program.stages[stage].calls())):
            body, run = self.body_of[number], self.runs[number, mb]
            for index, name in enumerate(body.output_grads):
                if name is not None:
                    run.env[name] = self.output_grad(run, Port(number, index), name, stage, mb)
            self.execute(number, mb, body.backward if half == "B" else halves(body)[0], half)
            for source, grad in zip(self.sources[number], body.input_grads, strict=True):
                if grad is not None and isinstance(source, Port):
                    self.accumulate(self.grads, (stage, mb, source), run.env[grad])

    def execute(self, number: int, mb: int, statements: Sequence[Statement], half: str) -> None:
        """Run a list of a call's backward pass, and, unless it leaves gradients of inputs alone, return gradients to
        where parameters were lent."""
        run, slots = self.runs[number, mb], self.body_of[number].params if half != "I" else ()
        run.env |= {s.lent: self.lent_grads.pop((number, mb, s.value)) for s in slots if s.lent is not None}
        run.execute(statements)
        for slot in slots:
            if slot.borrowed is not None and slot.grad is not None:
                lender, value = self.lenders[number, slot.path]
                self.accumulate(self.lent_grads, (lender, mb, value), run.read(slot.grad))

    def weight_gradients(self, stage: int, mb: int, half: str) -> None:
        """Add up the gradients of a stage's parameters: those of a whole backward pass, or those of its second half
        (W)."""
        for number, _ in reversed(list(self.program.stages[stage].calls())):
            body, run = self.body_of[number], self.runs[number, mb]
            if half == "W":
                self.execute(number, mb, halves(body)[1], half)
            del self.runs[number, mb]
            for slot in body.params:
                if slot.grad is not None and slot.borrowed is None:
                    self.accumulate(self.param_grads, (number, slot.value), run.env[slot.grad])

    def output_grad(self, run: BodyRun, port: Port, name: str, stage: int, mb: int) -> Shards:
        """The gradient of an output: from its readers, from the next stage, and from the seed of the loss."""
        terms = [self.grads[stage, mb, port]] if (stage, mb, port) in self.grads else []
        local = run.program.locals[name]
        for output in self.finals.get(port, ()):
            if output in self.seeds[mb]:
                seed = self.seeds[mb][output]
                terms.append(shard(self.kernels, seed, local.type, local.placement, run.program.mesh))
        if not terms:
            return run.zeros(name)
        return [reduce(self.kernels.add, column) for column in zip(*terms, strict=True)]

    def accumulate(self, into: dict[Any, Shards], key: Any, shards: Shards) -> None:
        held = into.get(key)
        into[key] = shards if held is None else [self.kernels.add(a, b) for a, b in zip(held, shards, strict=True)]

    def finish(self) -> StepResult:
        """Run the end of a step: gradient reductions, ties, the optimizer, and the publication of new parameters."""
        gradients: dict[str, Tensor] = {}
        self.add_tied()
        for number, body in self.body_of.items():
            run = BodyRun(body, self.kernels, {})
            for slot in body.params:
                if slot.grad is not None and slot.synced is not None:
                    run.env[slot.grad] = self.param_grads[number, slot.value]
            run.execute(body.sync)
            for slot in body.params:
                if slot.synced is not None:
                    path = self.path(number, slot)
                    whole = collect(self.kernels, run.env[slot.synced], slot.optimizer, body.mesh, path)
                    gradients[path] = self.kernels.add(gradients[path], whole) if path in gradients else whole
        return StepResult(
            outputs=tuple(
                tuple(self.outputs[mb, index] for index in range(len(self.fold.outputs)))
                for mb in range(self.program.microbatches)
            ),
            gradients=gradients,
            parameters=self.updated(gradients),
            buffers=self.buffers,
        )

    def add_tied(self) -> None:
        """Add gradients that no call reduces itself to those of the first call on the same ranks."""
        first: dict[tuple[tuple[int, ...], str], tuple[int, str]] = {}
        for number, body in sorted(self.body_of.items()):
            ranks = self.program.stages[self.stage_of[number]].ranks
            for slot in (slot for slot in body.params if slot.grad is not None):
                owner = first.setdefault((ranks, self.path(number, slot)), (number, slot.value))
                if slot.synced is None and slot.borrowed is None:
                    self.accumulate(self.param_grads, owner, self.param_grads[number, slot.value])

    def updated(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run the optimizer on its shards, then move the result to where parameters are stored."""
        if self.update is None:
            return {}
        found: dict[str, Tensor] = {}
        for number, body in self.body_of.items():
            run = BodyRun(body, self.kernels, {})
            for slot in body.params:
                if slot.updated is None:
                    continue
                path, local = self.path(number, slot), body.locals[slot.stored]
                pair = [
                    shard(self.kernels, whole, local.type, slot.optimizer, body.mesh)
                    for whole in (self.parameters[path], gradients[path])
                ]
                run.env[slot.updated] = [self.update(p, g) for p, g in zip(*pair, strict=True)]
            run.execute(body.publish)
            for slot in body.params:
                if slot.published is not None:
                    path, local = self.path(number, slot), body.locals[slot.stored]
                    found[path] = collect(self.kernels, run.env[slot.published], local.placement, body.mesh, path)
        return found
