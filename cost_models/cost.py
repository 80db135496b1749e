"""Costs: one phase of a ledger on one device and its wires, before its parts run together.

    kernels         count x seconds of `compute`, by part of the device; a launch for each kernel of the device
    transmissions   count x steps x seconds of `collectives`, by what they are for: values that operators wait for
                    (tensor, context, expert), ring steps, gathers of parameters, reductions of gradients

Ranks that wait for each other take, of every sort of work, what the slowest device needs for it (`slowest`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from meshwright.cost_models.collectives.collective import Collective, Library, Priced, collective
from meshwright.cost_models.collectives.topology import GroupShape
from meshwright.cost_models.compute.kernels import Compute, Kernel
from meshwright.cost_models.hardware.devices import Device
from meshwright.cost_models.hardware.quantity import Kind, weakest_kind
from meshwright.cost_models.ledger.ledger import Phase, Transmission
from meshwright.cost_models.measured.measured import NO_OVERHEADS, Overheads
from meshwright.ir.rules.base import Engine
from meshwright.ir.target.workload import Stack, Workload

_ENGINES = {Engine.MATMUL: 0, Engine.CONV: 0, Engine.ATTENTION: 1, Engine.MEMORY: 2}
_PURPOSES = {"cp": 1, "ep": 2}
"""What a collective that operators wait for is for, by what its axis does outside the experts, with which its name
begins (cp_ep, cp_shard); others are tensor parallelism."""


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
    """What one broadcast from each rank, or reduction to it, takes beside its bytes: once, however many body
    programs share it."""
    reductions_s: float = 0.0
    """Reductions of gradients."""
    host_s: float = 0.0
    """What the host does beside launches: modules that run again."""
    kinds: tuple[tuple[str, Kind], ...] = ()
    """What its prices stand on, the weakest of each sort."""

    @property
    def device_s(self) -> float:
        return sum(self.engines)

    @property
    def published_s(self) -> float:
        return self.gathers_s + self.starts_s

    @property
    def parts(self) -> tuple[float, ...]:
        """Every number that a step is made of: where none is less, no step is faster."""
        return (
            *self.engines,
            self.launches,
            self.awaited,
            *self.values,
            self.ring_s,
            self.gathers_s,
            self.first_gather_s,
            self.starts_s,
            self.reductions_s,
            self.host_s,
        )

    def plus(self, other: Cost, times: int = 1) -> Cost:
        if other is NOTHING or (self is NOTHING and times == 1):
            return self if other is NOTHING else other
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
            self.host_s + times * other.host_s,
            self.kinds if other.kinds in ((), self.kinds) else weakest_of_each(*self.kinds, *other.kinds),
        )


def weakest_of_each(*kinds: tuple[str, Kind]) -> tuple[tuple[str, Kind], ...]:
    """The weakest provenance of each sort of number."""
    found: dict[str, Kind] = {}
    for name, kind in dict.fromkeys(kinds):
        found[name] = weakest_kind(kind, found[name]) if name in found else kind
    return tuple(sorted(found.items()))


NOTHING = Cost()


@dataclass(frozen=True, slots=True)
class Taken:
    """The time of a phase once its parts run together: seconds in all, and by share."""

    seconds: float = 0.0
    shares: tuple[tuple[str, float], ...] = ()
    beside_s: float = 0.0
    """Of gathers and reductions that run beside compute: what they take by themselves."""


class Moving(Protocol):
    """The price of a collective over a group."""

    def __call__(
        self, kind: Collective, nbytes: float, shape: GroupShape, library: Library, *, imbalance: float = 1.0
    ) -> Priced:
        """Seconds of one, as `collectives.collective` describes them."""


def cost_of(
    phase: Phase,
    compute: Compute,
    shapes: Mapping[tuple[str, ...], GroupShape],
    library: Library,
    workload: Workload,
    *,
    awaited: bool,
    moving: Moving = collective,
    overheads: Overheads = NO_OVERHEADS,
) -> Cost:
    """The cost of one phase of one body program on a device. `shapes`: its groups, by their axes; `awaited`: the host
    waits for the device, which alone knows how many rows each expert has, or launches nothing ahead; `moving`: prices
    of collectives; `overheads`: what the runtime does around them."""
    engines, values = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
    launches, ring_s, gathers_s, starts_s, reductions_s = 0, 0.0, 0.0, 0.0, 0.0
    kinds: set[tuple[str, Kind]] = set()
    for kernel, count in phase.kernels.items():
        priced = compute.seconds(kernel)
        kinds.add(("kernels", priced.kind))
        engines[_ENGINES[kernel.engine]] += count * priced.seconds
        launches += count * launched(kernel, compute, workload.stack)
    for one, count in phase.transmissions.items():
        shape = shapes[one.axes]
        routed = workload.imbalance if one.kind == "all_to_all" else 1.0
        sent = one.nbytes * (distinct(one.picks, shape) if workload.stack.dedupes else 1.0)
        moved = moving(one.kind, sent, shape, library, imbalance=routed)
        kinds.add(("collectives", moved.provenance))
        seconds = count * one.steps * moved.seconds
        if workload.stack.broadcasts and (one.reason, one.kind) in _BY_OWNER:
            seconds = count * moving("broadcast", one.nbytes, shape, library).seconds
            starts_s = shape.ranks * moving("broadcast", 1.0, shape, library).seconds
        seconds += count * _around(one, overheads)
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
        launches if awaited else 0,
        (values[0], values[1], values[2]),
        ring_s,
        gathers_s,
        gathers_s,
        starts_s,
        reductions_s,
        0.0,
        weakest_of_each(*kinds),
    )


def _around(one: Transmission, overheads: Overheads) -> float:
    """Seconds that the runtime takes around a collective."""
    if one.reason not in _OF_PARAMETERS:
        return overheads.moving_s
    copied = one.nbytes if one.kind in _COPIED else 0.0
    return overheads.sharing_s + overheads.copying_s_per_byte * copied


_COPIED = ("all_gather", "reduce_scatter")
"""Collectives of parameters that have a buffer of their own on one side."""
_OF_PARAMETERS = ("parameter", "update", "sync")
"""Reasons of what the runtime does around operators, not in their place."""
_BY_OWNER = (("update", "all_gather"), ("sync", "reduce_scatter"))
"""What stacks that broadcast do rank by rank: each gets the gradients of the parameters that it updates, and sends
these. A reduction to one rank takes what a broadcast from it does."""


def launched(kernel: Kernel, compute: Compute, stack: Stack) -> int:
    """Kernels that the host launches because no graph replays them. Graphs of layers replay what has the same size
    whatever the router decides: all but experts, and these too where they are padded."""
    sized = stack.padded or not kernel.routed
    replayed = stack.graphs == "step" or (stack.graphs == "static" and sized)
    return 0 if replayed else compute.kernels(kernel)


def distinct(picks: int, shape: GroupShape) -> float:
    """The share of an exchange that is left where every token travels once to each part of the widest level: of k picks
    among N parts, N (1 - (1 - 1/N)^k) are different (DeepEP and HybridEP send so)."""
    if picks == 1 or not shape.levels:
        return 1.0
    parts = shape.levels[-1].parts
    return parts * (1 - (1 - 1 / parts) ** picks) / picks


def _purpose(axes: Sequence[str]) -> int:
    return max(_PURPOSES.get(axis.partition("_")[0], 0) for axis in axes)


def slowest(costs: Iterable[Cost]) -> Cost:
    """The cost for ranks that wait for each other: of every sort of work as much as the slowest device needs."""
    return _picked(costs, max)


def fastest(costs: Iterable[Cost]) -> Cost:
    """The least cost of work wherever it is done: of every sort of work as little as it takes anywhere."""
    return _picked(costs, min)


def _picked(costs: Iterable[Cost], pick: Callable[[float, float], float]) -> Cost:
    first, *others = costs
    for one in others:
        a, b, c, d = first.engines, one.engines, first.values, one.values
        first = Cost(
            (pick(a[0], b[0]), pick(a[1], b[1]), pick(a[2], b[2])),
            int(pick(first.launches, one.launches)),
            int(pick(first.awaited, one.awaited)),
            (pick(c[0], d[0]), pick(c[1], d[1]), pick(c[2], d[2])),
            pick(first.ring_s, one.ring_s),
            pick(first.gathers_s, one.gathers_s),
            pick(first.first_gather_s, one.first_gather_s),
            pick(first.starts_s, one.starts_s),
            pick(first.reductions_s, one.reductions_s),
            pick(first.host_s, one.host_s),
            weakest_of_each(*first.kinds, *one.kinds),
        )
    return first


def added(costs: Iterable[Cost]) -> Cost:
    total = NOTHING
    for cost in costs:
        total = total.plus(cost)
    return total


def attention_of(stack: Stack) -> str:
    """The attention kernel that a stack asks for; where it is written out, fused stacks run Megatron's masked
    softmax."""
    return "megatron" if stack.attention == "math" and stack.style == "fused" else stack.attention


def library_of(device: Device, workload: Workload) -> Library:
    """The library whose collectives run on a device."""
    if workload.stack.style == "xla" or device.vendor == "Google":
        return "xla"
    if device.name.lower().startswith("cpu"):
        return "gloo"
    return "rccl" if device.vendor == "AMD" else "nccl"
