"""What waits on the host: bytes against the action lists, seconds against little simulations, and laws."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cost_models.evaluate import Evaluator, evaluate
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.devices import device
from meshwright.cost_models.offload import flow_s, host_constants, streamed_s
from meshwright.cost_models.prediction import Prediction
from meshwright.cost_models.profile import published
from meshwright.ir.errors import HostUnknown
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.lower import lower
from meshwright.ir.program.lower_body import Lowering
from meshwright.ir.program.program import Program, Stage
from meshwright.ir.target.workload import STACKS, Workload
from tests.cost_models.programs import (
    DENSE,
    OFFLOADS,
    SHAPES,
    Case,
    better,
    cases,
    clusters_of,
    fold,
    own,
    pool,
    program,
)

SLACK = 1 + 1e-9


@cache
def cluster(name: str = "H100-80G", hosts: int = 1) -> Cluster:
    return Cluster(pools=(pool(own(device(name)), hosts, 4),))


def priced(made: Program, where: Cluster | None = None) -> Prediction:
    return evaluate(made, where or cluster(), published())


def kept_on_host(made: Program, stage: Stage) -> float:
    return float(sum(k.nbytes for _, name in stage.calls() for k in made.body(name).kept if k.host))


# Bytes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
@pytest.mark.parametrize("offload", OFFLOADS)
def test_bytes_are_those_of_the_action_lists(schedule: str, offload: str) -> None:
    """Down after every F, up before every B or I; gradients down and parameters up with the one step of a group."""
    made = program(DENSE, Degrees(dp=2, pp=2, zero=1, microbatches=4, schedule=schedule, offload=offload))
    assert made.workload is not None
    states, expected = made.workload.states, 0.0
    for ranks, actions in made.actions:
        for action in actions:
            if action.kind in "FBI":
                expected += len(ranks) * kept_on_host(made, made.stages[action.stage])
            if action.kind == "step":
                own_stages = [stage for stage in made.stages if stage.ranks == ranks]
                bodies = [made.body(name) for stage in own_stages for _, name in stage.calls()]
                for body, slot in ((one, slot) for one in bodies for slot in one.params if slot.host):
                    shape = slot.optimizer.local_shape(body.locals[slot.value].type.shape, body.mesh)
                    expected += len(ranks) * prod(shape) * (states.gradient + states.stored)
    assert dict(priced(made).traffic)["host"] == pytest.approx(expected, rel=1e-12)


def test_what_leaves_the_device_is_on_the_host() -> None:
    """GPipe: one micro-batch more in flight holds as much less on the device as it holds more on the host."""
    counts, found = (3, 4), {}
    for offload in ("none", "activations"):
        made = [
            program(DENSE, Degrees(pp=2, microbatches=count, schedule="gpipe", offload=offload)) for count in counts
        ]
        less, more = (priced(one).stages[0].memory for one in made)
        parts = [dict(memory.parts) for memory in (less, more)]
        found[offload] = parts[1]["activations"] - parts[0]["activations"], more.host_bytes - less.host_bytes
        assert made[0].stages[0].runs
        each = kept_on_host(made[0], made[0].stages[0])
        assert found[offload][1] == each
    assert found["none"][0] - found["activations"][0] == pytest.approx(found["activations"][1])


def test_state_on_the_host_is_the_state_that_the_device_had() -> None:
    """Beside it lie gradients that have come down, and what is stepped."""
    untied = replace(DENSE, tied_embeddings=False)
    plain, there = (program(untied, Degrees(dp=4, zero=1, offload=offload)) for offload in ("none", "optimizer"))
    (before,), (after,) = (priced(one).stages for one in (plain, there))
    assert dict(after.memory.parts)["optimizer"] == 0
    assert there.workload is not None
    states, moments = there.workload.states, there.workload.moments
    assert not states.master  # else that would be the copy of the parameters that the host steps
    elements = dict(before.memory.parts)["optimizer"] / moments
    assert after.memory.host_bytes == pytest.approx(elements * (states.stored + moments + states.gradient))


# Seconds -------------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 10), min_size=3, max_size=3), st.integers(1, 40))
def test_a_stream_is_a_pipeline_of_three(seconds: list[float], parts: int) -> None:
    """Against the recurrence: a part enters a place when it has left the one before, and the part before has too."""
    ends = [0.0, 0.0, 0.0]
    for _ in range(parts):
        at = 0.0
        for place, whole in enumerate(seconds):
            at = ends[place] = max(at, ends[place]) + whole / parts
    assert streamed_s(*seconds, parts) == pytest.approx(ends[-1], rel=1e-9, abs=1e-12)


@given(st.lists(st.tuples(st.floats(0, 10) | st.just(0.0), st.floats(0, 10)), max_size=12))
def test_a_flow_of_two_machines_takes_its_longest_path(calls: list[tuple[float, float]]) -> None:
    """A path: copies up to some call that has one, kernels from there on; or kernels alone."""
    paths = [sum(copy for copy, _ in calls[: at + 1]) + sum(run for _, run in calls[at:]) for at in range(len(calls))]
    longest = [path for path, (copy, _) in zip(paths, calls, strict=True) if copy]
    assert flow_s(calls) == pytest.approx(max([*longest, sum(run for _, run in calls)], default=0.0))


@pytest.mark.parametrize("offload", ["activations", "activations:1", "activations:3"])
@pytest.mark.parametrize("host", [0.01, 0.3, 1.0, 3.0, 100.0])
def test_a_stage_waits_for_its_copies(offload: str, host: float) -> None:
    """Played through, call by call and copy by copy."""
    made, plain = (
        program(DENSE, Degrees(pp=2, microbatches=2, schedule="1f1b", offload=one)) for one in (offload, "none")
    )
    where = better(cluster(), "host", host)
    rate = host_constants()[0] * where.pools[0].device.host_link.share_bytes_per_s
    evaluator = Evaluator(where, published())
    assert made.workload is not None
    for stage, after, before in zip(made.stages, evaluator(made).stages, priced(plain, where).stages, strict=True):
        bodies = [made.body(name) for _, name in stage.calls()]
        copies = [sum(k.nbytes for k in body.kept if k.host) / rate for body in bodies]
        assert after.forward_s == pytest.approx(max(before.forward_s, sum(copies)))
        link = device_s = 0.0
        for body, copy_s in zip(reversed(bodies), reversed(copies), strict=True):
            cost = evaluator.prices.costs(evaluator.prices.ledger(body, made.workload, True), stage, made.workload)
            link += copy_s
            start = max(link, device_s) if copy_s else device_s
            device_s = start + sum(cost[phase].device_s for phase in ("recompute", "inputs", "weights"))
        assert after.backward_s == pytest.approx(max(before.backward_s, device_s))


def test_devices_behind_one_switch_share_the_way() -> None:
    a100, h100 = device("A100").host_link, device("H100").host_link
    assert a100.share_bytes_per_s == a100.bandwidth.value / 2
    assert h100.share_bytes_per_s == h100.bandwidth.value


def test_a_host_of_unknown_memory_cannot_step() -> None:
    made = program(DENSE, Degrees(offload="optimizer"))
    with pytest.raises(HostUnknown, match="host_memory_gb_per_s"):
        priced(made, Cluster(pools=(pool(device("L40S"), 1, 1),)))


# Laws ----------------------------------------------------------------------------------------------------------------


def without(case: Case) -> Case:
    return replace(case, degrees=replace(case.degrees, offload="none"))


@st.composite
def settings_of(draw: st.DrawFn) -> tuple[Case, Cluster]:
    case = draw(cases())
    case = replace(case, degrees=replace(case.degrees, offload=draw(st.sampled_from(OFFLOADS))))
    return case, draw(clusters_of(case.ranks))


@settings(max_examples=25)
@given(settings_of(), st.sampled_from([1.01, 2.0, 50.0]))
def test_a_faster_host_never_hurts_and_offload_never_takes_memory(setting: tuple[Case, Cluster], factor: float) -> None:
    case, where = setting
    found, plain = priced(case.program, where), priced(without(case).program, where)
    assert priced(case.program, better(where, "host", factor)).step_time_s <= found.step_time_s * SLACK
    for after, before in zip(found.stages, plain.stages, strict=True):
        assert after.memory.peak_bytes <= before.memory.peak_bytes * SLACK
        assert after.forward_s * SLACK >= before.forward_s
        assert after.backward_s * SLACK >= before.backward_s
        assert before.memory.host_bytes == 0 < after.memory.host_bytes


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_offload_of_nothing_changes_nothing(shape: str) -> None:
    """An optimizer without state, on a host of which nothing is known."""
    workload = Workload(global_batch=2, seq=1024, optimizer="sgd", recipe="bf16", stack=STACKS["torch"])
    model = fold(SHAPES[shape], 2)
    made = [
        lower(model, template(model, Degrees(dp=2, offload=offload)), Lowering().for_stack(workload.stack), workload)
        for offload in ("none", "optimizer")
    ]
    where = Cluster(pools=(pool(device("L40S"), 1, 2),))
    assert made[0] == made[1]
    assert priced(made[0], where) == priced(made[1], where)
