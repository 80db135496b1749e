"""Schedules made for plans: what they are made from is the evaluator's, what they compute is the model's, what they
gain is priced; asked for, forbidden, and left untried."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from meshwright.backends.torch_.verify.interpreted.step import step_differences
from meshwright.cost_models.hardware.toml import read
from meshwright.cost_models.step import Step
from meshwright.ir.decisions.decisions import Schedule
from meshwright.ir.decisions.json import decisions_from_json, decisions_to_json
from meshwright.ir.errors import ConstraintsContradict, PinsContradict, ScheduleImpossible, ScheduleNotExpressible
from meshwright.ir.names import Degrees, template
from meshwright.ir.schedules import CUSTOM, KINDS, SCHEDULES, WorkLists, decode, moments, with_work, work_lists, work_of
from meshwright.planner.answer import finalists
from meshwright.planner.answer.report import plan_of
from meshwright.planner.answer.solve import Solved, Stop, solve
from meshwright.planner.plan.file import plan_text, read_plan
from meshwright.planner.question.constraints import Asked, Constraints
from meshwright.planner.question.pins import Config
from meshwright.planner.refine import schedule as module
from meshwright.planner.refine.candidate import Candidate, Custom, counts_of
from meshwright.planner.refine.improvement import Bench
from meshwright.planner.refine.schedule import OwnSchedule, job_of
from meshwright.planner.scheduling import Budget, Job, Lists, all_fit, in_halves, ordered, schedule
from meshwright.planner.search.search import Search
from tests.llama_block import model
from tests.planner.refining import Case, hosts
from tests.planner.scheduling.jobs import AMPLE, job
from tests.planner.solved import ARGV, TINY, question
from tests.planner.told import config, price

PINS = [
    "pp=4,tp=1",
    "pp=4,tp=1,schedule=gpipe",
    "pp=4,tp=1,schedule=zb-h1,recompute=full",
    "pp=2,tp=2,vp=2",
    "pp=2,tp=1,dp=2,schedule=zbv,zero=1",
    "pp=2,tp=1,dp=2,schedule=v-half,zero=2",
    "pp=4,tp=1,split=ends,stage_blocks=3+2+2+1",
]


def step_of(case: Case, pins: str) -> Step:
    program = case.lowered(*case.plan(pins))
    assert program.workload is not None
    return Step(case.prices, program, program.workload)


# What is to be ordered is the evaluator's own ------------------------------------------------------------------------


@pytest.mark.parametrize("pins", PINS)
def test_a_job_takes_what_the_evaluator_says(small: str, pins: str) -> None:
    step = step_of(Case(small, hosts(1), batch=16), pins)
    order = ordered(job_of(step), work_of(step.program).lists)
    assert order is not None
    assert order.step_s * step.straggling == pytest.approx(step.prediction().step_time_s, rel=1e-12)


def room_left(job: Job, lists: Lists) -> list[float]:
    """Of every group at its fullest moment."""
    left = []
    for stages, holding, found in zip(
        job.shape.stages, job.holdings, moments(WorkLists(job.shape, lists)), strict=True
    ):
        for moment in found:
            own, kind = stages.index(moment.stage), KINDS.index(moment.kind)
            live = [n - (at == own and moment.kind != "W") for at, n in enumerate(moment.live)]
            waiting = [n - (at == own and moment.kind == "W") for at, n in enumerate(moment.pending)]
            held = holding.working_bytes[own][kind]
            held += sum(n * size for n, size in zip(live, holding.kept_bytes, strict=True))
            held += sum(n * size for n, size in zip(waiting, holding.waiting_bytes, strict=True))
            left.append(holding.room_bytes - held)
    return left


@pytest.mark.parametrize("pins", PINS)
def test_a_job_holds_what_the_evaluator_says(small: str, pins: str) -> None:
    """Megatron's stack has gradients from the start, as jobs do: the least room of any group is what the fullest stage
    leaves, before fragments."""
    case = Case(small, hosts(1), batch=16)
    step = step_of(case, pins)
    memories = [stage.memory for stage in step.prediction().stages]
    assert all(memory.instant != "optimizer" for memory in memories)
    left = min(memory.capacity_bytes - memory.peak_bytes for memory in memories)
    fragments = 1 + case.prices.profile.memory.fragments_share
    job, lists = job_of(step), work_of(step.program).lists
    assert min(room_left(job, lists)) == pytest.approx(left / fragments, rel=1e-9)
    assert all_fit(job, lists) == (left >= 0)


def test_a_program_with_other_work_is_the_one_that_is_lowered_with_it(small: str) -> None:
    case = Case(small, hosts(1), batch=16)
    fold, plan = case.plan("pp=4,tp=1")
    program = case.lowered(fold, plan)
    work = WorkLists(work_of(program).shape, in_halves(work_of(program).lists))
    written = replace(plan, schedule=Schedule(CUSTOM, 16, texts(work)))
    assert case.evaluator(with_work(program, work)) == case.price(fold, written)
    assert with_work(program, work).actions == case.lowered(fold, written).actions


def texts(work: WorkLists) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(map(str, actions)) for actions in decode(work))


# What it computes ----------------------------------------------------------------------------------------------------

LAYOUTS = {
    "one stage": Degrees(pp=4, microbatches=5, schedule="1f1b"),
    "two in a loop, zero-3": Degrees(dp=2, pp=2, vp=2, microbatches=4, schedule="1f1b", zero=3),
    "two in a V, tp": Degrees(tp=2, pp=2, vp=2, microbatches=4, schedule="zbv", sequence_parallel=True),
    "recompute": Degrees(pp=2, microbatches=4, schedule="1f1b", recompute="full"),
}


@pytest.mark.parametrize("apart", [True, False], ids=["apart", "whole"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_step_is_exact(name: str, apart: bool) -> None:
    """An order for stages that take as long as they happen to, with room for little."""
    fold = model()
    plan = template(fold, LAYOUTS[name])
    degrees = LAYOUTS[name]
    one = job(degrees.pp, degrees.vp, degrees.microbatches, 3, vee=degrees.schedule == "zbv", apart=apart, room=2.0)
    answer = schedule(one, budget=Budget(2_000))
    assert answer is not None
    lists = texts(WorkLists(one.shape, answer.best.lists))
    custom = replace(plan, schedule=Schedule(CUSTOM, degrees.microbatches, lists))
    assert not step_differences(fold, custom)


# What it gains -------------------------------------------------------------------------------------------------------


def made(
    case: Case, pins: str, *, asked: bool = False, layers: bool = False
) -> tuple[Candidate, Candidate | None, tuple[str, ...]]:
    config = case.config(pins)
    fold, plan = case.plan(pins)
    before = Candidate(plan, case.price(fold, plan), counts_of(plan, fold), (), config=config, origin=config)
    only: dict[str, Any] = ({"schedule": (CUSTOM,)} if asked else {}) | ({} if layers else {"split": ("even",)})
    bench = case.bench(Asked(Constraints(only)))
    found = next(OwnSchedule().neighbours(before, bench), None)
    return before, found, tuple(bench.notes)


@pytest.mark.parametrize("pins", ["pp=4,tp=1", "pp=4,tp=1,mbs=2", "pp=2,tp=1,dp=2", "pp=2,tp=1,dp=2,vp=2"])
def test_no_name_with_its_stages_is_faster(small: str, pins: str) -> None:
    """On a pipeline whose embedding and head make stages uneven; priced by the evaluator, as the file says it."""
    case = Case(small, hosts(1), batch=8)
    before, found, _ = made(case, pins)
    assert found is not None
    assert found.custom is not None
    fold = case.setting.fold(case.config(pins))
    names = ["gpipe", "interleaved"] if "vp" in pins else ["gpipe", "1f1b", "zb-h1", "zb-h2"]
    for name in names:
        other = case.price(
            fold, replace(before.decisions, schedule=Schedule(name, before.decisions.schedule.microbatches))
        )
        assert found.step_s <= other.step_time_s * (1 + 1e-9), name
    again = decisions_from_json(json.loads(json.dumps(decisions_to_json(found.decisions))))
    assert again == found.decisions
    assert case.price(fold, again) == found.prediction
    assert found.custom.least_s <= found.step_s < 0.99 * before.step_s
    assert found.config is not None
    assert found.config.schedule == CUSTOM
    assert replace(found.decisions, schedule=before.decisions.schedule) == before.decisions


def test_little_to_gain_is_left_alone_unless_it_is_asked_for(small: str) -> None:
    """With 256 micro-batches in a pipeline of two, idle time is less than a hundredth."""
    case = Case(small, hosts(1, per_host=2), batch=256)
    pins = "pp=2,tp=1,stage_blocks=5+3"
    _, found, notes = made(case, pins)
    assert found is None
    assert not notes


def test_a_step_of_too_many_actions_is_left_alone_and_said(small: str) -> None:
    case = Case(small, hosts(1), batch=4096)
    before, found, notes = made(case, "pp=4,tp=1,stage_blocks=5+1+1+1", asked=True)
    assert before.decisions.schedule.microbatches == 4096
    assert found is None
    assert len(notes) == 1
    assert notes[0].endswith("actions, more than 16,384")


@pytest.mark.parametrize("pins", ["pp=4,tp=1,stage_blocks=4+1+1+2", "pp=2,tp=1,dp=2,vp=2"])
def test_layers_are_shared_out_for_it_where_that_is_faster(small: str, pins: str) -> None:
    case = Case(small, hosts(1), batch=8)
    before, kept, _ = made(case, pins)
    _, moved, _ = made(case, pins, layers=True)
    assert kept is not None
    assert moved is not None
    assert kept.counts == before.counts
    assert moved.counts != before.counts
    assert sum(moved.counts) == sum(before.counts)
    assert moved.config is not None
    assert moved.config.stage_blocks == moved.counts
    assert moved.step_s < kept.step_s
    fold = case.setting.fold(case.config(pins))
    assert counts_of(moved.decisions, fold) == moved.counts
    assert case.price(fold, moved.decisions) == moved.prediction


UNLIKE = """
[[pool]]
name = "fast"
hosts = 1
gpu = "H100"
gpus_per_host = 2
[[pool]]
name = "slow"
hosts = 1
gpu = "A100-40G"
gpus_per_host = 4
[[link]]
between = ["fast", "slow"]
kind = "infiniband"
gbps = 200
latency_us = 5
"""


def test_stages_with_meshes_of_their_own_have_schedules_of_their_own(small: str) -> None:
    case = Case(small, read(UNLIKE), batch=8)
    plan = case.mixed(case.config("pp=2,tp=1,dp=2,mbs=1", 4))[0]
    assert plan.config is None
    bench = case.bench(Asked(Constraints({"split": ("even",)})))
    found = next(OwnSchedule().neighbours(plan, bench), None)
    assert found is not None
    assert found.origin is not None
    assert found.origin.schedule == CUSTOM
    assert found.step_s < 0.99 * plan.step_s
    assert case.price(case.setting.fold(found.origin), found.decisions) == found.prediction


TIGHT = """
[[pool]]
name = "tight"
hosts = 1
gpu = "small"
gpus_per_host = 4
[[device]]
name = "small"
like = "A100-80G"
memory_gb = {memory_gb:.3f}
"""


def test_what_does_not_fit_is_made_to_fit(small: str) -> None:
    """1F1B holds four micro-batches on the first stage; a tenth of its memory less, and an order is found that holds
    fewer."""
    pins = "pp=4,tp=1,mbs=4"
    before, _, _ = made(Case(small, hosts(1)), pins)
    needed = before.prediction.peak_memory_bytes / (1 - before.prediction.stages[0].memory.margin_bytes / 80e9)
    before, found, _ = made(Case(small, read(TIGHT.format(memory_gb=0.9 * needed / 1e9))), pins)
    assert not before.prediction.fits
    assert found is not None
    assert found.custom is not None
    assert found.prediction.fits
    assert found.custom.before_s == 0


# Asked for and forbidden ---------------------------------------------------------------------------------------------


def answer(*argv: str) -> Solved:
    return solve(*question(*ARGV, *argv))


def test_asked_for_it_is_had() -> None:
    """Four stages of one block: the integer program proves that no order is faster."""
    solved = answer("--fix", "pp=4,schedule=custom")
    assert solved.best is not None
    assert solved.best.config.schedule == CUSTOM
    assert solved.decisions.schedule.name == CUSTOM
    assert solved.refined is not None
    custom = solved.refined.custom
    assert custom is not None
    assert custom.least_s == pytest.approx(solved.best.step_s, rel=1e-4)
    assert solved.best.step_s <= custom.before_s
    assert solved.proved == 0
    plan = plan_of(solved)
    assert any("no order of its work takes less than" in note for note in plan.notes)
    assert read_plan(plan_text(plan)) == plan
    assert plan_text(plan_of(answer("--fix", "pp=4,schedule=custom"))) == plan_text(plan)


def test_unasked_it_is_had_where_it_is_faster() -> None:
    """Than the named ones that are allowed."""
    free = answer("--fix", "pp=4", "--allow", "schedule=gpipe|1f1b|custom")
    without = answer("--fix", "pp=4", "--allow", "schedule=gpipe|1f1b")
    assert free.best is not None
    assert without.best is not None
    assert free.decisions.schedule.name == CUSTOM
    assert free.best.step_s < without.best.step_s
    assert free.search.lower_s == without.search.lower_s


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (("--fix", "pp=4", "--allow", "schedule=gpipe|1f1b"), ("gpipe", "1f1b")),
        (("--fix", "pp=4", "--allow", "schedule=gpipe|custom"), ("custom",)),
        (("--fix", "pp=4,stage_blocks=1+1+1+1", "--allow", "schedule=gpipe|custom"), ("custom",)),
        (("--fix", "pp=1,schedule=custom"), ("1f1b",)),
    ],
    ids=str,
)
def test_wishes_are_kept(argv: tuple[str, ...], names: tuple[str, ...]) -> None:
    assert answer(*argv).decisions.schedule.name in names


def test_an_interrupted_search_keeps_what_was_asked_for() -> None:
    stop = Stop()

    def told(phase: str, search: Search | None = None, /) -> None:
        stop.interrupted = search is not None and search.best is not None

    solved = solve(*question(*ARGV, "--fix", "pp=4,schedule=custom"), stop, told)
    assert not solved.complete
    assert solved.decisions.schedule.name == CUSTOM


def test_a_target_that_runs_no_lists_is_not_asked_for_one() -> None:
    ask, setting, wished = question(*ARGV, "--fix", "pp=4,schedule=custom")
    lines = tuple(line for line in setting.target.schedules if line.name != CUSTOM)
    without = replace(setting, target=replace(setting.target, schedules=lines))
    with pytest.raises(ScheduleNotExpressible, match="runs no lists of one's own"):
        solve(ask, without, wished)
    _, _, free = question(*ARGV, "--fix", "pp=4")
    assert solve(ask, without, free).decisions.schedule.name in SCHEDULES


@pytest.mark.parametrize("objective", ["memory", "cost"])
def test_it_is_made_for_time_only(objective: str) -> None:
    ask, setting, wished = question(*ARGV, "--fix", "schedule=custom")
    with pytest.raises(ConstraintsContradict, match="schedule=custom"):
        solve(ask, setting, wished, objective=objective)


def test_names_alone_do_not_say_it(small: str) -> None:
    with pytest.raises(PinsContradict, match="an order of work that the search makes"):
        Case(small, hosts(1)).config("pp=4,schedule=custom")


def test_pipelines_that_would_be_fast_without_waits_get_a_schedule_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind what was refined come six more as the search priced them: its answer, then the least busy ones."""
    tried: list[Candidate] = []

    def watched(self: OwnSchedule, plan: Candidate, bench: Bench) -> Iterator[Candidate]:
        tried.extend(self.among)
        return iter(())

    monkeypatch.setattr(OwnSchedule, "neighbours", watched)
    asked = (TINY, "--cluster", "1x4xA100", "--global-batch", "16", "--seq", "512", "--target", "any")
    ask, setting, wished = question(*asked, "--fix", "schedule=custom", "--forbid", "pp=1")
    searches: list[Search] = []

    def told(phase: str, search: Search | None = None, /) -> None:
        searches.extend([search] if search else [])

    with pytest.raises(ScheduleImpossible):
        solve(ask, setting, wished, told=told)
    found = searches[-1].found

    def busy_s(config: Config) -> float:
        return found[config].step_s - dict(found[config].prediction.shares)["bubble"]

    as_priced = [one.config for one in tried if one.config and one.prediction is found[one.config].prediction]
    taken = {one.origin for one in tried} - set(as_priced)
    best = searches[-1].best
    left = sorted((one for one in found if found[one].fits and one.pp > 1 and one not in taken), key=busy_s)
    first = [best.config] if best and best.config in left else []
    expected = [*first, *(one for one in left if one not in first)]
    assert len(expected) > len(as_priced) == finalists.IDLE
    assert [busy_s(one) for one in as_priced] == [busy_s(one) for one in expected[: finalists.IDLE]]


