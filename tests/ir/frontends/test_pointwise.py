"""Operators that torch calls elementwise, by torch's own samples: a piece of the operands gives that piece of the
result."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from meshwright.ir.frontends.dtypes import DTYPES
from meshwright.ir.frontends.invoked import called, invoked, overload_of
from meshwright.ir.frontends.values import Call, Literal
from meshwright.ir.graph import Type
from meshwright.ir.rules import Signature, infer

SEED = 3
DRAWN = 40
"""Of some 180 that torch has samples for."""


class Noted(TorchDispatchMode):
    """The elementwise operators that run, with what they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.pointwise in func.tags and not func._schema.is_mutable:
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def samples() -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Calls of elementwise operators, of a seeded draw of torch's own samples."""
    methods = pytest.importorskip("torch.testing._internal.common_methods_invocations")
    ufuncs = (methods.UnaryUfuncInfo, methods.BinaryUfuncInfo)
    infos = [one for one in methods.op_db if isinstance(one, ufuncs) and torch.float64 in one.dtypes]
    for info in random.Random(SEED).sample(sorted(infos, key=lambda one: one.full_name), DRAWN):
        for sample in list(info.sample_inputs("cpu", torch.float64))[:4]:
            with Noted() as noted, torch.no_grad():
                info.op(sample.input, *sample.args, **sample.kwargs)
            yield from noted.calls


def of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, dict[str, Tensor]]:
    """The call as a front end has it, with its tensors by name."""
    tensors: dict[str, Tensor] = {}

    def handle(value: Any) -> Any:
        if isinstance(value, Tensor):
            tensors[f"x{len(tensors)}"] = value
            return f"x{len(tensors) - 1}"
        return Literal(value) if isinstance(value, str) else value

    given = dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | kwargs
    named = {
        one.name: handle(given[one.name] if one.name in given else one.default_value)
        for one in func._schema.arguments
    }
    return Call(str(func).removeprefix("aten."), named, ()), tensors


def test_a_piece_of_the_operands_gives_that_piece_of_the_result() -> None:
    seen: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for func, args, kwargs in samples():
            call, tensors = of(func, args, kwargs)
            operands, said = invoked(call)
            values = [tensors[str(one)] for one in operands]
            if "call" not in said or not values or any(one.dtype not in DTYPES for one in values):
                continue
            overload = overload_of(call.target)
            whole = called(overload, said["call"], values)
            torch.testing.assert_close(whole, func(*args, **kwargs), equal_nan=True)
            if not isinstance(whole, Tensor) or whole.dtype not in DTYPES:
                continue
            seen.add(call.target)
            types = tuple(Type(tuple(one.shape), DTYPES[one.dtype]) for one in values)
            attrs = {"target": "aten::any", "dtypes": (DTYPES[whole.dtype],), **said}
            rule = infer(Signature("pointwise", types, tuple(sorted(attrs.items()))))
            assert rule.types == (Type(tuple(whole.shape), DTYPES[whole.dtype]),)
            for factor in rule.factors:
                dim = rule.results[0].index((factor.name,))
                half = [
                    one.narrow(dims.index((factor.name,)), 0, factor.size // 2) if (factor.name,) in dims else one
                    for one, dims in zip(values, rule.operands, strict=True)
                ]
                part = called(overload, said["call"], half)
                torch.testing.assert_close(part, whole.narrow(dim, 0, factor.size // 2), equal_nan=True)
    assert len(seen) > 20, sorted(seen)
