"""What becomes of the best configurations: which are taken up, what is tried with each, and what is taken at last.
Prices are told, and so is what refining makes of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.ir.errors import LayersIndivisible, ScheduleImpossible
from meshwright.planner.answer import finalists
from meshwright.planner.answer.finalists import finished
from meshwright.planner.question.constraints import Constraints
from meshwright.planner.question.pins import Config
from meshwright.planner.refine import order
from meshwright.planner.refine.candidate import Candidate
from meshwright.planner.refine.improvement import Bench
from meshwright.planner.refine.operators import operators
from meshwright.planner.refine.operators.arrangements import Arranged
from meshwright.planner.refine.operators.operators import Operators
from meshwright.planner.refine.order import FITTING, PLACING
from meshwright.planner.refine.schedule import OwnSchedule
from meshwright.planner.refine.uneven import Uneven
from meshwright.planner.search.search import Found
from tests.planner.told import config, price


@dataclass(frozen=True)
class Staged:
    ranks: tuple[int, ...]
    axes: int = 1

    @property
    def mesh(self) -> Any:
        return SimpleNamespace(axes=range(self.axes), size=len(self.ranks))


@dataclass(frozen=True)
class Plan:
    """Stages on ranks of their own, and what was made of them."""

    stages: tuple[Staged, ...]
    name: str = ""

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        return tuple(stage.ranks for stage in self.stages)


@dataclass(frozen=True)
class Setup:
    """A model of which every configuration can be had, but with three layers on the first stage."""

    ranks: int = 8
    modules: tuple[str, ...] = ()
    axes: int = 1
    price: Any = lambda lowered: price(7.0)
    asked: list[tuple[int, Config]] = field(default_factory=list)

    @property
    def target(self) -> Any:
        return SimpleNamespace(layouts=(SimpleNamespace(name="shares"),))

    def fold(self, own: Config) -> Config:
        return own

    def decisions(self, own: Config, global_batch: int) -> Plan:
        if own.stage_blocks[:1] == (3,):
            raise LayersIndivisible(place="here", cause="three", fix="two")
        self.asked.append((self.ranks, own))
        each = self.ranks // own.pp
        return Plan(tuple(Staged(tuple(range(at * each, (at + 1) * each)), self.axes) for at in range(own.pp)))

    def lowered(self, fold: Config, plan: Plan, global_batch: int) -> tuple[Config, Plan]:
        return fold, plan


@dataclass
class Told:
    """A search that has ended."""

    found: dict[Config, Found]
    best: Found | None
    setting: Setup = field(default_factory=Setup)
    unlike: bool = False
    schedules: tuple[str, ...] = ()
    unwritten: tuple[Any, ...] = ()
    granted: Callable[[Config], bool] = lambda one: True
    asked: list[Any] = field(default_factory=list)
    priced: list[Config] = field(default_factory=list)

    @property
    def upper_s(self) -> float:
        return self.best.step_s if self.best else inf

    @property
    def prices(self) -> Any:
        return SimpleNamespace(cluster=SimpleNamespace(heterogeneous=self.unlike, pools=(1, 2), ranks=8))

    @property
    def space(self) -> Any:
        lines = tuple(SimpleNamespace(name=name) for name in self.schedules)
        return SimpleNamespace(global_batch=64, grants=self.granted, target=SimpleNamespace(schedules=lines))

    def writes(self, own: Config, plan: Plan, prediction: Any) -> bool:
        self.asked.append((own, prediction.step_time_s))
        return prediction.step_time_s not in self.unwritten

    def price(self, own: Config) -> Found | None:
        self.priced.append(own)
        return self.found.get(own)


def search(*found: tuple[Config, float, float], **changes: Any) -> Any:
    """Configurations with their seconds and the bytes that they lack; the answer is the quickest that fits."""
    priced = {own: Found(own, price(step_s, lacks)) for own, step_s, lacks in found}
    fitting = [one for one in priced.values() if one.fits]
    best = min(fitting, key=lambda one: one.step_s, default=None)
    return Told(priced, best, **changes)


def asked(modules: tuple[str, ...] = (), operators: bool = False, never: Any = None, **only: Any) -> Any:
    return SimpleNamespace(constraints=Constraints(only, never or {}), modules=modules, operators=operators)


def never() -> bool:
    return False


# Which are taken up --------------------------------------------------------------------------------------------------


def test_the_best_of_every_kind_the_best_kinds_first() -> None:
    """Kinds differ in tp, pp, cp and ep; what does not fit, and what takes a twentieth longer, is left alone."""
    rows = [
        (config(tp=2), 1.02, 0.0),
        (config(tp=2, mbs=2), 1.01, 0.0),
        (config(pp=2), 1.05, 0.0),
        (config(cp=2), 1.051, 0.0),
        (config(ep=2), 1.0, 0.0),
        (config(ep=4), 0.5, 1.0),
        (config(dp=2), 1.04, 0.0),
    ]
    expected = [config(ep=2), config(tp=2, mbs=2), config(dp=2)]
    assert finalists.finalists(search(*rows)) == expected
    assert finalists.finalists(search(*reversed(rows))) == expected
    assert finalists.finalists(search(*rows[:2], *rows[3:5])) == expected[:2]
    # Of unlike devices prices say less: what is slower is looked at too, and at last what does not fit.
    unlike = search(*rows[:4], rows[5], unlike=True)
    assert finalists.finalists(unlike) == [config(tp=2, mbs=2), config(pp=2), config(cp=2), config(ep=4)]
    more = search(*rows, unlike=True)
    assert finalists.finalists(more) == [*expected, config(pp=2)]


def test_what_is_asked_of_modules_lets_slower_kinds_in() -> None:
    rows = [(config(tp=2), 1.0, 0.0), (config(tp=4), 1.25, 0.0), (config(tp=8), 1.26, 0.0)]
    assert finalists.finalists(search(*rows)) == [config(tp=2)]
    pinned = search(*rows, setting=Setup(modules=("pin",)))
    assert finalists.finalists(pinned) == [config(tp=2), config(tp=4)]


def test_where_nothing_fits_those_that_lack_least_are_taken() -> None:
    rows = [(config(tp=2), 1.0, 9.0), (config(tp=4), 9.0, 1.0), (config(tp=8), 5.0, 1.0), (config(pp=2), 9.0, 3.0)]
    assert finalists.finalists(search(*rows)) == [config(tp=8), config(tp=4), config(pp=2)]


def test_of_equals_the_first_by_its_words_is_taken() -> None:
    one, other = config(tp=2, mbs=1), config(tp=2, mbs=2)
    assert str(one) < str(other)
    for rows in (((one, 1.0, 0.0), (other, 1.0, 0.0)), ((other, 1.0, 0.0), (one, 1.0, 0.0))):
        assert finalists.finalists(search(*rows)) == [one]


def test_what_the_fullest_stage_lacks() -> None:
    two = ((1.0, 1.0), (1.0, 1.0))
    assert price(1.0, -5.0, -6.0, stages_s=two).lacks_bytes == 0
    assert price(1.0, 3.0, 4.0, stages_s=two).lacks_bytes == 4
    assert price(1.0, -9.0, 4.0, stages_s=two).lacks_bytes == 4


def refined(step_s: float, lacks: float = 0.0, **changes: Any) -> Candidate:
    own: dict[str, Any] = {"config": config(pp=2), "counts": (1, 1), "idle": (), "shares": {}}
    own |= {"decisions": Plan((Staged((0, 1)), Staged((2, 3))), f"{step_s}"), "origin": config(pp=2)} | changes
    prediction = price(step_s, lacks, **own.pop("shares"))
    return Candidate(prediction=prediction, **own)


@pytest.mark.parametrize(
    ("plans", "unwritten", "expected", "questions"),
    [
        ([(3.0, 0), (2.0, 0), (2.5, 0)], (), 2.0, [2.0]),
        ([(3.0, 0), (2.0, 0), (2.5, 0)], (2.0,), 2.5, [2.0, 2.5]),
        ([(2.0, 0), (2.5, 0)], (2.0, 2.5), None, [2.0, 2.5]),
        ([(2.0, 1), (4.0, 0)], (), 4.0, []),  # what is no better than the answer is not taken, nor asked about
        ([(2.0, 1), (3.0, 2)], (), 2.0, []),  # nor what does not fit
        ([], (), None, []),
    ],
)
def test_the_best_that_code_is_written_for(
    plans: list[tuple[float, float]], unwritten: Any, expected: float | None, questions: list[float]
) -> None:
    own = search((config(tp=2), 4.0, 0.0), unwritten=unwritten)
    found = Bench(own).written([refined(*one) for one in plans])
    assert (found and found.step_s) == expected
    assert own.asked == [(config(pp=2), one) for one in questions]


def test_code_is_written_for_the_configuration_or_what_it_was_made_of() -> None:
    own = search((config(tp=2), 4.0, 0.0))
    Bench(own).written([refined(2.0, config=None, origin=config(cp=2)), refined(3.0)])
    Bench(own).written([refined(2.0, config=config(ep=2), origin=config(cp=2))])
    assert own.asked == [(config(cp=2), 2.0), (config(ep=2), 2.0)]


# What becomes of them ------------------------------------------------------------------------------------------------


@dataclass
class Makers:
    """Stands in for all that makes something of a plan; says what it was asked."""

    refined: list[Candidate] = field(default_factory=list)
    placed: list[Candidate] = field(default_factory=list)
    sharper: dict[str, float] = field(default_factory=dict)
    """Seconds of plans by name, with operators chosen anew."""
    uneven: Any = None
    made: Candidate | None = None
    notes: tuple[str, ...] = ()
    contexts: tuple[str, ...] = ()
    improved_of: list[Any] = field(default_factory=list)
    placed_of: list[Any] = field(default_factory=list)
    sharpened_of: list[Any] = field(default_factory=list)
    uneven_of: list[Any] = field(default_factory=list)
    custom_of: list[Any] = field(default_factory=list)

    def improve(self, plans: Any, steps: Any, bench: Bench) -> list[Candidate]:
        """What fits is told; all else is done."""
        if steps is PLACING:
            self.placed_of.append([one.config for one in plans])
            return self.placed or list(plans)
        if steps is FITTING:
            self.improved_of.append([one.config for one in plans])
            plans, steps = self.refined, FITTING[2:]
        return order.improved(plans, steps, bench)


@pytest.fixture
def makers(monkeypatch: pytest.MonkeyPatch) -> Makers:
    own = Makers()

    def chosen(
        self: Operators, start: Candidate, bench: Bench, *, free_interfaces: bool, free_copies: bool
    ) -> Candidate:
        plan: Any = start.decisions
        own.sharpened_of.append((plan.name, bench.fold(start), free_interfaces, free_copies))
        step_s = own.sharper.get(plan.name)
        if step_s is None:
            return start
        return replace(start, decisions=replace(plan, name="sharp"), prediction=price(step_s), changed=("b",))

    def unequal(self: Uneven, plan: Candidate, bench: Bench) -> Iterator[Candidate]:
        own.uneven_of.append(plan.step_s)
        return iter([own.uneven] if own.uneven else [])

    def customise(self: OwnSchedule, plan: Any, bench: Bench) -> Iterator[Candidate]:
        names: list[Any] = [one.decisions.name or one.step_s for one in self.among]  # type: ignore[attr-defined]
        own.custom_of.append((names, bench.asked.constraints.made_only, not bench.layers_asked))
        bench.notes.extend(own.notes)
        assert own.made is None or bench.writes(own.made)
        return iter([own.made] if own.made else [])

    monkeypatch.setattr(finalists, "improved", own.improve)
    monkeypatch.setattr(Operators, "chosen", chosen)
    monkeypatch.setattr(Uneven, "neighbours", unequal)
    monkeypatch.setattr(OwnSchedule, "neighbours", customise)
    monkeypatch.setattr(Arranged, "accepts", lambda self, plan, bench: False)
    monkeypatch.setattr(operators, "contexts", lambda plan, fold: own.contexts)
    monkeypatch.setattr("meshwright.planner.refine.improvement.counts_of", lambda plan, fold: (2, 2))
    monkeypatch.setattr("meshwright.planner.refine.improvement.idle_ranks", lambda plan, cluster: (7,))
    return own


ANSWER = (config(tp=2), 4.0, 0.0)


def test_refined_plans_are_sharpened_from_the_best_on(makers: Makers) -> None:
    """Of three plans the best; of all three where something is asked of modules."""
    makers.refined = [refined(3.0), refined(1.0), refined(2.0)]
    found, notes = finished(search(ANSWER), asked(), never)
    assert found == makers.refined[1]
    assert notes == ()
    assert makers.improved_of == [[config(tp=2)]]
    assert makers.sharpened_of == [("1.0", config(pp=2), True, True)]
    assert makers.custom_of == []
    makers.sharper = {"3.0": 0.5}
    assert finished(search(ANSWER), asked(), never)[0] == makers.refined[1]
    found, _ = finished(search(ANSWER), asked(modules=("pin",)), never)
    assert found is not None
    assert (found.step_s, found.changed, found.decisions.name) == (0.5, ("b",), "sharp")  # type: ignore[attr-defined]
    assert [name for name, *_ in makers.sharpened_of[2:]] == ["1.0", "2.0", "3.0"]


@pytest.mark.parametrize("name", ["split", "stage_blocks"])
def test_layers_that_were_asked_for_stay(makers: Makers, name: str) -> None:
    """Then ranks are placed, and nothing else is done; what is no better than the answer is not taken."""
    own = search(ANSWER, schedules=("custom",))
    assert finished(own, asked(**{name: ("even",)}), never) == (None, ())
    assert (makers.improved_of, makers.sharpened_of, makers.uneven_of) == ([], [], [])
    assert makers.placed_of == [[config(tp=2)]]
    assert makers.custom_of == [([4.0], False, False)]
    makers.placed = [refined(3.0)]
    assert finished(own, asked(**{name: ("even",)}), never) == (makers.placed[0], ())


def test_only_what_is_better_than_the_answer_is_taken(makers: Makers) -> None:
    for plan, taken in ((refined(4.0), False), (refined(3.9), True), (refined(3.0, 1.0), False)):
        makers.refined = [plan]
        assert finished(search(ANSWER), asked(), never)[0] == (plan if taken else None)
    makers.refined = []
    assert finished(search(ANSWER), asked(), never) == (None, ())


@pytest.mark.parametrize(
    ("setting", "wished", "axes", "sharpened"),
    [
        (Setup(), asked(), 2, True),
        (Setup(), asked(), 3, False),
        (Setup(), asked(operators=True), 3, True),
        (Setup(), asked(modules=("pin",)), 3, True),
        (Setup(), asked(operators=True), 4, False),
        (Setup(), asked(), 0, False),
    ],
)
def test_on_how_many_axes_operators_are_chosen_anew(
    makers: Makers, setting: Setup, wished: Any, axes: int, sharpened: bool
) -> None:
    """Of the stage with most."""
    plan = Plan((Staged((0, 1), axes), Staged((2, 3), 0)), "wide")
    makers.refined = [refined(1.0, decisions=plan)]
    finished(search(ANSWER, setting=setting), wished, never)
    assert bool(makers.sharpened_of) == sharpened


def test_what_has_no_origin_or_no_time_is_not_sharpened(makers: Makers) -> None:
    makers.refined = [refined(1.0, origin=None)]
    finished(search(ANSWER), asked(), never)
    makers.refined = [refined(1.0)]
    finished(search(ANSWER), asked(), lambda: True)
    assert makers.sharpened_of == []


@pytest.mark.parametrize(
    ("wished", "free_interfaces", "free_copies"),
    [
        (asked(), True, True),
        (asked(sp=(False,)), False, True),
        (asked(cp=(2,)), False, True),
        (asked(tp=(2,)), False, True),
        (asked(dp=(2,)), True, False),
        (asked(ep=(2,)), True, False),
        (asked(shard=(2,)), True, False),
        (asked(zero=(1,)), True, False),
        (asked(zero=(0,)), True, True),
        (asked(never={"zero": (0,)}), True, False),
    ],
)
def test_what_was_asked_for_is_not_chosen_anew(
    makers: Makers, wished: Any, free_interfaces: bool, free_copies: bool
) -> None:
    makers.refined = [refined(1.0)]
    finished(search(ANSWER, setting=Setup()), wished, never)
    assert makers.sharpened_of == [("1.0", config(pp=2), free_interfaces, free_copies)]


def test_attention_stays_as_it_was_asked_for(makers: Makers) -> None:
    makers.refined, makers.sharper, makers.contexts = [refined(2.0)], {"2.0": 1.0}, ("all_gather", "ring")
    for wished, step_s in ((asked(), 1.0), (asked(context=("ring",)), 2.0), (asked(never={"context": ("ring",)}), 2.0)):
        found, _ = finished(search(ANSWER), wished, never)
        assert found is not None
        assert found.step_s == step_s


def test_what_is_sharper_and_not_written_is_left(makers: Makers) -> None:
    makers.refined, makers.sharper = [refined(2.0)], {"2.0": 1.0}
    found, _ = finished(search(ANSWER, unwritten=(1.0,)), asked(), never)
    assert found == makers.refined[0]
    found, _ = finished(search(ANSWER, unwritten=(1.0, 2.0)), asked(), never)
    assert found is None


# Of plans whose ranks tell each other much ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zero", "granted", "fits", "tensor", "asked_for"),
    [
        (3, True, True, 5.0, 2),
        (0, True, True, 5.0, 1),
        (3, False, True, 5.0, 1),
        (3, True, False, 5.0, 1),
        (3, True, True, 0.0, 1),
    ],
)
def test_nothing_stored_in_shards_is_tried_where_that_is_much_to_tell(
    makers: Makers, zero: int, granted: bool, fits: bool, tensor: float, asked_for: int
) -> None:
    own, whole = config(pp=2, dp=4, zero=zero, shard=2, regather=False), config(pp=2, dp=4)
    shares = {"shares": {"tensor": tensor, "matmul": 1.0}}
    makers.refined = [refined(1.0, config=own, origin=own, **shares)]
    one = search(ANSWER, (whole, 3.0, 0.0 if fits else 1.0), granted=lambda config: granted)
    finished(one, asked(), never)
    assert [name for name, *_ in makers.sharpened_of] == ["1.0", ""][:asked_for]
    assert one.priced == ([whole] if zero and granted and tensor else [])


# Unequal shares, and stages without layers ---------------------------------------------------------------------------


def test_unequal_shares_are_tried_beside_the_best(makers: Makers) -> None:
    """What comes out has no origin, and is not sharpened."""
    decisions: Any = Plan((Staged((0,)), Staged((1,))), "uneven")
    makers.uneven = Candidate(decisions, price(0.5), config=config(dp=2))
    makers.refined = [refined(2.0), refined(1.0, 1.0)]
    found, _ = finished(search(ANSWER), asked(), never)
    assert makers.uneven_of == [2.0]
    assert found == makers.uneven
    assert makers.sharpened_of == []


def test_where_a_stage_has_no_layers_all_else_of_the_kind_is_tried_so(makers: Makers) -> None:
    """Other micro-batches and schedules on the same ranks, the quickest first; its own origin is not made again."""
    start = config(pp=2, dp=4)
    others = [replace(start, mbs=2), replace(start, schedule="gpipe"), replace(start, zero=1)]
    unlike = [replace(start, tp=2, dp=2), replace(start, pp=4, dp=2), replace(start, dp=2), config(pp=2, dp=4, vp=2)]
    rows = [(one, 5.0 + at, 0.0) for at, one in enumerate([start, *others, *unlike])]
    lowered: list[Any] = []

    def priced(one: Any) -> Any:
        lowered.append(one)
        return price(0.5 if one[0].mbs == 2 else 6.0)

    seats = Plan((Staged((4, 5, 6, 7)), Staged((0, 1, 2, 3))), "moved")
    makers.refined = [
        refined(
            1.0, decisions=seats, config=replace(start, stage_blocks=(0, 4)), origin=start, counts=(0, 4), idle=(9,)
        )
    ]
    told = search(*rows, setting=Setup(ranks=16, price=priced))
    found, _ = finished(told, asked(), never)
    assert [one for one, _ in lowered] == [replace(one, stage_blocks=(0, 4)) for one in others]
    assert {plan.groups for _, plan in lowered} == {seats.groups}
    assert {ranks for ranks, one in told.setting.asked if one.stage_blocks} == {8}
    made = lowered[0][1]
    assert found == Candidate(
        made, price(0.5), (0, 4), (9,), config=replace(others[0], stage_blocks=(0, 4)), origin=others[0]
    )
    lowered.clear()
    finished(search(*rows, setting=Setup(price=priced)), asked(), lambda: True)
    makers.refined = [replace(makers.refined[0], counts=(3, 0), config=replace(start, stage_blocks=(3, 0)))]
    finished(search(*rows, setting=Setup(price=priced)), asked(), never)  # the model refuses three
    makers.refined = [replace(makers.refined[0], counts=(0, 4), config=None)]
    finished(search(*rows, setting=Setup(price=priced)), asked(), never)
    makers.refined = [refined(1.0, counts=(1, 3))]
    finished(search(*rows, setting=Setup(price=priced)), asked(), never)
    assert lowered == []


# A schedule of their own ---------------------------------------------------------------------------------------------


def test_a_schedule_is_made_for_the_best_that_is_written_and_what_is_behind(makers: Makers) -> None:
    makers.refined = [refined(1.0), refined(2.0), refined(3.0)]
    makers.made, makers.notes = refined(0.5, custom=SimpleNamespace()), ("one was too large",)
    own = search(ANSWER, schedules=("1f1b", "custom"), unwritten=(1.0,))
    assert finished(own, asked(), never) == (makers.made, makers.notes)
    assert makers.custom_of == [(["2.0", "3.0"], False, True)]
    makers.made = None
    assert finished(own, asked(), never) == (makers.refined[1], makers.notes)
    makers.custom_of.clear()
    finished(search(ANSWER, schedules=("1f1b",)), asked(), never)
    finished(own, asked(schedule=("1f1b",)), never)
    finished(own, asked(never={"schedule": ("custom",)}), never)
    assert makers.custom_of == []


def test_one_that_was_asked_for_is_taken_though_it_is_slower(makers: Makers) -> None:
    """Beside plans of one stage, which need none."""
    makers.refined = [refined(1.0)]
    made = makers.made = refined(9.0, custom=SimpleNamespace())
    own = search(ANSWER, (config(pp=2, mbs=2), 6.0, 0.0), schedules=("custom",))
    wished = asked(schedule=("custom",))
    assert finished(own, wished, never) == (made, ())
    assert makers.custom_of == [(["1.0", 6.0], True, True)]
    makers.made = replace(made, custom=None)
    assert finished(own, wished, never) == (None, ())
    makers.made = replace(made, prediction=price(9.0, 1.0))
    assert finished(own, wished, never) == (None, ())
    alone = refined(3.0, decisions=Plan((Staged((0, 1, 2, 3)),), "alone"), config=config(tp=4), origin=config(tp=4))
    makers.refined, makers.made = [refined(1.0), alone], made
    assert finished(own, wished, never) == (alone, ())


def test_one_that_was_asked_for_and_cannot_be_is_told(makers: Makers) -> None:
    makers.refined, wished = [refined(1.0)], asked(schedule=("custom",))
    pipeline = (config(pp=2, mbs=4), 2.0, 0.0)
    with pytest.raises(ScheduleImpossible, match="the target runs no such lists"):
        finished(search(ANSWER, pipeline, schedules=("custom",)), wished, never)
    makers.notes = ("one", "other")
    with pytest.raises(ScheduleImpossible, match="one; other"):
        finished(search(ANSWER, pipeline, schedules=("custom",)), wished, never)
    assert finished(search(ANSWER, schedules=("custom",)), wished, never) == (None, makers.notes)
    assert finished(search((config(pp=2), 4.0, 1.0), schedules=("custom",)), wished, never) == (None, makers.notes)
