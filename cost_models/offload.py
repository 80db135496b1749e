"""Offload: the bytes over the host link, and the part of their time that the step waits for.

In: a program whose bodies say what waits in the host's memory (`meshwright.ir.decisions.offload`). Out: bytes, and the
seconds that they add to a stage's forward and backward pass and to the end of the step.

    link      bytes/s of the host link / devices that share it · copied_share, each way at once; nothing else uses it
    step      bytes/s of the host's memory for each device · stepped_share

*Activations.* Copies run beside kernels, one after another each way, and take no compute. What a call keeps goes down
once its forward list is done, and is back before its backward list begins. With t what the copy of a call takes, d the
device seconds of its backward pass, and calls in the order of the backward pass (the last one first),

    forward     max(stage, Σ t)                           what is still on its way then is, beside the next action
    backward    max(stage, max over calls k of  Σ t up to k + Σ d from k on)

where the stage's own seconds (kernels, launches, collectives) come from `step`, and k has a copy to wait for: a flow
shop of two machines, the link and the device (Johnson 1954). How far copies may lag is a question of memory: where some
blocks of a stage stay, copies are spread over all of it (Transformer Engine, cpu_offload.py, layer_window_map), which
never holds more than the end of the pass does; where none stay, one call's worth of staging is enough if calls are
alike (`memory`).

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from meshwright.cost_models.cost import Taken
from meshwright.cost_models.hardware.devices import Device
from meshwright.cost_models.hardware.quantity import Kind, weakest_kind
from meshwright.cost_models.ledger.ledger import Ledger
from meshwright.cost_models.memory.body import body_memory
from meshwright.cost_models.prices import Prices
from meshwright.ir.errors import HostUnknown
from meshwright.ir.program.program import BodyProgram, Program, Stage, local_elements
from meshwright.ir.target.workload import Workload


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
    """The bytes that one call moves."""
    states, shards = workload.states, [slot for slot in body.params if slot.host]
    elements = sum(local_elements(s.optimizer, body.locals[s.value].type.shape, body.mesh) for s in shards)
    return Moved(
        kept_bytes=sum(kept.nbytes for kept in body.kept if kept.host),
        busiest_bytes=body_memory(body, workload, True).passes.offloaded,
        down_bytes=elements * states.gradient,
        up_bytes=elements * states.stored,
        touched_bytes=elements * step_bytes_per_element(workload),
    )


def step_bytes_per_element(workload: Workload) -> float:
    """Bytes that the host's processors read and write to step one element of a parameter."""
    states = workload.states
    written = states.stored if states.master else 0.0
    return states.gradient + 2 * (states.master or states.stored) + 2 * workload.moments + written


def stepped_bytes_per_s(device: Device) -> float:
    """The most bytes per second that the host's processors read and write for one device. Raises `HostUnknown`."""
    return host_constants()[1] * _memory_bytes_per_s(device)


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
    """Seconds of a pipeline of three stages over equal parts."""
    slowest = max(down_s, step_s, up_s)
    return slowest + (down_s + step_s + up_s - slowest) / max(1, parts)


def flow_s(calls: Iterable[tuple[float, float]]) -> float:
    """Seconds of two machines in a row: every call's copy, then its kernels, in this order."""
    copied_s = done_s = 0.0
    for copy_s, device_s in calls:
        copied_s += copy_s
        done_s = max(done_s, copied_s if copy_s else 0.0) + device_s
    return done_s


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
        self.copied, _, kind = host_constants()
        wires = [device.host_link for stage in program.stages for device in prices.devices(stage.ranks)]
        numbers = [n for wire in wires for n in (wire.bandwidth, wire.sharers, wire.memory) if n]
        self.kind: Kind = weakest_kind(kind, *(number.kind for number in numbers))

    # rates of the slowest device of a stage

    def link_s(self, nbytes: float, stage: Stage) -> float:
        """Seconds of a copy of so many bytes."""
        devices = self.prices.devices(stage.ranks)
        return nbytes / (self.copied * min(device.host_link.share_bytes_per_s for device in devices))

    def step_s(self, nbytes: float, stage: Stage) -> float:
        """Seconds of the optimizer on the host's processors."""
        devices = self.prices.devices(stage.ranks)
        return nbytes / min(map(stepped_bytes_per_s, devices)) if nbytes else 0.0

    # activations

    def forward(self, stage: Stage, taken: Taken) -> Taken:
        """Seconds of a stage's forward pass, with its waits for copies down."""
        return _longer(taken, sum(self.copies(stage)) - taken.seconds)

    def backward(self, stage: Stage, taken: Taken, weights: Taken, apart: bool) -> Taken:
        """Seconds of a stage's backward pass (of inputs, where weight gradients are made apart), with its waits for
        copies up."""
        copies = self.copies(stage)
        if not any(copies):
            return taken
        phases = ("recompute", "inputs") if apart else ("recompute", "inputs", "weights")
        device = {
            name: sum(self.prices.costs(self.ledgers[name], stage, self.workload)[p].device_s for p in phases)
            for run in stage.runs
            for name in run.programs
        }
        took_s = flow_s(reversed([(copy_s, device[name]) for copy_s, name in zip(copies, _names(stage), strict=True)]))
        return _longer(taken, took_s - taken.seconds - (0.0 if apart else weights.seconds))

    def copies(self, stage: Stage) -> list[float]:
        """Seconds to copy what every call keeps."""
        each = {name: self.link_s(one.busiest_bytes, stage) for name, one in self.moved.items()}
        return [each.get(name, 0.0) for name in _names(stage)]

    # the optimizer

    def ending_s(self, stages: Sequence[Stage], hidden_s: float) -> float:
        """Seconds that a group's step on the host adds, where copies down can run behind so many seconds."""
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


def _names(stage: Stage) -> list[str]:
    """The names of the body programs of every call."""
    return [name for _, name in stage.calls()]


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
