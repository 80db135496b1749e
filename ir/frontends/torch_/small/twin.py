"""The small twin of a model: the same code with small numbers, so that what a plan does to the model runs anywhere.

    file.py:factory     `twin()` beside the factory, if there is one. Else a file is written that calls the factory with
                        small sizes, if it takes them as arguments with defaults, or makes the calls of classes with
                        small numbers by which the factory makes the model (`made`), and cuts what batches have of a
                        fixed size (`batch_sizes`). A model that cannot be made so, and is small enough, is its own twin
                        if its batches can be smaller
    config.json         the configuration with small numbers
    shape.toml          the shape with small numbers

What numbers mean is found by trying them (`shrink`). Whether the twin has the structure of the model is not believed:
`meshwright.ir.decisions.project` compares all operators of both.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from meshwright.ir.errors import NoTwin
from meshwright.ir.frontends import hf_schema, shape
from meshwright.ir.frontends.foreign import TIME_LIMIT_S, guarded
from meshwright.ir.frontends.torch_.small.batch_sizes import Sizes, code_of, cut, fixed_sizes, smaller
from meshwright.ir.frontends.torch_.small.shrink import shrunk
from meshwright.ir.frontends.torch_.small.trial import BATCH, MOST_VALUES, Recipe, Settings
from meshwright.ir.frontends.torch_.sources import hf_config, shape_toml
from meshwright.ir.frontends.torch_.sources.factory import TorchSource
from meshwright.ir.frontends.torch_.sources.made import made_by, things
from meshwright.ir.frontends.torch_.tracing.capture import capture
from meshwright.ir.frontends.twin import Scale, Twin
from meshwright.ir.quoting import is_name, literal, said

TWIN = "twin"
"""The hook, and the factory of a written file."""
HOOKS = ("example_inputs", "loss", "dims", "optimizer")
HOW = "define twin() beside the factory: the same model, small enough for a CPU"


def twin_of(source: TorchSource, reference: str, scale: Scale) -> Twin:
    """The twin of the model that `reference` names."""
    path, place = Path(reference), source.place
    if path.suffix == ".toml":
        told = shape.settings_of(path)
        small, _ = _small(source, told, lambda given: shape_toml.of_settings(given, place), scale, told)
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in small.items())
        return Twin(reference="twin.toml", text=lambda _: lines)
    if path.is_dir() or path.suffix == ".json":
        told = hf_schema.settings_of(Path(place))
        small = _small(
            source,
            hf_config.with_defaults(told),
            lambda given: hf_config.of_settings(given, place, dtype=torch.float32),
            scale,
            told,
        )[0]
        return Twin(reference="config.json", text=lambda _: json.dumps(small, indent=2) + "\n")
    file, _, factory = reference.rpartition(":")
    if callable(source.beside.get(TWIN)):
        return Twin(reference=f"{file}:{TWIN}")
    scale = replace(scale, words=_words(source, scale.seq))
    return Twin(reference=f"{TWIN}.py:{TWIN}", text=_written(source, Path(file), factory, scale))


def _small(
    source: TorchSource,
    settings: Settings,
    build: Callable[[Settings], nn.Module],
    scale: Scale,
    told: Mapping[str, Any],
) -> tuple[Settings, Sizes]:
    """The settings with small numbers; of those that are not `told`, only what changed. And the sizes of batches that
    changed, where a file says how they are made."""
    make = source.beside.get("example_inputs")
    sizes = fixed_sizes(source, BATCH, scale.seq) if make is not None else {}
    recipe = Recipe(
        settings={"model": settings, "batch": sizes},
        build=lambda given: build(given["model"]),
        whole=source.module,
        hooks=source.hooks,
        place=source.place,
        inputs=(lambda given: cut(make, given["batch"])) if make is not None else None,
    )
    small = shrunk(recipe, scale)
    kept = {name: one for name, one in small["model"].items() if name in told or one != settings[name]}
    return kept, smaller(small["batch"], sizes)


# Models of a file ----------------------------------------------------------------------------------------------------

FILE = '''\
"""A small twin of {shown}: the same code, small numbers."""

import sys
from pathlib import Path
{library}
sys.path.append(str(Path(__file__).resolve().parent / {folder}))

{imported}

__all__ = [{listed}]


{inputs}def twin() -> {kind}:
    return {made}
'''
WHOLE = "whole_inputs"
"""What the file calls the model's own example_inputs where it cuts them."""


def _words(source: TorchSource, seq: int) -> int:
    """The bound of indices in a batch of the user's, as far as one batch shows it: another one may have larger ones."""
    make = source.hooks.example_inputs
    with guarded(source.place, TIME_LIMIT_S):
        made = make(2, seq) if make is not None else {}
    tensors = made.values() if isinstance(made, dict) else []
    return max((2 * int(one.max()) for one in tensors if not one.is_floating_point() and one.numel()), default=0)


