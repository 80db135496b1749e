"""Places in a module where a small fault can be planted.

In: the tree of a module. Out: one ``Site`` per fault, in the order of the source; ``plant`` changes the tree in place.

    comparison         < and <=, > and >=, < and >=, == and !=, in and not in, is and is not
    sign               + and -, * and /, -x and x
    extreme            min and max, any and all, ceil and floor
    off by one         a small whole number, one larger
    dropped term       one side of a sum, product or union; an addend that is accumulated
    dropped call       a call for its effect
    dropped condition  one side of `and` and `or`; the filter of a comprehension
    logic              and and or, not x and x, True and False, a condition turned around

What decides nothing at run time is left alone: annotations and names of types, decorators, docstrings, what a `raise`
says, branches for type checkers; and what only checks what must be so anyhow: `assert`, and `strict` of `zip`.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

SMALL = 16
"""Whole numbers up to here are counts and positions; larger ones are sizes and limits, which hardly change by one."""

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
}
_TURNED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
_SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil"}
_DROPPABLE = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.BitOr, ast.BitAnd)
_SEQUENCES = (ast.List, ast.Tuple, ast.ListComp, ast.JoinedStr)
_SILENT = ("annotation", "returns", "decorator_list", "bases", "keywords", "type_params", "format_spec")
"""Fields of definitions that decide nothing at run time, or only how a class is built."""

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")

Change = tuple[str, Callable[[], None]]


@dataclass(frozen=True, slots=True)
class Site:
    """One fault: of which kind, in which statement of which function, and how to plant it."""

    kind: str
    function: str
    statement: ast.stmt
    plant: Callable[[], None]


def sites(tree: ast.Module) -> list[Site]:
    """All faults that can be planted in ``tree``, in the order of its source."""
    return list(_of_body(tree.body, ""))


def header(statement: ast.stmt) -> str:
    """Normalised source of a statement, without the statements inside it."""
    parts = {name: getattr(statement, name) for name in _BLOCKS if getattr(statement, name, None)}
    try:
        for name in parts:
            setattr(statement, name, [ast.Pass()] if name == "body" else [])
        return ast.unparse(statement)
    finally:
        for name, value in parts.items():
            setattr(statement, name, value)


def _of_body(statements: list[ast.stmt], function: str) -> Iterator[Site]:
    for at, statement in enumerate(statements):
        if not _decides(statement):
            continue
        if (kind := _dropped(statement)) is not None:
            yield Site(kind, function, statement, _put(statements, at, ast.copy_location(ast.Pass(), statement)))
        yield from _of_statement(statement, function)


def _of_statement(statement: ast.stmt, function: str) -> Iterator[Site]:
    for kind, plant in _in_header(statement):
        yield Site(kind, function, statement, plant)
    inside = function
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        inside = f"{function}.{statement.name}".lstrip(".")
    for name in _BLOCKS:
        for part in getattr(statement, name, []):
            if isinstance(part, ast.ExceptHandler | ast.match_case):
                yield from _of_body(part.body, inside)
        if name not in ("handlers", "cases"):
            yield from _of_body(getattr(statement, name, []), inside)


def _decides(statement: ast.stmt) -> bool:
    """Whether a statement may hold faults that the running program can show."""
    if isinstance(statement, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
        return False
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return False
    if isinstance(statement, ast.If) and ast.unparse(statement.test) in ("TYPE_CHECKING", "__name__ == '__main__'"):
        return False
    if not isinstance(statement, ast.Assign):
        return True
    return ast.unparse(statement.targets[0]) not in ("__all__", "__slots__") and not _is_type(statement.value)


def _is_type(node: ast.expr) -> bool:
    """Whether it is a type that gets a name: of classes, which are written in mixed case, and of built-in ones."""
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _is_type(left) and _is_type(right)
        case ast.Subscript(value=value, slice=ast.Tuple(elts=parts)):
            return _is_type(value) and all(map(_is_type, parts))
        case ast.Subscript(value=value, slice=part):
            return _is_type(value) and _is_type(part)
        case ast.List(elts=parts):
            return all(map(_is_type, parts))
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return isinstance(getattr(builtins, name, None), type) or (name[0].isupper() and not name.isupper())
        case ast.Constant(value=value):
            return value is None or value is ...
    return False


def _dropped(statement: ast.stmt) -> str | None:
    """The kind of fault that it is to leave a whole statement out, if it runs on without it."""
    if isinstance(statement, ast.AugAssign):
        return "dropped term"
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return "dropped call"
    return None


def _in_header(statement: ast.stmt) -> Iterator[Change]:
    """Faults in the expressions of a statement, and in how it takes its condition or adds."""
    if isinstance(statement, ast.AugAssign) and type(statement.op) in _TURNED:
        yield "sign", _put(statement, "op", _TURNED[type(statement.op)]())
    if isinstance(statement, ast.If | ast.While) and isinstance(statement.test, ast.Name | ast.Attribute | ast.Call):
        yield "logic", _put(statement, "test", _negated(statement.test))
    for name, value in ast.iter_fields(statement):
        if name not in _BLOCKS and name not in _SILENT:
            yield from _in_field(statement, name, value)


def _in_field(owner: ast.AST, name: str, value: object) -> Iterator[Change]:
    if isinstance(value, list):
        for at, item in enumerate(value):
            if isinstance(item, ast.AST):
                yield from _in_expression(item, partial(_put, value, at))
    elif isinstance(value, ast.AST):
        yield from _in_expression(value, partial(_put, owner, name))


def _in_expression(node: ast.AST, put: Callable[[ast.AST], Callable[[], None]]) -> Iterator[Change]:
    """Faults at ``node`` itself, then those inside it; ``put`` says how another node comes into its place."""
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return
    yield from _at(node, put)
    for name, value in ast.iter_fields(node):
        if name not in _SILENT or isinstance(node, ast.Call):
            yield from _in_field(node, name, value)


def _at(node: ast.AST, put: Callable[[ast.AST], Callable[[], None]]) -> Iterator[Change]:
    match node:
        case ast.Compare():
            for at, compared in enumerate(node.ops):
                for table in (_COMPARED, _OPPOSITE):
                    if type(compared) in table:
                        yield "comparison", _put(node.ops, at, table[type(compared)]())
        case ast.BinOp():
            yield from _at_sum(node, put)
        case ast.UnaryOp(op=ast.USub()):
            yield "sign", put(node.operand)
        case ast.UnaryOp(op=ast.Not()):
            yield "logic", put(node.operand)
        case ast.BoolOp():
            yield "logic", _put(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
            for at in range(len(node.values)):
                left = node.values[:at] + node.values[at + 1 :]
                yield "dropped condition", put(left[0]) if len(left) == 1 else _put(node, "values", left)
        case ast.Call(func=ast.Name(id=name)) if name in _SWAPPED:
            yield "extreme", _put(node.func, "id", _SWAPPED[name])
        case ast.IfExp(test=ast.Name() | ast.Attribute() | ast.Call()):
            yield "logic", _put(node, "test", _negated(node.test))
        case ast.comprehension():
            for at in range(len(node.ifs)):
                yield "dropped condition", _put(node, "ifs", node.ifs[:at] + node.ifs[at + 1 :])
        case ast.Constant(value=bool(value)):
            yield "logic", put(ast.copy_location(ast.Constant(not value), node))
        case ast.Constant(value=int(value)) if 0 <= value <= SMALL:
            yield "off by one", put(ast.copy_location(ast.Constant(value + 1), node))


def _at_sum(node: ast.BinOp, put: Callable[[ast.AST], Callable[[], None]]) -> Iterator[Change]:
    words = [side for side in (node.left, node.right) if _is_sequence(side)]
    if type(node.op) in _TURNED and not words:
        yield "sign", _put(node, "op", _TURNED[type(node.op)]())
    if isinstance(node.op, _DROPPABLE):
        yield "dropped term", put(node.left)
        if not isinstance(node.op, ast.Sub | ast.Div):
            yield "dropped term", put(node.right)


def _is_sequence(node: ast.expr) -> bool:
    """Whether no arithmetic is done on it for sure: + joins it to another."""
    return isinstance(node, _SEQUENCES) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _negated(test: ast.expr) -> ast.expr:
    return ast.copy_location(ast.UnaryOp(ast.Not(), test), test)


def _put(owner: ast.AST | list[Any], place: str | int, new: object) -> Callable[[], None]:
    def plant() -> None:
        if isinstance(owner, list):
            owner[int(place)] = new
        else:
            setattr(owner, str(place), new)

    return plant
