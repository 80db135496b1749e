"""Whole ledgers of small bodies, worked out by hand: those of `test_liveness`, and single operators.

A unit is 2,048 bytes: 4 x 8 tokens of 16 channels in fp32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.backends.torch_.verify.interpreted.rules import single
from meshwright.cost_models.compute.kernels import Kernel
from meshwright.cost_models.ledger.ledger import (
    Ledger,
    Phase,
    Transmission,
    base_precision,
    ledger,
    travelling_bytes,
    updating_bytes,
)
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.names import Degrees
from meshwright.ir.program.lower_body import Lowering, lower_body
from meshwright.ir.rules.base import Engine
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.target.workload import RECIPES, STACKS, Workload
from tests.cost_models.programs import DENSE, MOE, SEQ
from tests.cost_models.programs import program as programmed
from tests.cost_models.test_liveness import U, program
from tests.samples import sample


def told(phase: Phase) -> list[tuple[Any, ...]]:
    """Kernels and transmissions, each with how often it runs, in an order of their own."""
    found: list[tuple[Any, ...]] = [
        (count, kernel.engine.value, kernel.work, kernel.flops, kernel.nbytes, *kernel.shape)
        for kernel, count in phase.kernels.items()
    ]
    found += [(count, one.kind, one.axes, one.nbytes, one.reason) for one, count in phase.transmissions.items()]
    return sorted(found, key=str)


def product(work: str, rows: int, a: int, b: int, c: int) -> tuple[Any, ...]:
    """One of 65,536 FLOP for all 32 rows, in fp32."""
    return (1, "matmul", work, 2.0 * rows * 64 * 16, 4 * (a * c + b * c + a * b), 1, a, b, c)


def moved(units: float, count: int = 1) -> tuple[Any, ...]:
    return (count, "memory", "forward", 0.0, units * U)


def block(stack: str = "torch", *, accumulates: bool = True, **degrees: Any) -> Ledger:
    made = program(stack, **degrees)
    assert made.workload is not None
    return ledger(made.body("block"), made.workload, accumulates=accumulates)


@pytest.mark.parametrize(
    ("stack", "degrees", "rows", "wires"),
    [
        ("torch", {}, 32, {}),
        ("megatron", {}, 32, {}),
        ("torch", {"dp": 2}, 16, {"sync": [(1, "all_reduce", ("dp",), 4 * U, "sync")]}),
        (
            "torch",
            {"dp": 4, "zero": 3},
            8,
            {
                "forward": [(1, "all_gather", ("dp",), 4 * U, "parameter")],
                "recompute": [(1, "all_gather", ("dp",), 4 * U, "parameter")],
                "inputs": [(1, "reduce_scatter", ("dp",), 4 * U, "sync")],
            },
        ),
        (
            "megatron",
            {"dp": 4, "zero": 1},
            8,
            {
                "sync": [(1, "reduce_scatter", ("dp",), 4 * U, "sync")],
                "publish": [(1, "all_gather", ("dp",), 4 * U, "update")],
            },
        ),
    ],
)
def test_a_block_of_two_products(stack: str, degrees: dict[str, Any], rows: int, wires: dict[str, Any]) -> None:
    """Forward the ReLU reads four units and writes four, the sum reads two and writes one; backward the ReLU reads its
    result too, and gradients of the stream are added. Both weights travel together. Gradients of several micro-batches
    are read and written once more, but where products add them up."""
    book, share = block(stack, **degrees), rows / 32
    assert book.model_flops == 6 * 65_536
    assert book.axes == ((("dp",),) if wires else ())
    assert book.awaited == frozenset()
    shards = degrees.get("dp", 1) if "zero" in degrees else 1
    stored = shards if degrees.get("zero") == 3 else 1
    expected = {
        "forward": [
            product("forward", rows, rows, 64, 16),
            product("forward", rows, rows, 16, 64),
            moved(8 * share),
            moved(3 * share),
        ],
        "recompute": [],
        "inputs": [
            product("dgrad", rows, rows, 64, 16),
            product("dgrad", rows, rows, 16, 64),
            moved(12 * share),
            moved(3 * share),
        ],
        "weights": [
            product("wgrad", rows, 16, 64, rows),
            product("wgrad", rows, 64, 16, rows),
            *([moved(2 * 4 / stored)] if stack == "torch" else []),
        ],
        "sync": [],
        "update": [moved(32 / shards)],  # 32 bytes of each of 2,048 elements
        "publish": [],
    }
    for name, phase in book.phases.items():
        assert told(phase) == sorted([*expected[name], *wires.get(name, [])], key=str), name


def test_gradients_of_one_micro_batch_are_not_added_up() -> None:
    alone = block(accumulates=False)
    assert [kernel.work for kernel in alone.phases["weights"].kernels] == ["wgrad"] * 2


def test_the_head_reads_scores_and_words() -> None:
    """Two units of scores and eight bytes of each of 32 words; a number comes out, and goes in again backward."""
    made = program()
    assert made.workload is not None
    book = ledger(made.body("end"), made.workload, accumulates=False)
    for phase in ("forward", "inputs"):
        assert moved(2 + (32 * 8 + 4) / U) in told(book.phases[phase])
        assert len(book.phases[phase].kernels) == 2


def test_a_host_that_steps_leaves_the_norm_of_gradients_to_the_device() -> None:
    """Four bytes of each of 2,048 elements."""
    assert told(block(dp=2, zero=1, offload="optimizer").phases["update"]) == [moved(4 / 2)]


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        # gradient, own copy and moments of eight bytes read and written, or the norm's read; a second copy written
        ("megatron", 2 * 4 + 2 * 8 + 2 * 4 + 2),
        ("megatron-bf16-grads", 2 * 4 + 2 * 8 + 2 * 2 + 2),
        ("fsdp", 2 * 4 + 2 * 8 + 2 * 4),
        ("fp32", 2 * 4 + 2 * 8 + 2 * 4),
    ],
)
def test_bytes_of_an_element_that_is_stepped(recipe: str, expected: float) -> None:
    workload = Workload(global_batch=1, seq=1, stack=STACKS["torch"], recipe=recipe)
    assert updating_bytes(workload) == expected
    states = RECIPES[recipe]
    found = [travelling_bytes(reason, workload) for reason in ("parameter", "sync", "update", "value")]
    assert found == [states.used, states.reduced, states.used, None]


def test_states_travel_in_the_bytes_of_the_recipe() -> None:
    """Traced in fp32, gathered in two bytes of each of 2,048 elements, summed in four."""
    made = program(dp=4, zero=3)
    assert made.workload is not None
    workload = replace(made.workload, recipe="fsdp")
    book = ledger(made.body("block"), workload, accumulates=True)
    assert [one.nbytes for one in book.phases["forward"].transmissions] == [2 * U]
    assert [one.nbytes for one in book.phases["inputs"].transmissions] == [4 * U]


@pytest.mark.parametrize(
    ("precision", "base"),
    [("bf16", "bf16"), ("fp16", "fp16"), ("fp8_blockwise", "bf16"), ("mxfp8", "bf16"), ("nvfp4", "bf16")],
)
def test_what_runs_beside_eight_bits(precision: str, base: str) -> None:
    assert base_precision(Workload(global_batch=1, seq=1, stack=STACKS["torch"], precision=precision)) == base


@pytest.mark.parametrize(
    ("kind", "reason", "steps", "received"),
    [
        ("all_gather", "value", 1, 600.0),
        ("all_reduce", "value", 1, 1200.0),
        ("all_to_all", "value", 1, 600.0),
        ("shift", "ring", 3, 2400.0),
    ],
)
def test_what_a_rank_receives(kind: Any, reason: str, steps: int, received: float) -> None:
    """Of 800 bytes among four ranks."""
    assert Transmission(kind, ("x",), 800.0, reason, steps).received_bytes(4) == received


def test_phases_add_up() -> None:
    one, other = (Kernel(Engine.MEMORY, "forward", "bf16", 0.0, size) for size in (1.0, 2.0))
    sent = Transmission("all_gather", ("x",), 1.0, "value")
    first, second, empty = Phase(), Phase(), Phase()
    first.kernels.update({one: 1, other: 2})
    second.kernels.update({other: 3})
    second.transmissions.update({sent: 4})
    both = first.plus(second)
    assert (both.kernels, both.transmissions) == ({one: 1, other: 5}, {sent: 4})
    assert first.plus(empty) is first
    assert empty.plus(first) is first
    wires = Phase()
    wires.transmissions.update({sent: 1})
    assert wires.plus(empty) is wires
    assert empty.plus(wires) is wires
    assert first.plus(wires).transmissions == {sent: 1}


# Single operators ----------------------------------------------------------------------------------------------------


def alone(kind: str, operands: str, **attrs: Any) -> Ledger:
    workload = Workload(global_batch=4, seq=8, precision="fp32", stack=STACKS["torch"])
    plan = BodyPlan("op", "op", (("y0", Strategy()),), ())
    body = lower_body(single(sample(kind, operands, **attrs)), plan, Mesh.parse("x=1"), Lowering())
    return ledger(body, workload, accumulates=False)


HEADS = "f32[4, 16, 8, 8] f32[4, 4, 8, 8] f32[4, 4, 8, 6]"
"""Sixteen heads share four of keys, 8 wide, and of values, 6 wide."""


@pytest.mark.parametrize(
    ("mask", "width", "causal", "window"),
    [
        ("full", 0, False, 0),
        ("causal", 0, True, 0),
        ("window", 3, True, 3),
        ("band", 3, False, 3),
        ("chunk", 4, True, 4),
    ],
)
def test_attention_on_one_rank(mask: str, width: int, causal: bool, window: int) -> None:
    """Scores of 64 pairs for 4 x 16 heads, 8 wide, and as many sums of 6; backward twice as much, and all but the
    result read and written. A window looks back alone, as a causal mask does."""
    book = alone("attention", HEADS, mask=mask, width=width, scale=0.3)
    shape, flops = (4, 16, 4, 8, 8, 8, 6), 2.0 * 4 * 16 * 64 * (8 + 6)
    q, k, v, out = 4 * 16 * 64, 4 * 4 * 64, 4 * 4 * 48, 4 * 16 * 48
    (forward,), (backward,) = (book.phases[name].kernels for name in ("forward", "inputs"))
    assert forward == Kernel(Engine.ATTENTION, "forward", "f32", flops, 4 * (q + k + v + out), shape, causal, window)
    assert backward == Kernel(
        Engine.ATTENTION, "backward", "f32", 2 * flops, 4 * 2 * (q + k + v), shape, causal, window
    )


def test_experts_multiply_their_share_of_the_rows() -> None:
    """1,024 tokens go to two of four experts each: 1,024 rows for each of two experts on a rank, half as many more
    where the busiest are. Exchanged are 2 x 1,024 rows of 1,024 channels, both ways; two gradients and two weights."""
    made = programmed(MOE, Degrees(dp=2, ep=2, microbatches=2), stack="megatron", imbalance=1.5)
    assert made.workload is not None
    name = next(name for stage in made.stages for run in stage.runs for name in run.programs if run.repeats > 1)
    book = ledger(made.body(name), made.workload, accumulates=True)
    rows = 3 * SEQ // 2
    for phase, work, shapes in (
        ("forward", "forward", [(2, rows, 2048, 1024), (2, rows, 1024, 1024)]),
        ("inputs", "dgrad", [(2, rows, 1024, 2048), (2, rows, 1024, 1024)]),
        ("weights", "wgrad", [(2, 2048, 1024, rows), (2, 1024, 1024, rows)]),
    ):
        routed = [kernel for kernel in book.phases[phase].kernels if kernel.routed]
        assert sorted(kernel.shape for kernel in routed) == sorted(shapes)
        for kernel in routed:
            g, a, b, c = kernel.shape
            assert kernel == Kernel(
                Engine.MATMUL,
                work,
                "bf16",
                2.0 * g * a * b * c,
                2 * g * (a * c + b * c + a * b),
                kernel.shape,
                routed=True,
            )
    for phase, reason in (("forward", "value"), ("inputs", "gradient")):
        sent = Transmission("all_to_all", ("ep",), 2 * SEQ * 1024 * 2, reason, picks=2)
        assert dict(book.phases[phase].transmissions) == {sent: 2}
        # each exchange sorts its rows: read and written once more
        sorted_ = Kernel(Engine.MEMORY, "forward", "bf16", 0.0, 2.0 * 2 * SEQ * 1024 * 2)
        assert book.phases[phase].kernels[sorted_] == 2


def test_products_of_one_operand_are_one() -> None:
    """q, k and v of megatron: 1,024 rows of 1,024 by 1,024, 512 and 512 columns; the bytes are those of all three."""
    made = programmed(MOE, Degrees(dp=2, ep=2, microbatches=2), stack="megatron")
    assert made.workload is not None
    name = next(name for stage in made.stages for run in stage.runs for name in run.programs if run.repeats > 1)
    book = ledger(made.body(name), made.workload, accumulates=True)
    each = [2 * (SEQ * 1024 + columns * 1024 + SEQ * columns) for columns in (1024, 512, 512)]
    for phase, work, shape in (
        ("forward", "forward", (1, SEQ, 2048, 1024)),
        ("inputs", "dgrad", (1, SEQ, 1024, 2048)),
        ("weights", "wgrad", (1, 2048, 1024, SEQ)),
    ):
        whole = Kernel(Engine.MATMUL, work, "bf16", 2.0 * SEQ * 1024 * 2048, sum(each), shape)
        assert book.phases[phase].kernels[whole] == 1


def test_attention_over_parts_of_a_sequence() -> None:
    """Four ranks have 256 of 1,024 tokens each; eight heads of queries, four of keys and values, 128 wide, two bytes.
    In a ring keys and values of 256 tokens are passed on three times; backward three times, and their gradients four.
    Gathered, they are those of all tokens, on every rank. Of a causal mask a balanced share leaves a half, the last
    part of an unbalanced one seven eighths."""
    q, part, whole = (2 * heads * tokens * 128 for heads, tokens in ((8, 256), (4, 256), (4, 1024)))
    for context, kv in (("ring", part), ("all_gather", whole)):
        for zigzag, seen in ((True, 512), (False, 896)):
            made = programmed(DENSE, Degrees(cp=4, context=context, zigzag=zigzag))
            assert made.workload is not None
            name = next(name for stage in made.stages for run in stage.runs for name in run.programs if run.repeats > 1)
            book = ledger(made.body(name), made.workload, accumulates=False)
            flops, shape = 2.0 * 8 * 256 * seen * 256, (1, 8, 4, 256, seen, 128, 128)
            for phase, kernel in (
                ("forward", Kernel(Engine.ATTENTION, "forward", "bf16", flops, 2 * q + 2 * kv, shape)),
                ("inputs", Kernel(Engine.ATTENTION, "backward", "bf16", 2 * flops, 2 * q + 4 * kv, shape)),
            ):
                found = {one: count for one, count in book.phases[phase].kernels.items() if one.engine is kernel.engine}
                assert found == {kernel: 1}
                rounds = {one: count for one, count in book.phases[phase].transmissions.items() if one.kind == "shift"}
                steps = ((3,) if phase == "forward" else (3, 4)) if context == "ring" else ()
                assert rounds == {Transmission("shift", ("cp",), 2 * part, "ring", each): 1 for each in steps}
