"""What operators keep of their own (logarithms of sums, indices, what was normalised) where the backward pass runs them
again: it is there from then on until their gradient is made."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.ir.program.kept import is_derivative, needs_of
from meshwright.ir.program.program import BodyProgram, Compute
from meshwright.ir.rules.registry import infer
from meshwright.ir.sharding.adjoint import apply


def extras_again(body: BodyProgram) -> Mapping[str, Mapping[str, float]]:
    """Bytes of extras by operator, under the names that `Kept` gives such tensors."""
    again = {statement.op for statement in body.backward if isinstance(statement, Compute)}
    found: dict[str, dict[str, float]] = {}
    for statement in body.backward if again else ():
        if is_derivative(statement) and statement.op in again:
            rule = infer(statement.signature)
            loops = apply(rule, statement.signature.operands, statement.strategy, body.mesh).sizes
            needs = needs_of(statement, dict(loops), body.kernels)
            found[statement.op] = {one.value: float(one.extra_bytes) for one in needs if one.extra_bytes is not None}
    return found
