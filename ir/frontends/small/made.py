"""The construction of a model: the calls that its factory made, so that they can be repeated with other numbers.

    factory  ->  the arguments of every constructor that ran  ->  `Made`: code, and the settings in it

What a call was given is a number, a text, a list or a table of such, a thing that a module has under a name (a class, a
function, a dtype), or what another call made, which nests. `Settings` are the arguments alone, nested alike;
`Made.again` makes a model of them, and `Made.code` says them as a line of Python. What several calls were given is made
once. What cannot be said so (a lambda, a module that was changed after it was made) has no `Made`.

A call is that of a class, or of a function at the top of a module that the user's code called (`Watched.returned`):
of a model that a function returned, its call says most of how the sizes belong together, and a model that is a pair of
functions has no other.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from meshwright.ir.frontends.foreign import is_library
from meshwright.ir.quoting import is_name

REST = "*"
"""The settings of arguments that have no name of their own."""
GENERATED = "<string>"
"""The file of a constructor that dataclasses write: it keeps what it is given, so what is there now is given again."""
PLAIN = (bool, int, str, type(None))


class Unsaid(Exception):
    """Something that cannot be expressed as code."""


@dataclass(frozen=True, slots=True)
class Name:
    """A thing that a module has under a name."""

    module: str
    name: str
    thing: Any


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """A call of a class or a function: its arguments, and the calls among them; `settings` are the arguments without
    calls, those of one that was there before left out."""

    maker: Name
    given: Mapping[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = _settings(self, set())
        return found

    def again(self, settings: Mapping[str, Any]) -> Any:
        """The result of the call with other settings."""
        return _again(self, settings, {})

    def code(self, settings: Mapping[str, Any], name_of: Callable[[Name], str]) -> str:
        """The call with other settings, as code; `name_of` names classes and functions. Default arguments are left
        out."""
        return _Code(name_of, _repeated(self)).of(self, settings)


def _settings(value: Any, seen: set[int]) -> Any:
    if isinstance(value, Made):
        if id(value) in seen:
            return None
        seen.add(id(value))
        return {name: _settings(one, seen) for name, one in value.given.items()}
    if isinstance(value, Mapping):
        return {name: _settings(one, seen) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_settings(one, seen) for one in value)
    return value


def _again(value: Any, settings: Any, made: dict[int, Any]) -> Any:
    """A value with other settings, of which lists may be shorter."""
    if isinstance(value, Made):
        if id(value) not in made:
            given = {name: _again(one, settings[name], made) for name, one in value.given.items()}
            made[id(value)] = value.maker.thing(*given.pop(REST, ()), **given)
        return made[id(value)]
    if isinstance(value, Mapping):
        return {name: _again(value[name], one, made) for name, one in settings.items()}
    if isinstance(value, list | tuple):
        return type(value)(_again(one, its, made) for one, its in zip(value, settings, strict=False))
    return settings.thing if isinstance(settings, Name) else settings


def _repeated(value: Any) -> frozenset[int]:
    """Calls that stand in several places."""
    seen: set[int] = set()
    found: set[int] = set()

    def walk(one: Any) -> None:
        if isinstance(one, Made):
            (found if id(one) in seen else seen).add(id(one))
            if id(one) not in found:
                walk(one.given)
        elif isinstance(one, Mapping):
            for inner in one.values():
                walk(inner)
        elif isinstance(one, list | tuple):
            for inner in one:
                walk(inner)

    walk(value)
    return frozenset(found)


@dataclass(slots=True)
class _Code:
    """The writing of one expression; what several calls are given gets a name where it first stands."""

    name_of: Callable[[Name], str]
    repeated: frozenset[int]
    named: dict[int, str] = dataclasses.field(default_factory=dict)

    def of(self, value: Any, settings: Any) -> str:
        """A value with these settings."""
        if isinstance(value, Made):
            return self.call(value, settings)
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{name!r}: {self.of(value[name], one)}' for name, one in settings.items())}}}"
        if isinstance(value, list | tuple):
            items = [self.of(one, its) for one, its in zip(value, settings, strict=False)]
            return f"[{', '.join(items)}]" if isinstance(value, list) else f"({''.join(f'{one}, ' for one in items)})"
        return self.name_of(settings) if isinstance(settings, Name) else repr(settings)

    def call(self, made: Made, settings: Any) -> str:
        """A call, or the name of what it made."""
        if id(made) in self.named:
            return self.named[id(made)]
        usual = _usual(made.maker.thing)
        rest = [
            self.of(one, its)
            for one, its in zip(made.given.get(REST, ()), (settings or {}).get(REST, ()), strict=False)
        ]
        said = {name: self.of(one, settings[name]) for name, one in made.given.items() if name != REST}
        kept = [f"{name}={text}" for name, text in said.items() if name not in usual or text != repr(usual[name])]
        text = f"{self.name_of(made.maker)}({', '.join([*rest, *kept])})"
        if id(made) not in self.repeated:
            return text
        self.named[id(made)] = f"{made.maker.name.lower()}_{len(self.named) + 1}"
        return f"({self.named[id(made)]} := {text})"


def _usual(maker: Any) -> dict[str, Any]:
    """The defaults of a call; those of C functions are unknown."""
    try:
        taken = inspect.signature(maker).parameters.values()
    except ValueError:
        return {}
    return {one.name: one.default for one in taken if one.default is not one.empty}


def names_in(value: Any) -> Iterator[Name]:
    """The classes, functions and other named things of a call, in order."""
    if isinstance(value, Made):
        yield value.maker
        yield from names_in(value.given)
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from names_in(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from names_in(one)
    elif isinstance(value, Name):
        yield value


# Watching ------------------------------------------------------------------------------------------------------------


class Watched:
    """The calls by which a factory made what it returned.

    `said_by_repr` are types whose values are code as they print themselves; of packages that are `unseen` no call is
    watched. Objects are kept alive, so that no other one gets their id.
    """

    def __init__(
        self, make: Callable[[], Any], *, said_by_repr: tuple[type, ...] = (), unseen: frozenset[str] = frozenset()
    ) -> None:
        self._repr, self._unseen = said_by_repr, unseen
        self._known: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._calls: dict[FrameType, tuple[Name, dict[str, Any]]] = {}
        self._returned: dict[int, list[tuple[Any, Name, dict[str, Any]]]] = {}
        self._said: dict[int, Made] = {}
        self._open: set[int] = set()
        before = sys.getprofile()
        sys.setprofile(self._watch)
        try:
            self.made = make()
        finally:
            sys.setprofile(before)

    def constructed(self) -> Any:
        """What was returned, by the calls of classes. Raises `Unsaid`."""
        return self._value(self.made)

    def returned(self) -> Iterator[Made]:
        """What was returned, by the calls of functions that returned it, outer ones first."""
        for _, maker, given in reversed(self._returned.get(id(self.made), ())):
            try:
                yield Made(maker, self._given(maker.thing, given))
            except Unsaid:
                continue

    # Calls as they are made

    def _watch(self, frame: FrameType, event: str, value: Any) -> None:
        """The profiling hook, called by Python at every call and return."""
        if event == "return" and frame in self._calls:
            call = self._calls.pop(frame)
            if not isinstance(value, PLAIN):
                self._returned.setdefault(id(value), []).append((value, *call))
        elif event == "call" and frame.f_code.co_argcount and frame.f_code.co_name == "__init__":
            self._constructor(frame)
        elif event == "call" and frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount and _by_user(frame):
            self._function(frame)

    def _constructor(self, frame: FrameType) -> None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in self._unseen:
            return
        made = frame.f_locals[frame.f_code.co_varnames[0]]
        if id(made) in self._known or _code_of(type(made).__init__) is not frame.f_code:
            return
        self._known[id(made)] = made, _arguments(frame, skip=1)

    def _function(self, frame: FrameType) -> None:
        module, name = str(frame.f_globals.get("__name__")), frame.f_code.co_name
        thing = getattr(sys.modules.get(module), name, None)
        if frame.f_code.co_qualname == name and callable(thing) and _code_of(thing) is frame.f_code:
            self._calls[frame] = _public(module, name, thing), _arguments(frame, skip=0)

    # Values as code

    def _value(self, value: Any) -> Any:
        """A value as settings and calls."""
        if isinstance(value, (*PLAIN, *self._repr)):
            return value
        if isinstance(value, float) and math.isfinite(value):
            return value
        if type(value) in (list, tuple):
            return type(value)(map(self._value, value))
        if type(value) is dict and all(isinstance(name, str | int) for name in value):
            return {name: self._value(one) for name, one in value.items()}
        if id(value) not in self._said:
            named = _named(value)
            if named is not None:
                return named
            if id(value) in self._open:
                raise Unsaid(f"a {type(value).__name__} is in itself")
            self._open.add(id(value))
            try:
                self._said[id(value)] = self._call(value)
            finally:
                self._open.discard(id(value))
        return self._said[id(value)]

    def _call(self, value: Any) -> Made:
        if type(value) is OrderedDict:
            return Made(_name_of(OrderedDict), {REST: [self._value(dict(value))]})
        if isinstance(value, functools.partial):
            rest = self._value([value.func, *value.args])
            return Made(_name_of(functools.partial), {REST: rest, **self._value(value.keywords)})
        if dataclasses.is_dataclass(value) and type(value).__init__.__code__.co_filename == GENERATED:
            fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value) if one.init}
            return Made(_name_of(type(value)), self._given(type(value), fields))
        if id(value) in self._known:
            return Made(_name_of(type(value)), self._given(type(value), self._known[id(value)][1]))
        for _, maker, given in self._returned.get(id(value), ()):
            return Made(maker, self._given(maker.thing, given))
        raise Unsaid(f"{type(value).__name__} is no number, and nothing that has a name")

    def _given(self, maker: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as settings and calls. One that has no name is left out where it is the default."""
        usual, found = _usual(maker), {}
        for name, value in given.items():
            try:
                found[name] = self._value(value)
            except Unsaid:
                if name not in usual or usual[name] is not value:
                    raise
        return found


