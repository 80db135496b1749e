"""Lowering makes the collectives that an expert would write, and no others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from meshwright.ir.decisions.decisions import BodyPlan, Decisions, StagePlan
from meshwright.ir.errors import PlannedValueUnknown
from meshwright.ir.graph.text import parse_fold
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.lower import BodyCache, lower, without_loops
from meshwright.ir.program.lower_body import Lowering, lower_body
from meshwright.ir.program.program import BodyProgram, Program
from meshwright.ir.same import Same
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.target.workload import STACKS, Workload
from meshwright.ir.verify.meaning import verify_body_meaning
from meshwright.ir.verify.programs import verify_body
from tests.llama_block import block, megatron, model
from tests.models import perceptron_fold

CUDA = Lowering()


def collectives(program: BodyProgram, axis: str) -> Counter[str]:
    """Kinds of the value and gradient collectives along an axis, one forward and backward run."""
    return Counter(move.step.kind for move in program.moves() if axis in move.step.axes)


def test_tensor_parallel_block_has_four_all_reduces() -> None:
    program = lower_body(block(), megatron("tp"), Mesh.parse("tp=2"), CUDA)
    verify_body(program)
    verify_body_meaning(program, block())
    assert collectives(program, "tp") == {"all_reduce": 4}
    forward = [s for s in program.forward if s in program.moves()]
    assert len(forward) == 2


def test_sequence_parallel_block_has_four_gathers_and_four_scatters() -> None:
    program = lower_body(block(), megatron("tp", sequence=True), Mesh.parse("tp=2"), CUDA)
    verify_body(program)
    assert collectives(program, "tp") == {"all_gather": 4, "reduce_scatter": 4}


def test_data_parallel_axis_moves_nothing_in_a_block() -> None:
    program = lower_body(block(), megatron("tp", data="dp"), Mesh.parse("dp=2 tp=2"), CUDA)
    assert collectives(program, "dp") == {}
    assert collectives(program, "tp") == {"all_reduce": 4}


def test_a_body_whose_calls_disagree_on_their_loops_is_given_what_others_leave() -> None:
    """The first of equal layers reads what a product made, the others what a norm did: between them it lies whole."""
    fold = perceptron_fold()
    decisions = template(fold, Degrees(tp=2))
    lower(fold, decisions)
    assert {str(state) for plan in decisions.plans[1:3] for _, state in plan.states} == {"[-, -]"}


def test_full_recomputation_repeats_no_collective_that_no_derivative_reads() -> None:
    """One all-gather before the attention and one before the ffn, and the reduce-scatter between; the sum that ends the
    block is not made again, as torch's checkpoint stops before it."""
    graph, plan = block(), megatron("tp", sequence=True)
    values = (*(item.value for item in graph.inputs), *(value for op in graph.ops for value in op.results))
    program = lower_body(graph, replace(plan, recompute=values), Mesh.parse("tp=2"), CUDA)
    verify_body(program)
    verify_body_meaning(program, graph)
    assert collectives(program, "tp") == {"all_gather": 4 + 2, "reduce_scatter": 4 + 1}


@pytest.mark.parametrize(("pp", "last", "hidden"), [(1, True, True), (2, True, False), (2, False, True)])
def test_in_a_pipeline_that_reduces_last_nothing_hides_reductions(pp: int, last: bool, hidden: bool) -> None:
    stack = STACKS["torch"]
    workload = Workload(global_batch=8, seq=16, stack=stack)
    fold = model()
    decisions = template(fold, Degrees(dp=2, pp=pp, microbatches=2))
    program = lower(fold, decisions, replace(CUDA, reduces_last=last), workload)
    assert program.workload is not None
    hides = program.workload.stack.hides
    assert hides == (stack.hides if hidden else tuple(name for name in stack.hides if name != "gradients"))
    assert replace(program.workload.stack, hides=stack.hides) == stack


def test_bodies_from_a_cache() -> None:
    """Programs are the same with a cache, and body programs are made once per plan, mesh and lowering."""
    fold, cache = model(), BodyCache()
    for pp in (1, 2):
        for zero in (0, 3):
            decisions = template(fold, Degrees(dp=2, tp=2, pp=pp, zero=zero))
            assert lower(fold, decisions, cache=cache) == lower(fold, decisions)
    assert len(cache) == 2 * len(fold.bodies)
    lower(fold, template(fold, Degrees(dp=2, tp=2)), Lowering(device="cpu"), cache=cache)
    assert len(cache) == 3 * len(fold.bodies)


def test_wrong_plans_are_refused_every_time() -> None:
    """What was valid once is not checked again; what was not is."""
    fold = model()
    decisions = template(fold, Degrees(tp=2))
    plan = replace(decisions.plans[0], recompute=("nowhere",))
    for _ in range(2):
        with pytest.raises(PlannedValueUnknown):
            lower(fold, replace(decisions, plans=(plan, *decisions.plans[1:])))


