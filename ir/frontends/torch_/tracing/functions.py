"""Calls of users' autograd functions in a training step: which of them are operators of its trace.

    call  ->  followed   a trace has the operators of its forward pass; their derivatives are its gradients
          ->  kept       a trace has the call itself, which runs the user's code in both passes
          ->  neither    its backward pass is that of another function, and no code can call it (`unsaid`)

A function is followed if its backward pass is the derivative of its forward pass: operators that are known are worth
more than a call. Whether it is, is tried on numbers that are drawn: once on signed and once on positive ones, on small
extents or, if the function does not run on these, on its own.

A call is kept if code can make it again, of a class that its module has by name, with tensors and plain data by
position, which it leaves as they are; and if trials find loops of it (`operators.discover`): what nothing is known of
would forbid more than the model's own code does.
"""

from __future__ import annotations

import contextlib
from ast import literal_eval
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count, product
from math import prod
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._C._functorch import maybe_current_level
from torch.autograd import Function
from torch.library import Library, register_fake
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from meshwright.ir.frontends.torch_.operators.discover import discovered
from meshwright.ir.frontends.torch_.operators.invoked import FUNCTIONS, function_name, function_symbol, invoked
from meshwright.ir.frontends.torch_.operators.values import Call, Literal
from meshwright.ir.frontends.torch_.sources.dtypes import DTYPES, type_of
from meshwright.ir.graph.invocation import APPLY

SMALL = 8
"""Extents up to this stay, where small ones are tried; larger ones become a little more than it."""
MOST_ELEMENTS = 1 << 21
"""Of all tensors of a trial."""
SPREAD = 0.2
"""The deviation of numbers that are drawn: functions on part of the line often have it around zero."""
OFF, OFF_NARROW = 1e-6, 1e-4
"""By how much gradients may differ, in parts of the largest: in fp64, and where a function casts to fewer digits."""
SCHEMAS = (
    (Tensor, "Tensor"), (bool, "bool"), (int, "int"), (float, "float"), (torch.dtype, "ScalarType"),
    (torch.device, "Device"), (torch.memory_format, "MemoryFormat"), (type(None), "Tensor?"),
)  # fmt: skip
"""Arguments that a call may have, and what schemas of operators call these; lists of the first four, too.
Other data is passed as a string that Python reads."""
MOST_TEXT = 1024
"""Of such a string."""

_OWN: Any = vars(Function)["apply"]  # written in Python, or in C since torch 2.14


@contextlib.contextmanager
def applied(instead: Callable[[FunctionCall], Any]) -> Iterator[None]:
    """Within a context, call this wherever an autograd function of a user's would be applied."""

    def apply(kind: Any, *args: Any, **kwargs: Any) -> Any:
        call = FunctionCall(kind, args, kwargs, mapped=maybe_current_level() is not None)
        return call.apply(*args, **kwargs) if kind.__module__.startswith("torch.") else instead(call)

    with mock.patch.object(Function, "apply", classmethod(apply)):
        yield


@contextlib.contextmanager
def keeping() -> Iterator[None]:
    """Trace within a context: calls that are not followed are operators, where they are kept. A forward pass that is
    followed says nothing by `torch.no_grad`: torch takes no derivatives of it."""
    verdicts: dict[tuple[Any, ...], Any] = {}

    def instead(call: FunctionCall) -> Any:
        if call.key not in verdicts:
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                verdicts[call.key] = None if call.derives() else call.kept()
        operator = verdicts[call.key]
        if operator is not None:
            return operator(*map(_passed, call.args))
        with contextlib.ExitStack() as stack:
            for name, nothing in (("__enter__", lambda _: None), ("__exit__", lambda *_: None)):
                stack.enter_context(mock.patch.object(torch.no_grad, name, nothing))
            return call.apply(*call.args, **call.kwargs)

    with applied(instead):
        yield


