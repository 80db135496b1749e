"""Floors: what no shape of a base can undercut, before the base is priced.

Pricing a base means lowering the model under it, which takes milliseconds; a mixture of experts has thousands of bases.
A floor is put together from a few *anchors*, bases that are priced once and shared:

    kernels             on one rank per copy, with the same experts apart: split further, kernels are no more efficient
    attention, memory   with the same context parallelism: shares of a causal sequence are other kernels, and keep other
                        values
    collectives         within a copy: per degree of tensor parallelism where there are no experts, and where there are,
                        on the same ranks with as many experts apart on them
    exchanges           between copies, over the group that they have

each counted per sequence, and shared by the ranks that a base has. The *coarse* floor takes anchors with the most
sequences, of which there are few; the fine one those with as many sequences as the base. Efficiency that grows with
size is a property of measured kernels and wires rather than a theorem; `CAUTION` is taken off for what tables may
deviate, and random configurations are tested against it (`tests/planner/test_bounds.py`).

State alone may exceed memory unless gradients are sharded, too. Then they are reduced with every micro-batch, and what
of that compute cannot cover is added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import gcd, inf

import numpy as np
import numpy.typing as npt

from meshwright.cost_models.collectives import collective
from meshwright.cost_models.ledger import Phase, Transmission
from meshwright.cost_models.topology import GroupShape, group_shape
from meshwright.ir.errors import MeshwrightError, RecomputeNotExpressible
from meshwright.ir.names import CONTEXT, uses
from meshwright.planner.bases import Base, Held, copies, places, priced
from meshwright.planner.bounds import Calls, Common, in_flight
from meshwright.planner.pins import Config, Value
from meshwright.planner.space import Space

Vector = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

CAUTION = 0.97
"""Of what anchors say. `benchmarks.bound_check` prints how much floors say of random bases at most: up to 0.975 of
their work, so that half a percent of this is needed."""
WORK = ("forward", "recompute", "inputs", "weights")


@dataclass(frozen=True, slots=True)
class Anchor:
    """A base by what tells anchors apart."""

    tp: int
    ep: int
    recompute: str
    sequences: int
    cp: int = 1
    context: str = CONTEXT[0]
    etp: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """What an anchor says of a micro-batch on the whole model: seconds of kernels but attention, of attention, of
    collectives within a copy in bodies without experts and with them, and those that a host waits; exchanges between
    experts; by body, bytes kept, and state outside and inside the experts."""

    device: float = 0.0
    attention: float = 0.0
    tensor: float = 0.0
    routed: float = 0.0
    exchanges: Mapping[Transmission, int] = field(default_factory=dict)
    awaited: float = 0.0
    kept: tuple[float, ...] = ()
    states: tuple[tuple[Held, ...], tuple[Held, ...]] = ((), ())


@dataclass
class Floors:
    """Floors of the bases of one space."""

    common: Common
    space: Space
    _sums: dict[Anchor, Sums] = field(default_factory=dict)
    _bases: dict[Config, Base] = field(default_factory=dict)
    _refused: dict[tuple[Value, ...], MeshwrightError] = field(default_factory=dict)
    _reduced: dict[tuple[int, ...], float] = field(default_factory=dict)
    _groups: dict[tuple[int, int], tuple[Vector, Indices]] = field(default_factory=dict)

    def bound_s(self, base: Config, *, fine: bool = False) -> float:
        """What the step of any shape of this base takes at least; infinite where none can fit."""
        sequences = base.mbs if fine else self.space.most_sequences
        work, kept = self.work_s(base, sequences), self.kept_bytes(base, sequences)
        found = inf
        for config in self.space.pipelined(base):
            shown = 0.0
            if not self.has_room(config, kept, sharded=False):
                if not self.has_room(config, kept, sharded=True):
                    continue
                shown = max(0.0, self.reduced_s(base, config) - self.common.step.covered * work)
            found = min(found, config.microbatches / config.pp * (work + shown))
        return found * self.common.straggling

    def work_s(self, base: Config, sequences: int) -> float:
        """Of one micro-batch on all stages."""
        own, shared = self.sums(Anchor(1, base.ep, base.recompute, sequences)), self.shared(base, sequences)
        tensor = self.sums(Anchor(base.tp, 1, "none", sequences, etp=base.tp))
        total = own.device / (base.tp * base.cp) + shared.attention / base.tp
        total += tensor.tensor / base.cp
        if base.etp:
            inside = self.inside(base)
            total += self.sums(inside).routed * sequences / inside.sequences
        total *= base.mbs / sequences
        return CAUTION * (total + self.exchanged_s(base, sequences)) + (own.awaited if base.etp <= 1 else 0.0)

    def inside(self, base: Config) -> Anchor:
        """The anchor with the ranks of one copy: what of a group of experts lies within them is there, too. A sequence
        alone may be cut where several, one after the other, may not, and is apart."""
        ep = gcd(base.ep * base.etp, base.tp * base.cp) // base.etp
        sequences = 1 if base.mbs == 1 else self.space.most_sequences
        return Anchor(base.tp, max(1, ep), "none", sequences, base.cp, base.context, base.etp)

    def exchanged_s(self, base: Config, sequences: int) -> float:
        """What exchanges between copies take, over the group that they have here."""
        degrees = base.degrees()
        axes = tuple(use.name for use in uses(degrees) if (use.outside, use.inside) == ("dp", "ep"))
        if not axes:
            return 0.0
        share, mesh = base.mbs / sequences / (base.tp * base.cp), degrees.mesh()
        sent: Counter[Transmission] = Counter()
        for one, count in self.sums(Anchor(1, base.dp, base.recompute, sequences)).exchanges.items():
            sent[replace(one, axes=axes, nbytes=share * one.nbytes)] += count
        prices, asked = self.common.prices, Phase(transmissions=sent)
        anywhere = [
            prices.phase(asked, ranks, mesh, self.common.workload) for ranks in places(prices.cluster, mesh.size)
        ]
        return min(sum(one.values) for one in anywhere) * self.common.expert_left

    def shared(self, base: Config, sequences: int) -> Sums:
        """The anchor with the same shares of a sequence."""
        if base.cp == 1:
            return self.sums(Anchor(1, base.ep, base.recompute, sequences))
        return self.sums(Anchor(1, 1, base.recompute, sequences, base.cp, base.context))

    def sums(self, anchor: Anchor) -> Sums:
        """What an anchor says of the whole model, priced when it is asked for first; nothing, where the model cannot
        have it."""
        if anchor not in self._sums:
            a = anchor
            config = self.space.base(a.tp, a.cp, a.ep, a.etp, a.sequences, a.context, a.recompute)
            try:
                self._sums[anchor] = self._summed(self.priced(config))
            except MeshwrightError:
                self._sums[anchor] = Sums()
        return self._sums[anchor]

    def priced(self, config: Config) -> Base:
        """A base, once for all who ask. Raises what the model or the target refuse of it: of how operators are split,
        whatever is computed again."""
        if config.compute in self._refused:
            raise self._refused[config.compute]
        if config not in self._bases:
            try:
                self._bases[config] = priced(self.common.setting, self.common.prices, config)
            except RecomputeNotExpressible:
                raise
            except MeshwrightError as refusal:
                self._refused[config.compute] = refusal
                raise
        return self._bases[config]

    def _summed(self, anchor: Base) -> Sums:
        calls, costs = self.common.calls, anchor.piece(self.common.calls)
        phases = [costs[phase] for phase in WORK]
        kept: list[float] = []
        dense, expert = (dict.fromkeys((name for name, _ in calls), Held()) for _ in range(2))
        exchanges: Counter[Transmission] = Counter()
        for name, times in calls:
            piece = anchor.pieces[name]
            entered = sum(size for _, size in piece.memory.passes.entered)
            kept.append(max(0.0, piece.memory.passes.kept.total - entered))
            dense[name], expert[name] = piece.states
            for phase in WORK:
                for one, count in piece.asked[phase].transmissions.items():
                    if one.kind == "all_to_all":
                        exchanges[one] += times * count
        for path, body in self.common.held_twice:
            held, routed = anchor.pieces[body].slot(path)
            own = expert if routed else dense
            own[body] = own[body].plus(held, -1)
        plain = tuple((name, times) for name, times in calls if not anchor.pieces[name].inside)
        return Sums(
            device=sum(one.device_s - one.engines[1] for one in phases),
            attention=sum(one.engines[1] for one in phases),
            tensor=self._waited_s(anchor, plain),
            routed=self._waited_s(anchor, tuple(call for call in calls if call not in plain)),
            exchanges=exchanges,
            awaited=sum(one.awaited for one in phases) * self.common.host_s,
            kept=tuple(kept),
            states=(tuple(dense.values()), tuple(expert.values())),
        )

    def _waited_s(self, anchor: Base, calls: Calls) -> float:
        """Of collectives within a copy."""
        waited = [anchor.piece(calls)[phase].values for phase in WORK]
        return sum(tensor * self.common.tensor_left + context for tensor, context, _ in waited)

    # memory

    def kept_bytes(self, base: Config, sequences: int) -> Vector:
        """What a micro-batch keeps for its backward pass, by body."""
        own, shared = self.sums(Anchor(1, base.ep, base.recompute, sequences)), self.shared(base, sequences)
        each = np.minimum(self.by_body(own.kept) / base.cp, self.by_body(shared.kept))
        return np.asarray(each * (CAUTION * base.mbs / sequences / base.tp))

    def by_body(self, found: Sequence[float]) -> Vector:
        """Nothing, of an anchor that the model cannot have."""
        return np.array(found or [0.0] * len(self.common.calls))

    @cached_property
    def whole(self) -> tuple[tuple[Held, ...], tuple[Held, ...]]:
        """State of whole bodies, outside the experts and inside."""
        return self.sums(Anchor(1, 1, "none", self.space.most_sequences)).states

    @cached_property
    def states(self) -> list[tuple[Vector, Vector, Vector]]:
        """The same in bytes: parameters, gradients, optimizer state."""
        return [
            (
                self.by_body([one.parameters for one in held]),
                self.by_body([one.gradients for one in held]),
                self.by_body([one.optimizer for one in held]),
            )
            for held in self.whole
        ]

    def has_room(self, config: Config, kept: Vector, *, sharded: bool) -> bool:
        """Whether the state may fit beside what is in flight under any schedule, with the optimizer's state over all
        copies and, `sharded`, everything."""
        return self.common.with_runtime(self.fullest_bytes(config, kept, sharded=sharded)) <= self.common.capacity

    def fullest_bytes(self, config: Config, kept: Vector, *, sharded: bool) -> float:
        """State and what is in flight, of the fullest group, under the schedule with the least; infinite if there is
        none."""
        state = np.zeros_like(kept)
        for (parameters, gradients, optimizer), apart, many in zip(
            self.states, _apart(config), copies(config), strict=True
        ):
            over = many if sharded else 1
            state += (parameters / over + gradients / over + optimizer / many) / apart
        groups, starts = self.groups(config)
        if not len(starts):
            return inf
        return float(np.maximum.reduceat(groups @ np.concatenate([state, kept]), starts).min())

    def groups(self, config: Config) -> tuple[Vector, Indices]:
        """What groups hold, in counts of each body: calls, then micro-batches in flight through them; a row for every
        instant of a group that may be its fullest. Pipelines follow each other, and begin at the rows told."""
        key = config.pp, config.microbatches
        if key not in self._groups:
            rows: list[list[float]] = []
            starts: list[int] = []
            for schedule, vp in self.space.schedules(*key):
                split = self.space.split(config.pp * vp)
                if split:
                    starts.append(len(rows))
                    rows += self._held(replace(config, schedule=schedule, vp=vp, split=split))
            self._groups[key] = np.array(rows), np.array(starts, dtype=np.intp)
        return self._groups[key]

    def _held(self, config: Config) -> Iterator[list[float]]:
        stages = [Counter[str]() for _ in range(config.pp * config.vp)]
        for stage, calls in zip(stages, self.common.stages(config), strict=True):
            for name, times in calls:
                stage[name] += times
        names = [name for name, _ in self.common.calls]
        flying = in_flight(config.schedule, config.pp, config.vp, config.microbatches)
        for number, own in self.common.groups(config):
            here = [stages[stage] for stage in own]
            held = [float(sum(stage[name] for stage in here)) for name in names]
            for live in sorted({moment.live for moment in flying(number)}):
                yield held + [sum(n * stage[name] for n, stage in zip(live, here, strict=True)) for name in names]

    def reduced_s(self, base: Config, config: Config) -> float:
        """To reduce all gradients once, over all stages."""
        key = base.tp, base.cp, base.ep, base.etp, config.pp
        if key not in self._reduced:
            self._reduced[key] = self._reduced_s(base, config)
        return self._reduced[key]

    def _reduced_s(self, base: Config, config: Config) -> float:
        degrees, width = config.degrees(), self.common.workload.states.reduced
        mesh, found, least = degrees.mesh(), uses(degrees), inf
        for ranks in places(self.common.prices.cluster, mesh.size):
            sent: dict[GroupShape, float] = {}
            for expert, (held, apart) in enumerate(zip(self.whole, _apart(base), strict=True)):
                axes = [use.name for use in found if use.holds_copies(expert=bool(expert))]
                if axes:
                    shape = group_shape(self.common.prices.cluster, ranks, mesh, axes)
                    elements = sum(one.elements for one in held) / apart
                    sent[shape] = sent.get(shape, 0.0) + elements * width / config.pp
            taken = (collective("reduce_scatter", size, shape, self.common.library) for shape, size in sent.items())
            least = min(least, config.pp * sum(one.seconds for one in taken))
        return least


def _apart(config: Config) -> tuple[int, int]:
    """Over how many ranks of a copy parameters are cut, outside the experts and inside."""
    return config.tp, config.ep * max(1, config.etp)
