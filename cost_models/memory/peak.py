"""Peak memory of every stage: what one rank holds at its fullest instant, by liveness over the Program.

    peak(group)   = batch + state + held beside the action + fullest instant of the action + what the runtime takes
    batch         the inputs of all micro-batches of a step, on every rank, as scripts have them
    state         parameters as stored, gradients where micro-batches add up, the optimizer's copies and moments, each
                  as many elements as its placement leaves on a rank, in the bytes of the recipe; a tied parameter once
    beside        for every stage of the group, micro-batches in flight x bytes kept
    (`meshwright.cost_models.memory.in_flight`) action        the calls of the stage, one after another
    (`meshwright.cost_models.memory.stage`) runtime       communicators, the CUDA context, workspaces, blocks and
    fragments of the allocator, and what lies idle
                  in the pools of streams that communicate (`stage`)

What waits in the host's memory (`meshwright.ir.decisions.offload`) is not there between its call's forward and backward
pass, but for one call's worth of staging: what a call before keeps is still on its way down while a call runs forward,
and already on its way up while it runs backward. Optimizer state on the host takes nothing here: gradients leave from
where they were added up, parameters arrive where they are stored.

The maximum is taken over all states that the group's list of actions passes through, over the calls of the stage, and
over the end of the step. Where calls repeat, what is held between the first and the last of them is linear in the
repeat, so that these two and their neighbours decide. Gradients exist from the start where a stack keeps them in one
buffer (fused styles: Megatron's contiguous gradient buffer); elsewhere from the first backward pass of their call on.

`allocated_bytes` is what torch's allocator has handed out at that instant: all but communicators, context, idle blocks
and rounding. The parts of `Held` add up to what nvidia-smi shows; without communicators and context they are what torch
reserves.

Capacity is what the driver reports where that was observed (`Device.driver_memory`), since that is what an allocation
fails at; else the datasheet's `memory`, whose GB are decimal. The margin is taken off; benchmarks of runs that did run
use none.

Sources: Korthikanti et al. 2205.05198 (activations), Rajbhandari et al. 1910.02054 (bytes of state), Zhao et al.
2304.11277 (units of FSDP, prefetch). Constants with their sources: `profiles/memory.json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from math import inf

from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.quantity import Kind, weakest_kind
from meshwright.cost_models.memory.body import BodyMemory, body_memory
from meshwright.cost_models.memory.in_flight import State, states_of
from meshwright.cost_models.memory.stage import Parts, StageMemory, stages_of
from meshwright.cost_models.memory.stage_buffers import stage_buffers
from meshwright.cost_models.prediction import HELD, Held
from meshwright.cost_models.schedule import makes_weights_apart
from meshwright.ir.errors import WorkloadImpossible
from meshwright.ir.program.program import Program
from meshwright.ir.program.ties import casts_in_units
from meshwright.ir.schedules import work_of
from meshwright.ir.sharding.rank_classes import At, RankClass, rank_classes, seen_by
from meshwright.ir.target.workload import Workload

RUNTIME = ("communicators", "context", "idle", "rounding")
"""Parts that torch's allocator does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConstants:
    """Memory that the runtime takes beside tensors.

    - Sizes and shares must not be negative; the margin must be below 1.
    """

    communicator_bytes: float
    """Buffers of one NCCL communicator."""
    context_bytes: float
    workspace_bytes: float
    block_bytes: float
    fragments_share: float
    margin_share: float

    def __post_init__(self) -> None:
        sizes = (self.communicator_bytes, self.context_bytes, self.workspace_bytes, self.block_bytes)
        if min(*sizes, self.fragments_share, self.margin_share) < 0 or self.margin_share >= 1:
            raise WorkloadImpossible(
                place="memory constants", cause=f"{self} has a negative size or no room", fix="give sizes of 0 or more"
            )


NO_RUNTIME = MemoryConstants(
    communicator_bytes=0, context_bytes=0, workspace_bytes=0, block_bytes=0, fragments_share=0, margin_share=0
)
"""Of tensors alone."""


