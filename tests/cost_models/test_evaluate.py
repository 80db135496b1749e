"""The evaluator against steps that can be computed by hand: one rank, equal stages, unlike pools, what is hidden."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from math import log2

import pytest

from meshwright.cost_models.collectives.collective import collective
from meshwright.cost_models.collectives.topology import group_shape
from meshwright.cost_models.compute.kernels import Compute
from meshwright.cost_models.cost import attention_of
from meshwright.cost_models.evaluate import Evaluator, evaluate
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.devices import device
from meshwright.cost_models.hardware.parts import PoolLink
from meshwright.cost_models.hardware.quantity import given
from meshwright.cost_models.ledger.ledger import ledger
from meshwright.cost_models.profile import published
from meshwright.ir.analysis.account import account_fold
from meshwright.ir.errors import WorkloadMissing
from meshwright.ir.names import Degrees
from meshwright.ir.program.program import Program
from tests.cost_models.programs import DENSE, MOE, better, fold, own, pool, program

H100, A100 = device("H100"), device("A100")
UNTIED = replace(DENSE, tied_embeddings=False)


def one_host(gpus: int) -> Cluster:
    return Cluster(pools=(pool(H100, 1, gpus),))


# By hand -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", ["torch", "megatron", "jax"])
@pytest.mark.parametrize("microbatches", [1, 3])
def test_one_rank_takes_the_sum_of_its_parts(stack: str, microbatches: int) -> None:
    """Nothing is sent; device seconds or launches, whichever is longer, forward, backward and for weights."""
    made = program(UNTIED, Degrees(microbatches=microbatches, schedule="1f1b"), stack=stack)
    assert made.workload is not None
    runs = made.workload.stack
    prices = Compute(H100, style=runs.style, attention=attention_of(runs), values=published().compute)
    spent = {}
    for phases in (("forward",), ("recompute", "inputs"), ("weights",), ("update",)):
        device_s, launches = 0.0, 0
        for run in made.stages[0].runs:
            for name in run.programs:
                book = ledger(made.body(name), made.workload, accumulates=microbatches > 1)
                for phase in phases:
                    for kernel, count in book.phases[phase].kernels.items():
                        device_s += run.repeats * count * prices.seconds(kernel).seconds
                        launches += run.repeats * count
        spent[phases[-1]] = device_s if phases == ("update",) else max(device_s, launches * prices.host_s)
    found = evaluate(made, one_host(1), published())
    each = spent["forward"] + spent["inputs"] + spent["weights"]
    assert found.step_time_s == pytest.approx(microbatches * each + spent["update"], rel=1e-12)
    assert found.traffic == ()
    assert "collectives" not in dict(found.provenance)


def equal_stages(degrees: Degrees) -> Program:
    """The same layers on every stage, and nothing that crosses."""
    made = program(UNTIED, degrees)
    runs = made.stages[1].runs
    stages = tuple(replace(stage, runs=runs) for stage in made.stages)
    return replace(made, stages=stages, transfers=(), ties=())


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("microbatches", [1, 4, 8])
def test_equal_stages_take_what_the_closed_form_says(schedule: str, microbatches: int) -> None:
    """(m + p - 1) (forward + backward) (Narayanan et al. 2104.04473, section 2.2), then the optimizer."""
    made = equal_stages(Degrees(pp=4, schedule=schedule, microbatches=microbatches))
    found = evaluate(made, one_host(4), published())
    (each,) = {one.forward_s + one.backward_s for one in found.stages}
    shares = dict(found.shares)
    pipeline_s = (microbatches + 3) * each
    assert found.step_time_s == pytest.approx(pipeline_s + shares["optimizer"], rel=1e-12)
    assert shares["bubble"] == pytest.approx(3 * each, rel=1e-9)


def test_zero_bubble_schedules_put_weight_gradients_into_the_bubble() -> None:
    """ZB-H1 of Qi et al. 2401.10241: (p - 1) (F + B - 2 W) or less is left, never more than of 1F1B."""
    plain, split = (
        evaluate(equal_stages(Degrees(pp=4, schedule=name, microbatches=8)), one_host(4), published())
        for name in ("1f1b", "zb-h1")
    )
    assert split.step_time_s < plain.step_time_s
    assert {one.weight_s for one in split.stages} == {one.weight_s for one in plain.stages}


def test_exposed_transfers_have_their_share() -> None:
    hidden, shown = (
        evaluate(program(UNTIED, Degrees(pp=2, microbatches=4), stack=stack), one_host(2), published())
        for stack in ("torch", "megatron-2021")
    )
    assert dict(hidden.shares)["transfers"] == 0 < dict(shown.shares)["transfers"]


# What is hidden ------------------------------------------------------------------------------------------------------


def with_hides(made: Program, hides: tuple[str, ...]) -> Program:
    assert made.workload is not None
    return replace(made, workload=replace(made.workload, stack=replace(made.workload.stack, hides=hides)))


def test_gradients_that_nothing_hides_show_in_full() -> None:
    """One all-reduce for each body's gradients, in the recipe's fp32."""
    made = with_hides(program(UNTIED, Degrees(dp=4)), ())
    cluster = one_host(4)
    (stage,) = made.stages
    expected = 0.0
    for run in stage.runs:
        for name in run.programs:
            body = made.body(name)
            nbytes = 4.0 * sum(body.locals[slot.value].type.elements for slot in body.params if slot.grad)
            shape = group_shape(cluster, stage.ranks, stage.mesh, ("dp",))
            expected += run.repeats * collective("all_reduce", nbytes, shape).seconds
    found = evaluate(made, cluster, published())
    assert dict(found.shares)["gradients"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("gbps", [10.0, 400.0, 1e6])
@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize(
    "degrees",
    [
        Degrees(dp=4),
        Degrees(dp=2, pp=2, microbatches=4),
        Degrees(dp=2, pp=2, vp=2, schedule="interleaved", microbatches=4),
    ],
)
def test_hiding_never_costs_more_than_it_hides(gbps: float, zero: int, degrees: Degrees) -> None:
    """At most what shows is saved; at least the slow-down of compute is left."""
    made = program(UNTIED, replace(degrees, zero=zero))
    cluster = Cluster(pools=(pool(own(H100), 4, 1, gbps),))
    shown = evaluate(with_hides(made, ("pipeline",)), cluster, published())
    hidden = evaluate(with_hides(made, ("pipeline", "gradients", "parameters", "publish")), cluster, published())
    assert hidden.step_time_s <= shown.step_time_s * (1 + 1e-9)
    parts = ("gradients", "parameters", "publish", "bubble")
    assert sum(dict(shown.shares)[name] for name in parts) >= sum(dict(hidden.shares)[name] for name in parts) - 1e-9


def test_ranks_wait_for_the_slowest_of_many_hosts() -> None:
    made = program(UNTIED, Degrees())
    wide = program(UNTIED, Degrees(dp=4))
    near, far = one_host(4), Cluster(pools=(pool(H100, 4, 1, 1e9),))
    step = published().step
    assert evaluate(made, far, published()) == evaluate(made, one_host(1), published())
    calm = replace(published(), step=replace(step, straggling=0.0))
    for cluster, hosts in ((near, 1), (far, 4)):
        grown = evaluate(wide, cluster, published()).step_time_s / evaluate(wide, cluster, calm).step_time_s
        assert grown == pytest.approx(1 + step.straggling * log2(hosts))


# Unlike pools --------------------------------------------------------------------------------------------------------


def two_pools(first: object, second: object, ranks: int) -> Cluster:
    link = PoolLink(between=("one", "two"), kind="ethernet", rate=given(400, "Gb/s"), latency=given(2e-5, "s"))
    pools = (pool(first, 1, ranks, name="one"), pool(second, 1, ranks, name="two"))  # type: ignore[arg-type]
    return Cluster(pools=pools, links=(link,))


def test_the_slower_stage_decides() -> None:
    made = equal_stages(Degrees(pp=2, microbatches=32, schedule="1f1b"))
    fast, mixed, slow = (
        evaluate(made, two_pools(*pair, 1), published()) for pair in ((H100, H100), (H100, A100), (A100, A100))
    )
    assert [one.forward_s for one in mixed.stages] == [fast.stages[0].forward_s, slow.stages[1].forward_s]
    assert fast.step_time_s < mixed.step_time_s <= slow.step_time_s
    each = mixed.stages[1].forward_s + mixed.stages[1].backward_s
    assert mixed.step_time_s >= 32 * each
    assert [one.memory.device_bytes for one in mixed.stages] == [
        found.driver_memory.value for found in (H100, A100) if found.driver_memory
    ]


def test_a_stage_on_unlike_devices_takes_the_slowest_for_each_sort_of_work() -> None:
    """One multiplies slowly, one has little bandwidth: no single one of them decides."""
    made = program(UNTIED, Degrees(dp=2))
    base = Cluster(pools=(pool(own(H100, "base"), 1, 1),)).pools[0].device
    dull = better(Cluster(pools=(pool(base, 1, 1),)), "peaks", 0.5).pools[0].device
    thin = better(Cluster(pools=(pool(base, 1, 1),)), "hbm", 0.5).pools[0].device
    dull, thin = replace(dull, name="dull"), replace(thin, name="thin")
    both = evaluate(made, two_pools(dull, thin, 1), published())
    for one in (dull, thin):
        alike = evaluate(made, two_pools(one, replace(one, name="twin"), 1), published())
        assert both.step_time_s >= alike.step_time_s
    assert both == replace(evaluate(made, two_pools(thin, dull, 1), published()), stages=both.stages)


def test_a_tied_table_costs_a_reduction_over_the_ends_of_the_pipeline() -> None:
    degrees = Degrees(pp=2, microbatches=2)
    tied, loose = (evaluate(program(shape, degrees), one_host(2), published()) for shape in (DENSE, UNTIED))
    table = DENSE.vocab * DENSE.hidden * 4  # in the recipe's fp32
    assert dict(tied.traffic)["island"] - dict(loose.traffic)["island"] == 2 * table
    assert dict(tied.shares)["gradients"] > dict(loose.shares)["gradients"] == 0


# What is remembered --------------------------------------------------------------------------------------------------


def some() -> list[Program]:
    return [
        program(MOE, Degrees(dp=2, ep=2)),
        program(UNTIED, Degrees()),
        program(UNTIED, Degrees(tp=2), stack="megatron", precision="fp8_blockwise"),
    ]


def test_the_order_of_pricing_leaves_no_trace() -> None:
    programs = some()
    alone = [evaluate(one, one_host(2), published()) for one in programs]
    for order in permutations(range(len(programs))):
        evaluator = Evaluator(one_host(2), published())
        found = {index: evaluator(programs[index]) for index in order}
        assert [found[index] for index in range(len(programs))] == alone


def test_two_profiles_and_two_clusters_do_not_mix() -> None:
    made = program(UNTIED, Degrees(dp=2))
    slow = replace(published(), compute=replace(published().compute, kernel_floor_s=1e-3))
    first = Evaluator(one_host(2), published()), Evaluator(one_host(2), slow)
    once = [evaluator(made) for evaluator in first]
    again = [evaluator(made) for evaluator in first]
    assert once == again
    assert once[0].step_time_s < once[1].step_time_s
    faster = better(Cluster(pools=(pool(own(H100), 1, 2),)), "peaks", 4)
    assert evaluate(made, faster, published()).mfu != once[0].mfu
    assert first[0](made) == once[0]


def test_a_program_without_workload_is_refused() -> None:
    with pytest.raises(WorkloadMissing, match="says nothing of its workload"):
        evaluate(replace(program(), workload=None), one_host(1), published())


def test_model_flops_are_counted_once() -> None:
    """Tensor parallel ranks that all normalise, or all route, do not raise the MFU."""
    for degrees in (Degrees(), Degrees(tp=2), Degrees(tp=2, sequence_parallel=True), Degrees(dp=2, ep=2)):
        made = program(MOE, degrees)
        ranks = degrees.tp * degrees.dp
        found = evaluate(made, one_host(ranks), published())
        peak = ranks * H100.peak("bf16").value
        total = found.mfu * found.step_time_s * peak / degrees.dp
        assert total == pytest.approx(_flops_of_one_sequence(), rel=1e-9)


def _flops_of_one_sequence() -> float:
    whole = account_fold(fold(MOE, 1))
    return whole.forward_flops + whole.backward_flops
