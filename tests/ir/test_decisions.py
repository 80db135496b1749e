"""Decisions by themselves: which plan is for which call, and what is refused with which words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from meshwright.ir.decisions.decisions import BodyPlan, Decisions, Schedule, StagePlan, Storage, verify_decisions
from meshwright.ir.errors import (
    BodyUnknown,
    BodyUnplanned,
    CallsRepeated,
    CallsUncovered,
    MeshUnfilled,
    MeshwrightError,
    PlannedOpUnknown,
    PlannedValueUnknown,
    PlanRepeated,
    PlanUnknown,
    RanksOverlap,
    ScheduleImpossible,
    StageEmpty,
    StoredParamUnknown,
)
from meshwright.ir.graph.fold import Fold
from meshwright.ir.graph.text import parse_fold
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement, State

PAIR = Mesh.parse("dp=2")


def stage(first: int, last: int, ranks: tuple[int, ...], *plans: str, mesh: Mesh = PAIR) -> StagePlan:
    return StagePlan(first, last, mesh, ranks, plans)


def names(plans: list[BodyPlan]) -> list[str]:
    return [plan.name for plan in plans]


def test_plans_for_first_calls_take_so_many_of_each_stage() -> None:
    """Calls are counted by body; of several plans for all calls the one listed first is taken."""
    plans = (BodyPlan("a.first", "a", first=2), BodyPlan("a", "a"), BodyPlan("b", "b"), BodyPlan("b.more", "b"))
    one = stage(0, 6, (0, 1), "a.first", "b", "a", "b.more")
    other = stage(6, 9, (2, 3), "a", "a.first", "b.more", "b")
    made = Decisions(plans, (one, other))
    assert names(made.plans_for(0, "ababaa")) == ["a.first", "b", "a.first", "b", "a", "a"]
    assert names(made.plans_for(1, "aba")) == ["a", "b.more", "a"]
    plain = Decisions(plans[1:], (stage(0, 3, (0, 1), "b.more", "a", "b"),))
    assert names(plain.plans_for(0, "bab")) == ["b.more", "a", "b.more"]
    assert [made.plan_for(0, "a", call).name for call in (0, 1, 2)] == ["a.first", "a.first", "a"]
    once = replace(made, plans=(replace(plans[0], first=1), *plans[1:]))
    assert [one.plan_for(0, "a").name for one in (made, once)] == ["a.first", "a.first"], "for its first call"
    assert names(once.plans_for(0, "aa")) == ["a.first", "a"]
    for wanted, calls in ((made, "c"), (plain, "c"), (Decisions(plans[:1], (stage(0, 3, (0, 1), "a.first"),)), "aaa")):
        with pytest.raises(BodyUnplanned) as refusal:
            wanted.plans_for(0, calls)
        assert (refusal.value.place, refusal.value.cause) == ("stage 0", f"body {calls[0]!r} runs here without a plan")


def test_what_a_plan_leaves_out_is_idle_and_gathered_again() -> None:
    plan = BodyPlan("a", "a", (("x", Strategy.parse("dp=d0")), ("y", Strategy())))
    assert [plan.strategy(op) for op in ("x", "y", "z")] == [Strategy.parse("dp=d0"), Strategy(), Strategy()]
    assert (plan.regather, plan.first, plan.states, plan.storage, plan.recompute) == (True, 0, (), (), ())
    assert Schedule() == Schedule("gpipe", 1, ())


def test_stages_share_all_ranks_or_none() -> None:
    """Groups are in order of their first stage."""
    ranks = ((2, 3), (0, 1), (2, 3), (0, 1))
    made = Decisions((BodyPlan("a", "a"),), tuple(stage(at, at + 1, own, "a") for at, own in enumerate(ranks)))
    assert made.groups == ((2, 3), (0, 1))
    assert made.plan == {"a": BodyPlan("a", "a")}


A, B = BodyPlan("a", "a"), BodyPlan("b", "b")
PLACED = Storage("w", *(Placement.parse("[-]"),) * 3)
REFUSED: dict[str, tuple[Callable[[], object], type[MeshwrightError], str, str]] = {
    "two strategies": (
        lambda: BodyPlan("a", "a", tuple((op, Strategy.parse("dp=d0")) for op in "xyyx")),
        PlanRepeated, "plan a", "it has a strategy for %y twice",
    ),
    "two states": (
        lambda: BodyPlan("a", "a", states=(("x", State.replicated(1)),) * 2),
        PlanRepeated, "plan a", "it has a state for %x twice",
    ),
    "two storages": (
        lambda: BodyPlan("a", "a", storage=(PLACED, replace(PLACED, path="v"), PLACED)),
        PlanRepeated, "plan a", "it has storage for w twice",
    ),
    "twice again": (
        lambda: BodyPlan("a", "a", recompute=("x", "y", "x")),
        PlanRepeated, "plan a", "it has recomputation of %x twice",
    ),
    "two plans": (lambda: Decisions((A, B, B), ()), PlanRepeated, "plans", "two are named 'b'"),
    "a plan twice in a stage": (
        lambda: Decisions((A, B), (stage(0, 1, (0, 1), "a"), stage(1, 2, (0, 1), "b", "b"))),
        PlanRepeated, "stage 1", "it names plan 'b' twice",
    ),
    "no such plan": (
        lambda: Decisions((A, B), (stage(0, 1, (0, 1), "a", "c"),)), PlanUnknown, "stage 0", "there is no plan 'c'",
    ),
    "ranks too few": (
        lambda: Decisions((A,), (stage(0, 1, (0,), "a"),)),
        MeshUnfilled, "stage 0", "1 different ranks for a mesh of 2",
    ),
    "a rank too many, and twice": (
        lambda: Decisions((A,), (stage(0, 1, (0, 1, 1), "a"),)),
        MeshUnfilled, "stage 0", "2 different ranks for a mesh of 2",
    ),
    "a rank twice": (
        lambda: Decisions((A,), (stage(0, 1, (1, 1), "a"),)),
        MeshUnfilled, "stage 0", "1 different ranks for a mesh of 2",
    ),
    "other meshes on the same ranks": (
        lambda: Decisions((A,), (stage(0, 1, (4, 3), "a"), stage(1, 2, (4, 3), "a", mesh=Mesh.parse("tp=2")))),
        RanksOverlap, "stage 1", "it shares rank 3 with another stage of a different mesh",
    ),
    "a rank of a stage before the last": (
        lambda: Decisions((A,), tuple(stage(at, at + 1, own, "a") for at, own in enumerate(((0, 1), (2, 3), (1, 4))))),
        RanksOverlap, "stage 2", "it shares rank 1 with another stage of a different mesh",
    ),
    "no micro-batch": (
        lambda: Decisions((A,), (), Schedule(microbatches=0)), ScheduleImpossible, "schedule", "0 micro-batches",
    ),
}  # fmt: skip


def test_decisions_that_contradict_themselves_are_refused() -> None:
    for name, (made, kind, place, cause) in REFUSED.items():
        with pytest.raises(kind) as refusal:
            made()
        assert (refusal.value.place, refusal.value.cause) == (place, cause), name


FOLD: Fold = parse_fold("""fold
  input %x: f32[4]
  body a
    input %x: f32[4]
    param %w: f32[4] = "w"
    %y: f32[4] = mul(%x, %w)
    output %y
  segment 0 a x 4
    paths "l."[0..3]
    entry %x
    wire 0 previous.0
  output previous.0
