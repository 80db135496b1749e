"""Coarse bounds: lower bounds for all pipeline configurations of a kernel configuration, before that is priced.

Pricing a base means lowering the model under it, which takes milliseconds; a mixture of experts has thousands of bases.
A floor is put together from a few *anchors*, bases that are priced once and shared:

    kernels             on one rank per copy, with the same experts apart: split further, kernels are no more efficient
    attention, memory   with the same context parallelism: shares of a causal sequence are other kernels, and keep other
                        values
    collectives         within a copy: per degree of tensor parallelism where there are no experts, and where there are,
                        on the same ranks with as many experts apart on them
    exchanges           between copies, over the group that they have

each counted per sequence, by phase and body, and shared by the ranks that a base has. The *coarse* floor takes anchors
with the most sequences, of which there are few; the fine one those with as many sequences as the base. Efficiency that
grows with size is a property of kernels and wires rather than a theorem. So anchors of a machine that was measured have
prices that no part undercuts (`Prices.least`); `CAUTION` is taken off for what shipped tables may deviate, and random
configurations are tested against it (`tests/planner/test_bounds.py`).

From these follow, for every number of stages and every schedule, the group that is done last, as in
`planner.bounds.bounds`, and the memory of the fullest. State alone may exceed memory unless gradients are sharded, too.
Then they are reduced with every micro-batch, and what of that compute cannot cover is added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import repeat
from math import gcd, inf

import numpy as np
import numpy.typing as npt

from meshwright.cost_models.collectives.topology import GroupShape, group_shape
from meshwright.cost_models.ledger.ledger import Phase, Transmission
from meshwright.ir.errors import MeshwrightError, RecomputeNotExpressible
from meshwright.ir.names import uses
from meshwright.ir.schedules import SCHEDULES
from meshwright.planner.bounds.anchors import WORK, Anchor, Sums, Vector
from meshwright.planner.bounds.bases import Base, Held, Piece, Pieces, copies, piece, places, priced
from meshwright.planner.bounds.common import Common
from meshwright.planner.bounds.in_flight import flight
from meshwright.planner.question.pins import Config, Value
from meshwright.planner.space.declared import Space

Indices = npt.NDArray[np.intp]

CAUTION = 0.97
"""Of what anchors say. `benchmarks.bound_check` prints how much coarse bounds say of random bases at most: up to 0.975
of their work, so that half a percent of this is needed."""


@dataclass(frozen=True, slots=True)
class Pipelines:
    """The schedules for a number of stages and micro-batches.

    - `rows` count, by body, what a group holds at an instant that may be its fullest: calls, those of them that have
      gradients, micro-batches in flight through them, those that only gradients of weights still need, and the last
      call of the stage that runs, if backward. Those of a schedule begin at `starts`.
    - `waits` and `work` count, of a group that may be done last, calls that it waits for before and after its own, by
      phase and body, and its own, by body. Those of a schedule begin at `firsts`.
    """

    rows: Vector
    starts: Indices
    waits: Vector
    work: Vector
    firsts: Indices


@dataclass
class CoarseBounds:
    """Coarse bounds for the kernel configurations of one space."""

    common: Common
    space: Space
    _sums: dict[Anchor, Sums] = field(default_factory=dict)
    _bases: dict[Config, Base] = field(default_factory=dict)
    _pieces: Pieces = field(default_factory=dict)
    _least: Pieces = field(default_factory=dict)
    """The same at the least prices (`Prices.least`), where these are others."""
    _refused: dict[tuple[Value, ...], MeshwrightError] = field(default_factory=dict)
    _reduced: dict[tuple[int, ...], float] = field(default_factory=dict)
    _pipelines: dict[tuple[int, int], Pipelines] = field(default_factory=dict)

    def bound_s(self, base: Config, *, fine: bool = False, below_s: float = inf) -> float:
        """Least step time of any configuration with this kernel configuration; infinite where none can fit. Where its
        work alone takes no less than `below_s`, nothing else is asked."""
        sequences = base.mbs if fine else self.space.most_sequences
        phases = self.phases_s(base, sequences)
        work = float(phases.sum(axis=0) @ self.common.counts)
        if below_s < inf:
            turns = self.space.global_batch * base.tp * base.cp / (base.mbs * self.space.ranks)
            if (alone := turns * work * self.common.straggling) >= below_s:
                return alone
        used = self.used_bytes(base, sequences)
        found = inf
        for config in self.space.pipelined(base):
            fullest = self.fullest(config, used)
            if fullest is None:
                continue
            roomy, sharded = self.common.with_runtime(fullest) <= self.common.capacity
            if not sharded.any():
                continue
            shown = 0.0
            if not roomy.all():
                shown = max(0.0, self.reduced_s(base, config) - self.common.step.covered * work)
            all_work = work + self.between_s(base, config)
            busy = config.microbatches / config.pp * (all_work + np.where(roomy, 0.0, shown))
            each = np.maximum(busy, self.longest_s(config, phases))
            found = min(found, float(each[sharded].min()))
        return found * self.common.straggling

    def between_s(self, base: Config, config: Config) -> float:
        """Seconds of exchanges between copies for one micro-batch on all stages."""
        between = self.common.between(base, config)
        each = {name: sum(sum(cost.values) for cost in phases.values()) for name, phases in between.items()}
        return CAUTION * sum(times * each.get(name, 0.0) for name, times in self.common.calls) * self.common.tensor_left

    def longest_s(self, config: Config, phases: Vector) -> Vector:
        """Step time of the group that finishes last, by schedule: it waits for its first micro-batch, works, and is
        waited for."""
        pipelines = self.pipelines(config)
        waits = pipelines.waits @ phases.ravel() + config.microbatches * (pipelines.work @ phases.sum(axis=0))
        return np.asarray(np.maximum.reduceat(waits, pipelines.firsts))

    def work_s(self, base: Config, sequences: int) -> float:
        """Seconds of one micro-batch on all stages."""
        return float(self.phases_s(base, sequences).sum(axis=0) @ self.common.counts)

    def phases_s(self, base: Config, sequences: int) -> Vector:
        """Seconds of one call of every body, by phase; exchanges between copies, whose phase is unknown, come
        separately."""
        own, shared = self.sums(Anchor(1, base.ep, base.recompute, sequences)), self.shared(base, sequences)
        tensor = self.sums(Anchor(base.tp, 1, "none", sequences, etp=base.tp)).tensor / base.cp
        found = own.device / (base.tp * base.cp) + shared.attention / base.tp + tensor
        if base.etp:
            found = found + self.sums(self.inside(base, self.space.most_sequences)).routed * (
                sequences / self.space.most_sequences
            )
        found = CAUTION * base.mbs / sequences * found + (own.awaited if base.etp <= 1 else 0.0)
        return np.vstack([found, CAUTION * self.exchanged_s(base, sequences)])

    def operators_s(self, config: Config, parts_s: float = 0.0) -> float:
        """Least step time of any plan, whatever axes do in operators, with so many stages and micro-batches: kernels
        alone, and what they keep, as on one rank, shared out evenly over all ranks of a stage; or `parts_s`, what one
        micro-batch takes at least on all stages together. Infinite where that cannot fit."""
        ranks, sequences = config.tp * config.cp * config.dp, config.mbs * config.dp
        whole = replace(config, tp=1, cp=1, ep=1, etp=0, dp=ranks)
        sums, share = self.sums(Anchor(1, 1, config.recompute, sequences)), CAUTION / ranks
        fullest = self.fullest(whole, share * sums.used, units=False)  # operators may cut any parameter
        if fullest is None:
            return inf
        fits = self.common.with_runtime(fullest[1]) <= self.common.capacity
        if not fits.all():  # shares of a causal sequence may keep less than the whole
            leanest = self.fullest(whole, share * self.least_used(config.recompute, sequences), units=False)
            assert leanest is not None
            fits = self.common.with_runtime(leanest[1]) <= self.common.capacity
        if not fits.any():
            return inf
        kernels = share * (sums.device + self.attention_s(config.recompute, sequences))
        hosts = np.where(self.common.routed, 0.0, sums.launches)  # fewer experts on a rank are fewer kernels
        nobody = np.zeros(kernels.shape[1])
        longest = np.maximum(*(self.longest_s(whole, np.vstack([one, nobody])) for one in (kernels, hosts)))
        longest += CAUTION * float(sums.update @ self.common.counts) / self.space.ranks
        parts = config.microbatches / config.pp * parts_s + self.waits_s(whole, np.vstack([kernels, nobody]))
        return float(np.maximum(longest, parts)[fits].min()) * self.common.straggling

    def waits_s(self, config: Config, phases: Vector) -> Vector:
        """Seconds that a group waits before and after its own work, by schedule, in the mean over groups: no more than
        the one that is done last, where all do as much."""
        pipelines = self.pipelines(config)
        groups = np.diff(np.append(pipelines.firsts, len(pipelines.waits)))
        return np.asarray(np.add.reduceat(pipelines.waits @ phases.ravel(), pipelines.firsts) / groups)

    def attention_s(self, recompute: str, sequences: int) -> Vector:
        """Least seconds of attention on one rank, by phase and body, in whatever pieces: those of a causal sequence are
        other kernels than the whole."""
        found = self.sums(Anchor(1, 1, recompute, sequences)).attention
        for cp, context in self.space.contexts():
            pieces = self.sums(Anchor(1, 1, recompute, sequences, cp, context)).attention
            found = np.where(pieces > 0, np.minimum(found, cp * pieces), found)
        return found

    def least_used(self, recompute: str, sequences: int) -> Vector:
        """`Sums.used` on one rank, the least in whatever pieces a sequence is attended to."""
        found = self.sums(Anchor(1, 1, recompute, sequences)).used
        for cp, context in self.space.contexts():
            found = np.minimum(found, cp * self.sums(Anchor(1, 1, recompute, sequences, cp, context)).used)
        return np.asarray(found)

    def inside(self, base: Config, sequences: int) -> Anchor:
        """The anchor with the ranks of one copy, which covers the part of an expert group that lies within them."""
        ep = gcd(base.ep * base.etp, base.tp * base.cp) // base.etp
        return Anchor(base.tp, max(1, ep), "none", sequences, base.cp, base.context, base.etp)

    def exchanged_s(self, base: Config, sequences: int) -> Vector:
        """Seconds of the exchanges between copies in one call of every body, over the group that a configuration
        has."""
        found, degrees = np.zeros(len(self.common.calls)), base.degrees()
        axes = tuple(use.name for use in uses(degrees) if (use.outside, use.inside) == ("dp", "ep"))
        if not axes:
            return found
        share, mesh, prices = base.mbs / sequences / (base.tp * base.cp), degrees.mesh(), self.common.prices.least
        for name, exchanges in self.sums(Anchor(1, base.dp, base.recompute, sequences)).exchanges.items():
            sent: Counter[Transmission] = Counter()
            for one, count in exchanges.items():
                sent[replace(one, axes=axes, nbytes=share * one.nbytes)] += count
            asked, workload = Phase(transmissions=sent), self.common.workload
            anywhere = [prices.phase(asked, ranks, mesh, workload) for ranks in places(prices.cluster, mesh.size)]
            found[self.common.names.index(name)] = min(sum(one.values) for one in anywhere) * self.common.expert_left
        return found

    def shared(self, base: Config, sequences: int) -> Sums:
        """The anchor with the same cut of the sequence."""
        if base.cp == 1:
            return self.sums(Anchor(1, base.ep, base.recompute, sequences))
        return self.sums(Anchor(1, 1, base.recompute, sequences, base.cp, base.context))

    def sums(self, anchor: Anchor) -> Sums:
        """Costs of the whole model at an anchor."""
        if anchor not in self._sums:
            a = anchor
            config = self.space.base(a.tp, a.cp, a.ep, a.etp, a.sequences, a.context, a.recompute)
            self._sums[anchor] = Sums(self.common, partial(self.piece, config))
        return self._sums[anchor]

    def priced(self, config: Config) -> Base:
        """A kernel configuration, priced once for all callers. Raises what the model or the target refuse of how
        operators are split, whatever is recomputed."""
        if config.compute in self._refused:
            raise self._refused[config.compute]
        if config not in self._bases:
            try:
                self._bases[config] = priced(self.common.setting, self.common.prices, config, known=self._pieces)
            except RecomputeNotExpressible:
                raise
            except MeshwrightError as refusal:
                self._refused[config.compute] = refusal
                raise
        return self._bases[config]

    def piece(self, config: Config, name: str) -> Piece | None:
        """A body of an anchor; None where the model or the target cannot have it."""
        setting, prices = replace(self.common.setting, modules=()), self.common.prices
        known = self._pieces if prices.least is prices else self._least
        try:
            return piece(setting, prices.least, config, name, known)
        except MeshwrightError:
            return None

    # memory

    def kept_bytes(self, base: Config, sequences: int) -> Vector:
        """Bytes that a micro-batch saves for its backward pass, by body."""
        return np.asarray(self.used_bytes(base, sequences)[0])

    def used_bytes(self, base: Config, sequences: int) -> Vector:
        """Bytes by body: saved by a micro-batch; still needed by gradients of weights; and held by the backward pass at
        its fullest beside them."""
        own, shared = self.sums(Anchor(1, base.ep, base.recompute, sequences)), self.shared(base, sequences)
        each = np.minimum(own.used / base.cp, shared.used)
        return np.asarray(each * (CAUTION * base.mbs / sequences / base.tp))

    @cached_property
    def whole(self) -> tuple[tuple[Held, ...], tuple[Held, ...]]:
        """Parameter state of whole bodies, outside the experts and inside."""
        return self.sums(Anchor(1, 1, "none", self.space.most_sequences)).states

    @cached_property
    def states(self) -> list[tuple[Vector, Vector, Vector]]:
        """Parameter state of whole bodies in bytes: parameters, gradients, optimizer state."""
        return [
            (
                np.array([one.parameters for one in held]),
                np.array([one.gradients for one in held]),
                np.array([one.optimizer for one in held]),
            )
            for held in self.whole
        ]

    @cached_property
    def resting_bytes(self) -> float:
        """Least bytes that a device holds between passes if all devices share them; the optimizer's state may be in the
        host's memory."""
        rests = sum(float(self.common.counts @ (held + gradients)) for held, gradients, _ in self.states)
        return float(self.common.with_runtime(rests / self.space.ranks))

    def fullest_bytes(self, config: Config, kept: Vector, *, sharded: bool) -> float:
        """Bytes of state and of what is in flight for the fullest group, under the schedule that needs least; infinite
        if there is none."""
        found = self.fullest(config, np.array([kept, 0.0 * kept, 0.0 * kept]), units=False)
        return inf if found is None else float(found[int(sharded)].min())

    def lacks_bytes(self, base: Config) -> float:
        """By how much the leanest configuration with this kernel configuration is too full at least; infinite where
        there is none."""
        used = self.used_bytes(base, self.space.most_sequences)
        found = [self.fullest(config, used) for config in self.space.pipelined(base)]
        fullest = min((float(one.min()) for one in found if one is not None), default=inf)
        return float(self.common.with_runtime(fullest)) - self.common.capacity

    def fullest(self, config: Config, used: Vector, *, offloaded: bool = False, units: bool = True) -> Vector | None:
        """State and what is in flight, of the fullest group, by schedule, if there are any: with the optimizer's state
        over all copies, and with everything. `offloaded`: without the optimizer's; `units`: with parameters in the form
        that operators read."""
        pipelines = self.pipelines(config)
        if not len(pipelines.starts):
            return None
        kept, waiting, working = used
        read = self.unit_bytes(config) if units else repeat(np.zeros_like(working), 2)
        states = self.state_bytes(config, offloaded=offloaded)
        rows = [np.concatenate([*state, kept, waiting, working + own]) for state, own in zip(states, read, strict=True)]
        held = np.stack(rows, axis=1)
        return np.asarray(np.maximum.reduceat(pipelines.rows @ held, pipelines.starts).T)

    def state_bytes(self, config: Config, *, offloaded: bool = False) -> Iterator[tuple[Vector, Vector]]:
        """Parameters and the optimizer's state, and gradients, by body: with the optimizer's over all copies, and with
        everything."""
        sides = list(zip(self.states, _apart(config), copies(config), strict=True))
        states = self.common.workload.states
        for sharded in (False, True):
            held, graded = (np.zeros(len(self.common.calls)) for _ in range(2))
            for (parameters, gradients, optimizer), apart, many in sides:
                over = many if sharded else 1
                whole = min(1.0, states.used / states.stored)  # as gathered, if those rest in shards
                held += parameters * (whole if many > 1 and not sharded else 1 / over) / apart
                held += 0.0 if offloaded else optimizer / many / apart
                if sharded and many > 1 and self.common.pools:  # a pool keeps them from step to step
                    held += gradients / over / apart
                else:
                    graded += gradients / over / apart
            yield held, graded

    def unit_bytes(self, config: Config) -> Iterator[Vector]:
        """Bytes by body that a call has beside these while it runs, where torch has its parameters in a unit: in the
        form that operators read, and in the message in which they came."""
        states, common = self.common.workload.states, self.common
        for sharded in (False, True):
            read = np.zeros(len(common.calls))
            sides = zip(self.whole, _apart(config), copies(config), strict=True) if common.stack.by_torch else ()
            for held, apart, many in sides:
                arrives = sharded and many > 1
                times = (states.casts or arrives) + (arrives and common.pools and common.prefetches)
                read += times * states.used / apart * np.array([one.elements for one in held])
            yield CAUTION * read

    def pipelines(self, config: Config) -> Pipelines:
        """The schedules of a configuration's stages and micro-batches."""
        key = config.pp, config.microbatches
        if key not in self._pipelines:
            rows: list[Vector] = []
            groups: list[tuple[Vector, Vector]] = []
            starts, firsts = [], []
            for schedule, vp in self.space.schedules(*key):
                for split, blocks in self.space.shares(config.pp * vp):
                    starts.append(sum(map(len, rows)))
                    firsts.append(len(groups))
                    own = replace(config, schedule=schedule, vp=vp, split=split, stage_blocks=blocks)
                    rows += self._held(own)
                    groups += self._waiting(own)
            self._pipelines[key] = Pipelines(
                np.concatenate(rows) if rows else np.zeros((0, 0)),
                np.array(starts, dtype=np.intp),
                np.array([waits for waits, _ in groups]),
                np.array([work for _, work in groups]),
                np.array(firsts, dtype=np.intp),
            )
        return self._pipelines[key]

    def _stages(self, config: Config) -> Vector:
        """The calls of each body on every stage."""
        found = np.zeros((config.pp * config.vp, len(self.common.names)))
        for own, calls in zip(found, self.common.stages(config), strict=True):
            for name, times in calls:
                own[self.common.names.index(name)] += times
        return found

    def _held(self, config: Config) -> Iterator[Vector]:
        """The rows of a schedule. Gradients exist from the start where kernels are fused, else once every stage has run
        a micro-batch; and they exist at the end, when nothing else does."""
        stages = self._stages(config)
        names = np.array(self.common.names)
        last = np.array([[own[-1][0]] for own in self.common.stages(config)]) == names
        key = config.schedule, config.pp, config.vp, config.microbatches
        for number, group in self.common.groups(config):
            own = list(group)
            flying, held = flight(*key, number), stages[own].sum(axis=0)
            nothing = np.zeros_like(held)
            yield np.concatenate([held, held, nothing, nothing, nothing])[None]
            there = np.ones_like(flying.graded) if self.common.stack.style == "fused" else flying.graded
            yield np.hstack(
                [
                    np.tile(held, (len(there), 1)),
                    np.outer(there, held),
                    flying.live @ stages[own],
                    flying.pending @ stages[own],
                    flying.backward @ last[own],
                ]
            )

    def _waiting(self, config: Config) -> Iterator[tuple[Vector, Vector]]:
        """Calls that each group waits for, by phase: forward, before its first micro-batch arrives, and backward, while
        its last gradients travel back through earlier stages; and its own calls. See `planner.bounds.bounds`."""
        apart = SCHEDULES[config.schedule].splits
        stages = self._stages(config)
        before = np.cumsum([np.zeros(len(self.common.calls)), *stages], axis=0)
        waits = np.array([1.0, *([0.0] * 3 if apart else [1.0] * 3), 0.0])
        if apart and self.common.stack.rolling:
            waits = np.zeros(len(WORK) + 1)
        for _, own in self.common.groups(config):
            yield np.outer(waits, before[own[0]]).ravel(), stages[list(own)].sum(axis=0)

    def reduced_s(self, base: Config, config: Config) -> float:
        """Seconds to reduce all gradients once, over all stages."""
        key = base.tp, base.cp, base.ep, base.etp, config.pp
        if key not in self._reduced:
            self._reduced[key] = self._reduced_s(base, config)
        return self._reduced[key]

    def _reduced_s(self, base: Config, config: Config) -> float:
        degrees, width = config.degrees(), self.common.workload.states.reduced
        mesh, found, least, prices = degrees.mesh(), uses(degrees), inf, self.common.prices.least
        for ranks in places(self.common.prices.cluster, mesh.size):
            sent: dict[GroupShape, float] = {}
            for expert, (held, apart) in enumerate(zip(self.whole, _apart(base), strict=True)):
                axes = [use.name for use in found if use.holds_copies(expert=bool(expert))]
                if axes:
                    shape = group_shape(self.common.prices.cluster, ranks, mesh, axes)
                    elements = sum(n * one.elements for n, one in zip(self.common.counts, held, strict=True)) / apart
                    sent[shape] = sent.get(shape, 0.0) + elements * width / config.pp
            taken = (prices.moved("reduce_scatter", size, shape, self.common.library) for shape, size in sent.items())
            least = min(least, config.pp * sum(one.seconds for one in taken))
        return least


def _apart(config: Config) -> tuple[int, int]:
    """The number of ranks of a copy over which parameters are cut, outside the experts and inside."""
    return config.tp, config.ep * max(1, config.etp)
