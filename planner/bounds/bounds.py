"""Bounds: what no configuration of a base and shape can undercut, without lowering it.

Time. A group of ranks waits for the first micro-batch to reach it, works through all of them, and what is left of the
last one then runs backward through the groups before it, whatever the schedule:

    step >= straggling * max over groups ( sum of forward before it + m * work + sum of backward before it + ending )

The work of one micro-batch is the base's (`planner.bounds.bases`), with parameters gathered and gradients reduced
beside it as the evaluator lets them run together; the ending is the optimizer, reductions that outlast the last
backward pass, and gathers of what was updated. Transfers between stages and other waits are left out: they are never
negative. Where weight gradients are made apart, only gradients of inputs need run after; where groups roll on into the
next step, nothing before or after counts.

Memory. State as it is stored, what the micro-batches in flight keep, and the fullest instant of a call at its place in
the stage, with nothing stored in shards gathered for it.

That bounds never exceed prices is tested on random configurations (`tests/planner/test_bounds.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import log2, prod
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from meshwright.cost_models.collectives.collective import Collective, collective
from meshwright.cost_models.collectives.topology import GroupShape, group_shape
from meshwright.cost_models.cost import Cost, library_of
from meshwright.cost_models.prices import Prices
from meshwright.cost_models.schedule import Seconds as Taken
from meshwright.cost_models.schedule import compiled, simulate
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names import Degrees, cuts, uses
from meshwright.ir.names.degrees import Use
from meshwright.ir.same import Same
from meshwright.ir.schedules import SCHEDULES, Shape, stage_groups, work_lists
from meshwright.ir.sharding.mesh import Mesh
from meshwright.planner.bounds.bases import Base, Held, Room, Seconds, copies, experts_of, places, room, seconds
from meshwright.planner.bounds.in_flight import Flight, flight
from meshwright.planner.question.pins import Config
from meshwright.planner.question.pricing import Setting
from meshwright.planner.space.declared import Storage

SLACK = 1e-9
"""Relative: bounds are other sums than prices, and give way by this much."""

Calls = tuple[tuple[str, int], ...]
"""The bodies of a stage in order, each with how often it runs in a row."""

Bytes = TypeVar("Bytes", float, npt.NDArray[np.float64])

Layout = tuple[int, str, tuple[int, ...]]
"""How many stages share out the layers, and how."""


@dataclass(frozen=True, slots=True)
class Wires:
    """How copies are tied together: for each body, what it takes to gather its parameters, those that its backward
    pass reads, and to reduce its gradients; and what of that runs with every micro-batch."""

    gathers: Mapping[str, float]
    again: Mapping[str, float]
    reduces: Mapping[str, float]
    zero: int
    regather: bool

    def forward(self, calls: Calls) -> Cost:
        return _gathers(self.gathers, calls) if self.zero > 2 else Cost()

    def backward(self, calls: Calls) -> tuple[Cost, Cost]:
        """What is gathered again, and what is reduced."""
        again = _gathers(self.again, calls) if self.zero > 2 and self.regather else Cost()
        reduced = sum(times * self.reduces[name] for name, times in calls) if self.zero > 1 else 0.0
        return again, Cost(reductions_s=reduced)

    def once(self, calls: Calls) -> tuple[float, float]:
        """Once per step: reductions, and gathers of what was updated."""
        reduced = sum(times * self.reduces[name] for name, times in calls) if self.zero < 2 else 0.0
        published = sum(times * self.gathers[name] for name, times in calls) if 0 < self.zero < 3 else 0.0
        return reduced, published


def _layout(config: Config) -> Layout:
    return config.pp * config.vp, config.split, config.stage_blocks


def _bytes(*counts: float) -> list[float]:
    """Of numbers of elements, and the width of one."""
    *elements, width = counts
    return [count * width for count in elements]


def _gathers(seconds: Mapping[str, float], calls: Calls) -> Cost:
    total = sum(times * seconds[name] for name, times in calls)
    return Cost(gathers_s=total, first_gather_s=max(seconds[name] for name, _ in calls))


@dataclass(frozen=True, slots=True)
class Load:
    """What a group holds: its state before copies share it out, and beside it the fullest instant of its work, over
    all instants (`before` there are gradients) and over those with gradients of all its stages (`graded`); what of
    these are parameters in the form that operators read."""

    dense: Held
    expert: Held
    before: float
    graded: float
    gathered: float

    @staticmethod
    def of(
        rooms: Sequence[Room],
        flight: Flight,
        twice: Iterable[tuple[Held, bool]],
    ) -> Load:
        """`twice`: state of parameters that another call of the group holds already, and whether inside experts."""
        kept = np.array([one.kept for one in rooms])
        waiting = np.array([one.waiting for one in rooms])
        running = [np.array(side) - kept for side in zip(*((one.forward, one.backward) for one in rooms), strict=True)]
        beside = flight.counts @ np.concatenate([kept, waiting, *running])
        before, graded = (float(found.max(initial=0.0)) for found in (beside, beside[flight.graded]))
        dense, expert = Held(), Held()
        for one in rooms:
            dense, expert = dense.plus(one.dense, 1), expert.plus(one.expert, 1)
        for held, inside in twice:
            dense, expert = (dense, expert.plus(held, -1)) if inside else (dense.plus(held, -1), expert)
        return Load(dense, expert, before, graded, max(one.gathered for one in rooms))


class Common:
    """What bounds of one setting share, whatever the base."""

    def __init__(self, setting: Setting, prices: Prices, fold: Fold) -> None:
        self.setting, self.prices, self.workload = setting, prices, setting.workload
        self.bodies = [call.body.name for call in fold.calls()]
        self.calls = tuple(Counter(self.bodies).items())
        self.names = [name for name, _ in self.calls]
        self.counts = np.array([float(times) for _, times in self.calls])
        self.routed_names = [name for name in self.names if experts_of(Same(fold), name)]
        self.routed = np.array([name in self.routed_names for name in self.names])
        """Which bodies have experts."""
        self.fold = fold
        self.step, self.stack = prices.profile.step, setting.workload.stack
        cluster, everywhere = prices.cluster, tuple(range(setting.ranks))
        devices = prices.devices(everywhere)
        self.host_s = min(prices.compute(device, self.workload).host_s for device in devices)
        self.library = library_of(devices[0], self.workload)
        per_host = min(pool.gpus_per_host for pool in cluster.pools)
        hosts = max(1, min(cluster.hosts, -(-setting.ranks // per_host)))
        self.straggling = (1 + self.step.straggling * log2(hosts)) * (1 - SLACK)
        roomiest = max((one.driver_memory or one.memory).value for one in devices)
        self.capacity = roomiest * (1 - prices.profile.memory.margin_share)
        hidden = max(self.step.hidden_tensor, self.step.hidden_backward)
        self.tensor_left = 1 - hidden if "tensor" in self.stack.hides or self.stack.regathers else 1.0
        """Of tensor parallel collectives, the share that no overlap hides."""
        self.expert_left = self.step.slowdown if "expert" in self.stack.hides else 1.0
        """Of exchanges between experts, the share that is left behind another micro-batch."""
        self.tied = [(path, [number for number, _ in held]) for path, held in fold.tied]
        """Parameters that more than one call holds, and which."""
        self.held_twice = [(path, self.bodies[number]) for path, held in self.tied for number in held[1:]]
        self._stages: dict[Layout, tuple[Calls, ...]] = {}
        self._ranges: dict[Layout, Sequence[tuple[int, int]]] = {}
        self._groups: dict[tuple[str, int, Layout], tuple[tuple[int, tuple[int, ...]], ...]] = {}

    def stages(self, config: Config) -> tuple[Calls, ...]:
        """The calls of every stage."""
        key = _layout(config)
        if key not in self._stages:
            stages, split, blocks = key
            ranges = self._ranges[key] = cuts(self.fold, Degrees(pp=stages, split=split, stage_blocks=blocks))
            self._stages[key] = tuple(
                tuple((name, len(list(run))) for name, run in groupby(self.bodies[first:last]))
                for first, last in ranges
            )
        return self._stages[key]

    def twice(self, config: Config, own: Sequence[int]) -> Iterator[tuple[str, str]]:
        """Parameters that another call of these stages holds already: path, and the body that holds it again."""
        if self.tied:
            self.stages(config)
            ranges = self._ranges[_layout(config)]
            for path, held in self.tied:
                here = [number for number in held if any(ranges[one][0] <= number < ranges[one][1] for one in own)]
                for number in here[1:]:
                    yield path, self.bodies[number]

    def groups(self, config: Config) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Groups with their numbers and stages; of neighbours that run the same the first and the last, between which
        nothing is greater."""
        key = config.schedule, config.pp, _layout(config)
        if key not in self._groups:
            stages = self.stages(config)
            every = stage_groups(config.schedule, config.pp, config.vp)
            alike = groupby(enumerate(every), key=lambda pair: tuple(stages[stage] for stage in pair[1]))
            runs = [list(run) for _, run in alike]
            self._groups[key] = tuple(group for run in runs for group in dict.fromkeys((run[0], run[-1])))
        return self._groups[key]

    def with_runtime(self, nbytes: Bytes) -> Bytes:
        """With what a runtime needs beside."""
        runtime = self.prices.profile.memory
        inside = nbytes + runtime.workspace_bytes
        return inside * (1 + runtime.fragments_share) + runtime.block_bytes + runtime.context_bytes


