"""The schemas of pins in files: a line of --configs, and the configuration that a plan holds.

What each pin may be is `planner.question.pins`' business (`read`); here are its names as keys, and the same in JSON
Schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from meshwright.ir.errors import ConfigLineBad, ConfigsUnreadable, PinUnknown, PinValue
from meshwright.ir.files.documents import shown
from meshwright.ir.files.schema import Count, FileForm, Most, Read, Some, Table, Tuple, table_of
from meshwright.ir.limits import GLOBAL_BATCH, LINES_BYTES
from meshwright.planner.question.pins import BLOCKS, COUNTS, DIGITS, NAMES, SWITCHES, WORDS, ZERO, Config, Pins, read

GLOBAL_BATCH_KEY = "global_batch"

LONGEST = 1000
"""Characters of a pin."""

OPEN: Mapping[str, Any] = {"etp": 0, "shard": 0, "split": "", "stage_blocks": ()}
"""Names that a configuration may leave open, and how it holds that."""


def pin(name: str, value: object) -> Any:
    """The value of a pin, as `Pins` holds it."""
    if type(value) not in (int, str, bool) or len(str(value)) > LONGEST:
        raise PinValue(place=name, cause=f"it is {shown(value)}", fix="give a number, a word or a switch")
    return getattr(read({name: value}, "pin"), name)


def _in_config(name: str, value: object) -> Any:
    """The value of a configuration, which says how it is open where it is."""
    if name in OPEN and value in (0, "") and type(value) is type(_plain(OPEN[name])):
        return OPEN[name]
    return pin(name, value)


def _plain(value: object) -> object:
    return "" if value == () else value


def described(name: str) -> dict[str, Any]:
    """What a pin may be, as JSON Schema."""
    if name in COUNTS:
        return {"type": "integer", "minimum": 1, "maximum": 10**DIGITS - 1}
    if name == "zero":
        return {"type": "integer", "enum": [int(one) for one in ZERO]}
    if name in SWITCHES:
        return {"enum": [True, False, "on", "off"]}
    if name == "recompute":
        return {"type": "string", "description": f"{', '.join(WORDS[name])}, selective:A+B or full_layers:N"}
    if name in WORDS:
        return {"type": "string", "enum": list(WORDS[name])}
    if name == "stage_blocks":
        return {"type": "string", "pattern": BLOCKS.pattern}
    return {"type": "string", "description": f"{name}, as --fix takes it", "maxLength": LONGEST}


def _key(name: str) -> Any:
    return Annotated[Any, Read(lambda value: pin(name, value), described(name))]


def _config_key(name: str) -> Any:
    told = described(name)
    if name in OPEN:
        told = {"anyOf": [told, {"const": _plain(OPEN[name])}]}
    return Annotated[Any, Read(lambda value: _in_config(name, value), told)]


def _wished(name: str, value: object) -> Any:
    """A value that a name may have, or must not, as it stands: layers of stages may be a list."""
    if isinstance(value, list) and name == "stage_blocks" and all(type(one) is int for one in value):
        pin(name, "+".join(map(str, value)))
        return tuple(value)
    _in_config(name, value)
    return value


def _constraint_key(name: str) -> Any:
    return Tuple[Annotated[Any, Read(lambda value: _wished(name, value), described(name))]]


ConstraintsTable = table_of(
    "Constraints", "Values by name.", {name: (Annotated[_constraint_key(name), Some], None) for name in NAMES}
)

PinsTable = table_of(
    "Pins",
    "Pins by name, as --fix takes them: what is not there is open.",
    {name: (_key(name), None) for name in NAMES},
)

LineTable = table_of(
    "Line",
    "A line of --configs: pins by name, and the sequences of a step.",
    {name: (_key(name), None) for name in NAMES} | {GLOBAL_BATCH_KEY: (Annotated[Count, Most(GLOBAL_BATCH)], None)},
)

ConfigTable = table_of(
    "Config", "A configuration with nothing left open.", {name: (_config_key(name), ...) for name in NAMES}
)

LINE: FileForm[Table] = FileForm(
    table=LineTable,
    unreadable=ConfigsUnreadable,
    broken=ConfigLineBad,
    missing=PinValue,
    unknown=PinUnknown,
    value=PinValue,
    give="give a file with one JSON object of pins per line",
    limit=LINES_BYTES,
)


def pins_of(table: Any) -> Pins:
    """The pins of a line."""
    return Pins(**{name: getattr(table, name) for name in NAMES})


def constraints_of(table: Any) -> dict[str, tuple[Any, ...]]:
    """The values of a table by name."""
    return {name: getattr(table, name) for name in NAMES if name in table.model_fields_set}


def config_of(table: Any) -> Config:
    """The configuration of a table."""
    return Config(**dict(table))
