"""Effects of a training step that its graph of operators does not express.

    derivatives   an autograd function may have a backward pass that is not the derivative of its forward pass, and a
                  graph has only the latter
    draws         numbers that numpy or `random` draw are constants in a graph, and others in every step of the model
    writes        a parameter that the forward pass clips or scales is trained as if it had not been, and no operator of
                  a graph has a gradient for what it did not read

Code that is printed from the graph would compute something else than the model. Whether a derivative is that of the
forward pass is tried, on numbers that are drawn: once on signed and once on positive ones, on small extents or, if the
function does not run on these, on its own.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast
from unittest import mock

import numpy
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from meshwright.ir.frontends.torch_.tracing.recorder import storage_of

SMALL = 8
"""Extents up to this stay, where small ones are tried; larger ones become a little more than it."""
MOST_ELEMENTS = 1 << 21
"""Of all tensors of a trial."""
SPREAD = 0.2
"""The deviation of numbers that are drawn: functions on part of the line often have it around zero."""


@contextlib.contextmanager
def watched() -> Iterator[list[str]]:
    """Run a step within a context, with values or without; afterwards, the list that it yields has the effects that its
    graph would not express."""
    found: list[str] = []
    calls: dict[tuple[Any, ...], _Call] = {}
    apply = vars(Function)["apply"]  # written in Python, or in C since torch 2.14

    def noted(kind: Any, *args: Any, **kwargs: Any) -> Any:
        if not kind.__module__.startswith("torch."):
            call = _Call(kind, args, kwargs)
            calls.setdefault((kind, *call.shapes), call)
        return apply.__get__(None, kind)(*args, **kwargs)

    before = states()
    with mock.patch.object(Function, "apply", classmethod(noted)):
        yield found
    if states() != before:
        found.append("it draws numbers outside of torch (numpy, random), which a graph has as constants")
    wrong = dict.fromkeys(call.name for call in calls.values() if not call.derives())
    found += [f"{name} has a backward pass that is not the derivative of its forward pass" for name in wrong]


def states() -> tuple[Any, ...]:
    """The states of the generators of numpy and `random`, to be compared: drawing changes them."""
    name, keys, *counters = cast("tuple[Any, ...]", numpy.random.get_state())
    return random.getstate(), name, keys.tobytes(), *counters


class Writes(TorchDispatchMode):
    """Run a step inside; afterwards, `found` has the paths of the parameters that it wrote into, each with whether all
    that was written comes of numbers and of the parameter itself, so that its copies stay alike."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.found: dict[str, bool] = {}
        self._paths = {storage_of(parameter): path for path, parameter in model.named_parameters()}
        self._views: list[Tensor] = []  # kept: another tensor may get the storage of one that is gone

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for argument, given in zip(func._schema.arguments, args, strict=False):
            strided = isinstance(given, Tensor) and given.layout is torch.strided
            path = self._paths.get(storage_of(given)) if argument.alias_info and strided else None
            if path is None:
                continue
            if argument.alias_info.is_write:
                alone = sum(isinstance(one, Tensor) for one in args) == 1
                draws = torch.Tag.nondeterministic_seeded in func.tags
                self.found[path] = self.found.get(path, True) and alone and not draws
            elif isinstance(made, Tensor):
                self._paths[storage_of(made)] = path
                self._views.append(made)
        return made


