"""Lowering makes the collectives that an expert would write, and no others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from meshwright.ir.errors import PlannedValueUnknown
from meshwright.ir.lower import BodyCache, lower
from meshwright.ir.lower_body import Lowering, lower_body
from meshwright.ir.mesh import Mesh
from meshwright.ir.names import Degrees, template
from meshwright.ir.program import BodyProgram
from meshwright.ir.verify_meaning import verify_body_meaning
from meshwright.ir.verify_program import verify_body
from tests.llama_block import block, megatron, model

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


def test_full_recomputation_repeats_no_collective_that_no_derivative_reads() -> None:
    """One all-gather before the attention and one before the ffn, and the reduce-scatter between; the sum that ends the
    block is not made again, as torch's checkpoint stops before it."""
    graph, plan = block(), megatron("tp", sequence=True)
    values = (*(item.value for item in graph.inputs), *(value for op in graph.ops for value in op.results))
    program = lower_body(graph, replace(plan, recompute=values), Mesh.parse("tp=2"), CUDA)
    verify_body(program)
    verify_body_meaning(program, graph)
    assert collectives(program, "tp") == {"all_gather": 4 + 2, "reduce_scatter": 4 + 1}


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
