"""The small twin of a model in JAX: the same code with small numbers, in fp32.

    `twin()` beside the factory, if there is one; else a file that calls what the factory calls, with small numbers

The settings of a model are the arguments of the call that returned it (of a function, of a module's class, of the
factory itself if its arguments have defaults), and the numbers that stand in the factory's file
(`meshwright.ir.frontends.small.made`). Of several calls that returned the model the outermost is taken whose numbers
make it small enough to be computed with. What numbers mean is found by trying them
(`meshwright.ir.frontends.small.shrink`). Whether the twin has the structure of the model is not believed:
`meshwright.ir.decisions.project` compares all operators of both.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from meshwright.ir.errors import FactoryRaised, NoTwin
from meshwright.ir.frontends.foreign import TIME_LIMIT_S, guarded
from meshwright.ir.frontends.jax_.models import model_of
from meshwright.ir.frontends.jax_.small.trial import Recipe, Tried, ran, trial_of
from meshwright.ir.frontends.jax_.source import JaxSource
from meshwright.ir.frontends.small.made import REST, Made, Name, Unsaid, Watched
from meshwright.ir.frontends.small.runs import MOST_VALUES, Settings
from meshwright.ir.frontends.small.shrink import shrunk
from meshwright.ir.frontends.small.written import TWIN, called, text_of
from meshwright.ir.frontends.twin import Scale, Twin
from meshwright.ir.quoting import is_name

HOOKS = ("example_inputs", "loss", "dims", "optimizer", "forward")
HOW = "define twin() beside the factory: the same model, small enough for a CPU, in fp32"
UNSEEN = frozenset(("jax", "jaxlib", "numpy", "ml_dtypes", *sys.stdlib_module_names))
"""Packages whose calls make no model."""
FP32 = Name("jax.numpy", "float32", jax.numpy.float32)


def twin_of(source: JaxSource, reference: str, scale: Scale) -> Twin:
    """The twin of the model that `reference` names."""
    file, _, factory = reference.rpartition(":")
    if callable(source.beside.get(TWIN)):
        return Twin(reference=f"{file}:{TWIN}")
    source = source.as_made() or source
    scale = replace(scale, words=_words(source, scale.seq))
    made, small = _smallest(source, factory, scale)
    written = replace(called(made, small["model"], source.beside["__name__"]), numbers=_changed(source, small["file"]))
    if odd := [name for name in sorted(written.names) if not is_name(name)]:
        raise _none(source, f"{odd[0]!r}, which it is made of, is no name that code may have")
    hooks = [name for name in HOOKS if source.beside.get(name) is not None]
    text = text_of(written, Path(file), factory, kind="object", hooks=hooks, library=())
    return Twin(reference=f"{TWIN}.py:{TWIN}", text=text)


def _none(source: JaxSource, cause: str) -> NoTwin:
    return NoTwin(place=source.place, cause=f"no small twin of it can be made: {cause}", fix=HOW)


def _words(source: JaxSource, seq: int) -> int:
    """The bound of indices in a batch of the user's, as far as one batch shows it: another one may have larger ones."""
    make = source.hooks["example_inputs"]
    with guarded(source.place, TIME_LIMIT_S), jax.default_device(jax.devices("cpu")[0]):
        entries = [np.asarray(one) for one in jax.tree.leaves(make(2, seq))] if make is not None else []
    return max((2 * int(one.max()) for one in entries if np.issubdtype(one.dtype, np.integer) and one.size), default=0)


# Calls ---------------------------------------------------------------------------------------------------------------


def _smallest(source: JaxSource, factory: str, scale: Scale) -> tuple[Made, Settings]:
    """The call that makes the twin, with its settings."""
    whole = trial_of(source, scale.seq)
    best: tuple[int, Made, Settings] | None = None
    for made in _calls(source, factory, whole):
        settings = {"model": _in_fp32(made.settings), "file": _numbers(source.beside)}
        build = _Building(source, made)
        recipe = Recipe(settings=settings, build=build, whole=whole, seq=scale.seq)
        small = shrunk(recipe, scale)
        found = recipe.built(small)
        build.trace_with(build.own)
        if found is None:
            continue
        if found.narrow:
            raise _none(source, f"it computes in less than fp32 whatever it is given ({found.narrow})")
        size = ran(found).size
        if best is None or size < best[0]:
            best = size, made, small
        if size <= MOST_VALUES:
            break
    if best is None:
        raise _none(source, "the calls that made it, and its file, have no number that can be another")
    if best[0] > MOST_VALUES:
        raise _none(source, f"its numbers make no model that holds and makes less than {best[0]:,} values")
    return best[1:]


