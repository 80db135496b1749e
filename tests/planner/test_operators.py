"""Operators chosen anew: never worse, exact, the same every time, and nothing that the target refuses."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.backends.torch_.capabilities import TARGETS
from meshwright.backends.torch_.verify.interpreted.step import step_differences
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.ir.decisions.decisions import Decisions, Schedule
from meshwright.ir.decisions.json import decisions_to_json
from meshwright.ir.errors import LayoutNotExpressible
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names import Degrees
from meshwright.ir.program.spread import compute_placements
from meshwright.ir.target.capabilities import ANY
from meshwright.ir.target.workload import Workload
from meshwright.planner.answer.solve import solve
from meshwright.planner.refine.candidate import Candidate
from meshwright.planner.refine.heterogeneous import Part, over_parts
from meshwright.planner.refine.operators.bodies import Built
from meshwright.planner.refine.operators.operators import LEAST_GAIN, MOST_POLISHED, Operators, Work
from tests.planner.refining import LLAMA, Case, hosts
from tests.planner.solved import question
from tests.planner.told import price

TOY = """
name = "toy decoder"
layers = 2
hidden = 32
ffn_hidden = 64
vocab = 64
heads = 4
kv_heads = 4
tied_embeddings = false
dtype = "bf16"
"""
EXPERTS = f"{TOY}experts = 4\ntopk = 2\nmoe_ffn = 32\nfirst_dense_layers = 1\n"

PINS = ("tp=2,dp=2,zero=1", "cp=4", "pp=2,tp=2,mbs=1", "dp=4,zero=3,recompute=full", "tp=4,recompute=full_layers:1")


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return toy_case(tmp_path_factory.mktemp("models"), TOY)


def toy_case(folder: Path, text: str) -> Case:
    path = folder / "toy.toml"
    path.write_text(text, encoding="utf-8")
    return Case(str(path), hosts(2, per_host=2), seq=16, batch=4)


def answers(case: Case, pins: str, built: Built | None = None) -> list[Candidate]:
    start = case.given(*case.plan(pins))
    best = Operators(built=built).chosen(start, case.bench())
    return [best, start] if best.changed else [start]


def shown(found: list[Candidate]) -> list[tuple[object, ...]]:
    return [(decisions_to_json(one.decisions), one.step_s, one.changed) for one in found]


@pytest.mark.parametrize("pins", PINS)
def test_never_worse_and_still_exact(toy: Case, pins: str) -> None:
    """The whole step of the changed plan, on simulated devices, equals the model."""
    found = answers(toy, pins)
    best, start = found[0], found[-1]
    fold, plan = toy.plan(pins)
    assert start.decisions == plan
    assert not start.changed
    assert best.worth <= start.worth
    assert bool(best.changed) == (best.step_s < start.step_s * (1 - LEAST_GAIN))
    assert toy.price(fold, best.decisions) == best.prediction
    if best.changed:
        assert step_differences(fold, best.decisions) == []


@pytest.mark.parametrize("pins", PINS)
def test_no_plan_near_that_takes_as_long_in_every_part_is_faster(toy: Case, pins: str) -> None:
    start, left_out = toy.given(*toy.plan(pins)), 0
    work = Work(toy.bench(), toy.plan(pins)[0], start, inf, Built())
    for name in work.open:
        for plan in work.near(start.decisions.plan[name]):
            if work.takes_as_long(start, name, plan):
                trial = work.tried(start, {name: plan})
                assert trial is None or trial.step_s >= start.step_s * (1 - LEAST_GAIN)
                left_out += 1
    assert left_out, "none of them would be left out"


def test_the_same_every_time(toy: Case) -> None:
    """Also where problems of other plans are at hand."""
    built = Built()
    answers(toy, "tp=2,dp=2,zero=3", built)
    first, again = (shown(answers(toy, PINS[0], known)) for known in (None, built))
    assert first == again


def test_with_experts(tmp_path: Path) -> None:
    """Several kinds of blocks, axes with two uses: still exact."""
    case = toy_case(tmp_path, EXPERTS)
    best, start = answers(case, "tp=2,dp=2,ep=2,zero=1")
    assert best.step_s < start.step_s
    assert step_differences(case.plan("tp=2,dp=2,ep=2,zero=1")[0], best.decisions) == []


@pytest.mark.parametrize("pins", ["tp=2,dp=2,zero=1", "dp=4,zero=1"])
def test_tied_parameters_stay_one(tmp_path: Path, pins: str) -> None:
    """An embedding that is the head too is read and stored in one way, and no gain is taken for moving one of both."""
    text = TOY.replace("tied_embeddings = false", "tied_embeddings = true").replace("vocab = 64", "vocab = 32000")
    case = toy_case(tmp_path, text)
    best = answers(case, pins)[0]
    fold, mesh = case.plan(pins)[0], best.decisions.stages[0].mesh
    found = set()
    for name in ("embed", "head"):
        plan, graph = best.decisions.plan[name], fold.body[name].graph
        path = next(param.path for param in graph.params if "embed" in param.path)
        stored = [(item.params, item.grads, item.optimizer) for item in plan.storage if item.path == path]
        found.add((compute_placements(graph, plan, mesh)[path], *stored))
    assert len(found) == 1


@pytest.mark.parametrize("zero", range(4))
def test_storage_and_recomputation_are_kept(toy: Case, zero: int) -> None:
    pins = f"tp=2,dp=2,recompute=selective,zero={zero}"
    best, start = answers(toy, pins)
    assert best.changed
    fold, _ = toy.plan(pins)
    for old, new in zip(start.decisions.plans, best.decisions.plans, strict=True):
        said = [(plan.name, plan.body, set(plan.recompute), plan.regather, plan.first) for plan in (old, new)]
        assert said[0] == said[1]
        at = compute_placements(fold.body[new.body].graph, new, best.decisions.stages[0].mesh)
        for item in new.storage:
            kinds = (item.optimizer, item.grads, item.params)
            assert all(kind == at[item.path] for kind in kinds[zero:])


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_what_a_target_refuses_is_not_chosen(toy: Case, target: str) -> None:
    own = replace(toy.setting, target=TARGETS[target], bodies={})
    fold, plan = toy.plan("tp=2,dp=2,zero=1,zigzag=off")
    best = Operators().chosen(toy.given(fold, plan), toy.bench(setting=own))
    assert list(TARGETS[target].refusals(best.decisions, fold)) == []


def test_a_change_that_is_refused_is_left_out(toy: Case) -> None:
    """A target that refuses every plan but the one that came in."""
    fold, plan = toy.plan("tp=2,dp=2,zero=1")

    class Stubborn(type(toy.setting.target)):  # type: ignore[misc]
        def check(self, decisions: Decisions, fold: Fold, workload: Workload | None = None) -> None:
            if decisions != plan:
                raise LayoutNotExpressible(place="test", cause="another plan", fix="keep the plan")

    target = Stubborn(**{field.name: getattr(ANY, field.name) for field in fields(ANY)})
    assert answers(toy, "tp=2,dp=2,zero=1")[0].changed
    own = toy.bench(setting=replace(toy.setting, target=target))
    assert Operators().chosen(toy.given(fold, plan), own).changed == ()


def test_late_is_the_plan_that_came_in(toy: Case) -> None:
    fold, plan = toy.plan("tp=2,dp=2,zero=1")
    assert Operators(limit_s=0.0).chosen(toy.given(fold, plan), toy.bench()).changed == ()


def test_the_embedding_of_a_small_batch() -> None:
    """Llama-3.1-8B, 16 sequences on 64 devices: the template reduces the gradient of the whole table across all copies
    in every step. Cut by hidden columns the table has no copies; tokens travel instead, and they are few."""
    case = Case(LLAMA, read_cluster("8x8xH100"), seq=8192, batch=16)
    best, start = answers(case, "tp=4,dp=16,zero=1,mbs=1")
    assert "embed" in best.changed
    assert best.step_s < 0.995 * start.step_s


def test_what_is_too_large_is_made_leaner() -> None:
    """Where the fastest change does not fit, no answer is that does not."""
    case = Case(LLAMA, read_cluster("8x8xH100"), seq=8192, batch=128)
    best, start = answers(case, "tp=2,dp=32,zero=1,mbs=1")
    assert start.prediction.fits
    assert best.prediction.fits
    assert best.step_s < start.step_s


def test_on_many_axes_only_small_bodies_are_solved() -> None:
    case = Case(LLAMA, read_cluster("8x8xH100"), seq=8192, batch=16)
    best, start = answers(case, "tp=2,pp=2,dp=8,cp=2,vp=8,shard=4,zero=1,mbs=1,schedule=interleaved,zigzag=off")
    assert best.changed == ("embed",)
    assert best.step_s < start.step_s


def test_free_ends_find_sequence_parallelism() -> None:
    """From a plan whose blocks hand copies on; unless the ends are pinned."""
    case = Case(LLAMA, read_cluster("8x8xH100"), seq=8192, batch=16)
    fold, plan = case.plan("tp=4,dp=16,zero=1,mbs=1,sp=off")
    given = case.given(fold, plan), case.bench()
    free, pinned = (Operators().chosen(*given, free_interfaces=free_interfaces) for free_interfaces in (True, False))
    cuts = {str(dict(one.decisions.plan["embed"].states)["embedding"]) for one in (free, pinned)}
    assert cuts == {"[dp, tp, -]", "[dp, -, -]"}
    assert free.step_s < 0.99 * pinned.step_s
    with_names = answers(case, "tp=4,dp=16,zero=1,mbs=1")[0]
    assert free.step_s <= with_names.step_s * (1 + 1e-3)


SMALL = f"{Path(__file__).parents[2] / 'examples' / 'small.py'}"


def test_bodies_without_operators_hand_on_what_they_are_given() -> None:
    """A stream of numbers that goes straight into blocks: the body before the first one is empty."""
    case = Case(f"{SMALL}:four_lines", read_cluster("1x2xA100"), seq=512, batch=4)
    fold, plan = case.plan("dp=2,mbs=2")
    assert any(not body.graph.ops for body in fold.bodies)
    best = Operators().chosen(case.given(fold, plan), case.bench())
    assert best.prediction.step_time_s <= case.price(fold, plan).step_time_s
    assert step_differences(fold, best.decisions) == []


def test_a_stage_of_one_rank_has_nothing_to_choose() -> None:
    """Beside one of two ranks, whose operators are chosen anew."""
    case = Case(f"{SMALL}:four_lines", read_cluster("1x3xA100"), seq=512, batch=4)
    fold = case.setting.folds.at(4)
    held = [Part((0, 1), Degrees(dp=2)), Part((2,), Degrees())]
    plan = case.setting.allowed(over_parts(fold, held, (3, 1), Schedule("1f1b", 1), "any"), fold)
    best = Operators().chosen(case.given(fold, plan), case.bench())
    assert best.prediction.step_time_s <= case.price(fold, plan).step_time_s


def test_copies_that_were_asked_for_stay_copies() -> None:
    """Where ranks that all do the same are faster, they are not what a pin of dp or ZeRO means."""
    words = (f"{SMALL}:narrow", "--cluster", "1x2xA100", "--global-batch", "4", "--seq", "512", "--target", "any")
    free, kept = (solve(*question(*words, *pins)) for pins in ((), ("--fix", "dp=2,zero=3")))
    (plan,), (pinned,) = free.decisions.plans, kept.decisions.plans
    assert not plan.strategies
    assert pinned.strategies
    assert pinned.storage
    assert free.best is not None
    assert kept.best is not None
    assert free.best.step_s < kept.best.step_s


def test_ranks_that_all_do_the_same_share_what_they_store() -> None:
    """Launches take as long as kernels here: whole products need no more of them, and half of the optimizer's step is
    left."""
    words = ("--global-batch", "4", "--seq", "128", "--stack", "megatron", "--target", "any")
    model = f"{Path(SMALL).with_name('mlp.py')}:build"
    solved = solve(*question(model, "--cluster", "1x2xH100", *words))
    (plan,) = solved.decisions.plans
    assert not plan.strategies
    assert plan.storage
    for item in plan.storage:
        assert not item.params.axes
        assert item.optimizer.axes == ("dp",)


# In numbers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Named:
    """A body plan of which only the name, and what it stands for, count."""

    name: str
    of: str = ""
    states: tuple[Any, ...] = ()


def test_what_was_made_from_scratch_waits_no_longer_than_it_must() -> None:
    """Block problems cut the head's product, and exchange what comes out, since they know nothing of launches: cut, it
    no longer hides those of the small kernels before it. The evaluator tells, and the answer's head is whole."""
    words = ("--global-batch", "4", "--seq", "511", "--target", "any", "--forbid", "schedule=custom")
    pins = ("--fix", "zero=0,mbs=2,recompute=none")
    solved = solve(*question(f"{SMALL}:blocks_between", "--cluster", "1x2xA100", *words, *pins))
    assert not [op for op, strategy in solved.decisions.plan["head"].strategies if strategy.choices]
    assert solved.refined is not None
    assert solved.refined.changed[0] == "embed"


