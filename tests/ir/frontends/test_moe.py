"""Routing on real tensors, slot by slot; gradients against differences; experts one at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from meshwright.ir.errors import ForwardRaised
from meshwright.ir.frontends.torch_.operators.moe import (
    LOOPED,
    NAME,
    check_read,
    combine,
    dispatch,
    limit,
    routed_experts,
    use_with_transformers,
)

X = torch.tensor([[1.0], [2.0], [3.0], [4.0]], dtype=torch.float64)
IDX = torch.tensor([[0], [0], [1], [0]])


@pytest.mark.parametrize(
    ("capacity", "more", "rows", "back"),
    [
        (1, {}, [[1], [3]], [1, 0, 3, 0]),
        (2, {}, [[1, 2], [3, 0]], [1, 2, 3, 0]),
        (3, {}, [[1, 2, 4], [3, 0, 0]], [1, 2, 3, 4]),
        (2, {"groups": 1}, [[1, 2], [3, 0]], [1, 2, 3, 0]),
        (2, {"groups": 2}, [[1, 4], [0, 3]], [1, 0, 3, 4]),
        (4, {"groups": 2}, [[1, 2, 4, 0], [0, 0, 3, 0]], [1, 2, 3, 4]),
        (2, {"dropless": True}, [[1, 4], [0, 3]], [1, 0, 3, 4]),
        (3, {"dropless": True, "groups": 3}, [[1, 2, 4], [3, 0, 0]], [1, 2, 3, 4]),
    ],
)
def test_tokens_take_slots_in_order(
    capacity: int, more: dict[str, Any], rows: list[list[int]], back: list[int]
) -> None:
    """Four tokens, of which the third goes to the second expert. Two groups of two tokens have their own slots: then
    the second token is dropped, of one slot each. Dropless routing has as many groups as divide tokens and slots."""
    found = dispatch(X, IDX, 2, capacity, **more)
    assert found.tolist() == [[[one] for one in row] for row in rows]
    weights = torch.full((4, 1), 0.5, dtype=torch.float64)
    assert combine(found, IDX, weights, 2, capacity, **more).tolist() == [[0.5 * one] for one in back]


def test_choices_are_summed_by_their_weights() -> None:
    """Of each token, half of the one row and twice the other; experts have added 10 and 20."""
    idx = torch.tensor([[0, 1], [1, 0]])
    rows = dispatch(X[:2], idx, 2, 2)
    assert rows.tolist() == [[[1], [2]], [[1], [2]]]
    made = rows + torch.tensor([10.0, 20.0])[:, None, None]
    weights = torch.tensor([[0.5, 2.0], [0.5, 2.0]], dtype=torch.float64)
    assert combine(made, idx, weights, 2, 2).tolist() == [[0.5 * 11 + 2 * 21], [0.5 * 22 + 2 * 12]]


@pytest.mark.parametrize("more", [(2, False, 0), (2, False, 2), (2, True, 0), (4, False, 2)])
def test_gradients_of_routing(more: tuple[int, bool, int]) -> None:
    """Against differences; also of what is dropped."""
    capacity, dropless, groups = more
    torch.manual_seed(0)
    idx = torch.tensor([[0, 1], [0, 2], [1, 0], [0, 1]])
    x, weights = (torch.randn(4, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def through(x: Tensor, weights: Tensor) -> Tensor:
        rows = dispatch(x, idx, 3, capacity, dropless, groups)
        return combine(rows * rows, idx, weights, 3, capacity, dropless, groups)

    assert torch.autograd.gradcheck(through, (x, weights))


def experts(*, gate: bool, bias: bool, transposed: bool, **more: Any) -> SimpleNamespace:
    """Three experts of 2 inputs and 3 inner rows, as modules of transformers hold them."""
    torch.manual_seed(1)
    inner = 6 if gate else 3
    up, down = torch.randn(3, inner, 2, dtype=torch.float64), torch.randn(3, 2, 3, dtype=torch.float64)
    name = "gate_up" if gate else "up"
    return SimpleNamespace(
        num_experts=3,
        has_gate=gate,
        has_bias=bias,
        is_transposed=transposed,
        act_fn=torch.tanh,
        _apply_gate=lambda rows: rows[..., :3].sigmoid() * rows[..., 3:],
        **{
            f"{name}_proj": up.mT.contiguous() if transposed else up,
            "down_proj": down.mT.contiguous() if transposed else down,
            f"{name}_proj_bias": torch.randn(3, inner, dtype=torch.float64),
            "down_proj_bias": torch.randn(3, 2, dtype=torch.float64),
        },
        **more,
    )


def of_one(self: SimpleNamespace, number: int, row: Tensor) -> Tensor:
    """One expert of one row."""

    def product(name: str, row: Tensor) -> Tensor:
        weight = getattr(self, f"{name}_proj")[number]
        y = row @ weight if self.is_transposed else weight @ row
        return y + getattr(self, f"{name}_proj_bias")[number] if self.has_bias else y

    inner = self._apply_gate(product("gate_up", row)) if self.has_gate else product("up", row).tanh()
    return product("down", inner)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("gate", "transposed"), [(True, True), (True, False), (False, False)])
def test_experts_run_like_one_after_another(gate: bool, transposed: bool, bias: bool) -> None:
    """Six tokens whose choices fill every slot: no expert has more than its mean of 6 · 2 / 3 rows, in any group."""
    self = experts(gate=gate, bias=bias, transposed=transposed)
    idx = torch.tensor([[0, 1], [2, 0], [1, 2]] * 2)
    hidden, weights = torch.randn(6, 2, dtype=torch.float64), torch.rand(6, 2, dtype=torch.float64)
    wanted = [
        sum((weights[at, k] * of_one(self, int(idx[at, k]), hidden[at]) for k in range(2)), torch.zeros(2))
        for at in range(6)
    ]
    torch.testing.assert_close(routed_experts(self, hidden, idx, weights), torch.stack(wanted))
    wide = experts(gate=gate, bias=bias, transposed=transposed, capacity_factor=1.5, group_size=3)
    torch.testing.assert_close(routed_experts(wide, hidden, idx, weights), torch.stack(wanted))


def test_experts_may_norm_what_they_made() -> None:
    """As the registry of transformers has it: what every expert made is normed before it is weighted."""
    torch.manual_seed(0)
    plain = experts(gate=True, bias=False, transposed=False)
    normed = SimpleNamespace(**vars(plain), has_post_expert_norm=True, post_expert_norm=lambda rows: 3 * rows)
    x, idx, weights = torch.randn(4, 2, dtype=torch.float64), torch.tensor([[0], [1], [0], [1]]), torch.ones(4, 1)
    torch.testing.assert_close(routed_experts(normed, x, idx, weights), 3 * routed_experts(plain, x, idx, weights))


def test_a_parameter_of_experts_that_would_be_left_away_is_refused() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down_proj, self.post_expert_norm = nn.Parameter(torch.ones(2)), nn.LayerNorm(2)

    odd: Any = Odd()
    with pytest.raises(ForwardRaised, match=r"Odd\.post_expert_norm\.weight"):
        routed_experts(odd, torch.ones(2, 2), torch.zeros(2, 1, dtype=torch.long), torch.ones(2, 1))
    odd.has_post_expert_norm = True
    check_read(odd)


def test_an_expert_takes_the_earlier_tokens_of_a_run() -> None:
    """Runs of 4 tokens, all for the first of 3 experts: ceil(1.5 · 4 · 1 / 3) = 2 of each run."""
    self = experts(gate=False, bias=False, transposed=False, capacity_factor=1.5, group_size=4)
    hidden = torch.randn(8, 2, dtype=torch.float64)
    found = routed_experts(self, hidden, torch.zeros(8, 1, dtype=torch.long), torch.ones(8, 1, dtype=torch.float64))
    wanted = [of_one(self, 0, hidden[at]) if at % 4 < 2 else torch.zeros(2, dtype=torch.float64) for at in range(8)]
    torch.testing.assert_close(found, torch.stack(wanted))


@pytest.mark.parametrize(
    ("implementation", "name"),
    [("eager", LOOPED), (None, LOOPED), (LOOPED, LOOPED), ("grouped_mm", NAME), ("batched_mm", NAME), (NAME, NAME)],
)
def test_what_goes_through_experts_one_by_one_is_told(implementation: str | None, name: str) -> None:
    assert use_with_transformers(implementation) == name
    assert use_with_transformers() == NAME


def test_only_experts_that_have_a_capacity_are_limited() -> None:
    """Their own code would drop tokens before."""

    class Own(nn.Module):
        def __init__(self, factor: float | None, *, gate: bool = True, implementation: str = NAME) -> None:
            super().__init__()
            self.capacity_factor, self.config = factor, SimpleNamespace(_experts_implementation=implementation)
            if gate:
                self._apply_gate = torch.relu

    model = nn.ModuleList([Own(1.0), Own(None), Own(1.0, gate=False), nn.Linear(1, 1), Own(1.0, implementation=LOOPED)])
    limit(model)
    limited = [vars(one).get("forward") for one in model]
    assert [one is not None for one in limited] == [True, False, False, False, True]
    assert [one.__func__.keywords for one in limited if one is not None] == [{"looped": False}, {"looped": True}]
    assert all(one.__func__.func is routed_experts for one in limited if one is not None)
