"""From a configuration to its price.

    pins -> Config -> Degrees -> (fold at its batch) -> Decisions -> Program -> Prediction

A `Setting` is what all configurations share: the captured model, the cluster, the workload, the target. The model is
captured once, at the first batch that is asked for; folds at other batches are written from that one
(`meshwright.ir.analysis.rebatch`), and where that is refused, from it and one more at twice that batch. Where these
differ in more than sizes, the model is captured at the batch that is wanted.

`price_of` is the one place where the evaluator comes in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from meshwright.backends.door import TARGETS
from meshwright.cost_models.evaluate import Evaluator
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.ledger.books import Books
from meshwright.cost_models.prediction import Prediction
from meshwright.cost_models.profile import Profile, published
from meshwright.ir.analysis.microbatch import microbatch
from meshwright.ir.analysis.rebatch import with_batch
from meshwright.ir.annotated.plan import annotated
from meshwright.ir.decisions.decisions import BodyPlan, Decisions
from meshwright.ir.errors import CannotRebatch, MeshwrightError, WorkloadImpossible, nearest
from meshwright.ir.frontends.door import Source, calls_of, capture
from meshwright.ir.frontends.folding.captured import Captured, ConstantsAtBatch, ConstantsOfAnySize, rebatched
from meshwright.ir.graph.calls import Calls
from meshwright.ir.graph.constants import Constant
from meshwright.ir.graph.fold import Fold, unfolded_short
from meshwright.ir.graph.graph import Graph
from meshwright.ir.names import Degrees, check, share_loops, template
from meshwright.ir.names.cache import loops_of, planned
from meshwright.ir.program.lower import BodyCache, lower, lower_one
from meshwright.ir.program.program import BodyProgram, Program
from meshwright.ir.same import Same
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.target.capabilities import ANY, Capabilities
from meshwright.ir.target.workload import Workload
from meshwright.ir.verify.graphs import verify_fold
from meshwright.planner.question.constraints import Constraints
from meshwright.planner.question.held import check_constraints
from meshwright.planner.question.module_pins import ModulePin, check_held, resolved
from meshwright.planner.question.pins import Config

Price = Callable[[Program], Prediction]

LEAST_BATCH = 2
"""Sequences that a model is captured with at least: in a trace, a loop of extent 1 is not to be seen."""

MOST_BODIES = 8192
"""Body programs that are kept; configurations of one kind, which share them, come together."""


def price_of(cluster: Cluster, profile: Profile | None = None, books: Books | None = None) -> Price:
    """The evaluator of a cluster. What programs have in common is priced once."""
    return Evaluator(cluster, profile or published(), books)


@lru_cache(maxsize=64)
def _at_batch(workload: Workload, global_batch: int) -> Workload:
    """The workload at a batch, as one object for all configurations: as a key, that is quicker to compare."""
    return replace(workload, global_batch=global_batch)


def target_of(name: str) -> Capabilities:
    """The capabilities of a target, by name."""
    if name not in TARGETS:
        meant = nearest(name, TARGETS)
        raise WorkloadImpossible(
            place="workload, target",
            cause=f"{name!r} is not known",
            fix=f"did you mean {meant!r}?" if meant else f"use one of {', '.join(TARGETS)}",
        )
    return TARGETS[name]


def layers_of(fold: Fold) -> int:
    """The number of layers: calls of repeated blocks."""
    return sum(segment.calls for segment in fold.segments if not segment.glue)


@dataclass(slots=True)
class Folds:
    """A model's training step at every batch that is asked for."""

    source: Source
    seq: int
    seed: int = 0
    found: dict[int, Fold] = field(default_factory=dict)
    captured: Captured | None = None
    captured_at: int = 0
    watched: Calls | None = None
    twice: Captured | None = None
    """The model at twice the batch that it was captured at first."""
    again: dict[int, Captured] = field(default_factory=dict)
    """The model at every batch for which one capture does not say what it is."""

    def at(self, batch: int) -> Fold:
        """The fold at this batch."""
        if batch not in self.found:
            self.found[batch] = self._made(batch)
        return self.found[batch]

    def first(self, batch: int) -> Captured:
        """The model as it was captured first: at this batch, unless it was before."""
        if self.captured is None:
            self.captured_at = max(batch, LEAST_BATCH)
            self.captured = self._capture(self.captured_at)
        return self.captured

    def calls(self, reference: str, batch: int) -> Calls:
        """The calls of the model that `reference` names, for code at this batch. Raises `EmissionModel`."""
        return replace(self._watched(reference), constants=self.constants(batch))

    def calls_tried(self, reference: str, batch: int) -> Calls:
        """The calls of the model, to find out whether code is written for a plan at this batch.

        That code is written from a capture at the plan's own batch, so that how constants grow with it is no question;
        only a plan of fewer sequences than any capture has others written.
        """
        made = ConstantsOfAnySize if batch >= LEAST_BATCH else ConstantsAtBatch
        return replace(self._watched(reference), constants=self.constants(batch, made))

    def _watched(self, reference: str) -> Calls:
        """The calls of the model, watched once."""
        if self.watched is None:
            stacks = self.first(LEAST_BATCH).stacks
            self.watched = calls_of(self.source, reference, batch=LEAST_BATCH, seq=self.seq, stacks=stacks)
        return self.watched

    def constants(self, batch: int, made: type[ConstantsAtBatch] = ConstantsAtBatch) -> Mapping[str, Constant]:
        """The constants of the model at this batch, as the fold's laws make them.

        The model is captured once more, at twice the batch, where one is read whose sizes follow from it; `made`
        says when they do.
        """
        first = self.first(batch)
        if batch == self.captured_at:
            return first.constants
        self.at(batch)
        if batch in self.again:  # the fold could not be written down for another batch
            return self.again[batch].constants
        return made(first, self._doubled, self.captured_at, batch)

    def _doubled(self) -> Captured:
        if self.twice is None:
            self.twice = self._capture(2 * self.captured_at)
        return self.twice

    def _made(self, batch: int) -> Fold:
        fold = self.first(batch).fold
        if batch == self.captured_at:
            return fold
        try:
            made = with_batch(fold, batch)
        except CannotRebatch:
            self.again[batch] = self._again(batch)
            return self.again[batch].fold
        share_loops(made, fold)
        return made

    def _again(self, batch: int) -> Captured:
        """The fold for another batch: in proportion to two captures, or captured once more."""
        try:
            double = self._doubled()
            if batch == 2 * self.captured_at:
                return double
            return rebatched(self.first(batch), double, self.captured_at, batch)
        except MeshwrightError:
            return self._capture(batch)

    def _capture(self, batch: int) -> Captured:
        """Capture the model in the dtype that is asked for, or in the one that it runs in."""
        try:
            captured = capture(self.source, batch=batch, seq=self.seq, seed=self.seed)
        except MeshwrightError as refused:
            made_in_fp32, why = self.source.as_made(), refused.cause
            if made_in_fp32 is None:
                raise
        else:
            made_in_fp32, why = None, ""
        if made_in_fp32 is not None:
            self.source = made_in_fp32
            made = self._capture(batch)
            said = f"parameters stay in fp32, and products alone have another precision: {why}"
            return replace(made, notes=(*made.notes, said))
        verify_fold(captured.fold)
        return captured