""")
UNFIT: dict[str, tuple[tuple[BodyPlan, ...], list[tuple[int, int]], type[MeshwrightError], str, str, str]] = {
    "no such body": (
        (A, BodyPlan("b", "b")), [(0, 4)], BodyUnknown, "plan b", "the model has no body 'b'", "use one of a",
    ),
    "a gap": ((A,), [(0, 1), (2, 4)], CallsUncovered, "stage 1", "it runs calls 2..4", "start at call 1"),
    "a call twice": ((A,), [(0, 2), (1, 4)], CallsRepeated, "stage 1", "it runs calls 1..4", "start at call 2"),
    "no call": (
        (A,), [(0, 0), (0, 4)], StageEmpty, "stage 0", "it runs calls 0..0", "give it at least one call, or drop it",
    ),
    "backwards": (
        (A,), [(0, 2), (2, 1)], StageEmpty, "stage 1", "it runs calls 2..1", "give it at least one call, or drop it",
    ),
    "too few": (
        (A,), [(0, 2), (2, 3)],
        CallsUncovered, "stages", "the last stage ends at call 3 of 4", "end it at the last call",
    ),
    "too many": (
        (A,), [(0, 5)], CallsUncovered, "stages", "the last stage ends at call 5 of 4", "end it at the last call",
    ),
    "no such operator": (
        (replace(A, strategies=(("x", Strategy.parse("dp=d0")),)),), [(0, 4)],
        PlannedOpUnknown, "plan a", "there is no operator %x", "name ops of the body",
    ),
    "no such value": (
        (replace(A, states=(("z", State.replicated(1)),)),), [(0, 4)],
        PlannedValueUnknown, "plan a", "there is no value %z", "name values of the body",
    ),
    "no such value again": (
        (replace(A, recompute=("y", "z")),), [(0, 4)],
        PlannedValueUnknown, "plan a", "there is no value %z", "name values of the body",
    ),
    "no such parameter": (
        (replace(A, storage=(PLACED, replace(PLACED, path="l.w"))),), [(0, 4)],
        StoredParamUnknown, "plan a", "there is no parameter 'l.w'", "name parameters of the body",
    ),
}  # fmt: skip


def test_decisions_that_do_not_fit_the_model_are_refused() -> None:
    for name, (plans, ranges, kind, place, cause, fix) in UNFIT.items():
        stages = [stage(first, last, (2 * at, 2 * at + 1), "a") for at, (first, last) in enumerate(ranges)]
        with pytest.raises(kind) as refusal:
            verify_decisions(Decisions(plans, tuple(stages)), FOLD)
        assert (refusal.value.place, refusal.value.cause, refusal.value.fix) == (place, cause, fix), name
    plan = replace(A, storage=(PLACED,), recompute=("y",), strategies=(("y", Strategy.parse("dp=d0")),))
    verify_decisions(Decisions((plan,), (stage(0, 3, (0, 1), "a"), stage(3, 4, (2, 3), "a"))), FOLD)


def test_every_copy_and_state_must_lie_on_the_mesh() -> None:
    """An axis that the mesh has not, in each place where one may be named."""
    away = Placement.parse("[tp]")
    wrong = [
        (replace(A, storage=(Storage("w", away, PLACED.grads, PLACED.optimizer),)), "plan a, w"),
        (replace(A, storage=(Storage("w", PLACED.params, away, PLACED.optimizer),)), "plan a, w"),
        (replace(A, storage=(Storage("w", PLACED.params, PLACED.grads, away),)), "plan a, w"),
        (replace(A, states=(("y", State.parse("[tp]")),)), "plan a, %y"),
        (replace(A, strategies=(("y", Strategy.parse("tp=d0")),)), "plan a, %y"),
    ]
    for plan, place in wrong:
        made = Decisions((plan,), (stage(0, 4, (0, 1), "a"),))
        with pytest.raises(MeshwrightError) as refusal:
            verify_decisions(made, FOLD)
        assert refusal.value.place.startswith(place), plan
