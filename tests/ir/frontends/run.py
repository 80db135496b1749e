"""Runs a translated graph with torch, to compare it with the module that it came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from meshwright.backends.torch_.verify.interpreted.eager import DTYPES, EAGER
from meshwright.ir.frontends.folding.handles import Traced
from meshwright.ir.graph.constants import Constant, Held


def lines_run(constant: Constant, read: Callable[[Held], Tensor]) -> Tensor:
    """A constant by its lines, on the CPU."""
    assert not constant.problem
    tensors: dict[str, Any] = {f"held_{number}": read(one) for number, one in enumerate(constant.held)}
    arrays = {f"data_{number}": one.values for number, one in enumerate(constant.data)}
    lines = constant.code(
        device='"cpu"',
        held=lambda one: f"held_{constant.held.index(one)}",
        data=lambda one: f"data_{constant.data.index(one)}",
        taken=tensors,
    )
    scope: dict[str, Any] = {"torch": torch, **tensors, **arrays}
    for name, expression in lines:
        scope[name] = eval(expression, scope)  # noqa: S307 - it is what was printed
    found = scope[lines[-1][0]]
    assert isinstance(found, Tensor)
    return found


def in_model(module: nn.Module) -> Callable[[Held], Tensor]:
    """Reads of what a model holds, by constants that stand in no block."""

    def read(one: Held) -> Tensor:
        assert not one.relative
        found = eval(one.read("module"), {"module": module})  # noqa: S307
        assert isinstance(found, Tensor)
        return found

    return read


def execute(traced: Traced, module: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every value of the graph, computed operator by operator."""
    graph = traced.graph
    tensors = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers())
    values: dict[str, Tensor] = {item.value: batch[item.value] for item in graph.inputs}
    values |= {param.value: tensors[param.path] for param in graph.params}
    for op in graph.ops:
        attrs: dict[str, Any] = dict(op.attrs)
        with torch.set_grad_enabled(not op.no_grad):
            if op.kind == "constant":
                results: tuple[Tensor, ...] = (lines_run(traced.made[attrs["law"]], in_model(module)),)
            else:
                results = EAGER[op.kind](tuple(values[value] for value in op.operands), attrs)
        for name, result in zip(op.results, results, strict=True):
            expected = graph.types[name]
            assert tuple(result.shape) == expected.shape, (op, result.shape)
            assert result.dtype == DTYPES[expected.dtype], (op, result.dtype)
            values[name] = result.detach() if op.no_grad else result
    return values
