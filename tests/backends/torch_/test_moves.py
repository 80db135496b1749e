"""The functions that printed scripts have: as they stand there, and what they do to gradients where nothing is sent."""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention.bias import causal_lower_right

from meshwright.backends.torch_.emit.printed.language.moves import NAMES, TEXT, used_by
from meshwright.backends.torch_.verify.interpreted.layers import combined, dispatched, slots
from meshwright.ir.sharding.layouts import CONTIGUOUS, ZIGZAG, Nested, Sections

SCOPE = {
    "torch": torch,
    "F": F,
    "Tensor": Tensor,
    "Any": Any,
    "cast": cast,
    "NamedTuple": NamedTuple,
    "functools": functools,
    "math": math,
    "Callable": Callable,
    "Sequence": Sequence,
    "causal_lower_right": causal_lower_right,
    "DeviceMesh": object,
    "nn": nn,
    "functional_call": functional_call,
    "convert_to_float8_training": lambda module: module,
}


@pytest.fixture(scope="module")
def library() -> dict[str, Any]:
    """As a script has them: annotations are evaluated where they stand."""
    scope = dict(SCOPE)
    exec(TEXT, scope)  # noqa: S102 - it is what scripts hold
    return scope


@pytest.mark.parametrize("name", sorted(NAMES & {node.name for node in ast.parse(TEXT).body if hasattr(node, "name")}))
def test_a_function_comes_with_all_that_it_uses(name: str) -> None:
    scope = dict(SCOPE)
    exec("\n\n".join(used_by([name], "")), scope)  # noqa: S102
    assert name in scope


def test_alike_ways_are_gone_once(library: dict[str, Any]) -> None:
    """Two readers of one move there, two of one move back: each runs once, and gradients are those of the sum."""
    gone: list[str] = []

    def named(name: str, factor: float) -> Callable[[Tensor], Tensor]:
        def move(x: Tensor) -> Tensor:
            gone.append(name)
            return x * factor

        return move

    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    one, other, third = library["several"](
        x,
        (0, named("a", 2.0), 0, named("A", 3.0)),
        (0, named("a", 2.0), 1, named("B", 5.0)),
        (1, named("b", 7.0), 1, named("B", 5.0)),
    )
    assert len({id(one), id(other), id(third)}) == 3
    torch.testing.assert_close((one, other, third), (2 * x, 2 * x, 7 * x))
    (one.sum() + 2 * other.sum() + 4 * third.sum()).backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.full_like(x, 3.0 * 1 + 5.0 * (2 + 4)))
    assert sorted(gone) == ["A", "B", "a", "b"]


@given(
    layout=st.sampled_from([CONTIGUOUS, ZIGZAG, Nested(3), Nested(3, ZIGZAG), Sections((8, 16)), Sections((4, 4, 16))]),
    parts=st.sampled_from([1, 2]),
)
def test_what_ranks_have_is_what_layouts_say(layout: Any, parts: int, library: dict[str, Any]) -> None:
    sections = {Nested: (8, 8, 8), Sections: getattr(layout, "sizes", ())}.get(type(layout), ())
    zigzag = layout == ZIGZAG or getattr(layout, "layout", None) == ZIGZAG
    found = library["order_of"](24, parts, sections, zigzag)
    for rank, own in enumerate(found):
        spans = layout.pieces(24, parts, rank)
        assert own.tolist() == [n for start, stop in spans for n in range(start, stop)]


class Axis:
    """A mesh axis as one of its ranks sees it."""

    def __init__(self, here: int, parts: int) -> None:
        self.here, self.parts = here, parts

    def size(self) -> int:
        return self.parts

    def get_local_rank(self) -> int:
        return self.here