class Named(NamedTuple):
    """What of a configuration is looked at."""

    name: str
    pp: int = 2


@pytest.mark.parametrize(("answer", "order"), [("slow", "slow quick busy"), ("quick", "quick busy slow")])
def test_the_answer_of_the_search_is_made_a_schedule_for_first(answer: str, order: str) -> None:
    """Seconds of a step without its waits: 1, 1.5 and 3."""
    times = {"quick": (3.0, 2.0), "busy": (4.0, 2.5), "slow": (4.0, 1.0)}
    found: dict[str, Any] = {
        name: SimpleNamespace(
            config=Named(name), fits=True, step_s=step_s, prediction=SimpleNamespace(shares=(("bubble", waits_s),))
        )
        for name, (step_s, waits_s) in times.items()
    }
    search: Any = SimpleNamespace(found={one.config: one for one in found.values()}, best=found[answer])
    assert [one.name for one in finalists._idle(search, ())] == order.split()


# In numbers ----------------------------------------------------------------------------------------------------------


def plan_for(step_s: float, lacks: float = 0.0, **changes: Any) -> Candidate:
    own: dict[str, Any] = {"counts": (3, 3), "config": config(pp=2), "origin": config(pp=2)}
    own |= {"decisions": SimpleNamespace(groups=((0,), (1,)))} | changes
    return Candidate(prediction=price(step_s, lacks), **own)


