"""Dispatch modes that are given every operator, also beneath DTensor: the base of `Peak`, `Counting` and `Wider`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch._guards import TracingContext
from torch._ops import HigherOrderOperator
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode


class Beneath(TorchDispatchMode):
    """A mode that sees every operator on plain tensors, including those that DTensor and compiled code run."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Run compiled code as compiled; else torch would run it as it is written."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(one, DTensor) for one in types):
            return NotImplemented  # DTensor first: what it runs instead, collectives too, comes here by itself
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator, and return what it makes."""
        return func(*args, **kwargs)


class Watching(Beneath):
    """A mode that changes nothing; a subclass looks on, before an operator and after."""

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator between `before` and `after`."""
        if isinstance(func, HigherOrderOperator) or TracingContext.try_get() is not None:
            return self.executed(func, args, kwargs)  # the compiler looks at what code would do; nothing is sent
        self.before(func, args)
        made = self.executed(func, args, kwargs)
        self.after(func, made)
        return made

    def executed(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of the operator."""
        return func(*args, **kwargs)

    def before(self, func: Any, args: tuple[Any, ...]) -> None:
        """Called when an operator is about to run."""

    def after(self, func: Any, made: Any) -> None:
        """Called when it has run."""


class Together(Watching):
    """Several watches, and one mode that runs operators, as one mode: for a tiny operator, each mode is most of the
    time."""

    def __init__(self, running: Beneath, *watching: Watching) -> None:
        super().__init__()
        self.running, self.watching = running, watching

    def executed(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return self.running.run(func, args, kwargs)

    def before(self, func: Any, args: tuple[Any, ...]) -> None:
        for one in self.watching:
            one.before(func, args)

    def after(self, func: Any, made: Any) -> None:
        for one in self.watching:
            one.after(func, made)
