import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.ir.errors import GraphSyntax, UsedBeforeDefinition
from meshwright.ir.fold import Body, Fold, FromInput, FromPrevious, FromSegment, Segment
from meshwright.ir.graph import Graph, Input, Op, Param, Type, Update
from meshwright.ir.text import fold_text, graph_text, parse_fold, parse_graph
from tests.ir.strategies import any_names, graphs

EXAMPLE = """\
graph
  input  %tokens: i64[2, 8]  (b, s)
  input  %h: f32[2, 8, 8]  (b, s, -) grad
  param  %w: f32[16, 8] = "embed.weight", "head.weight"
  frozen %v: f32[8, 8] = "base.weight"
  buffer %r: f32[] = "norm.mean"
  %x: f32[2, 8, 8] = embedding(%tokens, %w)  @embed <model.py:12>
  %y: f32[2, 8, 8], %i: i64[] = ns::two(%x) {dim=-1, eps=1e-05, name="x", shape=(2,), train=true}  no_grad alias=0
  update "norm.mean" = %i by mean
  output %x, %y
"""


def test_a_graph_reads_and_writes() -> None:
    graph = parse_graph(EXAMPLE)
    assert graph_text(graph) == EXAMPLE
    assert graph.inputs[1] == Input("h", ("b", "s", ""), requires_grad=True)
    assert graph.params[1] == Param("v", ("base.weight",), requires_grad=False)
    assert graph.params[2].buffer
    assert graph.ops[0] == Op("embedding", ("tokens", "w"), ("x",), module="embed", source="model.py:12")
    assert graph.ops[1].attr("shape") == (2,)
    assert graph.ops[1].attr("train") is True
    assert graph.updates == (Update("norm.mean", "i", "mean"),)


@given(graphs())
def test_graphs_round_trip(graph: Graph) -> None:
    text = graph_text(graph)
    assert parse_graph(text) == graph
    assert graph_text(parse_graph(text)) == text, "attributes keep their type: 1 is not true"


@given(graphs())
def test_one_operator_is_one_line(graph: Graph) -> None:
    lines = graph_text(graph).split("\n")
    assert len([line for line in lines if line.startswith("  %")]) == len(graph.ops)


def block(name: str, graph: Graph) -> Fold:
    """A fold that runs one body three times after itself."""
    inputs = tuple((item, graph.types[item.value]) for item in graph.inputs)
    sources = tuple(FromInput(item.value) for item, _ in inputs)
    segment = Segment((name,), ("h.0", "h.1", "h.2"), sources, (sources,))
    outputs = tuple(FromPrevious(index) for index in range(len(graph.outputs)))
    loss = None if graph.loss is None else graph.outputs.index(graph.loss)
    return Fold((Body(name, graph, "Cls"),), (segment,), inputs, outputs, loss)


@given(any_names, graphs())
def test_folds_round_trip(name: str, graph: Graph) -> None:
    fold = block(name, graph)
    assert parse_fold(fold_text(fold)) == fold


@given(st.lists(st.one_of(st.from_regex(r"[a.]{0,2}[0-9]{0,2}", fullmatch=True), any_names), min_size=1, unique=True))
def test_paths_round_trip(paths: list[str]) -> None:
    fold = Fold((Body("b", Graph({}, (), (), (), ())),), (Segment(("b",), tuple(paths), (), ((),)),), (), ())
    assert parse_fold(fold_text(fold)) == fold


def test_a_fold_is_written_as_segments() -> None:
    h = Type((2,), "f32")
    same = Graph({"x": h, "c": h, "y": h}, (Input("x"), Input("c")), (), (Op("f", ("x", "c"), ("y",)),), ("y", "c"))
    fold = Fold(
        (Body("embed", same), Body("layer", same, "DecoderLayer")),
        (
            Segment(("embed",), ("",), (FromInput("t"), FromInput("t")), ((),), glue=True),
            Segment(
                ("layer",),
                tuple(f"layers.{index}" for index in range(126)),
                (FromPrevious(0), FromSegment(0, 0, 1)),
                ((FromPrevious(0), FromSegment(0, 0, 1)),),
            ),
        ),
        ((Input("t"), h),),
        (FromPrevious(0),),
    )
    body = """\
    input  %x: f32[2]
    input  %c: f32[2]
    %y: f32[2] = f(%x, %c)
    output %y, %c
"""
    assert fold_text(fold) == (
        f"fold\n  input  %t: f32[2]\n  body embed\n{body}"
        f'  body layer  class "DecoderLayer"\n{body}'
        '  segment 0 glue embed x 1\n    paths ""\n    entry %t, %t\n    wire 0\n'
        '  segment 1 layer x 126\n    paths "layers."[0..125]\n    entry previous.0, segment 0[0].1\n'
        "    wire 0 previous.0, segment 0[0].1\n  output previous.0\n"
    )


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "line 1, column 1", "'graph'"),
        ("graph\n  input x: f32[2]\n", "line 2, column 9", "a value, such as %x"),
        ("graph\n  input %x f32[2]\n", "line 2, column 12", "':'"),
        ("graph\n  input %x: f32[a]\n", "line 2, column 17", "a number"),
        ("graph\n  input %x: f32[2] grd\n", "line 2, column 20", "nothing more"),
        ('graph\n  param %x: f32[2] = "a\n', "line 2, column 22", "see the grammar"),
        ("graph\n  param %x: f32[2] =\n", "line 2, column 21", "a path"),
        ('graph\n  param %"\\q": f32[2] = "a"\n', "line 2, column 9", "a JSON string"),
        ("graph\n  input %x: f32[2]\n  %y: f32[2] = f(%x {\n", "line 3, column 21", "',' or ')'"),
        ("graph\n  input %x: f32[2]\n  %y: f32[2] = f(%x) {a=b}\n", "line 3, column 25", "an attribute"),
        ("graph\n  inputs %x: f32[2]\n", "line 2, column 3", "a statement"),
        ("graph\n  output %x ?\n", "line 2, column 13", "see the grammar"),
    ],
)
def test_graph_syntax(text: str, place: str, words: str) -> None:
    with pytest.raises(GraphSyntax, match=re.escape(words)) as caught:
        parse_graph(text)
    assert caught.value.place == place


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("graph\n", "line 1, column 1", "'fold'"),
        ("fold\n  body b\n  segment 1 b x 1\n", "line 3, column 11", "0: segments are numbered"),
        ('fold\n  body b\n  segment 0 b x 2\n    paths "a"\n', "line 3, column 17", "every instance"),
        ('fold\n  body b\n  segment 0 b x 1\n    paths "a"\n    entry 3\n', "line 5, column 11", "a source"),
        ('fold\n  body b\n  segment 0 b x 1\n    paths "a"\n    entry\n    wire 1\n', "line 6, column 10", "0: wires"),
        ("fold\n  segments\n", "line 2, column 3", "'output'"),
    ],
)
def test_fold_syntax(text: str, place: str, words: str) -> None:
    with pytest.raises(GraphSyntax, match=re.escape(words)) as caught:
        parse_fold(text)
    assert caught.value.place == place


def test_what_reads_but_means_nothing_is_refused_by_the_graph() -> None:
    with pytest.raises(UsedBeforeDefinition):
        parse_graph("graph\n  output %x\n")


def test_comments_and_blank_lines_are_skipped() -> None:
    assert parse_graph("# a\n\ngraph\n\n  input %x: f32[]  # b\n\n  output %x").outputs == ("x",)
