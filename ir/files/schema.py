"""Schemas of files: their keys, the values of each, and refusals with the path of the key.

A kind of file has one `Table` of keys, whose types say everything: `Annotated[int, Least(1), Most(RANKS)]` is a count,
`Annotated[Mesh, Parsed(Mesh.parse)]` a text form that one of our types reads. Nothing is converted in silence (a string
is no number, and neither is `true`), nothing is ignored, and no number is infinite. `Form.read` makes a value of a
document or raises; `json_schema` says the same to others, as JSON Schema.

This is the only module that imports pydantic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Generic, NoReturn, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    TypeAdapter,
    ValidationError,
    WrapValidator,
    create_model,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from meshwright.ir.errors import MeshwrightError, nearest
from meshwright.ir.files.documents import Fault, Path_, Unparsed, parse_json, parse_toml, shown, spelled
from meshwright.ir.files.near import did_you_mean
from meshwright.ir.files.reading import Unreadable, read_text
from meshwright.ir.limits import FILE_BYTES, TEXT, Limit

T = TypeVar("T")

STRICT = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())
KNOWN_ONLY = ConfigDict(extra="forbid")
"""Of a dataclass of ours that is its own schema; its fields are strict each."""


class Table(BaseModel):
    """A table of keys: those that a subclass declares, and no others."""

    model_config = STRICT


def table_of(name: str, says: str, fields: Mapping[str, Any]) -> type[Table]:
    """A table whose keys are listed elsewhere: a type for each, and its default, or `...` where it has none."""
    made: type[Table] = create_model(name, __base__=Table, __doc__=says, **fields)
    return made


class Refused(Exception):
    """A fault of a document: a key that is `missing` or `unknown`, or a `value` that a key cannot have."""

    def __init__(self, kind: str, path: Path_, cause: str, fix: str, error: MeshwrightError | None = None) -> None:
        """Keep the fault; `error` is the refusal of the type that read the value, if one did."""
        super().__init__(kind, path, cause, fix)
        self.kind, self.path, self.cause, self.fix, self.error = kind, path, cause, fix, error


# Types ---------------------------------------------------------------------------------------------------------------

Tuple = Annotated[tuple[T, ...], Field(strict=False)]
"""A list, kept as a tuple."""
Some = Field(min_length=1)
"""Of a list: it is not empty."""
Text = Annotated[str, Field(max_length=TEXT.most)]
Name = Annotated[str, Field(min_length=1, max_length=TEXT.most)]
Whole = Annotated[int, Field(ge=0, strict=True)]
Count = Annotated[int, Field(ge=1, strict=True)]
Flag = Annotated[bool, Field(strict=True)]


def _as_written(value: Any, check: Callable[[Any], Any]) -> Any:
    """A number that is checked, and not converted to a float, so that it is written back as it was read."""
    check(value)
    return value


Number = Annotated[float, Field(allow_inf_nan=False), WrapValidator(_as_written)]
AnyNumber = Annotated[float, Field(allow_inf_nan=True)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False), WrapValidator(_as_written)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), WrapValidator(_as_written)]


def value_error(cause: str, fix: str, error: MeshwrightError | None = None) -> PydanticCustomError:
    """The error of a value's reader: a clause about the value, and the remedy."""
    return PydanticCustomError("refused", "refused", {"cause": cause, "fix": fix, "error": error})