class _Narrow(TorchDispatchMode):
    """Run a function on fp64 inside; afterwards, `found` says whether it computed with fewer digits, by casts of its
    own."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        leaves = [one for one in pytree.tree_leaves(made) if isinstance(one, Tensor)]
        self.found |= any(one.is_floating_point() and one.dtype is not torch.float64 for one in leaves)
        return made


class _Context:
    """The context object that a forward pass is given to save things for backward."""

    def __init__(self, given: int) -> None:
        self.needs_input_grad = (True,) * given

    def save_for_backward(self, *_: Any) -> None:
        """Save nothing."""

    save_for_forward = mark_dirty = mark_non_differentiable = set_materialize_grads = save_for_backward


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of an autograd function, with its arguments.

    - One that is `mapped` (`torch.vmap`) is of one sample, and is followed or nothing.
    """

    kind: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    mapped: bool = False

    @property
    def name(self) -> str:
        return f"{self.kind.__module__}.{self.kind.__qualname__}"

    @property
    def apply(self) -> Callable[..., Any]:
        """What applies the function, also where that is watched."""
        own: Callable[..., Any] = _OWN.__get__(None, self.kind)
        return own

    @property
    def tensors(self) -> list[Tensor]:
        return [one for one in pytree.tree_leaves((self.args, dict(self.kwargs))) if isinstance(one, Tensor)]

    @property
    def shapes(self) -> tuple[Any, ...]:
        return tuple((tuple(one.shape), one.dtype) for one in self.tensors)

    @property
    def key(self) -> tuple[Any, ...]:
        """What is alike in calls that are alike."""
        others = [one for one in pytree.tree_leaves(self.args) if not isinstance(one, Tensor)]
        return self.kind, self.mapped, self.shapes, repr(others)

    def kept(self) -> Any | None:
        """The call as an operator, if it can be made again and trials find loops of it."""
        name, schemas = function_name(self.kind), [_schema(one) for one in self.args]
        if name is None or self.kwargs or self.mapped or self._own_apply or None in schemas:
            return None
        made = self._made()
        if made is None:
            return None
        operator = operator_of(self.kind, name, tuple(map(str, schemas)), len(made))
        passed = (_handle(_passed(one)) for one in self.args)
        arguments = dict(zip((one.name for one in operator._schema.arguments), passed, strict=True))
        given, types = ([type_of(one, name) for one in some] for some in (self.tensors, made))
        _, said = invoked(Call(str(operator), arguments, tuple(types)))
        found = discovered(str(operator), said["call"], tuple(given), tuple(types)) if said else None
        return operator if found is not None and found.loops else None

    @property
    def _own_apply(self) -> bool:
        """Whether its class applies it in a way of its own."""
        return any("apply" in vars(one) for one in self.kind.__mro__[: self.kind.__mro__.index(Function)])

    def _made(self) -> tuple[Tensor, ...] | None:
        """The results, without values; none where it writes into arguments, or returns something else."""
        given = [torch.empty_like(one, device="meta", requires_grad=False) for one in self.tensors]
        left = iter(given)
        args = pytree.tree_map_only(Tensor, lambda _: next(left), self.args)
        try:
            with torch.no_grad():
                made = self.apply(*args)
        except Exception:  # noqa: BLE001 - it needs values
            return None
        results = (made,) if isinstance(made, Tensor) else made
        plain = isinstance(results, tuple) and all(isinstance(one, Tensor) for one in results)
        known = plain and all(one.dtype in DTYPES for one in (*given, *results))
        if not known or (len(results) == 1) != isinstance(made, Tensor) or any(one._version for one in given):
            return None
        return results

    def derives(self) -> bool:
        """Whether its backward pass is the derivative of its forward pass, as far as it can be tried: not where what it
        returns is not finite, nor of one that calls a module, which has no values here."""
        if any(isinstance(one, nn.Module) for one in pytree.tree_leaves((self.args, dict(self.kwargs)))):
            return False
        tried = [self._agrees(positive) for positive in (False, True)]
        return True in tried and False not in tried

    def _agrees(self, positive: bool) -> bool | None:
        for dtype, extents in product((torch.float64, torch.float32), self._extents()):
            given, spec = self._given(extents, dtype, positive)
            leaves = [one for one in given if _differentiable(one)]
            try:
                with _Narrow() as narrow:
                    made, own = self._own(given, spec, leaves)
                derived = self._derived(given, spec, leaves, [_differentiable(one) for one in made])
            except Exception:  # noqa: BLE001 - it does not take these extents, or this dtype
                continue
            if not all(bool(one.isfinite().all()) for one in made if isinstance(one, Tensor)):
                return None
            off = OFF_NARROW if narrow.found else OFF
            pairs = zip(own, derived, strict=True)
            return all(torch.allclose(one, other, rtol=off, atol=off * _largest(other) + 1e-9) for one, other in pairs)
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

    def _given(
        self, extents: Mapping[int, int], dtype: torch.dtype, positive: bool
    ) -> tuple[list[Any], pytree.TreeSpec]:
        """The arguments, with numbers that are drawn."""
        generator = torch.Generator().manual_seed(0)

        def draw(like: Any) -> Any:
            if not isinstance(like, Tensor):
                return like
            shape = [extents.get(size, size) for size in like.shape]
            if not like.is_floating_point():
                return torch.randint(0, 2, shape, generator=generator).to(like.dtype)
            drawn = torch.randn(shape, generator=generator, dtype=dtype) * SPREAD
            return (drawn.abs() if positive else drawn).requires_grad_()

        leaves, spec = pytree.tree_flatten((self.args, dict(self.kwargs)))
        return [draw(one) for one in leaves], spec

    def _own(self, given: list[Any], spec: pytree.TreeSpec, leaves: Sequence[Tensor]) -> tuple[list[Any], list[Tensor]]:
        """The results, and the gradients of the function's own backward pass."""
        args, kwargs = pytree.tree_unflatten(given, spec)
        with torch.enable_grad(), _seeded():
            made = pytree.tree_leaves(self.apply(*args, **kwargs))
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


