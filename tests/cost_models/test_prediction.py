"""Laws of predictions: more of anything never hurts, identical hosts are alike, and what is told adds up."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cost_models.evaluate import evaluate
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.devices import device
from meshwright.cost_models.hardware.quantity import KINDS
from meshwright.cost_models.prediction import HELD, SHARES, Prediction
from meshwright.cost_models.profile import published
from meshwright.ir.graph.graph import ITEMSIZE
from meshwright.ir.names import Degrees
from meshwright.ir.program.program import BodyProgram, Move, Program, Ring
from meshwright.ir.program.reading import parse_program
from meshwright.ir.program.text import program_text
from meshwright.ir.sharding.reshard import traffic_bytes
from meshwright.ir.target.workload import Recipe
from tests.cost_models.programs import DENSE, MORE, Case, better, cases, clusters_of, own, pairs_of, pool, program

SLACK = 1 + 1e-9


def priced(program: Program, cluster: Cluster) -> Prediction:
    return evaluate(program, cluster, published())


@st.composite
def settings_of(draw: st.DrawFn) -> tuple[Case, Cluster]:
    case = draw(cases())
    return case, draw(clusters_of(case.ranks))


# More never hurts ----------------------------------------------------------------------------------------------------


@settings(max_examples=12)
@given(settings_of(), st.sampled_from([1.01, 1.3, 2.0, 10.0]))
def test_more_of_anything_is_never_worse(setting: tuple[Case, Cluster], factor: float) -> None:
    case, cluster = setting
    before = priced(case.program, cluster)
    for what in MORE:
        after = priced(case.program, better(cluster, what, factor))
        assert after.step_time_s <= before.step_time_s * SLACK, what
        assert after.fits or not before.fits, what
        assert after.traffic == before.traffic


@settings(max_examples=10)
@given(st.data(), st.sampled_from(MORE), st.sampled_from([1.01, 1.5, 4.0]))
def test_more_of_one_pool_is_never_worse(data: st.DataObject, what: str, factor: float) -> None:
    """Whichever of two unlike pools, and whichever group was the slowest before."""
    case = data.draw(cases().filter(lambda case: case.ranks > 1))
    cluster = data.draw(pairs_of(case.ranks))
    before = priced(case.program, cluster)
    for chosen in cluster.pools:
        grown = better(replace(cluster, pools=(chosen,), links=()), what, factor).pools[0]
        pools = tuple(grown if one is chosen else one for one in cluster.pools)
        after = priced(case.program, replace(cluster, pools=pools))
        assert after.step_time_s <= before.step_time_s * SLACK
        assert after.fits or not before.fits


@settings(max_examples=15)
@given(settings_of(), st.data())
def test_identical_hosts_may_change_places(setting: tuple[Case, Cluster], data: st.DataObject) -> None:
    case, cluster = setting
    (pool,) = cluster.pools
    rack = pool.hosts_per_island  # hosts of one rack are not like hosts of another
    racks = -(-pool.hosts // rack)
    order = data.draw(st.permutations(range(racks))) if pool.hosts % rack == 0 else range(racks)
    hosts = [unit * rack + host for unit in order for host in range(rack)]

    def moved(ranks: tuple[int, ...]) -> tuple[int, ...]:
        size = pool.gpus_per_host
        return tuple(hosts[rank // size] * size + rank % size for rank in ranks)

    program = case.program
    stages = tuple(replace(stage, ranks=moved(stage.ranks)) for stage in program.stages)
    actions = tuple((moved(ranks), actions) for ranks, actions in program.actions)
    assert priced(replace(program, stages=stages, actions=actions), cluster) == priced(program, cluster)


# What is told adds up ------------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(settings_of())
def test_what_is_told_adds_up(setting: tuple[Case, Cluster]) -> None:
    case, cluster = setting
    found = priced(case.program, cluster)
    assert tuple(name for name, _ in found.shares) == SHARES
    assert sum(share_s for _, share_s in found.shares) == pytest.approx(found.step_time_s, rel=1e-12)
    assert min(share_s for _, share_s in found.shares) >= -1e-12 * found.step_time_s
    assert found.step_time_low_s <= found.step_time_s <= found.step_time_high_s
    assert 0 < found.mfu < 1
    for ranks, _ in case.program.actions:
        own = [one for one, stage in zip(found.stages, case.program.stages, strict=True) if stage.ranks == ranks]
        busy_s = sum(one.forward_s + one.backward_s for one in own) * case.program.microbatches
        assert busy_s <= found.step_time_s * SLACK
    for one in found.stages:
        assert 0 <= one.weight_s <= one.backward_s
        assert tuple(name for name, _ in one.memory.parts) == HELD
        assert sum(size for _, size in one.memory.parts) == pytest.approx(one.memory.peak_bytes, rel=1e-12)
        assert one.memory.capacity_bytes == one.memory.device_bytes - one.memory.margin_bytes
    names = dict(found.provenance)
    assert set(names.values()) <= set(KINDS)
    moved = {"collectives"} if set(dict(found.traffic)) - {"host"} else set()
    waits = {"host"} if case.degrees.offload != "none" else set()
    assert set(names) - {"collectives"} == {"devices", "kernels", "memory", "overlap"} | waits
    assert moved <= set(names)


def received(program: Program) -> float:
    """Bytes that all ranks receive, by executing every rank's list of actions."""
    assert program.workload is not None
    total = 0.0
    for ranks, actions in program.actions:
        for action in actions:
            if action.stage < 0:
                continue
            names = [name for _, name in program.stages[action.stage].calls()]
            lists = {"F": ("forward",), "B": ("backward",), "I": ("backward",)}.get(action.kind, ())
            for name in names:
                body = program.body(name)
                for which in lists:
                    total += len(ranks) * sum(one_rank(body, program.workload.states, which))
            if action.kind in "FBI":
                total += len(ranks) * sum(k.nbytes for name in names for k in program.body(name).kept if k.host)
            if action.kind.startswith("recv"):
                total += len(ranks) * handed_over(program, action.stage, action.peer, action.kind == "recv_B")
    for stage in program.stages:
        for _, name in stage.calls():
            for which in ("sync", "publish"):
                total += len(stage.ranks) * sum(one_rank(program.body(name), program.workload.states, which))
            total += len(stage.ranks) * stepped_on_the_host(program.body(name), program.workload.states)
    return total + tied(program)


