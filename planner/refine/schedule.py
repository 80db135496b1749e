"""A pipeline schedule made for a plan: its own seconds, its own room.

    Candidate -> Job -> an order (`planner.scheduling`) -> Decisions with action lists, priced -> the better of the two

Named schedules are made for stages that take equally long. What those of a plan take, and what its ranks have room for,
is read from the evaluator (`Step`): with weight gradients apart, and, if the plan has whole backward passes, with those
too, since reductions hide otherwise then. `floor_s` says before anything is ordered how much there is to gain at most:
where that is little, nothing is tried. The evaluator judges what comes out; what it does not find faster is dropped.

Named schedules want layers shared out otherwise than one that is made to measure: of the best plan single layers are
moved away from the group that bounds the step, as long as a schedule made for that is faster.

The lists are part of the plan (`schedule.actions`), one entry for every action: so only steps of up to `MOST_ACTIONS`
are ordered, and the plan says where that was the reason. In most larger ones idle time counts for little.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from meshwright.cost_models.schedule import makes_weights_apart
from meshwright.cost_models.step import Step
from meshwright.ir.decisions.decisions import Schedule
from meshwright.ir.errors import BodyUnplanned, LayersIndivisible, NotExpressible
from meshwright.ir.graph.fold import Fold
from meshwright.ir.program.program import Program
from meshwright.ir.schedules import CUSTOM, WorkLists, decode, with_work, work_of
from meshwright.planner.refine.candidate import WORTH, Candidate, Counts, Custom
from meshwright.planner.refine.improvement import Bench
from meshwright.planner.refine.stages import recut
from meshwright.planner.scheduling import Budget, Job, Lists, as_job, floor_s, group_floor_s, in_halves, schedule
from meshwright.planner.scheduling.exact import certified

MOST_ACTIONS = 16_384
"""Of a step: 0.2 MB of plan.json."""

MOST_CERTIFIED = 100
"""Actions of a step for which an integer program says how good the order is, where one was asked for."""

CERTIFIED_S = 20.0
"""What it may take; without a proof by then it says nothing."""

POSSIBLE = 0.01
"""Of the step: where no order can gain more than this, none is made unasked."""

LEAST_GAIN = 1e-3
"""Of the step: a schedule of one's own that gains less is not worth its lists."""

WORK = 60_000
"""Actions that are timed unasked: about 0.1 CPU-s (two cores, 2026-11)."""

WORK_ASKED = 1_000_000

LOOKS = 16
"""Ways to share layers out whose bounds are looked at unasked: 4 to 8 ms each."""

LOOKS_ASKED = 160

TRIED = 3
"""Ways to share them out, of those with the least bounds, for which a schedule is made."""


@dataclass(frozen=True, slots=True)
class OwnSchedule:
    """A schedule made for a plan, if that is better than the plan.

    - `among`: the plans of which one gets a schedule, where it is not for this one alone.
    """

    among: tuple[Candidate, ...] = ()

    def accepts(self, plan: Candidate, bench: Bench) -> bool:
        """Whether the constraints allow it, and the target can run one."""
        can = CUSTOM in {line.name for line in bench.search.space.target.schedules}
        return can and bench.asked.constraints.grants("schedule", CUSTOM)

    def neighbours(self, plan: Candidate, bench: Bench) -> Iterator[Candidate]:
        """The best plan with such a schedule that code is written for; where one was asked for, even if none is better,
        and with more work. Schedules too large to try are noted."""
        plans, asked = self.among or (plan,), bench.asked.constraints.made_only
        best = min(plans, key=WORTH)
        found: Candidate | None = None
        source: _Case | None = None
        notes: dict[str, str] = {}
        left = WORK_ASKED if asked else WORK
        cases = [case for case in _cases(plans, bench) if asked or case.promises(best)]
        cases.sort(key=lambda case: case.least_s)
        for index, case in enumerate(cases):
            late = bench.stop()
            if not asked and (late or not case.promises(best)):
                continue
            if case.job.size > MOST_ACTIONS:
                notes.setdefault(str(case.plan.named), f"{case.job.size:,} actions, more than {MOST_ACTIONS:,}")
                continue
            share = 0 if late else left // (len(cases) - index)
            budget = Budget(share)
            made = case.made(budget, certify=asked and not late)
            left -= share - budget.left
            if made is not None and (asked or _is_better(made, best)):
                if (found is None or made.worth < found.worth) and bench.writes(made):
                    found, source = made, case
                best = best if asked or found is None else found
        bench.notes.extend(f"no schedule was made for {what}: {large}" for what, large in notes.items())
        if found is not None and source is not None and not bench.layers_asked:
            shared, last = _shared_again(source, found, bench, looks=LOOKS_ASKED if asked else LOOKS)
            if asked and last is not source:
                again = last.made(Budget(left), certify=not bench.stop())
                shared = min(again or shared, shared, key=WORTH)
            found = shared if shared is found or bench.writes(shared) else found
        if found is not None:
            yield found


def _is_better(made: Candidate, best: Candidate) -> bool:
    (lack, step_s, _), (least, least_s, _) = made.worth, best.worth
    return lack < least or (lack == least and step_s < least_s * (1 - LEAST_GAIN))


