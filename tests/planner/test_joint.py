"""The operators of all bodies chosen together: sums, agreement, exactness, and bounds on every plan of operators."""

from __future__ import annotations

from collections import Counter
from math import inf
from pathlib import Path
from random import Random

import pytest

from meshwright.backends.torch_.verify.interpreted.step import step_differences
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.planner.answer.solve import solve, space_of
from meshwright.planner.block_solver.elimination import elimination
from meshwright.planner.block_solver.problem import Assignment, Status
from meshwright.planner.question.constraints import Constraints
from meshwright.planner.question.pins import Config
from meshwright.planner.refine.improvement import Bench
from meshwright.planner.refine.operators.bodies import Built
from meshwright.planner.refine.operators.bounds import Bounded, arrangements, named
from meshwright.planner.refine.operators.joint import Joint
from meshwright.planner.refine.operators.operators import Work
from meshwright.planner.search.search import Search
from tests.planner.refining import Case, hosts
from tests.planner.solved import question
from tests.planner.test_operators import EXPERTS, TOY, toy_case

ROOT = Path(__file__).parents[2]
TIED = TOY.replace("tied_embeddings = false", "tied_embeddings = true")
SLACK = 1e-9


def work(case: Case, pins: str) -> Work:
    start = case.given(*case.plan(pins))
    bench = case.bench()
    return Work(bench, bench.fold(start), start, inf, Built())


def drawn(joint: Joint, random: Random) -> Assignment:
    """Any states that agree."""
    while True:
        states = tuple(random.randrange(len(one.costs)) for one in joint.problem.variables)
        found = joint.problem.objective(states)
        if joint.problem.legal(states):
            return Assignment(Status.FEASIBLE, states, found, -inf)


@pytest.mark.parametrize(("text", "pins"), [(TOY, "dp=4,zero=3"), (TOY, "tp=2,dp=2"), (EXPERTS, "tp=2,dp=2,ep=2")])
def test_it_is_the_sum_of_what_all_calls_take(tmp_path: Path, text: str, pins: str) -> None:
    joint = work(toy_case(tmp_path, text), pins).joint(hides=True)
    assert joint is not None
    random = Random(7)
    for _ in range(50):
        states = tuple(random.randrange(len(one.costs)) for one in joint.problem.variables)
        parts = {name: block.problem.objective(joint.chosen(name, states)) for name, block in joint.blocks.items()}
        total = sum(joint.calls[name] * seconds for name, seconds in parts.items())
        assert joint.problem.objective(states) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("data", [False, True])
@pytest.mark.parametrize("text", [TOY, TIED, EXPERTS])
@pytest.mark.parametrize("pins", ["dp=4,zero=1", "tp=2,dp=2,zero=3"])
def test_the_best_plan_is_exact_and_no_dearer_than_any(tmp_path: Path, text: str, pins: str, data: bool) -> None:
    """Of all bodies together, on simulated devices; and what bodies hand on fits together."""
    own = work(toy_case(tmp_path, text), pins)
    joint = own.joint(hides=True, data=data)
    assert joint is not None
    answer = own.answer(joint)
    assert answer is not None
    assert answer.objective is not None
    random = Random(11)
    for _ in range(20 if text != TIED else 0):  # of a tied table hardly any two draws agree
        other = drawn(joint, random)
        assert other.objective is not None
        assert answer.objective <= other.objective * (1 + SLACK)
    made = own.planned(own.start, joint, answer)
    if made is not None:  # None: it is the plan that came in
        assert step_differences(own.fold, made.decisions) == []


def test_tied_parameters_are_read_alike(tmp_path: Path) -> None:
    own = work(toy_case(tmp_path, TIED), "tp=2,dp=2,zero=1")
    joint = own.joint(hides=True)
    assert joint is not None
    answer = elimination.solve(joint.problem)
    made = own.planned(own.start, joint, answer)
    assert made is not None
    (held,) = own.tied
    assert len(own.places(made.decisions.plan, held)) == 1


def test_what_several_bodies_hold_is_counted_once(tmp_path: Path) -> None:
    """Its update and its bytes, with one of them."""
    own = work(toy_case(tmp_path, TIED), "dp=4,zero=1")
    joint = own.joint(hides=True)
    assert joint is not None
    answer = own.answer(joint)
    assert answer is not None
    (held,) = own.holders()
    ways = []
    for name, path in held:
        stored = joint.blocks[name].stored(joint.chosen(name, answer.states))
        ways += [way for param, way in stored if param.path == path]
    assert [way.spared_s > 0 for way in ways] == [False, True]
    assert [way.once_s > 0 for way in ways] == [way.nbytes > 0 for way in ways] == [True, False]


