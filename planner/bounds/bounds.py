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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from meshwright.cost_models.collectives.collective import Collective
from meshwright.cost_models.collectives.topology import GroupShape, group_shape
from meshwright.cost_models.cost import Cost
from meshwright.cost_models.schedule import Seconds as Taken
from meshwright.cost_models.schedule import compiled, simulate
from meshwright.ir.decisions.sharding import Sharding
from meshwright.ir.names import uses
from meshwright.ir.names.degrees import Use
from meshwright.ir.schedules import SCHEDULES, Shape, stage_groups, work_lists
from meshwright.ir.sharding.mesh import Mesh
from meshwright.planner.bounds.bases import Base, Held, Room, Seconds, copies, places, room, seconds
from meshwright.planner.bounds.common import NOBODY, SLACK, Between, Calls, Common, sums_before
from meshwright.planner.bounds.in_flight import Flight, flight
from meshwright.planner.question.pins import Config
from meshwright.planner.space.declared import Storage


@dataclass(frozen=True, slots=True)
class Wires:
    """Costs of the communication between copies: for each body, seconds to gather its parameters, to gather those that
    its backward pass reads, and to reduce its gradients; and which of them run with every micro-batch."""

    gathers: Mapping[str, float]
    again: Mapping[str, float]
    reduces: Mapping[str, float]
    sharding: Sharding
    regather: bool
    blocks_alone: bool
    """Whether only what runs several times is gathered again."""

    def forward(self, calls: Calls) -> Cost:
        return _gathers(self.gathers, calls) if self.sharding.params else Cost()

    def backward(self, calls: Calls) -> tuple[Cost, Cost]:
        """Seconds of gathers and reductions in the backward pass."""
        gathered = tuple((name, times) for name, times in calls if times > 1 or not self.blocks_alone)
        again = _gathers(self.again, gathered) if gathered and self.sharding.params and self.regather else Cost()
        reduced = sum(times * self.reduces[name] for name, times in calls) if self.sharding.grads else 0.0
        return again, Cost(reductions_s=reduced)

    def once(self, calls: Calls) -> tuple[float, float]:
        """Seconds per step: reductions, and gathers of updated parameters."""
        reduced = sum(times * self.reduces[name] for name, times in calls) if not self.sharding.grads else 0.0
        published = sum(times * self.gathers[name] for name, times in calls) if self.sharding.publishes else 0.0
        return reduced, published


def _staying(held: Held, copies: int, spread: bool) -> float:
    """Parameters that stay in the form that operators read, where copies share them out."""
    return 0.0 if copies == 1 else held.elements + held.untrained if spread else held.stay


def _bytes(*counts: float) -> list[float]:
    """Bytes of numbers of elements; the last argument is the width of one."""
    *elements, width = counts
    return [count * width for count in elements]


def _gathers(seconds: Mapping[str, float], calls: Calls) -> Cost:
    total = sum(times * seconds[name] for name, times in calls)
    return Cost(gathers_s=total, first_gather_s=max(seconds[name] for name, _ in calls))


def _beside(costs: Mapping[str, Cost], calls: Calls, between: Between) -> Mapping[str, Cost]:
    """The costs of a stage together with the exchanges of its bodies, by phase."""
    found = dict(costs)
    for name, times in calls:
        for phase, cost in between.get(name, {}).items():
            found[phase] = found[phase].plus(cost, times)
    return found


@dataclass(frozen=True, slots=True)
class Load:
    """Memory of a group: its state before copies share it out, and the fullest instant of its work, over all instants
    (`before`) and over those with gradients of all its stages (`graded`); which part of these is parameters in the form
    that operators read; and `Room.pair`."""

    dense: Held
    expert: Held
    before: float
    graded: float
    gathered: float
    pair: tuple[float, float] = (0.0, 0.0)

    @staticmethod
    def of(
        rooms: Sequence[Room],
        flight: Flight,
        twice: Iterable[tuple[Held, bool]],
    ) -> Load:
        """The load of a group. `twice`: state of parameters that another call of the group holds already, and whether
        it is inside experts."""
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
        dense_pair, pair = (max(sizes) for sizes in zip(*(one.pair for one in rooms), strict=True))
        return Load(dense, expert, before, graded, max(one.gathered for one in rooms), (dense_pair, pair))