def _calls(source: JaxSource, factory: str, whole: Tried) -> Iterator[Made]:
    """The calls that make the model again: those that returned it, outer ones first; what it is made of; its
    factory."""
    make = source.beside[factory]
    with guarded(source.place, TIME_LIMIT_S):
        watched = Watched(partial(_on_shapes, make), unseen=UNSEEN)
    for made in (*watched.returned(), *_constructed(watched)):
        with contextlib.suppress(Exception):
            again = trial_of(_made_by(source, partial(made.again, made.settings)), 1)
            if _leaves(again) == _leaves(whole):
                yield made
    yield Made(Name(source.beside["__name__"], factory, make), {})


def _on_shapes(make: Callable[[], Any]) -> Any:
    """What a factory returns, where arrays have shapes and no values."""
    box: list[Any] = []
    jax.eval_shape(lambda: box.append(make()))
    return box[-1]


def _constructed(watched: Watched) -> Iterator[Made]:
    with contextlib.suppress(Unsaid):
        found = watched.constructed()
        yield found if isinstance(found, Made) else Made(Name("builtins", "tuple", tuple), {REST: [list(found)]})


def _leaves(model: Tried) -> list[Any]:
    return [(leaf.kind, leaf.path, leaf.type) for leaf in model.flat.leaves.values() if leaf.kind != "input"]


def _made_by(source: JaxSource, make: Callable[[], Any]) -> JaxSource:
    """The source with a model that is made otherwise."""
    found = model_of(make, source.place, source.hooks["forward"])
    if not isinstance(found, tuple):
        raise FactoryRaised(place=source.place, cause="it returned no model", fix=HOW)
    return replace(source, made=found[0])


# Settings ------------------------------------------------------------------------------------------------------------


def _in_fp32(settings: Any) -> Any:
    """Settings in which floating dtypes of less than fp32 are fp32."""
    if isinstance(settings, Mapping):
        return {name: _in_fp32(one) for name, one in settings.items()}
    if isinstance(settings, list | tuple):
        return type(settings)(map(_in_fp32, settings))
    if isinstance(settings, Name):
        return FP32 if _is_narrow(settings.thing) else settings
    return "float32" if isinstance(settings, str) and _is_narrow(settings) else settings


def _is_narrow(value: Any) -> bool:
    try:
        dtype = jax.numpy.dtype(value)
    except (TypeError, ValueError):
        return False
    return bool(jax.numpy.issubdtype(dtype, jax.numpy.floating)) and dtype.itemsize < 4


def _numbers(beside: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers that stand in a file under a name, and its dtypes, those of less than fp32 as that."""
    return {name: one if isinstance(one, int | float) else FP32 for name, one in _numbers_as_they_are(beside).items()}


def _numbers_as_they_are(beside: Mapping[str, Any]) -> dict[str, Any]:
    kinds = (type, jax.numpy.dtype)
    return {
        name: one
        for name, one in beside.items()
        if not name.startswith("__")
        and (type(one) in (int, float, bool) or (isinstance(one, kinds) and _is_narrow(one)))
    }


def _changed(source: JaxSource, numbers: Mapping[str, Any]) -> dict[str, str]:
    """Those numbers of the file that are others than there, as code."""
    return {
        name: f"{one.module}.{one.name}" if isinstance(one, Name) else repr(one)
        for name, one in numbers.items()
        if one != source.beside[name]
    }


class _Building:
    """A model of settings, with its file's numbers in place while it is used."""

    def __init__(self, source: JaxSource, made: Made) -> None:
        assert isinstance(source.beside, MutableMapping)
        self.source, self.made, self.file = source, made, source.beside
        self.own = self.traced_with = _numbers_as_they_are(source.beside)

    @contextlib.contextmanager
    def __call__(self, settings: Settings) -> Iterator[JaxSource]:
        numbers = {name: one.thing if isinstance(one, Name) else one for name, one in settings["file"].items()}
        self.trace_with(numbers)
        self.file.update(numbers)
        try:
            yield _made_by(self.source, partial(self.made.again, settings["model"]))
        finally:
            self.file.update(self.own)

    def trace_with(self, numbers: dict[str, Any]) -> None:
        """Forget what JAX has traced with other numbers: it asks for functions and shapes alone whether it knows a
        trace."""
        if numbers != self.traced_with:
            jax.clear_caches()
        self.traced_with = numbers
