"""Names in written code: of functions, and of values, which are called as in the model's own lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from meshwright.ir.graph.graph import Graph
from meshwright.ir.quoting import identifier, is_name


def function_names(name: str, paths: Iterable[str], taken: set[str]) -> dict[str, str]:
    """Names, which nothing else in a script has, for the functions of a body with this name: its own, and those of
    regions at paths."""
    return {"": name} | {path: free(f"{name}_{identifier(path.replace('.', '_'))}", taken) for path in paths if path}


def free(name: str, taken: set[str]) -> str:
    """The name, or with a number if it is taken; it is then."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    taken.add(found)
    return found


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def names_of(graph: Graph, file: Path) -> dict[str, str]:
    """Names of values that a line of the model assigns to a variable. A line's value is that of its last operator."""
    last = {op.source: op for op in graph.ops if op.source and len(op.results) == 1}
    found = {}
    for source, op in last.items():
        name, _, line = source.rpartition(":")
        variable = _assigned(_located(name, file)).get(int(line)) if line.isdecimal() else None
        if variable is not None and is_name(variable):
            found[op.results[0]] = variable
    return found


def _located(name: str, file: Path) -> Path | None:
    """The file of a source: the model's own, or one of an installed package."""
    if name == file.name:
        return file
    package, _, rest = name.partition("/")
    try:
        spec = find_spec(package) if rest and is_name(package) else None
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent / rest if spec is not None and spec.origin else None


@lru_cache(maxsize=256)
def _assigned(path: Path | None) -> Mapping[int, str]:
    """The variable that each line of a file assigns, if it is a single one."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8")) if path is not None else ast.Module([], [])
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[int, str] = {}
    for node in (one for one in ast.walk(tree) if isinstance(one, ast.stmt)):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        )
        if len(targets) == 1 and isinstance(targets[0], ast.Name) and node.end_lineno is not None:
            found |= dict.fromkeys(range(node.lineno, node.end_lineno + 1), targets[0].id)
    return found
