"""Calls of operators as `meshwright.ir.graph.invocation` keeps them, and calls made of those again."""

from __future__ import annotations

import re
import sys
from ast import literal_eval
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from meshwright.ir.frontends.contract import EXECUTED
from meshwright.ir.frontends.folding.handles import Assembly, Handle
from meshwright.ir.frontends.folding.terms import Term
from meshwright.ir.frontends.torch_.operators.values import Call, Literal
from meshwright.ir.frontends.torch_.sources.dtypes import DTYPES, TORCH_DTYPES
from meshwright.ir.graph.graph import Attr
from meshwright.ir.graph.invocation import (
    APPLY,
    DATA,
    DEVICE,
    DTYPE,
    LIST,
    NAN,
    TENSOR,
    TEXT,
    TORCH,
    arguments,
    filled,
    plain,
)

FUNCTIONS = "meshwright_autograd"
"""The namespace of operators that stand for users' autograd functions in traces."""


def function_name(kind: Any) -> str | None:
    """The name of an autograd function, "module::Class", if its module has it by that name."""
    name = f"{kind.__module__.removeprefix(EXECUTED)}::{kind.__qualname__}"
    try:
        return name if function_of(name) is kind else None
    except (AttributeError, ImportError):  # it is of a function's own, or its module is none
        return None


def function_of(name: str) -> Any:
    """The autograd function of a name: of the user's file, or of a module that it imports."""
    module, _, kind = name.partition("::")
    home = sys.modules.get(f"{EXECUTED}{module}") or import_module(module)
    return attrgetter(kind)(home)


def function_symbol(name: str) -> str:
    """A name as part of an operator's, which has letters, digits and underscores alone."""
    return re.sub(r"[^a-zA-Z0-9]", lambda found: f"_{ord(found[0]):x}_", name)


def public_name(target: str) -> str:
    """The name under which users register a rule: `aten::roll`, `mylib::rotary`, `model::Through` of a function."""
    parts = target.split(".")
    if parts[0] == FUNCTIONS:
        symbol = parts[1].rpartition("_s")[0]
        return re.sub(r"_([0-9a-f]+)_", lambda found: chr(int(found[1], 16)), symbol)
    return f"{parts[0]}::{parts[1]}" if len(parts) > 2 else f"aten::{parts[0]}"


def operator_of(target: str, overload: str) -> Any:
    """What an operator's public name and its overload stand for."""
    if overload == APPLY:
        return function_of(target).apply
    return overload_of(f"{target.removeprefix('aten::').replace('::', '.')}.{overload}")


def overload_of(target: str) -> Any | None:
    """The operator of a traced name, "hardtanh.default" or "mylib.rotary.default", if torch has it."""
    parts = target.split(".")
    name, overload = parts[-2:] if len(parts) > 1 else (parts[0], "default")
    library = getattr(torch.ops, parts[0] if len(parts) > 2 else "aten")
    return getattr(getattr(library, name, None), overload, None)


def standing(call: Call) -> Call:
    """The call under the name of an operator that exists: some exist only in a form that writes in place."""
    name, _, overload = call.target.rpartition(".")
    if overload_of(call.target) is None and overload_of(f"{name}_.{overload}") is not None:
        return replace(call, target=f"{name}_.{overload}")
    return call


def invoked(call: Call) -> tuple[list[Handle], dict[str, Attr]]:
    """The tensor arguments of a call, in order, and the attributes `overload` and `call`, which are left out where they
    contain anything but plain data."""
    overload = overload_of(call.target)
    operands: list[Handle] = []

    def kept(value: Any) -> Attr:
        if isinstance(value, str | Term | Assembly):
            operands.append(value)
            return (TENSOR, len(operands) - 1)
        if isinstance(value, list | tuple):
            return (LIST, *map(kept, value))
        if isinstance(value, Literal) and call.target.startswith(FUNCTIONS):
            return (DATA, value.text)
        return _word(value)

    named = {name: kept(value) for name, value in call.args.items()}
    if overload is None or _UNSAID in str(named):
        return operands, {}
    given = []
    schema = overload._schema.arguments
    usual = [one.has_default_value() and kept_alike(one.default_value, named.get(one.name)) for one in schema]
    for at, one in enumerate(schema):
        if one.kwarg_only and not usual[at]:
            given.append((one.name, named[one.name]))
        elif not one.kwarg_only and not all(usual[at : _positional(schema)]):
            given.append(("", named[one.name]))
    return operands, {"overload": call.target.split(".")[-1], "call": tuple(given)}


def _positional(schema: Sequence[Any]) -> int:
    return sum(not one.kwarg_only for one in schema)


def kept_alike(default: Any, argument: Attr) -> bool:
    """Whether an argument equals the default."""
    if isinstance(default, list | tuple):
        return argument == (LIST, *default)
    return (type(default) is type(argument) and default == argument) or argument == (TEXT, default)


_UNSAID = "\0unsaid"


def _word(value: Any) -> Attr:
    """An argument that is no tensor, as plain data."""
    if value is None or isinstance(value, bool | int | float):
        return plain(value)
    if isinstance(value, Literal):
        return (TEXT, value.text)
    if isinstance(value, torch.dtype):
        return (DTYPE, DTYPES[value]) if value in DTYPES else (TORCH, str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return (DEVICE,)
    if isinstance(value, torch.layout | torch.memory_format):
        return (TORCH, str(value).removeprefix("torch."))
    return _UNSAID


def called(overload: Any, call: Attr, operands: Sequence[Any], device: str = "cpu", *, wide: bool = False) -> Any:
    """The operator run on these operands, of which it overwrites none. `wide`: what it is told to compute in a floating
    dtype is computed in fp64."""

    def leaf(what: str, held: Any) -> Any:
        if what == TENSOR:
            return operands[held]
        if what == DTYPE:
            dtype = TORCH_DTYPES[held]
            return torch.float64 if wide and dtype.is_floating_point else dtype
        if what == DEVICE:
            return torch.device(device)
        if what == TORCH:
            return getattr(torch, held)
        if what == DATA:
            return held if isinstance(overload, torch._ops.OpOverload) else literal_eval(held)
        return float("nan") if what == NAN else held

    positional = [filled(argument, leaf, list) for name, argument in arguments(call) if not name]
    keyword = {name: filled(argument, leaf, list) for name, argument in arguments(call) if name}
    schema = getattr(overload, "_schema", None)
    if schema is not None and schema.is_mutable and positional and isinstance(positional[0], Tensor):
        positional[0] = positional[0].clone()
    return overload(*positional, **keyword)
