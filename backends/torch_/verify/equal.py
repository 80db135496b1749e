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
    floor = FLOOR * max((one.abs().max().item() for one in expected.values()), default=0.0)
    worst = 0.0
    for name, one in expected.items():
        if name not in found:
            continue
        if found[name].shape != one.shape:
            wrong.append(f"{what}{name} is {tuple(found[name].shape)}, not {tuple(one.shape)}")
            continue
        far = ((found[name] - one).abs().max() / max(one.abs().max().item(), floor, torch.finfo(one.dtype).tiny)).item()
        worst = max(worst, far)
        if not far <= tolerance:
            wrong.append(f"{what}{name} is off by {far:.1e}, {tolerance:.0e} allowed")
    return wrong, worst