def sharper(step_s: float, lacks: float = 0.0, *changed: str) -> Candidate:
    plan: Any = SimpleNamespace()
    return Candidate(plan, price(step_s, lacks), changed=changed)


class Told(Work):
    """Changes whose prices are told: by the plans that take the place of others."""

    def __init__(self, prices: dict[str, Candidate], leaner: dict[float, list[str]] | None = None) -> None:
        self.told, self.fewer, self.asked, self.within = prices, leaner or {}, list[str](), list[float]()
        self.room_bytes = 8.0

    def tried(self, best: Candidate, instead: Any) -> Candidate | None:
        word = "+".join(plan.of for plan in instead.values())
        self.asked.append(word)
        return self.told.get(word)

    def used(self, best: Candidate, name: str) -> float:
        return 20.0

    def room(self, best: Candidate, name: str) -> float:
        return self.room_bytes

    def solutions(self, name: str, ends: Any, within: float = inf) -> Any:
        self.within.append(within)
        return [Named(name, of) for of in self.fewer.get(within, ())]


START = sharper(10.0)
TWO: Any = {"a": [Named("a", "a1"), Named("a", "a2")], "b": [Named("b", "b1")], "c": []}


@pytest.mark.parametrize(
    ("prices", "best", "asked"),
    [
        # Those that are called least come first, then the others, then the first wish of all.
        ({}, 10.0, ["b1", "a1", "a2", "a1+b1"]),
        ({"a1": sharper(9.0), "a2": sharper(8.0), "b1": sharper(9.5)}, 8.0, ["b1", "a1", "a2", "a1+b1"]),
        ({"a1": sharper(9.0), "a1+b1": sharper(7.0)}, 7.0, ["b1", "a1", "a2", "a1+b1"]),
        # A ten-thousandth is not worth a change; what lacks memory is none, whatever it gains.
        ({"a1": sharper(9.9995)}, 10.0, ["b1", "a1", "a2", "a1+b1"]),
        ({"a1": sharper(9.9985)}, 9.9985, ["b1", "a1", "a2", "a1+b1"]),
        # Too large and faster: leaner ones are sought, with all that is left, half of it, nothing of it.
        ({"b1": sharper(5.0, 1.0)}, 10.0, ["b1", "a1", "a2", "a1+b1"]),
        ({"b1": sharper(5.0, 1.0), "b28": sharper(6.0)}, 6.0, ["b1", "b28", "a1", "a2", "a1+b1"]),
        ({"b1": sharper(5.0, 1.0), "b24": sharper(6.0)}, 6.0, ["b1", "b28", "b24", "a1", "a2", "a1+b1"]),
        ({"b1": sharper(5.0, 1.0), "b20": sharper(6.0)}, 6.0, ["b1", "b28", "b24", "b20", "a1", "a2", "a1+b1"]),
        # Not where it would be no faster, nor where another plan of the body is taken.
        ({"b1": sharper(10.0, 1.0), "b28": sharper(6.0)}, 10.0, ["b1", "a1", "a2", "a1+b1"]),
        ({"a1": sharper(5.0, 1.0), "a2": sharper(9.0), "a28": sharper(1.0)}, 9.0, ["b1", "a1", "a2", "a1+b1"]),
    ],
)
def test_bodies_are_changed_one_by_one(prices: dict[str, Candidate], best: float, asked: list[str]) -> None:
    leaner = {28.0: ["b28"], 24.0: ["b24"], 20.0: ["b20"]} if any(word > "b2" for word in prices) else {}
    work = Told(prices, leaner)
    assert work.climbed(START, TWO).step_s == best
    assert work.asked == asked


