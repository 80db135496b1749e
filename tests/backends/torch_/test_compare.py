"""The oracle: what a whole graph computes, by hand; random values and terms; verdicts on what was changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from meshwright.backends.torch_.verify.interpreted import compare, step
from meshwright.backends.torch_.verify.interpreted.compare import (
    Sharded,
    Whole,
    largest,
    program_differences,
    random_values,
    spread,
    whole,
)
from meshwright.backends.torch_.verify.interpreted.simulate import TorchKernels
from meshwright.backends.torch_.verify.interpreted.step import Data, Reference, random_data, reference, step_differences
from meshwright.ir.graph.fold import Body, Fold, FromInput, FromPrevious, Segment, unfold
from meshwright.ir.graph.graph import Graph, Type
from meshwright.ir.interp.steps import StepResult
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.program import Local
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement
from tests.build import Builder
from tests.llama_block import Sizes, model


def wide(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# Whole graphs -------------------------------------------------------------------------------------------------------


def small() -> Graph:
    """y = x w and z = (x w) b, where b is a buffer that grows by x; of f, frozen, and u, unused, nothing is read; n are
    whole numbers; c is y once more, outside of differentiation."""
    g = Builder()
    x = g.input((2,), dtype="f64", requires_grad=True)
    w, b = g.param("w", (2,), dtype="f64"), g.buffer("b", (2,), dtype="f64")
    g.param("u", (2,), dtype="f64")
    g.param("f", (2,), dtype="f64", requires_grad=False)
    y = g.op("mul", x, w, name="y")
    z = g.op("mul", y, b, name="z")
    n = g.op("cast", y, dtype="i64", name="n")
    c = g.op("cast", y, dtype="f32", no_grad=True, name="c")
    g.output(y, z, n, c)
    g.update("b", g.op("add", b, x, no_grad=True, name="grown"))
    return g.graph()


VALUES = {"x": wide(1.5, 2.0), "p.w": wide(3.0, 5.0), "p.b": wide(7.0, 11.0), "p.u": wide(1.0, 1.0), "p.f": wide(1, 1)}


def test_a_whole_graph_by_hand() -> None:
    """dx = w (dy + b dz), dw = x (dy + b dz); nothing flows to what is unused, and nothing else has a gradient."""
    found = whole(small(), VALUES)
    assert {name: one.tolist() for name, one in found.outputs.items()} == {
        "y": [4.5, 10.0],
        "z": [31.5, 110.0],
        "n": [4, 10],
        "c": [4.5, 10.0],
    }
    assert found.outputs["c"].dtype is torch.float64  # fp32 is computed wider, whole numbers are none of these
    assert found.outputs["n"].dtype is torch.int64
    assert found.cotangents.keys() == {"y", "z"}
    flows = found.cotangents["y"] + VALUES["p.b"] * found.cotangents["z"]
    expected = {"x": VALUES["p.w"] * flows, "p.w": VALUES["x"] * flows, "p.u": wide(0.0, 0.0)}
    assert found.grads.keys() == expected.keys()
    for name, one in expected.items():
        torch.testing.assert_close(found.grads[name], one)
    assert {path: one.tolist() for path, one in found.buffers.items()} == {"b": [8.5, 13.0]}
    assert not VALUES["x"].requires_grad
    again, other = whole(small(), VALUES, 0), whole(small(), VALUES, 1)
    assert torch.equal(again.cotangents["y"], found.cotangents["y"])
    assert not torch.equal(other.cotangents["y"], found.cotangents["y"])


def test_a_loss_is_differentiated_by_itself() -> None:
    g = Builder()
    x = g.input((2,), dtype="f64", requires_grad=True)
    g.loss(g.op("sum", g.op("mul", x, x)))
    found = whole(g.graph(), {"x": wide(3.0, 4.0)})
    (cotangent,) = found.cotangents.values()
    assert cotangent.item() == 1.0
    assert found.grads["x"].tolist() == [6.0, 8.0]


def test_a_graph_that_nothing_flows_back_through_has_no_gradients() -> None:
    """Its parameter is read outside of differentiation."""
    g = Builder()
    g.output(g.op("mul", g.input((1,), dtype="f64"), g.param("w", (1,), dtype="f64"), no_grad=True))
    found = whole(g.graph(), {"x": wide(2.0), "p.w": wide(3.0)})
    assert (found.grads["p.w"].tolist(), found.cotangents) == ([0.0], {})


def looked_up(rows: int = 0, classes: int = 0) -> Graph:
    """Ids that index a table, or scores, or neither."""
    g = Builder()
    ids = g.input((64,), name="ids", dtype="i64")
    if rows:
        g.output(g.op("embedding", g.param("table", (rows, 9)), ids))
    if classes:
        g.output(g.op("cross_entropy", g.input((64, classes)), ids))
    return g.graph()


@pytest.mark.parametrize(("rows", "classes", "below"), [(3, 0, 3), (0, 4, 4), (5, 3, 3), (3, 5, 3), (0, 0, 2)])
def test_whole_numbers_index_whatever_they_meet(rows: int, classes: int, below: int) -> None:
    """The shorter of what they are looked up in; 0 and 1 if that is nothing."""
    assert set(random_values(looked_up(rows, classes))["ids"].tolist()) == set(range(below))


def test_random_values_are_those_of_a_seed_but_for_what_is_given() -> None:
    graph = looked_up(3)
    first, again, other = random_values(graph), random_values(graph, 0), random_values(graph, 1)
    assert first["p.table"].dtype is torch.float64
    assert torch.equal(first["p.table"], again["p.table"])
    assert not torch.equal(first["p.table"], other["p.table"])
    ids = torch.zeros(64, dtype=torch.int64)
    assert random_values(graph, given={"ids": ids})["ids"] is ids


def test_the_largest_of_floating_tensors_and_not_less_than_one() -> None:
    assert largest({"a": wide(0.5, -3.0), "b": wide(2.0), "n": torch.tensor([9]), "none": wide()}) == 3.0
    assert largest({"a": wide(0.5, -0.25)}) == 1.0
    assert largest({}) == 1.0


# Terms --------------------------------------------------------------------------------------------------------------


def test_a_sum_is_cut_into_terms_of_which_none_is_idle() -> None:
    """Along b, a mesh axis of two; what a cuts is cut, and along c there are copies."""
    mesh, type_, whole_one = Mesh.parse("a=2 b=2 c=2"), Type((4,), "f64"), wide(1.0, 2.0, 3.0, 4.0)
    found = spread(TorchKernels(), whole_one, Local(type_, Placement.parse("[a]+sum(b)")), mesh)
    at = {
        (point["a"], point["b"], point["c"]): found[rank] for rank, point in enumerate(map(mesh.coordinates, range(8)))
    }
    for a in (0, 1):
        for c in (0, 1):
            torch.testing.assert_close(at[a, 0, c] + at[a, 1, c], whole_one[2 * a : 2 * a + 2])
            assert torch.equal(at[a, 0, c], at[a, 0, 0])
            assert torch.equal(at[a, 1, c], at[a, 1, 0])
            assert (at[a, 1, c] != 0).all()
            assert (at[a, 0, c] != whole_one[2 * a : 2 * a + 2]).all()


def test_what_is_no_sum_is_cut_only() -> None:
    """The largest of several is held by all."""
    mesh, type_ = Mesh.parse("a=2 b=2"), Type((2,), "f64")
    found = spread(TorchKernels(), wide(1.0, 2.0), Local(type_, Placement.parse("[a]+max(b)")), mesh)
    assert [one.tolist() for one in found] == [[1.0], [1.0], [2.0], [2.0]]


# Verdicts on a body -------------------------------------------------------------------------------------------------

MODEL = Whole(
    outputs={"y": wide(4.0, 2000.0), "tiny": wide(1e-6), "n": torch.tensor([3, 4])},
    grads={"x": wide(8.0), "p.w": wide(500.0), "small": wide(1e-6)},
    cotangents={},
    buffers={},
)
"""A thousandth of the largest, 2 and 0.5, is what small ones are measured by; a billionth of that may be off."""

BODY: dict[str, tuple[Mapping[str, Tensor], Mapping[str, Tensor | None], list[str]]] = {
    "nothing": ({}, {}, []),
    "an output": ({"y": wide(4.0, 2000.0 + 3e-6)}, {}, ["%y"]),
    "rounding of an output": ({"y": wide(4.0 + 1e-6, 2000.0)}, {}, []),
    "a small output": ({"tiny": wide(1e-6 + 3e-9)}, {}, ["%tiny"]),
    "rounding of a small output": ({"tiny": wide(1e-6 + 1e-9)}, {}, []),
    "a whole number": ({"n": torch.tensor([3, 5])}, {}, ["%n"]),
    "a gradient": ({}, {"x": wide(8.0 + 1e-7)}, ["gradient of %x"]),
    "a small gradient": ({}, {"small": wide(1e-6 + 1e-9)}, ["gradient of %small"]),
    "rounding of a small gradient": ({}, {"small": wide(1e-6 + 3e-10)}, []),
    "a gradient of a parameter that is lost": ({}, {"p.w": None}, ["no gradient of %p.w"]),
    "a gradient of an input that is not wanted": ({}, {"x": None}, []),
}


def test_a_body_differs_in_what_was_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "whole", lambda *_: MODEL)
    for what, (outputs, grads, expected) in BODY.items():
        held = {name: one for name, one in {**MODEL.grads, **grads}.items() if one is not None}
        program: Any = None
        found = Sharded(program=program, outputs={**MODEL.outputs, **outputs}, grads=held)
        monkeypatch.setattr(compare, "sharded", lambda *_, found=found: found)
        assert program_differences(small(), program, {}) == expected, what


# Whole steps --------------------------------------------------------------------------------------------------------


def moving() -> Fold:
    """The loss is the sum of x w + b, whose buffer b grows by x."""
    g = Builder()
    x = g.input((2,), dtype="f64", labels=("b",))
    b = g.buffer("b", (2,), dtype="f64")
    g.param("frozen", (2,), dtype="f64", requires_grad=False)
    g.loss(g.op("sum", g.op("add", g.op("mul", x, g.param("w", (2,), dtype="f64")), b)))
    g.update("b", g.op("add", b, x, no_grad=True))
    body, given = Body("all", g.graph()), FromInput("x")
    segment = Segment(("all",), ("",), (given,), ((given,),), glue=True)
    return Fold(
        bodies=(body,),
        segments=(segment,),
        inputs=((g.inputs[0], g.types["x"]),),
        outputs=(FromPrevious(0),),
        loss=0,
    )


def test_a_step_of_two_micro_batches_by_hand() -> None:
    """By a quarter and three quarters: 0.25 (1*3 + 2*5 + 7 + 11) + 0.75 (10*3 + 20*5 + 8 + 13), where b has grown by
    then; the gradient of w is 0.25 x + 0.75 x', and b grows by both."""
    parameters = {"w": wide(3.0, 5.0), "b": wide(7.0, 11.0), "frozen": wide(1.0, 1.0)}
    found = reference(moving(), Data(parameters, [{"x": wide(1.0, 2.0)}, {"x": wide(10.0, 20.0)}], [0.25, 0.75]))
    assert found.loss.item() == 0.25 * 31 + 0.75 * 151
    assert {path: one.tolist() for path, one in found.grads.items()} == {"w": [7.75, 15.5]}
    assert {path: one.tolist() for path, one in found.buffers.items()} == {"b": [18.0, 33.0]}