class _Context:
    """The context object that a forward pass is given to save things for backward."""

    def __init__(self, given: int) -> None:
        self.needs_input_grad = (True,) * given

    def save_for_backward(self, *_: Any) -> None:
        """Save nothing."""

    save_for_forward = mark_dirty = mark_non_differentiable = set_materialize_grads = save_for_backward


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of an autograd function, with its arguments."""

    kind: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.kind.__module__}.{self.kind.__qualname__}"

    @property
    def tensors(self) -> list[Tensor]:
        return [one for one in pytree.tree_leaves((self.args, dict(self.kwargs))) if isinstance(one, Tensor)]

    @property
    def shapes(self) -> tuple[Any, ...]:
        return tuple((tuple(one.shape), one.dtype) for one in self.tensors)

    def derives(self) -> bool:
        """Whether its backward pass is the derivative of its forward pass, as far as it can be tried: not where what it
        returns is not finite."""
        tried = [self._agrees(positive) for positive in (False, True)]
        return True in tried and False not in tried

    def _agrees(self, positive: bool) -> bool | None:
        for extents in self._extents():
            given, spec = self._given(extents, positive)
            leaves = [one for one in given if _differentiable(one)]
            try:
                made, own = self._own(given, spec, leaves)
                derived = self._derived(given, spec, leaves, [_differentiable(one) for one in made])
            except Exception:  # noqa: BLE001 - it does not take these extents
                continue
            if not all(bool(one.isfinite().all()) for one in made if isinstance(one, Tensor)):
                return None
            pairs = zip(own, derived, strict=True)
            return all(torch.allclose(one, other, rtol=1e-6, atol=1e-9) for one, other in pairs)
        return False

    def _extents(self) -> Iterator[Mapping[int, int]]:
        """Extents for a trial: small ones, then the real ones."""
        large = sorted({size for one in self.tensors for size in one.shape if size > SMALL})
        yield {size: SMALL + 1 + at for at, size in enumerate(large)}
        if sum(prod(one.shape) for one in self.tensors) <= MOST_ELEMENTS:
            yield {}

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.kind.setup_context is not Function.setup_context:
            return self.kind.forward(*args, **kwargs)
        return self.kind.forward(_Context(len(args)), *args, **kwargs)

    def _given(self, extents: Mapping[int, int], positive: bool) -> tuple[list[Any], pytree.TreeSpec]:
        """The arguments, with numbers that are drawn."""
        generator = torch.Generator().manual_seed(0)

        def draw(like: Any) -> Any:
            if not isinstance(like, Tensor):
                return like
            shape = [extents.get(size, size) for size in like.shape]
            if not like.is_floating_point():
                return torch.randint(0, 2, shape, generator=generator).to(like.dtype)
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64) * SPREAD
            return (drawn.abs() if positive else drawn).requires_grad_()

        leaves, spec = pytree.tree_flatten((self.args, dict(self.kwargs)))
        return [draw(one) for one in leaves], spec

    def _own(self, given: list[Any], spec: pytree.TreeSpec, leaves: Sequence[Tensor]) -> tuple[list[Any], list[Tensor]]:
        """The results, and the gradients of the function's own backward pass."""
        args, kwargs = pytree.tree_unflatten(given, spec)
        with torch.enable_grad(), _seeded():
            made = pytree.tree_leaves(self.kind.apply(*args, **kwargs))
            weighed = _weighed(one for one in made if _differentiable(one))
            found = torch.autograd.grad(weighed, leaves, allow_unused=True)
        pairs = zip(found, leaves, strict=True)
        return made, [torch.zeros_like(leaf) if one is None else one for one, leaf in pairs]

    def _derived(
        self, given: list[Any], spec: pytree.TreeSpec, leaves: Sequence[Tensor], chosen: Sequence[bool]
    ) -> tuple[Tensor, ...]:
        """The derivative of the forward pass, which may write in place, by all of its arguments."""

        def run(*those: Tensor) -> Tensor:
            left = iter(those)
            args, kwargs = pytree.tree_unflatten([next(left) if _differentiable(one) else one for one in given], spec)
            made = pytree.tree_leaves(self._forward(*args, **kwargs))
            return _weighed(one for one, counts in zip(made, chosen, strict=True) if counts)

        with torch.enable_grad(), _seeded():
            order = tuple(range(len(leaves)))
            found: tuple[Tensor, ...] = torch.func.grad(torch.func.functionalize(run), argnums=order)(
                *(one.detach() for one in leaves)
            )
        return found


def _differentiable(item: Any) -> bool:
    return isinstance(item, Tensor) and item.requires_grad


def _weighed(made: Iterable[Tensor]) -> Tensor:
    """A sum in which all numbers have weights of their own."""
    return torch.stack(
        [(one * torch.linspace(0.5, 1.5, one.numel(), dtype=one.dtype).view(one.shape)).sum() for one in made]
    ).sum()


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        yield