@dataclass(frozen=True, slots=True)
class Parsed:
    """A string that one of our types parses. What it refuses is reported with the path of the key."""

    parse: Callable[[str], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Read a string."""
        return core_schema.no_info_after_validator_function(self._read, core_schema.str_schema(strict=True))

    def _read(self, text: str) -> Any:
        try:
            return self.parse(text)
        except MeshwrightError as error:
            raise value_error(error.cause, error.fix, error) from error


@dataclass(frozen=True, slots=True)
class Read:
    """A value that one of our functions reads; `schema` describes it as JSON Schema."""

    read: Callable[[Any], Any]
    schema: Mapping[str, Any] = field(hash=False)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Read a value of any type."""
        return core_schema.no_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        """The schema that was given."""
        return dict(self.schema)

    def _read(self, value: Any) -> Any:
        try:
            return self.read(value)
        except MeshwrightError as error:
            raise value_error(error.cause, error.fix, error) from error


_COUNTED_BY = {"integer": "maximum", "array": "maxItems", "object": "maxProperties"}


@dataclass(frozen=True, slots=True)
class Most:
    """A whole number within a limit, or a list or an object with no more entries. The reason for the limit is
    reported."""

    limit: Limit

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Count before anything inside is read."""
        return core_schema.no_info_before_validator_function(self._read, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        """The schema with the limit."""
        told = handler(schema)
        return {**told, _COUNTED_BY[told["type"]]: self.limit.most}

    def _read(self, found: Any) -> Any:
        count = len(found) if isinstance(found, list | dict) else found if type(found) is int else 0
        if cause := self.limit.refused(count):
            raise value_error(cause, f"give at most {self.limit.most:,}")
        return found


@dataclass(frozen=True, slots=True)
class OneOf:
    """A word out of a fixed set."""

    words: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Read a word."""
        return core_schema.no_info_after_validator_function(self._read, core_schema.str_schema(strict=True))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        """The schema with the words."""
        return {"enum": list(self.words)}

    def _read(self, word: str) -> str:
        if word in self.words:
            return word
        meant = nearest(word[: TEXT.most], self.words)
        raise value_error(f"{shown(word)} is no such word", (f"did you mean {meant!r}? " if meant else "") + self.said)

    @property
    def said(self) -> str:
        return f"use one of {', '.join(self.words)}"


# Reading -------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def faults_of(kind: Any, data: object) -> tuple[Any, tuple[Refused, ...]]:
    """The value of a document, and its faults."""
    try:
        return _adapter(kind).validate_python(data), ()
    except ValidationError as error:
        return None, tuple(_refusals(error, kind))


MOST_SHOWN = 20
"""Faults of one document that are told at a time."""


def _refusals(error: ValidationError, kind: Any) -> Iterator[Refused]:
    for one in error.errors(include_url=False)[:MOST_SHOWN]:
        path: Path_ = tuple(step for step in one["loc"] if step != "[key]")
        what, told, value = one["type"], one.get("ctx", {}), one["input"]
        if what == "missing":
            yield Refused("missing", path, "it is missing", f"add {path[-1]!r}")
        elif what in ("extra_forbidden", "unexpected_keyword_argument"):
            yield Refused("unknown", path, f"{shown(path[-1])} means nothing here", _meant(kind, path))
        elif what == "refused":
            yield Refused("value", path, told["cause"], told["fix"], told["error"])
        else:
            yield Refused("value", path, f"it is {shown(value)}", _wanted(what, told, one["msg"]))


def _wanted(what: str, told: Mapping[str, Any], message: str) -> str:
    """The remedy, by the kind of refusal."""
    for mark, words in _WANTED.items():
        if what.startswith(mark):
            return f"give {words.format(**told)}"
    return message[:1].lower() + message[1:]


_WANTED = {
    "int_": "a whole number",
    "float_": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "string_too_long": "at most {max_length} characters",
    "string_too_short": "at least one character",
    "bool_": "true or false",
    "list_": "a list",
    "tuple_": "a list",
    "dict_": "an object",
    "model_": "an object",
    "dataclass_": "an object",
    "greater_than_equal": "a number of at least {ge}",
    "greater_than": "a number greater than {gt}",
    "less_than_equal": "a number of at most {le}",
    "too_short": "at least {min_length}",
    "too_long": "at most {max_length}",
    "literal_error": "one of {expected}",
}


def _meant(kind: Any, path: Path_) -> str:
    """The known key that is nearest to an unknown one."""
    known = _keys_at(json_schema(kind), path[:-1])
    meant = nearest(str(path[-1])[: TEXT.most], known)
    return f"did you mean {meant!r}?" if meant else f"use keys among {', '.join(known)}" if known else "remove it"


def _keys_at(schema: Mapping[str, Any], path: Path_) -> tuple[str, ...]:
    """The keys of the table at a path, by the schema of the document."""
    at: Any = schema
    for step in (*path, None):
        while "$ref" in at or "anyOf" in at:
            at = schema["$defs"][at["$ref"].rpartition("/")[2]] if "$ref" in at else at["anyOf"][0]
        if step is None:
            break
        inside = at.get("items") if isinstance(step, int) else at.get("properties", {}).get(step)
        at = inside or at.get("additionalProperties") or {}
        at = at if isinstance(at, dict) else {}
    return tuple(at.get("properties", ()))


def json_schema(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a kind of document."""
    return _adapter(kind).json_schema()


# Kinds of files ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Form(Generic[T]):
    """A kind of document: its table, and the errors by which it is refused."""

    table: Any
    """What pydantic makes a `T` of."""
    broken: type[MeshwrightError]
    missing: type[MeshwrightError]
    unknown: type[MeshwrightError]
    value: type[MeshwrightError]

    def json(self, text: str, place: str) -> Any:
        """The content of a text in JSON."""
        try:
            return parse_json(text)
        except Unparsed as error:
            at = f":{error.line}:{error.column}" if error.line else ""
            cause = "the file ends in the middle" if error.cut else f"it is not JSON: {error.cause}"
            fix = "make it again, or copy the whole file" if error.cut else "correct the line"
            raise self.broken(place=f"{place}{at}", cause=cause, fix=fix) from None
        except Fault as fault:
            raise self.value(place=at_(place, fault.path), cause=fault.cause, fix=fault.fix) from None

    def toml(self, text: str, place: str) -> dict[str, Any]:
        """The content of a text in TOML."""
        try:
            return parse_toml(text)
        except Unparsed as error:
            raise self.broken(
                place=place, cause=f"it is not TOML: {error.cause}", fix="correct the line; strings need quotes"
            ) from None
        except Fault as fault:
            raise self.value(place=at_(place, fault.path), cause=fault.cause, fix=fault.fix) from None

    def read(self, data: object, place: str) -> T:
        """The value of a document."""
        found, refused = faults_of(self.table, data)
        if refused:
            self.refuse(refused[0], place)
        value: T = found
        return value

    def refuse(self, one: Refused, place: str) -> NoReturn:
        """Raise the refusal of a document."""
        if one.error is not None:
            raise type(one.error)(
                place=f"{at_(place, one.path)} ({one.error.place})", cause=one.cause, fix=one.fix
            ) from one.error
        kinds = {"missing": self.missing, "unknown": self.unknown, "value": self.value}
        kind = kinds[one.kind] if one.path else self.broken
        raise kind(place=at_(place, one.path), cause=one.cause, fix=one.fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileForm(Form[T]):
    """A kind of file."""

    unreadable: type[MeshwrightError]
    give: str
    """What to give instead of a file that cannot be read."""
    limit: Limit = FILE_BYTES

    def text(self, path: str | Path) -> str:
        """Read the text of a file."""
        try:
            return read_text(path, self.limit)
        except Unreadable as error:
            raise self.unreadable(place=str(path), cause=error.cause, fix=f"{did_you_mean(path)}{self.give}") from None


def at_(place: str, path: Path_) -> str:
    """A place in a document."""
    return f"{place}: {spelled(path)}" if path else place
