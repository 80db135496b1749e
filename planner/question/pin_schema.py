"""The schemas of pins in files: a line of --configs, and the configuration that a plan holds.

What each pin may be is `planner.question.pins`' business (`read`); here are its names as keys, and the same in JSON
Schema.
"""

from __future__ import annotations

from typing import Annotated, Any

from meshwright.ir.errors import ConfigLineBad, ConfigsUnreadable, PinUnknown, PinValue
from meshwright.ir.files.documents import shown
from meshwright.ir.files.schema import Count, FileForm, Most, Read, Some, Table, Tuple, table_of
from meshwright.ir.limits import GLOBAL_BATCH, LINES_BYTES
from meshwright.planner.question.knobs import LONGEST
from meshwright.planner.question.pins import KNOBS, NAMES, Config, Pins, plain, read

GLOBAL_BATCH_KEY = "global_batch"


def pin(name: str, value: object) -> Any:
    """The schema of a pinned value, as a configuration holds it."""
    if type(value) not in (int, str, bool) or len(str(value)) > LONGEST:
        raise PinValue(place=name, cause=f"it is {shown(value)}", fix="give a number, a word or a switch")
    return read({name: value}, "pin").given[name]


def _in_config(name: str, value: object) -> Any:
    """The schema of a configuration's value, or of the mark that leaves it open."""
    held = KNOBS[name].open
    if held is not None and value in (0, "") and type(value) is type(plain(held)):
        return held
    return pin(name, value)


def _key(name: str) -> Any:
    return Annotated[Any, Read(lambda value: pin(name, value), KNOBS[name].kind.schema)]


def _config_key(name: str) -> Any:
    told, held = KNOBS[name].kind.schema, KNOBS[name].open
    if held is not None:
        told = {"anyOf": [told, {"const": plain(held)}]}
    return Annotated[Any, Read(lambda value: _in_config(name, value), told)]


def _wished(name: str, value: object) -> Any:
    """The schema of a value that is allowed or ruled out as it stands; layers of stages may be a list."""
    if isinstance(value, list) and name == "stage_blocks" and all(type(one) is int for one in value):
        pin(name, "+".join(map(str, value)))
        return tuple(value)
    _in_config(name, value)
    return value


def _constraint_key(name: str) -> Any:
    return Tuple[Annotated[Any, Read(lambda value: _wished(name, value), KNOBS[name].kind.schema)]]


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
    """Read the pins of a line."""
    return Pins(**{name: getattr(table, name) for name in NAMES})


def constraints_of(table: Any) -> dict[str, tuple[Any, ...]]:
    """Read a table of values by name."""
    return {name: getattr(table, name) for name in NAMES if name in table.model_fields_set}


def config_of(table: Any) -> Config:
    """Read the configuration of a table."""
    return Config(**dict(table))
