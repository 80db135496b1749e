"""Precisions of a target's emitted code, and the refusals of those that no code is written for.

Such runs are planned all the same, since people ask what they would take; a plan says so in a note, and `plan emit`
refuses it, both by `unwritten`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshwright.ir.errors import EmissionSoftware
from meshwright.ir.graph.fold import Fold
from meshwright.ir.rules.base import Engine
from meshwright.ir.rules.registry import rule_of
from meshwright.ir.target.workload import Workload


@dataclass(frozen=True, slots=True)
class PrecisionLine:
    """A precision of emitted code, with its evidence."""

    name: str
    evidence: str
    recipes: tuple[str, ...]
    """How it can keep parameters, gradients and states."""
    traced: str = ""
    """The dtype that parameters are traced in; empty: any."""
    linear_only: bool = False
    """Whether products of weights multiply in it where these are one matrix alone."""


def unwritten(lines: Sequence[PrecisionLine], workload: Workload, fold: Fold) -> Iterator[EmissionSoftware]:
    """Refusals of a workload's precision for this model, for which no code is written."""
    name, recipe = workload.precision, workload.recipe or workload.stack.recipe
    line = next((line for line in lines if line.name == name), None)
    if line is None:
        yield EmissionSoftware(
            place=f"dtype {name}",
            cause="it is not emitted yet",
            fix=f"plan with --dtype {' or '.join(line.name for line in lines)}",
        )
        return
    if recipe not in line.recipes:
        yield EmissionSoftware(
            place=f"recipe {recipe} with dtype {name}",
            cause="it is not emitted",
            fix=f"plan with --recipe {' or '.join(line.recipes)}",
        )
    dtypes = {body.graph.types[param.value].dtype for body in fold.bodies for param in body.graph.params}
    if line.traced and dtypes != {line.traced}:
        yield EmissionSoftware(
            place=f"dtype {name}, parameters in {' and '.join(sorted(dtypes))}",
            cause=f"what is planned computes in {line.traced} inside of products only, and no code is written for that",
            fix="plan with --dtype fp32, or make the model run with such parameters",
        )
    if line.linear_only:
        yield from _other_products(line, fold)


def _other_products(line: PrecisionLine, fold: Fold) -> Iterator[EmissionSoftware]:
    """The first product of weights in repeated blocks that a low precision does not cover."""
    blocks = dict.fromkeys(name for segment in fold.segments if not segment.glue for name in segment.period)
    for name in blocks:
        graph = fold.body[name].graph
        weights = {param.value for param in graph.params}
        for op in graph.ops:
            multiplies = rule_of(op, graph.types).engine is Engine.MATMUL and not weights.isdisjoint(op.operands)
            if multiplies and op.kind != "linear":
                yield EmissionSoftware(
                    place=f"dtype {line.name}, %{op.name} of {op.module or 'the block'} in {name}",
                    cause="it is no linear layer, and no other products are made so",
                    fix="plan with --dtype bf16",
                )
                return
