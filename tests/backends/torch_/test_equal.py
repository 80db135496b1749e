"""What tensors of a run are held against: infinities, constants, buffers that no program reads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from meshwright.backends.torch_.verify.emitted import lost_buffers, unread_buffers
from meshwright.backends.torch_.verify.equal import FLOOR, compared, distances
from meshwright.backends.torch_.verify.groups import Group
from meshwright.backends.torch_.verify.reference import Stepped
from meshwright.backends.torch_.verify.run.precise import precise, widened
from meshwright.backends.torch_.verify.run.state import buffers_of
from meshwright.ir.sharding.mesh import Mesh

INF = float("inf")


@pytest.mark.parametrize(
    ("found", "expected", "close"),
    [
        ([0.0, -INF], [0.0, -INF], True),
        ([0.0, -INF], [0.0, INF], False),
        ([0.0, -INF], [0.0, -1e30], False),
        ([0.5, -INF], [0.0, -INF], False),
        ([0.0, float("nan")], [0.0, 1.0], False),
        ([], [], True),
    ],
)
def test_infinities_of_masks_are_equal_and_excuse_nothing(
    found: list[float], expected: list[float], close: bool
) -> None:
    mask, other = {"mask": torch.tensor(found)}, {"mask": torch.tensor(expected), "table": torch.ones(2)}
    assert (not compared("", mask | {"table": torch.ones(2)}, other, 1e-5).off) == close


def test_a_large_constant_does_not_widen_what_others_may_differ_by() -> None:
    expected = {"mask": torch.tensor(-1e9), "mean": torch.tensor(1.0)}
    found = expected | {"mean": torch.tensor(1.5)}
    assert distances(found, expected, 0.0)["mean"] == 0.5
    assert distances(found, expected, FLOOR)["mean"] < 1e-5


def group(*names: str) -> Group:
    read = tuple((name,) for name in names)
    return Group(ranks=range(1), mesh=Mesh(()), predicted=(), messages={}, parameters=read, last=True)


def test_a_buffer_that_no_program_reads_must_be_on_some_rank() -> None:
    held: dict[str, Tensor] = {"mean": torch.ones(1), "mask": torch.ones(1)}
    model = Stepped(loss=torch.zeros(()), grads={}, parameters={}, buffers={}, constants=held)
    groups = [group("mean", "weight"), group("head")]
    assert unread_buffers(groups, model) == {"mask"}
    assert list(lost_buffers(groups, model, [{}, {"mask": torch.ones(1)}])) == []
    assert list(lost_buffers(groups, model, [{}, {}])) == ["the buffer mask is missing on all ranks"]


def test_buffers_are_copied_with_both_of_their_parts() -> None:
    module = nn.Module()
    module.register_buffer("turns", torch.tensor([1j]))
    module.register_buffer("count", torch.tensor(3))
    found = buffers_of(module)
    assert (found["turns"].item(), found["count"].dtype) == (1j, torch.float64)


def test_buffers_are_those_of_checkpoints_under_all_their_names() -> None:
    """One that is not saved is none; what is found is a copy."""
    module, table = nn.Module(), torch.tensor([1.0, 2.0])
    module.register_buffer("table", table)
    module.register_buffer("again", table)
    module.register_buffer("scratch", torch.ones(1), persistent=False)
    found = buffers_of(module)
    table += 1
    assert {name: one.tolist() for name, one in found.items()} == {"table": [1.0, 2.0], "again": [1.0, 2.0]}
    assert found["table"].dtype is torch.float32


def test_everything_is_in_fp64() -> None:
    """The model's own casts too, those of blocks that run again, and the products of experts."""
    linear = nn.Linear(4, 4)
    before = linear.weight.clone()
    linear.double()

    def block(x: Tensor) -> Tensor:
        hidden = linear(x).float().softmax(-1, dtype=torch.float32) @ torch.ones(4, 4)
        groups = torch.stack((linear.weight, linear.weight))
        return torch.nn.functional.grouped_mm(hidden, groups, offs=torch.tensor([1, 3], dtype=torch.int32))

    x = widened({"x": torch.randn(3, 4), "labels": torch.ones(3, dtype=torch.int64)})
    assert x["labels"].dtype is torch.int64
    with precise():
        made = torch.utils.checkpoint.checkpoint(block, x["x"], use_reentrant=False)
        made.square().sum().backward()
    assert made.dtype is torch.float64
    assert linear.weight.grad is not None
    assert torch.equal(linear.weight.float(), before)
    assert torch.get_default_dtype() is torch.float32
    by_hand = nn.Linear(4, 4).double()
    by_hand.load_state_dict(linear.state_dict())
    ones = torch.ones(4, 4, dtype=torch.float64)
    expected = (by_hand(x["x"]).softmax(-1) @ ones) @ by_hand.weight
    expected.square().sum().backward()
    assert distances({"": linear.weight.grad}, {"": by_hand.weight.grad})[""] < 1e-12