class Bounds:
    """Bounds for the configurations of one base; what they share is kept."""

    def __init__(self, common: Common, base: Base) -> None:
        self.common, self.base = common, base
        self._seconds: dict[tuple[Calls, int, bool], Seconds] = {}
        self._costs: dict[Calls, dict[str, Cost]] = {}
        self._rooms: dict[Calls, Room] = {}
        self._wires: dict[tuple[object, ...], Wires] = {}
        self.work_s = self._work_s()

    def _work_s(self) -> float:
        """What a micro-batch takes on all stages together, at least."""
        costs = self.base.piece(self.common.calls)
        total = 0.0
        for phase in ("forward", "recompute", "inputs", "weights"):
            tensor, context, expert = costs[phase].values
            total += costs[phase].device_s + context
            total += tensor * self.common.tensor_left + expert * self.common.expert_left
            total += costs[phase].awaited * self.common.host_s
        return total

    # wires

    def wires(self, config: Config) -> Wires:
        """What copies cost this configuration."""
        config = self.common.setting.ran(config)
        key = config.dp, config.pp, config.zero, config.shard, config.regather
        if key not in self._wires:
            self._wires[key] = self._wired(config)
        return self._wires[key]

    def _wired(self, config: Config) -> Wires:
        mesh = config.degrees().mesh()
        anywhere = [self._moved(config, ranks, mesh) for ranks in places(self.common.prices.cluster, mesh.size)]
        least = [{name: min(one[at][name] for one in anywhere) for name in self.base.pieces} for at in range(3)]
        return Wires(least[0], least[1], least[2], config.zero, config.regather)

    def _moved(self, config: Config, ranks: tuple[int, ...], mesh: Mesh) -> tuple[dict[str, float], ...]:
        """Of every body, on these ranks: to gather its parameters, those that its backward pass reads, and to reduce
        its gradients."""
        common, states, found = self.common, self.common.workload.states, uses(config.degrees())

        shapes: dict[tuple[str, ...], GroupShape | None] = {(): None}

        def shape(over: Iterable[Use]) -> GroupShape | None:
            names = tuple(use.name for use in over)
            if names not in shapes:
                shapes[names] = group_shape(common.prices.cluster, ranks, mesh, names)
            return shapes[names]

        def taken(kind: Collective, loads: Iterable[tuple[float, GroupShape | None]]) -> float:
            """What is moved over like groups is moved together."""
            together: dict[GroupShape, float] = {}
            for nbytes, over in loads:
                if over and nbytes:
                    together[over] = together.get(over, 0.0) + nbytes
            return sum(collective(kind, nbytes, over, common.library).seconds for over, nbytes in together.items())

        def moved(kind: Collective, *parts: tuple[float, Sequence[Use]]) -> float:
            """In one step over all axes, or axis by axis, from either end, with what the ones before leave."""
            at_once = taken(kind, [(nbytes, shape(over)) for nbytes, over in parts])
            if kind == "all_reduce" or all(len(over) < 2 for _, over in parts):
                return at_once
            ways = [
                [
                    (nbytes / prod(use.size for use in order[:at]), shape([order[at]]))
                    for nbytes, over in parts
                    for order in (over[::way],)
                    for at in range(len(order))
                ]
                for way in (1, -1)
            ]
            return min(at_once, *(taken(kind, steps) for steps in ways))

        outside = [use for use in found if use.holds_copies(expert=False)]
        inside = [use for use in found if use.holds_copies(expert=True)]
        storing = [[use for use in held if use.stores] for held in (outside, inside)]
        # Gradients of parameters that tensor parallelism leaves whole may be reduced over its ranks too; those of
        # experts that its ranks all compute need not be, and then each reduces its share.
        kind: Collective = "reduce_scatter" if config.zero else "all_reduce"
        over = storing if config.zero else [outside, inside]
        wider = [use for use in found if use in outside or use.outside == "tp"]
        fewer = [use for use in over[1] if use.outside != "tp"]
        idle = prod(use.size for use in inside if use.outside == "tp")
        gathers, again, reduces = {}, {}, {}
        for name, piece in self.base.pieces.items():
            dense, expert = piece.states
            gathers[name] = moved(
                "all_gather", *zip(_bytes(dense.elements, expert.elements, states.used), storing, strict=True)
            )
            again[name] = moved(
                "all_gather", *zip(_bytes(dense.again, expert.again, states.used), storing, strict=True)
            )
            whole, split, experts = _bytes(piece.whole, dense.elements - piece.whole, expert.elements, states.reduced)
            reduces[name] = min(
                moved(kind, (split, over[0]), (whole, one), two)
                for one in (over[0], wider)
                for two in ((experts, over[1]), (experts / idle, fewer))
            )
        return gathers, again, reduces

    # time

    def seconds(self, calls: Calls, wires: Wires | None, apart: bool) -> Seconds:
        """What a stage of these calls takes, at least; `wires` where they run with every micro-batch."""
        key = calls, id(wires), apart
        if key not in self._seconds:
            self._seconds[key] = seconds(
                self.common.step,
                self.common.stack,
                self.costs(calls),
                self.common.host_s,
                gathers=wires.forward(calls) if wires else Cost(),
                backward=wires.backward(calls) if wires else (Cost(), Cost()),
                apart=apart,
            )
        return self._seconds[key]

    def costs(self, calls: Calls) -> dict[str, Cost]:
        """The phases of a stage of these calls, whatever is gathered and reduced for them."""
        if calls not in self._costs:
            self._costs[calls] = self.base.piece(calls)
        return self._costs[calls]

    def least_s(self, config: Config) -> float:
        """Even less than `step_s`, and sooner known: the work of all stages in equal shares."""
        return self.work_s * config.microbatches / config.pp * self.common.straggling

    def step_s(self, config: Config, wires: Wires | None = None) -> float:
        """What the step of a configuration takes at least; without wires, whatever is stored where."""
        stages, held = self._held(config, wires)
        m, apart = config.microbatches, SCHEDULES[config.schedule].splits
        rolling = apart and self.common.stack.rolling
        forward = _sums(one.forward for one in held)
        back = _sums((one.inputs if apart else one.inputs + one.weights) for one in held)
        longest = 0.0
        for _, own in self.common.groups(config):
            work = m * sum(held[stage].work for stage in own)
            ending = self._ending_s(config, [(stages[stage], held[stage]) for stage in own], wires)
            if rolling:
                longest = max(longest, work + ending)
                continue
            before, after = forward[own[0]], back[own[0]]
            left = m * sum(held[stage].weights for stage in own) if apart else 0.0
            longest = max(longest, before + work + ending, before + work - left + after)
        return longest * self.common.straggling

    def run_s(self, config: Config, wires: Wires) -> float:
        """The same, with the schedule run action by action: more, and later known."""
        apart = SCHEDULES[config.schedule].splits
        if config.pp == 1 or (apart and self.common.stack.rolling):
            return self.step_s(config, wires)
        stages, held = self._held(config, wires)
        groups, nothing = stage_groups(config.schedule, config.pp, config.vp), (0.0,) * (len(held) - 1)
        taken = Taken(
            forward_s=tuple(one.forward for one in held),
            backward_s=tuple(one.inputs + one.weights for one in held),
            input_s=tuple(one.inputs for one in held),
            weight_s=tuple(one.weights for one in held),
            value_s=nothing,
            gradient_s=nothing,
            exposed=False,
        )
        ran = simulate(compiled(work_lists(config.schedule, Shape(groups, config.microbatches))), taken)
        ends = (
            finish + self._ending_s(config, [(stages[stage], held[stage]) for stage in own], wires)
            for own, finish in zip(groups, ran.finish_s, strict=True)
        )
        return max(ends) * self.common.straggling

    def _held(self, config: Config, wires: Wires | None) -> tuple[tuple[Calls, ...], list[Seconds]]:
        """The stages of a configuration, and what a micro-batch takes on each."""
        stages = self.common.stages(config)
        beside = wires if wires and wires.zero > 1 else None
        apart = SCHEDULES[config.schedule].splits
        taken = {calls: self.seconds(calls, beside, apart) for calls in set(stages)}
        return stages, [taken[calls] for calls in stages]

    def _ending_s(self, config: Config, own: Sequence[tuple[Calls, Seconds]], wires: Wires | None) -> float:
        """The optimizer, reductions beyond what runs behind the last backward pass, and gathers of what was updated."""
        ending = sum(one.update for _, one in own) / (max(copies(config)) if config.zero else 1)
        if wires is None:
            return ending
        hides = self.common.stack.hides
        reduced, published = (sum(wires.once(calls)[at] for calls, _ in own) for at in (0, 1))
        if "gradients" in hides:
            reduced = max(0.0, reduced - self.common.step.covered * own[0][1].work) if len(own) == 1 else 0.0
        return ending + reduced + (0.0 if "publish" in hides else published)

    # memory

    def room(self, calls: Calls) -> Room:
        """What a stage of these calls holds."""
        if calls not in self._rooms:
            self._rooms[calls] = room(self.common.workload, self.base, calls)
        return self._rooms[calls]

    def loads(self, pipeline: Config) -> tuple[Load, ...]:
        """What the groups of a pipeline hold, whatever is stored where."""
        held = [self.room(calls) for calls in self.common.stages(pipeline)]
        key = pipeline.schedule, pipeline.pp, pipeline.vp, pipeline.microbatches
        return tuple(
            Load.of(
                [held[stage] for stage in own],
                flight(*key, number),
                [self.base.pieces[body].slot(path) for path, body in self.common.twice(pipeline, own)],
            )
            for number, own in self.common.groups(pipeline)
        )

    def stepped_bytes(self, loads: Sequence[Load], pipeline: Config, storage: Storage) -> float:
        """Optimizer state of a rank, where there is most."""
        storage, dense, expert = self._copies(pipeline, storage)
        return max(
            load.dense.stepped(storage.zero, dense) + load.expert.stepped(storage.zero, expert) for load in loads
        )

    def _copies(self, pipeline: Config, storage: Storage) -> tuple[Storage, int, int]:
        """A storage as the target has it, and over how many ranks it goes outside and inside the experts."""
        dense, expert = copies(pipeline)
        ran = self.common.setting.ran(storage.on(pipeline))
        storage = replace(storage, zero=ran.zero, regather=ran.regather)
        if storage.shard:
            dense, expert = storage.shard, max(1, expert * storage.shard // dense)
        return storage, dense, expert

    def lacks_bytes(self, loads: Sequence[Load], pipeline: Config, storage: Storage, *, hosted: bool = False) -> float:
        """By how much the fullest group is too full at least; negative where it may fit. `hosted`: with the optimizer's
        state in the host's memory."""
        storage, dense, expert = self._copies(pipeline, storage)
        cut = (dense, expert) if storage.zero > 1 else (1, 1)
        kept = self.common.workload.states.used if storage.zero > 2 and not storage.regather else 0.0
        from_start = self.common.stack.style == "fused"
        states = self.common.workload.states
        part = states.used / states.stored
        fullest = 0.0
        for load in loads:
            state = load.dense.stored(storage.zero, dense, part, hosted=hosted)
            state += load.expert.stored(storage.zero, expert, part, hosted=hosted)
            stay = kept * (load.dense.stay * (dense > 1) + load.expert.stay * (expert > 1))
            state += max(0.0, stay - load.gathered)  # what stays is not made anew
            gradients = load.dense.gradients / cut[0] + load.expert.gradients / cut[1]
            working = load.before + gradients if from_start else max(load.before, load.graded + gradients)
            fullest = max(fullest, state + working)
        return self.common.with_runtime(fullest) * (1 - SLACK) - self.common.capacity


def _sums(values: Iterable[float]) -> list[float]:
    """Of all values before each."""
    found, total = [], 0.0
    for value in values:
        found.append(total)
        total += value
    return found