@dataclass
class Told:
    """A case: what no order is below, what is made of it and what that takes of the budget; and of other shares of
    layers the same."""

    plan: Candidate
    least_s: float
    result: Candidate | None
    spends: int = 0
    size: int = 100
    others: dict[tuple[int, ...], Told] = field(default_factory=dict)
    budgets: list[tuple[int, bool]] = field(default_factory=list)
    bounds: tuple[float, ...] = (2.0, 1.0)
    stages: tuple[tuple[int, ...], ...] = ((0,), (1,))
    looked: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def job(self) -> Any:
        group_of = {stage: group for group, own in enumerate(self.stages) for stage in own}
        shape = SimpleNamespace(stages=self.stages, depth=len(group_of))
        return SimpleNamespace(size=self.size, shape=shape, group_of=group_of, told=self)

    def promises(self, best: Candidate) -> bool:
        return self.least_s <= 0.99 * best.step_s

    def made(self, budget: Budget, *, certify: bool) -> Candidate | None:
        self.budgets.append((budget.left, certify))
        budget.left -= self.spends
        return self.result

    def with_layers(self, counts: tuple[int, ...]) -> Told | None:
        self.looked.append(counts)
        return self.others.get(counts)


def customise(
    monkeypatch: pytest.MonkeyPatch, cases: list[Told], plans: list[Candidate] | None = None, **how: Any
) -> tuple[Candidate | None, tuple[str, ...]]:
    monkeypatch.setattr(module, "_cases", lambda *_: iter(cases))
    monkeypatch.setattr(module, "group_floor_s", lambda job, group: job.told.bounds[group])
    among = tuple(plans or [plan_for(10.0)])
    made_only = SimpleNamespace(made_only=how.get("asked", False))
    bench: Any = SimpleNamespace(asked=SimpleNamespace(constraints=made_only), notes=[])
    bench.layers_asked = not how.get("layers", False)
    bench.stop, bench.writes = how.get("stop", lambda: False), how.get("writes", lambda one: True)
    found = next(OwnSchedule(among).neighbours(among[0], bench), None)
    return found, tuple(bench.notes)


