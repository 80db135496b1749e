"""A plan costs the same when no body is shared: every call as a body of its own, lowered and priced anew.

Of fused stacks, which keep one buffer for like weights of all blocks that are called more than once, time and traffic
only are the same."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from benchmarks.searches import Case, drawn, opened
from meshwright.cost_models.prediction import Prediction
from meshwright.ir.decisions.decisions import BodyPlan, Decisions
from meshwright.ir.errors import MeshwrightError
from meshwright.ir.graph.fold import Body, Fold, FromSegment, Segment, Source
from meshwright.planner.answer.solve import solve
from meshwright.planner.question.pricing import Setting
from tests.planner.solved import TINY, question


def written_out(fold: Fold) -> Fold:
    """The same calls, each of a body that no other call has."""
    calls = list(fold.calls())
    at = {(call.segment, call.position): number for number, call in enumerate(calls)}  # the last repeat's

    def moved(source: Source) -> Source:
        if isinstance(source, FromSegment):
            return FromSegment(at[source.segment, source.position], 0, source.output)
        return source

    segments = []
    for number, call in enumerate(calls):
        entry = tuple(moved(source) for source in call.sources)
        glue = fold.segments[call.segment].glue
        segments.append(Segment((name(call.body.name, number),), (call.path,), entry, (entry,), glue))
    return replace(
        fold,
        bodies=tuple(
            Body(name(call.body.name, number), replace(call.body.graph), call.body.module_class)
            for number, call in enumerate(calls)
        ),
        segments=tuple(segments),
        outputs=tuple(moved(source) for source in fold.outputs),
    )


def name(body: str, call: int) -> str:
    return f"{body}#{call}"


def planned(decisions: Decisions, fold: Fold) -> Decisions:
    """The same choices for the bodies that are written out."""
    bodies = [call.body.name for call in fold.calls()]
    plans: list[BodyPlan] = []
    stages = []
    for index, stage in enumerate(decisions.stages):
        found = decisions.plans_for(index, bodies[stage.first : stage.last])
        own = [
            replace(plan, name=f"{plan.name}#{stage.first + at}", body=name(plan.body, stage.first + at), first=0)
            for at, plan in enumerate(found)
        ]
        plans += own
        stages.append(replace(stage, plans=tuple(plan.name for plan in own)))
    return replace(decisions, plans=tuple(plans), stages=tuple(stages))


def price(setting: Setting, decisions: Decisions, fold: Fold, global_batch: int) -> Prediction:
    return setting.price(setting.lowered(fold, decisions, global_batch))


def check(setting: Setting, decisions: Decisions, fold: Fold, global_batch: int) -> None:
    folded = price(setting, decisions, fold, global_batch)
    alone = price(replace(setting, bodies={}), planned(decisions, fold), written_out(fold), global_batch)
    assert alone.step_time_s == pytest.approx(folded.step_time_s, rel=1e-9)
    for one, other in zip(alone.stages, folded.stages, strict=True):
        if not setting.workload.stack.placeholders:
            assert one.memory.peak_bytes == pytest.approx(other.memory.peak_bytes, rel=1e-9)
        assert one.forward_s + one.backward_s == pytest.approx(other.forward_s + other.backward_s, rel=1e-9)
    assert dict(alone.traffic) == pytest.approx(dict(folded.traffic), rel=1e-9)


CASES = (
    Case(model="llama-3.1-8b", cluster="8x8xH100", batch=128, seq=8192),
    Case(model="gemma-3-1b", cluster="1x8xL40S", batch=32, seq=4096, stack="torch-compile"),
    Case(model="mixtral-8x7b", cluster="8x8xH100", batch=128, seq=4096),
    Case(model="llama-3.1-8b", cluster="2x8xA100", batch=64, seq=4096, stack="megatron"),
)
"""One stack of blocks; a period of six with a rest; experts; kernels that are fused."""
EACH = 3


@pytest.mark.parametrize("case", CASES, ids=str)
def test_plans_by_names(case: Case) -> None:
    own = opened(case)
    seen = 0
    for config in drawn(own.space, Random(3)):
        try:
            decisions = own.setting.decisions(config, case.batch)
        except MeshwrightError:
            continue
        check(own.setting, decisions, own.setting.fold(config), case.batch)
        seen += 1
        if seen == EACH:
            return


def test_a_plan_whose_operators_were_chosen_anew() -> None:
    ask, setting, wished = question(
        TINY, "--cluster", "1x4xA100", "--global-batch", "8", "--seq", "64", "--fix", "tp=2"
    )
    solved = solve(ask, setting, wished)
    assert solved.best is not None
    check(setting, solved.decisions, setting.fold(solved.best.config), solved.global_batch)