class Bounds:
    """Bounds on the configurations that share one kernel configuration."""

    def __init__(self, common: Common, base: Base) -> None:
        self.common, self.base = common, base
        self._seconds: dict[tuple[Calls, int, bool, int], Seconds] = {}
        self._costs: dict[Calls, dict[str, Cost]] = {}
        self._rooms: dict[Calls, Room] = {}
        self._wires: dict[tuple[object, ...], Wires] = {}
        self.work_s = self._work_s()

    def _work_s(self) -> float:
        """Least seconds of a micro-batch on all stages together."""
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
        """Costs of the communication between the copies of a configuration."""
        config = self.common.setting.ran(config)
        key = config.dp, config.pp, config.zero, config.shard, config.regather
        if key not in self._wires:
            self._wires[key] = self._wired(config)
        return self._wires[key]

    def _wired(self, config: Config) -> Wires:
        mesh = config.degrees().mesh()
        anywhere = [self._moved(config, ranks, mesh) for ranks in places(self.common.prices.cluster, mesh.size)]
        least = [{name: min(one[at][name] for one in anywhere) for name in self.base.pieces} for at in range(3)]
        blocks_alone = not self.common.setting.target.regathers
        return Wires(least[0], least[1], least[2], config.sharding, config.regather, blocks_alone)

    def _moved(self, config: Config, ranks: tuple[int, ...], mesh: Mesh) -> tuple[dict[str, float], ...]:
        """Seconds, per body, to gather its parameters, to gather those that its backward pass reads, and to reduce its
        gradients, on these ranks."""
        common, states, found = self.common, self.common.workload.states, uses(config.degrees())
        least = common.prices.least

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
            return sum(least.moved(kind, nbytes, over, common.library).seconds for over, nbytes in together.items())

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
        kind: Collective = "reduce_scatter" if config.sharding.optimizer else "all_reduce"
        over = storing if config.sharding.optimizer else [outside, inside]
        wider = [use for use in found if use in outside or use.outside == "tp"]
        fewer = [use for use in over[1] if use.outside != "tp"]
        idle = prod(use.size for use in inside if use.outside == "tp")
        parts = prod(use.size for use in storing[0]), prod(use.size for use in storing[1])
        gathers, again, reduces = {}, {}, {}
        for name, piece in self.base.pieces.items():
            dense, expert = piece.states
            cut, cut_expert = piece.states if common.setting.target.pads else piece.shared(parts)
            gathers[name] = moved(
                "all_gather", *zip(_bytes(cut.elements, cut_expert.elements, states.used), storing, strict=True)
            )
            again[name] = moved(
                "all_gather", *zip(_bytes(cut.again, cut_expert.again, states.used), storing, strict=True)
            )
            whole, split, experts = _bytes(piece.whole, dense.elements - piece.whole, expert.elements, states.reduced)
            reduces[name] = min(
                moved(kind, (split, over[0]), (whole, one), two)
                for one in (over[0], wider)
                for two in ((experts, over[1]), (experts / idle, fewer))
            )
        return gathers, again, reduces

    # time

    def seconds(self, calls: Calls, wires: Wires | None, apart: bool, between: Between = NOBODY) -> Seconds:
        """Least seconds of a stage with these calls; `wires` are given where they run with every micro-batch, `between`
        are the exchanges of bodies between copies."""
        key = calls, id(wires), apart, id(between)
        if key not in self._seconds:
            self._seconds[key] = seconds(
                self.common.step,
                self.common.stack,
                self.costs(calls) if not between else _beside(self.costs(calls), calls, between),
                self.common.host_s,
                gathers=wires.forward(calls) if wires else Cost(),
                backward=wires.backward(calls) if wires else (Cost(), Cost()),
                apart=apart,
            )
        return self._seconds[key]

    def costs(self, calls: Calls) -> dict[str, Cost]:
        """Costs of a stage with these calls by phase, without gathers and reductions."""
        if calls not in self._costs:
            self._costs[calls] = self.base.piece(calls)
        return self._costs[calls]

    def least_s(self, config: Config) -> float:
        """A weaker bound than `step_s`, which is cheaper: the work of all stages in equal shares."""
        return self.work_s * config.microbatches / config.pp * self.common.straggling

    def step_s(self, config: Config, wires: Wires | None = None) -> float:
        """Least step time of a configuration; without wires, whatever is stored where."""
        stages, held = self._held(config, wires)
        m, apart = config.microbatches, SCHEDULES[config.schedule].splits
        rolling = apart and self.common.stack.rolling
        forward = sums_before(one.forward for one in held)
        back = sums_before((one.inputs if apart else one.inputs + one.weights) for one in held)
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
        """A stronger bound than `step_s`, which is dearer: the schedule is run action by action."""
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
        """The stages of a configuration, with the seconds of a micro-batch on each."""
        stages = self.common.stages(config)
        beside = wires if wires and wires.sharding.grads else None
        apart = SCHEDULES[config.schedule].splits
        between = self.common.between(self.base.config, config)
        taken = {calls: self.seconds(calls, beside, apart, between) for calls in set(stages)}
        return stages, [taken[calls] for calls in stages]

    def _ending_s(self, config: Config, own: Sequence[tuple[Calls, Seconds]], wires: Wires | None) -> float:
        """Seconds at the end of a step: the optimizer, reductions that the last backward pass does not hide, and
        gathers of updated parameters."""
        updates = sum(one.update for _, one in own)
        if wires is None:  # copies may share it out
            return updates / max(copies(config))
        ending = updates / (max(copies(config)) if config.sharding.optimizer else 1)
        hides = self.common.stack.hides
        reduced, published = (sum(wires.once(calls)[at] for calls, _ in own) for at in (0, 1))
        if "gradients" in hides and not (config.pp > 1 and self.common.setting.target.reduces_last):
            hidden = self.common.step.covered * own[0][1].work if len(own) == 1 else reduced
            first = own[0][0][0][0]  # what a stage reduces last is of its first call alone
            reduced = max(wires.once(((first, 1),))[0], reduced - hidden)
        return ending + reduced + (0.0 if "publish" in hides else published)

    # memory

    def room(self, calls: Calls) -> Room:
        """Memory of a stage with these calls."""
        if calls not in self._rooms:
            self._rooms[calls] = room(self.common.workload, self.base, calls)
        return self._rooms[calls]

    def loads(self, pipeline: Config) -> tuple[Load, ...]:
        """Memory of the groups of a pipeline, before storage is decided."""
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
        """Optimizer state of the rank that has most."""
        storage, dense, expert = self._copies(pipeline, storage)
        return max(
            load.dense.stepped(storage.sharding, dense) + load.expert.stepped(storage.sharding, expert)
            for load in loads
        )

    def _copies(self, pipeline: Config, storage: Storage) -> tuple[Storage, int, int]:
        """A storage option as the target runs it, and the number of ranks that it shards over, outside the experts and
        inside."""
        dense, expert = copies(pipeline)
        otherwise = self.common.setting.target.ran(storage.zero, pipeline.microbatches)
        storage = replace(storage, **otherwise) if otherwise else storage
        if storage.shard:
            dense, expert = storage.shard, max(1, expert * storage.shard // dense)
        return storage, dense, expert

    def lacks_bytes(
        self, loads: Sequence[Load], pipeline: Config, storage: Storage, *, offloaded: bool = False
    ) -> float:
        """By how much the fullest group is too full at least; negative where it may fit. `offloaded`: with the
        optimizer's state in the host's memory."""
        storage, dense, expert = self._copies(pipeline, storage)
        sharding, states, stack = storage.sharding, self.common.workload.states, self.common.stack
        cut = (dense, expert) if sharding.grads else (1, 1)
        stays = not storage.regather if sharding.params else sharding.optimizer and stack.by_torch
        kept, part = (states.used, 0.0) if stays else (0.0, states.used / states.stored)
        cast = stack.by_torch and states.casts and dense > 1 and expert == 1
        from_start = stack.style == "fused"
        spread = stays and not sharding.params  # units of FSDP keep all that is in them, trained or not
        pools = self.common.pools and dense > 1
        arrives = states.used if pools and self.common.prefetches and (sharding.params or sharding.optimizer) else 0.0
        fullest = 0.0
        for load in loads:
            state = load.dense.stored(sharding, dense, part, offloaded=offloaded)
            state += load.expert.stored(sharding, expert, part, offloaded=offloaded)
            stay = kept * (_staying(load.dense, dense, spread) + _staying(load.expert, expert, spread))
            stay += kept * load.expert.beside * cast
            state += max(0.0, stay - load.gathered)  # what stays is not made anew
            state += arrives * load.pair[expert > 1]
            own, routed = load.dense.gradients / cut[0], load.expert.gradients / cut[1]
            pooled = own + routed * (expert > 1) if pools and sharding.grads else 0.0
            gradients = own + routed
            working = load.before + gradients if from_start else max(load.before + pooled, load.graded + gradients)
            fullest = max(fullest, state + working)
        return self.common.with_runtime(fullest) * (1 - SLACK) - self.common.capacity
