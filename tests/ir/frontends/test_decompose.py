"""Operators taken apart, and the work of those that stay whole: two per multiply and add, worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from meshwright.ir.frontends.torch_.operators import decompose
from meshwright.ir.frontends.torch_.operators.decompose import flops, likeness, parts

ATEN = torch.ops.aten
WHOLE = torch.int64


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, device="meta", dtype=dtype)


def node(operator: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """The operator in a trace, given these tensors and numbers."""
    graph = fx.Graph()

    def placed(one: Any) -> Any:
        if isinstance(one, list):
            return [placed(part) for part in one]
        if not isinstance(one, Tensor):
            return one
        made = graph.placeholder("x")
        made.meta["val"] = one
        return made

    return graph.call_function(operator, tuple(map(placed, args)), {name: placed(one) for name, one in kwargs.items()})


def inside(one: fx.Node, known: Callable[[str], bool] = lambda name: True) -> list[str] | None:
    """What an operator is made of, by name."""
    found = parts(one, known)
    return found and [str(part.target) for part in found.graph.nodes if part.op == "call_function"]


def test_work_is_two_per_multiply_and_add() -> None:
    """Each row of a grouped product meets one matrix. What does not run outside of its trace has no work."""
    ends = empty(2, dtype=torch.int32)
    for one, work in (
        (node(ATEN.mm.default, empty(3, 4), empty(4, 5)), 2 * 3 * 4 * 5),
        (node(ATEN.addmm.default, empty(5), empty(3, 4), mat2=empty(4, 5)), 2 * 3 * 4 * 5),
        (node(ATEN.bmm.default, empty(7, 3, 4), empty(7, 4, 5)), 2 * 7 * 3 * 4 * 5),
        (node(ATEN._grouped_mm.default, empty(8, 16), empty(2, 16, 48), ends), 2 * 8 * 16 * 48),
        (node(ATEN.neg.default, empty(3, 4)), 0),
        (node(ATEN.mm.default, empty(3, 4), empty(3, 5)), 0),
    ):
        assert flops(one) == work, one.target


def test_operators_that_torch_writes_as_others() -> None:
    """Of what has a kernel of its own, or is one kernel everywhere, there are no parts."""
    lstm = (empty(1, 2, 3), [empty(1, 2, 4), empty(1, 2, 4)], [empty(16, 3), empty(16, 4)])
    for one, expected in (
        (node(ATEN.narrow.default, empty(4, 5), 1, 2, 2), ["aten.slice.Tensor"]),
        (node(ATEN.movedim.int, empty(2, 3, 4), 0, 2), ["aten.permute.default"]),
        (node(ATEN.linear.default, empty(2, 3), empty(4, 3), empty(4)), ["aten.t.default", "aten.addmm.default"]),
        (node(ATEN.neg.default, empty(2, 3)), None),
        (node(ATEN.lstm.input, *lstm, False, 1, 0.0, True, False, False), None),
        (node(ATEN.matmul.default, empty(2, 3), empty(2, 3)), None),
    ):
        assert inside(one) == expected, one.target


def test_the_parts_take_the_tensors_in_order() -> None:
    found = parts(node(ATEN.linear.default, empty(2, 3), empty(4, 3), bias=empty(4)), lambda name: True)
    assert found is not None
    x, w, b = torch.rand(2, 3), torch.rand(4, 3), torch.rand(4)
    torch.testing.assert_close(found(x, w, b), torch.nn.functional.linear(x, w, b))


def test_it_stays_whole_if_a_part_is_unknown_or_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that is made out of nothing need not be known. A difference is two slices and what they differ by."""
    hot = node(ATEN.one_hot.default, empty(4, dtype=WHOLE), 7)
    names = inside(hot)
    assert names is not None
    assert names[0] == "aten.arange.default"
    assert inside(hot, lambda name: "arange" not in name) == names
    assert inside(hot, lambda name: "eq" not in name) is None
    difference = node(ATEN.diff.default, empty(5))
    assert inside(difference) == ["aten.slice.Tensor", "aten.slice.Tensor", "aten.sub.Tensor"]
    monkeypatch.setattr(decompose, "MOST_PARTS", 3)
    assert inside(difference) is not None
    monkeypatch.setattr(decompose, "MOST_PARTS", 2)
    assert inside(difference) is None


def test_operators_are_alike_by_arguments_and_all_that_is_known_of_tensors() -> None:
    """Numbers of other kinds are other arguments, and so is one tensor in two places."""
    x, y = empty(3, 4), empty(3, 4)
    assert likeness(node(ATEN.add.Tensor, x, y)) == likeness(node(ATEN.add.Tensor, y, x))
    both = node(ATEN.add.Tensor, x, y)
    twice = fx.Graph().call_function(ATEN.add.Tensor, (both.args[0], both.args[0]))
    unlike = [
        both,
        twice,
        node(ATEN.add.Tensor, x, y, alpha=1),
        node(ATEN.add.Tensor, x, y, alpha=1.0),
        node(ATEN.add.Tensor, x, empty(4, 3).t()),
        node(ATEN.add.Tensor, x, empty(3, 4, dtype=torch.float16)),
        node(ATEN.add.Tensor, x, empty(3, 4).requires_grad_()),
        node(ATEN.sub.Tensor, x, y),
    ]
    assert len({likeness(one) for one in unlike}) == len(unlike)
