"""Dtypes in which a script keeps, computes and sums: the recipe of the workload, in the terms of stock PyTorch.

    fp32                everything in fp32
    bf16                all parameters, their gradients and the optimizer's states in bf16
    fsdp                parameters kept, and gradients summed, in fp32; gathered and computed with in bf16:
                        `MixedPrecisionPolicy` of `fully_shard`
    fsdp-bf16-reduce    the same with gradients summed in bf16

In fp16 (recipe `fsdp` alone) losses are scaled, since small gradients vanish (`writing.scaling`).

In float8 (`fp8_tensorwise`) the products of repeated blocks multiply, by torchao, with one scale per tensor, found anew
each time; everything else is as in bf16.

It is `fully_shard` that casts, also where every rank holds all parameters: it then shards over one rank. Autocast is
not used: it computes some operators in fp32, so that other bytes are kept and sent than planned.

What of it there is for a target is a line each of its capabilities (`backends.torch_.capabilities`).
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.backends.subject import Piece, Subject
from meshwright.backends.torch_.capabilities import TARGETS
from meshwright.ir.errors import EmissionSoftware
from meshwright.ir.target.precisions import unwritten

FLOAT8 = "fp8_tensorwise"
SUMS = {"fsdp": "torch.float32", "fsdp-bf16-reduce": "torch.bfloat16"}
"""The dtype in which gradients are summed."""


@dataclass(frozen=True, slots=True)
class Precision:
    """The dtypes of a script."""

    low: bool = False
    """Whether parameters are kept in bf16."""
    sums: str = ""
    """The dtype in which `fully_shard` sums gradients, where it casts."""
    used: str = "torch.bfloat16"
    """The dtype that it casts to."""
    float8: tuple[str, ...] = ()
    """How the names of modules begin whose products multiply in float8."""

    @property
    def scaled(self) -> bool:
        """Whether losses are scaled, for gradients that would vanish."""
        return self.used == "torch.float16"


def precision_of(subject: Subject) -> Precision:
    """The dtypes of a plan."""
    workload = subject.workload
    for refusal in unwritten(TARGETS[subject.decisions.target].precisions, workload, subject.fold):
        raise refusal
    recipe = workload.recipe or workload.stack.recipe
    if workload.precision == "fp32":
        return Precision()
    blocks = [piece for piece in subject.pieces if piece.repeated] if workload.precision == FLOAT8 else []
    float8 = dict.fromkeys(piece.instances().before for piece in blocks)
    for piece in blocks if not subject.prints else ():
        check_modules(piece)
    if recipe == "bf16":
        return Precision(low=True, float8=tuple(float8))
    used = "torch.float16" if workload.scaled else "torch.bfloat16"
    return Precision(sums=SUMS[recipe], used=used, float8=tuple(float8))


def check_modules(piece: Piece) -> None:
    """Check that torchao converts the modules that multiply with the weights of a block."""
    weights = {param.value for param in piece.graph.params}
    for op in piece.graph.ops:
        if op.kind == "linear" and op.attr("transposed", False) and not weights.isdisjoint(op.operands):
            raise EmissionSoftware(
                place=f"dtype {FLOAT8}, %{op.name} of {op.module or 'the block'} in {piece.plan.body}",
                cause="its weight is stored as [in, out], and torchao converts nn.Linear alone",
                fix="plan with --dtype bf16",
            )
