"""The same code in fp64: tensors that it makes or asks for in fp32 are in fp64.

Rounding differs between one device and several ranks, and a model may make much of it: a sum of many terms that
cancel, a value that lies on a kink (ReLU, a maximum). How far that goes cannot be told from numbers in fp32, but in
fp64 it is a billion times less, and what code does wrong is as wrong as before.

Weights and batches are drawn as in fp32, and widened (`widened`). While `precise` is entered, operators that are asked
for fp32 make fp64, wherever they are called from, the model's own casts and backward passes too, so that no two
precisions meet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from meshwright.backends.torch_.verify.run.watching import Beneath

WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}


class Wider(Beneath):
    """A mode in which every dtype that an operator is given is the wider one."""

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator in the wider precision."""
        if func is torch.ops.aten._grouped_mm.default:
            return _grouped_mm(*args[:3])
        return func(*map(_wider, args), **{name: _wider(one) for name, one in kwargs.items()})


def _wider(one: Any) -> Any:
    return WIDER.get(one, one) if isinstance(one, torch.dtype) else one


def _grouped_mm(one: Tensor, other: Tensor, ends: Tensor) -> Tensor:
    """A product per group, which torch has no kernel for in fp64: of rows and matrices, or of columns and rows, which
    gives the gradients of the matrices."""
    cuts = ends[:-1].tolist()
    if other.dim() == 3:
        return torch.cat([each @ matrix for each, matrix in zip(one.tensor_split(cuts), other, strict=True)])
    columns, rows = one.tensor_split(cuts, 1), other.tensor_split(cuts)
    return torch.stack([each @ its for each, its in zip(columns, rows, strict=True)])


@contextlib.contextmanager
def precise() -> Iterator[None]:
    """Compute in fp64 within a context."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Wider():
            yield
    finally:
        torch.set_default_dtype(before)


def widened(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A batch with the same values in fp64."""
    return {name: one.to(WIDER.get(one.dtype, one.dtype)) for name, one in batch.items()}