def searched(case: Case) -> Search:
    space = space_of(case.setting, case.cluster, Constraints())
    return Search(case.setting, case.prices, space)


@pytest.mark.parametrize(
    ("text", "cluster"),
    [
        (TOY, hosts(2, per_host=2)),
        (TIED, hosts(2, per_host=2)),
        (EXPERTS, hosts(2, per_host=2)),
        (TOY, read_cluster("1x4xH100")),
    ],
)
def test_no_plan_of_operators_takes_less_than_its_arrangement_says(tmp_path: Path, text: str, cluster: object) -> None:
    """The best plan and plans with operators at random, on arrangements at random."""
    path = tmp_path / "toy.toml"
    path.write_text(text, encoding="utf-8")
    case = Case(str(path), cluster, seq=64, batch=8)  # type: ignore[arg-type]
    search, random, checked = searched(case), Random(3), 0
    bench = Bench(search)
    every = Bounded(bench)
    for one in random.sample(list(arrangements(bench)), 8):
        found = named(one.config, bench)
        if found is None or one.bound_s == inf:
            continue
        tight = every.tightened(one)
        assert one.bound_s <= tight.bound_s
        config, start = found
        own = Work(bench, case.setting.fold(config), start, inf, Built())
        joint = own.joint(hides=True, data=True) if own.open else None
        if joint is None:
            continue
        best = own.answer(joint)
        assert best is not None
        draws = 5 if text != TIED else 0  # of a tied table hardly any two draws agree
        for answer in (best, *(drawn(joint, random) for _ in range(draws))):
            made = own.planned(start, joint, answer)
            if made is not None:
                checked += 1
                assert tight.bound_s <= made.step_s
    assert checked >= (10 if text != TIED else 3)


def test_parts_that_say_no_more_than_launches_are_not_added_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the same stages, micro-batches and recomputation, and for no others. Parts that say more are added up for
    every mesh, though a bound from fewer micro-batches says as much already; so are those that were not known."""
    path = tmp_path / "toy.toml"
    path.write_text(TOY, encoding="utf-8")
    bench = Bench(searched(Case(str(path), read_cluster("1x8xH100"), seq=64, batch=8)))
    asked: list[tuple[int, int, str]] = []
    knows = 1e-12

    def parts_s(config: Config, *_: object) -> float:
        asked.append((config.pp, config.microbatches, config.recompute))
        return knows if config.pp == 1 else 1.0 / config.microbatches

    def tighten(every: Bounded) -> tuple[list[tuple[int, int, str]], ...]:
        asked.clear()
        while (one := every.next()) is not None and one.bound_s < inf:
            every.tightened(one)
        return [one for one in asked if one[0] == 1], [one for one in asked if one[0] == 2]

    monkeypatch.setattr("meshwright.planner.refine.operators.bounds.parts_s", parts_s)
    every = Bounded(bench)
    turns = Counter((one.config.pp, one.config.microbatches, one.config.recompute) for one in every.waiting)
    alone, piped = tighten(every)
    assert Counter(alone) == dict.fromkeys(set(alone), 1)
    assert Counter(piped) == {same: turns[same] for same in piped}
    assert max(turns[same] for same in piped) > 1
    knows = 0.0
    unknown, _ = tighten(Bounded(bench))
    assert Counter(unknown) == {same: turns[same] for same in unknown}
    assert max(turns[same] for same in unknown) > 1


def test_tables_are_cut_over_all_ranks() -> None:
    """A recommender on 64 devices: named plans take several times as long, and the free plan is no slower than one with
    a pin (seed 1 of `benchmarks.pins_never_win`)."""
    model = f"{ROOT / 'benchmarks' / 'unusual' / 'tables.py'}:build"
    words = (model, "--cluster", "8x8xH100", "--global-batch", "65536", "--seq", "1")
    words += ("--fix", "pp=1,dp=64,recompute=none,microbatches=1")
    solved = solve(*question(*words))
    assert solved.best is not None
    assert solved.search.best is not None
    assert solved.best.step_s < 0.2 * solved.search.best.step_s
    assert solved.best.step_s < 7e-3
    assert 0.0 < solved.operators_s <= solved.best.step_s
    assert solved.refined is not None
    assert solved.refined.changed
