"""The schema of a Hugging Face `config.json`, as far as all models share it; the rest is up to transformers.

Sizes have another name in many families, which transformers' configurations know: `check_sizes` holds those that a
configuration has in the end to the same limits. Counts of what is built are told by the last word of their key,
wherever it stands (`decoder_layers`, `vision_config.depth`): none is beyond the limit of its word.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from meshwright.ir.errors import ConfigUnreadable, ConfigValueBad, ModelFileMissing, RemoteCodeRefused
from meshwright.ir.files.documents import Path_, shown
from meshwright.ir.files.schema import (
    STRICT,
    FileForm,
    Name,
    Read,
    Refused,
    Table,
    Tuple,
    faults_of,
    table_of,
    value_error,
)
from meshwright.ir.limits import FILE_BYTES, HEADS, LAYERS, SIZE, Limit

SIZES: dict[str, Limit] = {
    "vocab_size": SIZE,
    "hidden_size": SIZE,
    "intermediate_size": SIZE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
}

COUNTED: dict[str, Limit] = dict.fromkeys(("layers", "layer", "blocks", "depth"), LAYERS) | dict.fromkeys(
    ("heads", "head", "experts"), HEADS
)
"""Limits by the last word of a key."""


def _size(limit: Limit) -> Any:
    """A size; or one for each layer, or none."""

    def read(value: Any) -> Any:
        for one in value if isinstance(value, list) else [value]:
            if one is not None and (type(one) is not int or one < 1):
                raise value_error(f"it is {shown(value)}", "give a whole number of at least 1")
            if one is not None and (cause := limit.refused(one)):
                raise value_error(cause, f"give at most {limit.most:,}")
        return value

    number = {"type": "integer", "minimum": 1, "maximum": limit.most}
    told = {"anyOf": [number, {"type": "array", "items": number}, {"type": "null"}]}
    return Annotated[Any, Read(read, told)]


SizesTable = table_of("Sizes", "Sizes that all models have.", {key: (_size(one), None) for key, one in SIZES.items()})


class ConfigTable(SizesTable):  # type: ignore[valid-type, misc]
    """A `config.json`: what all models share; other keys are those of its `model_type`."""

    model_config = STRICT | {"extra": "allow"}

    model_type: Name = ""
    architectures: Tuple[Name] | None = None
    auto_map: Any = None


FORM: FileForm[Table] = FileForm(
    table=ConfigTable,
    unreadable=ModelFileMissing,
    broken=ConfigUnreadable,
    missing=ConfigValueBad,
    unknown=ConfigValueBad,
    value=ConfigValueBad,
    give="give a directory with a config.json, or the path of one",
    limit=FILE_BYTES,
)


def settings_of(file: Path) -> dict[str, Any]:
    """The settings of a `config.json`, unchanged."""
    place = str(file)
    settings: dict[str, Any] = FORM.json(FORM.text(file), place)
    FORM.read(settings, place)
    for one in _too_many(settings):
        FORM.refuse(one, place)
    if "auto_map" in settings:
        code = settings["auto_map"]
        named = ", ".join(map(str, code.values())) if isinstance(code, dict) else str(code)
        raise RemoteCodeRefused(
            place=f"{file}, auto_map",
            cause=f"it asks for code of its own ({named:.200}), and only code of the installed transformers is run",
            fix="delete auto_map to use the implementation that transformers has, or write a model file with a factory",
        )
    return settings


def _too_many(found: object, path: Path_ = ()) -> Iterator[Refused]:
    items = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for key, value in items:
        limit = COUNTED.get(str(key).rpartition("_")[2])
        if limit is not None and type(value) is int and (cause := limit.refused(value)):
            yield Refused("value", (*path, key), cause, f"give at most {limit.most:,}")
        yield from _too_many(value, (*path, key))


def check_sizes(config: Any, place: str) -> None:
    """Check that sizes are possible for a model, whatever its family calls them."""
    found = {key: value for key in SIZES if type(value := getattr(config, key, None)) is int}
    _, refused = faults_of(SizesTable, found)
    for one in refused:
        FORM.refuse(one, place)
