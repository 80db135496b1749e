"""Runs a translated graph with torch, to compare it with the module that it came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from meshwright.backends.torch_.verify.eager import DTYPES, EAGER
from meshwright.ir.frontends.constants import Term
from meshwright.ir.frontends.values import Traced


def evaluated(term: Any, dtype: str) -> Any:
    """A constant, whole: by torch's own operators, rounding included; by its law where torch has no such call."""
    if isinstance(term, tuple):
        return [evaluated(item, "") for item in term]
    if not isinstance(term, Term):
        return term
    if term.data is not None:
        return torch.as_tensor(term.data.copy()).to(DTYPES[term.dtype])
    if term.op in ("empty_like", "new_empty"):  # written before it is read
        return torch.zeros(term.shape, dtype=DTYPES[term.dtype])
    if term.args[:1] != (None,):
        arguments = {key: evaluated(value, "") for key, value in term.kwargs.items()}
        found = getattr(torch.ops.aten, term.op)(*evaluated(term.args, ""), **arguments)
        return found.to(DTYPES[term.dtype])
    index = tuple(np.ogrid[tuple(slice(size) for size in term.shape)]) if term.shape else ()
    return torch.as_tensor(np.broadcast_to(term.at(index), term.shape).copy()).to(DTYPES[term.dtype])


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
                results: tuple[Tensor, ...] = (evaluated(traced.constants[op.name], str(attrs["dtype"])),)
            else:
                results = EAGER[op.kind](tuple(values[value] for value in op.operands), attrs)
        for name, result in zip(op.results, results, strict=True):
            expected = graph.types[name]
            assert tuple(result.shape) == expected.shape, (op, result.shape)
            assert result.dtype == DTYPES[expected.dtype], (op, result.dtype)
            values[name] = result.detach() if op.no_grad else result
    return values
