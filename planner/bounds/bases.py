"""Bases: what one micro-batch costs and keeps, priced once for all configurations that share it.

A base (`planner.space.declared`) is lowered as a configuration of one stage with as few copies as it needs, and nothing
is stored in shards; its body programs are priced by the evaluator's own ledgers, and summed up by its own view of
memory. Bodies are priced one by one: to those without experts it is all the same how experts are apart. What more
copies, stages and shards add (reductions, gathers, transfers, bubbles) is never negative, so these prices bound those
of every shape from below. A stage may lie anywhere: where devices or links differ, what counts is the fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate

from meshwright.cost_models.cost import NOTHING, Cost, fastest
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.ledger.ledger import PHASES, Phase, Transmission
from meshwright.cost_models.memory.body import BodyMemory, body_memory
from meshwright.cost_models.memory.stage import StageMemory
from meshwright.cost_models.overlap import together
from meshwright.cost_models.prices import Prices
from meshwright.cost_models.profile import StepConstants
from meshwright.ir.analysis.loops import stem
from meshwright.ir.decisions.sharding import Sharding
from meshwright.ir.errors import NotExpressible
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names import CONTEXT, check, uses
from meshwright.ir.names.cache import CONTEXTUAL, kinds_of, loops_of
from meshwright.ir.program.program import BodyProgram, Gradient, Run, Stage
from meshwright.ir.program.units import Part, sharing
from meshwright.ir.rules.registry import infer
from meshwright.ir.same import Same
from meshwright.ir.target.workload import Stack, Workload
from meshwright.planner.question.module_pins import ModulePin
from meshwright.planner.question.pins import Config
from meshwright.planner.question.pricing import Setting


@dataclass(frozen=True, slots=True)
class Held:
    """A rank's share of some parameters, before copies share them out: their number, how many of them the backward pass
    reads, how many are in bodies of which it reads any, bytes of state; of those in experts, how many are in bodies
    with others; and how many untrained ones are in bodies with trained ones."""

    elements: float = 0.0
    again: float = 0.0
    stay: float = 0.0
    parameters: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    beside: float = 0.0
    untrained: float = 0.0

    def plus(self, other: Held, times: float) -> Held:
        return Held(
            self.elements + times * other.elements,
            self.again + times * other.again,
            self.stay + times * other.stay,
            self.parameters + times * other.parameters,
            self.gradients + times * other.gradients,
            self.optimizer + times * other.optimizer,
            self.beside + times * other.beside,
            self.untrained + times * other.untrained,
        )

    def stored(self, sharding: Sharding, copies: int, gathered: float, *, offloaded: bool = False) -> float:
        """Least bytes of parameters and optimizer state on a rank. `gathered` is the share of the parameters' bytes
        that gathered parameters take, if those lie instead of whole ones; `offloaded`: the optimizer's state is in the
        host's memory."""
        part = 1 / copies if sharding.params else max(1 / copies, min(1.0, gathered)) if sharding.optimizer else 1.0
        return self.parameters * part + (0.0 if offloaded else self.stepped(sharding, copies))

    def stepped(self, sharding: Sharding, copies: int) -> float:
        """Bytes of optimizer state on a rank."""
        return self.optimizer / (copies if sharding.optimizer else 1)


