"""Dispatch modes that are given every operator, also beneath DTensor: the base of `Peak`, `Counting` and `Wider`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch._guards import TracingContext
from torch._ops import HigherOrderOperator
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode


class Beneath(TorchDispatchMode):
    """Is given every operator on plain tensors, those that DTensor and compiled code run too."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code runs as compiled; else torch would run it as it is written."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(one, DTensor) for one in types):
            return NotImplemented  # DTensor first: what it runs instead, collectives too, comes here by itself
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator, and return what it makes."""
        return func(*args, **kwargs)


class Watching(Beneath):
    """Lets everything run as it would; a subclass looks on, before an operator and after."""

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator between `before` and `after`."""
        if isinstance(func, HigherOrderOperator) or TracingContext.try_get() is not None:
            return func(*args, **kwargs)  # the compiler looks at what code would do; nothing is sent
        self.before(func._schema, args)
        made = func(*args, **kwargs)
        self.after(func._schema, made)
        return made

    def before(self, schema: Any, args: tuple[Any, ...]) -> None:
        """An operator is about to run."""

    def after(self, schema: Any, made: Any) -> None:
        """It has run."""
