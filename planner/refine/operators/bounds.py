"""The least step time of an arrangement: no plan of it takes less, whatever axes do in its operators.

    kernels   alone, shared out evenly over all ranks of a stage: known at once (`CoarseBounds.operators_s`)
    parts     the optimum of the problem of all bodies together (`joint`), where every parameter is stored in the way
              that costs least: kernels in their real sizes, and what has to be exchanged. Takes a tenth of a second, or
              half of one on two axes, so it is asked for only where it may decide

Parts are added up as if nothing ran into anything else. Where kernels of several parts become one (products of stacked
weights, elementwise operators behind each other) the whole takes less: by as much as it does in the best plan, the
bound is lowered. More micro-batches are smaller ones, whose kernels are no more efficient and whose parameters are
gathered as often, and what is computed again is computed before: the parts of an arrangement count for those with more
micro-batches or recomputation, too. Devices and links must be alike for that; where they are not, no more than kernels
is known.

Both are properties of measured kernels and wires rather than theorems; `benchmarks.bound_check` holds them against
prices of random plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import inf

from meshwright.ir.errors import MeshwrightError
from meshwright.planner.block.choice import cost_of_plan
from meshwright.planner.block.plan import body_plan
from meshwright.planner.block_solver.problem import Assignment
from meshwright.planner.question.pins import Config
from meshwright.planner.refine.candidate import Candidate
from meshwright.planner.refine.improvement import Bench
from meshwright.planner.refine.operators.bodies import Built
from meshwright.planner.refine.operators.joint import Joint
from meshwright.planner.refine.operators.operators import FEW_AXES, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """One arrangement: the first configuration that has it, and the least time of any plan of it."""

    bound_s: float
    config: Config

    @property
    def axes(self) -> int:
        return len(self.config.degrees().mesh().axes)


@dataclass(slots=True)
class Bounded:
    """The arrangements of a search's space on meshes of few axes, with their bounds."""

    bench: Bench
    built: Built = field(default_factory=Built)
    """Problems built so far, for bounds and for plans."""
    solved: int = 0
    """Arrangements whose turn has come."""
    silent: set[tuple[object, ...]] = field(default_factory=set)
    """Stages, micro-batches and recomputation for which parts of one mesh were known and said no more than kernels and
    launches do: those of other meshes are not added up, which at most leaves bounds lower."""
    more_axes_s: float = inf
    """What no plan on a mesh of more axes takes less than."""
    _waiting: dict[tuple[object, ...], Arrangement] = field(default_factory=dict)
    _finished_s: float = inf
    """Least bound of the others."""

    def __post_init__(self) -> None:
        for one in arrangements(self.bench):
            if one.axes > FEW_AXES:
                self.more_axes_s = min(self.more_axes_s, one.bound_s)
            else:
                self._waiting[key_of(one.config)] = one

    @property
    def waiting(self) -> list[Arrangement]:
        """Those whose turn has not come: the least bound first, of equal ones that with fewer axes."""
        return sorted(self._waiting.values(), key=lambda one: (one.bound_s, one.axes))

    @property
    def least_s(self) -> float:
        """What no plan of these arrangements takes less than."""
        return min([self._finished_s, *(one.bound_s for one in self._waiting.values())])

    def next(self) -> Arrangement | None:
        """The arrangement with the least bound of those whose turn has not come."""
        return self.waiting[0] if self._waiting else None

    def tightened(self, one: Arrangement) -> Arrangement:
        """An arrangement with the bound by its parts; it raises those of the same mesh with more micro-batches or
        recomputation, too. Its turn is over."""
        self.solved += 1
        del self._waiting[key_of(one.config)]
        coarse = self.bench.search.coarse
        same = one.config.pp, one.config.microbatches, one.config.recompute
        seconds = 0.0 if same in self.silent else parts_s(one.config, self.bench, self.built)
        parts = one.config.microbatches * seconds

        def raised(other: Arrangement) -> Arrangement:
            bound_s = coarse.operators_s(other.config, parts / other.config.microbatches) if parts else 0.0
            return replace(other, bound_s=max(other.bound_s, bound_s))

        for key, other in self._waiting.items():
            if no_less(other.config, one.config):
                self._waiting[key] = raised(other)
        tight = raised(one)
        if seconds and coarse.operators_s(one.config, seconds) <= coarse.operators_s(one.config):
            self.silent.add(same)
        self._finished_s = min(self._finished_s, tight.bound_s)
        return tight