def job_of(step: Step) -> Job:
    """The job of ordering a program's actions; weight gradients are apart or not, as in the program."""
    ran = step.ran()
    return Job(
        shape=work_of(step.program).shape,
        seconds=step.seconds(),
        release_s=ran.release_s,
        ending_s=tuple(sum(end.values()) for end in step.endings(ran)),
        holdings=step.holdings(),
        apart=step.apart,
        rolling=step.rolling,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A plan, with the job of ordering its actions."""

    bench: Bench
    plan: Candidate
    fold: Fold
    job: Job
    lists: Lists
    """As the plan orders it."""
    straggling: float
    """What the step takes of the job's."""

    @property
    def least_s(self) -> float:
        """The lower bound on the step time under any order."""
        return floor_s(self.job) * self.straggling

    def promises(self, best: Candidate) -> bool:
        """Whether it may be enough faster than a plan."""
        return not self.plan.prediction.fits or self.least_s <= (1 - POSSIBLE) * best.step_s

    def with_layers(self, counts: Counts) -> _Case | None:
        """The case of the plan with so many layers in each stage; None if it cannot be."""
        config = self.plan.config
        try:
            plan = replace(
                self.plan,
                decisions=recut(self.plan.decisions, self.fold, counts),
                counts=counts,
                config=replace(config, split="even", stage_blocks=counts) if config else None,
            )
            return next(case for case in _cases([plan], self.bench) if case.job.apart == self.job.apart)
        except (LayersIndivisible, BodyUnplanned):
            return None

    def made(self, budget: Budget, *, certify: bool) -> Candidate | None:
        """The plan with the best order that was found, or with its own order if none is known to fit; None if the
        target cannot run such lists."""
        job, answer = self.job, schedule(self.job, [self.lists], budget)
        if answer is None:
            return self.priced(as_job(job, self.lists), self.least_s)
        best, least_s = answer.best, answer.floor_s
        if certify and not job.rolling and job.size <= MOST_CERTIFIED and not answer.proved:
            certificate = certified(job, best, CERTIFIED_S)
            if certificate.proved:  # what it says otherwise depends on the machine's speed
                best, least_s = certificate.best, certificate.bound_s
        return self.priced(best.lists, least_s * self.straggling)

    def priced(self, lists: Lists, least_s: float) -> Candidate | None:
        """The plan with these action lists, priced."""
        plan, before = self.plan, self.plan.decisions.schedule
        work = WorkLists(self.job.shape, lists)
        texts = tuple(tuple(map(str, actions)) for actions in decode(work))
        custom = replace(plan.decisions, schedule=Schedule(CUSTOM, before.microbatches, texts))
        try:
            decisions = self.bench.setting.allowed(custom, self.fold)
        except NotExpressible:
            return None
        return replace(
            plan,
            decisions=decisions,
            prediction=self.bench.judged(decisions, self.fold),
            config=replace(plan.config, schedule=CUSTOM) if plan.config else None,
            origin=replace(plan.origin, schedule=CUSTOM) if plan.origin and not plan.config else plan.origin,
            custom=Custom(before.name, plan.step_s if plan.prediction.fits else 0.0, least_s),
        )


def _cases(plans: Sequence[Candidate], bench: Bench) -> Iterator[_Case]:
    """The cases of every plan that is a pipeline, one for every way to run its backward passes."""
    for plan in plans:
        if len(plan.decisions.groups) == 1:
            continue
        fold = bench.fold(plan)
        program = bench.lowered(plan.decisions, fold)
        assert program.workload is not None
        for one in _ways(program):
            step, lists = Step(bench.prices, one, program.workload), work_of(program).lists
            yield _Case(bench=bench, plan=plan, fold=fold, job=job_of(step), lists=lists, straggling=step.straggling)


def _ways(program: Program) -> Iterator[Program]:
    """The program with weight gradients apart, and as it is if they are not."""
    work = work_of(program)
    apart = in_halves(work.lists)
    if apart == work.lists:
        yield program
        return
    yield with_work(program, WorkLists(work.shape, apart))
    if not makes_weights_apart(work):
        yield program


# Layers --------------------------------------------------------------------------------------------------------------


def _shared_again(case: _Case, made: Candidate, bench: Bench, *, looks: int) -> tuple[Candidate, _Case]:
    """The plan and its case after moving single layers away from the group that bounds it, as long as a schedule made
    for that is faster. `looks` limits the number of ways to share layers out that are bounded."""
    best, seen = made, {made.counts}
    while True:
        found = []
        for counts in _moves(case):
            if counts in seen or not looks or bench.stop():
                continue
            seen.add(counts)
            looks -= 1
            other = case.with_layers(counts)
            if other is not None and other.least_s < (1 - LEAST_GAIN) * best.step_s:
                found.append(other)
        for other in sorted(found, key=lambda one: one.least_s)[:TRIED]:
            trial = other.made(Budget(WORK // TRIED), certify=False)
            if trial is not None and _is_better(trial, best):
                best, case = trial, other
                break
        else:
            return best, case


def _moves(case: _Case) -> Iterator[Counts]:
    """Layers of the stages with one less in the group with the greatest bound and one more elsewhere, the least bounds
    first."""
    job, counts = case.job, case.plan.counts
    bounds = [group_floor_s(job, group) for group in range(len(job.shape.stages))]
    fullest = max(range(len(bounds)), key=bounds.__getitem__)
    takers = sorted(range(job.shape.depth), key=lambda stage: (bounds[job.group_of[stage]], stage))
    for taker in takers:
        for giver in job.shape.stages[fullest]:
            if counts[giver] and job.group_of[taker] != fullest:
                yield tuple(count - (stage == giver) + (stage == taker) for stage, count in enumerate(counts))
