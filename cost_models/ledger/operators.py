"""Facts about operators for the ledger: sizes on a rank, operations, products of one operand that are one kernel."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TypeGuard

from meshwright.cost_models.compute.kernels import Kernel
from meshwright.ir.program.program import BodyProgram, Compute, Gradient, Move, Ring, Statement
from meshwright.ir.rules.base import Signature
from meshwright.ir.rules.registry import infer
from meshwright.ir.same import AllSame
from meshwright.ir.sharding.adjoint import Strategy, apply
from meshwright.ir.sharding.mesh import Mesh

GROUPED = frozenset(("grouped_linear", "grouped_mm"))
"""Products of experts."""


def goes_to_shards(statement: Statement) -> TypeGuard[Move]:
    """Whether a move brings a gradient to finer shards."""
    return isinstance(statement, Move) and statement.reason == "sync"


def experts_chosen(statement: Compute) -> int:
    """The number of experts that a token goes to, in a dispatch."""
    return statement.signature.operands[1].shape[-1] if statement.signature.kind == "dispatch" else 1


@lru_cache(maxsize=32768)
def model_flops_of(statements: AllSame[Statement]) -> float:
    """The model's own operations in a list."""
    total = 0.0
    for statement in statements.of:
        if isinstance(statement, (Compute, Gradient, Ring)):
            wanted = () if isinstance(statement, Compute) else statement.wanted
            total += _flops(statement.signature, wanted or None)
    return total


@lru_cache(maxsize=65536)
def _flops(signature: Signature, wanted: tuple[int, ...] | None) -> float:
    """Operations of an operator on all ranks together, forward or for the gradients of these operands."""
    return infer(signature).flops(needs=None if wanted is None else set(wanted))


def one_by_one(statement: Compute | Gradient | Ring) -> int:
    """The kernels that run one after the other for an operator without an engine: of a loop, those of all steps."""
    if statement.signature.attr("kernels") is None:
        return 1
    return statement.signature.integers("kernels")[isinstance(statement, Gradient) and bool(statement.wanted)]


@lru_cache(maxsize=65536)
def local_sizes(signature: Signature, strategy: Strategy, mesh: Mesh) -> tuple[tuple[str, int], ...]:
    """The local size of every factor."""
    return apply(infer(signature), signature.operands, strategy, mesh).sizes


def weights_of(body: BodyProgram) -> frozenset[str]:
    """Parameters, and values made of parameters alone: casts, views, transposes."""
    found = {slot.value for slot in body.params if not slot.buffer}
    for statement in body.forward:
        if isinstance(statement, Compute) and statement.operands and found.issuperset(statement.operands):
            found.update(statement.results)
    return frozenset(found)


def ending_biases(body: BodyProgram, weights: frozenset[str]) -> frozenset[str]:
    """Results of grouped products to which only a bias is added before they leave the experts."""
    computes = [s for s in body.forward if isinstance(s, Compute)]
    grouped = {s.results[0] for s in computes if s.signature.kind in GROUPED}
    left = {s.operand for s in body.forward if isinstance(s, Move)}
    left |= {s.operands[0] for s in computes if s.signature.kind == "combine"}
    return frozenset(
        s.operands[0]
        for s in computes
        if s.signature.kind == "add" and s.operands[0] in grouped and s.operands[1] in weights and s.results[0] in left
    )


def as_one_product(kernels: list[Kernel]) -> Kernel:
    """Products of one left operand as one: wider forward, longer sums in dgrad, more rows in wgrad."""
    first = kernels[0]
    if len(kernels) == 1:
        return first
    g, a, b, c = first.shape
    grown = sum(kernel.shape[{"forward": 2, "dgrad": 3, "wgrad": 1}[first.work]] for kernel in kernels)
    shape = {"forward": (g, a, grown, c), "dgrad": (g, a, b, grown), "wgrad": (g, grown, b, c)}[first.work]
    nbytes = sum(kernel.nbytes for kernel in kernels)
    flops = sum(kernel.flops for kernel in kernels)
    return replace(first, flops=flops, nbytes=nbytes, shape=shape)
