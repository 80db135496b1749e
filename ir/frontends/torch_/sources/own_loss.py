"""The loss that a model returns itself, for models without a `loss` hook.

    a scalar                          it is the loss
    an object with a scalar `loss`    Hugging Face's outputs, a dataclass
    a dict with a scalar "loss"
    a tuple or list of which one      (logits, loss), as nanoGPT has it; with several scalars nothing says which
    entry is a scalar

It is found by looking at what a forward pass returned, and is told as code that follows the outputs: nothing, `.loss`,
`["loss"]`, `[1]`, so that what is traced, what is emitted and what it is held against read the same tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

NAME = "loss"
"""What it is called among other outputs."""


def own_loss(outputs: Any) -> tuple[str, Tensor] | None:
    """The loss among the outputs of a model, with its place as code that follows them; None if there is none."""
    if isinstance(outputs, Tensor):
        return ("", outputs) if _scalar(outputs) else None
    found = getattr(outputs, NAME, None)
    if _scalar(found):
        return f".{NAME}", found
    if isinstance(outputs, Mapping):
        found = outputs.get(NAME)
        return (f'["{NAME}"]', found) if _scalar(found) else None
    if isinstance(outputs, tuple | list):
        scalars = [(at, one) for at, one in enumerate(outputs) if _scalar(one)]
        return (f"[{scalars[0][0]}]", scalars[0][1]) if len(scalars) == 1 else None
    return None


def _scalar(found: Any) -> bool:
    return isinstance(found, Tensor) and found.dim() == 0 and found.is_floating_point()
