"""The page of the Python interface: every public name, from its signature and its docstring."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import meshwright
from pages.cells import cell, code, page, table

ABOUT = """`import meshwright` imports no framework; a name is loaded when it is used. How they are used together is in
[Python](../python.md)."""


def python() -> str:
    """The page."""
    public = [(name, getattr(meshwright, name)) for name in meshwright.__all__ if not name.startswith("__")]
    functions = [f"### `{name}`\n\n{_function(name, one)}" for name, one in public if inspect.isfunction(one)]
    classes = [f"### `{name}`\n\n{_class(one)}" for name, one in public if inspect.isclass(one)]
    return page("Every public name", ABOUT, "## Functions", *functions, "## Classes", *classes)


def _function(name: str, function: Any) -> str:
    return f"```text\n{_signature(name, function)}\n```\n\n{_told(function)}"


def _told(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").replace("``", "`")


def _signature(name: str, function: Any) -> str:
    """A call with its types, a line for each parameter."""
    found = inspect.signature(function)
    lines, starred = [], False
    for one in found.parameters.values():
        starred |= one.kind is inspect.Parameter.VAR_POSITIONAL
        if one.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            lines.append("    *,")
            starred = True
        lines.append(f"    {_parameter(one)},")
    return "\n".join((f"{name}(", *lines, f") -> {_type(found.return_annotation)}"))


def _parameter(one: inspect.Parameter) -> str:
    stars = "*" * (one.kind is inspect.Parameter.VAR_POSITIONAL) + "**" * (one.kind is inspect.Parameter.VAR_KEYWORD)
    typed = "" if one.annotation is inspect.Parameter.empty else f": {_type(one.annotation)}"
    return f"{stars}{one.name}{typed}" + ("" if one.default is inspect.Parameter.empty else f" = {_value(one.default)}")


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _value(default: Any) -> str:
    """A default as it would be typed; a function by its name."""
    return default.__name__ if inspect.isfunction(default) else repr(default)


def _class(one: type) -> str:
    fields = dataclasses.fields(one) if dataclasses.is_dataclass(one) else ()
    own = [(code(field.name), code(_type(field.type))) for field in fields if not field.name.startswith("_")]
    return "\n\n".join(
        part.strip("\n")
        for part in (_told(one), table(("field", "type"), own), table(("also", "what it is"), _members(one)))
        if part
    )


def _members(one: type) -> Iterator[tuple[str, str]]:
    """Methods and properties that are documented, of its own or of its bases here."""
    names = dict.fromkeys(
        name for base in one.__mro__ if base.__module__.startswith("meshwright") for name in vars(base)
    )
    for name in names:
        member = inspect.getattr_static(one, name)
        if name.startswith("_") or not (
            isinstance(member, property | classmethod | staticmethod) or inspect.isfunction(member)
        ):
            continue
        if told := inspect.getdoc(member):
            yield code(name if isinstance(member, property) else f"{name}()"), cell(told.partition("\n\n")[0])
