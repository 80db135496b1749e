"""The timeline of a step: every lane adds up to the step time, and the last one to the prediction's shares."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.step import Step
from meshwright.ir.errors import MeshwrightError, SecondsImpossible
from meshwright.planner.report.facts.timeline import KINDS, Part, Slice, Timeline, timeline_of
from tests.planner.refining import Case

CLUSTER = "2x4xA100"
STACKS = {
    "plain": {},
    "rolling": {"rolling": True},
    "exposed": {"hides": ()},
}


def stepped(model: str, pins: str, stack: str = "plain") -> Step:
    """The step of a configuration of a small decoder on eight ranks."""
    case = Case(model, read_cluster(CLUSTER), seq=512, batch=32)
    made = case.lowered(*case.plan(pins))
    assert made.workload is not None
    own = replace(made.workload.stack, **STACKS[stack])
    return case.evaluator.step(replace(made, workload=replace(made.workload, stack=own)))


def of(step: Step) -> Timeline:
    return timeline_of(step, step.prediction().step_time_s, "1f1b")


def check_lanes(found: Timeline) -> None:
    """Lanes are whole: no gap, no overlap, nothing of another kind, and all of them as long as the step."""
    for lane in found.lanes:
        assert sum(one.seconds for one in lane.slices) == pytest.approx(found.step_s)
        assert lane.slices[-1].end_s - lane.slices[0].start_s == pytest.approx(found.step_s)
        assert sum(lane.by_kind().values()) == pytest.approx(found.step_s)
        for one, following in pairwise(lane.slices):
            assert following.start_s == pytest.approx(one.end_s, abs=1e-9 * found.step_s)
        assert {part.kind for one in lane.slices for part in one.parts} <= set(KINDS)


def check_shares(step: Step, found: Timeline) -> None:
    """On the lane that ends last every share of the step is what the prediction says."""
    shares = dict.fromkeys(dict(step.prediction().shares), 0.0)
    for one in found.lanes[found.last].slices:
        for part in one.parts:
            for name, seconds in part.shares:
                shares[name] += seconds
    assert shares == pytest.approx(dict(step.prediction().shares), rel=1e-9, abs=1e-9 * found.step_s)


PIPELINES = [
    "pp=1,tp=2,dp=4,mbs=1,zero=1,recompute=full",
    "pp=4,tp=2,mbs=1,schedule=gpipe",
    "pp=4,tp=2,mbs=1,schedule=1f1b,recompute=full",
    "pp=2,dp=2,tp=2,vp=2,mbs=1,schedule=interleaved,sp=on",
    "pp=4,dp=2,mbs=2,schedule=zb-h1,zero=1",
    "pp=4,dp=2,mbs=1,schedule=zb-h2",
    "pp=4,dp=2,vp=2,mbs=1,schedule=zbv",
    "pp=2,dp=4,mbs=1,zero=3,recompute=selective",
    "pp=2,dp=4,mbs=1,zero=1,offload=activations",
    "pp=1,dp=8,mbs=2,zero=2,offload=optimizer",
]


@pytest.mark.parametrize("pins", PIPELINES)
def test_every_action_is_there_once_and_lanes_add_up(small: str, pins: str) -> None:
    step = stepped(small, pins)
    found = of(step)
    check_lanes(found)
    check_shares(step, found)
    told = sorted(one.name for lane in found.lanes for one in lane.slices if one.microbatch >= 0)
    listed = sorted(str(action) for _, own in step.program.actions for action in own if action.kind in "FBIW")
    assert told == listed
    assert [lane.ranks for lane in found.lanes] == [ranks for ranks, _ in step.program.actions]


@settings(deadline=None, max_examples=25)
@given(
    pipeline=st.sampled_from((1, 2, 4, 8)),
    tensor=st.sampled_from((1, 2)),
    virtual=st.sampled_from((1, 2)),
    zero=st.sampled_from((0, 1, 3)),
    schedule=st.sampled_from(("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zbv", "dualpipev")),
    recompute=st.sampled_from(("none", "full", "selective")),
    stack=st.sampled_from(sorted(STACKS)),
)
def test_lanes_add_up_whatever_the_plan(
    small: str, pipeline: int, tensor: int, virtual: int, zero: int, schedule: str, recompute: str, stack: str
) -> None:
    """Of groups that roll on, the gather that a group waits for before its first action belongs to the step before."""
    pins = f"pp={pipeline},tp={tensor},vp={virtual},zero={zero},schedule={schedule},recompute={recompute},mbs=1"
    try:
        step = stepped(small, pins, stack)
    except MeshwrightError:
        assume(False)
    found = of(step)
    check_lanes(found)
    if not found.rolling:
        check_shares(step, found)


def test_a_transfer_beside_compute_ends_before_its_value_is_used(small: str) -> None:
    step = stepped(small, "pp=4,dp=2,mbs=1,schedule=1f1b", "plain")
    found = of(replace_hides(step))
    assert len(found.transfers) == 3 * 2 * found.microbatches
    begun = {one.name: one.start_s for lane in found.lanes for one in lane.slices}
    for moved in found.transfers:
        assert moved.end_s > moved.start_s
        kind = moved.name.strip("0123456789")
        microbatch = moved.name.rpartition(kind)[2]
        assert moved.end_s <= begun[f"{moved.target}{kind}{microbatch}"] + 1e-12


def replace_hides(step: Step) -> Step:
    """The same step where transfers run beside compute."""
    workload = replace(step.workload, stack=replace(step.workload.stack, hides=("pipeline",)))
    return Step(step.prices, replace(step.program, workload=workload), workload)


def test_exposed_transfers_take_the_time_of_who_sends(small: str) -> None:
    found = of(stepped(small, "pp=4,dp=2,mbs=1,schedule=1f1b", "exposed"))
    assert not found.transfers
    sent = {
        (lane.group, one.name.strip("0123456789"))
        for lane in found.lanes
        for one in lane.slices
        for part in one.parts
        if "transfers" in dict(part.shares)
    }
    assert sent == {(0, "F"), (1, "F"), (2, "F"), (1, "B"), (2, "B"), (3, "B")}


def test_parts_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(SecondsImpossible, match="0F0"):
        Slice(name="0F0", start_s=0.0, end_s=1.0, parts=(Part("forward", 0.5, ()),))
