"""The evaluator: one Program, one cluster, one profile; one Prediction.

Every second and byte that a user sees comes from here. A step is priced as it runs:

1. Each body program has a *ledger* (`ledger`): kernels and transmissions by phase. Kernels are priced by `compute` on
   the slowest device of the stage, transmissions by `collectives` over the group that their axes span (`topology`).
2. A stage runs its bodies as often as the Program repeats them. Per micro-batch,

       forward  = stretch(kernels) + exposed(values) + uncovered(gathers)
       inputs   = the same over what runs again and over gradients of values
       weights  = stretch(kernels of weight gradients)                        backward = inputs + weights

   stretch(kernels) = max(device seconds, launches x host seconds per launch). Values that an operator waits for are
   exposed, but for what the stack hides: chunks of them behind products (`tensor`), ring steps behind attention
   (`ring`), those of the backward pass behind weight gradients (`hidden_backward`, where gathered values are gathered
   again). Gathers of parameters ahead of their use, and reductions behind the backward pass, are uncovered only as far
   as they last longer than the compute they run beside:

       uncovered(T) = max(0, T - covered x compute)        compute grows by slowdown x min(T, compute)

3. The pipeline simulator (`schedule`) runs the Program's work lists with these durations and with the transfers between
   stages.
4. After a group's last backward: reductions of gradients once per step (behind its last micro-batch's backward, where
   the stack hides `gradients`), the optimizer, gathers of updated parameters (behind the next step's first forward,
   where it hides `publish`). The step ends with the last group.
5. Ranks wait for the slowest of many: the step grows by `straggling` per doubling of hosts.

Memory is `memory`'s. What a price stands on is the weakest provenance among its parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log2, prod
from typing import Any

from meshwright.cost_models.cluster import Cluster
from meshwright.cost_models.collectives import Library, collective
from meshwright.cost_models.compute import Compute
from meshwright.cost_models.hardware import Device
from meshwright.cost_models.ledger import PHASES, Ledger, Phase, ledger
from meshwright.cost_models.memory import held
from meshwright.cost_models.prediction import SHARES, Held, Prediction, StagePrediction
from meshwright.cost_models.profile import Profile, kind_of_step
from meshwright.cost_models.quantity import Kind, weakest_kind
from meshwright.cost_models.schedule import Seconds, compiled, simulate
from meshwright.cost_models.topology import GroupShape, group_shape, pair_shape
from meshwright.ir.errors import WorkloadMissing
from meshwright.ir.graph import ITEMSIZE
from meshwright.ir.program import BodyProgram, Program, Stage
from meshwright.ir.rules.base import Engine
from meshwright.ir.schedules import work_of
from meshwright.ir.workload import Stack, Workload


def evaluate(program: Program, cluster: Cluster, profile: Profile) -> Prediction:
    """The price of a program. To price many on one cluster, keep an `Evaluator`."""
    return Evaluator(cluster, profile)(program)


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one phase, alone on its device and its wires: of one body program, or added up over many."""

    engines: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Device seconds of products, attention and memory-bound kernels."""
    launches: int = 0
    values: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Collectives that operators wait for: tensor, context, expert."""
    ring_s: float = 0.0
    gathers_s: float = 0.0
    """Gathers of parameters, which can run ahead of their use."""
    first_gather_s: float = 0.0
    """The largest of them in one body program: nothing runs ahead of the first."""
    reductions_s: float = 0.0
    """Reductions of gradients."""

    @property
    def device_s(self) -> float:
        return sum(self.engines)

    def plus(self, other: Cost, times: int = 1) -> Cost:
        a, b = self.engines, other.engines
        c, d = self.values, other.values
        return Cost(
            (a[0] + times * b[0], a[1] + times * b[1], a[2] + times * b[2]),
            self.launches + times * other.launches,
            (c[0] + times * d[0], c[1] + times * d[1], c[2] + times * d[2]),
            self.ring_s + times * other.ring_s,
            self.gathers_s + times * other.gathers_s,
            max(self.first_gather_s, other.first_gather_s),
            self.reductions_s + times * other.reductions_s,
        )


