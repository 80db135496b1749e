"""A torch model with its hooks, from the factory of a file or from a module that exists already."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from meshwright.ir.errors import EmptyModel, FactoryRaised, ModelTooLarge, NoExampleInputs
from meshwright.ir.frontends.contract import Factory, check_hooks, find_factory, hook_of
from meshwright.ir.frontends.folding.terms import Term
from meshwright.ir.frontends.foreign import TIME_LIMIT_S, blamed, guarded
from meshwright.ir.frontends.torch_.sources.dtypes import WORKLOAD_DTYPES
from meshwright.ir.frontends.torch_.tracing.recorder import Recorder
from meshwright.ir.limits import MODULE_DEPTH, MODULES


@dataclass(frozen=True, slots=True)
class Hooks:
    """The user's statements about a model beyond its code."""

    example_inputs: Callable[[int, int], Any] | None = None
    loss: Callable[[Any, Any], Tensor] | None = None
    dims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    optimizer: Callable[[list[nn.Parameter]], Any] | None = None
    draw_weights: Callable[[nn.Module], None] | None = None


@dataclass(frozen=True, slots=True)
class TorchSource:
    """A torch model to plan for. `place` is its name in errors; `config` is what the digest adds to names and shapes of
    parameters."""

    framework: ClassVar = "torch_"

    module: nn.Module
    hooks: Hooks
    place: str
    config: str = ""
    buffers: Mapping[str, Term] = field(default_factory=dict)
    """How buffers came about, where the model has been watched while it was built."""
    beside: Mapping[str, Any] = field(default_factory=dict)
    """What stands in the file of the factory."""
    cast: tuple[nn.Parameter, ...] = ()
    """The parameters that are not in the dtype in which the factory made them, which was fp32."""

    def given(self, inputs: Any) -> Any:
        """The arguments of the forward pass for these inputs: where parameters were cast, so are numbers in more than
        their precision, as mixed precision policies do; the loss reads the batch as it is."""
        low = self.cast[0].dtype if self.cast else None
        if low is None or not low.is_floating_point:
            return inputs
        return pytree.tree_map_only(Tensor, lambda one: one.to(low) if one.dtype is torch.float32 else one, inputs)

    def in_dtype(self, dtype: str) -> TorchSource:
        """The source with parameters in fp32 cast to the dtype of a workload. Others stay, and so do buffers: tables of
        positions lose far ones in half precision."""
        made = tuple(parameter for parameter in self.module.parameters() if parameter.dtype is torch.float32)
        for parameter in made:
            parameter.data = parameter.data.to(WORKLOAD_DTYPES[dtype])
        return replace(self, cast=made if dtype != "fp32" else ())

    def as_made(self) -> TorchSource | None:
        """The source with all parameters in the dtypes in which the factory made them; None if they are."""
        if not self.cast:
            return None
        for parameter in self.cast:
            parameter.data = parameter.data.float()
        return replace(self, cast=())


def load_factory(reference: str, *, time_limit_s: float = TIME_LIMIT_S) -> TorchSource:
    """The model of `file.py:factory`, with its hooks."""
    return source_from(find_factory(reference, time_limit_s=time_limit_s), time_limit_s=time_limit_s)


def source_from(factory: Factory, *, time_limit_s: float = TIME_LIMIT_S) -> TorchSource:
    """The torch model of a factory, with its hooks."""
    recorder = Recorder()
    with guarded(factory.path, time_limit_s), counted_modules(factory.path), torch.device("meta"), recorder:
        model = factory.make()
    if not isinstance(model, nn.Module):
        raise FactoryRaised(
            place=f"{factory.path}:{factory.name}",
            cause=f"the factory returned {type(model).__name__}, not a torch.nn.Module",
            fix="return the model itself",
        )
    check_tree(model, f"{factory.path}:{factory.name}")
    with blamed(factory.path):
        return replace(source_of(model, place=factory.path, beside=factory.beside), buffers=recorder.buffers(model))


@contextlib.contextmanager
def counted_modules(place: str) -> Iterator[None]:
    """Build a model within the limit on modules: anything that makes or copies more is stopped on the spot."""
    count = 0

    def counting(make: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(make)
        def made(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            nonlocal count
            count += 1
            if cause := MODULES.refused(count):
                raise ModelTooLarge(place=place, cause=cause, fix="give a model of fewer layers")
            make(module, *args, **kwargs)

        return made

    makers = {name: getattr(nn.Module, name) for name in ("__init__", "__setstate__")}  # the latter of a deep copy
    for name, make in makers.items():
        setattr(nn.Module, name, counting(make))
    try:
        yield
    finally:
        for name, make in makers.items():
            setattr(nn.Module, name, make)


def check_tree(model: nn.Module, place: str) -> None:
    """Check that modules contain one another as a tree, not too deep; torch walks them recursively."""
    inside: dict[int, str] = {}
    done = set[int]()
    pending: list[tuple[nn.Module | None, str]] = [(model, "")]
    while pending:
        module, path = pending.pop()
        if module is None:  # all that is inside was seen
            done.add(inside.popitem()[0])
            continue
        if id(module) in inside:
            cause = f"{path or 'the model'} contains itself: it is {inside[id(module)] or 'the model'}"
            raise FactoryRaised(place=place, cause=cause, fix="let modules contain only others")
        if id(module) in done:
            continue
        if cause := MODULE_DEPTH.refused(len(inside)):
            raise ModelTooLarge(place=place, cause=cause, fix="put blocks beside each other, in a ModuleList")
        inside[id(module)] = path
        pending.append((None, ""))
        pending += [(one, f"{path}.{name}".strip(".")) for name, one in module._modules.items() if one is not None]


def source_of(model: nn.Module, *, place: str, beside: Mapping[str, Any] | None = None) -> TorchSource:
    """A model with the hooks that stand beside its factory, or on itself."""
    if not any(True for _ in model.parameters()):
        raise EmptyModel(
            place=place, cause=f"{type(model).__name__} has no parameters", fix="plan for a model that has some"
        )
    found = {name: hook_of(name, model, beside or {}) for name in HOOKS}
    check_hooks(found, TAKEN, place)
    hooks = Hooks(**{name: hook for name, hook in found.items() if hook is not None})
    return TorchSource(model, hooks, place, beside=beside or {})


TAKEN = {
    "example_inputs": ("batch", "seq"),
    "loss": ("outputs", "batch"),
    "optimizer": ("params",),
    "draw_weights": ("module",),
}
"""What each hook is called with."""


HOOKS = (*TAKEN, "dims")


def example_batch(source: TorchSource, batch: int, seq: int, *, time_limit_s: float = TIME_LIMIT_S) -> Any:
    """One batch on the meta device, by the model's own hook. Entries that share storage are separated: a trace would
    tie them."""
    make = source.hooks.example_inputs
    if make is None:
        raise NoExampleInputs(
            place=source.place,
            cause=f"nothing says what {type(source.module).__name__} takes as input",
            fix=f"put this beside the factory:\n\n{NoExampleInputs.hook}",
        )
    with guarded(source.place, time_limit_s), torch.device("meta"):
        made = make(batch, seq)
    return pytree.tree_map_only(Tensor, lambda t: torch.empty(t.shape, dtype=t.dtype, device="meta"), made)


def meta_copy(module: nn.Module) -> nn.Module:
    """The same module without storage."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        on_meta = tensor.detach().to("meta")
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(on_meta, tensor.requires_grad) if is_parameter else on_meta
    return copy.deepcopy(module, memo)
