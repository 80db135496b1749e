"""Labels of the dimensions of a model's inputs, where its `dims` hook does not give them.

`example_inputs(batch, seq)` is asked twice more, for twice the batch and for twice the sequence: a dimension that
doubles with the batch is "b", one that doubles with the sequence "s". A hook that refuses another size leaves its
dimensions without a name, which costs plans that cut them; the note says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from meshwright.ir.errors import MeshwrightError
from meshwright.ir.frontends.contract import check_dims
from meshwright.ir.frontends.torch_.sources.factory import TorchSource, example_batch
from meshwright.ir.frontends.torch_.tracing.export import named_leaves

PROBES = (("b", 2, 1), ("s", 1, 2))
"""Label, and the factors on batch and sequence that reveal it."""


def labelled(source: TorchSource, example: Any, *, batch: int, seq: int) -> tuple[TorchSource, tuple[str, ...]]:
    """The source with a label for every dimension that has one, and notes on those that could not be determined."""
    shapes = _shapes(source, example)
    check_dims(source.hooks.dims, shapes, source.place)
    unnamed = [name for name in shapes if name not in source.hooks.dims]
    if not unnamed:
        return source, ()
    found = {name: [""] * len(shapes[name]) for name in unnamed}
    notes = []
    for label, more_batch, more_seq in PROBES:
        try:
            probe = _shapes(source, example_batch(source, batch * more_batch, seq * more_seq))
        except MeshwrightError as error:
            notes.append(f"no dimension is labelled {label!r}: example_inputs takes no other size ({error.cause})")
            continue
        for name in unnamed:
            grown = probe.get(name, ())
            if len(grown) == len(shapes[name]):
                for dim, (before, after) in enumerate(zip(shapes[name], grown, strict=True)):
                    if after == 2 * before:
                        found[name][dim] = label
    dims = {name: tuple(labels) for name, labels in found.items()} | dict(source.hooks.dims)
    return replace(source, hooks=replace(source.hooks, dims=dims)), tuple(notes)


def _shapes(source: TorchSource, example: Any) -> dict[str, tuple[int, ...]]:
    leaves = named_leaves(example, source.module)
    return {name: tuple(leaf.shape) for name, leaf in leaves if isinstance(leaf, Tensor)}