@cache
def memory_constants() -> MemoryConstants:
    """The constants of `profiles/memory.json`."""
    text = resources.files("meshwright.cost_models").joinpath("profiles", "memory.json").read_text(encoding="utf-8")
    table = json.loads(text)
    return MemoryConstants(**{key: float(pair[0]) for key, pair in table.items() if isinstance(pair, list)})


@cache
def kind_of_memory() -> Kind:
    """The weakest provenance among the constants."""
    text = resources.files("meshwright.cost_models").joinpath("profiles", "memory.json").read_text(encoding="utf-8")
    return weakest_kind(*(source["kind"] for source in json.loads(text)["sources"].values()))


def allocated_bytes(held: Held) -> float:
    """The peak as torch's allocator counts it."""
    return sum(size for name, size in held.parts if name not in RUNTIME)


def held(program: Program, cluster: Cluster, profile: MemoryConstants) -> tuple[Held, ...]:
    """The fullest instant of the ranks of every stage; where ranks differ, of those with least room."""
    held_by = held_by_class(program, cluster, profile)
    return tuple(max((one for _, one in own), key=lambda one: one.lacks_bytes) for own in held_by)


def held_by_class(
    program: Program, cluster: Cluster, profile: MemoryConstants
) -> tuple[tuple[tuple[RankClass, Held], ...], ...]:
    """The fullest instant of every stage, per rank class."""
    found: dict[int, tuple[tuple[RankClass, Held], ...]] = {}
    for groups, states in zip(_groups(program, cluster.kinds), states_of(program), strict=True):
        held_by = tuple(
            (own, group.held(states, _capacity(cluster, own.ranks), profile)) for own, group in groups.items()
        )
        found |= dict.fromkeys(next(iter(groups.values())).numbers, held_by)
    return tuple(found[index] for index in range(len(program.stages)))


def tensors_held(program: Program) -> dict[int, Held]:
    """The fullest instant of every rank in bytes of tensors: no runtime, and no limit."""
    found: dict[int, Held] = {}
    for groups, states in zip(_groups(program, device=str), states_of(program), strict=True):
        for own, group in groups.items():
            one = group.held(states, inf, NO_RUNTIME)
            parts = tuple((name, 0.0 if name in RUNTIME else size) for name, size in one.parts)
            found |= dict.fromkeys(own.ranks, replace(one, peak_bytes=allocated_bytes(one), parts=parts))
    return found


def stepped_on_host(program: Program) -> dict[int, float]:
    """Bytes of optimizer state that the host holds for every rank."""
    groups = (one for groups in _groups(program, device=str) for one in groups.items())
    return {rank: group.host_state for own, group in groups for rank in own.ranks}


@dataclass(frozen=True, slots=True)
class Holding:
    """What of a group's memory the order of its work decides. While it runs an action it holds, of every stage,

        live x kept_bytes + waiting x waiting_bytes       the micro-batches other than that of the action
        + working_bytes of the action's stage and kind

    and that must not exceed `room_bytes`. Gradients are counted as if they were there from the start. One entry per
    stage of the group; of `working_bytes` one per kind, in the order of `meshwright.ir.schedules.KINDS`.
    """

    room_bytes: float
    kept_bytes: tuple[float, ...]
    waiting_bytes: tuple[float, ...]
    working_bytes: tuple[tuple[float, float, float, float], ...]


def holdings(program: Program, cluster: Cluster, profile: MemoryConstants) -> tuple[Holding, ...]:
    """The holding of every group of ranks. Where ranks differ: the least room, and the most of all else."""
    return tuple(
        _tightest([group.holding(_capacity(cluster, own.ranks), profile) for own, group in groups.items()])
        for groups in _groups(program, cluster.kinds, apart=True)
    )