NOTHING = Cost()


@dataclass(frozen=True, slots=True)
class Taken:
    """What a phase takes once its parts run together: seconds in all, and by share."""

    seconds: float = 0.0
    shares: tuple[tuple[str, float], ...] = ()


class Evaluator:
    """Prices programs on one cluster with one profile; what body programs cost is remembered."""

    def __init__(self, cluster: Cluster, profile: Profile) -> None:
        self.cluster, self.profile = cluster, profile
        self.kinds: dict[str, Kind] = {}
        self._computes: dict[tuple[str, str, str], Compute] = {}
        self._ledgers: dict[tuple[int, Workload, bool], tuple[BodyProgram, Ledger]] = {}
        self._costs: dict[tuple[object, ...], tuple[Ledger, dict[str, Cost]]] = {}
        self._devices: dict[int, tuple[tuple[int, ...], Device]] = {}

    def __call__(self, program: Program) -> Prediction:
        if program.workload is None:
            raise WorkloadMissing(
                place="program", cause="it says nothing of its workload", fix="lower it with a Workload"
            )
        return _Step(self, program, program.workload).prediction()

    def device(self, ranks: tuple[int, ...]) -> Device:
        """The slowest device among these ranks."""
        found = self._devices.get(id(ranks))
        if found is None:
            _make_room(self._devices)
            pools = {self.cluster.place(rank).pool for rank in ranks} if len(self.cluster.pools) > 1 else {0}
            slowest = min((self.cluster.pools[pool].device for pool in sorted(pools)), key=_speed)
            found = self._devices[id(ranks)] = (ranks, slowest)
        return found[1]

    def compute(self, device: Device, workload: Workload) -> Compute:
        stack = workload.stack
        key = (device.name, stack.style, stack.attention)
        if key not in self._computes:
            self._computes[key] = Compute(
                device, style=stack.style, attention=attention_of(stack), values=self.profile.compute
            )
        return self._computes[key]

    def ledger(self, body: BodyProgram, workload: Workload, accumulates: bool) -> Ledger:
        key = (id(body), workload, accumulates)
        if key not in self._ledgers:
            _make_room(self._ledgers)
            self._ledgers[key] = (body, ledger(body, workload, accumulates=accumulates))
        return self._ledgers[key][1]

    def costs(self, book: Ledger, stage: Stage, workload: Workload) -> dict[str, Cost]:
        """The phases of one body program on a stage."""
        device = self.device(stage.ranks)
        shapes = {axes: group_shape(self.cluster, stage.ranks, stage.mesh, axes) for axes in book.axes}
        key = (id(book), device.name, workload, *shapes.values())
        found = self._costs.get(key)
        if found is None:
            _make_room(self._costs)
            compute, library = self.compute(device, workload), library_of(device, workload)
            costs = {name: self._cost(phase, compute, shapes, library, workload) for name, phase in book.phases.items()}
            found = self._costs[key] = (book, costs)
        return found[1]

    def _cost(
        self,
        phase: Phase,
        compute: Compute,
        shapes: Mapping[tuple[str, ...], GroupShape],
        library: Library,
        workload: Workload,
    ) -> Cost:
        engines, values = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
        launches, ring_s, gathers_s, reductions_s = 0, 0.0, 0.0, 0.0
        for kernel, count in phase.kernels.items():
            priced = compute.seconds(kernel)
            self.note("kernels", priced.kind)
            engines[_ENGINES[kernel.engine]] += count * priced.seconds
            launches += count
        for one, count in phase.transmissions.items():
            routed = workload.imbalance if one.kind == "all_to_all" else 1.0
            moved = collective(one.kind, one.nbytes, shapes[one.axes], library, imbalance=routed)
            self.note("collectives", moved.provenance)
            seconds = count * one.steps * moved.seconds
            if one.reason == "ring":
                ring_s += seconds
            elif one.reason in ("parameter", "update"):
                gathers_s += seconds
            elif one.reason == "sync":
                reductions_s += seconds
            else:
                values[_purpose(one.axes)] += seconds
        return Cost(
            (engines[0], engines[1], engines[2]),
            launches,
            (values[0], values[1], values[2]),
            ring_s,
            gathers_s,
            gathers_s,
            reductions_s,
        )

    def note(self, what: str, kind: Kind) -> None:
        self.kinds[what] = weakest_kind(kind, self.kinds.get(what, kind))


