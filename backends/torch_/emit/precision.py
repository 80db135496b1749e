"""In which dtypes a script keeps, computes and sums: the recipe of the workload, as stock PyTorch says it.

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
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.backends.torch_.emit.subject import Subject
from meshwright.ir.errors import EmissionSoftware
from meshwright.ir.rules.base import Engine, rule_of

LOW = ("bf16", "fsdp", "fsdp-bf16-reduce")
FLOAT8 = "fp8_tensorwise"
RECIPES = {"fp32": ("fp32",), "bf16": LOW, "fp16": ("fsdp",), FLOAT8: LOW}
"""By precision."""
TRACED = {"fp16": "f16"}
"""The dtype that parameters are traced in, where it is not bf16."""
SUMS = {"fsdp": "torch.float32", "fsdp-bf16-reduce": "torch.bfloat16"}
"""The dtype in which gradients are summed."""


@dataclass(frozen=True, slots=True)
class Precision:
    """What dtypes a script has."""

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
        """Whether losses are, for gradients that would vanish."""
        return self.used == "torch.float16"


def precision_of(subject: Subject) -> Precision:
    """The dtypes of a plan."""
    workload = subject.workload
    recipe, known = workload.recipe or workload.stack.recipe, RECIPES.get(workload.precision, ())
    if not known:
        raise EmissionSoftware(
            place=f"dtype {workload.precision}",
            cause="it is not emitted yet",
            fix=f"plan with --dtype {' or '.join(RECIPES)}",
        )
    if recipe not in known:
        raise EmissionSoftware(
            place=f"recipe {recipe} with dtype {workload.precision}",
            cause="it is not emitted",
            fix=f"plan with --recipe {' or '.join(known)}",
        )
    if workload.precision == "fp32":
        return Precision()
    dtypes = {piece.graph.types[param.value].dtype for piece in subject.pieces for param in piece.graph.params}
    traced = TRACED.get(workload.precision, "bf16")
    if dtypes != {traced}:
        raise EmissionSoftware(
            place=f"dtype {workload.precision}, parameters in {' and '.join(sorted(dtypes))}",
            cause=f"what is planned computes in {traced} inside of products only, and no code is written for that",
            fix="plan with --dtype fp32, or make the model run with such parameters",
        )
    float8 = _in_float8(subject) if workload.precision == FLOAT8 else ()
    if recipe == "bf16":
        return Precision(low=True, float8=float8)
    return Precision(sums=SUMS[recipe], used=f"torch.{'float16' if traced == 'f16' else 'bfloat16'}", float8=float8)


def _in_float8(subject: Subject) -> tuple[str, ...]:
    """The blocks. Must: all of their products of weights are modules that torchao takes."""
    blocks = [piece for piece in subject.pieces if piece.repeated]
    for piece in blocks:
        weights = {param.value for param in piece.graph.params}
        for op in piece.graph.ops:
            multiplies = rule_of(op, piece.graph.types).engine is Engine.MATMUL and not weights.isdisjoint(op.operands)
            if multiplies and (op.kind != "linear" or op.attr("transposed", False)):
                raise EmissionSoftware(
                    place=f"dtype {FLOAT8}, %{op.name} of {piece.path(op.module)}",
                    cause="it is no nn.Linear, and torchao makes no other products float8",
                    fix="plan with --dtype bf16",
                )
    return tuple(dict.fromkeys(piece.instances().before for piece in blocks))
