"""Random operators that draw nothing: each returns the mean of what it would draw, whatever the shape and the rank.

A model on one device and ranks that hold parts of it draw other numbers, and would differ by these. While `Still` is
entered, on either side, an operator that torch tags as one that draws (`nondeterministic_seeded`) is put in its mean:

    dropout, in attention too            nothing is dropped
    bernoulli                            its chance, so that a mask divided by it is 1
    uniform, normal, exponential, …      the mean of the distribution
    integers, permutations, samples      the first ones

Which operators that were is noted by name. It is done beneath autograd and DTensor, where a model cannot choose another
way to call them. One that is not in the table runs as it is, and is noted as such.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from meshwright.backends.torch_.verify.run.watching import Beneath

Given = Mapping[str, Any]
"""The arguments of an operator, by the names of its schema."""
DROPPED = ("p", "dropout_p", "dropout")
"""What arguments are called that say how much is dropped."""
LEFT = "left as it is: "
"""Stands before the name of an operator that still draws."""


def _number(name: str, usual: float) -> Callable[[Given], Any]:
    return lambda given: given.get(name, usual)


MEANS: Mapping[str, Callable[[Given], Any]] = {
    "bernoulli": lambda given: given.get("p", given["self"]),
    "uniform": lambda given: (given.get("from", 0.0) + given.get("to", 1.0)) / 2,
    "rand": lambda given: 0.5,
    "rand_like": lambda given: 0.5,
    "randn": lambda given: 0.0,
    "randn_like": lambda given: 0.0,
    "normal": lambda given: given.get("mean", 0.0),
    "normal_functional": lambda given: given.get("mean", 0.0),
    "log_normal": lambda given: math.exp(given.get("mean", 1.0) + given.get("std", 2.0) ** 2 / 2),
    "exponential": lambda given: 1 / given.get("lambd", 1.0),
    "geometric": lambda given: 1 / given["p"],
    "cauchy": _number("median", 0.0),
    "poisson": lambda given: given["self"],
    "binomial": lambda given: given["count"] * given["prob"],
    "randint": _number("low", 0),
    "randint_like": _number("low", 0),
    "random": _number("from", 0),
    "multinomial": lambda given: torch.arange(given["num_samples"], device=given["self"].device),
    "randperm": lambda given: torch.arange(given["n"]),
}
"""What operators make instead of a draw, by their names without a trailing underscore."""


class Still(Beneath):
    """A mode in which operators that draw return means; `noted` are their names."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: set[str] = set()

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator; one that draws, without drawing."""
        if not isinstance(func, OpOverload) or torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        given = {argument.name: one for argument, one in zip(func._schema.arguments, args, strict=False)}
        given = {argument.name: argument.default_value for argument in func._schema.arguments
                 if argument.has_default_value()} | given | dict(kwargs)  # fmt: skip
        name = func._schema.name.partition("::")[2]
        mean = MEANS.get(name.rstrip("_"))
        if mean is not None:
            self.noted.add(name.rstrip("_"))
            return _filled(func, args, kwargs, mean({name: one for name, one in given.items() if one is not None}))
        dropped = next((one for one in DROPPED if one in given), None)
        if dropped is None:
            self.noted.add(f"{LEFT}{name}")
            return func(*args, **kwargs)
        if given[dropped]:
            self.noted.add(name)
        return func(**{**given, dropped: 0.0})


def _filled(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], mean: Any) -> Any:
    """The result or the operand of an operator, filled with this value."""
    in_place = func._schema.name.endswith("_")
    made: Tensor = args[0] if in_place else func(*args, **kwargs)
    return made.copy_(mean) if isinstance(mean, Tensor) else made.fill_(mean)
