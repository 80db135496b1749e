"""Ledgers against independent counts: the rules' FLOPs, a layer written out by hand, what fusion may save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from meshwright.backends.torch_.verify.interpreted.rules import single, strategies
from meshwright.cost_models.compute.kernels import Compute, Kernel
from meshwright.cost_models.compute.profile import constants
from meshwright.cost_models.cost import attention_of
from meshwright.cost_models.hardware.devices import device
from meshwright.cost_models.ledger.ledger import PHASES, Ledger, ledger
from meshwright.ir.analysis.account import account_fold
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.errors import IllegalStrategy, IndivisibleExtent
from meshwright.ir.frontends.door import capture, load_model
from meshwright.ir.frontends.shape import Shape
from meshwright.ir.graph.graph import Attr
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.lower import lower
from meshwright.ir.program.lower_body import Lowering, lower_body
from meshwright.ir.program.program import Program
from meshwright.ir.rules import infer, kinds
from meshwright.ir.rules.base import Engine
from meshwright.ir.sharding.adjoint import apply
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.target.workload import STACKS, Workload
from tests.cost_models.programs import DENSE, MOE, SEQ, SHAPES, fold, program
from tests.samples import SAMPLES, sample

BACKWARD = ("inputs", "weights")
COUNTED = (Engine.MATMUL, Engine.ATTENTION, Engine.CONV)


def ledgers(program: Program) -> list[tuple[Ledger, int]]:
    """Every body's ledger, and how many times all ranks together run it."""
    assert program.workload is not None
    accumulates = program.microbatches > 1
    bodies = {body.name: ledger(body, program.workload, accumulates=accumulates) for body in program.bodies}
    return [
        (bodies[name], run.repeats * len(stage.ranks))
        for stage in program.stages
        for run in stage.runs
        for name in run.programs
    ]


def work(program: Program, *phases: str) -> float:
    """FLOPs of kernels, over all ranks and one micro-batch."""
    return sum(
        times * count * kernel.flops
        for book, times in ledgers(program)
        for phase in phases
        for kernel, count in book.phases[phase].kernels.items()
    )


def moved(program: Program, *phases: str) -> float:
    """Bytes of memory-bound kernels."""
    return sum(
        times * count * kernel.nbytes
        for book, times in ledgers(program)
        for phase in phases
        for kernel, count in book.phases[phase].kernels.items()
        if kernel.engine is Engine.MEMORY
    )


def products(book: Ledger, *phases: str) -> Counter[tuple[str, tuple[int, ...]]]:
    found: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for phase in phases:
        for kernel, count in book.phases[phase].kernels.items():
            if kernel.engine is Engine.MATMUL:
                found[kernel.work, kernel.shape] += count
    return found


def test_each_step_of_a_loop_waits_for_the_kernels_of_the_one_before() -> None:
    """A hundred steps of three kernels take their floors one after the other; of five, for gradients. Operations of
    products come to that."""
    attrs: Mapping[str, Attr] = {
        "types": ("f32[4, 8]",),
        "target": "test::loop",
        "rule": "n0 i0->n0 o0",
        "whole": ("i0", "o0"),
    }
    workload = Workload(global_batch=4, seq=8, precision="fp32", stack=STACKS["jax"])
    prices = Compute(device("A100"), style="xla", attention=attention_of(workload.stack))
    taken: dict[str, dict[str, float]] = {}
    own: Mapping[str, Mapping[str, Attr]] = {
        "one": {},
        "loop": {"kernels": (300, 500)},
        "products": {"kernels": (300, 500), "flops": 10**12},
    }
    for name, more in own.items():
        graph, mesh = single(sample("opaque", "f32[4, 8]", **attrs, **more)), Mesh.parse("")
        body = lower_body(graph, BodyPlan("op", "op", (), ()), mesh, Lowering().for_stack(workload.stack))
        phases = ledger(body, workload, accumulates=False).phases
        counts = {phase: phases[phase].kernels for phase in ("forward", "inputs")}
        taken[name] = {
            phase: sum(times * prices.seconds(kernel).seconds for kernel, times in found.items())
            for phase, found in counts.items()
        }
    floor_s = constants().kernel_floor_s
    assert taken["loop"]["forward"] == pytest.approx(taken["one"]["forward"] + 299 * floor_s, rel=1e-9)
    assert taken["loop"]["inputs"] == pytest.approx(taken["one"]["inputs"] + 499 * floor_s, rel=1e-9)
    for phase, flops in (("forward", 4e12), ("inputs", 8e12)):  # at each of four points
        assert taken["products"][phase] - taken["loop"][phase] > flops / device("A100").peak("fp32").value


