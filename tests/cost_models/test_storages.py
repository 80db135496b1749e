"""What statements of two small bodies read of memory, and which names are as large as the logits.

The bodies are those of `tests/cost_models/test_liveness.py`: x + down(relu(up(x))), and the cross entropy of head(z).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.cost_models.memory.storages import Names
from meshwright.cost_models.memory.walk import Walk
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.program.kept import COPY
from meshwright.ir.program.lower_body import Lowering, lower_body
from meshwright.ir.program.program import Kept, operands_of, results_of
from meshwright.ir.sharding.mesh import Mesh
from tests.build import Builder
from tests.cost_models.test_liveness import U, program


def names(body: str, stack: str = "torch", **degrees: object) -> Names:
    made = program(stack, **degrees)
    assert made.workload is not None
    return Names(made.body(body), made.workload, repeated=False)


def read(of: Names) -> dict[str, tuple[str, ...]]:
    """What every statement reads, by its first result."""
    return {results_of(one)[0]: of.reads(one) for one in of.statements}


LOGITS = {
    "torch": {"linear", "cross_entropy!0", "dlinear@1"},
    "megatron": {"linear", "dlinear@1"},
}


@pytest.mark.parametrize("stack", LOGITS)
def test_what_is_as_large_as_the_logits(stack: str) -> None:
    """Scores, what a loss keeps of them, and their gradient; neither what they are made of, nor the loss."""
    assert names("end", stack).logits_like() == LOGITS[stack]


def test_logits_in_shards_are_all_that_a_loss_makes_of_them() -> None:
    """Of their size: differences, exponentials, and their gradients."""
    found = names("end", tp=2).logits_like()
    assert {"linear", "cross_entropy.sub1", "cross_entropy.exp2"} <= found
    assert not {"cross_entropy.amax0", "cross_entropy.sum3", "z", "p.head"} & found
    assert {one.partition("@")[0] for one in found if one.startswith("d")} == {
        "dlinear",
        "dcross_entropy.sub1",
        "dcross_entropy.sub1+13",
        "dcross_entropy.exp2",
    }


def test_a_body_without_a_loss_has_no_logits() -> None:
    assert names("block").logits_like() == set()


def test_operators_read_operands_and_derivatives_what_kernels_kept() -> None:
    """Of a ReLU its result, of a product its operands, of a loss what it keeps of its own; and what arrives."""
    of_block, of_end = read(names("block")), read(names("end"))
    assert of_block["relu"] == ("linear",)
    assert of_block["add"] == ("x", "linear_1")
    assert set(of_block["dlinear@5"]) == {"relu", "drelu@3"}
    assert set(of_block["dx@1"]) == {"dadd!out0"}
    assert set(of_block["dx@6"]) == {"x", "p.up", "dlinear@5"}
    assert set(of_end["dlinear@1"]) == {"t", "dcross_entropy!out0", "cross_entropy!0"}


def test_compilers_read_what_a_derivative_is_made_of() -> None:
    assert set(read(names("block", "megatron"))["dlinear@5"]) == {"linear", "relu", "drelu@3"}


def test_products_read_copies_where_some_are_kept() -> None:
    """Of what they multiply with a weight, and of nothing else."""
    made = program("megatron")
    assert made.workload is not None
    body = made.body("block")
    kernels = replace(body.kernels, copied="mxfp8")
    kept = (*body.kept, Kept(f"x{COPY}", 8))
    copied = Names(replace(body, kernels=kernels, kept=kept), made.workload, repeated=False)
    assert copied.copies(("x", "linear")) == (f"x{COPY}",)
    assert f"x{COPY}" in read(copied)["dx@6"]
    assert f"x{COPY}" not in read(copied)["drelu@3"]
    plain = Names(replace(body, kept=kept), made.workload, repeated=False)
    assert plain.copies(("x", "linear")) == ()


def test_a_view_of_a_view_lies_where_the_first_value_does() -> None:
    g = Builder()
    x = g.input((4, 8), requires_grad=True)
    made = g.op("relu", x, name="made")
    turned = g.op("permute", g.op("view", made, shape=(8, 4), name="seen"), perm=(1, 0), name="turned")
    g.output(g.op("relu", turned, name="y"))
    body = lower_body(g.graph(), BodyPlan("body", "body"), Mesh.parse(""), Lowering())
    workload = program().workload
    assert workload is not None
    walk = Walk(Names(body, workload, repeated=False), body.backward, {"made": U}, set())
    assert walk.views == {"seen": "made", "turned": "made"}
    assert walk.storage("turned") == walk.storage("seen") == "made"
    assert operands_of(body.forward[2]) == ("seen",)
