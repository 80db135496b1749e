"""Every legal plan of a tiny model, priced by the evaluator, beside the one that `plan` finds.

    python -m benchmarks.every_plan
    python -m benchmarks.every_plan --all

A plan is a configuration of the declared space, with any choice for every operator of every body (which loop each mesh
axis cuts, in which state values are handed on, and so what is moved between operators), with any share of the layers
for every stage, and with the first layers of every stage computed again where all of them may be. On different devices
any of them are used, in any order. Models are so small that all of this can be written down and priced one by one, none
of it by the block solver's own sums. Printed are how many plans there are, the least step time of those that fit, and
the step time that `plan` finds and its bound on all plans of operators. A case of more than `MOST` plans is left out,
which is told.

Pins that keep a case small are part of its question: search and list are about the same plans. Schedules made for a
plan are forbidden where there are pipelines.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations_with_replacement, islice, pairwise, permutations
from math import inf

from benchmarks.small_cases import CASES, MANY, Question
from meshwright.cost_models.evaluate import Evaluator
from meshwright.cost_models.prices import Prices
from meshwright.ir.decisions.decisions import BodyPlan, Decisions
from meshwright.ir.errors import MeshwrightError
from meshwright.ir.graph.fold import Fold
from meshwright.ir.program.spread import compute_placements
from meshwright.ir.sharding.placement import State
from meshwright.planner.answer.solve import solve, space_of
from meshwright.planner.block.plan import Block, body_plan
from meshwright.planner.cli.main import VERBS, build_parser, with_verb
from meshwright.planner.question.ask import Ask, read_asked
from meshwright.planner.question.constraints import Asked
from meshwright.planner.question.pins import Config
from meshwright.planner.question.pricing import Setting
from meshwright.planner.refine.candidate import Candidate
from meshwright.planner.refine.improvement import Bench
from meshwright.planner.refine.operators.interfaces import End, handed_on, tied
from meshwright.planner.refine.operators.operators import problems
from meshwright.planner.search.search import Search
from meshwright.planner.space.declared import Space

MOST = 120_000
"""Plans that are written down, some 2 ms each; a case with more is left out, and that is told."""
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What a case came to."""

    case: str
    plans: int
    fit: int
    least_s: float
    found_s: float
    lower_s: float
    best_plan: str

    @property
    def within(self) -> bool:
        """Whether the least lies between the bound and the answer."""
        return self.lower_s <= self.least_s * (1 + ROUNDING) and self.least_s <= self.found_s * (1 + ROUNDING)

    @property
    def best(self) -> bool:
        return self.found_s <= self.least_s * (1 + ROUNDING)

    def __str__(self) -> str:
        verdict = "the best" if self.best else f"{self.found_s / self.least_s - 1:.2%} slower than the best"
        gap = 1 - self.lower_s / self.found_s
        told = "" if self.within else ", NOT WITHIN"
        return (
            f"{self.case}: {self.plans} plans, {self.fit} fit; bound {self.lower_s * 1e3:.4f} ms, least "
            f"{self.least_s * 1e3:.4f} ms, found {self.found_s * 1e3:.4f} ms: {verdict}; gap told {gap:.2%}{told}"
        )


class TooManyPlans(Exception):
    """A case has more than `MOST` plans."""


def compared(case: Question) -> Compared:
    """All plans of a case beside its answer. Raises `TooManyPlans`, before any of them is priced."""
    ask, wished = read_asked(build_parser().parse_args(with_verb(case.argv(), VERBS)))
    if sum(1 for _ in islice(every(Listed.of(ask, wished)), MOST + 1)) > MOST:
        raise TooManyPlans
    solved = solve(ask, ask.setting(), wished)
    assert solved.best, "something fits"
    least_s, best, plans, fit = inf, "", 0, 0
    for setting, decisions, config in every(Listed.of(ask, wished)):
        plans += 1
        fold = setting.fold(config)
        program = setting.lowered(fold, setting.allowed(decisions, fold), solved.global_batch)
        prediction = setting.price(program)
        fit += prediction.fits
        if prediction.fits and prediction.step_time_s < least_s:
            least_s, best = prediction.step_time_s, f"{config}"
    return Compared(
        case=str(case),
        plans=plans,
        fit=fit,
        least_s=least_s,
        found_s=solved.best.step_s,
        lower_s=min(filter(None, (solved.proved, solved.operators_s))),
        best_plan=best,
    )


@dataclass(frozen=True, slots=True)
class Listed:
    """What all plans of a case have in common: those on the whole cluster, whatever part of it the answer is for."""

    setting: Setting
    space: Space
    prices: Prices

    @staticmethod
    def of(ask: Ask, wished: Asked) -> Listed:
        setting = ask.setting()
        assert isinstance(setting.price, Evaluator)
        return Listed(setting, space_of(setting, ask.cluster, wished.constraints), setting.price.prices)


def every(listed: Listed) -> Iterator[tuple[Setting, Decisions, Config]]:
    """All plans, each with the configuration that says the rest."""
    bench = Bench(Search(listed.setting, listed.prices, listed.space))
    for setting, config in configurations(listed):
        fold = setting.fold(config)
        try:
            plain = setting.decisions(config, bench.global_batch)
            start = Candidate(plain, bench.judged(plain, fold), origin=config)
        except MeshwrightError:
            continue
        blocks = problems(bench, start)
        for plans in together(fold, plain, {name: list(written(plain, block, name)) for name, block in blocks.items()}):
            made = tuple(plans.get(plan.name, plan) for plan in plain.plans)
            for order in orders(listed, config):
                stages = tuple(
                    replace(stage, ranks=tuple(order[rank] for rank in stage.ranks)) for stage in plain.stages
                )
                yield setting, replace(plain, plans=made, stages=stages), config