def _arguments(frame: FrameType, skip: int) -> dict[str, Any]:
    """What a call was given, by name."""
    names, rest, named, values = inspect.getargvalues(frame)
    code = frame.f_code
    only_named = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    given = {name: _copied(values[name]) for name in dict.fromkeys([*names[skip:], *only_named])}
    given |= values[named] if named else {}
    return {REST: list(values[rest]), **given} if rest and values[rest] else given


def _copied(value: Any) -> Any:
    """A copy of an argument that a constructor may change."""
    return value.copy() if type(value) in (list, dict) else value


def _code_of(function: Any) -> CodeType | None:
    return getattr(inspect.unwrap(function), "__code__", None)


def _by_user(frame: FrameType) -> bool:
    """Whether the user's code is called, or calls."""
    around = frame.f_back
    return not (is_library(frame.f_code.co_filename) and (around is None or is_library(around.f_code.co_filename)))


def _named(thing: Any) -> Name | None:
    """A thing that its module has under its name; another one, if the module was loaded again."""
    if isinstance(thing, enum.Enum):
        kind = _named(type(thing))
        return Name(kind.module, f"{kind.name}.{thing.name}", thing) if kind is not None else None
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not is_name(name):
        return None
    there = getattr(sys.modules.get(module), name, None)
    same = (getattr(there, "__module__", ""), getattr(there, "__qualname__", "")) == (module, name)
    return _public(module, name, thing) if same else None


def _name_of(thing: Any) -> Name:
    found = _named(thing)
    if found is None:
        raise Unsaid(f"{thing.__qualname__} has no name of its own")
    return found


def _public(module: str, name: str, thing: Any) -> Name:
    """A thing under the shortest public name of its package, if its own is none."""
    if "._" not in module:
        return Name(module, name, thing)
    root = module.partition(".")[0]
    others = (one for one in tuple(sys.modules) if one.partition(".")[0] == root and "._" not in one)
    found = [one for one in others if getattr(sys.modules[one], name, None) is thing]
    return Name(min(found, key=lambda one: (len(one), one), default=module), name, thing)