def _largest(one: Tensor) -> float:
    return float(one.abs().max()) if one.numel() else 0.0


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


def _schema(argument: Any) -> str | None:
    """The type of an argument in the schema of an operator, if it may have it."""
    if isinstance(argument, list | tuple):
        inside = {_schema(one) for one in argument}
        if len(inside) == 1 and inside <= {"Tensor", "bool", "int", "float"}:
            return f"{inside.pop()}[]"
    if isinstance(argument, torch.dtype) and argument not in DTYPES:
        return None
    known = next((name for kind, name in SCHEMAS if isinstance(argument, kind)), None)
    return "str" if known is None and _text(argument) is not None else known


def _text(argument: Any) -> str | None:
    """The data as Python reads it, if there is such a text."""
    text = repr(argument)
    try:
        read = literal_eval(text) if len(text) <= MOST_TEXT else None
    except (SyntaxError, ValueError):
        return None
    return text if type(read) is type(argument) and read == argument else None


def _passed(argument: Any) -> Any:
    """An argument as the operator takes it."""
    return _text(argument) if _schema(argument) == "str" else argument


def _handle(argument: Any) -> Any:
    """An argument as a trace has it."""
    if isinstance(argument, list | tuple):
        return tuple(map(_handle, argument))
    if isinstance(argument, Tensor):
        return "%"
    return Literal(argument) if isinstance(argument, str) else argument


_NUMBERS = count()
_LIBRARY: list[Library] = []


@cache
def operator_of(kind: Any, name: str, arguments: tuple[str, ...], results: int) -> Any:
    """The operator that applies an autograd function to arguments of these types."""
    if not _LIBRARY:
        _LIBRARY.append(Library(FUNCTIONS, "FRAGMENT"))
    (library,), symbol = _LIBRARY, f"{function_symbol(name)}_s{next(_NUMBERS)}"
    given = ", ".join(f"{type_} a{at}" for at, type_ in enumerate(arguments))
    made = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
    library.define(f"{symbol}.{APPLY}({given}) -> {made}")
    own = _OWN.__get__(None, kind)

    def run(*args: Any) -> Any:
        return own(*(literal_eval(one) if isinstance(one, str) else one for one in args))

    for key in ("CompositeExplicitAutograd", "Autograd"):
        library.impl(f"{symbol}.{APPLY}", run, key)
    register_fake(f"{FUNCTIONS}::{symbol}.{APPLY}", run, lib=library)
    return getattr(getattr(getattr(torch.ops, FUNCTIONS), symbol), APPLY)
