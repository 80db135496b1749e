"""Memory of one stage's calls together: the fullest instant of every kind of action.

Calls run one after another: what the calls before have kept, and the fullest instant of the call that runs
(`meshwright.cost_models.memory.body`), with parameters gathered for it and for the next one.

torch's allocator keeps what is freed for the stream that it was allocated in (c10/cuda/CUDACachingAllocator.cpp), so
what it reserves is the sum of what every stream's *pool* holds at its own fullest instant, not the fullest instant of
the sum. `fully_shard` allocates in three streams (torch.distributed.fsdp, `_fsdp_collectives.py`):

    messages     what parameters arrive in: the pool of the stream that fills them. Forward, one is let go when the next
                 one was copied out, so that the fullest holds two
    gradients    what a reduce-scatter leaves: the pool of the stream that reduces. Those of a step go there one after
                 the other and are let go together, so that the pool holds all of them from the second step on
    the rest     the pool of the compute stream

`Parts.apart` is what of an instant lies in the first two; the fullest instant is that of the third.

torch's runtime of pipelines has a stage that is a unit itself give nothing back behind its backward pass
(torch.distributed.pipelining, `stage.py`): what its units cast stays until the next forward pass has used it. And
gradients of weights that are made apart are cast to what is summed only when the next backward pass has gone through
their unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property

from meshwright.cost_models.memory.body import BodyMemory
from meshwright.cost_models.memory.fullest import Fullest
from meshwright.cost_models.memory.in_flight import State
from meshwright.cost_models.memory.stage_buffers import Runtime, runtime_of
from meshwright.cost_models.memory.storages import Shared
from meshwright.ir.program.program import Program, Stage
from meshwright.ir.target.workload import Workload


@dataclass(slots=True)
class Parts:
    """Bytes under the names of `HELD`, summed."""

    sizes: dict[str, float] = field(default_factory=dict)
    instant: str = ""
    apart: float = 0.0
    """What of it lies in the pools of streams that communicate."""

    def plus(self, *others: Mapping[str, float], apart: float = 0.0) -> Parts:
        found = Parts(dict(self.sizes), self.instant, self.apart + apart)
        for other in others:
            found.add(other)
        return found

    def add(self, other: Mapping[str, float], times: float = 1) -> None:
        for name, size in other.items():
            self.sizes[name] = self.sizes.get(name, 0.0) + times * size

    @property
    def total(self) -> float:
        return sum(self.sizes.values())

    @property
    def own(self) -> float:
        """Bytes in the pool of the compute stream."""
        return self.total - self.apart


def _mix(fullest: Fullest) -> dict[str, float]:
    mix = fullest.held
    return {
        "activations": mix.activations,
        "recomputed": mix.recomputed,
        "transient": mix.transient,
        "logits": mix.logits,
    }


@dataclass(frozen=True, slots=True)
class _Position:
    """A call that may be the fullest, with what the calls before it keep, and the gradients of those after it."""

    memory: BodyMemory
    before: Mapping[str, float]
    gradients_after: float
    pooled_after: float
    """What of those lies in the pool of the stream that reduces."""
    returned: float
    """Units of the calls after it that were given back, if this is the backward pass."""
    units_after: float
    """Units of the calls after it."""
    previous_message: float
    behind: float
    """The part of it that is fetched behind this call's backward pass."""
    travelling: float
    """The buffer in which the gradients of the call after it travel."""
    travelling_rest: float
    """That in which those travel that set out last."""
    travelling_last: float
    """That of gradients that are summed once a step."""
    kept_with: float
    """What all calls up to it keep, of activations."""
    captured_after: float
    """Gradients that calls after it leave for gradients of weights, where these come apart."""
    passing: float
    """What the latest call before it that keeps something on the host keeps there, which is on its way: down beside
    this forward pass, up beside this backward pass."""


_At = Callable[..., Parts]

SHOWN = 4
"""Repeats of a run that are looked at."""


@dataclass(frozen=True, slots=True)
class Way:
    """The way in which a stage is run."""

    begins: bool = False
    """Whether it is a pipeline's first one."""
    runtime: Runtime = "none"
    """What runs the pipeline that it is in."""
    apart: bool = False
    """Whether gradients of weights are made apart."""


