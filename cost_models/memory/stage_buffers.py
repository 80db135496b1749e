"""What torch's pipelines hold of what crosses the ends of their stages (torch.distributed.pipelining, `stage.py` and
`schedules.py`), in bytes of tensors. With M micro-batches:

    received    a stage has a buffer for each micro-batch that it receives, and for each gradient that comes back, all
                the time. What it keeps of its inputs lies there
    left        what a stage returned stays until all of its backward pass has run: what it sends on. The last one
                returns its loss
    sent        a message stays until somebody waits for it. 1F1B waits before it goes on; GPipe waits for gradients at
                the end of the step; all others, which one runtime carries out, wait for everything at the end

Where gradients of weights come apart, all that the forward pass kept but the loss stays until they are made, and the
gradients of the results of products besides (`_backward.py`: the pass that makes gradients of inputs retains the graph,
but for what lies behind the last product). The first stage has no gradients of inputs: it makes all of its gradients
then.

Stages of different meshes are run by what is written for them. It makes a tensor for what comes when it comes,
which is kept as an input is; what a stage returned stays until its backward pass, which waits for what it sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

from meshwright.cost_models.memory.body import BodyMemory
from meshwright.cost_models.memory.in_flight import State
from meshwright.ir.graph.graph import ITEMSIZE
from meshwright.ir.program.crossing import Transfer
from meshwright.ir.program.program import Program
from meshwright.ir.schedules.written import computing
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBuffer:
    """Messages of one stage, for one micro-batch, in bytes."""

    buffers: float = 0.0
    """What it receives, gradients too."""
    within: float = 0.0
    """What of that counts as kept, too."""
    running: float = 0.0
    """What of that counts as an input of the micro-batch that runs, too."""
    left: float = 0.0
    """What it made, and sent on."""
    sent: float = 0.0
    """Gradients that it sends back."""


@dataclass(frozen=True, slots=True)
class StageBuffers:
    """Messages of the stages of a group of ranks.

    - `waits` is what schedule waits for messages: "each", "gradients at the end", "at the end".
    """

    stages: tuple[StageBuffer, ...]
    microbatches: int
    waits: str

    @property
    def always(self) -> float:
        """Bytes that are there all the time, once everything was sent on."""
        left = sum(one.left for one in self.stages) if self.waits == "at the end" else 0.0
        return self.microbatches * (sum(one.buffers for one in self.stages) + left)

    @property
    def most(self) -> float:
        """The most bytes under any order of work."""
        return self.microbatches * sum(one.buffers + one.left + one.sent for one in self.stages)

    def beside(self, state: State, own: int) -> float:
        """Bytes of messages beside what stages keep, in a state; `own` is the place of the action's stage. Behind the
        last forward pass: until then as many micro-batches are in flight, and less was sent."""
        found = self.always
        for at, (one, live, waiting) in enumerate(zip(self.stages, state.live, state.waiting, strict=True)):
            held = live + waiting + (at == own)
            found -= (live + waiting) * one.within + (at == own) * one.running
            if self.waits != "at the end":
                found += (held - (at == own and state.kind == "F")) * one.left
            if self.waits != "each":
                found += max(0, self.microbatches - held) * one.sent
        return found


Runtime = Literal["none", "torch", "emitted"]


def runtime_of(program: Program) -> Runtime:
    """The runtime of a pipeline: torch's own, or the emitted one for stages with different meshes; neither, if there is
    one group of ranks, or another stack."""
    workload = program.workload
    if workload is None or workload.stack.style not in ("eager", "compiled") or len(program.actions) == 1:
        return "none"
    return "torch" if len({stage.mesh for stage in program.stages}) == 1 else "emitted"


def stage_buffers(
    program: Program, numbers: tuple[int, ...], summaries: Mapping[str, BodyMemory]
) -> StageBuffers | None:
    """Messages that a group of ranks holds, where torch's pipelines pass them."""
    runtime = runtime_of(program)
    if runtime == "none":
        return None
    ranks = program.stages[numbers[0]].ranks
    if runtime == "emitted":
        passed = (StageBuffer(left=_left(program, number)) for number in numbers)
        return StageBuffers(tuple(passed), program.microbatches, "each")
    kinds = "".join(computing(actions) for group, actions in program.actions if group == ranks)
    if len(numbers) > 1 or not {"I", "W"}.isdisjoint(kinds):
        waits = "at the end"
    else:
        waits = "gradients at the end" if kinds.index("B") == program.microbatches > 1 else "each"
    return StageBuffers(
        tuple(_stage_buffer(program, number, summaries) for number in numbers), program.microbatches, waits
    )


def _stage_buffer(program: Program, number: int, summaries: Mapping[str, BodyMemory]) -> StageBuffer:
    stage = program.stages[number]
    names = [name for _, name in stage.calls()]
    first = summaries[names[0]].passes
    entering = [hop for hop in program.transfers if hop.to_stage == number]
    leaving = [hop for hop in program.transfers if hop.from_stage == number and hop.differentiable]
    activations = sum(_size(hop, hop.target, stage.mesh) for hop in entering if hop.differentiable)
    tables = sum(_size(hop, hop.target, stage.mesh) for hop in entering if not hop.differentiable)
    shared = sum({key: size for name in names for key, size in summaries[name].passes.shared}.values())
    back = [hop for hop in entering if hop.differentiable and program.stages[hop.from_stage].ranks != stage.ranks]
    return StageBuffer(
        buffers=activations + tables + sum(_size(hop, hop.source, stage.mesh) for hop in leaving),
        within=min(activations, sum(size for _, size in first.entered)) + min(tables, shared),
        running=activations + min(tables, shared),
        left=_left(program, number),
        sent=sum(_size(hop, hop.target, stage.mesh) for hop in back),
    )


def _left(program: Program, number: int) -> float:
    """Values that a stage sends to other ranks, and whose gradients come back."""
    stage = program.stages[number]
    hops = [hop for hop in program.transfers if hop.from_stage == number and hop.differentiable]
    made = [hop for hop in hops if stage.first <= hop.call < stage.last]
    return sum(_size(hop, hop.source, stage.mesh) for hop in made if program.stages[hop.to_stage].ranks != stage.ranks)


def _size(hop: Transfer, placement: Placement, mesh: Mesh) -> float:
    return float(prod(placement.local_shape(hop.type.shape, mesh)) * ITEMSIZE[hop.type.dtype])
