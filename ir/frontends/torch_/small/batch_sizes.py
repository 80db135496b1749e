"""Fixed sizes of a model's batches: of images, of sound, of labels.

    example_inputs  ->  sizes, by entry and dimension  ->  example_inputs that cut their entries to smaller ones

They are numbers like those of the model, so a twin has small ones (`shrink`), which its file says as code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from meshwright.ir.errors import MeshwrightError
from meshwright.ir.frontends.torch_.sources.factory import TorchSource, example_batch
from meshwright.ir.quoting import literal

Sizes = Mapping[str, Mapping[int, int]]
ExampleInputs = Callable[[int, int], Any]


def fixed_sizes(source: TorchSource, batch: int, seq: int) -> Sizes:
    """The sizes that change neither with the samples of a batch nor with their tokens; of a dict's tensors."""
    try:
        first, *others = (example_batch(source, *asked) for asked in ((batch, seq), (2 * batch, seq), (batch, 2 * seq)))
    except MeshwrightError:  # it takes no other size
        return {}
    if not all(isinstance(one, dict) for one in (first, *others)):
        return {}
    return {
        name: {
            dim: size for dim, size in enumerate(one.shape) if all(_size(also, name, dim) == size for also in others)
        }
        for name, one in first.items()
        if isinstance(one, Tensor)
    }


def _size(batch: Mapping[str, Any], name: str, dim: int) -> int | None:
    one = batch.get(name)
    return one.shape[dim] if isinstance(one, Tensor) and dim < one.dim() else None


def cut(make: ExampleInputs, sizes: Sizes) -> ExampleInputs:
    """Batches of which every entry is cut to its sizes."""

    def smaller(batch: int, seq: int) -> Any:
        made = make(batch, seq)
        return {**made, **{name: _narrowed(made[name], of) for name, of in sizes.items()}} if sizes else made

    return smaller


def _narrowed(tensor: Tensor, sizes: Mapping[int, int]) -> Tensor:
    for dim, size in sizes.items():
        tensor = tensor.narrow(dim, 0, size)
    return tensor.contiguous()


CODE = '''\
def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    """Those of the model, cut to small sizes."""
    made = {whole}(batch, seq)
    return {{
        **made,
{entries}
    }}
'''


def code_of(sizes: Sizes, whole: str) -> str:
    """The cut as code, where the model's own function is called `whole`."""
    entries = (
        f"        {literal(name)}: made[{literal(name)}][{_run(of)}].contiguous()," for name, of in sizes.items()
    )
    return CODE.format(whole=whole, entries="\n".join(entries))


def _run(sizes: Mapping[int, int]) -> str:
    return ", ".join(f":{sizes[dim]}" if dim in sizes else ":" for dim in range(max(sizes) + 1))


def smaller(sizes: Sizes, than: Sizes) -> Sizes:
    """Those sizes that have changed."""
    found = {name: {dim: one for dim, one in of.items() if one != than[name][dim]} for name, of in sizes.items()}
    return {name: of for name, of in found.items() if of}
