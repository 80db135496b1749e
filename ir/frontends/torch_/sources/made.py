"""The construction of a model: the calls that its factory made of classes, so that they can be repeated with other
numbers.

    factory  ->  the arguments of every constructor that ran  ->  `Made`: code, and the settings in it

What a call was given is a number, a text, a dtype, a list or a table of such, a class or a function that has a name, or
what another call made, which nests. `Settings` are the arguments alone, nested alike; `Made.again` makes a model of
them, and `Made.code` says them as a line of Python. What cannot be said so (a lambda, a module that was changed after
it was made) has no `Made`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, FunctionType
from typing import Any

import torch
from torch import nn

from meshwright.ir.frontends.torch_.small.trial import skeleton
from meshwright.ir.frontends.torch_.tracing.recorder import Recorder
from meshwright.ir.quoting import is_name

REST = "*"
"""The settings of arguments that have no name of their own."""
GENERATED = "<string>"
"""The file of a constructor that dataclasses write: it keeps what it is given, so what is there now is given again."""


class Unsaid(Exception):
    """Something that cannot be expressed as code."""


@dataclass(frozen=True, slots=True)
class Made:
    """A call of a class or a function: its arguments, and the calls among them; `settings` are the arguments without
    calls."""

    maker: Any
    given: Mapping[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        return {name: _settings(one) for name, one in self.given.items()}

    def again(self, settings: Mapping[str, Any]) -> Any:
        """The result of the call with other settings."""
        given = {name: _again(one, settings[name]) for name, one in self.given.items()}
        return self.maker(*given.pop(REST, ()), **given)

    def code(self, settings: Mapping[str, Any], name_of: Callable[[Any], str]) -> str:
        """The call with other settings, as code; `name_of` names classes and functions. Default arguments are left
        out."""
        usual = _usual(self.maker)
        said = {name: _code(one, settings[name], name_of) for name, one in self.given.items() if name != REST}
        kept = [f"{name}={text}" for name, text in said.items() if name not in usual or text != repr(usual[name])]
        rest = [
            _code(one, its, name_of) for one, its in zip(self.given.get(REST, ()), settings.get(REST, ()), strict=False)
        ]
        return f"{name_of(self.maker)}({', '.join([*rest, *kept])})"


def _usual(maker: Any) -> dict[str, Any]:
    """The defaults of a call; those of C functions are unknown."""
    try:
        taken = inspect.signature(maker).parameters.values()
    except ValueError:
        return {}
    return {one.name: one.default for one in taken if one.default is not one.empty}


def _settings(value: Any) -> Any:
    if isinstance(value, Made):
        return value.settings
    if isinstance(value, Mapping):
        return {name: _settings(one) for name, one in value.items()}
    return type(value)(map(_settings, value)) if isinstance(value, list | tuple) else value


def _again(value: Any, settings: Any) -> Any:
    """A value with other settings, of which lists may be shorter."""
    if isinstance(value, Made):
        return value.again(settings)
    if isinstance(value, Mapping):
        return {name: _again(value[name], one) for name, one in settings.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_again, value, settings))
    return settings


def _code(value: Any, settings: Any, name_of: Callable[[Any], str]) -> str:
    if isinstance(value, Made):
        return value.code(settings, name_of)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name!r}: {_code(value[name], one, name_of)}' for name, one in settings.items())}}}"
    if isinstance(value, list | tuple):
        items = [_code(one, its, name_of) for one, its in zip(value, settings, strict=False)]
        return f"[{', '.join(items)}]" if isinstance(value, list) else f"({''.join(f'{one}, ' for one in items)})"
    return name_of(settings) if isinstance(settings, type | FunctionType) else repr(settings)


# Watching ------------------------------------------------------------------------------------------------------------


def made_by(factory: Callable[[], nn.Module]) -> Made | None:
    """The construction of a factory's model; None where no code expresses it, or the same calls do not make the same
    model."""
    calls = _Calls()
    with torch.device("meta"), Recorder():
        model = calls.watched(factory)
        try:
            found = calls.said(model)
            again = found.again(found.settings)
        except Unsaid:
            return None
    same = skeleton(again) == skeleton(model) and _trained(again) == _trained(model)
    return found if same else None


def _trained(model: nn.Module) -> list[bool]:
    return [one.requires_grad for one in model.parameters()]


class _Calls:
    """The arguments of constructors, by the object that they made. Objects are kept alive, so that no other one gets
    their id."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[Any, dict[str, Any]]] = {}
        self.used: set[int] = set()

    def watched(self, make: Callable[[], Any]) -> Any:
        """The objects made while calls are watched."""
        before = sys.getprofile()
        sys.setprofile(self.watch)
        try:
            return make()
        finally:
            sys.setprofile(before)

    def watch(self, frame: FrameType, event: str, _: Any) -> None:
        """The profiling hook, called by Python at every call."""
        if event != "call" or frame.f_code.co_name != "__init__" or not frame.f_code.co_argcount:
            return
        names, rest, named, values = inspect.getargvalues(frame)
        made = values[names[0]]
        if getattr(type(made).__init__, "__code__", None) is not frame.f_code or id(made) in self.known:
            return
        given = {name: _copied(values[name]) for name in [*names[1:], *_only_named(frame)]}
        given |= values[named] if named else {}
        self.known[id(made)] = made, {REST: list(values[rest]), **given} if rest and values[rest] else given

    def said(self, value: Any) -> Any:
        """A value as settings and calls."""
        if value is None or isinstance(value, bool | int | str | torch.dtype):
            return value
        if isinstance(value, float) and math.isfinite(value):
            return value
        if type(value) in (list, tuple):
            return type(value)(map(self.said, value))
        if isinstance(value, type | FunctionType):
            return _named(value)
        if type(value) is dict and all(isinstance(name, str | int) for name in value):
            return self._of(value)
        if type(value) is OrderedDict:
            return Made(OrderedDict, {REST: [self.said(dict(value))]})
        if isinstance(value, functools.partial):
            return Made(functools.partial, {REST: self.said([value.func, *value.args]), **self._of(value.keywords)})
        if dataclasses.is_dataclass(value) and type(value).__init__.__code__.co_filename == GENERATED:
            fields = (one.name for one in dataclasses.fields(value) if one.init)
            return Made(_named(type(value)), self._of({name: getattr(value, name) for name in fields}))
        if id(value) in self.known:
            return self._call(value)
        raise Unsaid(f"{type(value).__name__} is no number, and nothing that has a name")

    def _of(self, values: Mapping[Any, Any]) -> dict[Any, Any]:
        return {name: self.said(one) for name, one in values.items()}

    def _call(self, made: Any) -> Made:
        if id(made) in self.used and isinstance(made, nn.Module):
            raise Unsaid(f"a {type(made).__name__} is in it twice")
        self.used.add(id(made))
        return Made(_named(type(made)), self._of(self.known[id(made)][1]))


def _only_named(frame: FrameType) -> Sequence[str]:
    code = frame.f_code
    return code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]


def _copied(value: Any) -> Any:
    """A copy of an argument that a constructor may change."""
    return value.copy() if type(value) in (list, dict) else value


def _named(thing: Any) -> Any:
    """A class or a function that its module has under its name."""
    there = getattr(sys.modules.get(thing.__module__), thing.__qualname__, None)  # another one, if it was loaded again
    named = getattr(there, "__module__", ""), getattr(there, "__qualname__", "")
    if not is_name(thing.__qualname__) or named != (thing.__module__, thing.__qualname__):
        raise Unsaid(f"{thing.__qualname__} has no name of its own")
    return thing


def things(value: Any) -> Iterator[Any]:
    """Classes and functions of a call, in order."""
    if isinstance(value, Made):
        yield value.maker
        yield from things(value.given)
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from things(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from things(one)
    elif isinstance(value, type | FunctionType):
        yield value