def test_micro_batches_are_drawn_one_by_one_and_weigh_the_same() -> None:
    fold = moving()
    graph = unfold(fold)
    data = random_data(fold, 4, 3)
    assert list(data.weights) == [0.25] * 4
    for number, batch in enumerate(data.batches):
        assert torch.equal(batch["x"], random_values(graph, 3 + number)["x"])
    drawn = random_values(graph, 3)
    for param in graph.params:
        torch.testing.assert_close(data.parameters[param.path], 0.3 * drawn[param.value])
    assert torch.equal(random_data(fold, 1).batches[0]["x"], random_values(graph, 0)["x"])


LLAMA = model(Sizes(layers=1))
EXPECTED = Reference(
    loss=torch.tensor(2.5, dtype=torch.float64),
    grads={"embed.weight": wide(4000.0), "norm.weight": wide(1e-3)},
    buffers={"count": wide(5.0)},
)
GIVEN = {"embed.weight": wide(100.0), "norm.weight": wide(10.0)}
STEPPED = {"embed.weight": wide(100.0 - 400.0), "norm.weight": wide(10.0 - 1e-4)}
"""By a tenth of the gradients."""
STEP: dict[str, tuple[str, Mapping[str, Tensor], list[str]]] = {
    "nothing": ("gradients", {}, []),
    "the loss": ("outputs", {"loss": wide(2.5 + 1e-8)}, ["loss"]),
    "rounding of the loss": ("outputs", {"loss": wide(2.5 + 1e-9)}, []),
    "a buffer": ("buffers", {"count": wide(5.0 + 1e-8)}, ["buffer count"]),
    "rounding of a buffer": ("buffers", {"count": wide(5.0 + 1e-9)}, []),
    "a small gradient": ("gradients", {"norm.weight": wide(1e-3 + 5e-9)}, ["gradient of norm.weight"]),
    "rounding of a small gradient": ("gradients", {"norm.weight": wide(1e-3 + 3e-9)}, []),
    "a parameter": ("parameters", {"norm.weight": wide(10.0 - 1e-4 + 2e-8)}, ["norm.weight after the step"]),
    "another parameter": ("parameters", {"embed.weight": wide(-301.0)}, ["embed.weight after the step"]),
    "another gradient": ("gradients", {"embed.weight": wide(4001.0)}, ["gradient of embed.weight"]),
}
"""Of the largest gradient, 4000, a thousandth is what smaller ones are measured by: a billionth of that is 4e-9."""


def test_a_step_differs_in_what_was_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "reference", lambda *_: EXPECTED)
    for what, (part, changed, expected) in STEP.items():
        loss = changed["loss"] if part == "outputs" else wide(2.5)
        found = {"gradients": {**EXPECTED.grads}, "parameters": {**STEPPED}, "buffers": {**EXPECTED.buffers}}
        if part in found:
            found[part] |= changed
        result = StepResult(outputs=((loss[0],), (loss[0],)), **found)
        monkeypatch.setattr(step, "run_step", lambda *_, result=result, **__: result)
        data = Data(GIVEN, [{}, {}], [0.25, 0.75])
        assert step_differences(LLAMA, template(LLAMA, Degrees(dp=2)), data) == expected, what


def test_copies_are_the_same_up_to_rounding() -> None:
    kernels = TorchKernels(1e-9)
    assert kernels.same(wide(1.0), wide(1.0 + 1e-10))
    assert not kernels.same(wide(1.0), wide(1.0 + 1e-8))
    assert not kernels.same(wide(1.0), wide(1.0, 1.0))
    assert kernels.same(torch.tensor([3]), torch.tensor([3]))
    assert not kernels.same(torch.tensor([3]), torch.tensor([4]))
