"""The model contract: how a user's file tells us what to trace.

In: `file.py:factory`. Out: a `Source`: the model, built once on the meta device (shapes without memory), and the hooks
that stand beside the factory:

    example_inputs(batch, seq)    one batch: a tensor, a tuple, or a dict of tensors
    loss(outputs, batch)          a scalar; not needed if the model returns its loss
    dims = {"tokens": ("b", "s")} names for the dimensions of the inputs
    optimizer(params)             the optimizer that training will use
    draw_weights(module)          draws what this one module holds itself; not needed if modules have reset_parameters

The forward pass receives the entries of a dict batch that it has parameters for (or the whole tuple); the loss sees the
whole batch, so labels live in the batch. A hook may also be an attribute of the model, for models that come as objects.

Loading a file *executes* it, and says so. It may import its neighbours, whose folder is appended to `sys.path`, never
prepended, so that no file of the user's can take the place of a library. It has a time limit. What it prints goes to
standard error, because standard output may be carrying JSON. A file that raises, exits or hangs ends in an error that
names the user's line, not ours.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from meshwright.ir.errors import (
    EmptyModel,
    FactoryMissing,
    FactoryRaised,
    HookUnusable,
    ModelFileMissing,
    ModelTooLarge,
    NoExampleInputs,
    nearest,
)
from meshwright.ir.frontends.foreign import TIME_LIMIT_S, blamed, guarded, printed
from meshwright.ir.frontends.jax_.installed import missing
from meshwright.ir.frontends.torch_.constants.constants import Term
from meshwright.ir.frontends.torch_.tracing.recorder import Recorder
from meshwright.ir.limits import MODULE_DEPTH, MODULES


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the user says about a model beyond its code."""

    example_inputs: Callable[[int, int], Any] | None = None
    loss: Callable[[Any, Any], Tensor] | None = None
    dims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    optimizer: Callable[[list[nn.Parameter]], Any] | None = None
    draw_weights: Callable[[nn.Module], None] | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """A model to plan for. `place` is what errors call it; `config` is what the digest adds to parameter names and
    shapes."""

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
        """What the forward pass is given for these inputs: where parameters were cast, so are numbers in more than
        their precision, as mixed precision policies do; the loss reads the batch as it is."""
        low = self.cast[0].dtype if self.cast else None
        if low is None or not low.is_floating_point:
            return inputs
        return pytree.tree_map_only(Tensor, lambda one: one.to(low) if one.dtype is torch.float32 else one, inputs)

    def as_made(self) -> Source:
        """With all parameters in the dtypes in which the factory made them."""
        for parameter in self.cast:
            parameter.data = parameter.data.float()
        return replace(self, cast=())


@dataclass(frozen=True, slots=True)
class Factory:
    """A function of a user's file that makes a model."""

    make: Callable[[], Any]
    beside: Mapping[str, Any]
    path: str
    name: str


def find_factory(reference: str, *, time_limit_s: float = TIME_LIMIT_S) -> Factory:
    """What `file.py:factory` names. The file is executed."""
    path_text, _, name = reference.rpartition(":") if ":" in Path(reference).name else (reference, "", "")
    path = Path(path_text)
    if not os.path.isfile(path):  # noqa: PTH113 - Path raises where a name is too long
        raise ModelFileMissing(place=path_text, cause="there is no such file", fix="give the path of a Python file")
    with guarded(path_text, time_limit_s):
        try:
            namespace = _execute(path)
        except ModuleNotFoundError as error:
            if (refusal := missing(error, path_text)) is not None:
                raise refusal from None
            raise
    with blamed(path_text):
        return Factory(_factory(namespace, name, path_text), vars(namespace), path_text, name)


def load_factory(reference: str, *, time_limit_s: float = TIME_LIMIT_S) -> Source:
    """The model of `file.py:factory`, with its hooks."""
    return source_from(find_factory(reference, time_limit_s=time_limit_s), time_limit_s=time_limit_s)


def source_from(factory: Factory, *, time_limit_s: float = TIME_LIMIT_S) -> Source:
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
    """Build a model of no more modules than the limit: what makes or copies more is stopped where it does."""
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
    """Must: modules that contain one another as a tree, not too deep; torch walks them by calling itself."""
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


def source_of(model: nn.Module, *, place: str, beside: Mapping[str, Any] | None = None) -> Source:
    """A model with the hooks that stand beside its factory, or on itself."""
    if not any(True for _ in model.parameters()):
        raise EmptyModel(
            place=place, cause=f"{type(model).__name__} has no parameters", fix="plan for a model that has some"
        )
    found = {name: _hook(name, model, beside or {}) for name in HOOKS}
    _check_hooks(found, place)
    hooks = Hooks(**{name: hook for name, hook in found.items() if hook is not None})
    return Source(model, hooks, place, beside=beside or {})


_TAKEN = {
    "example_inputs": ("batch", "seq"),
    "loss": ("outputs", "batch"),
    "optimizer": ("params",),
    "draw_weights": ("module",),
}
"""What each hook is called with."""