# FLOPs ---------------------------------------------------------------------------------------------------------------

SPLITS = [
    ("dense", Degrees()),
    ("dense", Degrees(dp=2, zero=3)),
    ("dense", Degrees(tp=4)),
    ("dense", Degrees(tp=2, dp=2, pp=2, sequence_parallel=True, microbatches=2)),
    ("dense", Degrees(tp=2, pp=2, vp=2, schedule="interleaved", microbatches=2)),
    ("dense", Degrees(cp=2, tp=2, context="ulysses")),
    ("moe", Degrees()),
    ("moe", Degrees(dp=4, ep=4)),
    ("moe", Degrees(tp=2, dp=2, ep=2, sequence_parallel=True)),
]


@pytest.mark.parametrize("stack", ["torch", "megatron", "jax"])
@pytest.mark.parametrize(("shape", "degrees"), SPLITS)
def test_the_flops_of_all_ranks_are_those_of_the_rules(shape: str, degrees: Degrees, stack: str) -> None:
    made = program(SHAPES[shape], degrees, stack=stack)
    whole = account_fold(fold(SHAPES[shape], degrees.dp))
    assert work(made, "forward") == pytest.approx(whole.forward_flops, rel=1e-12)
    assert work(made, *BACKWARD) == pytest.approx(whole.backward_flops, rel=1e-12)
    total = sum(book.model_flops * times for book, times in ledgers(made)) / len(made.stages[0].ranks)
    assert total == pytest.approx(whole.forward_flops + whole.backward_flops, rel=1e-12)


@pytest.mark.parametrize("context", ["all_gather", "ring"])
def test_context_parallel_attention_works_on_what_the_mask_leaves(context: str) -> None:
    """Balanced by zigzag, n ranks have half of the scores, each 1/n of them; uneven, the last has 1 - 1/2n of its own
    rows, which all others wait for."""
    n = 4
    one = program(DENSE, stack="megatron")
    (whole,) = [kernel for kernel in attention(one, "forward") if kernel.causal]
    for zigzag, share in ((True, 1 / 2), (False, 1 - 1 / (2 * n))):
        made = program(DENSE, Degrees(cp=n, context=context, zigzag=zigzag), stack="megatron")
        (kernel,) = attention(made, "forward")
        assert not kernel.causal
        assert kernel.flops == pytest.approx(whole.flops / n * share)
        (backward,) = attention(made, "inputs")
        assert backward.flops == pytest.approx(2 * kernel.flops)


def attention(made: Program, phase: str) -> set[Kernel]:
    return {
        kernel
        for book, _ in ledgers(made)
        for kernel in book.phases[phase].kernels
        if kernel.engine is Engine.ATTENTION
    }


def test_an_overloaded_expert_has_more_to_multiply_and_nothing_else_has() -> None:
    even, odd = (program(MOE, Degrees(dp=2, ep=2), imbalance=gamma) for gamma in (1.0, 1.5))
    whole = account_fold(fold(MOE, 2)).forward_flops
    tokens = 2 * SEQ
    experts = 2 * tokens * MOE.topk * 3 * MOE.hidden * MOE.moe_ffn * MOE.layers
    assert work(even, "forward") == pytest.approx(whole)
    assert work(odd, "forward") - whole == pytest.approx(0.5 * experts)
    assert sum(book.model_flops for book, _ in ledgers(odd)) == sum(book.model_flops for book, _ in ledgers(even))


