"""The small twin of a model: the same code with small numbers, so that what a plan does to the model runs anywhere.

    file.py:factory     `twin()` beside the factory, if there is one. Else the model must have been made of one value,
                        its `config` (a dataclass), or the factory take sizes as arguments that have defaults: a file is
                        written that makes it of small ones (`twin.py`)
    config.json         the configuration with small numbers
    shape.toml          the shape with small numbers

What numbers mean is found by trying them (`shrink`). Whether the twin has the structure of the model is not believed:
`meshwright.ir.project` compares all operators of both.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from meshwright.ir.errors import NoTwin
from meshwright.ir.frontends import hf_config, hf_schema, shape, shape_toml
from meshwright.ir.frontends.contract import Source
from meshwright.ir.frontends.foreign import TIME_LIMIT_S, guarded
from meshwright.ir.frontends.shrink import Recipe, Scale, Settings, shrunk
from meshwright.ir.quoting import is_name, literal, said

TWIN = "twin"
"""The hook, and the factory of a written file."""
HOOKS = ("example_inputs", "loss", "dims", "optimizer")
HOW = "define twin() beside the factory: the same model, small enough for a CPU"


_FOUND: WeakKeyDictionary[nn.Module, dict[tuple[Any, ...], Settings]] = WeakKeyDictionary()
"""Small settings of models that are in memory, by the scale and the names of settings: a twin is asked for twice, for
the folder in which it is traced, and for the one in which it stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """A twin as the command line names models; and the files that had to be written for it, if any."""

    reference: str
    files: tuple[tuple[str, str], ...] = ()


def twin_of(source: Source, reference: str, scale: Scale, folder: Path) -> Twin:
    """The twin of the model that `reference` names. Files that it needs are for `folder`, and are not written here."""
    path = Path(reference)
    if path.suffix == ".toml":
        settings = shape.settings_of(path)
        small = _small(source, settings, lambda given: shape_toml.of_settings(given, source.place), scale)
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in small.items())
        return Twin(reference="twin.toml", files=(("twin.toml", lines),))
    if path.is_dir() or path.suffix == ".json":
        settings = hf_schema.settings_of(Path(source.place))
        small = _small(
            source,
            hf_config.numbers_of(settings),
            lambda given: hf_config.of_settings(given, source.place, dtype=torch.float32),
            scale,
            settings,
        )
        return Twin(reference="config.json", files=(("config.json", json.dumps(small, indent=2) + "\n"),))
    file, _, factory = reference.rpartition(":")
    if callable(source.beside.get(TWIN)):
        return Twin(reference=f"{file}:{TWIN}")
    text = _written(source, Path(file), factory, replace(scale, words=_words(source, scale.seq)), folder)
    return Twin(reference=f"{TWIN}.py:{TWIN}", files=((f"{TWIN}.py", text),))


def _small(
    source: Source,
    settings: Settings,
    build: Callable[[Settings], nn.Module],
    scale: Scale,
    kept: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings that make a small model; of those that are not `kept`, which have defaults, only what changed."""
    known = _FOUND.setdefault(source.module, {})
    if (scale, *settings) not in known:
        recipe = Recipe(settings=settings, build=build, whole=source.module, hooks=source.hooks, place=source.place)
        known[scale, *settings] = shrunk(recipe, scale)
    small = known[scale, *settings]
    return {name: one for name, one in small.items() if name in (kept or settings) or one != settings[name]}


# Models of a file ----------------------------------------------------------------------------------------------------

FILE = '''\
"""A small twin of {shown}: the same code, small numbers."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / {folder}))

{imported}

__all__ = [{listed}]


def twin() -> {kind}:
    return {made}
'''


def _words(source: Source, seq: int) -> int:
    """What the indices of a batch of the user's are below, as far as one shows it: another one may have larger ones."""
    make = source.hooks.example_inputs
    with guarded(source.place, TIME_LIMIT_S):
        made = make(2, seq) if make is not None else {}
    tensors = made.values() if isinstance(made, dict) else []
    return max((2 * int(one.max()) for one in tensors if not one.is_floating_point() and one.numel()), default=0)


def _written(source: Source, file: Path, factory: str, scale: Scale, folder: Path) -> str:
    """A file that makes the twin of the user's own classes."""
    made, names = _from_arguments(source, factory, scale) or _from_config(source, scale)
    kind = type(source.module).__name__
    hooks = [name for name in HOOKS if source.beside.get(name) is not None]
    missing = [name for name in (kind, *names) if name not in source.beside]
    if missing:
        raise _none(source, f"{missing[0]}, which it is made of, is not named in the file")
    if odd := [name for name in (kind, *names) if not is_name(name)]:
        raise _none(source, f"{odd[0]!r}, which it is made of, is no name that code may have")
    listed = sorted({*names, *hooks, kind}, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    return FILE.format(
        shown=said(f"{file.name}:{factory}"),
        folder=literal(Path(os.path.relpath(file.resolve().parent, folder.resolve())).as_posix()),
        imported=_imported(file, listed),
        listed=", ".join(map(literal, [*sorted(hooks), TWIN])),
        kind=kind,
        made=made,
    )


LOADED = """\
from importlib.machinery import SourceFileLoader  # noqa: E402
from types import ModuleType  # noqa: E402

_file = str(Path(sys.path[-1]) / {file})
_model = sys.modules[{module}] = ModuleType({module})
_model.__file__ = _file
SourceFileLoader({module}, _file).exec_module(_model)
"""


def _imported(file: Path, names: list[str]) -> str:
    """The names of a file's module; a file may be called what no statement can import."""
    if is_name(file.stem):
        return f"from {file.stem} import {', '.join(names)}  # noqa: E402"
    loaded = LOADED.format(file=literal(file.name), module=literal(file.stem))
    return loaded + "\n".join(f"{name} = _model.{name}" for name in names)


def _from_arguments(source: Source, factory: str, scale: Scale) -> tuple[str, list[str]] | None:
    """The factory, called with small sizes."""
    make = source.beside[factory]
    given = {
        one.name: one.default for one in inspect.signature(make).parameters.values() if one.default is not one.empty
    }
    made = _small(source, given, lambda settings: make(**settings), scale)
    small = {name: value for name, value in made.items() if value != given[name]}
    if not small:
        return None
    return f"{factory}({', '.join(f'{name}={value!r}' for name, value in small.items())})", [factory]


def _from_config(source: Source, scale: Scale) -> tuple[str, list[str]]:
    """The model's class, called with its configuration of small sizes."""
    config: Any = getattr(source.module, "config", None)
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise _none(source, "its factory takes no sizes, and the model has no dataclass `config` that it was made of")
    kind, named = type(source.module), type(config)
    settings = {one.name: getattr(config, one.name) for one in dataclasses.fields(config) if one.init}
    if list(inspect.signature(kind).parameters) != ["config"]:
        raise _none(source, f"{kind.__name__}{inspect.signature(kind)} is not made of its config alone")
    small = _small(source, settings, lambda settings: kind(named(**settings)), scale)
    given = ", ".join(f"{name}={value!r}" for name, value in small.items())
    return f"{kind.__name__}({named.__name__}({given}))", [kind.__name__, named.__name__]


def _none(source: Source, cause: str) -> NoTwin:
    return NoTwin(place=source.place, cause=f"no small twin of it can be made: {cause}", fix=HOW)
