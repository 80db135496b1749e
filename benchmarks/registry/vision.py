"""The models of torchvision, if it is installed: classifiers, segmenters, and the backbones of detectors."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGE = "torchvision"

TEXT = '''\
"""{name} of torchvision, without weights."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import get_model


def build() -> nn.Module:
    model = get_model("{name}", {without})
    return model.backbone if hasattr(model, "rpn") or hasattr(model, "anchor_generator") else model


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    return {{"{entry}": torch.randn(batch, 3, 224, 224), "wanted": torch.rand(batch)}}


def loss(outputs, batch: dict[str, Tensor]) -> Tensor:
    made = list(outputs.values()) if isinstance(outputs, dict) else [outputs]
    means = [one.float().flatten(1).mean(1) for one in made]
    return sum(F.mse_loss(one, batch["wanted"]) for one in means)
'''


def names() -> Mapping[str, str]:
    """Every model by what it is for; none without the package."""
    if find_spec(PACKAGE) is None:
        return {}
    models: Any = __import__(f"{PACKAGE}.models", fromlist=["models"])
    listed = {
        "image classification": models.list_models(module=models),
        "segmentation": models.list_models(module=models.segmentation),
        "detection": models.list_models(module=models.detection),
    }
    return {name: family for family, found in listed.items() for name in found}


def write(name: str, folder: Path) -> str:
    """Write a file with the factory of a model, and return its reference."""
    models: Any = __import__(f"{PACKAGE}.models", fromlist=["models"])
    taken = inspect.signature(models.get_model_builder(name)).parameters
    without = [one for one in ("weights", "weights_backbone") if one in taken]
    model: Any = models.get_model(name, **dict.fromkeys(without))
    inner = model.backbone if hasattr(model, "rpn") or hasattr(model, "anchor_generator") else model
    entry = next(iter(inspect.signature(inner.forward).parameters))
    (folder / "model.py").write_text(
        TEXT.format(name=name, entry=entry, without=", ".join(f"{one}=None" for one in without))
    )
    return f"{folder / 'model.py'}:build"
