"""Equality of a run's tensors and the model's: *exact* is what docs/emit.md says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, isnan

import torch
from torch import Tensor

from meshwright.backends.results import Off

FLOOR = 1e-3
"""Of the largest element of all, below which differences of a tensor are not measured by its own size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The differences: tensors that one side lacks, or has in another shape; values; and the worst distance."""

    unlike: tuple[str, ...]
    off: Mapping[str, Off]
    """By the name of the tensor."""
    worst: float


def compared(
    what: str, found: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float, floor: float = FLOOR
) -> Compared:
    """Compare tensors of a run with the model's."""
    unlike = [f"{what}{name} is missing" for name in expected if name not in found]
    unlike += [f"{what}{name} is not the model's" for name in found if name not in expected]
    pairs = ((name, found[name].shape, one.shape) for name, one in expected.items() if name in found)
    unlike += [f"{what}{name} is {tuple(has)}, not {tuple(wanted)}" for name, has, wanted in pairs if has != wanted]
    far = distances(found, expected, floor)
    return Compared(
        unlike=tuple(unlike),
        off={name: Off(f"{what}{name}", one, tolerance) for name, one in far.items() if not one <= tolerance},
        worst=max(far.values(), default=0.0),
    )


def close(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float) -> bool:
    """Whether all tensors of the same name and shape are close."""
    return all(one <= tolerance for one in distances(found, expected).values())


def distances(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], floor: float = FLOOR) -> dict[str, float]:
    """Distances of tensors of the same name and shape, by the largest element; `floor` as a part of the largest element
    of all."""
    least = floor * max(map(_largest, expected.values()), default=0.0)
    return {
        name: _apart(found[name], one) / max(_largest(one), least, torch.finfo(one.dtype).tiny)
        for name, one in expected.items()
        if name in found and found[name].shape == one.shape
    }


def _largest(tensor: Tensor) -> float:
    """The largest element that is finite: masks have others."""
    if not tensor.numel():
        return 0.0
    largest = float(tensor.abs().max().item())
    if isfinite(largest):
        return largest
    finite = tensor[tensor.isfinite()]  # ten times as long, and seldom needed
    return float(finite.abs().max().item()) if finite.numel() else 0.0


def _apart(one: Tensor, other: Tensor) -> float:
    """The largest difference of elements; infinities of the same sign do not differ."""
    if not one.numel():
        return 0.0
    apart = float((one - other).abs().max().item())
    return float(torch.where(one == other, 0.0, (one - other).abs()).max().item()) if isnan(apart) else apart
