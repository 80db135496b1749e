"""Calls of operators as attributes: read, written as Python, and kept by the text of a graph."""

from __future__ import annotations

from math import inf

from meshwright.ir.graph.graph import Attr, Graph, Input, Op, Type
from meshwright.ir.graph.invocation import APPLY, DATA, TENSOR, arguments, filled, plain, written
from meshwright.ir.graph.text import graph_text, parse_graph

CALL: Attr = (
    ("", ("list", ("tensor", 1), None, ("tensor", 0))),
    ("", -1),
    ("", True),
    ("", -inf),
    ("", ("nan",)),
    ("", ("list",)),
    ("mode", ("text", "it's")),
    ("dtype", ("dtype", "bf16")),
    ("device", ("device",)),
    ("memory_format", ("torch", "contiguous_format")),
)


def test_a_call_is_written_as_python() -> None:
    assert written("mine::odd", "default", CALL, ("x", "y"), device="device") == (
        'torch.ops.mine.odd.default([y, None, x], -1, True, float("-inf"), float("nan"), [], mode="it\'s", '
        "dtype=torch.bfloat16, device=device, memory_format=torch.contiguous_format)"
    )


def test_what_would_be_overwritten_is_copied() -> None:
    call = (("", ("tensor", 0)), ("", 0.5))
    assert written("aten::bernoulli_", "float", call, ("x",)) == "torch.ops.aten.bernoulli_.float(x.clone(), 0.5)"


def test_numbers_that_are_none_are_kept() -> None:
    assert list(arguments(None)) == []
    assert (plain(float("nan")), plain(inf), plain(None), plain(2)) == (("nan",), inf, None, 2)
    assert filled(("list", 1, ("tensor", 0)), lambda what, held: (what, held), tuple) == (("", 1), ("tensor", 0))


def test_the_text_of_a_graph_keeps_it() -> None:
    op = Op("opaque", ("x",), ("y",), (("target", "a::b"), ("call", CALL), ("types", ("f32[2]",))))
    graph = Graph({"x": Type((2,), "f32"), "y": Type((2,), "f32")}, (Input("x"),), (), (op,), ("y",))
    assert parse_graph(graph_text(graph)) == graph


def test_a_class_is_applied_by_the_name_of_its_module() -> None:
    call: Attr = (("", (TENSOR, 0)), ("", (DATA, "{'by': 0.5}")))
    made = "import_module(\"my.model\").Outer.Reversed.apply(x, {'by': 0.5})"
    assert written("my.model::Outer.Reversed", APPLY, call, ("x",)) == made