# What runs again, what does not run ----------------------------------------------------------------------------------


def block(made: Program) -> Ledger:
    """The ledger of the body that repeats."""
    assert made.workload is not None
    name = next(name for stage in made.stages for run in stage.runs for name in run.programs if run.repeats > 1)
    return ledger(made.body(name), made.workload, accumulates=made.microbatches > 1)


@pytest.mark.parametrize("stack", ["torch", "megatron", "jax"])
@pytest.mark.parametrize("degrees", [Degrees(), Degrees(tp=2, sequence_parallel=True), Degrees(dp=2, zero=3)])
def test_full_recomputation_runs_the_forward_kernels_again(stack: str, degrees: Degrees) -> None:
    """All that the backward pass reads: not the last product of a block, whose result nobody needs."""
    none = block(program(DENSE, degrees, stack=stack))
    full = block(program(DENSE, replace(degrees, recompute="full"), stack=stack))
    first, again = (products(full, phase) for phase in ("forward", "recompute"))
    assert first == products(none, "forward")
    last = ("forward", (1, SEQ, DENSE.hidden, DENSE.ffn_hidden // degrees.tp))
    assert first - again == Counter({last: 1})
    assert not again - first
    assert not products(none, "recompute")
    assert products(full, *BACKWARD) == products(none, *BACKWARD)
    assert full.model_flops == none.model_flops


def test_frozen_weights_have_no_weight_gradient() -> None:
    """Of LoRA only the adapters: twice rows x rank x width each, on the query and the value of every block."""
    root = Path(__file__).parents[2]
    model = capture(load_model(f"{root / 'examples' / 'lora_llama.py'}:tiny"), batch=2, seq=64).fold
    decisions = template(model, Degrees())
    workload = Workload(global_batch=2, seq=64)
    made = lower(model, decisions, Lowering(), workload)
    trained = [
        (book.locals[slot.value].type.shape, times)
        for stage in made.stages
        for run in stage.runs
        for name, times in [(name, run.repeats) for name in run.programs]
        for book in [made.body(name)]
        for slot in book.params
        if slot.grad
    ]
    assert all(len(shape) == 2 for shape, _ in trained)
    expected = sum(2 * 2 * 64 * rows * columns * times for (rows, columns), times in trained)
    wgrads = sum(
        times * count * kernel.flops
        for book, times in ledgers(made)
        for kernel, count in book.phases["weights"].kernels.items()
    )
    assert wgrads == expected > 0
    assert not sum(times for book, times in ledgers(made) if book.phases["sync"].transmissions)


# Shapes, by hand -----------------------------------------------------------------------------------------------------

LLAMA = Shape(layers=2, hidden=4096, ffn_hidden=14336, heads=32, kv_heads=8, vocab=128256)
"""Llama 3 8B, but for its depth."""
ROWS, H, F, HEADS, KV = 4096, 4096, 14336 // 8, 32 * 128 // 8, 8 * 128 // 8


@pytest.mark.parametrize(
    ("stack", "columns"),
    [("megatron", [(HEADS + 2 * KV, H), (2 * F, H)]), ("torch", [(HEADS, H), (KV, H), (KV, H), (F, H), (F, H)])],
)
def test_a_llama_layer_under_tensor_parallelism(stack: str, columns: list[tuple[int, int]]) -> None:
    """Column-parallel q, k, v and gate, up (one product each where the stack keeps them in one weight), row-parallel
    output and down; under sequence parallelism all of them see every token."""
    book = block(program(LLAMA, Degrees(tp=8, sequence_parallel=True), stack=stack, seq=4096))
    each = [*columns, (H, HEADS), (H, F)]
    assert products(book, "forward") == Counter(("forward", (1, ROWS, n, k)) for n, k in each)
    assert products(book, "inputs") == Counter(("dgrad", (1, ROWS, k, n)) for n, k in each)
    assert products(book, "weights") == Counter(("wgrad", (1, n, k, ROWS)) for n, k in each)
    (kernel,) = {one for one in book.phases["forward"].kernels if one.engine is Engine.ATTENTION}
    assert kernel.shape == (1, 4, 1, 4096, 4096, 128, 128)
    assert kernel.causal
    full = 2 * ROWS * H  # bytes of the whole stream
    for phase, gathers in (("forward", 2), ("inputs", 2)):
        kinds_ = Counter[str]()
        for one, count in book.phases[phase].transmissions.items():
            assert one.nbytes == full
            kinds_[one.kind] += count
        # Megatron gathers its input again for the weight gradients.
        again = 2 if stack == "megatron" and phase == "inputs" else 0
        assert kinds_["reduce_scatter"] == gathers
        assert kinds_["all_gather"] + _gathered_again(book, phase) == gathers + again


def _gathered_again(book: Ledger, phase: str) -> int:
    return sum(book.phases["recompute"].transmissions.values()) if phase == "inputs" else 0


# Bytes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", sorted(SHAPES))
@pytest.mark.parametrize("degrees", [Degrees(), Degrees(tp=2, sequence_parallel=True), Degrees(dp=2, recompute="full")])
def test_fusion_never_moves_more(shape: str, degrees: Degrees) -> None:
    plain = program(SHAPES[shape], degrees, stack="torch")
    for stack in ("torch-compile", "megatron", "jax"):
        made = program(SHAPES[shape], degrees, stack=stack)
        for phases in (("forward",), ("recompute",), ("inputs", "weights")):
            assert moved(made, *phases) <= moved(plain, *phases), (stack, phases)
        assert moved(made, "forward") < moved(plain, "forward")


def test_an_elementwise_chain_of_a_fused_stack_reads_once_and_writes_once() -> None:
    """SwiGLU: gate and up in, one out; eager, silu and the product read and write between."""
    wide = replace(DENSE, ffn_hidden=2 * DENSE.ffn_hidden)
    more = 2 * SEQ * DENSE.ffn_hidden * DENSE.layers  # bytes of the columns that `wide` adds, over all layers
    for stack, passes in (("torch", 2 + 3), ("megatron", 2 + 1)):
        grown = moved(program(wide, stack=stack), "forward") - moved(program(DENSE, stack=stack), "forward")
        assert grown == passes * more


# Every kind ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", kinds())
def test_every_kind_of_operator_can_be_priced(kind: str) -> None:
    """Under a choice or two for each sample, in every style."""
    for stack in ("torch", "torch-compile", "megatron", "jax"):
        workload = Workload(global_batch=4, seq=8, precision="fp32", stack=STACKS[stack])
        prices = Compute(device("A100"), style=workload.stack.style, attention=attention_of(workload.stack))
        for signature in SAMPLES[kind]:
            graph = single(signature)
            for mesh, strategy in islice(strategies(signature), 0, None, 7):
                try:
                    applied = apply(infer(signature), signature.operands, strategy, mesh)
                    states = tuple((f"x{index}", state) for index, state in enumerate(applied.operands))
                    plan = BodyPlan("op", "op", (("y0", strategy),), states)
                    body = lower_body(graph, plan, mesh, Lowering().for_stack(workload.stack))
                except (IllegalStrategy, IndivisibleExtent):
                    continue
                book = ledger(body, workload, accumulates=True)
                assert tuple(book.phases) == PHASES
                for phase in book.phases.values():
                    for kernel in phase.kernels:
                        priced = prices.seconds(kernel)
                        assert priced.seconds > 0
                        assert kernel.flops >= 0
                        assert kernel.nbytes >= 0
                    assert all(one.nbytes > 0 and one.steps > 0 for one in phase.transmissions)
