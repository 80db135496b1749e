"""What JAX keeps of a loop for its backward pass.

In: a scan equation. Out: `Residuals`: which of its operands and results are kept, the forward scan that JAX makes of it
(`scan`), whose rows hold what every step leaves besides, and what is kept that no step makes.

JAX differentiates the body operator by operator, and a scan stacks what each derivative reads: the product's operand,
but of a sigmoid also its slope, which no rule of an operator says. So JAX is asked: `jax.vjp` of the loop is traced on
shapes, and what its result holds are the residuals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import Literal, jaxpr_as_fun


@dataclass(frozen=True, slots=True)
class Residuals:
    """Of a loop, by number: `operands` and `results` that are kept; `rows` of the results of `scan`, an equation of a
    forward pass that keeps more, and of every operand of that which operand of the loop it is, or -1; `apart` are the
    types of what is kept besides."""

    operands: tuple[int, ...]
    results: tuple[int, ...]
    scan: Any
    given: tuple[int, ...]
    rows: tuple[int, ...]
    apart: tuple[Any, ...]


def residuals_of(params: Any) -> Residuals | None:
    """Those of a scan with these parameters; None of one that JAX has no derivative for, or that needs none."""
    body, length = params["jaxpr"], params["length"]
    fixed, carried = params["num_consts"], params["num_carry"]
    shapes = [
        jax.ShapeDtypeStruct((length, *var.aval.shape) if at >= fixed + carried else var.aval.shape, var.aval.dtype)
        for at, var in enumerate(body.jaxpr.invars)
    ]
    active = [at for at, one in enumerate(shapes) if jax.numpy.issubdtype(one.dtype, jax.numpy.floating)]
    if not active:
        return None

    def whole(given: Sequence[Any]) -> list[Any]:
        def step(carry: Sequence[Any], rows: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            made = jaxpr_as_fun(body)(*given[:fixed], *carry, *rows)
            return list(made[:carried]), list(made[carried:])

        begin, rows = list(given[fixed : fixed + carried]), list(given[fixed + carried :])
        carry, rows = jax.lax.scan(step, begin, rows, length=length, reverse=params["reverse"])
        return [*carry, *rows]

    def forward(given: list[Any]) -> tuple[list[Any], list[Any]]:
        def of(own: list[Any]) -> list[Any]:
            place = dict(zip(active, own, strict=True))
            return whole([place.get(at, one) for at, one in enumerate(given)])

        made, pull = jax.vjp(of, [given[at] for at in active])
        return made, jax.tree.leaves(pull)

    try:
        traced = jax.make_jaxpr(forward)(shapes).jaxpr
    except (NotImplementedError, ValueError):  # no derivative, as of `while` inside: operands and results are counted
        return None
    return _sorted(traced, len(body.jaxpr.outvars))


def _sorted(traced: Any, results: int) -> Residuals | None:
    """What the results of a traced forward pass are, behind those of the loop."""
    made, kept = traced.outvars[:results], dict.fromkeys(
        var for var in traced.outvars[results:] if not isinstance(var, Literal)
    )  # fmt: skip
    scans = [one for one in traced.eqns if one.primitive.name == "scan"]
    if len(scans) != 1:
        return None
    (scan,) = scans
    carried = scan.params["num_carry"]
    rows = {var: at for at, var in enumerate(scan.outvars) if at >= carried}
    at = {var: number for number, var in enumerate(traced.invars)}
    others = [var for var in kept if var not in at and var not in made]
    return Residuals(
        operands=tuple(at[var] for var in kept if var in at),
        results=tuple(number for number, var in enumerate(made) if var in kept),
        scan=scan,
        given=tuple(at.get(var, -1) if not isinstance(var, Literal) else -1 for var in scan.invars),
        rows=tuple(rows[var] for var in others if var in rows),
        apart=tuple(var.aval for var in others if var not in rows),
    )
