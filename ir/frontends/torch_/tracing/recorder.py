"""The origin of buffers, recorded while a model is built.

A model is built on the meta device, so a causal mask that it keeps in a buffer (`register_buffer("mask",
torch.tril(…))`) has a shape but no values. While the factory runs, a `Recorder` notes each tensor that is made from
constants alone, as the expression that made it; what ends up in a buffer can then be evaluated like any other constant
(`constants.py`). What the factory asks the value of (`torch.linspace(0, 0.1, depth).tolist()`, chances and widths of
blocks) is computed there and then, by the operators that made it (`_Value`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only

from meshwright.ir.frontends.folding.terms import Term, evaluable
from meshwright.ir.frontends.torch_.sources.dtypes import DTYPES


class _Unrecorded(Exception):
    """An operand of unknown origin."""


NUMBER, COPY = "aten::_local_scalar_dense", "aten::_to_copy"
"""The operators that read values: of one number, and of a tensor that goes from the meta device to another one."""
MOST = 2**16
"""Numbers of a tensor whose value is computed."""


@dataclass(frozen=True, slots=True)
class _Value:
    """The value of a tensor on the meta device: the operator that made it, of values, and its number."""

    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    at: int

    def computed(self) -> Tensor:
        args, kwargs = tree_map_only(_Value, _Value.computed, (self.args, self.kwargs))
        on = {"device": torch.device("cpu")} if kwargs.get("device") is not None else {}
        made = self.operator(*args, **{**kwargs, **on})
        return made if isinstance(made, Tensor) else made[self.at]


class Recorder(TorchDispatchMode):
    """A context around the construction of a model that records the origin of its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, tuple[Tensor, Term]] = {}
        self._values: dict[int, tuple[Tensor, _Value]] = {}
        self._written: set[int] = set()
        """Storages in which operators have written."""
        self._literals = _Literals(self)

    def __enter__(self) -> Recorder:
        super().__enter__()
        self._literals.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._literals.__exit__(*raised)
        super().__exit__(*raised)

    def literal(self, made: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Record a tensor that is made of Python's numbers, which no operator of torch makes."""
        if isinstance(made, Tensor) and made.is_meta and made.numel() <= MOST:
            self._values[id(made)] = (made, _Value(func, tuple(args), {**kwargs, "device": made.device}, 0))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        to = (kwargs or {}).get("device")
        if func.name() == NUMBER or (func.name() == COPY and to is not None and torch.device(to).type != "meta"):
            with contextlib.suppress(_Unrecorded):  # then torch says that there is no value
                return func(self._value(args[0]).computed(), *args[1:], **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        self._note(func, args, kwargs or {}, result)
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

    def _note(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Record the operands of results that have values: nothing random, and nothing that is written into."""
        results = result if isinstance(result, list | tuple) else (result,)
        made = [one for one in results if isinstance(one, Tensor) and one.is_meta]
        if func._schema.is_mutable:
            self._written |= {storage_of(one) for one in made}
        small = bool(made) and all(one.numel() <= MOST for one in made)
        if small and torch.Tag.nondeterministic_seeded not in func.tags and "empty" not in func.name():
            try:
                of, named = tree_map_only(Tensor, self._value, (tuple(args), kwargs))
            except _Unrecorded:
                return
            self._values |= {id(one): (one, _Value(func, of, named, at)) for at, one in enumerate(results)}

    def _value(self, tensor: Tensor) -> _Value:
        if id(tensor) not in self._values or storage_of(tensor) in self._written:
            raise _Unrecorded
        return self._values[id(tensor)][1]

    def _term(self, tensor: Tensor) -> Term:
        if id(tensor) not in self._known:
            raise _Unrecorded
        return self._known[id(tensor)][1]

    def buffers(self, model: nn.Module) -> Mapping[str, Term]:
        """The expressions of the model's buffers, where they are known."""
        found = ((path, self._known.get(id(buffer))) for path, buffer in model.named_buffers())
        return {path: known[1] for path, known in found if known is not None}


class _Literals(TorchFunctionMode):
    """A mode that reports tensors made of Python's numbers to a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is torch.tensor:
            self.recorder.literal(made, func, args, kwargs or {})
        return made


def storage_of(tensor: Tensor) -> int:
    """A key that tensors sharing memory have in common, while one of them lives."""
    return int(tensor.untyped_storage()._cdata)
