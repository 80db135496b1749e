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
   where it hides `publish`). The step ends with the last group; where groups roll on into the next step without waiting
   for each other (`rolling`), it takes as long as the group whose own work and waits are longest.
5. Ranks wait for the slowest of many: the step grows by `straggling` per doubling of hosts.

Memory is `memory`'s. What a price stands on is the weakest provenance among its parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2, prod
from typing import Any

from meshwright.cost_models.cluster import Cluster
from meshwright.cost_models.collectives import Library, collective
from meshwright.cost_models.compute import Compute, Kernel
from meshwright.cost_models.hardware import Device
from meshwright.cost_models.ledger import PHASES, Ledger, Phase, ledger
from meshwright.cost_models.memory import held, kind_of_memory
from meshwright.cost_models.prediction import SHARES, Held, Prediction, StagePrediction
from meshwright.cost_models.profile import Profile, kind_of_step
from meshwright.cost_models.quantity import Kind, weakest, weakest_kind
from meshwright.cost_models.schedule import Seconds, Simulated, compiled, makes_weights_apart, simulate
from meshwright.cost_models.topology import GroupShape, group_shape, pair_shape
from meshwright.cost_models.traffic import tied, traffic
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
    awaited: int = 0
    """Of the launches those that the device waits for: a host that learns from the device how many rows each expert
    has does not launch ahead."""
    values: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Collectives that operators wait for: tensor, context, expert."""
    ring_s: float = 0.0
    gathers_s: float = 0.0
    """Gathers of parameters, which can run ahead of their use."""
    first_gather_s: float = 0.0
    """The largest of them in one body program: nothing runs ahead of the first."""
    starts_s: float = 0.0
    """What one broadcast from each rank takes beside its bytes: once, however many body programs share it."""
    reductions_s: float = 0.0
    """Reductions of gradients."""
    kinds: tuple[tuple[str, Kind], ...] = ()
    """What its prices stand on, the weakest of each sort."""

    @property
    def device_s(self) -> float:
        return sum(self.engines)

    @property
    def published_s(self) -> float:
        return self.gathers_s + self.starts_s

    def plus(self, other: Cost, times: int = 1) -> Cost:
        a, b = self.engines, other.engines
        c, d = self.values, other.values
        return Cost(
            (a[0] + times * b[0], a[1] + times * b[1], a[2] + times * b[2]),
            self.launches + times * other.launches,
            self.awaited + times * other.awaited,
            (c[0] + times * d[0], c[1] + times * d[1], c[2] + times * d[2]),
            self.ring_s + times * other.ring_s,
            self.gathers_s + times * other.gathers_s,
            max(self.first_gather_s, other.first_gather_s),
            max(self.starts_s, other.starts_s),
            self.reductions_s + times * other.reductions_s,
            _weakest(*self.kinds, *other.kinds),
        )


def _weakest(*kinds: tuple[str, Kind]) -> tuple[tuple[str, Kind], ...]:
    """Of each sort the weakest."""
    found: dict[str, Kind] = {}
    for name, kind in kinds:
        found[name] = weakest_kind(kind, found.get(name, kind))
    return tuple(sorted(found.items()))


NOTHING = Cost()


@dataclass(frozen=True, slots=True)
class Taken:
    """What a phase takes once its parts run together: seconds in all, and by share."""

    seconds: float = 0.0
    shares: tuple[tuple[str, float], ...] = ()
    beside_s: float = 0.0
    """Of gathers and reductions that run beside compute: what they take by themselves."""


class Evaluator:
    """Prices programs on one cluster with one profile; what body programs cost is remembered."""

    def __init__(self, cluster: Cluster, profile: Profile) -> None:
        self.cluster, self.profile = cluster, profile
        self._computes: dict[tuple[str, str, str], Compute] = {}
        self._ledgers: dict[tuple[int, Workload, bool], tuple[BodyProgram, Ledger]] = {}
        self._costs: dict[tuple[object, ...], tuple[Ledger, dict[str, Cost]]] = {}
        self._devices: dict[int, tuple[tuple[int, ...], tuple[tuple[Device, int], ...]]] = {}

    def __call__(self, program: Program) -> Prediction:
        if program.workload is None:
            raise WorkloadMissing(
                place="program", cause="it says nothing of its workload", fix="lower it with a Workload"
            )
        return _Step(self, program, program.workload).prediction()

    def devices(self, ranks: tuple[int, ...]) -> tuple[Device, ...]:
        """The kinds of device among these ranks."""
        return tuple(device for device, _ in self.counted(ranks))

    def counted(self, ranks: tuple[int, ...]) -> tuple[tuple[Device, int], ...]:
        """The same, and how many ranks run on each."""
        found = self._devices.get(id(ranks))
        if found is None:
            _make_room(self._devices)
            several = len(self.cluster.pools) > 1
            pools = Counter(self.cluster.place(rank).pool for rank in ranks) if several else Counter({0: len(ranks)})
            counts: dict[str, tuple[Device, int]] = {}
            for pool, count in sorted(pools.items()):
                device = self.cluster.pools[pool].device
                counts[device.name] = (device, count + counts.get(device.name, (device, 0))[1])
            found = self._devices[id(ranks)] = (ranks, tuple(counts.values()))
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
        devices = self.devices(stage.ranks)
        shapes = {axes: group_shape(self.cluster, stage.ranks, stage.mesh, axes) for axes in book.axes}
        key = (id(book), *(device.name for device in devices), workload, *shapes.values())
        found = self._costs.get(key)
        if found is None:
            _make_room(self._costs)
            costs = {
                name: _slowest(
                    self._cost(
                        phase,
                        self.compute(device, workload),
                        shapes,
                        library_of(device, workload),
                        workload,
                        routes=book.routes and name == "forward",
                    )
                    for device in devices
                )
                for name, phase in book.phases.items()
            }
            found = self._costs[key] = (book, costs)
        return found[1]

    def _cost(
        self,
        phase: Phase,
        compute: Compute,
        shapes: Mapping[tuple[str, ...], GroupShape],
        library: Library,
        workload: Workload,
        *,
        routes: bool,
    ) -> Cost:
        engines, values = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
        launches, ring_s, gathers_s, starts_s, reductions_s = 0, 0.0, 0.0, 0.0, 0.0
        kinds: set[tuple[str, Kind]] = set()
        for kernel, count in phase.kernels.items():
            priced = compute.seconds(kernel)
            kinds.add(("kernels", priced.kind))
            engines[_ENGINES[kernel.engine]] += count * priced.seconds
            launches += count * launched(kernel)
        for one, count in phase.transmissions.items():
            shape = shapes[one.axes]
            routed = workload.imbalance if one.kind == "all_to_all" else 1.0
            sent = one.nbytes * (distinct(one.picks, shape) if workload.stack.dedupes else 1.0)
            moved = collective(one.kind, sent, shape, library, imbalance=routed)
            kinds.add(("collectives", moved.provenance))
            seconds = count * one.steps * moved.seconds
            if one.reason == "update" and workload.stack.broadcasts:
                seconds = count * collective("broadcast", one.nbytes, shape, library).seconds
                starts_s = shape.ranks * collective("broadcast", 1.0, shape, library).seconds
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
            launches if routes else 0,
            (values[0], values[1], values[2]),
            ring_s,
            gathers_s,
            gathers_s,
            starts_s,
            reductions_s,
            _weakest(*kinds),
        )


_ROUNDING = 1e-12
"""Of a sum of seconds, as a share: less than this is no time."""
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


LOW_PRECISION_LAUNCHES = 3
"""A product in eight bits or fewer: two casts and itself (Transformer Engine, without a fused cast)."""


def launched(kernel: Kernel) -> int:
    """Kernels that the host launches: libraries run grouped products of trained weights expert by expert."""
    if kernel.engine is not Engine.MATMUL:
        return 1
    low = kernel.dtype.startswith(("fp8", "mx", "nv"))
    return kernel.shape[0] * (LOW_PRECISION_LAUNCHES if low else 1)


def distinct(picks: int, shape: GroupShape) -> float:
    """The share of an exchange that is left where every token travels once to each part of the widest level: of k picks
    among N parts, N (1 - (1 - 1/N)^k) are different (DeepEP and HybridEP send so)."""
    if picks == 1 or not shape.levels:
        return 1.0
    parts = shape.levels[-1].parts
    return parts * (1 - (1 - 1 / parts) ** picks) / picks


def _purpose(axes: Sequence[str]) -> int:
    return max(_PURPOSES.get(axis, 0) for axis in axes)


def _slowest(costs: Iterable[Cost]) -> Cost:
    """What ranks that wait for each other take: of every sort of work as much as the slowest device needs for it."""
    first, *others = costs
    for one in others:
        a, b, c, d = first.engines, one.engines, first.values, one.values
        first = Cost(
            (max(a[0], b[0]), max(a[1], b[1]), max(a[2], b[2])),
            max(first.launches, one.launches),
            max(first.awaited, one.awaited),
            (max(c[0], d[0]), max(c[1], d[1]), max(c[2], d[2])),
            max(first.ring_s, one.ring_s),
            max(first.gathers_s, one.gathers_s),
            max(first.first_gather_s, one.first_gather_s),
            max(first.starts_s, one.starts_s),
            max(first.reductions_s, one.reductions_s),
            _weakest(*first.kinds, *one.kinds),
        )
    return first


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
        self.kinds: list[tuple[str, Kind]] = [("overlap", kind_of_step()), ("memory", kind_of_memory())]
        self.accumulates = program.microbatches > 1
        self.apart = makes_weights_apart(work_of(program))
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
        """Reductions run behind all of the backward pass, or, where weight gradients are made apart, behind those."""
        costs = self.costs[index]
        again, inputs, weights = costs["recompute"], costs["inputs"], costs["weights"]
        if self.apart:
            inputs, weights = replace(inputs, reductions_s=0.0), Cost()
        return self.together(again.plus(inputs), self.host_s(index), beside=weights, again=again)

    def backward_weights(self, index: int) -> Taken:
        costs = self.costs[index]
        reductions_s = costs["inputs"].reductions_s if self.apart else 0.0
        return self.together(replace(costs["weights"], reductions_s=reductions_s), self.host_s(index))

    def host_s(self, index: int) -> float:
        devices = self.evaluator.devices(self.program.stages[index].ranks)
        return max(self.evaluator.compute(device, self.workload).host_s for device in devices)

    def together(self, cost: Cost, host_s: float, *, beside: Cost = NOTHING, again: Cost = NOTHING) -> Taken:
        """Kernels and collectives of a stretch as they run together; `beside` is compute of the same stretch that is
        counted elsewhere, `again` the part that runs a second time."""
        step, device_s = self.step, cost.device_s
        awaited_s = cost.awaited * host_s
        launch_s = awaited_s + max(0.0, cost.launches * host_s - awaited_s - device_s)
        ring_hidden_s = min(cost.ring_s, cost.engines[1] + launch_s) if "ring" in self.hides else 0.0
        beside_s = max(beside.device_s, beside.launches * host_s)
        behind_s = step.covered * (device_s + launch_s + beside_s - ring_hidden_s)
        values = list(cost.values)
        if "tensor" in self.hides:
            values[0] *= 1 - step.hidden_tensor
        elif beside is not NOTHING and self.workload.stack.regathers:
            values[0] *= 1 - step.hidden_backward
        values[1] += cost.ring_s - ring_hidden_s
        ran_s = cost.gathers_s * ("parameters" in self.hides) + cost.reductions_s * ("gradients" in self.hides)
        first_s = cost.first_gather_s if "parameters" in self.hides else 0.0  # nothing runs ahead of it
        shown_s = cost.gathers_s + cost.reductions_s - ran_s + max(first_s, ran_s - behind_s)
        slowed_s = step.slowdown * min(ran_s, behind_s)
        shares = [
            (name, part - redone) for name, part, redone in zip(_DEVICE, cost.engines, again.engines, strict=True)
        ]
        shares += [("recompute", again.device_s), ("launch", launch_s), ("parameters", shown_s + slowed_s)]
        shares += list(zip(_VALUES, values, strict=True))
        return Taken(sum(seconds for _, seconds in shares), tuple(shares), ran_s)

    # the whole step

    def prediction(self) -> Prediction:
        program = self.program
        release_s = [self.released_s(group) for group in range(len(program.actions))]
        ran = simulate(compiled(work_of(program)), self.seconds(), release_s=release_s)
        ends = [
            self.ending(group, *since) for group, since in enumerate(zip(self.after_s(ran), self.tied_s(), strict=True))
        ]
        finish = [
            at + sum(end.values()) - before
            for at, end, before in zip(ran.finish_s, ends, self.before_s(ran), strict=True)
        ]
        last = max(range(len(finish)), key=finish.__getitem__)
        step_s = finish[last] * (1 + self.step.straggling * log2(self.hosts()))
        return Prediction(
            step_time_s=step_s,
            step_time_low_s=step_s * (1 - self.step.interval),
            step_time_high_s=step_s * (1 + self.step.interval),
            tokens_per_s_per_gpu=self.workload.tokens / step_s / self.ranks(),
            mfu=self.model_flops() / (step_s * self.peak_flops_per_s()),
            stages=self.stages(),
            shares=self.shares(last, step_s, ends[last], ran.sending_s[last], release_s[last]),
            traffic=traffic(program, self.evaluator.cluster, self.ledgers, self.workload),
            provenance=self.provenance(),
        )

    def before_s(self, ran: Simulated) -> tuple[float, ...]:
        """What a group waits before its first action, where it spends that wait on the end of the step before."""
        return ran.begin_s if self.apart and self.workload.stack.rolling else (0.0,) * len(ran.begin_s)

    def provenance(self) -> tuple[tuple[str, Kind], ...]:
        """What this price stands on: the devices' own numbers too."""
        priced = [kind for costs in self.costs for cost in costs.values() for kind in cost.kinds]
        used = {device.name: device for stage in self.program.stages for device in self.evaluator.devices(stage.ranks)}
        numbers = [
            number for one in used.values() for number in (one.memory, one.memory_bandwidth, *dict(one.peaks).values())
        ]
        return _weakest(*self.kinds, *priced, ("devices", weakest(*numbers).kind))

    def group_stages(self, group: int) -> list[int]:
        ranks = self.program.actions[group][0]
        return [index for index, stage in enumerate(self.program.stages) if stage.ranks == ranks]

    def released_s(self, group: int) -> float:
        """When a group may begin: parameters that the step before published are gathered behind its first forward, as
        far as that lasts. What later stages of the group lack travels meanwhile."""
        first = self.group_stages(group)[0]
        gathers_s = self.costs[first]["publish"].published_s if "publish" in self.hides else 0.0
        return max(
            0.0, gathers_s - self.left_s(self.step.covered * self.forwards[first].seconds, [self.forwards[first]])
        )

    def ending(self, group: int, after_s: float, tied_s: float) -> dict[str, float]:
        """What follows a group's list: reductions, begun `after_s` before its end, the first time that a stage's
        gradients were final; those of tied parameters, which nothing hides; the optimizer, publication."""
        stages, step = self.group_stages(group), self.step
        sync, update, publish = (
            _added(self.costs[index][phase] for index in stages) for phase in ("sync", "update", "publish")
        )
        backward = [taken for index in stages for taken in (self.inputs[index], self.weights[index])]
        forward = [self.forwards[index] for index in stages]
        reductions_s, gathers_s = sync.reductions_s, publish.published_s
        if "gradients" in self.hides:
            shown_s = max(0.0, reductions_s - self.left_s(step.covered * after_s, backward))
            reductions_s = shown_s + step.slowdown * min(reductions_s, step.covered * _seconds(backward))
        if "publish" in self.hides:
            gathers_s = step.slowdown * min(gathers_s, step.covered * _seconds(forward))
        return {"gradients": reductions_s + tied_s, "optimizer": update.device_s, "publish": gathers_s}

    def left_s(self, behind_s: float, beside: Iterable[Taken]) -> float:
        """What other gathers and reductions leave of the compute that one can run behind."""
        return max(0.0, behind_s - sum(taken.beside_s for taken in beside))

    def after_s(self, ran: Simulated) -> list[float]:
        """For every group, from the start of the first last backward of a stage to its end: where weight gradients are
        made apart, of the last of those. More than one stage's depends on when each of them ran."""
        stages = [self.group_stages(group) for group in range(len(self.program.actions))]
        if all(len(own) == 1 for own in stages):
            return [
                self.weights[own[0]].seconds + (0.0 if self.apart else self.inputs[own[0]].seconds) for own in stages
            ]
        began = ran.last_start_s(("B", "W"))
        return [end - min(began[stage] for stage in own) for end, own in zip(ran.finish_s, stages, strict=True)]

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

    def tied_s(self) -> list[float]:
        """For every group, the reductions over stages of the gradients of parameters that it shares with other groups:
        the first holder's ranks with each other's (Megatron-LM's embedding group), one parameter after another."""
        found = [0.0] * len(self.program.actions)
        for stages, nbytes in tied(self.program, self.workload):
            ranks = [self.program.stages[stage].ranks for stage in stages]
            library = library_of(self.evaluator.devices(ranks[0])[0], self.workload)
            for other in ranks[1:]:
                shape = pair_shape(self.evaluator.cluster, ranks[0], other)
                moved = collective("all_reduce", nbytes, shape, library)
                self.kinds.append(("collectives", moved.provenance))
                for group, (members, _) in enumerate(self.program.actions):
                    found[group] += moved.seconds if members in (ranks[0], other) else 0.0
        return found

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
        library = library_of(self.evaluator.devices(source.ranks)[0], self.workload)
        moved = collective("p2p", nbytes, shape, library)
        self.kinds.append(("collectives", moved.provenance))
        return moved.seconds

    # what is told about it

    def ranks(self) -> int:
        return sum(len(ranks) for ranks, _ in self.program.actions)

    def hosts(self) -> int:
        cluster = self.evaluator.cluster
        per_host = min(pool.gpus_per_host for pool in cluster.pools)
        return max(1, min(cluster.hosts, -(-self.ranks() // per_host)))

    def model_flops(self) -> float:
        """Of one step, over all ranks: the model's own, whatever several ranks do alike."""
        runs = [run for stage in self.program.stages for run in stage.runs]
        each = sum(self.ledgers[name].model_flops * run.repeats for run in runs for name in run.programs)
        return each * self.program.microbatches

    def peak_flops_per_s(self) -> float:
        return sum(
            count * _sixteen_bit_peak(device)
            for ranks, _ in self.program.actions
            for device, count in self.evaluator.counted(ranks)
        )

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

    def shares(
        self, group: int, step_s: float, ends: Mapping[str, float], sending_s: float, release_s: float
    ) -> tuple[tuple[str, float], ...]:
        """Where the step goes on the group that ends last; what is left is waiting."""
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


def _added(costs: Iterable[Cost]) -> Cost:
    total = NOTHING
    for cost in costs:
        total = total.plus(cost)
    return total


def _seconds(taken: Iterable[Taken]) -> float:
    return sum(one.seconds for one in taken)


def _sixteen_bit_peak(device: Device) -> float:
    """The dense peak that a utilisation is a share of."""
    wanted = next((name for name in ("bf16", "fp16", "fp32") if name in device.dtypes), device.dtypes[0])
    return device.peak(wanted).value
