"""Every rule x every legal choice per mesh axis, on meshes of one and two axes: forward and backward exact."""

from __future__ import annotations

from itertools import product

import pytest

from meshwright.backends.torch_.verify.compare import CPU, differences
from meshwright.ir.adjoint import Strategy, apply, choices
from meshwright.ir.decisions import BodyPlan
from meshwright.ir.errors import IllegalStrategy, IndivisibleExtent
from meshwright.ir.graph import Graph, Input, Op
from meshwright.ir.lower_body import lower_body
from meshwright.ir.mesh import Mesh
from meshwright.ir.rules import Law, Signature, infer, kinds
from tests.samples import SAMPLES, tensors

LINE, BOX = Mesh.parse("a=2"), Mesh.parse("a=2 b=2")


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


def strategies(signature: Signature) -> list[tuple[Mesh, Strategy]]:
    found = choices(infer(signature))
    one = [(LINE, Strategy((("a", choice),))) for choice in found]
    two = [(BOX, Strategy((("a", first), ("b", second)))) for first, second in product(found, found)]
    return one + two


def check(signature: Signature, mesh: Mesh, strategy: Strategy) -> list[str] | None:
    """Differences from the unsharded operator; None if the strategy is refused."""
    graph = single(signature)
    try:
        applied = apply(infer(signature), signature.operands, strategy, mesh)
        states = tuple((f"x{index}", state) for index, state in enumerate(applied.operands))
        plan = BodyPlan("op", "op", (("y0", strategy),), states)
        lower_body(graph, plan, mesh, CPU)
    except (IllegalStrategy, IndivisibleExtent):
        return None
    values = {f"x{index}": value for index, value in enumerate(tensors(signature))}
    return differences(
        graph, plan, mesh, {name: v.double() if v.is_floating_point() else v for name, v in values.items()}
    )


@pytest.mark.parametrize("kind", kinds())
def test_every_choice_is_exact(kind: str) -> None:
    ran = 0
    for signature in SAMPLES[kind]:
        for mesh, strategy in strategies(signature):
            wrong = check(signature, mesh, strategy)
            assert not wrong, f"{signature} {signature.attrs} under {strategy}: {wrong}"
            ran += wrong is not None
    assert ran, f"no strategy of {kind} was legal"