def test_without_room_only_what_takes_as_little_is_sought() -> None:
    work = Told({"b1": sharper(5.0, 1.0)})
    work.room_bytes = 0.0
    work.climbed(START, TWO)
    assert work.within == [20.0]


@pytest.mark.parametrize(
    ("best", "trial", "taken"),
    [
        (sharper(10.0, 1.0), sharper(11.0), True),  # it fits
        (sharper(10.0, 2.0), sharper(11.0, 1.0), False),  # it lacks less, and does not fit either
        (sharper(10.0, 2.0), sharper(9.0, 2.0), True),
        (sharper(10.0, 2.0), sharper(9.0, 3.0), False),
        (sharper(10.0), sharper(11.0), False),
    ],
)
def test_what_is_better(best: Candidate, trial: Candidate, taken: bool) -> None:
    work = Told({"a1": trial})
    assert work.climbed(best, {"a": [Named("a", "a1")]}) is (trial if taken else best)  # type: ignore[list-item]


def test_room_for_a_body_where_there_is_least() -> None:
    """Two stages on the same ranks share what is left there: 60 bytes for three calls and one; 12 bytes for one call
    elsewhere; who does not call it does not count, nor does what is lacking."""
    work: Any = object.__new__(Work)
    here, there, full, idle = (0, 1), (2, 3), (4, 5), (6, 7)
    stages = [SimpleNamespace(ranks=ranks) for ranks in (here, there, here, full, idle)]
    decisions = SimpleNamespace(
        stages=stages, groups=(here, there, full, idle), schedule=SimpleNamespace(microbatches=3)
    )
    work.start = SimpleNamespace(decisions=decisions)
    work.calls = [Counter(a=3), Counter(a=1, b=2), Counter(a=1), Counter(b=1), Counter(c=1)]
    lacks = (-60.0, -12.0, -60.0, 5.0, -1.0)
    best = Candidate(work.decisions, price(1.0, *lacks, stages_s=((1.0, 1.0),) * 5), changed=())
    assert [work.room(best, name) for name in "abc"] == [12.0, 0.0, 1.0]
    work.calls[1] = Counter()
    assert work.room(best, "a") == 15.0
    assert work.flying == 3
    work.decisions.schedule.microbatches = 9
    assert work.flying == 4


