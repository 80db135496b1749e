"""Memory of expert modules in eager execution while they run, for those that a program has in operators of its own.

A program has rows that are sent, products of them, and a sum. What runs is printed code or,
where ranks exchange no values, the model's own: that of transformers (`integrations/moe.py`, version 5), in torch
operators one by one:

    grouped products    the result is weighted, and put in the order of tokens: twice as much as it is, beside it.
                        Backward the same: gradients are put in the order of experts, weighted, and multiplied with what
                        was weighted. What is printed are these
    a loop              (attribute `looped` of combine) does so expert by expert, which is little; but `index_add_`
                        keeps what was weighted. A gradient of one expert's weights comes as a stack of all, zeros but
                        for it, and one of its rows as a gradient of all that the module was called with; each is added
                        to those before, into a third. The fullest is at the second expert, when the first one's rows
                        are gone

Where ranks share experts, rows that were sent stay while products run: they are put in the order of experts there.

Where experts have a capacity, printed products are batched ones, which read stacks transposed: so their gradients come,
and autograd copies each into the layout of its stack (`accumulate_grad.h`: what is laid out otherwise than its variable
is not taken over).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from meshwright.ir.analysis.fused import GROUPED
from meshwright.ir.graph.graph import Attr
from meshwright.ir.program.program import BodyProgram, Compute, Gradient, Move, Ring, Statement, operands_of, results_of
from meshwright.ir.rules.base import Engine
from meshwright.ir.rules.registry import infer


@dataclass(frozen=True, slots=True)
class Routing:
    """The routing of one body's rows, as memory sees it."""

    values: frozenset[str]
    """Everything from dispatch to combine."""
    ops: frozenset[str]
    """What computes on rows."""
    called: str
    """What the module is called with: tokens, or where ranks share experts, rows."""
    weights: tuple[str, ...]
    """Stacks that products read."""
    experts: int
    """How many of them this rank has."""
    made: tuple[str, ...]
    """What is kept of rows in their module."""
    last: str
    """The product whose rows go back."""
    returned: str
    """Its result."""
    back: str
    """The operator that sums them."""
    apart: bool
    """Whether ranks share experts."""
    looped: bool
    """Whether the model's own code goes through experts one by one."""
    turned: tuple[str, ...] = ()
    """Products whose stacks get their gradients transposed."""

    @property
    def weighted(self) -> str:
        """The name under which a loop keeps the rows that it has weighted."""
        return f"{self.last}!weighted"

    def beside(self, statement: Statement, size: Callable[[str], float], graded: Callable[[str], float]) -> float:
        """Temporaries of a statement that are no values of the program. `size` is that of a value, `graded` that of a
        parameter's gradient, if it has one."""
        if isinstance(statement, Compute) and statement.op in self.ops:
            called = size(self.called) if self.apart else 0.0
            return called + (0.0 if self.looped or statement.op != self.last else 2 * size(self.returned))
        if isinstance(statement, Gradient) and statement.op == self.back:
            return size(statement.operands[0]) * (1 if self.apart else 0 if self.looped else 2)
        if isinstance(statement, Gradient) and statement.op == self.last and self.looped:
            return max(0.0, self.at_second(size, graded) - sum(map(size, statement.results)))
        if isinstance(statement, Gradient) and statement.op in self.turned and WEIGHT in statement.wanted:
            return graded(statement.operands[WEIGHT])
        return 0.0

    def at_second(self, size: Callable[[str], float], graded: Callable[[str], float]) -> float:
        """Gradients that the backward pass of a loop holds at the second expert, less the rows that are gone."""
        stacks, called = [graded(name) for name in self.weights], size(self.called)
        if self.experts == 1:
            return sum(stacks) + called
        return sum(stacks) + called + 2 * max(*stacks, called) - sum(map(size, self.made)) / self.experts


WEIGHT = 1
"""The operand of a product that is a stack."""
NOTHING = Routing(frozenset(), frozenset(), "", (), 1, (), "", "", "", apart=False, looped=False)


def exchanges(body: BodyProgram) -> bool:
    """Whether ranks exchange values of a body, so that it does not run as the model's own code."""
    return any(
        isinstance(one, Ring)
        or (isinstance(one, Move) and one.reason in ("value", "gradient") and body.elements[one.operand] > 1)
        for one in (*body.forward, *body.backward)
    )


def attrs_of(statement: Statement) -> Mapping[str, Attr]:
    """The attributes of an operator."""
    return dict(statement.signature.attrs) if isinstance(statement, Compute | Ring) else {}


def routing_of(body: BodyProgram) -> Routing:
    """The routing read off a body's forward pass; of several modules of experts, that of the last."""
    values: set[str] = set()
    ops: set[str] = set()
    products: list[Compute] = []
    made: list[str] = []
    tokens, found, limited = "", NOTHING, False
    for statement in body.forward:
        kind = statement.signature.kind if isinstance(statement, (Compute, Ring)) else ""
        if kind == "dispatch":
            products, made, tokens = [], [], operands_of(statement)[0]
            limited = not attrs_of(statement).get("dropless") and exchanges(body)
        elif kind == "combine" and isinstance(statement, Compute) and products:
            rows, weights = products[0].operands[0], tuple(one.operands[WEIGHT] for one in products)
            stack = body.locals[weights[0]]
            apart = any(stack.placement.dims)
            found = Routing(
                frozenset(values),
                frozenset(ops),
                rows if apart else tokens,
                weights,
                stack.placement.local_shape(stack.type.shape, body.mesh)[0],
                (rows, *made),
                products[-1].op,
                products[-1].results[0],
                statement.op,
                apart=apart,
                looped=bool(attrs_of(statement).get("looped")) and not exchanges(body),
                turned=tuple(one.op for one in products if limited and not attrs_of(one).get("transposed")),
            )
        if kind == "dispatch" or (kind != "combine" and values.intersection(operands_of(statement))):
            values.update(results_of(statement))
            if isinstance(statement, Compute) and kind != "dispatch":
                ops.add(statement.op)
                products += [statement] if kind == GROUPED else []
                made += [] if infer(statement.signature).engine is Engine.VIEW else statement.results
    return found
