"""One program's step: bodies become stages, stages a pipeline, the pipeline a step. The design stands in `evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import log2, prod
from typing import TypeVar

from meshwright.cost_models.collectives.collective import Collective, Library
from meshwright.cost_models.collectives.topology import GroupShape, group_shape, pair_shape
from meshwright.cost_models.cost import NOTHING, Cost, Taken, added, library_of, weakest_of_each
from meshwright.cost_models.hardware.devices import Device
from meshwright.cost_models.hardware.quantity import Kind, weakest
from meshwright.cost_models.intervals.seen import Case
from meshwright.cost_models.ledger.ledger import PHASES
from meshwright.cost_models.memory.peak import Holding, held, holdings, kind_of_memory
from meshwright.cost_models.offload import Host
from meshwright.cost_models.overlap import last_bucket, together
from meshwright.cost_models.prediction import SHARES, Held, Prediction, StagePrediction
from meshwright.cost_models.prices import Costs, Prices
from meshwright.cost_models.profile import kind_of_step
from meshwright.cost_models.schedule import Seconds, Simulated, compiled, makes_weights_apart, simulate
from meshwright.cost_models.traffic import tied, traffic
from meshwright.ir.graph.graph import ITEMSIZE
from meshwright.ir.program.crossing import Transfer
from meshwright.ir.program.program import Program, Stage
from meshwright.ir.schedules import work_of
from meshwright.ir.sharding.rank_classes import RankClass
from meshwright.ir.target.workload import Workload

_ROUNDING = 1e-12
"""Of a sum of seconds, as a share: less than this is no time."""

T = TypeVar("T")


class Step:
    """The price of one program."""

    def __init__(self, prices: Prices, program: Program, workload: Workload) -> None:
        self.prices, self.program, self.workload = prices, program, workload
        self.step, self.overheads = prices.profile.step, prices.profile.overheads
        self.hides = frozenset(workload.stack.hides)
        self.kinds: list[tuple[str, Kind]] = [("overlap", kind_of_step()), ("memory", kind_of_memory())]
        self.accumulates = program.microbatches > 1
        self.apart = makes_weights_apart(work_of(program))
        self.bodies = {body.name: body for body in program.bodies}
        self.ledgers = {name: prices.ledger(body, workload, self.accumulates) for name, body in self.bodies.items()}
        self.runs = [self.run_costs(stage) for stage in program.stages]
        self.first = self.first_alike()
        self.costs = self.each(self.stage_costs)
        self.forwards = self.each(self.forward)
        self.inputs = self.each(self.backward_inputs)
        self.weights = self.each(self.backward_weights)
        self.host = None
        if any(body.offloads for body in program.bodies):
            self.host = Host(prices, program, workload, self.ledgers)
            self.kinds.append(("host", self.host.kind))
            self.wait_for(self.host)

    def run_costs(self, stage: Stage) -> list[tuple[Costs, int]]:
        """The costs of a stage's body programs, each with its number of runs."""
        found = self.prices.rank_classes([stage], self.bodies)
        return [
            (self.prices.together([self.run_on(name, stage, own) for own in found]), run.repeats)
            for run in stage.runs
            for name in run.programs
        ]

    def run_on(self, name: str, stage: Stage, own: RankClass) -> Costs:
        """The cost of a body program on a rank class."""
        return self.prices.run(self.bodies[name], stage, own, self.workload, self.accumulates)

    def first_alike(self) -> list[int]:
        """The first stage that runs the same as each stage, in the same order at the same cost, on the same kinds of
        device."""
        first: dict[object, int] = {}
        found = []
        for index, (stage, runs) in enumerate(zip(self.program.stages, self.runs, strict=True)):
            periods = tuple(len(run.programs) for run in stage.runs)
            devices = self.prices.devices(stage.ranks)
            found.append(first.setdefault((devices, periods, *((id(costs), times) for costs, times in runs)), index))
        return found

    def each(self, price: Callable[[int], T]) -> list[T]:
        """A price of every stage; stages that are alike are priced once."""
        made = {index: price(index) for index in set(self.first)}
        return [made[index] for index in self.first]

    def stage_costs(self, index: int) -> dict[str, Cost]:
        """The costs of a stage by phase: its runs added up."""
        total = dict.fromkeys(PHASES, NOTHING)
        for costs, repeats in self.runs[index]:
            for phase, cost in costs.items():
                total[phase] = total[phase].plus(cost, repeats)
        return total

    def wait_for(self, host: Host) -> None:
        """Add the waits for copies to the host and back to the stages' forward and backward passes."""
        stages, forwards, inputs = self.program.stages, self.forwards, self.inputs
        self.forwards = self.each(lambda index: host.forward(stages[index], forwards[index]))
        self.inputs = self.each(
            lambda index: host.backward(stages[index], inputs[index], self.weights[index], self.apart)
        )

    # one micro-batch on one stage

    def forward(self, index: int) -> Taken:
        return self.acted(self.forward_of(self.costs[index], self.host_s(index)), self.overheads.action_s)

    def backward_inputs(self, index: int) -> Taken:
        return self.acted(self.inputs_of(self.costs[index], self.host_s(index)), self.overheads.action_s)

    def backward_weights(self, index: int) -> Taken:
        taken = self.weights_of(self.costs[index], self.host_s(index))
        return self.acted(taken, self.overheads.weights_s) if self.apart else taken

    def acted(self, taken: Taken, host_s: float) -> Taken:
        """The time of a pipeline's action, with the host's part; of one stage nothing is an action."""
        if len(self.program.stages) == 1 or not host_s:
            return taken
        return replace(taken, seconds=taken.seconds + host_s, shares=(*taken.shares, ("launch", host_s)))

    def seconds_on(self, index: int, ranks: tuple[int, ...]) -> float:
        """Seconds of a micro-batch on some of a stage's ranks, each with a share as the first rank has it."""
        stage, costs = self.program.stages[index], dict.fromkeys(PHASES, NOTHING)
        for run in stage.runs:
            for name in run.programs:
                for phase, cost in self.run_on(name, stage, RankClass(ranks)).items():
                    costs[phase] = costs[phase].plus(cost, run.repeats)
        host_s = self.host_of(ranks)
        taken = (self.forward_of(costs, host_s), self.inputs_of(costs, host_s), self.weights_of(costs, host_s))
        return _seconds(taken)

    def forward_of(self, costs: Mapping[str, Cost], host_s: float) -> Taken:
        return self.together(costs["forward"], host_s)

    def inputs_of(self, costs: Mapping[str, Cost], host_s: float) -> Taken:
        """Seconds of a backward pass of inputs: reductions run behind all of the backward pass, or, where weight
        gradients are made apart, behind those."""
        again, inputs, weights = costs["recompute"], costs["inputs"], costs["weights"]
        if self.apart:
            inputs, weights = replace(inputs, reductions_s=0.0), Cost()
        return self.together(again.plus(inputs), host_s, beside=weights, again=again)

    def weights_of(self, costs: Mapping[str, Cost], host_s: float) -> Taken:
        reductions_s = costs["inputs"].reductions_s if self.apart else 0.0
        return self.together(replace(costs["weights"], reductions_s=reductions_s), host_s)

    def host_s(self, index: int) -> float:
        return self.host_of(self.program.stages[index].ranks)

    def host_of(self, ranks: tuple[int, ...]) -> float:
        devices = self.prices.devices(ranks)
        return max(self.prices.host_s(device, self.workload) for device in devices)

    def together(self, cost: Cost, host_s: float, *, beside: Cost | None = None, again: Cost = NOTHING) -> Taken:
        alone = not self.accumulates
        return together(self.step, self.workload.stack, cost, host_s, beside=beside, again=again, alone=alone)

    # the whole step

    def prediction(self) -> Prediction:
        program = self.program
        ran = self.ran()
        ends = self.endings(ran)
        finish = [
            at + sum(end.values()) - before
            for at, end, before in zip(ran.finish_s, ends, self.before_s(ran), strict=True)
        ]
        last = max(range(len(finish)), key=finish.__getitem__)
        step_s, provenance = finish[last] * self.straggling, self.provenance()
        inside = ("kernels", "assumed") not in provenance
        low, high = self.prices.profile.interval(self.case(), len(program.stages), inside=inside)
        return Prediction(
            step_time_s=step_s,
            step_time_low_s=step_s * low,
            step_time_high_s=step_s * high,
            tokens_per_s_per_gpu=self.workload.tokens / step_s / self.ranks(),
            mfu=self.model_flops() / (step_s * self.peak_flops_per_s()),
            stages=self.stages(),
            shares=self.shares(last, step_s, ends[last], ran.sending_s[last], ran.release_s[last]),
            traffic=traffic(program, self.prices.cluster, self.ledgers, self.workload),
            provenance=provenance,
        )

    def case(self) -> Case:
        """What is priced, as far as the width of its interval depends on it."""
        devices = {device.name: device for ranks, _ in self.program.actions for device in self.prices.devices(ranks)}
        experts = any(ledger.routes for ledger in self.ledgers.values())
        return Case.of(devices.values(), self.workload, experts=experts, ranks=self.ranks())

    def ran(self) -> Simulated:
        """The program's work lists, timed."""
        release_s = [self.released_s(group) for group in range(len(self.program.actions))]
        return simulate(compiled(work_of(self.program)), self.seconds(), release_s=release_s)

    def endings(self, ran: Simulated) -> list[dict[str, float]]:
        """Seconds that follow the work list of every group, by share."""
        return [
            self.ending(group, *since) for group, since in enumerate(zip(self.after_s(ran), self.tied_s(), strict=True))
        ]

    @property
    def straggling(self) -> float:
        """The factor by which a step takes longer than its last group, since ranks wait for the slowest of many."""
        return 1 + self.step.straggling * log2(self.hosts())

    @property
    def rolling(self) -> bool:
        """Whether groups begin the next step without waiting for each other."""
        return self.apart and self.workload.stack.rolling

    def before_s(self, ran: Simulated) -> tuple[float, ...]:
        """Seconds that a group waits before its first action, where it spends that wait on the end of the step
        before."""
        return ran.begin_s if self.rolling else (0.0,) * len(ran.begin_s)

    def provenance(self) -> tuple[tuple[str, Kind], ...]:
        """The provenance of this price, that of the devices' own numbers included."""
        priced = [kind for costs in self.costs for cost in costs.values() for kind in cost.kinds]
        used = {device.name: device for stage in self.program.stages for device in self.prices.devices(stage.ranks)}
        numbers = [
            number for one in used.values() for number in (one.memory, one.memory_bandwidth, *dict(one.peaks).values())
        ]
        return weakest_of_each(*self.kinds, *priced, ("devices", weakest(*numbers).kind))

    def group_stages(self, group: int) -> list[int]:
        ranks = self.program.actions[group][0]
        return [index for index, stage in enumerate(self.program.stages) if stage.ranks == ranks]

    def released_s(self, group: int) -> float:
        """The time at which a group may begin: parameters that the step before published are gathered behind its first
        forward, as far as that lasts. What later stages of the group lack travels meanwhile."""
        first = self.group_stages(group)[0]
        gathers_s = self.costs[first]["publish"].published_s if "publish" in self.hides else 0.0
        return max(
            0.0, gathers_s - self.left_s(self.step.covered * self.forwards[first].seconds, [self.forwards[first]])
        )

    def ending(self, group: int, after_s: float, tied_s: float) -> dict[str, float]:
        """Seconds that follow a group's work list: reductions, begun `after_s` before its end, the first time that a
        stage's gradients were final; those of tied parameters, which nothing hides; the optimizer, publication."""
        stages, step = self.group_stages(group), self.step
        sync, update, publish = (
            added(self.costs[index][phase] for index in stages) for phase in ("sync", "update", "publish")
        )
        backward = [taken for index in stages for taken in (self.inputs[index], self.weights[index])]
        forward = [self.forwards[index] for index in stages]
        reductions_s, gathers_s = sync.reductions_s + sync.starts_s, publish.published_s
        if "gradients" in self.hides:
            hidden_s = self.left_s(step.covered * after_s, backward)
            shown_s = max(min(self.last_reduction_s(stages[0]), reductions_s), reductions_s - hidden_s)
            reductions_s = shown_s + step.slowdown * (reductions_s - shown_s)
        if "publish" in self.hides:
            gathers_s = step.slowdown * min(gathers_s, step.covered * _seconds(forward))
        found = {"gradients": reductions_s + tied_s, "optimizer": update.device_s, "publish": gathers_s}
        if self.overheads.step_s:
            found["launch"] = self.overheads.step_s
        if self.host is not None:
            room_s = max(0.0, after_s - sync.reductions_s) if "gradients" in self.hides else 0.0
            found["host"] = self.host.ending_s([self.program.stages[index] for index in stages], room_s)
        return found

    def last_reduction_s(self, stage: int) -> float:
        """Seconds of what a stage reduces last, behind which nothing runs any more."""
        own, whole_s = self.program.stages[stage], self.costs[stage]["sync"].reductions_s
        first_s = max((costs["sync"].reductions_s for costs, _ in self.runs[stage][:1]), default=0.0)
        if self.workload.stack.style not in ("eager", "compiled"):
            return first_s
        synced = [(self.ledgers[name].phases["sync"], run.repeats) for run in own.runs for name in run.programs]
        return max(first_s, whole_s * last_bucket(synced))

    def left_s(self, behind_s: float, beside: Iterable[Taken]) -> float:
        """Compute seconds that other gathers and reductions leave for one to hide behind."""
        return max(0.0, behind_s - sum(taken.beside_s for taken in beside))

    def after_s(self, ran: Simulated) -> list[float]:
        """Seconds from the start of the first last backward of a stage to the group's end: where weight gradients are
        made apart, of the last of those. More than one stage's depends on when each of them ran."""
        stages = [self.group_stages(group) for group in range(len(self.program.actions))]
        if all(len(own) == 1 for own in stages):
            return [
                self.weights[own[0]].seconds + (0.0 if self.apart else self.inputs[own[0]].seconds) for own in stages
            ]
        began = ran.last_start_s(("B", "W"))
        return [end - min(began[stage] for stage in own) for end, own in zip(ran.finish_s, stages, strict=True)]

    def seconds(self) -> Seconds:
        """Seconds of actions and transfers for the simulator."""
        inputs, weights = (tuple(one.seconds for one in taken) for taken in (self.inputs, self.weights))
        sent = self.transfers()
        edges = range(len(self.program.stages) - 1)
        return Seconds(
            forward_s=tuple(one.seconds for one in self.forwards),
            backward_s=tuple(i + w for i, w in zip(inputs, weights, strict=True)),
            input_s=inputs,
            weight_s=weights,
            value_s=tuple(sent.get((stage, stage + 1), 0.0) for stage in edges),
            gradient_s=tuple(sent.get((stage + 1, stage), 0.0) for stage in edges),
            exposed="pipeline" not in self.hides,
        )

    def tied_s(self) -> list[float]:
        """For every group, the reductions over stages of the gradients of parameters that it shares with other groups:
        the first holder's ranks with each other's (Megatron-LM's embedding group), one parameter after another; between
        different meshes by messages."""
        found = [0.0] * len(self.program.actions)
        kind: Collective = "p2p" if len({stage.mesh for stage in self.program.stages}) > 1 else "all_reduce"
        for tie in tied(self.program, self.workload):
            one, other = (self.program.stages[stage].ranks for stage in tie.stages)
            library = library_of(self.prices.devices(one)[0], self.workload)
            taken = self.moved(kind, tie.busiest, pair_shape(self.prices.cluster, one, other), library)
            for group, (members, _) in enumerate(self.program.actions):
                found[group] += taken if members in (one, other) else 0.0
        return found

    def transfers(self) -> dict[tuple[int, int], float]:
        """Seconds of the values, and of the gradients, that cross between two stages on different ranks."""
        moved: dict[tuple[int, int], float] = {}
        for hop in self.program.transfers:
            if self.program.stages[hop.from_stage].ranks == self.program.stages[hop.to_stage].ranks:
                continue
            there = (hop.from_stage, hop.to_stage)
            moved[there] = moved.get(there, 0.0) + self.sent(hop, *there)
            if hop.differentiable:
                moved[there[::-1]] = moved.get(there[::-1], 0.0) + self.sent(hop, *there[::-1])
        return moved

    def sent(self, hop: Transfer, source: int, target: int) -> float:
        """Bytes of one value that a transfer sends. Of copies, stacks like Megatron send a part each, and gather them
        where they arrive (Narayanan et al. 2104.04473, section 4.1). Between different meshes a rank sends what it
        holds, or receives what it is to hold, whichever is more."""
        sender, receiver = self.program.stages[source], self.program.stages[target]
        left, arrives = (hop.source, hop.target) if source == hop.from_stage else (hop.target, hop.source)
        elements = prod(left.local_shape(hop.type.shape, sender.mesh))
        if sender.mesh != receiver.mesh:
            elements = max(elements, prod(arrives.local_shape(hop.type.shape, receiver.mesh)))
        nbytes = elements * ITEMSIZE[hop.type.dtype]
        cut = {shard.axis for dim in left.dims for shard in dim}
        idle = tuple(axis.name for axis in sender.mesh.axes if axis.name not in cut and axis.size > 1)
        library = library_of(self.prices.devices(sender.ranks)[0], self.workload)
        shape = pair_shape(self.prices.cluster, sender.ranks, receiver.ranks)
        if not idle or self.workload.stack.style != "fused" or sender.mesh != receiver.mesh:
            return self.moved("p2p", nbytes, shape, library)
        copies = prod(sender.mesh.axis(axis).size for axis in idle)
        inside = group_shape(self.prices.cluster, receiver.ranks, receiver.mesh, idle)
        parts_s = self.moved("p2p", nbytes / copies, shape, library)
        return min(
            self.moved("p2p", nbytes, shape, library), parts_s + self.moved("all_gather", nbytes, inside, library)
        )

    def moved(self, kind: Collective, nbytes: float, shape: GroupShape, library: Library) -> float:
        priced = self.prices.moved(kind, nbytes, shape, library)
        self.kinds.append(("collectives", priced.provenance))
        return priced.seconds

    # what is told about it

    def ranks(self) -> int:
        return sum(len(ranks) for ranks, _ in self.program.actions)

    def hosts(self) -> int:
        cluster = self.prices.cluster
        per_host = min(pool.gpus_per_host for pool in cluster.pools)
        return min(cluster.hosts, -(-self.ranks() // per_host))

    def model_flops(self) -> float:
        """The model's own operations of one step, over all ranks, without what several ranks do alike."""
        runs = [run for stage in self.program.stages for run in stage.runs]
        each = sum(self.ledgers[name].model_flops * run.repeats for run in runs for name in run.programs)
        return each * self.program.microbatches

    def peak_flops_per_s(self) -> float:
        return sum(
            count * _sixteen_bit_peak(device)
            for ranks, _ in self.program.actions
            for device, count in self.prices.counted(ranks)
        )

    def held(self) -> tuple[Held, ...]:
        return held(self.program, self.prices.cluster, self.prices.profile.memory)

    def holdings(self) -> tuple[Holding, ...]:
        """The part of every group's memory that the order of its work decides."""
        return holdings(self.program, self.prices.cluster, self.prices.profile.memory)

    def stages(self) -> tuple[StagePrediction, ...]:
        return tuple(
            StagePrediction(
                stage=index,
                ranks=len(stage.ranks),
                forward_s=self.forwards[index].seconds,
                backward_s=self.inputs[index].seconds + self.weights[index].seconds,
                weight_s=self.weights[index].seconds,
                memory=memory,
            )
            for index, (stage, memory) in enumerate(zip(self.program.stages, self.held(), strict=True))
        )

    def shares(
        self, group: int, step_s: float, ends: Mapping[str, float], sending_s: float, release_s: float
    ) -> tuple[tuple[str, float], ...]:
        """Seconds by share on the group that ends last; the rest is waiting."""
        found = dict.fromkeys(SHARES, 0.0) | dict(ends)
        found["transfers"] += sending_s
        found["publish"] += release_s
        for index in self.group_stages(group):
            for taken in (self.forwards[index], self.inputs[index], self.weights[index]):
                for name, seconds in taken.shares:
                    found[name] += seconds * self.program.microbatches
        left_s = step_s - sum(found.values())
        found["bubble"] = left_s if left_s > _ROUNDING * step_s else 0.0
        return tuple(found.items())


def _seconds(taken: Iterable[Taken]) -> float:
    return sum(one.seconds for one in taken)


def _sixteen_bit_peak(device: Device) -> float:
    """The dense 16-bit peak of all devices, by which utilisation is measured."""
    wanted = next((name for name in ("bf16", "fp16", "fp32") if name in device.dtypes), device.dtypes[0])
    return device.peak(wanted).value
