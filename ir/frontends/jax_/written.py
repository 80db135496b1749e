"""Constants of a jaxpr as lines of code: a `Term` in, a `Constant` out.

The operators are those that `primitives.constants` gives, and no others. What several expressions read has a line and a
name of its own; all else is written where it is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshwright.ir.frontends.folding.terms import Term
from meshwright.ir.frontends.jax_.dtypes import NUMPY
from meshwright.ir.graph.constants import Constant, Held
from meshwright.ir.quoting import constant, loose

WRITTEN_OUT = 64
"""Elements, at most, of an array that is written into code."""
WIDTH = 80
"""Characters, at most, of an expression that is written into another one."""
INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**", "eq": "==", "ne": "!=", "lt": "<", "le": "<=",
    "gt": ">", "ge": ">=", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
}  # fmt: skip
FUNCTIONS: Mapping[str, str] = {
    **{name: f"jnp.{name}" for name in ("maximum", "minimum", "fmod", "abs", "exp", "exp2", "log", "log1p", "expm1")},
    **{name: f"jnp.{name}" for name in ("sqrt", "sin", "cos", "tan", "tanh", "floor", "ceil", "round", "sign")},
    **{name: f"jnp.{name}" for name in ("cumsum", "cumprod", "where")},
    "atan2": "jnp.arctan2",
    "neg": "jnp.negative",
    "bitwise_not": "jnp.invert",
    "rsqrt": "jax.lax.rsqrt",
    "sigmoid": "jax.nn.sigmoid",
    "erf": "jax.lax.erf",
}


class _Unwritten(Exception):
    """What no code makes."""


def constant_of(term: Term, held: Callable[[Term], Held | None]) -> Constant:
    """The constant that a term is."""
    lines = _Lines(Counter(id(one) for one in _reads(term)))
    try:
        text = lines.text(term)
    except _Unwritten as why:
        return Constant(shape=term.shape, dtype=term.dtype, problem=str(why))
    last = (lines.fresh(term), text)
    return Constant(shape=term.shape, dtype=term.dtype, lines=(*lines.found, last), listed=lines.listed)


def _reads(root: Term) -> Iterator[Term]:
    """Every term that another one reads, once for each."""
    seen: set[int] = set()
    pending = [root]
    while pending:
        term = pending.pop()
        if id(term) not in seen:
            seen.add(id(term))
            inside = [one for one in _flat(term.args) if isinstance(one, Term)]
            yield from inside
            pending += inside


def _flat(args: Any) -> Iterator[Any]:
    for one in args:
        yield from _flat(one) if isinstance(one, tuple) else (one,)


@dataclass(slots=True)
class _Lines:
    """The lines so far."""

    uses: Counter[int]
    found: list[tuple[str, str]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    listed: bool = False

    def fresh(self, term: Term) -> str:
        """A name for a term, after the operator that makes it."""
        stem = {"": "table", "arange": "positions", "to": "cast"}.get(term.op, term.op)
        taken, number, name = {name for name, _ in self.found}, 2, stem
        while name in taken:
            name, number = f"{stem}_{number}", number + 1
        return name

    def text(self, term: Term) -> str:
        if id(term) in self.names:
            return f"%{self.names[id(term)]}"
        text = self.expression(term)
        if self.uses[id(term)] > 1 or len(text) > WIDTH:
            name = self.fresh(term)
            self.found.append((name, text))
            self.names[id(term)] = name
            return f"%{name}"
        return text

    def read(self, item: Any) -> str:
        """An operand as it stands among operators."""
        text = self.text(item) if isinstance(item, Term) else constant(item)
        return f"({text})" if loose(text) else text

    def expression(self, term: Term) -> str:
        dtype = f"jnp.{NUMPY[term.dtype]}"
        if term.data is not None:
            return self.literal(term.data, dtype)
        args = term.args
        if term.op in FORMS:
            return FORMS[term.op](self, term, dtype)
        if term.op == "div" and term.kwargs:
            return f"jax.lax.div({', '.join(map(self.read, args))})"
        if term.op in INFIX:
            return f"{self.read(args[0])} {INFIX[term.op]} {self.read(args[1])}"
        if term.op in FUNCTIONS:
            given = (self.text(one) if isinstance(one, Term) else constant(one) for one in args)
            return f"{FUNCTIONS[term.op]}({', '.join(given)})"
        raise _Unwritten("it is made of random numbers" if term.op == "random" else f"no code makes a {term.op}")

    def literal(self, values: Any, dtype: str) -> str:
        if values.size > WRITTEN_OUT:
            raise _Unwritten(f"it is an array of {values.size} numbers that the model's code holds")
        self.listed = self.listed or values.ndim > 0
        kind = np.float32 if values.dtype.kind == "f" else values.dtype
        return f"jnp.array({_numbers(values.astype(kind))}, {dtype})"


def _numbers(values: Any) -> str:
    if values.ndim:
        return f"[{', '.join(map(_numbers, values))}]"
    if values.dtype.kind == "f":
        return constant(float(str(values)))
    return repr(values.item())


Form = Callable[[_Lines, Term, str], str]
FORMS: Mapping[str, Form] = {
    "full": lambda lines, term, dtype: f"jnp.full({term.shape}, {constant(term.args[1])}, {dtype})",
    "arange": lambda lines, term, dtype: f"jnp.arange({term.args[0]})",
    "to": lambda lines, term, dtype: f"{lines.read(term.args[0])}.astype({dtype})",
    "view": lambda lines, term, dtype: f"{lines.read(term.args[0])}.reshape({term.shape})",
    "expand": lambda lines, term, dtype: f"jnp.broadcast_to({lines.text(term.args[0])}, {term.shape})",
    "permute": lambda lines, term, dtype: f"{lines.read(term.args[0])}.transpose({term.args[1]})",
    "rsub": lambda lines, term, dtype: f"{constant(term.args[1])} - {lines.read(term.args[0])}",
    "cat": lambda lines, term, dtype: f"jnp.concatenate([{', '.join(map(lines.text, term.args[0]))}], {term.args[1]})",
    "slice": lambda lines, term, dtype: f"{lines.read(term.args[0])}[{_run(*term.args[1:])}]",
}
"""The forms of what is no function of all its arguments."""


def _run(dim: int, start: int, end: int, step: int) -> str:
    return ", ".join([":"] * dim + [f"{start}:{end}" + (f":{step}" if step != 1 else "")])