MOST_KNOWN = 2048
"""Body programs, stages and groups of ranks that an evaluator remembers."""


def _make_room(known: dict[Any, Any]) -> None:
    if len(known) >= MOST_KNOWN:
        known.clear()


_ENGINES = {Engine.MATMUL: 0, Engine.CONV: 0, Engine.ATTENTION: 1, Engine.MEMORY: 2}
_DEVICE = ("matmul", "attention", "memory-bound")
_VALUES = ("tensor", "context", "expert")
_PURPOSES = {"cp": 1, "ep": 2}
"""What a collective that operators wait for is for, by the name of its axis; others are tensor parallelism."""


def _purpose(axes: Sequence[str]) -> int:
    return max(_PURPOSES.get(axis, 0) for axis in axes)


def _speed(device: Device) -> float:
    return max(quantity.value for _, quantity in device.peaks)


def attention_of(stack: Stack) -> str:
    """The attention kernel that a stack asks for; written out, fused stacks run Megatron's masked softmax."""
    return "megatron" if stack.attention == "math" and stack.style == "fused" else stack.attention


def library_of(device: Device, workload: Workload) -> Library:
    """Whose collectives run on a device."""
    if workload.stack.style == "xla" or device.vendor == "Google":
        return "xla"
    if not device.peaks or device.name.lower().startswith("cpu"):
        return "gloo"
    return "rccl" if device.vendor == "AMD" else "nccl"


