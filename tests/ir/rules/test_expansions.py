"""Expansions: the same numbers as the operator, and the communication that we know from Megatron."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from meshwright.backends.torch_.verify.interpreted.eager import EAGER
from meshwright.backends.torch_.verify.interpreted.kernels import KERNELS
from meshwright.ir.graph.graph import Graph
from meshwright.ir.interp.bodies import LocalCall, factor_spans
from meshwright.ir.rules import Expansion, Signature, expand, infer, kinds, rule_of
from meshwright.ir.rules.base import Factor
from meshwright.ir.sharding.adjoint import IDLE, Split, Strategy, apply
from meshwright.ir.sharding.mesh import Mesh
from tests.samples import SAMPLES, exact, tensors

MESH = Mesh.parse("a=4")


def expanded(signature: Signature) -> tuple[Factor, ...]:
    return tuple(factor for factor in infer(signature).factors if factor.expanded)


EXPANDED = [exact(one) for kind in kinds() for one in SAMPLES[kind] if expanded(one)]


def run(graph: Graph, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A graph on one device; what is no_grad is computed outside autograd."""
    env = {str(index): value for index, value in enumerate(operands)}
    for op in graph.ops:
        rule = rule_of(op, graph.types)
        signature = Signature(op.kind, graph.operand_types(op), op.attrs)
        call = LocalCall(
            op.kind,
            tuple(env[value] for value in op.operands),
            dict(op.attrs),
            rule.types,
            factor_spans(signature, Strategy(), Mesh(), 0),
            {factor.name: factor.size for factor in rule.factors},
        )
        with torch.set_grad_enabled(not op.no_grad):
            env |= zip(op.results, KERNELS[op.kind](call), strict=True)
    return tuple(env[value] for value in graph.outputs)


@pytest.mark.parametrize("signature", EXPANDED, ids=str)
def test_equals_the_operator(signature: Signature) -> None:
    graph = expand(signature).graph
    assert tuple(graph.types[value] for value in graph.outputs) == infer(signature).types
    floats = tuple(index for index, item in enumerate(graph.inputs) if item.requires_grad)
    operands = tuple(x.requires_grad_(index in floats) for index, x in enumerate(tensors(signature)))
    expected, found = EAGER[signature.kind](operands, dict(signature.attrs)), run(graph, operands)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    seed = torch.randn_like(expected[0])
    inputs = [operands[index] for index in floats]
    for one, other in zip(
        torch.autograd.grad(found[0], inputs, seed), torch.autograd.grad(expected[0], inputs, seed), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def partials(expansion: Expansion, factor: str) -> list[str]:
    """The operators of an expansion that leave a partial value where an axis splits `factor`."""
    found = []
    for index, op in enumerate(expansion.graph.ops):
        inner = expansion.inner(index, factor)
        strategy = Strategy((("a", Split((inner,)) if inner else IDLE),))
        applied = apply(rule_of(op, expansion.graph.types), expansion.graph.operand_types(op), strategy, MESH)
        found += [f"{op.kind}:{partial.reduction}" for state in applied.results for partial in state.partial]
    return found


def test_vocabulary_split_reduces_three_small_tensors() -> None:
    """Megatron's vocabulary-parallel cross entropy: the maximum, the sum of exponentials, the label's logit."""
    for signature in SAMPLES["cross_entropy"]:
        if signature.attr("label_smoothing"):
            continue
        expansion = expand(signature)
        assert partials(expansion, "v") == ["amax:max", "sum:sum", "gather:sum"]
        rows = signature.operands[1].elements
        for op in expansion.graph.ops:
            if f"{op.kind}" in ("amax", "sum", "gather") and op.results[0] not in expansion.graph.outputs:
                assert expansion.graph.types[op.results[0]].elements in (rows, 1)


def test_token_split_reduces_the_count_and_leaves_the_loss_partial() -> None:
    for kind in ("cross_entropy", "nll_loss"):
        assert partials(expand(SAMPLES[kind][0]), "d0") == ["sum:sum", "sum:sum"]


def test_batch_norm_reduces_both_moments_together() -> None:
    assert partials(expand(SAMPLES["batch_norm"][0]), "n") == ["batch_moments:sum"]


@pytest.mark.parametrize("signature", EXPANDED, ids=str)
def test_every_expanded_factor_is_split_somewhere(signature: Signature) -> None:
    expansion = expand(signature)
    for factor in infer(signature).factors:
        assert any(expansion.inner(index, factor.name) for index in range(len(expansion.graph.ops))), factor