@dataclass(frozen=True, slots=True)
class Setting:
    """The question that all configurations answer: model, ranks, workload, target and evaluator."""

    folds: Folds
    ranks: int
    workload: Workload
    target: Capabilities
    price: Price
    bodies: BodyCache = field(default_factory=dict)
    """Body programs made before: configurations of one kind share them."""
    modules: tuple[ModulePin, ...] = ()
    """What is asked of single modules: every plan does it."""
    constraints: Constraints = field(default_factory=Constraints)
    """What is asked of names: every plan has it."""
    annotated: Mesh | None = None
    """The mesh that the model's own shardings are of, where these are the plan."""

    def fold(self, config: Config) -> Fold:
        return self.folds.at(config.batch)

    def settled(self, config: Config, global_batch: int) -> Config:
        """The configuration with no value open: preferred values where possible, others where not, on however many
        ranks it takes."""
        if not config.open:
            return config

        ranks = config.tp * config.pp * config.cp * config.dp
        own = replace(self, ranks=ranks)

        def judge(tried: Config) -> None:
            if self.target is ANY:
                check(self.ran(tried).degrees(), self.fold(tried), ranks, global_batch)
            else:
                own.decisions(tried, global_batch)

        return config.workable(judge)

    def decisions(self, config: Config, global_batch: int) -> Decisions:
        """The plan that a configuration stands for, or the model's own shardings. Raises what the model, the target or
        the constraints refuse."""
        if self.annotated is not None:
            return self.said(config, self.annotated)
        fold, degrees = self.fold(config), self.ran(config).degrees()
        check(degrees, fold, self.ranks, global_batch)
        return self.allowed(self.template(fold, degrees), fold)

    def said(self, config: Config, mesh: Mesh) -> Decisions:
        """The plan that the model's own shardings stand for."""
        fold, found = self.fold(config), self.folds.first(config.batch).annotations
        made = annotated(fold, found, mesh, self.target, microbatches=config.microbatches, recompute=config.recompute)
        return self.allowed(made, fold)

    def ran(self, config: Config) -> Config:
        """The configuration as the target runs it (`Capabilities.keeps_whole`)."""
        otherwise = self.target.ran(config.zero, config.microbatches)
        return replace(config, **otherwise) if otherwise else config

    def template(self, fold: Fold, degrees: Degrees) -> Decisions:
        """The plan that degrees stand for, changed by what is asked of modules, with storage as the target has it."""
        return self.target.stored(template(fold, degrees, self.target.target, resolved(self.modules, fold)), fold)

    def allowed(self, decisions: Decisions, fold: Fold) -> Decisions:
        """A plan in the workload's execution style, after the target and the constraints have accepted it."""
        if self.modules:
            check_held(decisions, fold, self.modules)
        if self.constraints:
            check_constraints(decisions, fold, self.constraints, self.target, resolved(self.modules, fold))
        style = self.workload.stack.style
        made = decisions if decisions.style == style else replace(decisions, style=style)
        if self.target is not ANY:
            self.target.check(made, fold, self.workload)
        return made

    def program(self, config: Config, global_batch: int) -> Program:
        """The program of a configuration."""
        return self.lowered(self.fold(config), self.decisions(config, global_batch), global_batch)

    def body(self, config: Config, name: str) -> BodyProgram:
        """The program of one body of the model alone, under a configuration of one stage."""
        fold, degrees = self.fold(config), config.degrees()
        key, mesh, graph = Same(fold), degrees.mesh(), fold.body[name].graph
        plan = planned(key, name, degrees.of_body(), resolved(self.modules, fold))
        if self.target is not ANY:
            for refusal in self.target.body_refusals(plan, graph, loops_of(key)[name], mesh):
                raise refusal
        return self.lowered_body(graph, plan, mesh)

    def lowered_body(self, graph: Graph, plan: BodyPlan, mesh: Mesh) -> BodyProgram:
        """The program of any plan of one body alone."""
        return lower_one(graph, plan, mesh, self.target.lowering(), self.workload, self.room())

    def room(self) -> BodyCache:
        """The cache of body programs, emptied when it is full."""
        if len(self.bodies) > MOST_BODIES:
            self.bodies.clear()
        return self.bodies

    def lowered(self, fold: Fold, decisions: Decisions, global_batch: int) -> Program:
        """The program of any plan on a fold of the model."""
        lowering = self.target.lowering().for_stack(self.workload.stack)
        workload = _at_batch(self.workload, global_batch)
        return lower(fold, decisions, lowering, workload, self.room())

    def predict(self, config: Config, global_batch: int) -> Prediction:
        """The price of a configuration."""
        return self.price(self.program(config, global_batch))

    def unwritten(self, config: Config) -> tuple[str, ...]:
        """Warnings where `plan emit` will refuse the precision."""
        refused = self.target.unwritten(self.workload, self.fold(config))
        return tuple(
            f"plan emit refuses this plan ({one.code}), {one.place}: {one.cause}; {one.fix}" for one in refused
        )

    def cautions(self) -> tuple[str, ...]:
        """Warnings where micro-batches would change the result."""
        blockers = microbatch(unfolded_short(Same(self.folds.first(LEAST_BATCH).fold)).graph).blockers
        if not blockers:
            return ()
        more = f", and {len(blockers) - 1} more" if len(blockers) > 1 else ""
        return (f"micro-batches change this model's result: {blockers[0]}{more}",)