HOOKS = (*_TAKEN, "dims")


def _check_hooks(found: Mapping[str, Any], place: str) -> None:
    """Each hook can be called as the contract says; `dims` is a table."""
    for name, taken in _TAKEN.items():
        shown = f"{name}({', '.join(taken)})"
        if found[name] is None:
            continue
        if not callable(found[name]):
            raise HookUnusable(
                place=f"{place}, {name}", cause=f"{name} is {printed(found[name])}", fix=f"make it a function {shown}"
            )
        try:
            inspect.signature(found[name]).bind(*taken)
        except TypeError as error:
            cause = f"{name}{inspect.signature(found[name])} cannot be called as {shown}: {error}"
            raise HookUnusable(place=f"{place}, {name}", cause=cause, fix=f"define it as {shown}") from None
        except ValueError:  # a builtin that does not tell its signature
            continue
    dims = found["dims"]
    if dims is not None and not (isinstance(dims, Mapping) and all(isinstance(v, list | tuple) for v in dims.values())):
        raise HookUnusable(
            place=f"{place}, dims",
            cause=f"dims is {printed(dims)}",
            fix='name the dimensions of each input, as in dims = {"tokens": ("b", "s")}',
        )


def check_dims(dims: Mapping[str, tuple[str, ...]], inputs: Mapping[str, tuple[int, ...]], place: str) -> None:
    """The user's names for dimensions fit the inputs of the model."""
    for name, labels in dims.items():
        where = f"{place}, dims[{name!r}]"
        if name not in inputs:
            listed = ", ".join(inputs)
            raise HookUnusable(place=where, cause="the batch has no such entry", fix=f"name one of {listed}")
        if len(labels) != len(inputs[name]):
            raise HookUnusable(
                place=where,
                cause=f"{len(labels)} names {tuple(labels)} for an input of shape {inputs[name]}",
                fix='give one name per dimension, "" where there is none',
            )


def example_batch(source: Source, batch: int, seq: int, *, time_limit_s: float = TIME_LIMIT_S) -> Any:
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


def _execute(path: Path) -> ModuleType:
    """Import a file under a name of its own; say so, since importing runs it."""
    sys.stderr.write(f"loading {path}: this executes the file\n")
    _find_neighbours(str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(f"meshwright_model_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ModelFileMissing(place=str(path), cause="not a Python file", fix="give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickling look their module up
    spec.loader.exec_module(module)
    return module


_FOLDERS: set[str] = set()
"""Of the files that were executed, those that were appended to `sys.path`."""


def _find_neighbours(folder: str) -> None:
    """Let a file import its neighbours: after all libraries, before the neighbours of files that were executed earlier,
    whose modules of the same names make way."""
    if folder in sys.path and folder not in _FOLDERS:
        return
    others = [one for one in sys.path if one in _FOLDERS and one != folder]
    roots = {name for name, module in tuple(sys.modules.items()) if "." not in name and _folder_of(module) in others}
    roots = {name for name in roots if importlib.machinery.PathFinder.find_spec(name, [folder])}
    for name in tuple(sys.modules):
        if name.partition(".")[0] in roots:
            del sys.modules[name]
    _FOLDERS.add(folder)
    sys.path[:] = [one for one in sys.path if one != folder]
    sys.path.insert(min(map(sys.path.index, others), default=len(sys.path)), folder)


def _folder_of(module: ModuleType) -> str:
    """Where a module of the top level was found."""
    return os.path.dirname(next(iter(getattr(module, "__path__", ())), getattr(module, "__file__", None)) or "")  # noqa: PTH120


def _factory(namespace: ModuleType, name: str, place: str) -> Callable[[], Any]:
    factory = getattr(namespace, name, None) if name else None
    if callable(factory):
        return factory  # type: ignore[no-any-return]
    known = _factories(namespace)
    listed = ", ".join(known) or "none"
    if not name:
        hint = f"{place}:{known[0] if known else 'build'}"
        raise FactoryMissing(place=place, cause="no factory is named", fix=f"write {hint} (its functions: {listed})")
    meant = nearest(name, known)
    raise FactoryMissing(
        place=place,
        cause=f"the file defines no function {name!r}",
        fix=(f"did you mean {meant!r}? " if meant else "") + f"its functions: {listed}",
    )


def _factories(namespace: ModuleType) -> list[str]:
    """Functions of the file that can be called without arguments."""
    found = []
    for name, value in vars(namespace).items():
        own = inspect.isfunction(value) and value.__module__ == namespace.__name__ and not name.startswith("_")
        if own and all(p.default is not p.empty for p in inspect.signature(value).parameters.values()):
            found.append(name)
    return found


def _hook(name: str, model: nn.Module, beside: Mapping[str, Any]) -> Any:
    """What the file says, else the model itself: a method, or a table; a model may use these words for other things."""
    if beside.get(name) is not None:
        return beside[name]
    own = getattr(model, name, None)
    return own if isinstance(own, Mapping) or inspect.isroutine(own) else None
