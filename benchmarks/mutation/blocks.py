"""Blocks of a module: runs of statements that are entered together.

A block is the body of a function or of a branch, named ``module:function#k``, with k its order in the function; what
follows a branch belongs to the block around it. ``noting`` puts a statement in front of each that notes its number.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from benchmarks.mutation.serving import NOTED

_BODIES = ("body", "orelse", "finalbody")


def owners(tree: ast.Module, module: str) -> dict[ast.stmt, str]:
    """The block that a statement lies in, for all statements."""
    return {statement: f"{module}:{name}" for name, body in _blocks(tree) for statement in body}


def names(tree: ast.Module, module: str) -> list[str]:
    """All blocks but those that run when the module is imported, in the order of the source."""
    return [f"{module}:{name}" for name, _ in _noted(tree)]


def noting(tree: ast.Module, first: int) -> ast.Module:
    """The tree, changed to note its blocks under numbers from ``first`` on."""
    for number, (_, body) in enumerate(list(_noted(tree)), start=first):
        at = 1 if _is_docstring(body[0]) else 0
        body.insert(at, ast.copy_location(ast.parse(f"{NOTED}[{number}] = 1").body[0], body[0]))
    return ast.fix_missing_locations(tree)


def _noted(tree: ast.Module) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Blocks of functions; what stands in a module or class itself runs with every import."""
    return ((name, body) for name, body in _blocks(tree) if not name.startswith("#"))


def _blocks(tree: ast.Module) -> Iterator[tuple[str, list[ast.stmt]]]:
    counts: dict[str, int] = {}

    def of(body: list[ast.stmt], function: str, prefix: str) -> Iterator[tuple[str, list[ast.stmt]]]:
        if not body:
            return
        counts[function] = counts.get(function, -1) + 1
        yield f"{function}#{counts[function]}", body
        for statement in body:
            inside, around = function, prefix
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                inside = f"{prefix}{statement.name}"
                around = f"{inside}."
            elif isinstance(statement, ast.ClassDef):
                inside, around = "", f"{prefix}{statement.name}."
            for part in _BODIES:
                yield from of(getattr(statement, part, []), inside, around)
            for handler in [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]:
                yield from of(handler.body, inside, around)

    return of(tree.body, "", "")


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
