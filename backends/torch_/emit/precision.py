"""In which dtypes a script keeps, computes and sums: the recipe of the workload, as stock PyTorch says it.

    fp32                everything in fp32
    bf16                all parameters, their gradients and the optimizer's states in bf16
    fsdp                parameters kept, and gradients summed, in fp32; gathered and computed with in bf16:
                        `MixedPrecisionPolicy` of `fully_shard`
    fsdp-bf16-reduce    the same with gradients summed in bf16

It is `fully_shard` that casts, also where every rank holds all parameters: it then shards over one rank. Autocast is
not used: it computes some operators in fp32, so that other bytes are kept and sent than planned.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.backends.torch_.emit.subject import Subject
from meshwright.ir.errors import EmissionSoftware

RECIPES = {"fp32": ("fp32",), "bf16": ("bf16", "fsdp", "fsdp-bf16-reduce")}
"""By precision."""
SUMS = {"fsdp": "torch.float32", "fsdp-bf16-reduce": "torch.bfloat16"}
"""The dtype in which gradients are summed."""


@dataclass(frozen=True, slots=True)
class Precision:
    """What dtypes a script has."""

    low: bool = False
    """Whether parameters are kept in bf16."""
    sums: str = ""
    """The dtype in which `fully_shard` sums gradients, where it casts."""


def precision_of(subject: Subject) -> Precision:
    """The dtypes of a plan."""
    workload = subject.workload
    recipe, known = workload.recipe or workload.stack.recipe, RECIPES[workload.precision]
    if recipe not in known:
        raise EmissionSoftware(
            place=f"recipe {recipe} with dtype {workload.precision}",
            cause="it is not emitted",
            fix=f"plan with --recipe {' or '.join(known)}",
        )
    if workload.precision == "fp32":
        return Precision()
    dtypes = {piece.graph.types[param.value].dtype for piece in subject.pieces for param in piece.graph.params}
    if dtypes != {"bf16"}:
        raise EmissionSoftware(
            place=f"dtype bf16, parameters in {' and '.join(sorted(dtypes))}",
            cause="what is planned computes in bf16 inside of products only, and no code is written for that",
            fix="plan with --dtype fp32, or make the model run with parameters in bf16",
        )
    if recipe == "bf16":
        return Precision(low=True)
    return Precision(sums=SUMS[recipe])