def whole_plan(*plans: Named) -> Any:
    """A plan of these body plans."""
    return SimpleNamespace(plans=plans, plan={one.name: one for one in plans})


class Near(Told):
    """Plans that are one choice away, by what the plan stands for."""

    open = ["a", "b"]  # noqa: RUF012  # a property there
    after: dict[str, list[str]]
    over = False
    few = True

    @property
    def kept(self) -> Any:
        """Graphs of one operator each, or of more than are changed one by one."""
        ops = [SimpleNamespace(results=("y",))] * (1 if self.few else MOST_POLISHED)
        graph = SimpleNamespace(differentiable={"y"}, ops=ops)
        return dict.fromkeys(self.open, SimpleNamespace(graph=graph))

    def near(self, plan: Any) -> Any:
        return iter([Named(plan.name, of) for of in self.after.get(plan.of, ())])

    def takes_as_long(self, best: Candidate, name: str, plan: Any) -> bool:
        return False

    def late(self) -> bool:
        return self.over


def test_single_choices_are_changed_as_long_as_one_helps() -> None:
    """From the better plan on; a body of which none helps is gone through once."""

    def made(step_s: float, first: str, second: str) -> Candidate:
        return Candidate(whole_plan(Named("a", first), Named("b", second)), price(step_s), changed=(first, second))

    start = made(10.0, "a0", "b0")
    after = {"a0": ["a1", "a2"], "a1": ["a3"], "a3": ["a1"], "b0": ["b1", "b2"]}
    for told, step_s, asked in (
        ({}, 10.0, ["a1", "a2", "b1", "b2"]),
        ({"a1": made(9.0, "a1", "b0")}, 9.0, ["a1", "a2", "a3", "b1", "b2"]),
        ({"a1": made(9, "a1", "b0"), "a3": made(8, "a3", "b0")}, 8, ["a1", "a2", "a3", "a1", "b1", "b2"]),
        ({"b2": made(7.0, "a0", "b2"), "a2": made(12.0, "a2", "b0")}, 7.0, ["a1", "a2", "b1", "b2"]),
    ):
        work = Near(told)
        work.after = after
        assert work.polished(start).step_s == step_s
        assert work.asked == asked
    for changed in ({"over": True}, {"few": False}):
        work = Near({"a1": made(9.0, "a1", "b0")})
        work.after = after
        for name, value in changed.items():
            setattr(work, name, value)
        assert work.polished(start) is start
        assert work.asked == []