def key_of(config: Config) -> tuple[object, ...]:
    """What an arrangement is known by."""
    return *mesh_of(config), config.microbatches, config.recompute


def no_less(other: Config, one: Config) -> bool:
    """Whether parts of one arrangement are no more than those of another, whose sequences may be cut as well."""
    again, cut = one.recompute in ("none", other.recompute), one.zigzag or not other.zigzag
    return again and cut and mesh_of(other) == mesh_of(one) and other.microbatches >= one.microbatches


def mesh_of(config: Config) -> tuple[object, ...]:
    """What arrangements have in common that differ in micro-batches and recomputation only."""
    sizes = tuple(axis.size for axis in config.degrees().mesh().axes)
    return config.pp, sizes


def arrangements(bench: Bench) -> Iterator[Arrangement]:
    """All arrangements that the target does not refuse whatever axes do, each bounded by its kernels. Where a causal
    sequence may be cut in a zigzag, it is: the shares are equal, and what has to be exchanged is as much."""
    space, coarse = bench.search.space, bench.search.coarse
    found, bounds = dict[tuple[object, ...], Config](), dict[tuple[int, int, str], float]()
    runs = {line.name for line in bench.setting.target.schedules}
    tried = {config.recompute for config in bench.search.found}
    for base in space.bases():
        for sized in space.pipelined(base):
            if sized.pp > 1 and runs.isdisjoint(name for name, _ in space.schedules(sized.pp, sized.microbatches)):
                continue
            if sized.recompute not in tried:
                tried.add(sized.recompute)
                named(sized, bench)  # a refusal is noted
            if bench.search.laws.whatever_axes_do(sized) is not None:
                continue
            key = key_of(sized)
            if key not in found or (sized.zigzag and not found[key].zigzag):
                found[key] = sized
    for sized in found.values():
        same = sized.pp, sized.microbatches, sized.recompute
        if same not in bounds:
            bounds[same] = coarse.operators_s(sized)
        yield Arrangement(bound_s=bounds[same], config=sized)


def named(sized: Config, bench: Bench) -> tuple[Config, Candidate] | None:
    """The first configuration with these sizes that names can say, which gives stages and schedule; None if there is
    none."""
    space = bench.search.space
    for schedule, vp in space.schedules(sized.pp, sized.microbatches):
        for split, blocks in space.shares(sized.pp * vp):
            shared = replace(sized, schedule=schedule, vp=vp, split=split, stage_blocks=blocks)
            for config in (storage.on(shared) for storage in space.storages(shared) if not storage.shard):
                try:
                    decisions, fold = bench.decisions(config), bench.setting.fold(config)
                    return config, bench.candidate(decisions, bench.judged(decisions, fold), fold, config, config)
                except MeshwrightError as refusal:
                    bench.search.laws.note(config, refusal)
    return None


def parts_s(config: Config, bench: Bench, built: Built) -> float:
    """Seconds that one micro-batch takes at least on all stages of an arrangement, by the sum of parts; 0 where nothing
    says it."""
    made = None if bench.cluster.heterogeneous else named(config, bench)
    if made is None:
        return 0.0
    work = Work(bench, bench.setting.fold(made[0]), made[1], inf, built)
    work.storing(None, None, regather=False)
    joint = work.joint(hides=True, data=True)
    answer = work.answer(joint) if joint else None
    return at_least_s(work, joint, answer) if joint and answer else 0.0


def at_least_s(work: Work, joint: Joint, answer: Assignment) -> float:
    """The optimum, lowered by what bodies take less as wholes than as parts."""
    assert answer.objective is not None
    whole = 0.0
    for name, block in joint.blocks.items():
        chosen, terms = joint.chosen(name, answer.states), work.terms(name, hides=True)
        cost = cost_of_plan(block.graph, body_plan(block, chosen, name), block.mesh, terms)
        spared_s = sum(way.spared_s for _, way in block.stored(chosen))
        whole += joint.calls[name] * (cost.total_s(terms.microbatches) - spared_s / terms.microbatches)
    return min(answer.objective, whole)
