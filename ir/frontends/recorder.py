"""How buffers came about.

A model is built on the meta device, so a causal mask that it keeps in a buffer (`register_buffer("mask",
torch.tril(…))`) has a shape but no values. While the factory runs, a `Recorder` notes each tensor that is made from
constants alone, as the expression that made it; what ends up in a buffer can then be evaluated like any other constant
(`constants.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only

from meshwright.ir.frontends.constants import Term, evaluable
from meshwright.ir.frontends.dtypes import DTYPES


class _Unrecorded(Exception):
    """An operand of which nothing is known."""


class Recorder(TorchDispatchMode):
    """Use as a context around the construction of a model."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, tuple[Tensor, Term]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        operator = func.overloadpacket.__name__.rstrip("_")
        if isinstance(result, Tensor) and evaluable(operator) and result.dtype in DTYPES:
            try:
                given = tree_map(
                    lambda leaf: leaf, tree_map_only(Tensor, self._term, (tuple(args), dict(kwargs or {})))
                )
            except _Unrecorded:
                self._known.pop(id(result), None)
            else:
                term = Term(operator, tuple(result.shape), DTYPES[result.dtype], *given)
                self._known[id(result)] = (result, term)
        else:
            self._known.pop(id(result), None)
        return result

    def _term(self, tensor: Tensor) -> Term:
        if id(tensor) not in self._known:
            raise _Unrecorded
        return self._known[id(tensor)][1]

    def buffers(self, model: nn.Module) -> Mapping[str, Term]:
        """The expressions of the model's buffers, where they are known."""
        found = ((path, self._known.get(id(buffer))) for path, buffer in model.named_buffers())
        return {path: known[1] for path, known in found if known is not None}
