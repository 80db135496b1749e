"""Every rule x every legal choice per mesh axis, on meshes of one and two axes: forward and backward exact."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.backends.torch_.verify.interpreted.rules import split_differences, strategies
from meshwright.ir.errors import CopiesDiffer
from meshwright.ir.rules import Law, Role, Rule, Signature, infer, kinds, registry
from tests.samples import SAMPLES, tensors


def exact_strategies(signature: Signature) -> int:
    """Try every strategy; how many were legal."""
    operands = tuple(value.double() if value.is_floating_point() else value for value in tensors(signature))
    ran = 0
    for mesh, strategy in strategies(signature):
        wrong = split_differences(signature, mesh, strategy, operands)
        assert not wrong, f"{signature} {signature.attrs} under {strategy}: {wrong}"
        ran += wrong is not None
    return ran


@pytest.mark.parametrize("kind", kinds())
def test_every_choice_is_exact(kind: str) -> None:
    ran = sum(exact_strategies(signature) for signature in SAMPLES[kind])
    assert ran, f"no strategy of {kind} was legal"


def _dear_bias(rule: Rule) -> Rule:
    return replace(rule, laws=rule.laws[:2] + (Law.NONLINEAR,) * len(rule.laws[2:]))


MUTATIONS = {
    "an affine add passes partial sums": ("add", lambda rule: replace(rule, laws=(Law.LINEAR,) * len(rule.laws))),
    "a product is additive": ("mul", lambda rule: replace(rule, laws=(Law.ADDITIVE,) * len(rule.laws))),
    "softmax is parallel in what it normalises": ("softmax", lambda rule: _role(rule, Role.PARALLEL)),
    "attention sums partial scores": ("attention", lambda rule: _role(rule, Role.SUM, "d")),
    "a bias is added by every shard": ("linear", _dear_bias),
}


def _role(rule: Rule, role: Role, name: str = "") -> Rule:
    changed = tuple(
        replace(factor, role=role) if factor.role is Role.WHOLE and name in ("", factor.name) else factor
        for factor in rule.factors
    )
    return replace(rule, factors=changed)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_planted_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle must be able to fail: each mutation of a rule makes some strategy of its samples inexact."""
    kind, mutate = MUTATIONS[name]
    builder = registry._BUILDERS[kind]
    monkeypatch.setitem(registry._BUILDERS, kind, lambda signature: mutate(builder(signature)))
    infer.cache_clear()
    try:
        with pytest.raises((AssertionError, RuntimeError, CopiesDiffer)):
            sum(exact_strategies(signature) for signature in SAMPLES[kind])
    finally:
        monkeypatch.undo()
        infer.cache_clear()
