"""Watching a model's forward pass on the meta device, for `meshwright.ir.calls`: which module made which argument of
which other one. A tensor belongs to the innermost module that returned it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from meshwright.ir.calls import Calls
from meshwright.ir.errors import EmissionModel
from meshwright.ir.frontends.contract import Source, example_batch, guarded

TIME_LIMIT_S = 60.0


def calls_of(source: Source, reference: str, *, batch: int, seq: int) -> Calls:
    """How the model of `file.py:factory` is called on a batch."""
    file, colon, factory = reference.rpartition(":")
    if not colon or not file.endswith(".py"):
        raise EmissionModel(
            place=reference, cause="the model is no factory in a Python file", fix="plan file.py:factory, and emit that"
        )
    example = example_batch(source, batch, seq)
    if not isinstance(example, dict):
        raise EmissionModel(
            place=f"{file}, example_inputs", cause="the batch is no dict", fix="return a dict of named tensors"
        )
    if source.hooks.loss is None:
        raise EmissionModel(place=file, cause="there is no loss(outputs, batch)", fix="define it beside the factory")
    accepted = inspect.signature(source.module.forward).parameters
    entries = tuple(name for name in accepted if name in example)
    with guarded(file, TIME_LIMIT_S):
        arguments = _watched(source.module, {name: example[name] for name in entries})
    return Calls(
        file=Path(file),
        factory=factory,
        entries=entries,
        arguments=arguments,
        has_optimizer=source.hooks.optimizer is not None,
    )


def _watched(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, tuple[str | None, ...]]:
    """The arguments of every module that is called by position only, by path; the first call counts."""
    made: dict[int, tuple[str, Tensor]] = {}
    found: dict[str, tuple[str | None, ...]] = {}
    paths = {module: path for path, module in model.named_modules()}

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not kwargs:
            found.setdefault(paths[module], tuple(made[id(arg)][0] if id(arg) in made else None for arg in args))

    def after(module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        if isinstance(result, Tensor):
            made.setdefault(id(result), (paths[module], result))

    handles = [hook for module in paths for hook in (
        module.register_forward_pre_hook(before, with_kwargs=True), module.register_forward_hook(after))]  # fmt: skip
    try:
        with torch.no_grad():
            model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found
