"""Calls of framework operators by name, as attributes from which the call can be run again, or written down.

An operator that has no kind of its own here keeps three attributes:

    target     "aten::hardtanh"                          the name under which users register a rule
    overload   "default"
    call       (("", ("tensor", 0)), ("", -1.0), ("", 1.0))
               its arguments in order, each with its name, or "" for one by position

An argument is a number, a truth value or none as it is, else a tuple that begins with what it is: ("tensor", i) is
operand i, ("list", …) holds arguments, ("text", s) is a string, ("dtype", "bf16") one of our dtypes, ("device",) the
device of the script, ("torch", "contiguous_format") any other name in torch, ("nan",) what no number can be written as,
("data", "{'axis': 1}") other data as Python writes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from meshwright.ir.graph.graph import Attr
from meshwright.ir.quoting import literal

TENSOR, LIST, TEXT, DTYPE, DEVICE, TORCH, NAN, DATA, PLAIN = (
    "tensor", "list", "text", "dtype", "device", "torch", "nan", "data", "",
)  # fmt: skip

NAMES = {
    "f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16", "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2", "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "u8": "uint8",
    "bool": "bool", "c64": "complex64", "c128": "complex128",
}  # fmt: skip
"""Our dtypes as torch calls them."""

APPLY = "apply"
"""The overload of a class of the user's that is applied to the arguments (an autograd function): its target is the
class, "module::Class"."""
HOME = "import_module"
"""The function that gives a module of the user's, in code."""

T = TypeVar("T")


def plain(value: bool | int | float | None) -> Attr:
    """A number as an argument."""
    return (NAN,) if isinstance(value, float) and math.isnan(value) else value


def filled(argument: Attr, leaf: Callable[[str, Attr], T], many: Callable[[list[T]], T]) -> T:
    """An argument made again from its recorded form: `leaf` makes anything but lists, from its kind and content; `many`
    makes lists."""
    if not isinstance(argument, tuple):
        return leaf(PLAIN, argument)
    what, held = str(argument[0]), argument[1:]
    if what == LIST:
        return many([filled(item, leaf, many) for item in held])
    return leaf(what, held[0] if held else None)


def arguments(call: Attr) -> Iterator[tuple[str, Attr]]:
    """The arguments in the attribute `call` by name, "" for those by position."""
    for pair in call if isinstance(call, tuple) else ():
        if isinstance(pair, tuple) and len(pair) == 2:
            yield str(pair[0]), pair[1]


def written(target: str, overload: str, call: Attr, operands: Sequence[str], device: str = '"cpu"') -> str:
    """The call as a Python expression over expressions of its operands. An operand that it would overwrite is
    copied."""

    def leaf(what: str, held: Attr) -> str:
        if what == TENSOR and isinstance(held, int):
            return operands[held]
        if what == DATA:
            return str(held)
        if what == DTYPE:
            return f"torch.{NAMES[str(held)]}"
        if what == DEVICE:
            return device
        if what == TORCH:
            return f"torch.{held}"
        if what == NAN or (isinstance(held, float) and math.isinf(held)):
            return f'float("{"nan" if what == NAN else held}")'
        return repr(held)

    def many(items: list[str]) -> str:
        return f"[{', '.join(items)}]"

    given = [
        f"{name}={filled(argument, leaf, many)}" if name else filled(argument, leaf, many)
        for name, argument in arguments(call)
    ]
    if target.endswith("_") and given:
        given[0] = f"{given[0]}.clone()"
    if overload == APPLY:
        module, _, name = target.partition("::")
        return f"{HOME}({literal(module)}).{name}.{APPLY}({', '.join(given)})"
    return f"torch.ops.{target.replace('::', '.')}.{overload}({', '.join(given)})"
