"""Every kind has a rule, a kernel and a sample; each rule says what torch does: types, work, saved tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from meshwright.backends.torch_.verify.interpreted.eager import DTYPES, EAGER
from meshwright.backends.torch_.verify.interpreted.kernels import KERNELS, vjp
from meshwright.ir.graph.graph import Type
from meshwright.ir.interp.bodies import LocalCall, factor_spans
from meshwright.ir.rules import Engine, Law, Save, Signature, infer, kinds
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.ir.sharding.mesh import Mesh
from tests.samples import SAMPLES, exact, sample, tensors

KINDS = sorted(SAMPLES)

NAMES = {dtype: name for name, dtype in DTYPES.items()}

UNCOUNTED = {
    "grouped_mm": "torch's counter does not know it on meta",
    "matmul(f32[4, 8], f32[8])": "torch's counter does not know matrix-vector products",
    "conv2d(f32[4, 16, 4, 4], f32[16, 4, 3, 3])": "torch counts a grouped weight gradient once per group too often",
}

REFERENCE_ONLY = {
    "dispatch": "what is kept is the implementation's choice; the rule says what is needed",
    "combine": "as dispatch",
    "batch_moments": "scripts normalise by one function with its own derivative, which keeps its operands",
    "batch_normalize": "as batch_moments",
    "opaque": "is taken to keep everything",
}


def differentiable(signature: Signature) -> tuple[int, ...]:
    rule = infer(signature)
    return tuple(
        index
        for index, (law, type_) in enumerate(zip(rule.laws, signature.operands, strict=True))
        if law is not Law.INDEX and type_.floating
    )


def whole_call(signature: Signature, operands: tuple[Tensor, ...]) -> LocalCall:
    """The call of a rank that holds everything."""
    rule = infer(signature)
    spans = factor_spans(signature, Strategy(), Mesh(), 0)
    sizes = {factor.name: factor.size for factor in rule.factors}
    return LocalCall(signature.kind, operands, dict(signature.attrs), rule.types, spans, sizes)


def test_complete() -> None:
    assert set(kinds()) == set(KINDS) == set(KERNELS) == set(EAGER)


@pytest.mark.parametrize("kind", KINDS)
def test_types(kind: str) -> None:
    for signature in SAMPLES[kind]:
        found = EAGER[kind](tensors(signature), dict(signature.attrs))
        assert tuple(Type(tuple(x.shape), NAMES[x.dtype]) for x in found) == infer(signature).types, signature


@pytest.mark.parametrize("kind", KINDS)
def test_whole_kernel(kind: str) -> None:
    """On one device the local kernel is the operator: values, and gradients where torch has them in fp64."""
    for signature in map(exact, SAMPLES[kind]):
        operands = tensors(signature)
        wanted = differentiable(signature)
        leaves = tuple(x.requires_grad_(slot in wanted) for slot, x in enumerate(operands))
        expected = EAGER[kind](leaves, dict(signature.attrs))
        found = KERNELS[kind](whole_call(signature, tuple(x.detach() for x in operands)))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other.detach(), rtol=1e-9, atol=1e-9)
        grads = tuple(torch.randn_like(y) if y.requires_grad else None for y in expected)
        pairs = [(y, grad) for y, grad in zip(expected, grads, strict=True) if grad is not None]
        if pairs:
            roots, seeds = zip(*pairs, strict=True)
            inputs = [leaves[slot] for slot in wanted]
            reference = torch.autograd.grad(roots, inputs, seeds, allow_unused=True, materialize_grads=True)
            local = vjp(whole_call(signature, operands), wanted, grads)
            for slot, gradient in zip(wanted, reference, strict=True):
                torch.testing.assert_close(local[slot], gradient, rtol=1e-9, atol=1e-9)


COUNTED = [
    signature
    for kind in KINDS
    for signature in SAMPLES[kind]
    if infer(signature).work and not {kind, str(signature)} & set(UNCOUNTED)
]


@pytest.mark.parametrize("signature", COUNTED, ids=str)
def test_flops(signature: Signature) -> None:
    """Forward and backward work is what torch's counter counts."""
    wanted = differentiable(signature)
    operands = [x.to("meta").requires_grad_(slot in wanted) for slot, x in enumerate(tensors(signature))]
    with FlopCounterMode(display=False) as forward:
        (result,) = EAGER[signature.kind](tuple(operands), dict(signature.attrs))
    with FlopCounterMode(display=False) as backward:
        torch.autograd.grad(result, [operands[slot] for slot in wanted], torch.empty_like(result))
    rule = infer(signature)
    assert (rule.flops(), rule.flops(needs=wanted)) == (forward.get_total_flops(), backward.get_total_flops())


