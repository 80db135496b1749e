"""Costs added up, and what a stretch takes when its parts run together, in whole seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost_models.collectives.collective import collective
from meshwright.cost_models.collectives.topology import GroupShape, Level
from meshwright.cost_models.compute.kernels import Compute, Kernel
from meshwright.cost_models.cost import (
    NOTHING,
    Cost,
    added,
    attention_of,
    cost_of,
    distinct,
    fastest,
    library_of,
    slowest,
)
from meshwright.cost_models.hardware.devices import device
from meshwright.cost_models.ledger.ledger import Phase, Transmission
from meshwright.cost_models.profile import StepConstants
from meshwright.cost_models.step import together
from meshwright.ir.rules.base import Engine
from meshwright.ir.target.workload import STACKS, Stack, Workload

ONE = Cost((1, 2, 3), 4, 5, (6, 7, 8), 9, 10, 11, 12, 13, 14, (("kernels", "fitted"),))
OTHER = Cost((30, 20, 10), 3, 6, (1, 9, 2), 1, 20, 5, 30, 2, 8, (("kernels", "assumed"), ("overlap", "fitted")))
BOTH = (("kernels", "assumed"), ("overlap", "fitted"))

STEP = StepConstants(hidden_tensor=0.75, hidden_backward=0.5, covered=0.5, slowdown=0.25, straggling=0.0)
TORCH = STACKS["torch"]


def hiding(*what: str, **words: Any) -> Stack:
    return replace(TORCH, **{"hides": what, "regathers": False} | words)


def test_runs_add_up_and_the_first_gather_is_the_largest() -> None:
    twice = Cost((61, 42, 23), 10, 17, (8, 25, 12), 11, 50, 11, 30, 17, 30, BOTH)
    assert ONE.plus(OTHER, 2) == twice
    assert added((ONE, OTHER, OTHER)) == twice
    assert ONE.plus(NOTHING, 3) == ONE
    assert NOTHING.plus(ONE) == ONE
    assert NOTHING.plus(ONE, 2) == ONE.plus(ONE)
    assert (ONE.device_s, ONE.published_s, OTHER.published_s) == (6, 22, 50)


def test_ranks_that_wait_take_the_most_of_every_sort() -> None:
    assert slowest((ONE, OTHER)) == Cost((30, 20, 10), 4, 6, (6, 9, 8), 9, 20, 11, 30, 13, 14, BOTH)
    assert fastest((ONE, OTHER)) == Cost((1, 2, 3), 3, 5, (1, 7, 2), 1, 10, 5, 12, 2, 8, BOTH)
    assert slowest((ONE,)) == ONE


def taken(cost: Cost, stack: Stack, **words: Any) -> dict[str, float]:
    """Every share that is not nothing, the sum, and what runs beside."""
    found = together(STEP, stack, cost, 1.0, **words)
    assert found.seconds == pytest.approx(sum(seconds for _, seconds in found.shares))
    return {name: seconds for name, seconds in found.shares if seconds} | {"": found.seconds, "beside": found.beside_s}


@pytest.mark.parametrize(
    ("cost", "stack", "expected"),
    [
        (Cost((3, 2, 1)), hiding(), {"matmul": 3, "attention": 2, "memory-bound": 1, "": 6}),
        # ten launches of a second behind six of work leave four
        (Cost((3, 2, 1), 10), hiding(), {"matmul": 3, "attention": 2, "memory-bound": 1, "launch": 4, "": 10}),
        (Cost((3, 2, 1), 5), hiding(), {"matmul": 3, "attention": 2, "memory-bound": 1, "": 6}),
        # of ten that take five are awaited: those count whole, the others run ahead of the work
        (Cost((3, 2, 1), 10, 5), hiding(), {"matmul": 3, "attention": 2, "memory-bound": 1, "launch": 5, "": 11}),
        (Cost((3, 0, 0), 10, 5), hiding(), {"matmul": 3, "launch": 7, "": 10}),
        # what the host does to run a module again is not launched ahead
        (Cost((3, 2, 1), 5, host_s=2), hiding(), {"matmul": 3, "attention": 2, "memory-bound": 1, "launch": 2, "": 8}),
        (Cost(values=(8, 2, 4)), hiding(), {"tensor": 8, "context": 2, "expert": 4, "": 14}),
        (Cost(values=(8, 2, 4)), hiding("tensor"), {"tensor": 2, "context": 2, "expert": 4, "": 8}),
        # a ring runs behind attention and what its launches leave
        (Cost((0, 5, 0), ring_s=3), hiding(), {"attention": 5, "context": 3, "": 8}),
        (Cost((0, 5, 0), ring_s=3), hiding("ring"), {"attention": 5, "": 5}),
        (Cost((0, 5, 0), ring_s=7), hiding("ring"), {"attention": 5, "context": 2, "": 7}),
        (Cost((0, 5, 0), 6, ring_s=7), hiding("ring"), {"attention": 5, "launch": 1, "context": 1, "": 7}),
        # gathers and reductions are shown whole, or beyond half of the compute, which a quarter of them slows
        (Cost((8, 0, 0), gathers_s=2, reductions_s=3), hiding(), {"matmul": 8, "parameters": 5, "": 13}),
        (Cost((8, 0, 0), gathers_s=2), hiding("parameters"), {"matmul": 8, "parameters": 0.5, "": 8.5, "beside": 2}),
        (Cost((8, 0, 0), gathers_s=6), hiding("parameters"), {"matmul": 8, "parameters": 3, "": 11, "beside": 6}),
        (
            Cost((8, 0, 0), gathers_s=2, first_gather_s=1),
            hiding("parameters"),
            {"matmul": 8, "parameters": 1.25, "": 9.25, "beside": 2},
        ),
        (
            Cost((8, 0, 0), gathers_s=2, reductions_s=3),
            hiding("gradients"),
            {"matmul": 8, "parameters": 2.75, "": 10.75, "beside": 3},
        ),
        (
            Cost((8, 0, 0), gathers_s=2, reductions_s=3, first_gather_s=9),
            hiding("gradients"),
            {"matmul": 8, "parameters": 2.75, "": 10.75, "beside": 3},
        ),
        # a ring's compute is taken already: of five seconds three are hidden, and half of two can cover
        (
            Cost((0, 5, 0), ring_s=3, reductions_s=4),
            hiding("ring", "gradients"),
            {"attention": 5, "parameters": 3.25, "": 8.25, "beside": 4},
        ),
        # behind another micro-batch exchanges cost a quarter of what compute covers, here six of eight
        (Cost((6, 0, 0), values=(0, 0, 8)), hiding("expert"), {"matmul": 6, "expert": 3.5, "": 9.5, "beside": 8}),
        (
            Cost((6, 0, 0), values=(0, 0, 8), reductions_s=2),
            hiding("expert", "gradients"),
            {"matmul": 6, "parameters": 0.5, "expert": 5, "": 11.5, "beside": 10},
        ),
    ],
)
def test_what_runs_together(cost: Cost, stack: Stack, expected: dict[str, float]) -> None:
    assert taken(cost, stack) == pytest.approx({"beside": 0} | expected)


@given(
    compute=st.floats(0, 100),
    gathers=st.floats(0, 100),
    share=st.floats(0, 1),
    reductions=st.floats(0, 100),
    slowdown=st.floats(0, 1),
)
def test_nothing_is_dearer_hidden_than_shown(
    compute: float, gathers: float, share: float, reductions: float, slowdown: float
) -> None:
    """Compute beside collectives is slowed by what it hides of them, and by no more."""
    cost = Cost((compute, 0, 0), gathers_s=gathers, first_gather_s=share * gathers, reductions_s=reductions)
    step = replace(STEP, slowdown=slowdown)
    hidden = together(step, hiding("parameters", "gradients"), cost, 0.0).seconds
    assert compute + slowdown * (gathers + reductions) - 1e-9 <= hidden <= compute + gathers + reductions + 1e-9


def test_what_belongs_to_a_backward_pass() -> None:
    """Weight gradients counted elsewhere cover reductions too, and hide half of tensor parallelism where values are
    gathered again; what runs a second time is a share of its own."""
    weights = Cost((4, 0, 0), 6)
    cost = Cost((3, 2, 1), values=(8, 0, 0), reductions_s=6)
    parts = {"matmul": 3, "attention": 2, "memory-bound": 1}
    plain = taken(cost, hiding("gradients"), beside=weights)  # half of 6 + 6 covers 6
    assert plain == pytest.approx(parts | {"tensor": 8, "parameters": 1.5, "": 15.5, "beside": 6})
    short = taken(cost, hiding("gradients"), beside=replace(weights, launches=2))  # half of 6 + 4 covers 5
    assert short == pytest.approx(parts | {"tensor": 8, "parameters": 1 + 1.25, "": 16.25, "beside": 6})
    assert taken(cost, hiding(regathers=True), beside=Cost())["tensor"] == 4
    assert taken(cost, hiding(regathers=True))["tensor"] == 8
    assert taken(cost, hiding("tensor", regathers=True), beside=Cost())["tensor"] == 2
    again = taken(cost, hiding(), again=Cost((1, 0, 1)))
    assert again == pytest.approx(
        {"matmul": 2, "attention": 2, "recompute": 2, "tensor": 8, "parameters": 6, "": 20, "beside": 0}
    )
    alone = taken(Cost((6, 0, 0), values=(0, 0, 8)), hiding("expert"), alone=True)
    assert alone == pytest.approx({"matmul": 6, "expert": 8, "": 14, "beside": 0})


# One phase -----------------------------------------------------------------------------------------------------------

WIRES = GroupShape(
    ranks=4,
    units=1,
    levels=(
        Level(
            tier="island",
            kind="nvlink4",
            parts=4,
            members=1,
            part_bytes_per_s=450e9,
            rank_bytes_per_s=450e9,
            pair_bytes_per_s=450e9,
            latency_s=0.0,
        ),
    ),
    devices=("H100-80G",),
)
H100 = device("H100")
SIZE = 1e8


def cost(*sent: tuple[Transmission, int], stack: Stack = TORCH, kernels: Any = None, awaited: bool = False) -> Cost:
    phase = Phase()
    phase.kernels.update(kernels or {})
    phase.transmissions.update(dict(sent))
    workload = Workload(global_batch=1, seq=1, stack=stack, imbalance=2.0)
    shapes = {one.axes: WIRES for one, _ in sent}
    return cost_of(phase, Compute(H100), shapes, "nccl", workload, awaited=awaited)


def seconds(kind: Any, nbytes: float = SIZE, imbalance: float = 1.0) -> float:
    return collective(kind, nbytes, WIRES, "nccl", imbalance=imbalance).seconds


@pytest.mark.parametrize(
    ("kind", "axis", "reason", "where"),
    [
        ("all_gather", "tp", "value", "tensor"),
        ("all_gather", "cp", "gradient", "context"),
        ("all_gather", "cp_shard", "value", "context"),
        ("all_gather", "ep", "value", "expert"),
        ("all_gather", "cp", "parameter", "gathers_s"),
        ("all_gather", "dp", "update", "gathers_s"),
        ("reduce_scatter", "dp", "sync", "reductions_s"),
        ("shift", "cp", "ring", "ring_s"),
    ],
)
def test_collectives_are_sorted_by_what_they_are_for(kind: Any, axis: str, reason: str, where: str) -> None:
    found = cost((Transmission(kind, (axis,), SIZE, reason, steps=3), 2))
    expected = dict.fromkeys(("tensor", "context", "expert", "ring_s", "gathers_s", "reductions_s"), 0.0)
    expected[where] = 6 * seconds(kind)
    told = dict(zip(("tensor", "context", "expert"), found.values, strict=True))
    told |= {name: getattr(found, name) for name in ("ring_s", "gathers_s", "reductions_s")}
    assert told == pytest.approx(expected)
    assert found.first_gather_s == found.gathers_s
    assert found.starts_s == 0


def test_the_widest_use_of_axes_counts() -> None:
    found = cost((Transmission("all_gather", ("tp", "ep"), SIZE, "value"), 1))
    assert found.values == pytest.approx((0, 0, seconds("all_gather")))


def test_exchanges_are_uneven_and_may_send_every_token_once() -> None:
    sent = Transmission("all_to_all", ("ep",), SIZE, "value", picks=2)
    assert cost((sent, 1)).values[2] == pytest.approx(seconds("all_to_all", imbalance=2.0))
    once = SIZE * 4 * (1 - (3 / 4) ** 2) / 2
    own = cost((sent, 1), stack=replace(TORCH, dedupes=True))
    assert own.values[2] == pytest.approx(seconds("all_to_all", once, imbalance=2.0))
    assert distinct(1, WIRES) == 1
    assert distinct(3, WIRES) == pytest.approx(4 * (1 - 27 / 64) / 3)
    assert distinct(3, GroupShape(ranks=1, units=1, levels=(), devices=("H100-80G",))) == 1


def test_some_stacks_send_parameters_rank_by_rank() -> None:
    """Bytes by broadcasts, and once what starting four of them takes."""
    stack = replace(TORCH, broadcasts=True)
    for kind, reason in (("all_gather", "update"), ("reduce_scatter", "sync")):
        found = cost((Transmission(kind, ("dp",), SIZE, reason, steps=3), 2), stack=stack)  # type: ignore[arg-type]
        assert found.gathers_s + found.reductions_s == pytest.approx(2 * seconds("broadcast"))
        assert found.starts_s == pytest.approx(4 * seconds("broadcast", 1.0))
    whole = cost((Transmission("all_reduce", ("dp",), SIZE, "sync"), 1), stack=stack)
    assert (whole.reductions_s, whole.starts_s) == (pytest.approx(seconds("all_reduce")), 0)


def test_kernels_are_sorted_by_engine() -> None:
    compute = Compute(H100)
    made = {
        Kernel(Engine.MATMUL, "forward", "bf16", 2.0 * 512**3, 0.0, (1, 512, 512, 512)): 2,
        Kernel(Engine.CONV, "forward", "bf16", 1e9, 1e6): 3,
        Kernel(Engine.ATTENTION, "forward", "bf16", 4e9, 0.0, (1, 8, 8, 512, 512, 64, 64)): 5,
        Kernel(Engine.MEMORY, "forward", "bf16", 0.0, 1e6): 7,
    }
    matmul, conv, attention, memory = (times * compute.seconds(kernel).seconds for kernel, times in made.items())
    found = cost(kernels=made)
    assert found.engines == pytest.approx((matmul + conv, attention, memory))
    assert (found.launches, found.awaited) == (17, 0)
    assert cost(kernels=made, awaited=True).awaited == 17
    assert cost(kernels=made, stack=replace(TORCH, graphs="step")).launches == 0


def test_whose_collectives_and_whose_attention() -> None:
    plain = Workload(global_batch=1, seq=1, stack=TORCH)
    whole = replace(plain, stack=next(stack for stack in STACKS.values() if stack.style == "xla"))
    names = ("H100", "MI300X", "TPU-v5p", "CPU")
    assert [library_of(device(name), plain) for name in names] == ["nccl", "rccl", "xla", "gloo"]
    assert library_of(device("H100"), whole) == "xla"
    fused = replace(TORCH, style="fused", attention="math")
    assert attention_of(fused) == "megatron"
    assert attention_of(replace(fused, style="eager")) == "math"
    assert attention_of(replace(fused, attention="flash2")) == "flash2"
