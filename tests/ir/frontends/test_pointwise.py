"""Every operator that torch calls elementwise: a piece of the operands gives that piece of the result."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from meshwright.ir.frontends.torch_.operators.invoked import called, invoked, overload_of
from meshwright.ir.frontends.torch_.operators.lowerings import DRAWN
from meshwright.ir.frontends.torch_.operators.values import Call, Literal
from meshwright.ir.frontends.torch_.sources.dtypes import DTYPES
from meshwright.ir.graph.graph import Type
from meshwright.ir.rules import Signature, infer

SHAPES = ((4, 6), (6,), (4, 1))
"""Of the first tensor of a call, of the second, of the third."""

NUMBERS: dict[str, Any] = {"number": 1, "Scalar": 1, "float": 0.5, "int": 1, "bool": True, "str": Literal("none")}


def elementwise() -> Iterator[Any]:
    """The functional overloads that have torch's tag, random ones left out."""
    for name in sorted(dir(torch.ops.aten)):
        packet = getattr(torch.ops.aten, name)
        if not isinstance(packet, torch._ops.OpOverloadPacket):
            continue
        for overload in (getattr(packet, one) for one in packet.overloads()):  # `__getattr__` would make it anew
            if torch.Tag.pointwise in overload.tags and not overload._schema.is_mutable and name not in DRAWN:
                yield overload


def call_of(overload: Any, dtype: torch.dtype) -> tuple[Call, dict[str, Tensor]]:
    """A call with drawn tensors of this dtype; what has a default keeps it."""
    generator, tensors = torch.Generator().manual_seed(0), dict[str, Tensor]()

    def handle(one: Any) -> Any:
        if one.has_default_value():
            return Literal(one.default_value) if isinstance(one.default_value, str) else one.default_value
        if str(one.type) == "Tensor":
            drawn = torch.rand(SHAPES[len(tensors)], generator=generator, dtype=torch.float64) * 3
            name = f"x{len(tensors)}"
            tensors[name] = drawn.to(dtype)
            return name
        return NUMBERS.get(str(one.type).removeprefix("Optional[").removesuffix("]"))

    named = {one.name: handle(one) for one in overload._schema.arguments}
    return Call(str(overload).removeprefix("aten."), named, ()), tensors


def assert_elementwise(call: Call, said: dict[str, Any], values: list[Tensor], whole: tuple[Tensor, ...]) -> None:
    overload = overload_of(call.target)
    types = tuple(Type(tuple(one.shape), DTYPES[one.dtype]) for one in values)
    attrs = {"target": "aten::any", "dtypes": tuple(DTYPES[one.dtype] for one in whole), **said}
    rule = infer(Signature("pointwise", types, tuple(sorted(attrs.items()))))
    assert rule.types == tuple(Type(tuple(one.shape), DTYPES[one.dtype]) for one in whole), call.target
    for factor in rule.factors:
        dim = rule.results[0].index((factor.name,))
        for start, stop in ((0, 1), (1, factor.size)):
            part = [
                one.narrow(dims.index((factor.name,)), start, stop - start) if (factor.name,) in dims else one
                for one, dims in zip(values, rule.operands, strict=True)
            ]
            made = called(overload, said["call"], part)
            for one, other in zip((made,) if isinstance(made, Tensor) else made, whole, strict=True):
                torch.testing.assert_close(one, other.narrow(dim, start, stop - start), equal_nan=True)


def test_a_piece_of_the_operands_gives_that_piece_of_the_result() -> None:
    """In the first dtype that each takes; two hundred of them run so."""
    seen: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for overload in elementwise():
            for dtype in (torch.float64, torch.int64, torch.bool):
                call, tensors = call_of(overload, dtype)
                operands, said = invoked(call)
                values = [tensors[str(one)] for one in operands]
                try:
                    made = called(overload, said["call"], values)
                except (RuntimeError, TypeError, NotImplementedError):
                    continue
                if isinstance(made, bool):  # a number of a tensor, and no tensor
                    break
                whole = (made,) if isinstance(made, Tensor) else tuple(made)
                if values and all(one.dtype in DTYPES for one in whole):
                    assert_elementwise(call, said, values, whole)
                    seen.add(call.target)
                break
    assert len(seen) > 200, len(seen)