def stepped_on_the_host(body: BodyProgram, states: Recipe) -> float:
    """Gradients down and parameters up, of every shard that a rank has the optimizer's state of."""
    found = 0.0
    for slot in body.params:
        if slot.host and slot.updated:
            shard = body.locals[slot.updated]
            elements = prod(shard.placement.local_shape(shard.type.shape, body.mesh))
            found += elements * (states.gradient + states.stored)
    return found


def one_rank(body: BodyProgram, states: Recipe, which: str) -> list[float]:
    found = []
    for statement in getattr(body, which):
        if isinstance(statement, Move):
            local = body.locals[statement.operand]
            width = float(ITEMSIZE[local.type.dtype])
            if local.type.floating:
                recipe = {"parameter": states.used, "sync": states.reduced, "update": states.used}
                width = recipe.get(statement.reason, width)
            nbytes = prod(local.placement.local_shape(local.type.shape, body.mesh)) * width
            found.append(traffic_bytes(statement.step, nbytes, body.mesh))
        if isinstance(statement, Ring):
            n = body.mesh.axis(statement.axis).size
            keys = [body.locals[name] for name in statement.operands[1:3]]
            nbytes = sum(
                prod(one.placement.local_shape(one.type.shape, body.mesh)) * ITEMSIZE[one.type.dtype] for one in keys
            )
            found.append(nbytes * (2 * n - 1 if statement.backward else n - 1))
    return found


def handed_over(program: Program, to_stage: int, from_stage: int, backward: bool) -> float:
    found = 0.0
    for hop in program.transfers:
        ends = (hop.to_stage, hop.from_stage) if backward else (hop.from_stage, hop.to_stage)
        if ends == (from_stage, to_stage) and (hop.differentiable or not backward):
            placement = hop.source if backward else hop.target
            mesh = program.stages[to_stage].mesh
            found += prod(placement.local_shape(hop.type.shape, mesh)) * ITEMSIZE[hop.type.dtype]
    return found


def tied(program: Program) -> float:
    """Each holder sends its gradient of the one tied parameter to the other: the table, in the precision that
    gradients travel in, cut as its own stage cuts it."""
    assert program.workload is not None
    found = 0.0
    for tie in program.ties:
        stages = [program.stages[stage] for stage, _ in tie.holders]
        if len({stage.ranks for stage in stages}) > 1:
            for stage, (_, call) in zip(stages, tie.holders, strict=True):
                body = program.body(dict(stage.calls())[call])
                (local,) = (body.locals[str(slot.grad)] for slot in body.params if slot.grad and slot.path in tie.path)
                elements = prod(local.placement.local_shape(local.type.shape, body.mesh))
                found += len(stage.ranks) * elements * program.workload.states.reduced
    return found


@settings(max_examples=20)
@given(settings_of())
def test_traffic_is_what_the_actions_move(setting: tuple[Case, Cluster]) -> None:
    case, cluster = setting
    found = priced(case.program, cluster)
    assert sum(nbytes for _, nbytes in found.traffic) == pytest.approx(received(case.program), rel=1e-12)


@settings(max_examples=8)
@given(settings_of())
def test_a_program_read_from_its_text_costs_the_same(setting: tuple[Case, Cluster]) -> None:
    case, cluster = setting
    assert priced(parse_program(program_text(case.program)), cluster) == priced(case.program, cluster)


@pytest.mark.parametrize("name", ["H100-80G", "H200", "A100-80G", "MI300X"])
@pytest.mark.parametrize(
    "degrees",
    [Degrees(tp=8, sequence_parallel=True), Degrees(dp=8, zero=3), Degrees(dp=8, zero=1), Degrees(pp=4, dp=2)],
)
def test_a_device_of_ones_own_is_never_worse_than_what_it_surpasses(name: str, degrees: Degrees) -> None:
    """Also where something was measured on the other: the same numbers are the same price, larger ones no higher."""
    made = program(replace(DENSE, heads=16, kv_heads=8), degrees)
    known = priced(made, Cluster(pools=(pool(device(name), 1, 8),)))
    alike = Cluster(pools=(pool(own(device(name)), 1, 8),))
    assert priced(made, alike).step_time_s == known.step_time_s
    for what in MORE:
        for factor in (1.01, 1.5, 4.0):
            assert priced(made, better(alike, what, factor)).step_time_s <= known.step_time_s * SLACK
