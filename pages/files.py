"""The page of files: every kind with its keys, from the schemas that they are read by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from meshwright.planner.cli.arguments.reference import SCHEMAS
from meshwright.planner.cli.verbs.reference.schema import schema_of
from pages.cells import cell, code, page, table

ABOUT = """`plan schema KIND` prints each as JSON Schema. An unknown key is refused, but in a `config.json`, which other
tools write; so are a value of another type and one out of its range. How large a file may be is in
[Limits](../limits.md)."""
TOLD: Mapping[str, str] = {
    "plan": "`plan.json`, as `plan --out DIR` writes it: [`plan.json`](../plan.md#planjson) says what the keys mean",
    "cluster": "the TOML that `--cluster` names: [Clusters](../cluster.md#the-file)",
    "matrix": "the rows of a cluster's `link_matrix`: [Clusters](../cluster.md#the-file)",
    "shape": "the TOML of a decoder that exists only as numbers, as MODEL",
    "config": "what is read of a Hugging Face `config.json`, as MODEL",
    "configs": "a line of `plan estimate --configs`: [Many configurations](../estimate.md#many-configurations)",
    "pins": "`--fix` as JSON, in lines and in Python: [Pins](../estimate.md#pins)",
    "log": "a line that an emitted script prints of a step, as `plan compare` reads it",
    "profile": "what `plan calibrate` writes: [Calibration](../calibrate.md)",
    "question": "the `plan.toml` of `--config`: [Questions in files](../cli.md#questions-in-files)",
}


def files() -> str:
    """The page."""
    return page("Every kind of file", ABOUT, *(_kind(kind) for kind in SCHEMAS))


def _kind(kind: str) -> str:
    schema = schema_of(kind)
    parts = [f"## `plan schema {kind}`", f"{TOLD[kind][:1].upper()}{TOLD[kind][1:]}.", _keys(schema)]
    parts += [
        f"**{name}**\n\n{_keys(inner)}" for name, inner in schema.get("$defs", {}).items() if "properties" in inner
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part)


def _keys(schema: Mapping[str, Any]) -> str:
    if "properties" not in schema:
        return f"Holds {_type(schema)}."
    needed = schema.get("required", ())
    told = cell(schema.get("description", ""))
    rows = table(("key", "value", "needed"), _rows(schema["properties"], needed))
    return f"{told}\n\n{rows}" if told else rows


def _rows(properties: Mapping[str, Any], needed: Any) -> Iterator[tuple[str, str, str]]:
    for name, one in properties.items():
        yield code(name), _type(one), "yes" if name in needed else ""


def _type(one: Mapping[str, Any]) -> str:
    """A value in words: its type, its range, the words that it may be."""
    if "$ref" in one:
        return f"a {one['$ref'].rpartition('/')[2]}"
    if "const" in one:
        return code(str(one["const"]))
    if "enum" in one:
        return ", ".join(code(str(word)) for word in one["enum"])
    if choices := [_type(option) for option in one.get("anyOf", one.get("oneOf", ())) if option.get("type") != "null"]:
        return " or ".join(dict.fromkeys(choices))
    kind = str(one.get("type", "anything"))
    if kind == "array":
        items: Mapping[str, Any] = one.get("items") or next(iter(one.get("prefixItems", ())), {})
        return f"a list of {_type(items)}"
    return f"{kind}{_range(one)}"


def _range(one: Mapping[str, Any]) -> str:
    least, most = one.get("minimum", one.get("exclusiveMinimum")), one.get("maximum", one.get("exclusiveMaximum"))
    said = [f"from {least:,}" if least is not None else "", f"to {most:,}" if most is not None else ""]
    return "".join(f" {part}" for part in said if part)
