"""A model that exists only as numbers: a shape file (`shape`), as the reference decoder (`decoder`) of that shape.

It is built on the meta device; from there it takes the path of any other model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from meshwright.ir.frontends.shape import Shape, read_shape, validated
from meshwright.ir.frontends.torch_.sources import language
from meshwright.ir.frontends.torch_.sources.decoder import Decoder
from meshwright.ir.frontends.torch_.sources.dtypes import TORCH_DTYPES, WORKLOAD_DTYPES
from meshwright.ir.frontends.torch_.sources.factory import TorchSource, counted_modules


def load_shape(path: Path, dtype: str | None = None) -> TorchSource:
    """The reference decoder of a shape file."""
    return build(read_shape(path), str(path), dtype)


def of_settings(given: Mapping[str, Any], place: str) -> Decoder:
    """The decoder of keys and values, on the device that torch has as its default."""
    return Decoder(validated(given, place))


def build(shape: Shape, place: str, dtype: str | None = None) -> TorchSource:
    """The decoder in the dtype of a workload, or in its own."""
    with counted_modules(place), torch.device("meta"):
        model = Decoder(shape).to(TORCH_DTYPES[shape.dtype] if dtype is None else WORKLOAD_DTYPES[dtype])
    settings = ", ".join(f"{key}={value}" for key, value in asdict(shape).items())
    return TorchSource(model, language.hooks("tokens"), place, settings)
