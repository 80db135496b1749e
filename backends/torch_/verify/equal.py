"""When tensors of a run are those of the model: *exact* is what docs/emit.md says."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

FLOOR = 1e-3
"""Of the largest element of all, below which differences of a tensor are not measured by its own size."""


def compared(
    what: str, found: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float
) -> tuple[list[str], float]:
    """What differs, and by how much the worst does."""
    wrong = [f"{what}{name} is missing" for name in expected if name not in found]
    wrong += [f"{what}{name} is not the model's" for name in found if name not in expected]
    pairs = ((name, found[name].shape, one.shape) for name, one in expected.items() if name in found)
    wrong += [f"{what}{name} is {tuple(has)}, not {tuple(wanted)}" for name, has, wanted in pairs if has != wanted]
    far = distances(found, expected)
    off = ((name, one) for name, one in far.items() if not one <= tolerance)
    wrong += [f"{what}{name} is off by {one:.1e}, {tolerance:.0e} allowed" for name, one in off]
    return wrong, max(far.values(), default=0.0)


def distances(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, float]:
    """How far tensors of the same name and shape are apart, by the largest element."""
    floor = FLOOR * max((one.abs().max().item() for one in expected.values()), default=0.0)
    return {
        name: ((found[name] - one).abs().max() / max(one.abs().max().item(), floor, torch.finfo(one.dtype).tiny)).item()
        for name, one in expected.items()
        if name in found and found[name].shape == one.shape
    }
