"""Verification that the backward list of a body program differentiates its forward list, from the two lists alone.

Placements are checked elsewhere (`meshwright.ir.verify.programs`); here it is sums. A gradient is a sum of *terms*: the
gradients that arrive for the outputs, and one from every reader of a value. Every local name of the backward list is
followed back to the terms it consists of, through moves and additions, and to the value it is the gradient of:

    term     arrives as an output's gradient, or from a call that borrowed a parameter, or is made by a gradient
             statement for one of its operands
    total    what flows on: into the gradient statement of the value's operator, out of an input, to the optimizer

Must: a total of a value consists of all terms of this value, each once. So a contribution that was computed and left
out, one that was counted twice, and one that went to another value are three different errors. Besides, a gradient
statement must repeat the operands, results, strategy and signature of its forward statement, and what is recomputed
must be computed as before.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from meshwright.ir.errors import GradientMixed, GradientTwice, GradientUnused, WrongDerivative
from meshwright.ir.program.program import Add, BodyProgram, Compute, Gradient, Move, Ring, Statement, Zero, results_of


def origins(body: BodyProgram) -> dict[str, str]:
    """The value behind every forward name: moves change where a value lies, not what it is. A parameter has its name in
    compute."""
    origin = {name: name for name in body.inputs}
    origin |= {slot.stored: slot.value for slot in body.params}
    for statement in body.forward:
        for name in results_of(statement):
            origin[name] = origin.get(statement.operand, statement.operand) if isinstance(statement, Move) else name
    return origin


def verify_gradients(body: BodyProgram) -> None:
    """Check the sums of a body's backward list (see the module docstring)."""
    flow = _Flow(body)
    flow.arrive()
    for statement in body.backward:
        flow.follow(statement)
    flow.leave()
    flow.finish()


@dataclass(slots=True)
class _Flow:
    body: BodyProgram
    origin: dict[str, str] = field(init=False)
    forward: dict[str, Statement] = field(init=False)
    """The forward statement that makes each name."""
    value: dict[str, str | None] = field(default_factory=dict)
    """What each gradient is the gradient of; None for a zero, which fits any value."""
    terms: dict[str, Counter[str]] = field(default_factory=dict)
    made: dict[str, list[str]] = field(default_factory=dict)
    """The terms of each value."""
    totals: list[tuple[str, str, str]] = field(default_factory=list)
    """(place, value, name) of every total that flows on."""
    differentiated: set[tuple[str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.origin = origins(self.body)
        self.forward = {name: statement for statement in self.body.forward for name in results_of(statement)}

    def arrive(self) -> None:
        for output, name in zip(self.body.outputs, self.body.output_grads, strict=True):
            if name is not None:
                self.term(self.origin[output], name)
        for slot in self.body.params:
            if slot.lent is not None:
                self.term(slot.value, slot.lent)

    def term(self, value: str, name: str) -> None:
        self.value[name], self.terms[name] = value, Counter([name])
        self.made.setdefault(value, []).append(name)

    def follow(self, statement: Statement) -> None:
        again = [name for name in results_of(statement) if name in self.forward]
        if again:
            self.recomputed(statement, again[0])
        elif isinstance(statement, (Gradient, Ring)):
            self.gradient(statement)
        elif isinstance(statement, Move) and statement.operand in self.value:
            self.value[statement.result] = self.value[statement.operand]
            self.terms[statement.result] = self.terms[statement.operand]
        elif isinstance(statement, Add):
            self.add(statement)
        elif isinstance(statement, Zero):
            self.value[statement.result], self.terms[statement.result] = None, Counter()
        else:
            raise self.wrong(statement, "it is neither a gradient nor computed in the forward pass")

    def wrong(self, statement: Statement, cause: str) -> WrongDerivative:
        return WrongDerivative(
            place=f"{self.body.name}: {statement}", cause=cause, fix="repeat the forward statement, or differentiate it"
        )

    def recomputed(self, statement: Statement, name: str) -> None:
        if statement != self.forward[name]:
            raise self.wrong(statement, f"the forward pass computes %{name} as {self.forward[name]}")

    def gradient(self, statement: Gradient | Ring) -> None:
        made = self.forward.get(statement.outputs[0]) if statement.outputs else None
        if not isinstance(made, Compute | Ring) or _facts(made, made.results) != _facts(statement, statement.outputs):
            raise self.wrong(statement, f"its forward statement is {made}")
        for output, name in zip(statement.outputs, statement.grads, strict=True):
            if name is not None:
                self.total(str(statement), self.origin[output], name)
        for slot, name in zip(statement.wanted, statement.results, strict=True):
            if (statement.op, slot) in self.differentiated:
                raise GradientTwice(
                    place=f"{self.body.name}: {statement}",
                    cause=f"operand {slot} has its gradient already",
                    fix="differentiate every operator once",
                )
            self.differentiated.add((statement.op, slot))
            operand = statement.operands[slot]
            self.term(self.origin.get(operand, operand), name)

    def add(self, statement: Add) -> None:
        values = {self.value.get(name, f"forward %{name}") for name in statement.operands}
        if len(values - {None}) > 1:
            raise GradientMixed(
                place=f"{self.body.name}: {statement}",
                cause=f"it adds gradients of {' and '.join(sorted(f'%{value}' for value in values if value))}",
                fix="add gradients of one value",
            )
        self.value[statement.result] = next((value for value in sorted(values - {None}, key=str)), None)
        self.terms[statement.result] = sum((self.terms.get(name, Counter()) for name in statement.operands), Counter())

    def total(self, place: str, value: str, name: str) -> None:
        if self.value.get(name, "") not in (value, None):
            raise GradientMixed(
                place=f"{self.body.name}: {place}",
                cause=f"%{name} is no gradient of %{value}",
                fix=f"pass on the gradient of %{value}",
            )
        self.totals.append((place, value, name))

    def leave(self) -> None:
        for name, grad in zip(self.body.inputs, self.body.input_grads, strict=True):
            if grad is not None:
                self.total(f"input %{name}", name, grad)
        for slot in self.body.params:
            if slot.grad is not None:
                self.total(f"parameter {slot.path}", slot.value, slot.grad)

    def finish(self) -> None:
        for place, value, name in self.totals:
            counted = self.terms[name]
            for term in self.made.get(value, ()):
                if counted[term] == 0:
                    raise self.unused(place, term)
                if counted[term] > 1:
                    raise GradientTwice(
                        place=f"{self.body.name}: {place}",
                        cause=f"%{term} is counted {counted[term]} times in %{name}",
                        fix="add it once",
                    )
        reached = {value for _, value, _ in self.totals}
        for value, terms in self.made.items():
            if value not in reached:
                raise self.unused(f"%{value}", terms[0])

    def unused(self, place: str, term: str) -> GradientUnused:
        return GradientUnused(
            place=f"{self.body.name}: {place}", cause=f"%{term} is left out", fix="add every reader's gradient"
        )


def _facts(statement: Compute | Gradient | Ring, results: tuple[str, ...]) -> tuple[object, ...]:
    """Facts that a gradient statement and its forward statement must share."""
    axis = statement.axis if isinstance(statement, Ring) else ""
    return (statement.op, axis, statement.signature, statement.strategy, statement.operands, results)