@pytest.mark.parametrize("asked", [False, True])
def test_the_best_of_what_is_made_the_most_promising_first(monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    """Each has an equal share of what others left: of 60,000 actions a third, of the 50,000 that are left half. What
    no order brings below the answer by a hundredth gets nothing, unless it was asked for."""
    plan = plan_for(10.0)
    cases = [
        Told(plan, 9.95, plan_for(9.97)),
        Told(plan, 5.0, plan_for(8.0), spends=10_000),
        Told(plan, 8.5, plan_for(7.0)),
        Told(plan, 7.0, plan_for(9.0), spends=1_000),
    ]
    found, notes = customise(monkeypatch, cases, asked=asked)
    assert (found, notes) == (cases[2].result if asked else cases[1].result, ())
    given = [case.budgets for case in cases]
    if asked:
        assert given == [[(989_000, True)], [(250_000, True)], [(494_500, True)], [(330_000, True)]]
    else:
        assert given == [[], [(20_000, False)], [], [(25_000, False)]]


def test_an_answer_as_good_as_found_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousandth is not worth a list; less memory than there is, is. Of what is asked for the best is taken, however
    slow; of equals the first."""
    for result, plans, taken in (
        (plan_for(9.991), [plan_for(10.0)], False),
        (plan_for(9.98), [plan_for(10.0)], True),
        (plan_for(11.0), [plan_for(10.0, 1.0)], True),
        (plan_for(11.0, 1.0), [plan_for(10.0, 2.0)], True),
        (plan_for(9.0, 3.0), [plan_for(10.0, 2.0)], False),
        (plan_for(9.0, 2.0), [plan_for(10.0, 2.0)], True),
        (plan_for(9.5), [plan_for(12.0), plan_for(9.0)], False),
        (None, [plan_for(10.0)], False),
    ):
        case = Told(plan_for(10.0), 5.0, result)
        assert customise(monkeypatch, [case], plans)[0] == (result if taken else None)
        assert customise(monkeypatch, [case], plans, asked=True)[0] == result
    first, second = (Told(plan_for(10.0), 5.0 + at, plan_for(8.0, counts=(at, 6))) for at in (0, 1))
    assert customise(monkeypatch, [second, first], asked=True)[0] == first.result


def test_what_no_code_is_written_for_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [Told(plan_for(10.0), 5.0, plan_for(7.0)), Told(plan_for(10.0), 6.0, plan_for(8.0))]
    asked: list[float] = []

    def writes(one: Candidate) -> bool:
        asked.append(one.step_s)
        return one.step_s != 7.0

    assert customise(monkeypatch, cases, writes=writes)[0] == cases[1].result
    assert asked == [7.0, 8.0]


def test_what_is_too_large_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its configuration, or the one that it was made of."""
    pipeline, unlike = config(pp=4, tp=2), config(pp=8)
    cases = [
        Told(plan_for(10.0, config=pipeline), 5.0, plan_for(1.0), size=16_385),
        Told(plan_for(10.0, config=pipeline), 5.0, plan_for(1.0), size=20_000),
        Told(plan_for(10.0, config=None, origin=unlike), 6.0, plan_for(1.0), size=17_000),
        Told(plan_for(10.0), 7.0, plan_for(9.0), size=16_384),
    ]
    found, notes = customise(monkeypatch, cases)
    assert found == cases[3].result
    assert notes == (
        f"no schedule was made for {pipeline}: 16,385 actions, more than 16,384",
        f"no schedule was made for {unlike}: 17,000 actions, more than 16,384",
    )


def test_after_a_stop_only_what_was_asked_for_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without work beyond the first orders, nor a proof."""
    case = Told(plan_for(10.0), 5.0, plan_for(8.0))
    assert customise(monkeypatch, [case], stop=lambda: True)[0] is None
    assert case.budgets == []
    assert customise(monkeypatch, [case], stop=lambda: True, asked=True)[0] == case.result
    assert case.budgets == [(0, False)]


def moved(step_s: float, counts: tuple[int, ...], least_s: float = 4.0, **changes: Any) -> Told:
    return Told(plan_for(10.0, counts=counts), least_s, plan_for(step_s, counts=counts), **changes)


def test_layers_are_moved_from_the_group_that_bounds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as that is faster: from three and three to two and four, to one and five; not to none and six, which is
    no faster. A third of the work each; no bound is asked for twice."""
    last = moved(7.0, (1, 5), others={(0, 6): moved(6.999, (0, 6))})
    middle = moved(7.5, (2, 4), others={(1, 5): last})
    first = Told(plan_for(10.0), 5.0, plan_for(8.0), others={(2, 4): middle})
    found, _ = customise(monkeypatch, [first], layers=True)
    assert found == last.result
    assert middle.budgets == last.budgets == [(20_000, False)]
    assert [case.looked for case in (first, middle, last)] == [[(2, 4)], [(1, 5)], [(0, 6)]]
    assert customise(monkeypatch, [first])[0] == first.result, "layers stay where they were asked for"
    found, _ = customise(monkeypatch, [first], layers=True, writes=lambda one: one.step_s > 7.0)
    assert found == first.result
    looked = iter([False, True, True, True])
    assert customise(monkeypatch, [first], layers=True, stop=lambda: next(looked))[0] == first.result


@pytest.mark.parametrize(
    ("bounds", "stages", "counts", "looked"),
    [
        # A V: the first group has the first and the last stage; the quicker of the others takes first.
        ((3.0, 1.0, 2.0), ((0, 5), (1, 4), (2, 3)), (2, 1, 1, 1, 1, 2), ["120102", "021012"]),
        ((1.0, 3.0), ((0,), (1,)), (2, 1), ["30"]),
        ((1.0, 3.0), ((0,), (1,)), (3, 0), []),
        ((3.0, 3.0), ((0,), (1,)), (2, 1), ["12"]),  # of equals the first gives
    ],
)
def test_which_layers_are_moved(
    monkeypatch: pytest.MonkeyPatch, bounds: Any, stages: Any, counts: Any, looked: list[str]
) -> None:
    case = Told(plan_for(10.0, counts=counts), 5.0, plan_for(8.0), bounds=bounds, stages=stages)
    customise(monkeypatch, [case], layers=True)
    shown = ["".join(map(str, one)) for one in case.looked]
    if len(stages) == 2:
        assert shown == looked
        return
    takers = (1, 4, 2, 3)
    assert shown == [
        "".join(str(count - (at == giver) + (at == taker)) for at, count in enumerate(counts))
        for taker in takers
        for giver in (0, 5)
    ]


def test_of_shares_with_the_least_bounds_three_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen are looked at unasked, in three rounds if each finds something better; what cannot gain is not tried."""
    stages, bounds = ((0,), *((at,) for at in range(1, 20))), (9.0, *([1.0] * 19))
    counts = (9, *([1] * 19))
    others = {}
    for at in range(1, 20):
        shares = tuple(count - (stage == 0) + (stage == at) for stage, count in enumerate(counts))
        others[shares] = moved(9.0, shares, least_s={2: 4.0, 5: 3.0, 7: 2.0, 8: 5.0, 17: 1.0}.get(at, 7.995))
    first = Told(
        plan_for(10.0, counts=counts), 5.0, plan_for(8.0, counts=counts), bounds=bounds, stages=stages, others=others
    )
    customise(monkeypatch, [first], layers=True)
    assert (len(first.looked), [shares.index(2) for shares, one in others.items() if one.budgets]) == (16, [2, 5, 7])
    for one in others.values():
        one.budgets.clear()
    first.looked.clear()
    customise(monkeypatch, [first], layers=True, asked=True)
    assert (len(first.looked), [shares.index(2) for shares, one in others.items() if one.budgets]) == (19, [5, 7, 17])


def test_moved_layers_are_ordered_again_with_all_the_work_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    last = moved(7.5, (2, 4))
    first = Told(plan_for(10.0), 5.0, plan_for(8.0), spends=400_000, others={(2, 4): last})
    assert customise(monkeypatch, [first], asked=True, layers=True)[0] == last.result
    assert first.budgets == [(1_000_000, True)]
    assert last.budgets == [(20_000, False), (600_000, True)]
    kept = Told(plan_for(10.0), 5.0, plan_for(8.0))
    assert customise(monkeypatch, [kept], asked=True, layers=True)[0] == kept.result
    assert kept.budgets == [(1_000_000, True)]


@dataclass(frozen=True)
class Bare:
    """Decisions of which only the schedule counts."""

    schedule: Schedule
    groups: tuple[tuple[int, ...], ...] = ((0,), (1,))


class Target:
    """Allows lists, or refuses them; remembers what it was asked."""

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses

    def allowed(self, plan: Any, fold: Any) -> Any:
        if self.refuses:
            raise ScheduleNotExpressible(place="here", cause="no lists", fix="a name")
        return plan

    def bench(self) -> Any:
        def judged(plan: Any, fold: Any) -> Any:
            assert fold == "fold"
            return price(3.0)

        return SimpleNamespace(setting=self, judged=judged)


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize(("lacks", "before_s"), [(0.0, 10.0), (1.0, 0.0)])
@pytest.mark.parametrize("named", [True, False])
def test_a_schedule_takes_the_place_of_a_name(lacks: float, before_s: float, named: bool, refuses: bool) -> None:
    """Two micro-batches on two stages with room for what they hold, or for nothing: then it keeps its own order."""
    for room in (AMPLE, 0.0):
        one = job(2, 1, 2, 0, apart=False, room=room, even=True)
        before = Bare(Schedule("gpipe", 2))
        origin = config(pp=2, schedule="gpipe")
        plan = plan_for(10.0, lacks, decisions=before, config=origin if named else None, origin=origin)
        lists = work_lists("gpipe", one.shape).lists
        given: Any = {"bench": Target(refuses).bench(), "plan": plan, "fold": "fold"}
        case = module._Case(**given, job=one, lists=lists, straggling=1.5)
        found = case.made(Budget(0), certify=False)
        if refuses:
            assert found is None
            continue
        assert found is not None
        assert found.custom == Custom("gpipe", before_s, case.least_s)
        assert (found.config and found.config.schedule, found.origin and found.origin.schedule) == (
            (CUSTOM, "gpipe") if named else (None, CUSTOM)
        )
        schedule = found.decisions.schedule
        assert (schedule.name, schedule.microbatches) == (CUSTOM, 2)
        if not room:
            assert schedule.actions == texts(WorkLists(one.shape, lists))
        assert found.prediction == price(3.0)


def test_layers_whose_bound_gains_a_thousandth_at_most_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    for least_s, counts in ((7.993, (3, 3)), (7.991, (2, 4))):
        first = Told(plan_for(10.0), 5.0, plan_for(8.0), others={(2, 4): moved(7.0, (2, 4), least_s=least_s)})
        found, _ = customise(monkeypatch, [first], layers=True)
        assert found is not None
        assert found.counts == counts


@pytest.mark.parametrize(
    ("certify", "rolling", "microbatches", "proved", "asked"),
    [
        (True, False, 25, False, True),  # a hundred actions
        (True, False, 26, False, False),
        (False, False, 25, False, False),
        (True, True, 25, False, False),
        (True, False, 25, True, False),
    ],
)
@pytest.mark.parametrize("certified", [True, False])
def test_a_certificate_counts_where_it_proves_something(
    monkeypatch: pytest.MonkeyPatch,
    certify: bool,
    rolling: bool,
    microbatches: int,
    proved: bool,
    asked: bool,
    certified: bool,
) -> None:
    """It is asked for small orders that are not known to be the best, and not of those that roll on."""
    one = replace(job(2, 1, microbatches, 0, apart=False, even=True), rolling=rolling)
    lists = work_lists("1f1b", one.shape).lists
    other = work_lists("gpipe", one.shape).lists
    questions: list[Any] = []

    def certificate(own: Job, best: Any, limit_s: float) -> Any:
        questions.append((own, best.lists, limit_s))
        return SimpleNamespace(proved=certified, best=SimpleNamespace(lists=other), bound_s=4.0)

    answer = SimpleNamespace(best=SimpleNamespace(lists=lists), floor_s=2.0, proved=proved)
    monkeypatch.setattr(module, "schedule", lambda job, starts, budget: answer)
    monkeypatch.setattr(module, "certified", certificate)
    plan = plan_for(10.0, decisions=Bare(Schedule("1f1b", microbatches)))
    given: Any = {"bench": Target().bench(), "plan": plan, "fold": "fold"}
    found = module._Case(**given, job=one, lists=lists, straggling=1.5).made(Budget(0), certify=certify)
    assert questions == ([(one, lists, 20.0)] if asked else [])
    assert found is not None
    assert found.custom is not None
    taken = asked and certified
    assert found.custom.least_s == 1.5 * (4.0 if taken else 2.0)
    assert found.decisions.schedule.actions == texts(WorkLists(one.shape, other if taken else lists))