@dataclass(frozen=True)
class Piece:
    """One body at a kernel configuration: what a micro-batch costs by phase, and, computed when asked for, what it
    holds and its state outside and inside the experts."""

    body: BodyProgram
    asked: Mapping[str, Phase]
    costs: Mapping[str, Cost]
    workload: Workload
    inside: frozenset[str]
    """The parameters that are cut by experts."""
    tensor: frozenset[str]
    """The axes of tensor parallelism."""
    kept: bool
    """Whether a stage may keep what it gathers, whatever plans say (`meshwright.ir.program.units`)."""

    @cached_property
    def memory(self) -> BodyMemory:
        return body_memory(self.body, self.workload, True)

    @cached_property
    def left(self) -> frozenset[str]:
        """Parameters whose gradients another call reduces."""
        return frozenset(slot.path for slot in self.body.params if slot.grad is not None and slot.synced is None)

    @cached_property
    def tables(self) -> frozenset[str]:
        """Buffers."""
        return frozenset(slot.path for slot in self.body.params if slot.buffer)

    @cached_property
    def states(self) -> tuple[Held, Held]:
        """Parameter state outside the experts and inside."""
        return self._held(lambda path: True)

    def shared(self, copies: tuple[int, int]) -> tuple[Held, Held]:
        """That of parameters of which so many copies outside the experts, and inside, divide a dimension."""
        shapes = {
            slot.path: one.placement.local_shape(one.type.shape, self.body.mesh)
            for slot in self.body.params
            for one in [self.body.locals[slot.value]]
        }
        return self._held(lambda path: any(not extent % copies[path in self.inside] for extent in shapes[path]))

    def _held(self, meant: Callable[[str], bool]) -> tuple[Held, Held]:
        held = [Held(), Held()]
        read = _read_backward(self.body)
        for path, stored, gradient, optimizer in self.memory.slots:
            if not meant(path):
                continue
            elements = stored / self.workload.states.stored if path not in self.left else 0.0
            own = Held(
                elements,
                elements if path in read and not self.kept else 0.0,
                elements if read else 0.0,
                stored,
                gradient,
                optimizer,
            )
            held[path in self.inside] = held[path in self.inside].plus(own, 1)
        for path, nbytes in self.memory.untrained:
            at, elements = path in self.inside, nbytes / self.workload.states.stored
            beside = elements if held[at].elements and path not in self.tables else 0.0
            held[at] = held[at].plus(Held(parameters=nbytes, untrained=beside), 1)
        return held[0], replace(held[1], beside=held[1].stay if held[0].elements else 0.0)

    def slot(self, path: str) -> tuple[Held, bool]:
        """The parameter at the end of a path, and whether it is inside the experts."""
        found = [slot for slot in self.memory.slots if f".{path}".endswith(f".{slot[0]}")]
        own, stored, gradient, optimizer = max(found, key=lambda slot: len(slot[0]))
        return Held(parameters=stored, gradients=gradient, optimizer=optimizer), own in self.inside

    @cached_property
    def whole(self) -> float:
        """Elements outside the experts that tensor parallelism leaves whole: whether their gradients are reduced over
        its ranks too is for the operators to say."""
        left = {slot.path for slot in self.body.params if self.tensor.isdisjoint(slot.grads.axes)} - self.left
        return sum(
            stored / self.workload.states.stored
            for path, stored, *_ in self.memory.slots
            if path in left and path not in self.inside
        )


