"""One small body program and everything that can be wrong with it, each refused where it is and with its words.

A product, its square, and a constant added; samples on two ranks, the weight's gradient and optimizer in shards:

    %h = linear(%x, %w)    %y = mul(%h, %h)    %z = add(%y, %f)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from meshwright.ir.decisions.decisions import BodyPlan, Storage
from meshwright.ir.errors import (
    GradientMixed,
    GradientTwice,
    GradientUnused,
    MeshwrightError,
    MissingGradient,
    NameRedefined,
    NameUnknown,
    NameUntyped,
    OffloadImpossible,
    OperatorUncovered,
    StorageConflict,
    WrongAddition,
    WrongDerivative,
    WrongKept,
    WrongOperand,
    WrongPlacement,
    WrongStep,
    WrongType,
    WrongUpdate,
)
from meshwright.ir.graph.graph import Type, Update
from meshwright.ir.graph.text import parse_graph
from meshwright.ir.program.lower_body import Lowering, lower_body
from meshwright.ir.program.program import Add, BodyProgram, Gradient, Kept, Local, Statement, Zero
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement, State
from meshwright.ir.verify.meaning import verify_body_meaning
from meshwright.ir.verify.programs import verify_body

GRAPH = parse_graph("""graph
  input %x: f32[4, 8] grad
  param %w: f32[8, 8] = "w"
  frozen %f: f32[8] = "f"
  %h: f32[4, 8] = linear(%x, %w)
  %y: f32[4, 8] = mul(%h, %h)
  %z: f32[4, 8] = add(%y, %f)
  output %z
