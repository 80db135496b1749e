"""What the passes of two small bodies hold, statement by statement on paper.

The block is x + down(relu(up(x))), of 4 x 8 tokens and 16 channels, 64 inside: in fp32 `x` takes one unit of 2,048
bytes, a value inside four, each weight two. The end is the cross entropy of head(z) over 32 words: scores of two units,
a weight of one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from meshwright.cost_models.memory.fullest import Fullest, Mix
from meshwright.cost_models.memory.liveness import PassMemory, pass_memory
from meshwright.cost_models.memory.routing import routing_of
from meshwright.cost_models.memory.storages import shared
from meshwright.ir.graph.fold import Body, Fold, FromInput, FromPrevious
from meshwright.ir.graph.graph import Input, Type
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.lower import lower
from meshwright.ir.program.lower_body import Lowering
from meshwright.ir.program.program import BodyProgram, Program
from meshwright.ir.target.workload import STACKS, Workload
from tests.build import Builder
from tests.cost_models.programs import MOE
from tests.cost_models.programs import program as moe
from tests.models import glue, stack

SQUARE = (4, 8, 16)
TOKENS = (4, 8)
U = 4 * 8 * 16 * 4
LOSS = 4
"""Bytes of the loss, and of its gradient."""


@cache
def fold() -> Fold:
    begin, block, end = Builder(), Builder(), Builder()
    begin.output(begin.op("linear", begin.input(SQUARE, labels=("b", "s", "")), begin.param("in", (16, 16))))
    x = block.input(SQUARE, labels=("b", "s", ""), requires_grad=True)
    inside = block.op("relu", block.op("linear", x, block.param("up", (64, 16))))
    block.output(block.op("add", x, block.op("linear", inside, block.param("down", (16, 64)))))
    z = end.input(SQUARE, name="z", labels=("b", "s", ""), requires_grad=True)
    words = end.input(TOKENS, name="t", dtype="i64", labels=("b", "s"))
    scores = end.op("linear", z, end.param("head", (32, 16)))
    end.loss(end.op("cross_entropy", scores, words, ignore_index=-100, reduction="mean"))
    return Fold(
        (Body("begin", begin.graph()), Body("block", block.graph()), Body("end", end.graph())),
        (
            glue("begin", FromInput("x")),
            stack("block", "blocks", 2, FromPrevious(0)),
            glue("end", FromPrevious(0), FromInput("t")),
        ),
        ((Input("x", ("b", "s", "")), Type(SQUARE, "f32")), (Input("t", ("b", "s")), Type(TOKENS, "i64"))),
        (FromPrevious(0),),
        loss=0,
    )


def program(name: str = "torch", **degrees: object) -> Program:
    workload = Workload(global_batch=4, seq=8, stack=STACKS[name], recipe="fp32")
    plan = replace(template(fold(), Degrees(**degrees)), style=workload.stack.style)  # type: ignore[arg-type]
    return lower(fold(), plan, Lowering().for_stack(workload.stack), workload=workload)


def passes(made: Program, name: str, *, apart: bool = True) -> tuple[BodyProgram, PassMemory]:
    assert made.workload is not None
    body = made.body(name)
    return body, pass_memory(body, made.workload, name == "block", apart=apart)


def units(activations: float = 0, recomputed: float = 0, transient: float = 0, logits: float = 0) -> Mix:
    return Mix(activations * U, recomputed * U, transient * U, logits * U)


@pytest.mark.parametrize(
    ("name", "added"),
    [("torch", 2), ("torch-compile", 2), ("jax", 2), ("megatron", 0)],
)
def test_a_block(name: str, added: float) -> None:
    """Kept: x, which `up` reads, and what the ReLU made, which it and `down` read. Forward both and what goes into the
    ReLU; backward both, the gradients of the result, of what the ReLU made and of what went in; in a first one the
    gradient of `down` stays, but where it is added straight to what is summed."""
    body, found = passes(program(name), "block")
    assert found == PassMemory(
        kept=units(5),
        shared=(),
        entered=((shared(body, body.inputs[0]), U),),
        left=(),
        forward=Fullest(units(5, 0, 4)),
        backward=Fullest(units(5, 0, 1 + 4 + 4)),
        first=Fullest(units(5, 0, 1 + 4 + 4 + added)),
        inputs=Fullest(units(5, 0, 1 + 4 + 4)),
        # x and the gradient inside for `up`, the ReLU's and that of the result for `down`; one gradient at a time
        weight_kept=(1 + 4 + 4 + 1) * U,
        captured=(4 + 1) * U,
        beside_waiting=2 * U,
        beyond=0,
        offloaded=0,
        entering_gradients=U,
    )
    whole = passes(program(name), "block", apart=False)[1]
    assert whole == replace(found, inputs=None, beside_waiting=0)


def test_an_end_in_eager_execution() -> None:
    """Kept: z, and logarithms of probabilities. torch makes the gradient of those before that of the scores."""
    body, found = passes(program(), "end")
    assert found == PassMemory(
        kept=units(1, 0, 0, 2),
        shared=((shared(body, "t"), 4 * 8 * 8),),
        entered=((shared(body, "z"), U),),
        left=(),
        forward=Fullest(Mix(U, 0, LOSS, 4 * U)),
        backward=Fullest(Mix(U, 0, LOSS + 2 * U, 4 * U)),
        first=Fullest(Mix(U, 0, LOSS + 2 * U, 4 * U)),
        inputs=Fullest(Mix(U, 0, LOSS + 2 * U, 4 * U)),
        weight_kept=(1 + 2) * U,
        captured=2 * U,
        beside_waiting=U,
        beyond=0,
        offloaded=0,
        entering_gradients=U,
    )
    assert found.has_logits
    assert not passes(program(), "block")[1].has_logits


def test_an_end_with_a_fused_loss() -> None:
    """Scores, probabilities and their gradient lie in one storage; the weight's gradient goes where sums are."""
    body, found = passes(program("megatron"), "end")
    held = Fullest(units(1, 0, 1 + 1, 2))
    assert found == PassMemory(
        kept=units(1, 0, 0, 2),
        shared=((shared(body, "t"), 4 * 8 * 8),),
        entered=((shared(body, "z"), U),),
        left=(),
        forward=Fullest(Mix(U, 0, LOSS, 2 * U)),
        backward=held,
        first=held,
        inputs=Fullest(units(1, 0, 1, 2)),
        weight_kept=(1 + 2) * U,
        captured=2 * U,
        beside_waiting=U,
        beyond=0,
        offloaded=0,
        entering_gradients=U,
    )


