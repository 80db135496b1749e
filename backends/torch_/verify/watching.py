"""What `Peak` and `Counting` have in common: they see every operator as torch dispatches it, also beneath DTensor."""

from __future__ import annotations

from typing import Any

from torch._guards import TracingContext
from torch._ops import HigherOrderOperator
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode


class Watching(TorchDispatchMode):
    """Lets everything run as it would; a subclass looks on, before an operator and after."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code runs, and is watched, as compiled; else torch would run it as it is written."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(one, DTensor) for one in types):
            return NotImplemented  # DTensor first: what it runs instead, collectives too, comes here by itself
        if isinstance(func, HigherOrderOperator) or TracingContext.try_get() is not None:
            return func(*args, **(kwargs or {}))  # the compiler looks at what code would do; nothing is sent
        self.before(func._schema, args)
        made = func(*args, **(kwargs or {}))
        self.after(func._schema, made)
        return made

    def before(self, schema: Any, args: tuple[Any, ...]) -> None:
        """An operator is about to run."""

    def after(self, schema: Any, made: Any) -> None:
        """It has run."""
