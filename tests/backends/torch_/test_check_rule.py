"""A user's rule is checked by splitting the user's own function."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import meshwright
from meshwright.ir.errors import RuleUntrue
from meshwright.ir.rules.opaque import unregister_rule

X, W = torch.randn(4, 8, 8), torch.randn(8)


@pytest.fixture
def registered() -> Iterator[list[str]]:
    targets: list[str] = []
    yield targets
    for target in targets:
        unregister_rule(target)


def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * w


def test_a_true_rule_passes(registered: list[str]) -> None:
    registered.append("mine::scaled")
    meshwright.register_rule("mine::scaled", "b s d, d -> b s d", linear=(1,))
    assert meshwright.check_rule("mine::scaled", scaled, X, W) > 20


@pytest.mark.parametrize(
    ("spec", "options", "function"),
    [
        ("b s d, d -> b s d", {"linear": (0, 1)}, scaled),
        ("b s d, d -> b s d", {}, lambda x, w: torch.softmax(x, -1) * w),
        ("b s d, d -> b s", {"reduce": ("d",)}, lambda x, w: torch.tanh((x * w).sum(-1))),
        ("b s d, d -> b s d", {}, lambda x, w: x - x.mean(0) + w),
    ],
    ids=["not linear", "not parallel", "not a sum", "batch statistics"],
)
def test_a_rule_that_claims_too_much_is_refused(registered: list[str], spec, options, function) -> None:
    registered.append("mine::wrong")
    meshwright.register_rule("mine::wrong", spec, **options)
    with pytest.raises(RuleUntrue, match="mine::wrong split by"):
        meshwright.check_rule("mine::wrong", function, X, W)
