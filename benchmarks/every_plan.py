"""Every legal plan of a tiny model, priced by the evaluator, beside the one that `plan` finds.

    python -m benchmarks.every_plan

A plan is a configuration of the declared space with any choice for every operator: which loop each mesh axis cuts, and
so what is moved between operators. The model is one body of few operators, so that all combinations can be written down
(`planner.operators.problems` offers them) and priced one by one, none of them by the block solver's own sums. Printed
are how many there are, the least step time of those that fit, and the step time and the bound that `plan` tells.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import inf, prod

from benchmarks.searches import EXAMPLES
from meshwright.ir.decisions import Decisions
from meshwright.ir.errors import MeshwrightError
from meshwright.planner.block.build import Block
from meshwright.planner.block.plan import body_plan
from meshwright.planner.cli import VERBS, build_parser, with_verb
from meshwright.planner.operators import problems
from meshwright.planner.pins import Config
from meshwright.planner.plan import read_asked
from meshwright.planner.solve import Solved, solve

MOST = 100_000
"""Plans that are written down; a case with more is refused."""
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Asked:
    """A command line, in short."""

    cluster: str
    batch: int
    seq: int
    stack: str
    target: str = "any"
    model: str = "mlp.py:build"

    def argv(self) -> list[str]:
        asked = {"cluster": self.cluster, "global-batch": self.batch, "seq": self.seq}
        asked |= {"stack": self.stack, "target": self.target}
        return [
            str(EXAMPLES / self.model),
            *(word for name, value in asked.items() for word in (f"--{name}", str(value))),
        ]


CASES = tuple(
    Asked(cluster, batch, seq, stack)
    for cluster, batch, seq in (
        ("1x2xH100", 4, 128),
        ("1x2xL40S", 2, 2048),
        ("2x1xA100,inter=10G", 2, 512),
    )
    for stack in ("torch", "megatron")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What a case came to."""

    case: str
    plans: int
    fit: int
    least_s: float
    found_s: float
    lower_s: float

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
        return (
            f"{self.case}: {self.plans} plans, {self.fit} fit, least {self.least_s * 1e3:.4f} ms; found "
            f"{self.found_s * 1e3:.4f} ms, {verdict}; gap told {gap:.2%}{'' if self.within else ', NOT WITHIN'}"
        )


def compared(case: Asked) -> Compared:
    ask, wished = read_asked(build_parser().parse_args(with_verb(case.argv(), VERBS)))
    solved = solve(ask, ask.setting(), wished)
    assert solved.best, "something fits"
    times, plans, fit = [inf], 0, 0
    for decisions, config in every(solved):
        plans += 1
        fold = solved.setting.fold(config)
        try:
            program = solved.setting.lowered(fold, solved.setting.allowed(decisions, fold), solved.global_batch)
            prediction = solved.setting.price(program)
        except MeshwrightError:
            continue
        if prediction.fits:
            fit += 1
            times.append(prediction.step_time_s)
    return Compared(
        case=f"{case.model} on {case.cluster}, {case.batch} x {case.seq}, {case.stack}",
        plans=plans,
        fit=fit,
        least_s=min(times),
        found_s=solved.best.step_s,
        lower_s=solved.proved,
    )


def every(solved: Solved) -> Iterator[tuple[Decisions, Config]]:
    """All plans, each with the configuration that says the rest."""
    space, written = solved.search.space, 0
    for base in space.bases():
        for config in space.shapes(base):
            try:
                plain = solved.setting.decisions(config, space.global_batch)
            except MeshwrightError:
                continue
            fold = solved.setting.fold(config)
            found = problems(solved.setting, plain, fold, space.global_batch, solved.search.prices)
            ((name, block),) = found.items()
            written += prod(len(one.costs) for one in block.problem.variables)
            if written > MOST:
                raise ValueError(f"more than {MOST} plans")
            for states in choices(block):
                plan = body_plan(block, states, name)
                usual = dict(plain.plan[name].states)
                open_ = tuple((value, state) for value, state in usual.items() if value not in dict(plan.states))
                plan = replace(plan, states=(*plan.states, *open_), first=plain.plan[name].first)
                yield replace(plain, plans=(plan,)), config


def choices(block: Block) -> Iterator[tuple[int, ...]]:
    """Every combination of states that no pair forbids."""
    for states in product(*(range(len(one.costs)) for one in block.problem.variables)):
        pairs = block.problem.pairs
        if all(one.allowed is None or one.allowed[states[one.first], states[one.second]] for one in pairs):
            yield states


def main(argv: Sequence[str]) -> int:
    """Compare and print; 1 if a bound is wrong, or more than one answer in twenty is not the best."""
    parser = ArgumentParser(prog="python -m benchmarks.every_plan", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--case", type=int, help="only the one of this number")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    found = []
    for number, case in enumerate(CASES):
        if args.case in (None, number):
            found.append(compared(case))
            print(found[-1], file=sys.stderr if args.json else sys.stdout, flush=True)
    best = sum(one.best for one in found)
    if args.json:
        print(json.dumps([asdict(one) | {"best": one.best, "within": one.within} for one in found]))
    else:
        print(f"{sum(one.plans for one in found)} plans of {len(found)} cases; {best} answers are the best")
    return 0 if all(one.within for one in found) and 20 * best >= 19 * len(found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
