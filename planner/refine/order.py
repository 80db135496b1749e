"""The order in which improvements are tried, and on which plans.

    search -> WIDENING: configurations beyond the declared space, priced
    finalists -> FITTING: ranks, layers and batches shared out -> CHOOSING: what axes do in every operator
              -> PLACING: ranks alone, where layers are asked for

A schedule of its own (`planner.refine.schedule`) comes last, for the best that code is written for. Each step keeps
what the evaluator finds faster. What becomes of finalists may be beyond what names can say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from meshwright.planner.refine.candidate import WORTH, Candidate
from meshwright.planner.refine.empty_stages import EmptyStages
from meshwright.planner.refine.fitted import Fitted, Mixed, kind_of
from meshwright.planner.refine.improvement import Bench, Improvement
from meshwright.planner.refine.offload import OptimizerOffload
from meshwright.planner.refine.operators.arrangements import Arranged
from meshwright.planner.refine.operators.operators import Operators
from meshwright.planner.refine.partial_recompute import OFFLOADED, RECOMPUTED, Partial
from meshwright.planner.refine.uneven import Uneven
from meshwright.planner.search.search import Search

MOST_PINNED = 3
"""Plans whose operators are chosen anew where something is asked of modules: templates have more to gain then, each
another share of it."""


@dataclass(frozen=True, slots=True)
class Step:
    """An improvement, and the plans that it is tried on: what becomes of one joins the others, or, with `instead`,
    takes its place."""

    improvement: Improvement
    of: Callable[[Sequence[Candidate], Bench], Iterable[Candidate]]
    instead: bool = False


def every(plans: Sequence[Candidate], bench: Bench) -> Iterable[Candidate]:
    return plans


def best(plans: Sequence[Candidate], bench: Bench) -> Iterable[Candidate]:
    return plans[:1]


def best_few(plans: Sequence[Candidate], bench: Bench) -> Iterable[Candidate]:
    """The best plan; where something is asked of modules, the best three."""
    return plans[: MOST_PINNED if bench.asked.modules else 1]


def one_of_each_kind(plans: Sequence[Candidate], bench: Bench) -> Iterable[Candidate]:
    """Plans whose configurations differ in what mixes take from them."""
    kinds: dict[tuple[object, ...], Candidate] = {}
    for plan in plans:
        kinds.setdefault(kind_of(plan.named), plan)
    return kinds.values()


WIDENING: tuple[Partial | OptimizerOffload, ...] = (RECOMPUTED, OFFLOADED, OptimizerOffload())

FITTING = (
    Step(Fitted(), every, instead=True),
    Step(Mixed(), one_of_each_kind),
    Step(EmptyStages(), every),
    Step(Uneven(), best),
)
"""What can make a plan fit."""

PLACING = FITTING[:1]
"""The same where layers are asked for: only its ranks are placed."""

CHOOSING = (
    Step(Operators(), best_few, instead=True),
    Step(Arranged(), best),
)


def widened(
    search: Search, stop: Callable[[], bool], improvements: Iterable[Partial | OptimizerOffload] = WIDENING
) -> None:
    """Price configurations beyond the declared space; what is faster than the search's answer becomes it."""
    for improvement in improvements:
        if improvement.accepts(search) and not stop():
            for _ in improvement.neighbours(search):
                if stop():
                    return
            search.settle()


def improved(plans: Sequence[Candidate], steps: Iterable[Step], bench: Bench) -> list[Candidate]:
    """Plans after these steps, and after those with new plans the best first. After a stop nothing more is made."""
    plans = list(plans)
    for step in steps:
        for plan in list(step.of(plans, bench)):
            taken = not bench.stop() and step.improvement.accepts(plan, bench)
            made = filter(None, step.improvement.neighbours(plan, bench) if taken else ())
            if step.instead:
                at = next((at for at, one in enumerate(plans) if one is plan), len(plans))
                plans[at : at + 1] = [next(made, plan)]
            else:
                plans += made
        if not step.instead:
            plans.sort(key=WORTH)
    return plans
