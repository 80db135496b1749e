"""What bodies have to do with each other: parameters that several hold, and values that they hand on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from meshwright.ir.graph.fold import Body, Fold, FromInput, FromPrevious, FromSegment, Segment
from meshwright.planner.refine.operators.interfaces import handed_on, tied
from tests.build import Builder


def test_parameters_that_one_body_holds_alone_are_not_tied() -> None:
    """An embedding that is the head too, and a weight that all blocks share: these are one body."""
    calls = [SimpleNamespace(body=SimpleNamespace(name=name)) for name in ("embed", "block", "block", "head")]
    held = (("w", ((0, "table"), (3, "weight"))), ("shared", ((1, "up"), (2, "up"))), ("both", ((1, "a"), (2, "b"))))
    fold: Any = SimpleNamespace(calls=lambda: iter(calls), tied=held)
    assert tied(fold) == [(("embed", "table"), ("head", "weight")), (("block", "a"), ("block", "b"))]


def test_what_is_handed_on_lies_as_the_first_that_it_must_lie_like() -> None:
    """A block takes what the one before it made, and beside it what the embedding did; the head takes both ends."""
    bodies = []
    for name, inputs in (("embed", ("x",)), ("block", ("h", "e")), ("head", ("a", "b"))):
        g = Builder()
        values = [g.input((4, 8, 16), name=value, labels=("b", "s", ""), requires_grad=True) for value in inputs]
        made = g.op("silu", values[0], name="made") if len(values) == 1 else g.op("add", *values, name="made")
        g.output(made)
        bodies.append(Body(name, g.graph()))
    first = FromSegment(0, 0, 0)
    segments = (
        Segment(("embed",), ("",), (FromInput("x"),), ((FromInput("x"),),), glue=True),
        Segment(("block",), ("l.0", "l.1"), (first, first), ((FromPrevious(0), first),)),
        Segment(("head",), ("",), (FromPrevious(0), first), ((FromPrevious(0), first),), glue=True),
    )
    graph = bodies[0].graph
    fold = Fold(tuple(bodies), segments, ((graph.inputs[0], graph.types["x"]),), (FromPrevious(0),))
    one = ("embed", "made")
    found = handed_on(fold)
    assert found.keys() == {one, *(("block", value) for value in ("h", "e", "made")), ("head", "a"), ("head", "b")}
    # Blocks take as one input what the embedding and what they themselves make: all is one.
    assert len(set(found.values())) == 1


def test_each_value_lies_like_the_output_that_it_is() -> None:
    """The head reads the second of two outputs; what comes from outside, or goes nowhere, is nobody's."""
    g = Builder()
    x = g.input((4, 8, 16), labels=("b", "s", ""), requires_grad=True)
    g.output(g.op("silu", x, name="first"), g.op("neg", x, name="second"))
    h = Builder()
    values = [h.input((4, 8, 16), name=name, labels=("b", "s", ""), requires_grad=True) for name in ("a", "y")]
    h.output(h.op("add", *values, name="made"))
    graph = g.graph()
    sources = (FromPrevious(1), FromInput("x"))
    segments = (
        Segment(("embed",), ("",), (FromInput("x"),), ((FromInput("x"),),), glue=True),
        Segment(("head",), ("",), sources, (sources,), glue=True),
    )
    entering = ((graph.inputs[0], graph.types["x"]),)
    fold = Fold((Body("embed", graph), Body("head", h.graph())), segments, entering, (FromPrevious(0),))
    second = ("embed", "second")
    assert handed_on(fold) == {("head", "a"): second, second: second}
