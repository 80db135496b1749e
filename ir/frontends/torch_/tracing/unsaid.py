"""Effects of a training step that its graph of operators does not express.

    derivatives   an autograd function may have a backward pass that is not the derivative of its forward pass, and a
                  graph has only the latter, unless it has the call itself (`functions`)
    draws         numbers that numpy or `random` draw are constants in a graph, and others in every step of the model
    writes        a parameter that the forward pass clips or scales is trained as if it had not been, and no operator of
                  a graph has a gradient for what it did not read

Code that is printed from the graph would compute something else than the model.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any, cast

import numpy
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from meshwright.ir.frontends.torch_.tracing.functions import FunctionCall, applied
from meshwright.ir.frontends.torch_.tracing.recorder import storage_of


@contextlib.contextmanager
def watched() -> Iterator[list[str]]:
    """Run a step within a context, with values or without; afterwards, the list that it yields has the effects that its
    graph would not express."""
    found: list[str] = []
    calls: dict[tuple[Any, ...], FunctionCall] = {}

    def noted(call: FunctionCall) -> Any:
        calls.setdefault(call.key, call)
        return call.apply(*call.args, **call.kwargs)

    before = states()
    with applied(noted):
        yield found
    if states() != before:
        found.append("it draws numbers outside of torch (numpy, random), which a graph has as constants")
    wrong = dict.fromkeys(call.name for call in calls.values() if not call.derives() and call.kept() is None)
    found += [f"{name} has a backward pass that is not the derivative of its forward pass" for name in wrong]


def states() -> tuple[Any, ...]:
    """The states of the generators of numpy and `random`, to be compared: drawing changes them."""
    name, keys, *counters = cast("tuple[Any, ...]", numpy.random.get_state())
    return random.getstate(), name, keys.tobytes(), *counters


class Writes(TorchDispatchMode):
    """Run a step inside; afterwards, `found` has the paths of the parameters that it wrote into, each with whether all
    that was written comes of numbers and of the parameter itself, so that its copies stay alike."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.found: dict[str, bool] = {}
        self._paths = {storage_of(parameter): path for path, parameter in model.named_parameters()}
        self._views: list[Tensor] = []  # kept: another tensor may get the storage of one that is gone

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for argument, given in zip(func._schema.arguments, args, strict=False):
            strided = isinstance(given, Tensor) and given.layout is torch.strided
            path = self._paths.get(storage_of(given)) if argument.alias_info and strided else None
            if path is None:
                continue
            if argument.alias_info.is_write:
                alone = sum(isinstance(one, Tensor) for one in args) == 1
                draws = torch.Tag.nondeterministic_seeded in func.tags
                self.found[path] = self.found.get(path, True) and alone and not draws
            elif isinstance(made, Tensor):
                self._paths[storage_of(made)] = path
                self._views.append(made)
        return made