class _Step:
    """One program, priced."""

    def __init__(self, evaluator: Evaluator, program: Program, workload: Workload) -> None:
        self.evaluator, self.program, self.workload = evaluator, program, workload
        self.step = evaluator.profile.step
        self.hides = frozenset(workload.stack.hides)
        self.accumulates = program.microbatches > 1
        bodies = {body.name: body for body in program.bodies}
        self.ledgers = {name: evaluator.ledger(body, workload, self.accumulates) for name, body in bodies.items()}
        self.costs = [self.stage_costs(stage) for stage in program.stages]
        self.forwards = [self.forward(index) for index in range(len(program.stages))]
        self.inputs = [self.backward_inputs(index) for index in range(len(program.stages))]
        self.weights = [self.backward_weights(index) for index in range(len(program.stages))]

    def stage_costs(self, stage: Stage) -> dict[str, Cost]:
        """All phases of a stage: its runs added up."""
        total = dict.fromkeys(PHASES, NOTHING)
        for run in stage.runs:
            for name in run.programs:
                costs = self.evaluator.costs(self.ledgers[name], stage, self.workload)
                for phase, cost in costs.items():
                    total[phase] = total[phase].plus(cost, run.repeats)
        return total

    # one micro-batch on one stage

    def forward(self, index: int) -> Taken:
        return self.together(self.costs[index]["forward"], self.host_s(index))

    def backward_inputs(self, index: int) -> Taken:
        costs = self.costs[index]
        again, inputs, weights = costs["recompute"], costs["inputs"], costs["weights"]
        return self.together(again.plus(inputs), self.host_s(index), beside=weights, again=again)

    def backward_weights(self, index: int) -> Taken:
        return self.together(self.costs[index]["weights"], self.host_s(index))

    def host_s(self, index: int) -> float:
        device = self.evaluator.device(self.program.stages[index].ranks)
        return self.evaluator.compute(device, self.workload).host_s

    def together(self, cost: Cost, host_s: float, *, beside: Cost = NOTHING, again: Cost = NOTHING) -> Taken:
        """Kernels and collectives of a stretch as they run together; `beside` is compute of the same stretch that is
        counted elsewhere, `again` the part that runs a second time."""
        step, device_s = self.step, cost.device_s
        launch_s = max(0.0, cost.launches * host_s - device_s)
        behind_s = step.covered * (device_s + beside.device_s)
        values = list(cost.values)
        if "tensor" in self.hides:
            values[0] *= 1 - step.hidden_tensor
        elif beside is not NOTHING and self.workload.stack.regathers:
            values[0] *= 1 - step.hidden_backward
        ring_s = max(0.0, cost.ring_s - cost.engines[1]) if "ring" in self.hides else cost.ring_s
        values[1] += ring_s
        moved_s = self.uncovered(cost, behind_s)
        busy_s = min(cost.gathers_s + cost.reductions_s, behind_s)
        slowed_s = step.slowdown * busy_s
        share = (device_s - again.device_s) / device_s if device_s else 0.0
        shares = [(name, part * share) for name, part in zip(_DEVICE, cost.engines, strict=True)]
        shares += [("recompute", again.device_s), ("launch", launch_s), ("parameters", moved_s + slowed_s)]
        shares += list(zip(_VALUES, values, strict=True))
        return Taken(sum(seconds for _, seconds in shares), tuple(shares))

    def uncovered(self, cost: Cost, behind_s: float) -> float:
        """What shows of gathers and reductions beside compute."""
        gathers = cost.gathers_s
        hidden = 0.0
        shown = 0.0
        if "parameters" in self.hides:
            hidden += gathers
        else:
            shown += gathers
        if "gradients" in self.hides:
            hidden += cost.reductions_s
        else:
            shown += cost.reductions_s
        return shown + max(0.0, hidden - behind_s)

    # the whole step

    def prediction(self) -> Prediction:
        program = self.program
        ran = simulate(compiled(work_of(program)), self.seconds())
        ends = [self.ending(group) for group in range(len(program.actions))]
        finish = [at + sum(end.values()) for at, end in zip(ran.finish_s, ends, strict=True)]
        last = max(range(len(finish)), key=finish.__getitem__)
        step_s = finish[last] * (1 + self.step.straggling * log2(self.hosts()))
        return Prediction(
            step_time_s=step_s,
            step_time_low_s=step_s * (1 - self.step.interval),
            step_time_high_s=step_s * (1 + self.step.interval),
            tokens_per_s_per_gpu=self.workload.tokens / step_s / self.ranks(),
            mfu=self.model_flops() / (step_s * self.peak_flops_per_s()),
            stages=self.stages(),
            shares=self.shares(last, step_s, ends[last]),
            traffic=self.traffic(),
            provenance=tuple(sorted((self.evaluator.kinds | {"overlap": kind_of_step()}).items())),
        )

    def group_stages(self, group: int) -> list[int]:
        ranks = self.program.actions[group][0]
        return [index for index, stage in enumerate(self.program.stages) if stage.ranks == ranks]

    def ending(self, group: int) -> dict[str, float]:
        """After a group's last backward: reductions, optimizer, publication."""
        stages = self.group_stages(group)
        sync, update, publish = (
            _added(self.costs[index][phase] for index in stages) for phase in ("sync", "update", "publish")
        )
        last_backward_s = sum(self.inputs[index].seconds + self.weights[index].seconds for index in stages)
        first_forward_s = sum(self.forwards[index].seconds for index in stages)
        return {
            "gradients": self.shown(sync.reductions_s, "gradients", last_backward_s),
            "optimizer": update.device_s,
            "publish": self.shown(publish.gathers_s, "publish", first_forward_s),
        }

    def shown(self, seconds: float, what: str, beside_s: float) -> float:
        """What a collective at the end of the step adds to it, when the stack may run it beside compute."""
        if what not in self.hides:
            return seconds
        behind_s = self.step.covered * beside_s
        return max(0.0, seconds - behind_s) + self.step.slowdown * min(seconds, behind_s)

    def seconds(self) -> Seconds:
        """What the simulator needs to know."""
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

    def transfers(self) -> dict[tuple[int, int], float]:
        """Seconds of the values, and of the gradients, that cross between two stages on different ranks."""
        moved: dict[tuple[int, int], float] = {}
        for hop in self.program.transfers:
            source, target = (self.program.stages[index] for index in (hop.from_stage, hop.to_stage))
            if source.ranks == target.ranks:
                continue
            nbytes = prod(hop.source.local_shape(hop.type.shape, source.mesh)) * ITEMSIZE[hop.type.dtype]
            there = (hop.from_stage, hop.to_stage)
            moved[there] = moved.get(there, 0.0) + nbytes
            if hop.differentiable:
                moved[there[::-1]] = moved.get(there[::-1], 0.0) + nbytes
        return {pair: self.sent(pair, nbytes) for pair, nbytes in moved.items()}

    def sent(self, pair: tuple[int, int], nbytes: float) -> float:
        source, target = (self.program.stages[index] for index in pair)
        shape = pair_shape(self.evaluator.cluster, source.ranks, target.ranks)
        library = library_of(self.evaluator.device(source.ranks), self.workload)
        moved = collective("p2p", nbytes, shape, library)
        self.evaluator.note("collectives", moved.provenance)
        return moved.seconds

    # what is told about it

    def ranks(self) -> int:
        return sum(len(ranks) for ranks, _ in self.program.actions)

    def hosts(self) -> int:
        cluster = self.evaluator.cluster
        per_host = min(pool.gpus_per_host for pool in cluster.pools)
        return max(1, min(cluster.hosts, -(-self.ranks() // per_host)))

    def model_flops(self) -> float:
        """Of one step, over all ranks; every rank of a stage is counted, so work done twice counts twice."""
        per_rank = [
            sum(self.ledgers[name].model_flops * run.repeats for run in stage.runs for name in run.programs)
            * len(stage.ranks)
            for stage in self.program.stages
        ]
        return sum(per_rank) * self.program.microbatches

    def peak_flops_per_s(self) -> float:
        return sum(len(ranks) * _sixteen_bit_peak(self.evaluator.device(ranks)) for ranks, _ in self.program.actions)

    def held(self) -> tuple[Held, ...]:
        return held(self.program, self.evaluator.cluster, self.evaluator.profile.memory)

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

    def shares(self, group: int, step_s: float, ends: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
        """Where the step goes on the group that ends last; what is left is waiting."""
        found = dict.fromkeys(SHARES, 0.0) | dict(ends)
        for index in self.group_stages(group):
            for taken in (self.forwards[index], self.inputs[index], self.weights[index]):
                for name, seconds in taken.shares:
                    found[name] += seconds * self.program.microbatches
        found["bubble"] += step_s - sum(found.values())
        return tuple(found.items())

    def traffic(self) -> tuple[tuple[str, float], ...]:
        """Bytes received in a step, by tier of link."""
        found: dict[str, float] = {}
        for stage in self.program.stages:
            for run in stage.runs:
                for name in run.programs:
                    self.add_traffic(found, stage, self.ledgers[name], run.repeats)
        return tuple(sorted(found.items()))

    def add_traffic(self, found: dict[str, float], stage: Stage, book: Ledger, repeats: int) -> None:
        for name, phase in book.phases.items():
            times = (
                repeats * len(stage.ranks) * (1 if name in ("sync", "update", "publish") else self.program.microbatches)
            )
            for one, count in phase.transmissions.items():
                shape = group_shape(self.evaluator.cluster, stage.ranks, stage.mesh, one.axes)
                if shape.levels:
                    tier = shape.levels[-1].tier
                    found[tier] = found.get(tier, 0.0) + times * count * one.received_bytes(shape.ranks)


def _added(costs: Iterable[Cost]) -> Cost:
    total = NOTHING
    for cost in costs:
        total = total.plus(cost)
    return total


def _sixteen_bit_peak(device: Device) -> float:
    """The dense peak that a utilisation is a share of."""
    wanted = next((name for name in ("bf16", "fp16", "fp32") if name in device.dtypes), device.dtypes[0])
    return device.peak(wanted).value
