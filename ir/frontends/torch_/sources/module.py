"""An `nn.Module` that exists already, given to the Python API instead of a file.

Planning must neither touch nor hold its weights, so it works on a copy whose parameters and buffers are on the meta
device. The copy is cheap: deepcopy is told beforehand what every tensor is to be replaced by, and tied tensors stay
tied.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from meshwright.ir.frontends.contract import Source, source_of
from meshwright.ir.frontends.torch_.sources.hf_config import adopted


def load_module(
    module: nn.Module,
    *,
    example_inputs: Callable[[int, int], Any] | None = None,
    loss: Callable[[Any, Any], Tensor] | None = None,
    dims: Mapping[str, tuple[str, ...]] | None = None,
) -> Source:
    """A module with the hooks of the model contract; those not given here are looked for on the module itself."""
    hooks = {"example_inputs": example_inputs, "loss": loss, "dims": dims}
    given = {name: hook for name, hook in hooks.items() if hook is not None}
    return adopted(source_of(meta_copy(module), place=type(module).__qualname__, beside=given))


def meta_copy(module: nn.Module) -> nn.Module:
    """The same module without storage."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        on_meta = tensor.detach().to("meta")
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(on_meta, tensor.requires_grad) if is_parameter else on_meta
    return copy.deepcopy(module, memo)
