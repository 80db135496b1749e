"""Which modules give attention a mask of all heads, where an axis cuts it by heads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from meshwright.backends.torch_.emit.heads import masked_heads
from meshwright.backends.torch_.emit.subject import Piece
from meshwright.ir.adjoint import Strategy
from meshwright.ir.decisions import BodyPlan
from meshwright.ir.fold import FromInput, Segment
from meshwright.ir.mesh import Mesh
from tests.build import Builder


def found(*calls: tuple[str, str, tuple[int, ...] | None]) -> tuple[str, ...]:
    """Of attention in modules, cut by factors, with masks of these shapes. Two samples, four heads, eight tokens."""
    body = Builder()
    q = body.input((2, 4, 8, 8), requires_grad=True)
    cuts = []
    for module, factor, shape in calls:
        more: dict[str, Any] = {} if shape is None else {"mask_shape": shape}
        made = body.op("attention", q, q, q, module=module, mask="full", **more)
        body.output(body.op("silu", made, module="other"))
        cuts.append((made, Strategy.parse(f"tp={factor}")))
    segment = Segment(("block",), ("blocks.0",), (FromInput("x"),), ((FromInput("x"),),))
    plan = BodyPlan(name="cut", body="block", strategies=tuple(cuts), states=())
    subject: Any = SimpleNamespace(mesh=Mesh.parse("tp=2"))
    return masked_heads(subject, Piece(segment, plan, None, body.graph()), "tp")


def test_masks_that_tell_heads_apart_are_found() -> None:
    """Heads are the third dimension from the end; a mask that has one for all of them, or none, is the same for all."""
    for shape, told_apart in [
        ((8,), False),
        ((8, 8), False),
        ((1, 8, 8), False),
        ((4, 8, 8), True),
        ((2, 1, 8, 8), False),
        ((1, 4, 8, 8), True),
        (None, False),
    ]:
        assert found(("attn", "hk", shape)) == (("attn",) if told_apart else ()), shape


def test_every_module_is_named_once_and_those_cut_otherwise_are_not() -> None:
    """By samples, or by nothing that this axis cuts."""
    every = (1, 4, 8, 8)
    calls = [("b", "hk", every), ("a", "hk", every), ("b", "hk", every), ("plain", "hk", None)]
    assert found(("samples", "b", every), *calls) == ("b", "a")
