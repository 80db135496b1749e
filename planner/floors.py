"""Floors: what no shape of a base can undercut, before the base is priced.

Pricing a base means lowering the model under it, which takes milliseconds; a mixture of experts has thousands of bases.
A floor is put together from a few *anchors*, bases that are priced once and shared:

    kernels, experts    on one rank per copy, with the same experts apart: split further, kernels are no more efficient
    tensor              collectives of tensor parallelism, per degree, on their own

each counted per sequence, and shared by the ranks that a base has. The *coarse* floor takes anchors with the most
sequences, of which there are few; the fine one those with as many sequences as the base. Efficiency that grows with
size is a property of measured kernels and wires rather than a theorem; `CAUTION` is taken off for what tables may
deviate, and random configurations are tested against it (`tests/planner/test_bounds.py`).

State alone may exceed memory unless gradients are sharded, too. Then they are reduced with every micro-batch, and what
of that compute cannot cover is added.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from meshwright.cost_models.collectives import collective
from meshwright.cost_models.topology import GroupShape, group_shape
from meshwright.ir.errors import MeshwrightError
from meshwright.ir.names import uses
from meshwright.planner.bases import Base, Held, copies, priced
from meshwright.planner.bounds import Common
from meshwright.planner.pins import Config
from meshwright.planner.space import Space

CAUTION = 0.97
"""Of what anchors say."""
LIGHT = (("v-min", 0.3), ("v-half", 0.5))
"""Schedules that hold less than all of a micro-batch's stages at once, and how much at least."""
WORK = ("forward", "recompute", "inputs", "weights")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """What an anchor says of a micro-batch on the whole model: seconds of kernels, of collectives of tensor parallelism
    and of exchanges between experts, and those that a host waits; bytes kept; state outside and inside the experts."""

    device: float = 0.0
    tensor: float = 0.0
    expert: float = 0.0
    awaited: float = 0.0
    kept: float = 0.0
    states: tuple[Held, Held] = (Held(), Held())