def test_ranks_draw_apart_and_go_on_alike(library: dict[str, Any]) -> None:
    """Six ranks along two axes: six draws, and again six others; what is drawn by all then is the same everywhere."""

    def drawn(place: int) -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(3)
        axes = Axis(place // 3, 2), Axis(place % 3, 3)
        one, other = (library["drawn_apart"](lambda: torch.rand(4), *axes) for _ in range(2))
        return one, other, torch.rand(4)

    found = [drawn(place) for place in range(6)]
    assert len({tuple(one.tolist()) for own in found for one in own[:2]}) == 2 * 6
    assert len({tuple(last.tolist()) for _, _, last in found}) == 1


@given(experts=st.integers(1, 5), chosen=st.integers(1, 3), tokens=st.integers(1, 7), seed=st.integers(0, 2**31))
def test_rows_of_experts_are_what_a_loop_over_experts_makes(
    experts: int, chosen: int, tokens: int, seed: int, library: dict[str, Any]
) -> None:
    """Products, what each expert has one of, weighted sums, and their gradients; experts that nobody chose, too."""
    random = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=random).requires_grad_()

    x, weights, matrix, bias = drawn(1, tokens, 4), drawn(1, tokens, chosen), drawn(experts, 4, 6), drawn(experts, 1, 6)
    idx = torch.randint(0, experts, (1, tokens, chosen), generator=random)
    rows, ends, places = library["dispatch"](x, idx, experts)
    assert rows.shape == (tokens * chosen, 4)
    made = library["products"](rows, matrix, ends) + library["by_row"](bias, ends)
    found = library["combine"](made, weights, places)
    each = x[..., None, None, :] @ matrix[idx] + bias[idx]
    wanted = (each[..., 0, :] * weights[..., None]).sum(-2)
    torch.testing.assert_close(found, wanted)
    given_to = (x, weights, matrix, bias)
    seeds = torch.randn(found.shape, dtype=torch.float64, generator=random)
    for one, other in zip(
        torch.autograd.grad(found, given_to, seeds), torch.autograd.grad(wanted, given_to, seeds), strict=True
    ):
        torch.testing.assert_close(one, other)


class Ranks:
    """A group of ranks, as one of them sees it."""

    def __init__(self, here: int) -> None:
        self.here = here

    def get_local_rank(self) -> int:
        return self.here


@pytest.mark.parametrize(("tokens", "groups"), [((8,), (2,)), ((4, 6), (2, 3)), ((4, 6), (4, 1))])
def test_slots_hold_the_first_rows_of_each_run_of_tokens(
    tokens: tuple[int, ...], groups: tuple[int, ...], library: dict[str, Any]
) -> None:
    """Of tokens in one dimension or two; of a rank's own experts, these alone."""
    random = torch.Generator().manual_seed(0)
    x, weights = torch.randn(*tokens, 5, generator=random), torch.rand(*tokens, 2, generator=random)
    idx = torch.rand(*tokens, 4, generator=random).topk(2).indices
    room, lengths = 2, tuple(extent // count for extent, count in zip(tokens, groups, strict=True))
    at = slots(idx, 4, room * math.prod(groups), groups)
    assert (at < 0).any()
    wanted = dispatched(x, idx, at, 4, room * math.prod(groups))
    found = library["to_slots"](x, idx, 4, lengths, room)
    torch.testing.assert_close(found, wanted)
    back = library["from_slots"](found, idx, weights, 4, lengths, room)
    torch.testing.assert_close(back, combined(wanted, idx, weights, at).reshape(back.shape))
    parts = [library["to_slots"](x, idx, 2, lengths, room, Ranks(here)) for here in range(2)]
    torch.testing.assert_close(torch.cat(parts), wanted)
    given_back = [library["from_slots"](parts[n], idx, weights, 2, lengths, room, Ranks(n)) for n in range(2)]
    torch.testing.assert_close(given_back[0] + given_back[1], back)


def test_parts_of_experts_add_up(library: dict[str, Any]) -> None:
    """Each rank has the rows of its own experts alone, and nothing of what others chose."""
    x, weights = torch.randn(5, 4, dtype=torch.float64), torch.rand(5, 2, dtype=torch.float64)
    idx = torch.tensor([[0, 3], [1, 2], [3, 3], [0, 1], [2, 0]])
    rows, _, places = library["dispatch"](x, idx, 4)
    whole = library["combine"](rows, weights, places)
    parts = [library["dispatch"](x, idx, 2, Ranks(here)) for here in range(2)]
    assert [ends.tolist() for _, ends, _ in parts] == [[3, 5], [2, 5]]
    sums = [library["combine"](rows, weights, places, part=True) for rows, _, places in parts]
    torch.testing.assert_close(sums[0] + sums[1], whole)
