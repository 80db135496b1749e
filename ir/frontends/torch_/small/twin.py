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
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from meshwright.ir.errors import NoTwin
from meshwright.ir.frontends import hf_schema, shape
from meshwright.ir.frontends.foreign import TIME_LIMIT_S, guarded
from meshwright.ir.frontends.small.made import Made, Unsaid, Watched
from meshwright.ir.frontends.small.runs import BATCH, MOST_VALUES, Settings
from meshwright.ir.frontends.small.shrink import shrunk
from meshwright.ir.frontends.small.written import TWIN, WHOLE, Written, called, text_of
from meshwright.ir.frontends.torch_.small.batch_sizes import Sizes, code_of, cut, fixed_sizes, smaller
from meshwright.ir.frontends.torch_.small.trial import Recipe, skeleton
from meshwright.ir.frontends.torch_.sources import hf_config, shape_toml
from meshwright.ir.frontends.torch_.sources.factory import TorchSource
from meshwright.ir.frontends.torch_.tracing.capture import capture
from meshwright.ir.frontends.torch_.tracing.recorder import Recorder
from meshwright.ir.frontends.twin import Scale, Twin
from meshwright.ir.quoting import as_code, is_name

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
    kind = type(source.module).__name__
    own = source.beside.get(kind) is type(source.module)
    hooks = [name for name in HOOKS if source.beside.get(name) is not None]
    found = replace(found, names=(*found.names, *([kind] if own else [])))
    if odd := [name for name in sorted({*found.names}) if not is_name(name)]:
        raise _none(source, f"{odd[0]!r}, which it is made of, is no name that code may have")
    library = [*(["Tensor"] if found.inputs else []), *(["nn"] if not own else [])]
    return text_of(
        found,
        file,
        factory,
        kind=kind if own else "nn.Module",
        hooks=hooks,
        library=[f"from torch import {', '.join(library)}"] if library else [],
    )


def _from_arguments(source: TorchSource, factory: str, scale: Scale) -> Written | None:
    """The factory, called with small sizes."""
    make = source.beside[factory]
    taken = inspect.signature(make).parameters.values()
    given = {one.name: one.default for one in taken if one.default is not one.empty}
    small, sizes = _small(source, given, lambda settings: make(**settings), scale, {}) if given else ({}, {})
    if not small and not sizes:
        return None
    said = ", ".join(f"{name}={as_code(value)}" for name, value in small.items())
    return Written(made=f"{factory}({said})", names=(factory,), inputs=_inputs(sizes))


def _inputs(sizes: Sizes) -> str:
    return code_of(sizes, WHOLE) if sizes else ""


def _from_calls(source: TorchSource, factory: str, scale: Scale) -> Written | None:
    """The calls of classes by which the factory makes the model, with small numbers."""
    with guarded(source.place, TIME_LIMIT_S):
        made = made_by(source.beside[factory])
    if made is None:
        return None
    small, sizes = _small(source, made.settings, made.again, scale, made.settings)
    return replace(called(made, small, source.beside["__name__"]), inputs=_inputs(sizes))


def made_by(factory: Callable[[], nn.Module]) -> Made | None:
    """The construction of a factory's model; None where no code expresses it, or the same calls do not make the same
    model."""
    with torch.device("meta"), Recorder():
        watched = Watched(factory, said_by_repr=(torch.dtype,))
        try:
            found = watched.constructed()
            again = found.again(found.settings)
        except Unsaid:
            return None
    model = watched.made
    same = skeleton(again) == skeleton(model) and _trained(again) == _trained(model)
    return found if same else None


def _trained(model: nn.Module) -> list[bool]:
    return [one.requires_grad for one in model.parameters()]


def _whole(source: TorchSource, factory: str, scale: Scale) -> Written:
    """The model as it is, on small batches."""
    numbers = sum(one.numel() for one in source.module.parameters())
    sizes = _small(source, {}, lambda _: source.beside[factory](), scale, {})[1] if numbers <= MOST_VALUES else {}
    if not sizes:
        capture(source, batch=BATCH, seq=scale.seq)  # raises what a model that is not traced is refused for
        raise _none(source, "its factory takes no sizes, and calls no classes that can be called with others")
    return Written(made=f"{factory}()", names=(factory,), inputs=_inputs(sizes))


def _none(source: TorchSource, cause: str) -> NoTwin:
    return NoTwin(place=source.place, cause=f"no small twin of it can be made: {cause}", fix=HOW)