def _written(source: TorchSource, file: Path, factory: str, scale: Scale) -> Callable[[Path], str]:
    """The file that makes the twin of the user's own classes, for a folder. The class of a model that a factory makes
    need not have a name in the user's file: it may be a library's."""
    found = next(filter(None, (how(source, factory, scale) for how in (_from_arguments, _from_calls, _whole))))
    sizes = found.sizes
    kind = type(source.module).__name__
    own = source.beside.get(kind) is type(source.module)
    hooks = [name for name in HOOKS if source.beside.get(name) is not None]
    needed = {*found.names, *([kind] if own else [])}
    if odd := [name for name in sorted(needed) if not is_name(name)]:
        raise _none(source, f"{odd[0]!r}, which it is made of, is no name that code may have")
    listed = sorted({*needed, *hooks}, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    called = {name: WHOLE if sizes and name == "example_inputs" else name for name in listed}
    library = [*(["Tensor"] if sizes else []), *(["nn"] if not own else [])]
    home = file.resolve().parent
    return lambda folder: FILE.format(
        shown=said(f"{file.name}:{factory}"),
        folder=literal(Path(os.path.relpath(home, folder.resolve())).as_posix()),
        imported="\n".join([*(f"import {name}  # noqa: E402" for name in found.modules), _imported(file, called)]),
        listed=", ".join(map(literal, [*sorted(hooks), TWIN])),
        kind=kind if own else "nn.Module",
        library=f"\nfrom torch import {', '.join(library)}\n" if library else "",
        inputs=f"{code_of(sizes, WHOLE)}\n\n" if sizes else "",
        made=found.made,
    )


LOADED = """\
from importlib.machinery import SourceFileLoader  # noqa: E402
from types import ModuleType  # noqa: E402

_file = str(Path(sys.path[-1]) / {file})
_model = sys.modules[{module}] = ModuleType({module})
_model.__file__ = _file
SourceFileLoader({module}, _file).exec_module(_model)
"""


def _imported(file: Path, called: Mapping[str, str]) -> str:
    """Names of a file's module, with their names here; a file may have a name that no statement can import."""
    if is_name(file.stem):
        names = (name if name == here else f"{name} as {here}" for name, here in called.items())
        return f"from {file.stem} import {', '.join(names)}  # noqa: E402"
    loaded = LOADED.format(file=literal(file.name), module=literal(file.stem))
    return loaded + "\n".join(f"{here} = _model.{name}" for name, here in called.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A twin as code: what makes it, the names of the user's file in there, and modules that are imported for it; and
    small sizes of batches."""

    made: str
    names: tuple[str, ...]
    sizes: Sizes
    modules: tuple[str, ...] = ()


def _from_arguments(source: TorchSource, factory: str, scale: Scale) -> Written | None:
    """The factory, called with small sizes."""
    make = source.beside[factory]
    taken = inspect.signature(make).parameters.values()
    given = {one.name: one.default for one in taken if one.default is not one.empty}
    small, sizes = _small(source, given, lambda settings: make(**settings), scale, {}) if given else ({}, {})
    if not small and not sizes:
        return None
    said = ", ".join(f"{name}={value!r}" for name, value in small.items())
    return Written(made=f"{factory}({said})", names=(factory,), sizes=sizes)


def _from_calls(source: TorchSource, factory: str, scale: Scale) -> Written | None:
    """The calls of classes by which the factory makes the model, with small numbers."""
    own = source.beside["__name__"]
    with guarded(source.place, TIME_LIMIT_S):
        made = made_by(source.beside[factory])
    if made is None:
        return None
    small, sizes = _small(source, made.settings, made.again, scale, made.settings)
    found, near = list(dict.fromkeys(things(made))), {own, "builtins"}
    return Written(
        made=made.code(small, lambda it: it.__name__ if it.__module__ in near else f"{it.__module__}.{it.__name__}"),
        names=tuple(it.__name__ for it in found if it.__module__ == own),
        sizes=sizes,
        modules=tuple(sorted({it.__module__ for it in found} - near)),
    )


def _whole(source: TorchSource, factory: str, scale: Scale) -> Written:
    """The model as it is, on small batches."""
    numbers = sum(one.numel() for one in source.module.parameters())
    sizes = _small(source, {}, lambda _: source.beside[factory](), scale, {})[1] if numbers <= MOST_VALUES else {}
    if not sizes:
        capture(source, batch=BATCH, seq=scale.seq)  # raises what a model that is not traced is refused for
        raise _none(source, "its factory takes no sizes, and calls no classes that can be called with others")
    return Written(made=f"{factory}()", names=(factory,), sizes=sizes)


def _none(source: TorchSource, cause: str) -> NoTwin:
    return NoTwin(place=source.place, cause=f"no small twin of it can be made: {cause}", fix=HOW)
