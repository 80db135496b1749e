"""Prices of experts: a product for each, casts of its rows, what a host launches, what an exchange hides behind."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from meshwright.cost_models.compute.kernels import EXPERT_LAUNCHES, Compute, Kernel
from meshwright.cost_models.compute.profile import constants
from meshwright.cost_models.cost import launched
from meshwright.cost_models.evaluate import evaluate
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.devices import device
from meshwright.cost_models.ledger.ledger import EXPERT_BIAS, ONCE, PHASES, Ledger, ledger
from meshwright.cost_models.profile import published
from meshwright.ir.names import Degrees
from meshwright.ir.program.program import Program
from meshwright.ir.rules.base import Engine
from meshwright.ir.target.workload import STACKS, Stack
from tests.cost_models.programs import MOE, SEQ, pool, program

H100 = device("H100")
APART = Degrees(dp=4, ep=2, microbatches=4)
BIASED = replace(MOE, biases=True)


def grouped(groups: int, m: int, dtype: str = "bf16", work: str = "forward") -> Kernel:
    n, k = 1024, 2048
    return Kernel(Engine.MATMUL, work, dtype, 2.0 * groups * m * n * k, 0.0, (groups, m, n, k), routed=True)


def on(made: Program, stack: Stack) -> Program:
    assert made.workload is not None
    return replace(made, workload=replace(made.workload, stack=stack))


def step_s(made: Program, **changes: object) -> float:
    assert made.workload is not None
    stack = replace(made.workload.stack, **changes)  # type: ignore[arg-type]
    return evaluate(on(made, stack), Cluster(pools=(pool(H100, 2, 2),)), published()).step_time_s


def book(made: Program) -> Ledger:
    """Of the body with experts."""
    assert made.workload is not None
    books = [ledger(body, made.workload, accumulates=made.microbatches > 1) for body in made.bodies]
    return next(one for one in books if any(t.kind == "all_to_all" for t in one.phases["forward"].transmissions))


@pytest.mark.parametrize("m", [64, 300, 1024, 8192])
@pytest.mark.parametrize("groups", [1, 3, 16])
def test_products_one_by_one_take_as_long_as_each_by_itself(groups: int, m: int) -> None:
    apart, together = (Compute(H100, style="fused", one_by_one=one) for one in (True, False))
    found = apart.seconds(grouped(groups, m)).seconds
    assert found == pytest.approx(groups * together.seconds(grouped(1, m)).seconds)
    assert found >= together.seconds(grouped(groups, m)).seconds * (1 - 1e-12)


def test_rows_of_experts_are_cast_forward_too() -> None:
    """The same bytes as the gradient of the result is cast by, at the shape of the rows."""
    compute = Compute(H100)
    for groups, casts in ((1, 0), (4, 1)):
        low, high = (compute.seconds(grouped(groups, 4096, dtype)) for dtype in ("fp8_tensorwise", "bf16"))
        uncast = replace(grouped(groups, 4096, "fp8_tensorwise"), work="wgrad")
        assert (low.seconds > compute.seconds(uncast).seconds) == bool(casts)
        assert high.seconds == compute.seconds(replace(grouped(groups, 4096), work="wgrad")).seconds


@pytest.mark.parametrize("work", ["forward", "dgrad", "wgrad"])
def test_each_cast_of_an_expert_takes_a_kernel_on_the_device_too(work: str) -> None:
    """Beside the bytes, which are the same whoever casts them."""
    groups, floor_s = 16, constants().kernel_floor_s
    apart, together = (Compute(H100, style="fused", one_by_one=one) for one in (True, False))
    one, many = grouped(1, 4096, "mxfp8", work), grouped(groups, 4096, "mxfp8", work)
    uncast = replace(one, work="wgrad")
    casts_s = together.seconds(many).seconds - together.seconds(replace(many, work="wgrad")).seconds
    bytes_s = casts_s - floor_s if work != "wgrad" else 0.0
    expected = groups * (together.seconds(uncast).seconds + (EXPERT_LAUNCHES - 1) * floor_s) + bytes_s
    assert apart.seconds(many).seconds == pytest.approx(expected)


PADDED = replace(STACKS["megatron"], padded=True)


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        (STACKS["megatron"], (1, 8, 8 * EXPERT_LAUNCHES)),
        (replace(STACKS["megatron"], graphs="static"), (0, 8, 8 * EXPERT_LAUNCHES)),
        (replace(STACKS["megatron"], graphs="step"), (0, 0, 0)),
        (PADDED, (1, 8, 8 * EXPERT_LAUNCHES)),
        (replace(PADDED, graphs="static"), (0, 0, 0)),
        (STACKS["torch"], (1, 1, 2)),  # F.grouped_mm is one kernel, behind one that casts
    ],
)
def test_what_a_host_launches(stack: Stack, expected: tuple[int, int, int]) -> None:
    """No size depends on routing where experts are padded, so that graphs of layers replay all of them."""
    batch = replace(grouped(1, 64), routed=False)
    compute = Compute(H100, style=stack.style, one_by_one=stack.style == "fused")
    kernels = batch, grouped(8, 64), grouped(8, 64, "mxfp8")
    assert tuple(launched(kernel, compute, stack) for kernel in kernels) == expected


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_batch_of_products_is_one_kernel(one_by_one: bool) -> None:
    """Scores of attention that a model writes out: 8 x 12 products of 1024 x 1024 x 64. On the device it takes what one
    kernel over all of them does, whatever libraries do with experts."""
    compute = Compute(H100, style="fused", one_by_one=one_by_one)
    scores = Kernel(Engine.MATMUL, "forward", "bf16", 2.0 * 96 * 1024 * 1024 * 64, 0.0, (96, 1024, 1024, 64))
    assert compute.kernels(scores) == 1
    assert compute.seconds(scores) == Compute(H100, style="fused").seconds(scores)
    assert compute.kernels(replace(scores, routed=True)) == (96 if one_by_one else 1)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (Kernel(Engine.VIEW, "forward", "bf16", 0.0, 0.0), 0),
        (Kernel(Engine.MEMORY, "forward", "bf16", 0.0, 1e6), 1),
        (Kernel(Engine.CONV, "forward", "bf16", 1e9, 1e6), 1),
        (Kernel(Engine.ATTENTION, "forward", "bf16", 1e9, 0.0, (1, 8, 8, 64, 64, 64, 64)), 1),
        (Kernel(Engine.ATTENTION, "forward", "fp32", 1e9, 0.0, (1, 8, 8, 64, 64, 64, 64)), 3),
        (Kernel(Engine.ATTENTION, "backward", "fp32", 1e9, 0.0, (1, 8, 8, 64, 64, 64, 64)), 5),
    ],
    ids=lambda value: f"{value.engine.name} {value.dtype} {value.work}" if isinstance(value, Kernel) else str(value),
)
def test_kernels_of_other_engines(kernel: Kernel, expected: int) -> None:
    """Attention that is written out is two products around a softmax, and twice two around one backward."""
    assert Compute(H100).kernels(kernel) == expected


def test_only_products_of_experts_depend_on_routing() -> None:
    made = program(MOE, APART, stack="megatron")
    kernels = [kernel for phase in book(made).phases.values() for kernel in phase.kernels]
    products = [kernel for kernel in kernels if kernel.engine is Engine.MATMUL]
    assert {kernel.routed for kernel in products} == {False, True}
    assert all((kernel.shape[0] > 1) >= kernel.routed for kernel in products)


def test_what_a_host_waits_for() -> None:
    made, alone = (program(MOE, replace(APART, microbatches=count), stack="megatron") for count in (4, 1))
    assert made.workload is not None
    stack = made.workload.stack
    hidden = replace(stack, hides=(*stack.hides, "expert"))
    assert book(made).awaited == {"forward"}
    assert book(on(made, hidden)).awaited == set(PHASES) - ONCE
    assert book(on(alone, hidden)).awaited == {"forward"}
    assert book(on(made, replace(hidden, padded=True))).awaited == set()
    dense = (ledger(body, made.workload, accumulates=True) for body in made.bodies)
    assert [one.awaited for one in dense if one.phases["forward"].kernels].count(frozenset()) == len(made.bodies) - 1


def test_graphs_and_padding_never_make_a_step_longer() -> None:
    made = program(MOE, APART, stack="megatron")
    plain, static, whole = (step_s(made, graphs=graphs) for graphs in ("none", "static", "step"))
    assert whole < static < plain
    assert step_s(made, padded=True, graphs="static") < step_s(made, padded=True) < plain


def test_a_host_that_waits_can_lose_more_than_hidden_exchanges_gain() -> None:
    """Megatron-Bridge turned the overlap off for that (its pull request 1760): a small model is bound by the host."""
    made = program(MOE, APART, stack="megatron")
    assert made.workload is not None
    hides = (*made.workload.stack.hides, "expert")
    assert step_s(made, hides=hides) > step_s(made)
    for free in ({"padded": True}, {"graphs": "step"}):
        assert step_s(made, hides=hides, **free) < step_s(made, **free)
    alone = program(MOE, replace(APART, microbatches=1), stack="megatron")  # no other micro-batch to hide behind
    assert step_s(alone, hides=hides) == step_s(alone)


def test_rows_are_sorted_around_a_plain_exchange() -> None:
    """Read and written once more for each exchange; dispatchers that send a token once do that on the way."""
    made = program(MOE, APART, stack="megatron")
    plain, once = (book(on(made, replace(STACKS["megatron"], dedupes=dedupes))) for dedupes in (False, True))
    exchanged = sum(
        count * one.nbytes for one, count in plain.phases["forward"].transmissions.items() if one.kind == "all_to_all"
    )
    assert exchanged > 0
    assert memory_bytes(plain, "forward") - memory_bytes(once, "forward") == pytest.approx(2 * exchanged)


def memory_bytes(one: Ledger, phase: str) -> float:
    return sum(
        count * kernel.nbytes for kernel, count in one.phases[phase].kernels.items() if kernel.engine is Engine.MEMORY
    )


@pytest.mark.parametrize(("phase", "work"), [("forward", "forward"), ("inputs", "backward")])
def test_a_bias_that_ends_experts_is_added_expert_by_expert(phase: str, work: str) -> None:
    made = program(BIASED, APART, stack="megatron")
    apart, whole = (book(on(made, replace(STACKS["megatron"], graphs=graphs))) for graphs in ("none", "step"))
    more: Counter[Kernel] = Counter(apart.phases[phase].kernels)
    more.subtract(whole.phases[phase].kernels)
    ((kernel, count),) = [(kernel, count) for kernel, count in more.items() if count]
    kernels, each_bytes = EXPERT_BIAS[work]
    assert count == 2 * kernels  # of two experts on each rank
    rows = SEQ * BIASED.topk  # as many as leave each rank
    assert count * kernel.nbytes == pytest.approx(each_bytes * rows * BIASED.hidden)
