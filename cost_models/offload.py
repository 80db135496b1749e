"""Offload: what goes over the host link, and what of it the step waits for.

In: a program whose bodies say what waits in the host's memory (`meshwright.ir.offload`). Out: bytes, and the seconds
that they add to a stage's forward and backward pass and to the end of the step.

    link      bytes/s of the host link / devices that share it · copied_share, each way at once; nothing else uses it
    step      bytes/s of the host's memory for each device · stepped_share

*Activations.* With one call's worth of staging on the device (`memory`), what a call keeps goes down while the next
call runs forward, and comes up while the call behind it runs backward. Copy engines take no compute. So with d the
device seconds of a call and t what its copy takes, a stage's pass over one micro-batch takes

    forward     max(stage, Σ max(d of the next call, t))                      the next of the last is the first again
    backward    max(stage, t of the last + Σ max(d of the call behind, t))

where the stage's own seconds (kernels, launches, collectives) come from `step`. A fetch that nothing of the same action
runs before is waited for.

*Optimizer.* Once a step, body by body, the reduced gradients go down, the host's processors make the step, and
parameters come up: a pipeline of three, which for n equal parts takes

    max(down, step, up) + (down + step + up - max) / n

Where the stack hides `gradients` they go down behind the last backward pass, as far as that and the reductions leave
room. The device still reads them once, for their norm. Per element: down, the bytes in which micro-batches add up; up,
the stored bytes; on the host, gradient read, master and moments read and written, parameter written.

How well pinned copies and processors do: `profiles/host.json`. That the host has memory enough is not checked;
`Held.host_bytes` says how much it takes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from itertools import pairwise

from meshwright.cost_models.cost import Cost, Taken
from meshwright.cost_models.hardware import Device
from meshwright.cost_models.ledger import Ledger
from meshwright.cost_models.liveness import body_memory
from meshwright.cost_models.prices import Prices
from meshwright.cost_models.quantity import Kind, weakest_kind
from meshwright.ir.errors import HostUnknown
from meshwright.ir.program import BodyProgram, Program, Run, Stage, local_elements
from meshwright.ir.workload import Workload


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes of one call of a body program on one rank."""

    kept_bytes: float
    """Down after each forward pass, and up again before the backward pass."""
    busiest_bytes: float
    """The same where the busiest experts are."""
    down_bytes: float = 0.0
    """Gradients, once a step."""
    up_bytes: float = 0.0
    """Parameters, once a step."""
    touched_bytes: float = 0.0
    """What the host's processors read and write for the step."""


def moved(body: BodyProgram, workload: Workload) -> Moved:
    """What one call moves."""
    states, shards = workload.states, [slot for slot in body.params if slot.host]
    elements = sum(local_elements(s.optimizer, body.locals[s.value].type.shape, body.mesh) for s in shards)
    own = states.master or states.stored
    written = states.stored if states.master else 0.0
    return Moved(
        kept_bytes=sum(kept.nbytes for kept in body.kept if kept.host),
        busiest_bytes=body_memory(body, workload, True).hosted,
        down_bytes=elements * states.gradient,
        up_bytes=elements * states.stored,
        touched_bytes=elements * (states.gradient + 2 * own + 2 * workload.moments + written),
    )


def host_traffic(program: Program, workload: Workload) -> float:
    """Bytes over the host links of all ranks in a step, both ways."""
    found = 0.0
    bodies = {body.name: moved(body, workload) for body in program.bodies if body.offloads}
    for stage in program.stages:
        for run in stage.runs:
            for one in (bodies[name] for name in run.programs if name in bodies):
                each = 2 * one.kept_bytes * program.microbatches + one.down_bytes + one.up_bytes
                found += each * run.repeats * len(stage.ranks)
    return found


def streamed_s(down_s: float, step_s: float, up_s: float, parts: int) -> float:
    """A pipeline of three over equal parts."""
    slowest = max(down_s, step_s, up_s)
    return slowest + (down_s + step_s + up_s - slowest) / max(1, parts)


@cache
def host_constants() -> tuple[float, float, Kind]:
    """The shares of `profiles/host.json`: of the link that copies reach, of the memory's rate that the step reaches;
    and the weakest provenance of the two."""
    text = resources.files("meshwright.cost_models").joinpath("profiles", "host.json").read_text(encoding="utf-8")
    table = json.loads(text)
    kinds = [table["sources"][table[name][1]]["kind"] for name in ("copied_share", "stepped_share")]
    return float(table["copied_share"][0]), float(table["stepped_share"][0]), weakest_kind(*kinds)


