"""The file that makes a small twin: the user's own code, called with small numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.ir.frontends.small.made import Made, Name, names_in
from meshwright.ir.quoting import assigned, is_name, literal, said

TWIN = "twin"
"""The hook, and the factory of a written file."""

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
LOADED = """\
from importlib.machinery import SourceFileLoader  # noqa: E402
from types import ModuleType  # noqa: E402

_file = str(Path(sys.path[-1]) / {file})
_model = sys.modules[{module}] = ModuleType({module})
_model.__file__ = _file
SourceFileLoader({module}, _file).exec_module(_model)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A twin as code: what makes it, the names of the user's file in there, and modules that are imported for it; small
    numbers of the file itself, by name; and code that makes small batches, which calls the file's own function by
    `WHOLE`, if there is some."""

    made: str
    names: tuple[str, ...]
    modules: tuple[str, ...] = ()
    numbers: Mapping[str, str] | None = None
    inputs: str = ""


WHOLE = "whole_inputs"
"""What the file calls the model's own example_inputs where it cuts them."""


def called(made: Made, small: Mapping[str, object], own: str) -> Written:
    """A call of the user's module `own` with small numbers, as code."""
    found, near = list(dict.fromkeys((one.module, one.name) for one in names_in(made))), {own, "builtins"}

    def name_of(it: Name) -> str:
        return it.name if it.module in near else f"{it.module}.{it.name}"

    return Written(
        made=made.code(small, name_of),
        names=tuple(dict.fromkeys(name.partition(".")[0] for module, name in found if module == own)),
        modules=tuple(sorted({module for module, _ in found} - near)),
    )


def text_of(
    written: Written, file: Path, factory: str, *, kind: str, hooks: Sequence[str], library: Sequence[str]
) -> Callable[[Path], str]:
    """The text of a twin's file for a folder; `kind` is what the factory returns, and `library` what is imported beside
    the user's file."""
    needed = [*written.names, *hooks]
    listed = sorted({*needed}, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    here = {name: WHOLE if written.inputs and name == "example_inputs" else name for name in listed}
    modules = [f"import {name}  # noqa: E402" for name in written.modules]
    home = file.resolve().parent
    return lambda folder: FILE.format(
        shown=said(f"{file.name}:{factory}"),
        folder=literal(Path(os.path.relpath(home, folder.resolve())).as_posix()),
        imported="\n".join([*modules, *_imported(file, here, written.numbers or {})]),
        listed=", ".join(map(literal, [*sorted(hooks), TWIN])),
        kind=kind,
        library="".join(f"\n{line}\n" for line in library),
        inputs=f"{written.inputs}\n\n" if written.inputs else "",
        made=written.made,
    )


def _imported(file: Path, here: Mapping[str, str], numbers: Mapping[str, str]) -> list[str]:
    """Names of a file's module, with their names here, after its numbers became small; a file may have a name that no
    statement can import."""
    plain, model = is_name(file.stem), file.stem if is_name(file.stem) else "_model"
    loaded = [] if plain else LOADED.format(file=literal(file.name), module=literal(file.stem)).splitlines()
    if plain and numbers:
        loaded = [f"import {model}  # noqa: E402"]
    loaded += [assigned(model, name, value) for name, value in numbers.items()]
    if not plain:
        return [*loaded, *(f"{own} = {model}.{name}" for name, own in here.items())]
    names = ", ".join(name if name == own else f"{name} as {own}" for name, own in here.items())
    return [*loaded, f"from {model} import {names}  # noqa: E402"] if names else loaded