class StageMemory:
    """The memory of one stage's calls together."""

    def __init__(
        self,
        stage: Stage,
        summaries: Mapping[str, BodyMemory],
        workload: Workload,
        entries: Set[Shared] = frozenset(),
        way: Way = Way(),
    ) -> None:
        """`entries` are bytes of the model's inputs, which are there all the time."""
        self.workload = workload
        self.torch = workload.stack.style in ("eager", "compiled")
        self.whole = self.torch and way.begins
        """Whether it makes all of its gradients when those of weights are due, and none before."""
        self.prefetches = "parameters" in workload.stack.hides and not workload.stack.one_by_one
        self.runs = [([summaries[name] for name in run.programs], run.repeats) for run in stage.runs]
        self.gradients = sum(one.gradients * repeats for period, repeats in self.runs for one in period)
        self.pooled_gradients = sum(one.pooled_gradients * repeats for period, repeats in self.runs for one in period)
        units = sum(one.unit * repeats for period, repeats in self.runs for one in period)
        casts = all(one.casts for period, _ in self.runs for one in period)
        self.stays_cast = units if way.runtime == "torch" and casts else 0.0
        """Bytes of units that stay from a backward pass to the next forward pass."""
        self.lingers = 0.0
        """Bytes of gradients that are not yet cast to what is summed."""
        if way.runtime == "torch" and way.apart and workload.states.casts and not self.whole:
            self.lingers = self.gradients * workload.states.used / workload.states.gradient
        summed = any(one.travelling_last for period, _ in self.runs for one in period)
        self.sums_last = summed and way.runtime != "torch"  # which sums behind all work
        """Whether gradients are summed behind the last backward pass, unit by unit."""
        self.buffers = 2 if way.runtime == "emitted" else 1
        """In how many buffers besides: torch 2.13 (`foreach_reduce`) makes another one to divide by a factor that is
        set, as it is where a rank's loss is its share."""
        self.shared = sum(
            size
            for key, size in dict(
                table for period, _ in self.runs for one in period for table in one.passes.shared
            ).items()
            if key not in entries
        )
        self.captured = sum(one.passes.captured * repeats for period, repeats in self.runs for one in period)
        self.kept: dict[str, float] = {"activations": self.shared}
        self.positions = tuple(self._positions())
        self.pooled_messages = max(map(self.messages, self.positions))
        self.weight_kept = sum(one.passes.weight_kept * repeats for period, repeats in self.runs for one in period)
        self.offloaded = sum(one.passes.offloaded * repeats for period, repeats in self.runs for one in period)
        self.kept_bytes = sum(self.kept.values())
        waiting = self.kept["activations"] - self.beyond() + self.captured
        self.waiting_bytes = self.kept_bytes if self.whole else waiting if self.torch else self.weight_kept
        """What a micro-batch holds that waits for gradients of weights (`cost_models.memory.stage_buffers`)."""
        self.weights = Parts({"activations": self.waiting_bytes}, "backward")
        """When gradients of weights are made."""
        if self.torch:
            self.weights.sizes["transient"] = max(0.0, *self._made_of_weights())
        self.known: dict[tuple[_At, tuple[bool, ...]], Parts] = {}

    def forward(self, first: bool, back: bool) -> Parts:
        """The fullest instant of a forward pass: the `first` one of a step, or one behind a `back`ward pass."""
        return self._fullest(self.forward_at, first, back)

    def backward(self, graded: bool, back: bool, last: bool = False) -> Parts:
        """The fullest instant of a backward pass: with or without gradients, behind another one or not, and the last
        one of a step or not."""
        return self._fullest(self.backward_at, graded, back, last)

    def _fullest(self, at: _At, *when: bool) -> Parts:
        """The fullest instant of the calls; `at` finds that of one."""
        key = at, when
        if key not in self.known:
            self.known[key] = max((at(position, *when) for position in self.positions), key=lambda parts: parts.own)
        return self.known[key]

    def _made_of_weights(self) -> Iterator[float]:
        """Bytes that every call adds to what waits, less what calls before it free."""
        gone = 0.0
        for period, repeats in self.runs:
            first = gone
            for one in period:
                yield one.passes.beside_waiting - first
                first += one.passes.weight_kept
            gone += repeats * (first - gone)

    def beyond(self) -> float:
        """Bytes kept behind the last operator with trained weights."""
        found = 0.0
        for period, repeats in reversed(self.runs):
            trained = any(one.slots for one in period)
            for one in reversed(period if trained else period * repeats):
                found += one.passes.beyond
                if one.slots:
                    return found
        return found

    def _positions(self) -> Iterator[_Position]:
        """The calls that may be the fullest: of every call the first two repeats and the last two, those with other
        calls beside them and those without; adds up what is kept on the way."""
        left_over, pooled, captured, last = self.gradients, self.pooled_gradients, self.captured, None
        staying = sum(one.returned * repeats for period, repeats in self.runs for one in period)
        cast = self.stays_cast
        shown = [one for period, repeats in self.runs for _ in range(min(repeats, SHOWN)) for one in period]
        at = 0
        for period, repeats in self.runs:
            own, own_pooled = (sum(getattr(one, name) for one in period) for name in ("gradients", "pooled_gradients"))
            for repeat in range(min(repeats, SHOWN)):
                if repeat == SHOWN // 2 and repeats > SHOWN:  # step over the repeats between
                    for previous, one in zip([period[-1], *period], period, strict=False):
                        self._keep(previous, one, repeats - SHOWN)
                    left_over -= own * (repeats - SHOWN)
                    pooled -= own_pooled * (repeats - SHOWN)
                    staying -= sum(one.returned for one in period) * (repeats - SHOWN)
                    cast -= sum(one.unit for one in period) * (repeats - SHOWN)
                    captured -= sum(one.passes.captured for one in period) * (repeats - SHOWN)
                for one in period:
                    left_over -= one.gradients
                    pooled -= one.pooled_gradients
                    staying -= one.returned
                    cast -= one.unit
                    captured -= one.passes.captured
                    before = dict(self.kept)
                    self._keep(last, one, 1)
                    yield _Position(
                        one,
                        before,
                        left_over,
                        pooled,
                        staying,
                        max(0.0, cast),
                        shown[at - 1].message if at else 0.0,
                        shown[at - 1].behind if at else 0.0,
                        shown[at + 1].travelling if at + 1 < len(shown) else 0.0,
                        shown[at + 1].rest(shown[at + 1].travelling) if at + 1 < len(shown) else 0.0,
                        shown[at + 1].travelling_last if at + 1 < len(shown) else 0.0,
                        self.kept["activations"],
                        captured,
                        next((one.passes.offloaded for one in reversed(shown[:at]) if one.passes.offloaded), 0.0),
                    )
                    last, at = one, at + 1

    def _keep(self, previous: BodyMemory | None, one: BodyMemory, times: int) -> None:
        """Add the bytes that a call keeps; a storage that the call before it keeps as well counts once."""
        left = dict(previous.passes.left) if previous and one.passes.entered else {}
        twice = sum(size for key, size in one.passes.entered if key in left)
        self.kept["activations"] += times * (one.passes.kept.activations - one.passes.offloaded - twice)
        self.kept["logits"] = self.kept.get("logits", 0.0) + times * one.passes.kept.logits

    def forward_at(self, position: _Position, first: bool, back: bool) -> Parts:
        """The fuller of two instants: while the call runs; and at its start, when its unit was copied out of the
        message that it came in, while the message before it is still held. What stays comes with the `first`
        micro-batch, and what stays up to a backward pass with that behind one."""
        one = position.memory
        always = {"staging": position.passing}
        arrives = self.prefetches and (first or (not one.stays and (back or not one.unit_kept)))
        unit = self.unit(one) + (position.units_after if back else 0.0)
        message = one.message if arrives else 0.0
        both = message + (position.previous_message if arrives else 0.0)
        running = Parts(instant="loss" if one.passes.has_logits else "forward end").plus(
            position.before,
            always,
            _mix(one.passes.forward),
            {"gathered": unit + message},
            apart=message if one.pooled else 0.0,
        )
        starting = Parts(instant="forward end").plus(
            position.before, always, {"gathered": unit + both}, apart=both if one.pooled else 0.0
        )
        return max(running, starting, key=lambda parts: parts.own)

    def backward_at(self, position: _Position, graded: bool, back: bool, last: bool) -> Parts:
        """The fullest of three: while it runs, beside gradients of the call after it, which still travel; when some of
        its own are summed before they are scattered, while its unit is still there; and when they set out. Where there
        are no gradients yet (not `graded`), those of the calls after it are there, and its own as soon as they are
        made. Behind the `last` pass gradients set out that were added up."""
        one = position.memory
        passing = {"staging": position.passing}
        unit = self.stays_cast if back and self.stays_cast else self.unit(one) + position.units_after
        after, pooled = (0.0, 0.0) if graded else (position.gradients_after, position.pooled_after)
        there = graded or one.unit_gradients  # a unit's gradients are let go before there are shards of their sum
        own, own_pooled = (0.0, 0.0) if there else (one.gradients, one.pooled_gradients)
        walk = one.passes.backward if graded else one.passes.first
        instant = "recompute" if walk.recomputing else "backward"
        fetched = self.fetched(position)
        travelling = position.travelling
        if one.message_routed:  # experts set out before the rest
            travelling = position.travelling_rest if walk.routed else one.travelling - one.rest(one.travelling)
        travelling += position.travelling_last if last else 0.0
        sums = one.travelling_last * self.buffers if last else 0.0
        running = Parts(instant="loss" if one.passes.has_logits else instant).plus(
            position.before,
            passing,
            _mix(walk),
            {
                "gradients": after,
                "gathered": unit + fetched + travelling + one.piece - position.returned,
            },
            apart=(fetched if one.pooled else 0.0) + pooled,
        )
        summing = Parts(instant="backward").plus(
            position.before,
            passing,
            {
                "gradients": after,
                "transient": one.passes.entering_gradients + one.summed,
                "gathered": unit + fetched + travelling + one.unit_gradients - position.returned,
            },
            apart=(fetched if one.pooled else 0.0) + pooled,
        )
        ending = Parts(instant="backward").plus(
            position.before,
            passing,
            {
                "gradients": after + own,
                "transient": one.passes.entering_gradients + sums,
                "gathered": one.rest(one.unit_gradients + one.travelling) + fetched - position.returned - one.returned,
            },
            apart=(fetched if one.pooled else 0.0) + pooled + own_pooled,
        )
        return max(running, *([summing] if one.summed else []), ending, key=lambda parts: parts.own)

    def inputs_at(self, position: _Position, walk: Fullest) -> Parts:
        """Memory while gradients of inputs alone are made: everything that is kept stays."""
        one, after = position.memory, self.kept["activations"] - position.kept_with
        return Parts(instant="loss" if one.passes.has_logits else "backward").plus(
            position.before,
            _mix(walk),
            {"activations": after + position.captured_after, "gathered": self.unit(one)},
        )

    def messages(self, position: _Position) -> float:
        """Bytes in the pool of messages while a call's parameters arrive."""
        one = position.memory
        return one.message + position.previous_message if self.prefetches and one.pooled else 0.0

    def unit(self, one: BodyMemory) -> float:
        """Bytes of the unit in use, where it does not stay."""
        return 0.0 if one.unit_kept else one.unit

    def fetched(self, position: _Position) -> float:
        """Bytes of the unit that is fetched behind the backward pass."""
        return position.behind if self.prefetches and not position.memory.unit_kept else 0.0

    def action(self, state: State, index: int, graded: bool) -> Parts:
        """Memory of a state's action, on the stage with that number in its group; `graded`: there are gradients from
        the start."""
        graded, back = graded or state.graded[index], state.back[index]
        if state.kind == "F":
            return self.forward(not (state.live[index] or state.waiting[index] or state.graded[index]), back)
        if state.kind == "I":
            return Parts(dict(self.kept), "backward") if self.whole else self.inputs
        if state.kind == "W" and not self.whole:
            return self.weights
        return self.backward(graded, back, self.sums_last and not any(state.live) and not any(state.waiting))

    @cached_property
    def inputs(self) -> Parts:
        """The fullest instant of the pass that makes gradients of inputs alone."""
        if not self.torch:
            return self.backward(True, False)
        walks = [(position, position.memory.passes.inputs) for position in self.positions]
        return max((self.inputs_at(at, walk) for at, walk in walks if walk is not None), key=lambda parts: parts.own)


def stages_of(
    program: Program, summaries: Mapping[str, BodyMemory], workload: Workload, apart: bool
) -> list[StageMemory]:
    """The memory of every stage; stages that run the same bodies as often hold the same, except for the first one.
    `apart`: gradients of weights are computed apart."""
    runtime = runtime_of(program)
    keys = [
        (
            Way(begins=not at, runtime=runtime, apart=apart),
            tuple((run.programs, run.repeats) for run in stage.runs),
        )
        for at, stage in enumerate(program.stages)
    ]
    entries = {
        (one.type.dtype, one.placement.local_shape(one.type.shape, one.mesh), one.placement) for one in program.entries
    }
    made = {
        key: StageMemory(stage, summaries, workload, entries, key[0])
        for key, stage in dict(zip(keys, program.stages, strict=True)).items()
    }
    return [made[key] for key in keys]
