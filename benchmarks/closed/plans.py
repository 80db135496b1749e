"""Plans of a model on the ranks of this machine: drawn from the declared space, priced by two profiles, emitted.

Drawn are plans that code is written for, evenly over their order by the calibrated prices, so that fast and slow ones
are among them; the plans that `plan` itself finds under either profile stand beside them.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from benchmarks.searches import EXAMPLES, drawn
from meshwright.backends.door import backend
from meshwright.backends.subject import Subject
from meshwright.cost_models.evaluate import Evaluator
from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.errors import MeshwrightError
from meshwright.planner.answer.solve import solve, space_of
from meshwright.planner.cli.main import VERBS, build_parser, with_verb
from meshwright.planner.question.ask import Ask, read_asked
from meshwright.planner.question.constraints import Constraints
from meshwright.planner.question.pins import Config
from meshwright.planner.question.pricing import Setting
from meshwright.planner.search.emittable import subject_of

MODELS = EXAMPLES / "loop.py"
DRAWS = 400
"""Configurations that are drawn from a space before some are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A model and a batch on so many ranks."""

    model: str
    ranks: int
    batch: int
    seq: int

    def argv(self, profile: str) -> list[str]:
        asked = {"cluster": f"cpu:{self.ranks}", "global-batch": self.batch, "seq": self.seq, "dtype": "fp32"}
        asked |= {"target": "torch-gloo", "profile": profile}
        return [
            f"{MODELS}:{self.model}",
            *(word for name, value in asked.items() for word in (f"--{name}", str(value))),
        ]

    def ask(self, profile: str) -> tuple[Ask, Namespace]:
        args = build_parser().parse_args(with_verb(self.argv(profile), VERBS))
        return read_asked(args)[0], args


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan with its price under each profile, and the interval around it, and the script that was written for it."""

    name: str
    seconds: Mapping[str, float]
    interval: Mapping[str, tuple[float, float]]
    script: Path


@dataclass(frozen=True, slots=True)
class _Candidate:
    config: Config
    decisions: Decisions
    subject: Subject


def planned(question: Question, profiles: Mapping[str, str], count: int, seed: int, folder: Path) -> list[Planned]:
    """So many plans of a question, written into a folder, and those that `plan` finds under each profile."""
    asks = {name: question.ask(path) for name, path in profiles.items()}
    ask, setting = asks[_last(profiles)][0].loaded()
    evaluators = {name: Evaluator(ask.cluster, one.profile) for name, (one, _) in asks.items()}
    found = _picked(list(_written(setting, ask, seed)), evaluators[_last(profiles)], count)
    named = [(str(one.config), one) for one in found]
    named += [(f"free, {name}: {one.config}", one) for name, one in _free(question, profiles, setting, ask)]
    plans = []
    for index, (name, one) in enumerate(named):
        at = folder / f"{index:02}"
        written_by = backend(setting.target.target)
        assert written_by is not None
        written_by.emit(one.subject, at).write(at)
        said = {profile: price(one.subject.program) for profile, price in evaluators.items()}
        seconds = {profile: of.step_time_s for profile, of in said.items()}
        interval = {profile: (of.step_time_low_s, of.step_time_high_s) for profile, of in said.items()}
        plans.append(Planned(name=name, seconds=seconds, interval=interval, script=at / "train.py"))
    return plans


def _last(profiles: Mapping[str, str]) -> str:
    return list(profiles)[-1]


def _written(setting: Setting, ask: Ask, seed: int) -> Iterator[_Candidate]:
    """Distinct plans of the space that code is written for, in the order of the draw."""
    space, seen = space_of(setting, ask.cluster, Constraints()), set[Config]()
    draw = drawn(space, Random(seed))
    for _ in range(DRAWS):
        config = next(draw)
        if config not in seen:
            seen.add(config)
            one = _candidate(setting, ask, config)
            if one is not None:
                yield one


def _candidate(setting: Setting, ask: Ask, config: Config, decisions: Decisions | None = None) -> _Candidate | None:
    try:
        made = decisions or setting.decisions(config, setting.workload.global_batch)
        subject = subject_of(setting, setting.folds.calls(ask.model, config.batch), config, made)
        written_by = backend(setting.target.target)
        assert written_by is not None
        written_by.emit(subject, Path())
    except MeshwrightError:
        return None
    return _Candidate(config, made, subject)


def _picked(candidates: Sequence[_Candidate], price: Evaluator, count: int) -> list[_Candidate]:
    """So many candidates, evenly over their order by price."""
    ordered = sorted(candidates, key=lambda one: price(one.subject.program).step_time_s)
    if len(ordered) <= count:
        return ordered
    return [ordered[round(index * (len(ordered) - 1) / (count - 1))] for index in range(count)]


def _free(
    question: Question, profiles: Mapping[str, str], setting: Setting, ask: Ask
) -> Iterator[tuple[str, _Candidate]]:
    """What `plan` finds under each profile."""
    for name, path in profiles.items():
        own, _ = question.ask(path)
        args = build_parser().parse_args(with_verb(question.argv(path), VERBS))
        request = read_asked(args)[1]
        priced = replace(setting, price=Evaluator(own.cluster, own.profile))
        solved = solve(replace(ask, profile=own.profile), priced, request)
        if solved.best is None:
            continue
        one = _candidate(setting, ask, solved.best.config, solved.decisions)
        if one is not None:
            yield name, one
