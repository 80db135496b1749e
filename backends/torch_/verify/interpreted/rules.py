"""Checks of registered rules: the operator is split in every way that its rule allows, and compared with itself whole.

    register_rule("mylib::rotary", "b s (h d), s d -> b s (h d)", whole=("d",), linear=(0,))
    check_rule("mylib::rotary", rotary, x, table)

`check_rule` runs the function itself on shards of the examples, on meshes of one and two axes of two ranks, forward and
backward. A rule that claims too much (a loop that is not parallel, an operand that is not linear) is refused with the
choice that shows it. The function must not know more of its place than its operands tell: if it depends on global
positions, that loop is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import torch
from torch import Tensor

from meshwright.backends.torch_.verify.interpreted.compare import CPU, differences
from meshwright.backends.torch_.verify.interpreted.eager import DTYPES, OPAQUE
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.errors import CopiesDiffer, IllegalStrategy, IndivisibleExtent, RuleUntrue
from meshwright.ir.graph.graph import Graph, Input, Op, Type
from meshwright.ir.program.lower_body import lower_body
from meshwright.ir.rules.base import Law, Signature
from meshwright.ir.rules.registry import infer
from meshwright.ir.sharding.adjoint import Strategy, apply, choices
from meshwright.ir.sharding.mesh import Mesh

MESHES = (Mesh.parse("a=2"), Mesh.parse("a=2 b=2"))


def check_rule(target: str, function: Callable[..., Any], *examples: Tensor) -> int:
    """Check the rule of the framework operator `target` on example operands; returns how many strategies were tried.

    Floating examples are used in fp64. Extents should divide by four wherever the rule says that they split.
    """
    operands = tuple(x.double() if x.is_floating_point() else x for x in examples)
    results = _results(function, operands)
    names = {dtype: name for name, dtype in DTYPES.items()}
    types = tuple(str(Type(tuple(y.shape), names[y.dtype])) for y in results)
    signature = Signature(
        "opaque", tuple(Type(tuple(x.shape), names[x.dtype]) for x in operands), (("target", target), ("types", types))
    )
    with _injected(target, function):
        return sum(_check(signature, mesh, strategy, operands) for mesh, strategy in strategies(signature))


def strategies(signature: Signature) -> Iterator[tuple[Mesh, Strategy]]:
    """Every choice on one axis, and every pair of choices on two."""
    found = choices(infer(signature))
    for mesh in MESHES:
        for picked in product(found, repeat=len(mesh.axes)):
            yield mesh, Strategy(tuple(zip(mesh.names, picked, strict=True)))


def single(signature: Signature) -> Graph:
    """A graph of one operator; gradients are wanted wherever the rule lets them flow."""
    rule = infer(signature)
    operands = tuple(f"x{index}" for index in range(len(signature.operands)))
    results = tuple(f"y{index}" for index in range(len(rule.types)))
    return Graph(
        types=dict(zip(operands, signature.operands, strict=True)) | dict(zip(results, rule.types, strict=True)),
        inputs=tuple(
            Input(name, requires_grad=type_.floating and law is not Law.INDEX)
            for name, type_, law in zip(operands, signature.operands, rule.laws, strict=True)
        ),
        params=(),
        ops=(Op(signature.kind, operands, results, signature.attrs),),
        outputs=results,
    )


def split_differences(
    signature: Signature, mesh: Mesh, strategy: Strategy, operands: tuple[Tensor, ...]
) -> list[str] | None:
    """Differences between the split operator and the whole one; None if the strategy is refused."""
    graph = single(signature)
    try:
        applied = apply(infer(signature), signature.operands, strategy, mesh)
        states = tuple((f"x{index}", state) for index, state in enumerate(applied.operands))
        plan = BodyPlan("op", "op", (("y0", strategy),), states)
        lower_body(graph, plan, mesh, CPU)
    except (IllegalStrategy, IndivisibleExtent):
        return None
    return differences(graph, plan, mesh, {f"x{index}": value for index, value in enumerate(operands)})


def _check(signature: Signature, mesh: Mesh, strategy: Strategy, operands: tuple[Tensor, ...]) -> int:
    place = f"{signature.attr('target')} split by {str(strategy) or 'nothing'}"
    try:
        wrong = split_differences(signature, mesh, strategy, operands)
    except RuntimeError as error:
        raise RuleUntrue(place=place, cause=f"it does not run on shards: {error}", fix=_FIX) from error
    except CopiesDiffer as error:
        raise RuleUntrue(place=place, cause=error.cause, fix=_FIX) from error
    if wrong:
        raise RuleUntrue(place=place, cause=f"{', '.join(wrong)} differ from the whole operator", fix=_FIX)
    return wrong is not None


_FIX = "make the loops involved `whole`, or the operand nonlinear"


@contextmanager
def _injected(target: str, function: Callable[..., Any]) -> Iterator[None]:
    """Let the opaque operator compute this function, within a context."""
    OPAQUE[target] = lambda operands, attrs: _results(function, operands)
    try:
        yield
    finally:
        del OPAQUE[target]


def _results(function: Callable[..., Any], operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    made = function(*operands)
    return tuple(made) if isinstance(made, tuple | list) else (torch.as_tensor(made),)
