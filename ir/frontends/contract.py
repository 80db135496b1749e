"""The model contract: the parts of a user's file that tell what to trace.

In: `file.py:factory`. Out: a `Factory`: what makes the model, and the hooks that stand beside it, which the front end
of the model's framework takes from there:

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

import importlib.machinery
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from meshwright.ir.errors import DependencyMissing, FactoryMissing, HookUnusable, ModelFileMissing, nearest
from meshwright.ir.frontends.foreign import TIME_LIMIT_S, blamed, guarded, printed

EXECUTED = "meshwright_model_"
"""How the names of files begin that were executed."""
EXTRAS = dict.fromkeys(("jax", "jaxlib", "flax", "equinox", "optax", "haiku"), "jax")
"""Packages that a file may import, and the extra of ours that brings each."""


@dataclass(frozen=True, slots=True)
class Factory:
    """A function of a user's file that makes a model."""

    make: Callable[[], Any]
    beside: Mapping[str, Any]
    path: str
    name: str


def find_factory(reference: str, *, time_limit_s: float = TIME_LIMIT_S) -> Factory:
    """The factory that `file.py:factory` names. The file is executed."""
    path_text, _, name = reference.rpartition(":") if ":" in Path(reference).name else (reference, "", "")
    path = Path(path_text)
    if not os.path.isfile(path):  # noqa: PTH113 - Path raises where a name is too long
        raise ModelFileMissing(place=path_text, cause="there is no such file", fix="give the path of a Python file")
    with guarded(path_text, time_limit_s):
        try:
            namespace = _execute(path)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in EXTRAS:
                raise
            raise DependencyMissing(
                place=path_text,
                cause=f"the file imports {package}, which is not installed",
                fix=f"pip install 'meshwright[{EXTRAS[package]}]'",
            ) from None
    with blamed(path_text):
        return Factory(_factory(namespace, name, path_text), vars(namespace), path_text, name)


def check_hooks(found: Mapping[str, Any], taken: Mapping[str, Sequence[str]], place: str) -> None:
    """Check that each hook can be called with the arguments that it is `taken` with, and that `dims` is a table."""
    for name, given in taken.items():
        shown = f"{name}({', '.join(given)})"
        if found[name] is None:
            continue
        if not callable(found[name]):
            raise HookUnusable(
                place=f"{place}, {name}", cause=f"{name} is {printed(found[name])}", fix=f"make it a function {shown}"
            )
        try:
            inspect.signature(found[name]).bind(*given)
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
    """Check that the user's names of dimensions fit the inputs of the model."""
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


def _execute(path: Path) -> ModuleType:
    """Import a file under a name of its own; say so, since importing runs it."""
    sys.stderr.write(f"loading {path}: this executes the file\n")
    _find_neighbours(str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(f"{EXECUTED}{path.stem}", path)
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
    whose modules of the same names are unloaded."""
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
    """The folder in which a top-level module was found."""
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


def hook_of(name: str, model: Any, beside: Mapping[str, Any]) -> Any:
    """The hook of the file, else of the model itself: a method, or a table; a model may use these words for other
    things."""
    if beside.get(name) is not None:
        return beside[name]
    own = getattr(model, name, None)
    return own if isinstance(own, Mapping) or inspect.isroutine(own) else None