@dataclass(slots=True)
class Floors:
    """Floors of the bases of one space."""

    common: Common
    space: Space
    _sums: dict[tuple[int, int, str, int], Sums] = field(default_factory=dict)
    _reduced: dict[tuple[int, ...], float] = field(default_factory=dict)

    def bound_s(self, base: Config, *, fine: bool = False) -> float:
        """What the step of any shape of this base takes at least; infinite where none can fit."""
        sequences = base.mbs if fine else self.space.most_sequences
        work, kept = self.work_s(base, sequences), self.kept_bytes(base, sequences)
        found = inf
        for pp in self.space.pipeline_sizes(base):
            config = replace(base, pp=pp, dp=self.space.ranks // (base.tp * base.cp * pp))
            if config.dp % base.dp or self.space.global_batch % (config.dp * base.mbs):
                continue
            m = self.space.global_batch // (config.dp * base.mbs)
            flying = kept * min(self.share_in_flight(pp), m / pp)
            shown = 0.0
            if not self.has_room(base, config, flying, sharded=False):
                if not self.has_room(base, config, flying, sharded=True):
                    continue
                shown = max(0.0, self.reduced_s(base, config) - self.common.step.covered * work)
            found = min(found, m / pp * (work + shown))
        return found * self.common.straggling

    def share_in_flight(self, pp: int) -> float:
        """Of what a micro-batch keeps on all stages, how much a rank holds at least, once there are enough of them."""
        known = {line.name for line in self.space.target.schedules} if pp > 1 else set[str]()
        return next((share for name, share in LIGHT if name in known), 1.0)

    def work_s(self, base: Config, sequences: int) -> float:
        """Of one micro-batch on all stages."""
        share = CAUTION * base.mbs / sequences
        own, tensor = self.sums(1, base.ep, base.recompute, sequences), self.sums(base.tp, 1, "none", sequences)
        total = (own.device + own.expert) / (base.tp * base.cp)
        total += self.common.tensor_left * tensor.tensor / base.cp
        return share * total + (own.awaited if base.etp <= 1 else 0.0)

    def sums(self, tp: int, ep: int, recompute: str, sequences: int) -> Sums:
        """What an anchor says of the whole model; nothing, where the model cannot have it."""
        key = tp, ep, recompute, sequences
        if key not in self._sums:
            anchor = self.anchor(*key)
            self._sums[key] = Sums() if anchor is None else self._summed(anchor)
        return self._sums[key]

    def _summed(self, anchor: Base) -> Sums:
        calls, costs = self.common.calls, anchor.piece(self.common.calls)
        phases = [costs[phase] for phase in WORK]
        kept, dense, expert = 0.0, Held(), Held()
        for name, times in calls:
            memory, (outside, inside) = anchor.pieces[name].memory, anchor.pieces[name].states
            entered = sum(size for _, size in memory.passes.entered)
            kept += times * max(0.0, memory.passes.kept.total - entered)
            dense, expert = dense.plus(outside, times), expert.plus(inside, times)
        for path, body in self.common.held_twice:
            held, routed = anchor.pieces[body].slot(path)
            dense, expert = (dense, expert.plus(held, -1)) if routed else (dense.plus(held, -1), expert)
        return Sums(
            device=sum(one.device_s for one in phases),
            tensor=sum(one.values[0] for one in phases),
            expert=sum(one.values[2] for one in phases),
            awaited=sum(one.awaited for one in phases) * self.common.host_s,
            kept=kept,
            states=(dense, expert),
        )

    def anchor(self, tp: int, ep: int, recompute: str, sequences: int) -> Base | None:
        """Priced when it is asked for first; None where the model cannot have it."""
        config = self.space.base(tp, 1, ep, 1 if ep > 1 else tp, sequences, "all_gather", recompute)
        try:
            return priced(self.common.setting, self.common.prices, config)
        except MeshwrightError:
            return None

    # memory

    def kept_bytes(self, base: Config, sequences: int) -> float:
        """What a micro-batch keeps for its backward pass, on all stages together."""
        kept = self.sums(1, base.ep, base.recompute, sequences).kept
        return CAUTION * kept * base.mbs / sequences / (base.tp * base.cp)

    def states(self, base: Config) -> tuple[Held, Held]:
        """Of the whole model, one rank's share under a base: outside the experts and inside."""
        dense, expert = self.sums(1, 1, "none", self.space.most_sequences).states
        return Held().plus(dense, 1 / base.tp), Held().plus(expert, 1 / (base.ep * max(1, base.etp)))

    def has_room(self, base: Config, config: Config, flying: float, *, sharded: bool) -> bool:
        """Whether an equal share of the state may fit beside what is in flight, with the optimizer's state over all
        copies and, `sharded`, everything."""
        held = flying
        for one, many in zip(self.states(base), copies(config), strict=True):
            gradients = one.gradients / (many if sharded else 1)
            held += (one.stored(3 if sharded else 1, many) + gradients) / config.pp
        return self.common.with_runtime(held) <= self.common.capacity

    def reduced_s(self, base: Config, config: Config) -> float:
        """To reduce all gradients once, over all stages."""
        key = base.tp, base.cp, base.ep, base.etp, config.pp
        if key not in self._reduced:
            self._reduced[key] = self._reduced_s(base, config)
        return self._reduced[key]

    def _reduced_s(self, base: Config, config: Config) -> float:
        degrees, width = config.degrees(), self.common.workload.states.reduced
        mesh, found = degrees.mesh(), uses(degrees)
        sent: dict[GroupShape, float] = {}
        for expert, one in enumerate(self.states(base)):
            axes = [use.name for use in found if use.holds_copies(expert=bool(expert))]
            if axes:
                shape = group_shape(self.common.prices.cluster, tuple(range(mesh.size)), mesh, axes)
                sent[shape] = sent.get(shape, 0.0) + one.elements * width / config.pp
        library = self.common.library
        taken = (collective("reduce_scatter", nbytes, shape, library).seconds for shape, nbytes in sent.items())
        return config.pp * sum(taken)
