"""The torch front end's side of `meshwright.ir.frontends.door.FrontEnd`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from meshwright.ir.frontends.contract import Factory
from meshwright.ir.frontends.folding.captured import Captured
from meshwright.ir.frontends.folding.stacks import Stack
from meshwright.ir.frontends.torch_.small import twin
from meshwright.ir.frontends.torch_.sources.dtypes import WORKLOAD_DTYPES
from meshwright.ir.frontends.torch_.sources.factory import TorchSource, meta_copy, source_from, source_of
from meshwright.ir.frontends.torch_.sources.hf_config import adopted, load_hf
from meshwright.ir.frontends.torch_.sources.shape_toml import load_shape
from meshwright.ir.frontends.torch_.tracing import calls, capture
from meshwright.ir.frontends.twin import Scale, Twin
from meshwright.ir.graph.calls import Calls
from meshwright.ir.graph.constants import Constant


def from_file(path: Path, dtype: str | None) -> TorchSource | None:
    """The model of a shape, or of a Hugging Face configuration."""
    if path.suffix == ".toml":
        return load_shape(path, dtype)
    if os.path.isdir(path) or path.suffix == ".json":  # noqa: PTH112 - Path raises where a name is too long
        return load_hf(path, dtype=None if dtype is None else WORKLOAD_DTYPES[dtype])
    return None


def from_factory(factory: Factory, time_limit_s: float, mesh: tuple[tuple[str, int], ...] = ()) -> TorchSource:
    """The model of a factory, with its hooks; modules of torch say of nothing where it lies."""
    return adopted(source_from(factory, time_limit_s=time_limit_s))


def from_object(model: Any, hooks: Mapping[str, Any]) -> TorchSource | None:
    """An existing module; hooks that are not given are looked for on the module itself. Planning must neither touch nor
    hold its weights, so it works on a copy."""
    if not isinstance(model, nn.Module):
        return None
    given = {name: hook for name, hook in hooks.items() if hook is not None}
    return adopted(source_of(meta_copy(model), place=type(model).__qualname__, beside=given))


def capture_of(source: TorchSource, *, batch: int, seq: int, seed: int) -> Captured:
    """The fold of a model's training step."""
    return capture.capture(source, batch=batch, seq=seq, seed=seed)


def calls_of(
    source: TorchSource,
    reference: str,
    *,
    batch: int,
    seq: int,
    constants: Mapping[str, Constant] | None,
    stacks: Sequence[Stack],
) -> Calls:
    """The calls of the model."""
    return calls.calls_of(source, reference, batch=batch, seq=seq, constants=constants, stacks=stacks)


def twin_of(source: TorchSource, reference: str, scale: Scale) -> Twin:
    """The model's small twin."""
    return twin.twin_of(source, reference, scale)
