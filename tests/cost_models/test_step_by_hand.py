"""What surrounds a step's work lists, in round numbers: seconds of the parts of a real pipeline are put in by hand."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.cost_models.collectives.collective import collective
from meshwright.cost_models.collectives.topology import group_shape, pair_shape
from meshwright.cost_models.cost import Cost, Taken
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.devices import device
from meshwright.cost_models.hardware.parts import Pool, PoolLink
from meshwright.cost_models.hardware.quantity import given, weakest_kind
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.intervals.widths import Widths
from meshwright.cost_models.ledger.ledger import PHASES
from meshwright.cost_models.prediction import SHARES
from meshwright.cost_models.prices import Prices
from meshwright.cost_models.profile import published
from meshwright.cost_models.step import Step
from meshwright.ir.analysis.account import account_fold
from meshwright.ir.names import Degrees
from tests.cost_models.programs import DENSE, SEQ, fold, program

STEP = replace(published().step, covered=0.5, slowdown=0.25, straggling=0.125)
WIDTHS = Widths(dense=0.1, experts=0.4, precision=0, device=0, stack=0, ranks=0)
PROFILE = replace(published(), step=STEP, intervals=replace(published().intervals, widths=WIDTHS))
HIDES = ("gradients", "publish", "parameters", "pipeline")


def step(
    *,
    hides: tuple[str, ...] = HIDES,
    cluster: str = "1x8xA100",
    stack: str = "torch",
    rolling: bool = False,
    **names: Any,
) -> Step:
    made = program(DENSE, Degrees(**{"pp": 2, "microbatches": 4, **names}), stack=stack)
    assert made.workload is not None
    workload = replace(made.workload, stack=replace(made.workload.stack, hides=hides, rolling=rolling))
    own = Step(Prices(read_cluster(cluster), PROFILE), made, workload)
    stages = len(made.stages)
    own.forwards = [Taken(10.0 + index, (("matmul", 9.0), ("tensor", 1.0 + index)), 1.0) for index in range(stages)]
    own.inputs = [Taken(20.0 + index, (("matmul", 20.0 + index),), 2.0) for index in range(stages)]
    own.weights = [Taken(30.0, (("memory-bound", 30.0),), 0.5) for _ in range(stages)]
    own.costs = [
        dict.fromkeys(PHASES, Cost())
        | {
            "sync": Cost(reductions_s=40.0 + index, starts_s=3.0),
            "update": Cost((0.0, 0.0, 7.0)),
            "publish": Cost(gathers_s=8.0, starts_s=2.0),
        }
        for index in range(stages)
    ]
    return own


@pytest.mark.parametrize(
    ("hides", "after_s", "gradients", "publish"),
    [
        # of 43 seconds half of sixty hide all but 2.5 that others take; a quarter of what is hidden is paid
        (HIDES, 60.0, 43 - 27.5 + 0.25 * 27.5, 0.25 * 5),
        (HIDES, 200.0, 0.25 * 43, 0.25 * 5),
        (HIDES, 2.0, 43, 0.25 * 5),
        (("publish",), 60.0, 43, 0.25 * 5),
        (("gradients",), 60.0, 43 - 27.5 + 0.25 * 27.5, 10),
        ((), 60.0, 43, 10),
    ],
)
def test_what_follows_the_list_of_a_group(
    hides: tuple[str, ...], after_s: float, gradients: float, publish: float
) -> None:
    found = step(hides=hides).ending(0, after_s, 1.5)
    assert found == pytest.approx({"gradients": gradients + 1.5, "optimizer": 7, "publish": publish})


def test_what_is_reduced_last_is_behind_nothing() -> None:
    """Nine seconds of the body that runs first, though the backward pass is long."""
    own = step()
    (costs, repeats), *others = own.runs[0]
    own.runs[0] = [(costs | {"sync": Cost(reductions_s=9.0)}, repeats), *others]
    assert own.ending(0, 200.0, 0.0)["gradients"] == pytest.approx(9 + 0.25 * 34)
    own.runs[0] = [(costs | {"sync": Cost(reductions_s=99.0)}, repeats), *others]
    assert own.ending(0, 200.0, 0.0)["gradients"] == 43  # not more than all of them


@pytest.mark.parametrize(
    ("stack", "copies", "bucket"), [("torch", 2, True), ("torch", 1, False), ("megatron", 2, False)]
)
def test_the_last_bucket_of_copies_is_behind_nothing(stack: str, copies: int, *, bucket: bool) -> None:
    own = step(stack=stack, dp=copies)
    own.runs[0] = []
    assert (own.last_reduction_s(0) > 0) == bucket


def test_a_group_of_two_stages_ends_with_both() -> None:
    """82 seconds of reductions and one start, 102 of backward and 22 of forward passes."""
    own = step(vp=2, schedule="interleaved")
    assert own.group_stages(0) == [0, 2]
    assert own.ending(0, 100.0, 0.0) == pytest.approx(
        {"gradients": 85 - (50 - 5) + 0.25 * (50 - 5), "optimizer": 14, "publish": 0.25 * 11}
    )
    short = step(vp=2, schedule="interleaved")
    for costs in short.costs:
        costs |= {"sync": Cost(reductions_s=1.0), "publish": Cost(gathers_s=2.0)}
    assert short.ending(1, 100.0, 0.0) == pytest.approx({"gradients": 0.25 * 2, "optimizer": 14, "publish": 0.25 * 4})


def test_parameters_of_the_step_before_are_gathered_behind_the_first_forward_pass() -> None:
    """Ten seconds behind half of it, less what runs there anyway."""
    own = step(vp=2, schedule="interleaved")
    assert [own.released_s(group) for group in (0, 1)] == [10 - (5 - 1), 10 - (5.5 - 1)]
    own.costs[0]["publish"] = Cost(gathers_s=1.0)
    assert own.released_s(0) == 0
    own.forwards[1] = Taken(1.0, (), 4.0)
    assert own.released_s(1) == 10
    assert step(hides=()).released_s(0) == 0


def test_how_long_before_its_end_a_group_has_gradients() -> None:
    seen: list[tuple[str, ...]] = []

    def last_start_s(kinds: tuple[str, ...]) -> tuple[float, ...]:
        seen.append(kinds)
        return (70.0, 60.0, 80.0, 50.0)

    ran: Any = SimpleNamespace(finish_s=(100.0, 90.0), last_start_s=last_start_s)
    assert step().after_s(ran) == [50, 51]
    assert step(schedule="zb-h1").after_s(ran) == [30, 30]
    assert seen == []
    assert step(vp=2, schedule="interleaved").after_s(ran) == [30, 40]
    assert seen == [("B", "W")]


def test_what_the_simulator_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = {(0, 1): 1.0, (2, 3): 3.0, (1, 0): 4.0, (2, 1): 5.0, (3, 0): 99.0}
    own = step(vp=2, schedule="interleaved")
    monkeypatch.setattr(own, "transfers", lambda: sent)
    told = own.seconds()
    assert (told.forward_s, told.backward_s) == ((10, 11, 12, 13), (50, 51, 52, 53))
    assert (told.input_s, told.weight_s) == ((20, 21, 22, 23), (30, 30, 30, 30))
    assert (told.value_s, told.gradient_s, told.exposed) == ((1, 0, 3), (4, 5, 0), False)
    assert step(hides=()).seconds().exposed


@pytest.mark.parametrize(("step_s", "bubble"), [(1000.0, 1000 - 287.0), (287.0 + 1e-10, 0.0), (200.0, 0.0)])
def test_where_the_step_goes(step_s: float, bubble: float) -> None:
    """Four micro-batches of the first stage; what a rounding leaves is no time."""
    ends = {"gradients": 23.0, "optimizer": 6.0, "publish": 1.0}
    found = step().shares(0, step_s, ends, 11.0, 6.0)
    assert tuple(name for name, _ in found) == SHARES
    assert dict(found) == pytest.approx(
        dict.fromkeys(SHARES, 0.0)
        | {"matmul": 4 * 9 + 4 * 20, "tensor": 4, "memory-bound": 120, "transfers": 11, "bubble": bubble}
        | {"gradients": 23, "optimizer": 6, "publish": 7}
    )


@pytest.mark.parametrize(
    ("words", "step_s"),
    [
        # 130 + 7 + 1.375, and reductions of 44 less half of 51 without 2.5, and a quarter of what that hides
        ({}, 130 + 7 + 1.375 + 44 - 23 + 5.75),
        # not apart: nobody rolls into the next step
        ({"rolling": True}, 165.125),
        # gradients behind weight gradients alone; the first group is last if it ends late without its wait
        ({"rolling": True, "schedule": "zb-h1"}, 100 - 5 + 7 + 1.25 + 43 - 12.5 + 3.125),
        ({"schedule": "zb-h1"}, 130 + 7 + 1.375 + 44 - 12.5 + 3.125),
        # two hosts
        ({"cluster": "4x1xA100"}, 165.125 * 1.125),
    ],
)
def test_the_group_that_ends_last_counts(words: dict[str, Any], step_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    own = step(**words)
    ran = SimpleNamespace(
        finish_s=(100.0, 130.0), begin_s=(5.0, 40.0), sending_s=(1.0, 2.0), release_s=(3.0, 4.0), last_start_s=None
    )
    monkeypatch.setattr(own, "ran", lambda: ran)
    monkeypatch.setattr(own, "tied_s", lambda: [0.0, 0.0])
    found = own.prediction()
    assert found.step_time_s == pytest.approx(step_s)
    assert found.step_time_low_s == pytest.approx(exp(-0.1) * step_s)
    assert found.step_time_high_s == pytest.approx(exp(0.1) * step_s)
    assert found.tokens_per_s_per_gpu == pytest.approx(4 * SEQ / step_s / 2)
    whole = account_fold(fold(DENSE, 1))
    flops = 4 * (whole.forward_flops + whole.backward_flops)
    assert found.mfu == pytest.approx(flops / step_s / (2 * 312e12))
    last = 0 if words.get("rolling") and words.get("schedule") else 1
    assert dict(found.shares)["transfers"] == 1.0 + last
    assert [one.backward_s for one in found.stages] == [50, 51]
    assert [(one.forward_s, one.weight_s, one.ranks) for one in found.stages] == [(10, 30, 1), (11, 30, 1)]


def test_tied_gradients_are_summed_over_the_stages_that_hold_them() -> None:
    """The table of 32,000 times 1,024 on the first and the last of four stages, four bytes each."""
    own = step(pp=4, schedule="1f1b")
    cluster = read_cluster("1x8xA100")
    nbytes = 32_000 * 1024 * own.workload.states.gradient
    alone = collective("all_reduce", nbytes, pair_shape(cluster, (0,), (3,)))
    assert own.tied_s() == [pytest.approx(alone.seconds), 0, 0, pytest.approx(alone.seconds)]
    assert ("collectives", alone.provenance) in own.kinds


@pytest.mark.parametrize("cluster", ["2x2xA100,inter=1G", "1x4xA100", "2x2xA100,inter=3000G"])
@pytest.mark.parametrize(("stack", "sequence_parallel"), [("megatron", False), ("megatron", True), ("torch", False)])
def test_copies_are_sent_in_parts_where_that_is_quicker(cluster: str, stack: str, sequence_parallel: bool) -> None:
    """Of the stream, 1,024 tokens by 1,024 channels in bf16, two ranks hold a copy each, or under sequence parallelism
    half; of the rotary tables, 128 numbers a token, copies."""
    own = step(cluster=cluster, stack=stack, tp=2, sequence_parallel=sequence_parallel)
    where = read_cluster(cluster)
    mesh = own.program.stages[1].mesh
    (axis,) = (axis.name for axis in mesh.axes if axis.size > 1)

    def sent(nbytes: float, target: tuple[int, ...], copies: bool) -> float:
        source = (2, 3) if target == (0, 1) else (0, 1)
        between = pair_shape(where, source, target)
        whole = collective("p2p", nbytes, between).seconds
        if stack != "megatron" or not copies:
            return whole
        inside = group_shape(where, target, mesh, (axis,))
        half = collective("p2p", nbytes / 2, between).seconds
        return min(whole, half + collective("all_gather", nbytes, inside).seconds)

    value, table = SEQ * 1024 * 2 / (2 if sequence_parallel else 1), SEQ * 128 * 2
    assert own.transfers() == {
        (0, 1): pytest.approx(sent(value, (2, 3), not sequence_parallel) + 2 * sent(table, (2, 3), True)),
        (1, 0): pytest.approx(sent(value, (0, 1), not sequence_parallel)),
    }


def test_stages_that_cost_the_same_are_priced_once() -> None:
    """Of four stages of one layer each the two in the middle are alike."""
    own = step(pp=4, schedule="1f1b")
    assert own.first == [0, 1, 1, 3]
    assert own.each(lambda index: 10 * index) == [0, 10, 10, 30]


@pytest.mark.parametrize(
    ("cluster", "peak"), [("1x2xA100", 312e12), ("1x2xV100-32G", 125e12), ("1x2xRTX-4090", None), ("cpu:2", None)]
)
def test_utilisation_is_of_the_peak_in_sixteen_bits(cluster: str, peak: float | None) -> None:
    """bf16, else fp16, else fp32."""
    own = step()
    own.prices = Prices(read_cluster(cluster), published())
    known = dict(read_cluster(cluster).device(0).peaks)
    wanted = known.get("bf16") or known.get("fp16") or known["fp32"]
    assert own.peak_flops_per_s() == 2 * (wanted.value if peak is None else peak)


def test_devices_of_ranks_are_counted_by_kind() -> None:
    """Two H100, three A100 and one H100 more in a pool of its own."""
    pools = tuple(
        Pool(name=name, hosts=1, device=device(gpu), gpus_per_host=count)
        for name, gpu, count in (("a", "H100", 2), ("b", "A100", 3), ("c", "H100", 1))
    )
    links = tuple(
        PoolLink(between=between, kind="roce", rate=given(100, "Gb/s"), latency=given(1e-5, "s"))
        for between in (("a", "b"), ("b", "c"))
    )
    prices = Prices(Cluster(pools=pools, links=links), published())
    assert [(one.name, count) for one, count in prices.counted((5, 0, 1, 2, 4))] == [("H100-80G", 3), ("A100-80G", 2)]
    assert [one.name for one in prices.devices((3,))] == ["A100-80G"]
    assert [(one.name, count) for one, count in Prices(read_cluster("1x4xA100"), published()).counted((0, 3))] == [
        ("A100-80G", 2)
    ]


def test_ranks_wait_for_the_slowest_of_as_many_hosts_as_they_fill() -> None:
    """The smallest hosts of a cluster are counted with, and no more than it has."""
    two = Cluster(
        pools=(
            Pool(name="a", hosts=1, device=device("H100"), gpus_per_host=8),
            Pool(name="b", hosts=3, device=device("A100"), gpus_per_host=2),
        ),
        links=(PoolLink(between=("a", "b"), kind="roce", rate=given(100, "Gb/s"), latency=given(1e-5, "s")),),
    )
    table = [
        (read_cluster("1x8xA100"), {}, 1),
        (read_cluster("2x1xA100"), {}, 2),
        (read_cluster("4x4xA100"), {"dp": 2}, 1),
        (read_cluster("4x4xA100"), {"dp": 4}, 2),
        (two, {}, 1),
        (two, {"tp": 2, "dp": 2}, 4),
        (two, {"dp": 4, "tp": 2}, 4),
        (read_cluster("2x3xA100"), {"dp": 2}, 2),
    ]
    for cluster, names, hosts in table:
        own = step(**names)
        own.prices = Prices(cluster, replace(published(), step=STEP))
        assert own.hosts() == hosts, names
        assert own.straggling == pytest.approx(1 + 0.125 * {1: 0, 2: 1, 4: 2}[hosts])


def test_a_host_that_steps_begins_behind_what_is_left_to_hide_it() -> None:
    """Where reductions run behind the backward pass, copies down follow them there: of sixty seconds, forty are taken,
    or more than there are."""
    for hides, after_s, room_s in ((HIDES, 60.0, 20.0), (HIDES, 35.0, 0.0), (("publish",), 60.0, 0.0)):
        own, asked = step(hides=hides), []

        def ending_s(stages: Any, room_s: float, asked: list[Any] = asked) -> float:
            asked.append((stages, room_s))
            return 17.0

        own.host = SimpleNamespace(ending_s=ending_s)  # type: ignore[assignment]
        found = own.ending(0, after_s, 0.0)
        assert found["host"] == 17.0
        assert asked == [([own.program.stages[0]], room_s)]


def test_some_ranks_of_a_stage_take_what_their_device_takes() -> None:
    """All of a stage's on one kind of device: what every one of its micro-batches takes."""
    made = program(DENSE, Degrees(pp=2, microbatches=4, dp=2))
    assert made.workload is not None
    own = Step(Prices(read_cluster("1x4xA100"), published()), made, made.workload)
    for index, stage in enumerate(made.stages):
        parts = (own.forwards[index], own.inputs[index], own.weights[index])
        for ranks in (stage.ranks, stage.ranks[1:]):
            assert own.seconds_on(index, ranks) == pytest.approx(sum(part.seconds for part in parts), rel=1e-12)


def test_a_price_says_what_it_stands_on() -> None:
    """Of everything the weakest: two steps in all, kernels, wires and devices."""
    own = step()
    own.kinds = [("overlap", "fitted"), ("memory", "datasheet"), ("memory", "assumed")]
    own.costs[1]["forward"] = Cost(kinds=(("kernels", "fitted"), ("collectives", "assumed")))
    own.costs[0]["forward"] = Cost(kinds=(("kernels", "measured"),))
    a100 = device("A100")
    numbers = (a100.memory, a100.memory_bandwidth, *dict(a100.peaks).values())
    assert own.provenance() == (
        ("collectives", "assumed"),
        ("devices", weakest_kind(*(number.kind for number in numbers))),
        ("kernels", "fitted"),
        ("memory", "assumed"),
        ("overlap", "fitted"),
    )