SKIPPING = parse_fold("""fold
  input %t: i64[2]
  input %m: f32[2, 8]
  body embed
    input %t: i64[2]
    param %w: f32[4, 8] = "w"
    %h: f32[2, 8] = embedding(%w, %t)
    output %h
  body a
    input %x: f32[2, 8] grad
    param %w: f32[8, 8] = "q"
    %y: f32[2, 8] = linear(%x, %w)
    output %y
  body b
    input %x: f32[2, 8] grad
    input %m: f32[2, 8]
    %y: f32[2, 8] = add(%x, %m)
    %s: f32[2, 8] = neg(%m)
    output %y, %s
  body head
    input %x: f32[2, 8] grad
    input %early: f32[2, 8] grad
    input %s: f32[2, 8]
    param %w: f32[4, 8] = "w"
    %u: f32[2, 8] = add(%x, %early)
    %v: f32[2, 8] = add(%u, %s)
    %z: f32[2, 4] = linear(%v, %w)
    output %z
  segment 0 glue embed x 1
    paths ""
    entry %t
    wire 0
  segment 1 a, b x 2
    paths "l."[0..3]
    entry previous.0
    wire 0 previous.0
    wire 1 previous.0, %m
  segment 2 glue head x 1
    paths ""
    entry previous.0, segment 0[0].0, segment 1[1].1
    wire 0
  output previous.0
""")


def cut_at(*starts: int) -> Program:
    """Stages that begin at these calls, each on one rank."""
    plans = tuple(BodyPlan(name, name) for name in ("embed", "a", "b", "head"))
    calls = [call.body.name for call in SKIPPING.calls()]
    stages = tuple(
        StagePlan(first, last, Mesh.parse(""), (rank,), tuple(dict.fromkeys(calls[first:last])))
        for rank, (first, last) in enumerate(pairwise((*starts, 6)))
    )
    return lower(SKIPPING, Decisions(plans, stages))


def test_what_crosses_stages_is_handed_on_from_each_to_the_next() -> None:
    """Calls: embed, a, b, a, b, head. The head reads what embed made three stages before, and of the last b what has no
    gradient."""
    made = cut_at(0, 1, 4, 5)
    assert [(hop.call, hop.output, hop.from_stage, hop.to_stage, hop.differentiable) for hop in made.transfers] == [
        (0, 0, 0, 1, True),
        (0, 0, 1, 2, True),
        (0, 0, 2, 3, True),
        (3, 0, 1, 2, True),
        (4, 0, 2, 3, True),
        (4, 1, 2, 3, False),
    ]
    assert [(one.name, str(one.type), str(one.placement)) for one in made.entries] == [
        ("t", "i64[2]", "[-]"), ("m", "f32[2, 8]", "[-, -]"),
    ]  # fmt: skip
    assert [(tie.path, tie.holders) for tie in made.ties] == [("w", ((0, 0), (3, 5)))]
    # Gradients go back where values came from, but for the last, which has none.
    (_, first), (_, second), (_, third), (_, fourth) = made.actions
    assert " ".join(map(str, first)) == "0F0 0send_F0>1 0recv_B0<1 0B0 sync step"
    assert " ".join(map(str, second)) == "1recv_F0<0 1F0 1send_F0>2 1recv_B0<2 1B0 1send_B0>0 sync step"
    assert " ".join(map(str, third)) == "2recv_F0<1 2F0 2send_F0>3 2recv_B0<3 2B0 2send_B0>1 sync step"
    assert " ".join(map(str, fourth)) == "3recv_F0<2 3F0 3B0 3send_B0>2 sync step"


def test_whole_periods_are_runs_and_what_is_left_of_one_runs_by_itself() -> None:
    def runs(*starts: int) -> list[list[tuple[tuple[str, ...], int, int]]]:
        return [[(run.programs, run.repeats, run.first_call) for run in stage.runs] for stage in cut_at(*starts).stages]

    both = ("a", "b")
    assert runs(0) == [[(("embed",), 1, 0), (both, 2, 1), (("head",), 1, 5)]]
    assert runs(0, 1, 4, 5) == [
        [(("embed",), 1, 0)], [(both, 1, 1), (("a",), 1, 3)], [(("b",), 1, 4)], [(("head",), 1, 5)],
    ]  # fmt: skip
    assert runs(0, 2) == [
        [(("embed",), 1, 0), (("a",), 1, 1)], [(("b",), 1, 2), (both, 1, 3), (("head",), 1, 5)],
    ]  # fmt: skip


def test_loops_over_experts_are_grouped_in_stages() -> None:
    """Of all operators, those that say so lose it; a body without any is what it was."""
    plain = block()
    told = tuple(replace(op, attrs=(*op.attrs, ("looped", True))) if at == 1 else op for at, op in enumerate(plain.ops))
    looped = replace(plain, ops=told)
    assert looped != plain
    assert without_loops(Same(looped)) == plain
    assert without_loops(Same(plain)) is plain