def configurations(listed: Listed) -> Iterator[tuple[Setting, Config]]:
    """Those of the space; with other shares of layers; with some layers computed again. On different devices the same
    for some of them."""
    whole = listed.space
    counts = range(1, whole.ranks + 1) if listed.prices.cluster.heterogeneous else [whole.ranks]
    for ranks in counts:
        space, setting = replace(whole, ranks=ranks), replace(listed.setting, ranks=ranks)
        for base in space.bases():
            for shape in space.shapes(base):
                for shared in shares(shape, space.layers):
                    again = "recompute" not in space.constraints.only and "recompute" not in space.constraints.never
                    stage_layers = max(shared.stage_blocks, default=space.layers)
                    few = range(1, stage_layers) if again and shape.recompute == "none" else ()
                    yield setting, shared
                    yield from ((setting, replace(shared, recompute=f"full_layers:{layers}")) for layers in few)


def shares(config: Config, layers: int) -> Iterator[Config]:
    """The configuration with its layers shared out in every way; a stage of none has what is before or after them."""
    stages = config.pp * config.vp
    if stages == 1:
        yield config
        return
    for cuts in combinations_with_replacement(range(layers + 1), stages - 1):
        counts = tuple(end - start for start, end in pairwise((0, *cuts, layers)))
        yield replace(config, split="even", stage_blocks=counts)


def orders(listed: Listed, config: Config) -> Iterator[tuple[int, ...]]:
    """The ranks that take the places of a plan: on different devices any, in any order."""
    cluster = listed.prices.cluster
    needed = config.tp * config.pp * config.cp * config.dp
    yield from permutations(range(cluster.ranks), needed) if cluster.heterogeneous else [tuple(range(needed))]


def written(plain: Decisions, block: Block, name: str) -> Iterator[BodyPlan]:
    """Every plan of a body."""
    usual = plain.plan[name]
    for states in choices(block):
        plan = body_plan(block, states, name)
        known = dict(plan.states)
        open_ = tuple((value, state) for value, state in usual.states if value not in known)
        yield replace(plan, states=(*plan.states, *open_), first=usual.first)


def choices(block: Block) -> Iterator[tuple[int, ...]]:
    """Every combination of states that no pair forbids."""
    sizes = [len(one.costs) for one in block.problem.variables]
    pairs = [
        [pair for pair in block.problem.pairs if pair.allowed is not None and max(pair.first, pair.second) == at]
        for at in range(len(sizes))
    ]

    def extended(states: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        at = len(states)
        if at == len(sizes):
            yield states
            return
        for state in range(sizes[at]):
            grown = (*states, state)
            if all(pair.allowed is None or pair.allowed[grown[pair.first], grown[pair.second]] for pair in pairs[at]):
                yield from extended(grown)

    yield from extended(())


def together(fold: Fold, plain: Decisions, plans: Mapping[str, Sequence[BodyPlan]]) -> Iterator[Mapping[str, BodyPlan]]:
    """Every choice of a plan for each body in which values are handed on as they are taken, and parameters that several
    bodies hold lie alike."""
    groups, mesh = handed_on(fold), plain.stages[0].mesh
    held = tied(fold)

    def ends(plan: BodyPlan) -> dict[End, State]:
        found = ((groups.get((plan.body, value)), state) for value, state in plan.states)
        return {group: state for group, state in found if group is not None}

    def placed(plan: BodyPlan) -> dict[End, object]:
        paths = {path: alike[0] for alike in held for body, path in alike if body == plan.body}
        if not paths:
            return {}
        at = compute_placements(fold.body[plan.body].graph, plan, mesh)
        stored = {item.path: (item.params, item.grads, item.optimizer) for item in plan.storage}
        return {first: (at[path], stored.get(path, (at[path],) * 3)) for path, first in paths.items()}

    facts = {name: [(plan, ends(plan) | placed(plan)) for plan in several] for name, several in plans.items()}

    def chosen(names: Sequence[str], said: Mapping[End, object]) -> Iterator[dict[str, BodyPlan]]:
        if not names:
            yield {}
            return
        for plan, fact in facts[names[0]]:
            if all(said.get(end, what) == what for end, what in fact.items()):
                for rest in chosen(names[1:], {**said, **fact}):
                    yield {names[0]: plan, **rest}

    yield from chosen(list(facts), {})


def main(argv: Sequence[str]) -> int:
    """Compare and print; 1 if a bound is wrong, or more than one answer in twenty is not the best."""
    parser = ArgumentParser(prog="python -m benchmarks.every_plan", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="more cases, which take minutes")
    parser.add_argument("--case", type=int, help="only the one of this number")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    found, left_out, told = list[Compared](), 0, sys.stderr if args.json else sys.stdout
    for number, case in enumerate((*CASES, *MANY) if args.all or args.case is not None else CASES):
        if args.case in (None, number):
            try:
                found.append(compared(case))
            except TooManyPlans:
                left_out += 1
                print(f"{case}: left out, of more than {MOST:,} plans", file=told, flush=True)
            else:
                print(found[-1], file=told, flush=True)
    best = sum(one.best for one in found)
    if args.json:
        print(json.dumps([asdict(one) | {"best": one.best, "within": one.within} for one in found]))
    else:
        plans = sum(one.plans for one in found)
        print(f"{plans} plans of {len(found)} cases; {best} answers are the best, {left_out} cases left out")
    return 0 if found and all(one.within for one in found) and 20 * best >= 19 * len(found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