@pytest.mark.parametrize("signature", COUNTED, ids=str)
def test_gradients_cost_what_the_operator_costs(signature: Signature) -> None:
    """Backward is twice forward, frozen operands cost nothing, and no gradient costs more than all of them."""
    rule = infer(signature)
    wanted = differentiable(signature)
    parts = [rule.flops(needs=(slot,)) for slot in wanted]
    assert max(parts) <= rule.flops(needs=wanted) == 2 * rule.flops() <= sum(parts)
    assert rule.flops(needs=()) == 0


def test_work_only_where_an_engine_does_it() -> None:
    busy = {Engine.MATMUL, Engine.ATTENTION, Engine.CONV}
    for kind in KINDS:
        for signature in SAMPLES[kind]:
            rule = infer(signature)
            assert bool(rule.work) == (rule.engine in busy), signature


def narrowed(signature: Signature) -> Signature:
    """The same in bf16."""
    types = (Type(x.shape, "bf16" if x.dtype == "f32" else x.dtype) for x in signature.operands)
    return replace(signature, operands=tuple(types))


SAVING = [
    *(
        signature
        for kind in KINDS
        if kind not in REFERENCE_ONLY
        for one in SAMPLES[kind]
        for signature in (one, narrowed(one))
        if differentiable(signature) and infer(signature).types[0].floating
    ),
    sample("dropout", "f32[4, 8]", p=0.5),
    sample("attention", "f32[2, 4, 8, 8] f32[2, 2, 8, 8] f32[2, 2, 8, 8]", mask="causal", dropout=0.5),
    sample("layer_norm", "bf16[4, 8, 16] f32[16] f32[16]"),
]

NO_CPU_KERNEL = {"avg_pool3d"}
"""In bf16."""


def subsets(wanted: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All operands, and each alone (the others frozen)."""
    yield wanted
    if len(wanted) > 1:
        yield from ((slot,) for slot in wanted)


def kept_by_torch(signature: Signature, wanted: tuple[int, ...]) -> int:
    """Bytes of the storages that autograd keeps; tensors of one element are not counted."""
    operands = tuple(x.requires_grad_(slot in wanted) for slot, x in enumerate(tensors(signature)))
    storages: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        if x.numel() > 1:
            storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        results = EAGER[signature.kind](operands, dict(signature.attrs))
        del results
    return sum(storages.values())


def elements(save: Save, signature: Signature) -> int:
    rule = infer(signature)
    if save.what == "extra":
        return int(rule.save_bytes(replace(save, dtype="u8"), signature))
    return (signature.operands if save.what == "operand" else rule.types)[save.index].elements


@pytest.mark.parametrize("signature", SAVING, ids=str)
def test_saved(signature: Signature) -> None:
    """What a rule says eager CPU execution keeps is what the hooks of autograd see."""
    if signature.kind in NO_CPU_KERNEL and signature.operands[0].dtype == "bf16":
        pytest.skip("torch has no such CPU kernel")
    rule = infer(signature)
    for wanted in subsets(differentiable(signature)):
        kept = [save for save in rule.saved("cpu", wanted) if elements(save, signature) > 1]
        assert sum(rule.save_bytes(save, signature) for save in kept) == kept_by_torch(signature, wanted), wanted