def _tightest(found: Sequence[Holding]) -> Holding:
    def most(sizes: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
        return tuple(map(max, *several)) if len(several := list(sizes)) > 1 else several[0]

    working = zip(*(one.working_bytes for one in found), strict=True)
    return Holding(
        min(one.room_bytes for one in found),
        most(one.kept_bytes for one in found),
        most(one.waiting_bytes for one in found),
        tuple((w[0], w[1], w[2], w[3]) for w in map(most, working)),
    )


def _groups(
    program: Program, device: Callable[[int], str] | None = None, *, apart: bool = False
) -> Iterator[dict[RankClass, _Group]]:
    """The memory of every group of ranks, per rank class; `apart`: gradients of weights may be computed apart, whatever
    the program's actions are."""
    workload = program.workload
    if workload is None:
        raise WorkloadImpossible(
            place="program", cause="it carries no workload", fix="lower it with the workload that it is for"
        )
    bodies = {body.name: body for body in program.bodies}
    splits = makes_weights_apart(work_of(program))
    seen: dict[At, tuple[Program, dict[str, BodyMemory], list[StageMemory]]] = {}
    for ranks, _ in program.actions:
        numbers = [index for index, stage in enumerate(program.stages) if stage.ranks == ranks]
        found = {}
        for own in rank_classes([program.stages[number] for number in numbers], bodies, device):
            if own.at not in seen:
                view = seen_by(program, own.at)
                summaries = _summaries(view, workload, splits, apart)
                seen[own.at] = view, summaries, stages_of(view, summaries, workload, splits or apart)
            view, summaries, stages = seen[own.at]
            found[own] = _Group(view, numbers, [stages[number] for number in numbers], summaries, workload)
        yield found


def _capacity(cluster: Cluster, ranks: Sequence[int]) -> float:
    """The smallest memory among the devices of some ranks."""
    asked = ranks if len(cluster.pools) > 1 else (max(ranks),)
    return min((one.driver_memory or one.memory).value for one in map(cluster.device, asked))


def _summaries(program: Program, workload: Workload, splits: bool, apart: bool) -> dict[str, BodyMemory]:
    """The summary of each body program; those called more than once are blocks of a stack. Where gradients of weights
    are computed apart (`splits`), scripts keep what units of torch cast up to then; `apart`: they may be."""
    calls: dict[str, int] = {}
    for stage in program.stages:
        for run in stage.runs:
            for name in run.programs:
                calls[name] = calls.get(name, 0) + run.repeats
    repeated = {name for name, times in calls.items() if times > 1}
    found = {
        body.name: body_memory(body, workload, body.name in repeated, apart=splits or apart) for body in program.bodies
    }
    if casts_in_units(workload) and splits:
        return {name: replace(one, unit_kept=True) for name, one in found.items()}
    return found


class _Group:
    """The ranks that share some stages, with the memory of these."""

    def __init__(
        self,
        program: Program,
        numbers: Sequence[int],
        memories: Sequence[StageMemory],
        summaries: Mapping[str, BodyMemory],
        workload: Workload,
    ) -> None:
        self.program, self.workload, self.summaries = program, workload, summaries
        self.numbers = tuple(numbers)
        stages = [program.stages[number] for number in numbers]
        self.stages = memories
        self.from_start = workload.stack.style == "fused"
        calls = [(summaries[name], run.repeats) for stage in stages for run in stage.runs for name in run.programs]
        tied = self.tied_again()
        self.state = {
            "parameters": sum(one.parameters * times for one, times in calls) - tied["parameters"],
            "optimizer": sum(one.optimizer * times for one, times in calls) - tied["optimizer"],
            "gathered": sum(one.unit * times for one, times in calls if one.unit_kept)
            + sum(one.cast_ahead * times for one, times in calls if times > 1),
            "gradients": 0.0,
            "activations": program.microbatches * sum(entry.nbytes for entry in program.entries),
        }
        if len(program.stages) == 1 and not any(one.cut for one, _ in calls):  # else scripts sum gradients in place
            summed = workload.states.reduced / workload.states.gradient
            self.state["gradients"] = max(0.0, sum(one.buckets * n for one, n in calls) - tied["gradients"] * summed)
        self.gradients = sum(one.gradients * times for one, times in calls) - tied["gradients"]
        self.pooled_gradients = min(self.gradients, sum(stage.pooled_gradients for stage in memories))
        self.pools = self.pooled_gradients + max(stage.pooled_messages for stage in memories)
        self.host_state = sum(one.host_state * times for one, times in calls)
        self.placeholders = sum(dict(entry for one, _ in calls for entry in one.products).values())
        self.left_behind = sum(one.left_behind * times for one, times in calls)
        self.stepped = sum(one.stepped * times for one, times in calls)
        self.stepping = max(one.stepping for one, _ in calls)
        self.buffers = stage_buffers(program, self.numbers, summaries)
        self.outlasting = any(stage.stays_cast or stage.lingers for stage in memories)
        """Whether anything stays that an action left."""
        mesh = stages[0].mesh
        self.communicators = 1 + sum(axis.size > 1 for axis in mesh.axes) + (len(program.actions) > 1)

    def tied_again(self) -> dict[str, float]:
        """State of parameters that another call on the same ranks holds already."""
        twice = {"parameters": 0.0, "gradients": 0.0, "optimizer": 0.0}
        if not self.program.ties:
            return twice
        names = {call: name for number in self.numbers for call, name in self.program.stages[number].calls()}
        casts = casts_in_units(self.workload)
        for tie in self.program.ties:
            here = [holder for holder in tie.holders if holder[0] in self.numbers]
            for stage, call in here[1:]:
                own = self.summaries[names[call]]
                held = [slot for slot in own.slots if _ends(tie.path, slot[0])]
                if not held:
                    continue  # it borrows
                path, *sizes = max(held, key=lambda slot: len(slot[0]))
                in_units = path in own.units or (casts and stage != here[0][0])
                for name, size in zip(twice, sizes, strict=True):
                    twice[name] += size if not in_units or name == "optimizer" else 0.0
        return twice

    def held(self, states: Sequence[State], capacity: float, profile: MemoryConstants) -> Held:
        left = self.gradients - self.left_behind
        step = {"gradients": left + self.placeholders, "transient": self.stepped + self.stepping}
        resting = {name: size for name, size in self.state.items() if name != "gathered"}
        passed = {"activations": self.buffers.always if self.buffers else 0.0}
        end = Parts(instant="optimizer").plus(resting, step, passed, apart=self.pooled_gradients)
        best = max(end, self.at(max((*states, *self.last()), key=self.own_at)), key=lambda parts: parts.own)
        finished = _finished(best, self.pools - best.apart, self.communicators, capacity, profile)
        return replace(finished, host_bytes=self.host_bytes(states))

    def last(self) -> Iterator[State]:
        """The last of several backward passes of every stage that sums gradients behind it, alone in flight."""
        none, yes = (0,) * len(self.stages), (True,) * len(self.stages)
        for number, stage in zip(self.numbers, self.stages, strict=True):
            if stage.sums_last and self.program.microbatches > 1:
                yield State("B", number, none, none, yes, yes)

    def holding(self, capacity: float, profile: MemoryConstants) -> Holding:
        """The part of memory that the order of work decides."""
        runtime = profile.block_bytes + profile.context_bytes + self.communicators * profile.communicator_bytes
        room = (capacity * (1 - profile.margin_share) - runtime) / (1 + profile.fragments_share)
        always = sum(self.state.values()) + self.gradients + self.placeholders + profile.workspace_bytes
        always += self.pools - self.pooled_gradients + (self.buffers.most if self.buffers else 0.0)
        always += sum(stage.stays_cast + stage.lingers for stage in self.stages)
        working = []
        for stage in self.stages:
            backward = stage.backward(True, True).own
            inputs, weights = (backward, backward) if stage.whole else (stage.inputs.own, stage.weights.own)
            working.append((stage.forward(False, True).own, backward, inputs, weights))
        return Holding(
            room - always,
            tuple(stage.kept_bytes for stage in self.stages),
            tuple(stage.waiting_bytes for stage in self.stages),
            tuple(working),
        )

    def host_bytes(self, states: Sequence[State]) -> float:
        """Host memory of a rank: optimizer state, and what all micro-batches in flight keep there, that of the action
        included."""
        if not any(stage.offloaded for stage in self.stages):
            return self.host_state
        own = {number: stage.offloaded for number, stage in zip(self.numbers, self.stages, strict=True)}
        return self.host_state + max(
            own[state.stage] * (state.kind != "W")
            + sum(live * stage.offloaded for stage, live in zip(self.stages, state.live, strict=True))
            for state in states
        )

    def own_at(self, state: State) -> float:
        """Bytes that `at` finds in the pool of the compute stream, as far as states differ."""
        index = self.numbers.index(state.stage)
        own = self.stages[index].action(state, index, self.from_start).own
        for stage, live, waiting, has in zip(self.stages, state.live, state.waiting, state.graded, strict=True):
            own += live * stage.kept_bytes + waiting * stage.waiting_bytes
            own += stage.gradients - stage.pooled_gradients if has and not self.from_start else 0.0
        own += self.left_cast(state) + self.lingering(state) if self.outlasting else 0.0
        return own + self.buffered(state)

    def buffered(self, state: State) -> float:
        """Bytes of messages that are not kept anyway."""
        return self.buffers.beside(state, self.numbers.index(state.stage)) if self.buffers else 0.0

    def left_cast(self, state: State) -> float:
        """Bytes that other stages have gathered since they went back."""
        stages = zip(self.numbers, self.stages, state.back, strict=True)
        return sum(stage.stays_cast for number, stage, back in stages if back and number != state.stage)

    def lingering(self, state: State) -> float:
        """Gradients that wait to be cast; on a stage that is making those of weights, they are only coming."""
        stages = zip(self.numbers, self.stages, state.graded, strict=True)
        return sum(stage.lingers for number, stage, has in stages if has and (number, "W") != (state.stage, state.kind))

    def at(self, state: State) -> Parts:
        """Memory in a state, with the action that runs."""
        index = self.numbers.index(state.stage)
        parts = self.stages[index].action(state, index, self.from_start)
        parts = parts.plus(self.state, {"gradients": self.placeholders})
        for stage, live, waiting in zip(self.stages, state.live, state.waiting, strict=True):
            parts.add(stage.kept, live)
            parts.add({"activations": stage.waiting_bytes}, waiting)
        parts.add({"activations": self.buffered(state), "gathered": self.left_cast(state)})
        graded, pooled = self.gradients, self.pooled_gradients
        if not (self.from_start or all(state.graded)):
            having = [stage for stage, has in zip(self.stages, state.graded, strict=True) if has]
            graded, pooled = (sum(one.gradients for one in having), sum(one.pooled_gradients for one in having))
        parts.add({"gradients": graded + self.lingering(state)})
        parts.apart += pooled
        return parts


def _ends(path: str, tail: str) -> bool:
    return path == tail or path.endswith(f".{tail}")


def _finished(best: Parts, idle: float, communicators: int, capacity: float, profile: MemoryConstants) -> Held:
    """Memory including the runtime's, `idle` of it in pools of streams that communicate."""
    parts = best.plus({"transient": profile.workspace_bytes, "idle": idle})
    parts = parts.plus(
        {
            "communicators": communicators * profile.communicator_bytes,
            "context": profile.context_bytes,
            "rounding": parts.total * profile.fragments_share + profile.block_bytes,
        }
    )
    sizes = tuple((name, parts.sizes.get(name, 0.0)) for name in HELD)
    return Held(
        peak_bytes=sum(size for _, size in sizes),
        device_bytes=capacity,
        margin_bytes=capacity * profile.margin_share,
        instant=best.instant,
        parts=sizes,
    )