@dataclass(frozen=True, slots=True)
class Seconds:
    """Seconds of one micro-batch on one stage: forward, gradients of inputs, gradients of weights; and the optimizer's
    step."""

    forward: float
    inputs: float
    weights: float
    update: float

    @property
    def work(self) -> float:
        return self.forward + self.inputs + self.weights


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of a stage: bytes saved per micro-batch, those that gradients of weights alone still need, the fullest
    instants of a forward and a backward pass, the part of these that is parameters in the form that operators read, the
    state, and the parameters of two neighbouring calls, the most outside the experts and the most in all."""

    kept: float
    waiting: float
    forward: float
    backward: float
    gathered: float
    dense: Held
    expert: Held
    pair: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Base:
    """A kernel configuration with its prices, by body."""

    config: Config
    stage: Stage
    pieces: Mapping[str, Piece]

    def piece(self, calls: tuple[tuple[str, int], ...]) -> dict[str, Cost]:
        """The costs of a stage with so many calls of each body, by phase."""
        total = dict.fromkeys(PHASES, NOTHING)
        for name, times in calls:
            for phase, cost in self.pieces[name].costs.items():
                total[phase] = total[phase].plus(cost, times)
        return total


Pieces = dict[tuple[Config, str], Piece]
"""Bodies that were priced before, by configuration and name."""


def priced(
    setting: Setting,
    prices: Prices,
    config: Config,
    modules: tuple[ModulePin, ...] = (),
    known: Pieces | None = None,
) -> Base:
    """Price a kernel configuration, as its names mean it unless `modules` ask for more. Callers that price many without
    modules pass what is `known`. Raises what the model or the target refuse."""
    fold, ranks, made = setting.fold(config), config.dp * config.tp * config.cp, {} if known is None else known
    check(config.degrees(), fold, ranks, config.batch)
    asked = replace(setting, ranks=ranks, modules=modules)
    pieces = {body.name: piece(asked, prices, config, body.name, made) for body in fold.bodies}
    return Base(config, Stage(config.degrees().mesh(), tuple(range(ranks)), (), 0, 0), pieces)


def piece(setting: Setting, prices: Prices, config: Config, name: str, known: Pieces) -> Piece:
    """Price one body of a kernel configuration. Bodies without experts cost the same however experts are cut, and
    bodies without attention whatever attention exchanges."""
    fold, own = Same(setting.fold(config)), config
    if not experts_of(fold, name):
        own = replace(own, dp=1, ep=1, etp=own.etp and own.tp)  # one copy does what each does
    if CONTEXTUAL not in kinds_of(fold)[name]:
        own = replace(own, context=CONTEXT[0])
    if (own, name) not in known:
        known[own, name] = _piece(setting, prices, own, name)
    return known[own, name]


def _piece(setting: Setting, prices: Prices, config: Config, name: str) -> Piece:
    workload, degrees = setting.workload, config.degrees()
    fold = setting.fold(config)
    made, inside = setting.body(config, name), experts_of(Same(fold), name)
    if paths := repeated(Same(fold), name):
        made = Part(left=paths).of(made, made.name)
    costs = _costs(prices, made, workload)
    if any(made.locals[value].type.shape == () for value in made.outputs):
        costs = {**costs, "recompute": NOTHING}  # with more copies, logits may be kept after all
    asked = prices.ledger(made, workload, False).phases
    tensor = frozenset(use.name for use in uses(degrees) if use.outside == "tp")
    return Piece(made, asked, costs, workload, inside, tensor, name in sharing(Same(fold)))


@dataclass(frozen=True, slots=True)
class Shared:
    """One phase of a body that copies compute together: what they exchange, its kernels, and those of a copy that is
    alone."""

    sent: Mapping[Transmission, int]
    kernels: Phase
    alone: Phase


def between(setting: Setting, prices: Prices, config: Config, name: str) -> Mapping[str, Shared]:
    """The phases in which two copies exchange values in a body beside gradients of parameters: statistics of the whole
    batch, for micro-batches of one sequence, which exchange the least."""
    one = replace(config, mbs=1)
    two = replace(one, dp=2 * config.dp)
    copies = {use.name for use in uses(two.degrees()) if use.outside == "dp"}

    def phases(of: Config) -> Mapping[str, Phase]:
        made = replace(setting, ranks=of.dp * of.tp * of.cp, modules=()).body(of, name)
        return prices.ledger(made, setting.workload, False).phases

    try:
        together, alone = phases(two), phases(one)
    except NotExpressible:  # no plan of this configuration is for the target, whatever bounds it
        return {}
    found = {}
    for phase, asked in together.items():
        sent = {
            transmission: count
            for transmission, count in asked.transmissions.items()
            if transmission.reason in ("value", "gradient") and copies.issuperset(transmission.axes)
        }
        if sent:
            found[phase] = Shared(sent, Phase(kernels=asked.kernels), Phase(kernels=alone[phase].kernels))
    return found


def _costs(prices: Prices, body: BodyProgram, workload: Workload) -> Mapping[str, Cost]:
    """Costs of a body by phase, the least over all places where its stage may lie."""
    book = prices.ledger(body, workload, False)
    sites = [Stage(body.mesh, ranks, (), 0, 0) for ranks in places(prices.cluster, body.mesh.size)]
    everywhere = [prices.costs(book, site, workload) for site in sites]
    return {phase: fastest(one[phase] for one in everywhere) for phase in everywhere[0]}


def places(cluster: Cluster, count: int) -> list[tuple[int, ...]]:
    """The places that so many neighbouring ranks may take, one of every sort that a cluster has: at the beginning of
    every pool and across pools, and anywhere where links are measured pair by pair."""
    starts = {0}
    if cluster.matrix is not None:
        starts.update(range(0, cluster.ranks, count))
    for start in accumulate(pool.ranks for pool in cluster.pools[:-1]):
        starts.update((start, start // count * count, -(-start // count) * count))
    return [
        tuple(range(start, start + count)) for start in sorted(starts) if start == 0 or start + count <= cluster.ranks
    ]


def _read_backward(body: BodyProgram) -> frozenset[str]:
    """Parameters whose values derivatives read."""
    read = {
        statement.operands[slot]
        for statement in body.backward
        if isinstance(statement, Gradient)
        for slot in infer(statement.signature).reads(statement.wanted)
    }
    return frozenset(slot.path for slot in body.params if slot.value in read)


@lru_cache(maxsize=256)
def experts_of(fold: Same[Fold], body: str) -> frozenset[str]:
    """Parameters of a body that are cut by experts."""
    found = loops_of(fold)[body]
    return frozenset(
        param.path
        for param in fold.of.body[body].graph.params
        if any(stem(name) == "experts" for dim in found.dims[param.value] for name in dim)
    )


@lru_cache(maxsize=256)
def repeated(fold: Same[Fold], body: str) -> frozenset[str]:
    """Parameters of a body that an earlier call holds as well, and reduces if it is on the same ranks."""
    calls = list(fold.of.calls())
    return frozenset(path for _, held in fold.of.tied for number, path in held[1:] if calls[number].body.name == body)


def seconds(
    step: StepConstants,
    stack: Stack,
    costs: Mapping[str, Cost],
    host_s: float,
    *,
    gathers: Cost,
    backward: tuple[Cost, Cost],
    apart: bool,
) -> Seconds:
    """Least seconds of a stage, given what is gathered for its forward pass, and gathered and reduced for its backward
    pass, where it may hide behind gradients of weights."""
    again, inputs, weights = costs["recompute"].plus(backward[0]), costs["inputs"], costs["weights"]
    if apart:
        beside, weights = Cost(), weights.plus(backward[1])
    else:
        beside, inputs = weights, inputs.plus(backward[1])
    return Seconds(
        together(step, stack, costs["forward"].plus(gathers), host_s).seconds,
        together(step, stack, again.plus(inputs), host_s, beside=beside, again=again).seconds,
        together(step, stack, weights, host_s).seconds,
        costs["update"].device_s,
    )


def room(workload: Workload, base: Base, calls: tuple[tuple[str, int], ...]) -> Room:
    """Least memory of a stage with these calls."""
    runs, at = [], 0
    for name, times in calls:
        runs.append(Run((name,), times, at))
        at += times
    summaries = {name: base.pieces[name].memory for name, _ in calls}
    memory = StageMemory(replace(base.stage, runs=tuple(runs)), summaries, workload)
    dense, expert = Held(), Held()
    for name, times in calls:
        outside, inside = base.pieces[name].states
        dense, expert = dense.plus(outside, times), expert.plus(inside, times)
    kept = memory.kept_bytes
    passes = memory.forward(False, False), memory.backward(True, False)
    forward, backward = (max(kept, one.total) for one in passes)
    gathered = max(one.sizes.get("gathered", 0.0) for one in passes)
    return Room(kept, min(kept, memory.weight_kept), forward, backward, gathered, dense, expert, _pair(base, calls))


def _pair(base: Base, calls: tuple[tuple[str, int], ...]) -> tuple[float, float]:
    """Parameters of two neighbouring calls: the most outside the experts, and the most in all."""
    sizes = []
    for name, times in calls:
        outside, inside = base.pieces[name].states
        sizes += [(outside.elements, outside.elements + inside.elements)] * min(times, 2)
    pairs = zip([(0.0, 0.0), *sizes], sizes, strict=False)
    dense, whole = zip(*((one[0] + other[0], one[1] + other[1]) for one, other in pairs), strict=True)
    return max(dense), max(whole)


def copies(config: Config) -> tuple[int, int]:
    """How many ranks hold the same parameters, outside the experts and inside them."""
    inside = config.ep * max(1, config.etp)
    return config.dp * config.cp, max(1, config.dp * config.cp * config.tp // inside)
