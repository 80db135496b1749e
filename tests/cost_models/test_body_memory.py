"""What the parameters of a block take, by hand: two weights of 1,024 elements each, under every way to store them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from meshwright.cost_models.memory.body import BodyMemory, body_memory
from tests.cost_models.test_liveness import program

E = 2048
"""Elements of both weights."""
PATHS = frozenset(("up", "down"))


def of(stack: str, degrees: dict[str, Any], recipe: str, name: str = "block", **words: Any) -> BodyMemory:
    made = program(stack, **degrees)
    assert made.workload is not None
    return body_memory(made.body(name), replace(made.workload, recipe=recipe, **words), name == "block")


def slots(parameter: float, gradient: float, state: float) -> tuple[tuple[str, float, float, float], ...]:
    """Half of these bytes for each of both."""
    return tuple((path, parameter / 2, gradient / 2, state / 2) for path in ("up", "down"))


@pytest.mark.parametrize(
    ("stack", "degrees", "recipe", "expected"),
    [
        # four bytes, and moments of eight
        (
            "torch",
            {},
            "fp32",
            {"pooled": True, "parameters": 4 * E, "gradients": 4 * E, "optimizer": 8 * E}
            | {"slots": slots(4 * E, 4 * E, 8 * E)},
        ),
        # DDP copies gradients to buckets
        (
            "torch",
            {"dp": 2},
            "fp32",
            {"pooled": True, "parameters": 4 * E, "gradients": 4 * E, "optimizer": 8 * E, "buckets": 4 * E}
            | {"slots": slots(4 * E, 4 * E, 8 * E)},
        ),
        # units cast what every rank holds, and sum its gradients in four bytes behind the last pass
        (
            "torch",
            {"dp": 2},
            "fsdp",
            {"pooled": True, "parameters": 4 * E, "gradients": 4 * E, "optimizer": 8 * E}
            | {"unit": 2 * E, "travelling_last": 4 * E, "slots": slots(4 * E, 4 * E, 8 * E)},
        ),
        # quarters, gathered in two bytes
        (
            "torch",
            {"dp": 4, "zero": 3},
            "fsdp",
            {"pooled": True, "parameters": E, "gradients": E, "pooled_gradients": E, "optimizer": 2 * E}
            | {"unit": 2 * E, "message": 2 * E, "unit_gradients": 2 * E, "travelling": 4 * E}
            | {"slots": slots(E, E, 2 * E), "units": PATHS},
        ),
        # planned whole, and quarters all the same
        (
            "torch",
            {"dp": 4, "zero": 2},
            "fsdp",
            {"pooled": True, "parameters": E, "gradients": E, "pooled_gradients": E, "optimizer": 2 * E}
            | {"unit": 2 * E, "message": 2 * E, "unit_gradients": 2 * E, "travelling": 4 * E, "unit_kept": True}
            | {"slots": slots(4 * E, E, 2 * E), "units": PATHS},
        ),
        # whole gradients, which are scattered once a step to shards that are stepped
        (
            "torch",
            {"dp": 4, "zero": 1},
            "fsdp",
            {"pooled": True, "parameters": E, "gradients": 4 * E, "left_behind": 4 * E, "optimizer": 2 * E}
            | {"unit": 2 * E, "message": 2 * E, "unit_kept": True, "stays": True, "stepped": E}
            | {"slots": slots(4 * E, 4 * E, 2 * E), "units": PATHS},
        ),
        # two bytes, four of gradients, a master copy and moments of twelve
        (
            "megatron",
            {"dp": 4, "zero": 1},
            "megatron",
            {"parameters": 2 * E, "gradients": 4 * E, "optimizer": 3 * E, "slots": slots(2 * E, 4 * E, 3 * E)}
            | {"products": (((64, 16), E), ((16, 64), E))},
        ),
        (
            "megatron",
            {"dp": 4, "zero": 3},
            "megatron",
            {"parameters": E / 2, "gradients": E, "optimizer": 3 * E, "slots": slots(E / 2, E, 3 * E)}
            | {"unit": 2 * E, "message": 2 * E, "unit_gradients": 2 * E, "travelling": 4 * E}
            | {"products": (((64, 16), E), ((16, 64), E))},
        ),
        # gradients of two bytes are stepped as four
        (
            "megatron-2021",
            {"dp": 4, "zero": 3},
            "megatron-bf16-grads",
            {"parameters": E / 2, "gradients": E / 2, "optimizer": 3 * E, "slots": slots(E / 2, E / 2, 3 * E)}
            | {"unit": 2 * E, "message": 2 * E, "unit_gradients": 2 * E, "travelling": 2 * E, "stepped": E},
        ),
        # half of the master copy, the moments and a gradient lie on the host
        (
            "torch",
            {"dp": 2, "zero": 1, "offload": "optimizer"},
            "megatron",
            {"pooled": True, "parameters": E, "gradients": 4 * E, "left_behind": 4 * E, "host_state": 8 * E}
            | {"unit": 2 * E, "message": 2 * E, "unit_kept": True, "stays": True, "stepped": 2 * E}
            | {"slots": slots(2 * E, 4 * E, 0), "units": PATHS},
        ),
        # XLA makes a buffer for the sums
        (
            "jax",
            {"dp": 2},
            "megatron",
            {"parameters": 2 * E, "gradients": 4 * E, "optimizer": 12 * E, "stepped": 4 * E}
            | {"slots": slots(2 * E, 4 * E, 12 * E)},
        ),
    ],
)
def test_where_states_lie(stack: str, degrees: dict[str, Any], recipe: str, expected: dict[str, Any]) -> None:
    found = of(stack, degrees, recipe)
    told = {field.name: getattr(found, field.name) for field in fields(found) if field.name != "passes"}
    assert {name: value for name, value in told.items() if value} == expected


def test_a_host_without_master_copies_has_what_is_stepped() -> None:
    """Halves in four bytes with moments of eight, and a gradient that has come down in four."""
    assert of("torch", {"dp": 2, "zero": 1, "offload": "optimizer"}, "fp32").host_state == (4 + 8 + 4) * E / 2


def test_what_of_a_unit_is_not_of_experts() -> None:
    """A quarter of eighty bytes is; what is no message is all the rest."""
    known = of("torch", {"dp": 4, "zero": 3}, "fsdp")
    part = replace(known, message=80.0, message_routed=20.0)
    assert (part.rest(8.0), part.behind) == (6.0, 60.0)
    assert (replace(part, message=0.0).rest(8.0), replace(part, unit_kept=True).behind) == (8.0, 0.0)
    assert [one.casts for one in (part, replace(part, message=0.0), replace(part, message=0.0, unit_kept=True))] == [
        False,
        True,
        False,
    ]


def test_parameters_that_travel_one_by_one() -> None:
    """DeepSpeed's way: the largest gradient in two bytes and a bucket in two more; no unit of gradients."""
    made = program("megatron-2021", dp=4, zero=3)
    assert made.workload is not None
    stack = replace(made.workload.stack, piecewise=True)
    found = body_memory(made.body("block"), replace(made.workload, stack=stack, recipe="megatron-bf16-grads"), True)
    assert found.piece == 1024 * 2 + E * 2
    assert (found.unit_gradients, found.travelling, found.unit) == (0, 0, 2 * E)
    plain = body_memory(made.body("block"), replace(made.workload, recipe="megatron-bf16-grads"), True)
    assert plain.piece == 0


def test_the_gradient_of_a_borrowed_parameter_goes_back_to_its_lender() -> None:
    """In two bytes, beside those that are added up in four; nothing else of it is here."""
    made = program("torch")
    assert made.workload is not None
    body = made.body("block")
    params = tuple(replace(one, borrowed="lender") if one.path == "up" else one for one in body.params)
    found = body_memory(replace(body, params=params), replace(made.workload, recipe="megatron"), True)
    assert (found.gradients, found.left_behind) == (4 * E / 2 + 2 * E / 2, 2 * E / 2)
    assert found.parameters == 2 * E / 2