class Host:
    """The hosts beside the stages of one program."""

    def __init__(self, prices: Prices, program: Program, workload: Workload, ledgers: Mapping[str, Ledger]) -> None:
        self.prices, self.program, self.workload, self.ledgers = prices, program, workload, ledgers
        self.moved = {body.name: moved(body, workload) for body in program.bodies if body.offloads}
        self.copied, self.stepped, kind = host_constants()
        wires = [device.host_link for stage in program.stages for device in prices.devices(stage.ranks)]
        numbers = [n for wire in wires for n in (wire.bandwidth, wire.sharers, wire.memory) if n]
        self.kind: Kind = weakest_kind(kind, *(number.kind for number in numbers))

    # rates of the slowest device of a stage

    def link_s(self, nbytes: float, stage: Stage) -> float:
        """Seconds of a copy."""
        devices = self.prices.devices(stage.ranks)
        return nbytes / (self.copied * min(device.host_link.share_bytes_per_s for device in devices))

    def step_s(self, nbytes: float, stage: Stage) -> float:
        """Seconds of the optimizer on the host's processors."""
        devices = self.prices.devices(stage.ranks)
        return nbytes / (self.stepped * min(map(_memory_bytes_per_s, devices))) if nbytes else 0.0

    # activations

    def forward(self, stage: Stage, taken: Taken) -> Taken:
        """A stage's forward pass, with what waits for copies down."""
        costs = {name: self.costs(name, stage)["forward"].device_s for run in stage.runs for name in run.programs}
        copies = self.copies(stage)
        if not any(copies.values()):
            return taken
        chain_s = sum(
            count * max(costs[after], copies[name])
            for (name, after), count in neighbours(stage.runs, around=True).items()
        )
        return _longer(taken, chain_s - taken.seconds)

    def backward(self, stage: Stage, taken: Taken, weights: Taken, apart: bool) -> Taken:
        """Its backward pass (of inputs, where weight gradients are made apart), with what waits for copies up."""
        copies = self.copies(stage)
        if not any(copies.values()):
            return taken
        phases = ("recompute", "inputs") if apart else ("recompute", "inputs", "weights")
        costs = {
            name: sum(self.costs(name, stage)[phase].device_s for phase in phases)
            for run in stage.runs
            for name in run.programs
        }
        first, last = stage.runs[0].programs[0], stage.runs[-1].programs[-1]
        chain_s = (
            copies[last]
            + costs[first]
            + sum(
                count * max(costs[behind], copies[name])
                for (name, behind), count in neighbours(stage.runs, around=False).items()
            )
        )
        return _longer(taken, chain_s - taken.seconds - (0.0 if apart else weights.seconds))

    def costs(self, name: str, stage: Stage) -> Mapping[str, Cost]:
        return self.prices.costs(self.ledgers[name], stage, self.workload)

    def copies(self, stage: Stage) -> dict[str, float]:
        """Seconds of a copy of what a call keeps, by body program."""
        names = (name for run in stage.runs for name in run.programs)
        return {
            name: self.link_s(self.moved[name].busiest_bytes, stage) if name in self.moved else 0.0 for name in names
        }

    # the optimizer

    def ending_s(self, stages: Sequence[Stage], hidden_s: float) -> float:
        """What a group's step on the host adds, with so many seconds that copies down can run behind."""
        down_s = step_s = up_s = 0.0
        parts = 0
        for stage in stages:
            for run in stage.runs:
                for one in (self.moved[name] for name in run.programs if name in self.moved):
                    down_s += run.repeats * self.link_s(one.down_bytes, stage)
                    step_s += run.repeats * self.step_s(one.touched_bytes, stage)
                    up_s += run.repeats * self.link_s(one.up_bytes, stage)
                    parts += run.repeats * (one.down_bytes > 0)
        return streamed_s(max(0.0, down_s - hidden_s), step_s, up_s, parts)


def neighbours(runs: tuple[Run, ...], *, around: bool) -> Counter[tuple[str, str]]:
    """How often a call of one body program is followed by one of another; `around`: the first follows the last."""
    found: Counter[tuple[str, str]] = Counter()
    for run in runs:
        for pair in pairwise(run.programs):
            found[pair] += run.repeats
        if run.repeats > 1:
            found[run.programs[-1], run.programs[0]] += run.repeats - 1
    for one, other in pairwise(runs):
        found[one.programs[-1], other.programs[0]] += 1
    if around:
        found[runs[-1].programs[-1], runs[0].programs[0]] += 1
    return found


def _longer(taken: Taken, waits_s: float) -> Taken:
    if waits_s <= 0:
        return taken
    return replace(taken, seconds=taken.seconds + waits_s, shares=(*taken.shares, ("host", waits_s)))


def _memory_bytes_per_s(device: Device) -> float:
    memory = device.host_link.memory
    if memory is None:
        raise HostUnknown(
            place=f"device {device.name!r}",
            cause="the optimizer shall step on its host, and how fast that one's memory is is not known",
            fix=f'give host_memory_gb_per_s in a [[device]] like = "{device.name}"',
        )
    return memory.value