""")
ROWS, WHOLE, SHARDS = Strategy.parse("dp=d0"), Placement.parse("[-, -]"), Placement.parse("[dp, -]")
COLUMNS, PARTIAL = Placement.parse("[-, dp]"), Placement.parse("[-, -]+sum(dp)")
PLAN = BodyPlan(
    "p",
    "b",
    tuple((op, ROWS) for op in "hyz"),
    tuple((value, State.parse("[dp, -]")) for value in "xz"),
    (Storage("w", WHOLE, SHARDS, SHARDS),),
)
BODY = lower_body(GRAPH, PLAN, Mesh.parse("dp=2"), Lowering())
FORWARD, BACKWARD = BODY.forward, BODY.backward
Z, Y, SUM, H, SCATTER = BACKWARD
WEIGHT, FROZEN = BODY.params


def test_the_body_is_as_drawn() -> None:
    assert [str(one) for one in (*FORWARD, *BACKWARD, *BODY.publish)] == [
        "%h = linear(%x, %w)  {dp=d0}",
        "%y = mul(%h, %h)  {dp=d0}",
        "%z = add(%y, %f)  {dp=d0}",
        "%dy@1 = add'(%y, %f; %dz!out0)  {dp=d0}",
        "%dh@2, %dh@3 = mul'(%h, %h; %dy@1)  {dp=d0}",
        "%dh+4 = %dh@2 + %dh@3",
        "%dx@5, %dw@6 = linear'(%x, %w; %dh+4)  {dp=d0}",
        "%dw@7 = reduce_scatter(dp, dim 0) %dw@6  for sync",
        "%w!@8 = all_gather(dp, dim 0) %w!updated  for update",
    ]
    verify_body(BODY)
    verify_body_meaning(BODY, GRAPH)


def forward(at: int, **changes: Any) -> dict[str, Any]:
    return {"forward": (*FORWARD[:at], replace(FORWARD[at], **changes), *FORWARD[at + 1 :])}


def backward(at: int, **changes: Any) -> dict[str, Any]:
    return {"backward": (*BACKWARD[:at], replace(BACKWARD[at], **changes), *BACKWARD[at + 1 :])}


def weight(**changes: Any) -> dict[str, Any]:
    return {"params": (replace(WEIGHT, **changes), FROZEN)}


def local(name: str, type_: str = "", placement: Placement | None = None) -> dict[str, Any]:
    """With a value of another shape, or elsewhere."""
    old = BODY.locals[name]
    shape = Type(tuple(map(int, type_.split())), "f32") if type_ else old.type
    return {"locals": {**BODY.locals, name: Local(shape, placement or old.placement)}}


def untyped(name: str) -> dict[str, Any]:
    return {"locals": {other: held for other, held in BODY.locals.items() if other != name}}


def zeros(placement: str, other: str = "4 8") -> dict[str, Any]:
    """Two more values of zeros, added up at the end."""
    one, two = (Type(tuple(map(int, shape.split())), "f32") for shape in (other, "4 8"))
    lies = Placement.parse(placement)
    held = {"a": Local(one, lies), "b": Local(two, lies), "c": Local(two, lies)}
    return {"backward": (*BACKWARD, Zero("a"), Zero("b"), Add(("a", "b"), "c")), "locals": {**BODY.locals, **held}}


Refusal = tuple[Mapping[str, Any], type[MeshwrightError], str, str]
FIRST = "%h = linear(%x, %w)  {dp=d0}"
WRONG: list[Refusal] = [
    # Names and types.
    ({"input_grads": ()}, MissingGradient, "p, inputs", "0 entries for 1 inputs"),
    ({"output_grads": ("dz!out0", None)}, MissingGradient, "p, outputs", "2 entries for 1 outputs"),
    (forward(1, operands=("h", "k")), NameUnknown, "p: %y = mul(%h, %k)  {dp=d0}", "%k is not there"),
    ({"outputs": ("q",)}, NameUnknown, "p: an output, update or parameter", "%q is not there"),
    ({"updates": (Update("b", "q"),)}, NameUnknown, "p: an output, update or parameter", "%q is not there"),
    (weight(value="q"), NameUnknown, "p: an output, update or parameter", "%q is not there"),
    ({"input_grads": ("q",)}, NameUnknown, "p: an input's gradient", "%q is not there"),
    ({"input_grads": ("h",)}, NameUnknown, "p: an input's gradient", "%h is not there"),
    ({"backward": (*BACKWARD, FORWARD[0])}, NameUnknown, f"p: {Y}", "%h is not there"),
    ({"backward": (Z, Y, SUM, SUM, H, SCATTER)}, NameRedefined, f"p: {SUM}", "%dh+4 again"),
    (untyped("y"), NameUntyped, "p: %y = mul(%h, %h)  {dp=d0}", "%y has no type"),
    (untyped("x"), NameUntyped, f"p: {FIRST}", "%x has no type"),
    # Sums.
    (local("dh+4", placement=WHOLE), WrongAddition, f"p: {SUM}", "%dh@2 is [dp, -], the sum [-, -]"),
    (zeros("[-, -]+max(dp)"), WrongAddition, "p: %c = %a + %b", "%a is [-, -]+max(dp), the sum [-, -]+max(dp)"),
    (zeros("[-, -]+sum(dp)", "4 9"), WrongType, "p: %c = %a + %b", "%a is f32[4, 9], not f32[4, 8]"),
    # Operators and their gradients.
    (forward(0, operands=("x",)), WrongOperand, "p: %h = linear(%x)  {dp=d0}", "1 operands and 1 results"),
    (
        {**forward(0, results=("h", "g")), "locals": {**BODY.locals, "g": BODY.locals["h"]}},
        WrongOperand, "p: %h, %g = linear(%x, %w)  {dp=d0}", "2 operands and 2 results",
    ),
    (local("h", "4 16"), WrongType, f"p: {FIRST}", "%h is f32[4, 16], not f32[4, 8]"),
    (local("w", "8 9"), WrongType, f"p: {FIRST}", "%w is f32[8, 9], not f32[8, 8]"),
    (local("x", placement=WHOLE), WrongPlacement, f"p: {FIRST}", "%x is [-, -], not [dp, -]"),
    (local("dz!out0", placement=WHOLE), WrongPlacement, f"p: {Z}", "%dz!out0 is [-, -], not [dp, -]"),
    (local("dz!out0", "4 9"), WrongType, f"p: {Z}", "%dz!out0 is f32[4, 9], not f32[4, 8]"),
    (local("dw@6", placement=WHOLE), WrongPlacement, f"p: {H}", "%dw@6 is [-, -], not [-, -]+sum(dp)"),
    (backward(0, grads=()), WrongDerivative, "", "0 gradients give those of operands [0]"),
    (backward(0, grads=(None,)), WrongDerivative, "", "1 gradients give those of operands [0]"),
    (backward(0, wanted=(0, 1)), WrongDerivative, "", "1 gradients give those of operands [0, 1]"),
    (backward(0, wanted=(2,)), WrongDerivative, "", "1 gradients give those of operands [2]"),
    (backward(0, wanted=(1,)), WrongType, f"p: {Z}", "%dy@1 is f32[4, 8], not f32[8]"),
    # Moves.
    (
        backward(4, step=replace(SCATTER.step, dim=1)),  # type: ignore[union-attr]
        WrongStep, "p: %dw@7 = reduce_scatter(dp, dim 1) %dw@6  for sync",
        "it leads to [-, dp], the result says [dp, -]",
    ),
    (local("dw@7", "8 9"), WrongType, f"p: {SCATTER}", "%dw@7 is f32[8, 9], not f32[8, 8]"),
    # Parameters.
    (
        {"params": (WEIGHT, replace(FROZEN, host=True))},
        OffloadImpossible, "p, f", "it is not trained, and steps on the host",
    ),
    (weight(grad="q"), MissingGradient, "p, w", "%q is not made"),
    (weight(synced=None), MissingGradient, "p, w", "%None is not made"),
    (weight(synced="h"), MissingGradient, "p, w", "%h is not made"),
    (weight(published=None), MissingGradient, "p, w", "%None is not made"),
    (weight(published="w"), MissingGradient, "p, w", "%w is not made"),
    (weight(grads=PARTIAL), StorageConflict, "p, w", "[-, -]+sum(dp) does not refine [-, -]"),
    (weight(optimizer=PARTIAL), StorageConflict, "p, w", "[-, -]+sum(dp) does not refine [-, -]"),
    (weight(grads=COLUMNS), WrongPlacement, "p, w", "its gradient is never [-, dp]"),
    (weight(optimizer=COLUMNS), WrongPlacement, "p: w", "%dw@7 is [dp, -], not [-, dp]"),
    (weight(published="w!updated"), WrongPlacement, "p: w", "%w!updated is [dp, -], not [-, -]"),
    (weight(grad="dw@6"), GradientMixed, "p, w", "it is synced from %dw@7 and published from %w!updated"),
    # Sums of gradients.
    (backward(2, operands=("dh@2",)), GradientUnused, f"p: {H}", "%dh@3 is left out"),
    (
        backward(2, operands=("dh@2", "dh@3", "dh@3")),
        GradientTwice, f"p: {H}", "%dh@3 is counted 2 times in %dh+4",
    ),
    (
        backward(2, operands=("dh@2", "dy@1")),
        GradientMixed, "p: %dh+4 = %dh@2 + %dy@1", "it adds gradients of %h and %y",
    ),
    (
        backward(2, operands=("dh@2", "h")),
        GradientMixed, "p: %dh+4 = %dh@2 + %h", "it adds gradients of %forward %h and %h",
    ),
    (
        backward(3, grads=("dy@1",)), GradientMixed,
        "p: %dx@5, %dw@6 = linear'(%x, %w; %dy@1)  {dp=d0}", "%dy@1 is no gradient of %h",
    ),
    ({"input_grads": ("dz!out0",)}, GradientMixed, "p: input %x", "%dz!out0 is no gradient of %x"),
    ({"input_grads": (None,)}, GradientUnused, "p: %x", "%dx@5 is left out"),
    (
        {**weight(grad=None, synced=None, updated=None, published=None), "publish": ()},
        GradientUnused, "p: %w", "%dw@6 is left out",
    ),
    (
        weight(synced=None, updated=None, published=None),
        NameUnknown, "p: %w!@8 = all_gather(dp, dim 0) %w!updated  for update", "%w!updated is not there",
    ),
    (
        {
            "backward": (*BACKWARD, replace(Z, results=("twice",))),  # type: ignore[call-arg]
            "locals": {**BODY.locals, "twice": BODY.locals["dy@1"]},
        },
        GradientTwice, "p: %twice = add'(%y, %f; %dz!out0)  {dp=d0}", "operand 0 has its gradient already",
    ),
    (
        {"backward": (replace(FORWARD[0], op="k"), *BACKWARD)},  # type: ignore[call-arg]
        WrongDerivative, f"p: {FIRST}", f"the forward pass computes %h as {FIRST}",
    ),
    (
        {
            "backward": (*BACKWARD, replace(FORWARD[0], results=("k",))),  # type: ignore[call-arg]
            "locals": {**BODY.locals, "k": BODY.locals["h"]},
        },
        WrongDerivative, "p: %k = linear(%x, %w)  {dp=d0}", "it is neither a gradient nor computed in the forward pass",
    ),
    (backward(1, op="z"), WrongDerivative, f"p: {Y}", f"its forward statement is {FORWARD[1]}"),
]  # fmt: skip


def changed(changes: Mapping[str, Any]) -> BodyProgram:
    return replace(BODY, **changes)


def test_what_is_wrong_in_a_body_is_refused_where_it_is() -> None:
    for changes, kind, place, cause in WRONG:
        with pytest.raises(MeshwrightError) as refusal:
            verify_body(changed(changes))
        assert (type(refusal.value), refusal.value.cause) == (kind, cause), changes
        assert refusal.value.place == place or not place


def test_what_is_unusual_in_a_body_is_right() -> None:
    """Computed again before it is read; left to another call; gradients stored as they compute; partial sums added."""
    again: tuple[Statement, ...] = (FORWARD[0], *BACKWARD)
    for changes in (
        {"backward": again},
        {**weight(synced=None, updated=None, published=None), "publish": ()},
        weight(grads=WHOLE),
        zeros("[-, -]+sum(dp)"),
        {"updates": (Update("b", "h"),)},
    ):
        verify_body(changed(changes))


UNLIKE: list[Refusal] = [
    ({"inputs": ("y",)}, WrongOperand, "p, inputs", "y"),
    ({"outputs": ("y",)}, WrongOperand, "p, outputs", "y"),
    ({"params": (FROZEN, WEIGHT)}, WrongOperand, "p, parameters", "f, w"),
    (weight(value="v"), WrongOperand, "p, parameter values", "v, f"),
    ({"forward": FORWARD[:2], "outputs": ("z",)}, OperatorUncovered, "p, %z", "it runs 0 times"),
    ({"forward": (*FORWARD, FORWARD[1])}, OperatorUncovered, "p, %y", "it runs 2 times"),
    (
        forward(1, operands=("x", "h")),
        WrongOperand, "p: %y = mul(%x, %h)  {dp=d0}", "it reads %x, %h, unlike its operator",
    ),
    (
        {"forward": (*FORWARD, replace(FORWARD[0], op="more", results=("more",)))},  # type: ignore[call-arg]
        WrongOperand, "p: %more = linear(%x, %w)  {dp=d0}", "it reads %x, %w, unlike its operator",
    ),
    ({"output_grads": (None,)}, MissingGradient, "p, output %z", "it has no gradient"),
    (backward(1, wanted=(0,)), MissingGradient, "p, %y, operands [1]", "it has no gradient"),
    (backward(0, wanted=(0, 1)), WrongDerivative, "p, %z", "no gradient flows to its operands [1]"),
    ({"backward": BACKWARD[1:]}, MissingGradient, "p, %z, operands [0]", "it has no gradient"),
    ({"input_grads": (None,)}, MissingGradient, "p, input %x", "it has no gradient"),
    (weight(grad=None), MissingGradient, "p, parameter w", "it has no gradient"),
    ({"params": (WEIGHT, replace(FROZEN, grad="dx@5"))}, WrongDerivative, "p, parameter f", "it has a gradient"),
    ({"updates": (Update("b", "h", "mean"),)}, WrongUpdate, "p, updates", "[('b', 'h', 'mean')]"),
    # Of h and of x each rank has two rows of eight floats: 64 bytes.
    ({"kept": (Kept("h", 64),)}, WrongKept, "p, kept %x", "it is not counted"),
    ({"kept": (Kept("x", 64),)}, WrongKept, "p, kept %h", "it is not counted"),
    ({"kept": (Kept("h", 63), Kept("x", 64))}, WrongKept, "p, kept %h", "63 bytes"),
    ({"kept": (Kept("h", 64), Kept("x", 64), Kept("h", 64))}, WrongKept, "p, kept %h", "it is counted twice"),
    ({"kept": (Kept("q", 64), Kept("h", 64), Kept("x", 64))}, WrongKept, "p, kept %q", "nothing reads it"),
]  # fmt: skip


def test_what_a_body_does_unlike_its_graph_is_refused_where_it_is() -> None:
    for changes, kind, place, cause in UNLIKE:
        with pytest.raises(MeshwrightError) as refusal:
            verify_body_meaning(changed(changes), GRAPH)
        assert (type(refusal.value), refusal.value.place, refusal.value.cause) == (kind, place, cause), changes


ASIDE = parse_graph("""graph
  input %x: f32[4, 8] grad
  param %w: f32[8, 8] = "w"
  %h: f32[4, 8] = linear(%x, %w)
  %unread: f32[4, 8] = neg(%h)
  %apart: f32[4, 8] = relu(%h) no_grad
  %z: f32[4, 8] = add(%h, %apart)
  output %z
""")


def test_only_what_leads_to_outputs_is_differentiated() -> None:
    """Not what nobody reads, nor what runs without gradients; and neither may be."""
    body = lower_body(ASIDE, BodyPlan("p", "b"), Mesh.parse("dp=2"), Lowering())
    assert [statement.op for statement in body.backward if isinstance(statement, Gradient)] == ["z", "h"]
    verify_body(body)
    verify_body_meaning(body, ASIDE)
    last = body.backward[0]
    assert isinstance(last, Gradient)
    with pytest.raises(WrongDerivative, match=r"no gradient flows to its operands \[1\]"):
        verify_body_meaning(replace(body, backward=(replace(last, wanted=(0, 1)), *body.backward[1:])), ASIDE)
    for op in ("unread", "apart"):
        more = replace(last, op=op, wanted=(0,))
        with pytest.raises(WrongDerivative, match=f"%{op}: no gradient flows to its operands"):
            verify_body_meaning(replace(body, backward=(*body.backward, more)), ASIDE)
