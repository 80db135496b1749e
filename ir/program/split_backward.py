"""The backward pass of a body in two halves: input gradients first (I), weight gradients later (W).

Schedules that fill idle time with weight gradients (Qi et al. 2024, arXiv 2401.10241) run a backward list as two. The
first half is what the gradients of the body's inputs need, and nothing else; an operator whose derivative serves both
is asked once for each. The second half is the rest, in its old order; it reads what the first has left. What is
computed again in the backward pass runs in the half that first reads it.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.ir.program.program import BodyProgram, Gradient, Statement, results_of, values_read


def halves(body: BodyProgram) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
    """The statements of I, and those of W; together they are those of the backward list, derivatives perhaps cut in
    two."""
    needed = {name for name in body.input_grads if name}
    inputs: list[Statement] = []
    weights: list[Statement] = []
    for statement in reversed(body.backward):
        early, late = _parts(statement, needed)
        if early is not None:
            inputs.append(early)
            needed.update(values_read(early))
        if late is not None:
            weights.append(late)
    return tuple(reversed(inputs)), tuple(reversed(weights))


def _parts(statement: Statement, needed: set[str]) -> tuple[Statement | None, Statement | None]:
    """The parts of a statement that make needed names, and the rest."""
    results = results_of(statement)
    if needed.isdisjoint(results):
        return None, statement
    if needed.issuperset(results) or not isinstance(statement, Gradient):
        return statement, None
    return _only(statement, needed, True), _only(statement, needed, False)


def _only(statement: Gradient, needed: set[str], early: bool) -> Gradient:
    kept = [pair for pair in zip(statement.wanted, statement.results, strict=True) if (pair[1] in needed) == early]
    return replace(statement, wanted=tuple(slot for slot, _ in kept), results=tuple(name for _, name in kept))