def test_what_runs_again_is_of_its_own_sort() -> None:
    """Of x the block is made again: at the fullest instant what the ReLU made is there beside three gradients."""
    _, found = passes(program(recompute="full"), "block")
    assert found.kept == units(1)
    assert found.forward == Fullest(units(1, 0, 4 + 4))
    assert found.backward == Fullest(units(1, 4, 1 + 4 + 4))
    assert found.first == Fullest(units(1, 4, 1 + 4 + 4 + 2))


def test_what_waits_on_the_host_is_there_while_its_call_runs() -> None:
    body, found = passes(program(offload="activations"), "block")
    assert found.kept == units(5)
    waiting = sum(one.nbytes for one in body.kept if one.host)
    assert waiting > 0
    assert found.offloaded == waiting
    assert [size for _, size in found.entered] == [one.nbytes for one in body.kept if one.name == "x" and not one.host]


@pytest.mark.parametrize("name", ["torch", "torch-compile"])
def test_a_block_in_shards(name: str) -> None:
    """A quarter of the tokens, and whole gradients of weights, eight times as large as x now is, until all are there:
    at the last one x, the gradients of the result, of what went into the ReLU and of x, and two of weights. Shards of
    gradients and gathered weights are counted elsewhere."""
    _, found = passes(program(name, dp=4, zero=3), "block")
    quarter = U / 4

    def fourths(activations: float, transient: float) -> Mix:
        return Mix(activations * quarter, 0, transient * quarter, 0)

    assert found.kept == fourths(5, 0)
    assert found.forward == Fullest(fourths(5, 4))
    assert found.backward == found.first == Fullest(fourths(1, 1 + 4 + 1 + 8 + 8))
    assert found.inputs == Fullest(fourths(5, 1 + 4 + 4))
    # the first weight's gradient is let go, with x and the gradient inside, when the second one's is there
    assert found.beside_waiting == (8 + 8 - 5) * quarter
    fused = passes(program("megatron", dp=4, zero=3), "block")[1]
    assert fused.backward == fused.first == Fullest(fourths(5, 1 + 4 + 4))


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("torch", 4 + 8 + 4 + 4 + 4),  # what is sorted, gate and up, the SiLU's, their product, what goes back
        ("torch-compile", 4 + 4 + 4 + 4),  # halves of gate and up, and nothing that is made of them
        ("megatron", 4 + 8 + 4 + 4),  # the SiLU is made again
    ],
)
def test_rows_of_experts_are_as_many_as_the_busiest_has(name: str, rows: float) -> None:
    """Two rows of each of 1,024 tokens, of 1,024 channels in two bytes: four MiB. Of the stream beside them fourteen:
    what goes into the block, both norms, queries, keys and values, attention, and the sum behind it."""
    made = moe(MOE, Degrees(dp=2, ep=2), stack=name)
    body = next(body for body in made.bodies if routing_of(body).last)
    assert made.workload is not None
    even, busy = (pass_memory(body, replace(made.workload, imbalance=load), True) for load in (1.0, 2.0))
    assert even.kept.activations / 2**20 == pytest.approx(14 + rows, abs=0.25)
    assert (busy.kept.activations - even.kept.activations) / 2**20 == rows
