"""The YAML that settings are written in: mappings, lists and plain values, with the line of every key.

What YAML has beyond that (anchors, tags, several documents) no settings need, and is refused. Plain words are what YAML
1.1 takes them for, as all targets read their files with PyYAML or like it: `no` is false.

This is the only module that imports yaml.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from meshwright.ir.files.documents import Fault, Path_, Unparsed, check

PLAIN = ("null", "bool", "int", "float", "str", "timestamp")
MOST_DEEP = 50


def parse(text: str) -> tuple[Any, dict[Path_, int]]:
    """The content of a text, and the line of every key. Raises `Unparsed` or `Fault`."""
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
                raise Unparsed("anchors are not read", line=event.start_mark.line + 1)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        lines: dict[Path_, int] = {}
        found = None if node is None else _value(node, (), lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise Unparsed(
            str(error.problem or "it ends early"),
            line=mark.line + 1 if mark else 0,
            column=mark.column + 1 if mark else 0,
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Unparsed(str(error).split("\n")[0]) from None
    check(found)
    return found, lines


def _value(node: yaml.Node, path: Path_, lines: dict[Path_, int]) -> Any:
    if len(path) > MOST_DEEP:
        raise Unparsed("it is nested too deep", line=node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key, inner in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
            if not name or name in found:
                raise Fault(
                    (*path, name), "this key is given twice" if name else "a key is no word", "give it once, by name"
                )
            lines[(*path, name)] = key.start_mark.line + 1
            found[name] = _value(inner, (*path, name), lines)
        return found
    if isinstance(node, yaml.SequenceNode):
        return [_value(inner, (*path, index), lines) for index, inner in enumerate(node.value)]
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    if kind not in PLAIN:
        raise Unparsed(f"values of kind {node.tag} are not read", line=node.start_mark.line + 1)
    return node.value if kind == "timestamp" else yaml.SafeLoader("").construct_object(node)


def text_of(document: dict[str, Any]) -> Iterator[str]:
    """The lines of a document."""
    yield from yaml.safe_dump(document, sort_keys=False, width=110, allow_unicode=False).splitlines()
