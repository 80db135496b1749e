import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.ir.errors import FoldBroken, GraphSyntax, UsedBeforeDefinition
from meshwright.ir.graph.fold import Body, Fold, FromInput, FromPrevious, FromSegment, Segment
from meshwright.ir.graph.graph import Graph, Input, Op, Param, Type, Update
from meshwright.ir.graph.text import fold_text, graph_text, parse_fold, parse_graph
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


GRAPH_SYNTAX: list[tuple[str, str, str]] = [
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
]


def test_graph_syntax() -> None:
    for text, place, words in GRAPH_SYNTAX:
        with pytest.raises(GraphSyntax, match=re.escape(words)) as caught:
            parse_graph(text)
        assert caught.value.place == place


FOLD_SYNTAX: list[tuple[str, str, str]] = [
    ("graph\n", "line 1, column 1", "'fold'"),
    ("fold\n  body b\n  segment 1 b x 1\n", "line 3, column 11", "0: segments are numbered"),
    ('fold\n  body b\n  segment 0 b x 2\n    paths "a"\n', "line 3, column 17", "every instance"),
    ('fold\n  body b\n  segment 0 b x 1\n    paths "a"\n    entry 3\n', "line 5, column 11", "a source"),
    ('fold\n  body b\n  segment 0 b x 1\n    paths "a"\n    entry\n    wire 1\n', "line 6, column 10", "0: wires"),
    ("fold\n  segments\n", "line 2, column 3", "'output'"),
]


def test_fold_syntax() -> None:
    for text, place, words in FOLD_SYNTAX:
        with pytest.raises(GraphSyntax, match=re.escape(words)) as caught:
            parse_fold(text)
        assert caught.value.place == place


def test_what_reads_but_means_nothing_is_refused_by_the_graph() -> None:
    with pytest.raises(UsedBeforeDefinition):
        parse_graph("graph\n  output %x\n")


def test_comments_and_blank_lines_are_skipped() -> None:
    assert parse_graph("# a\n\ngraph\n\n  input %x: f32[]  # b\n\n  output %x").outputs == ("x",)


def test_everything_that_the_grammar_of_graphs_has() -> None:
    """Trailing commas, every kind of attribute and of parameter, quoted names; what is left out has its default."""
    text = """graph
  input %x: f32[2,] (a, -,) grad
  input %"x y": i64[]
  param %p: f32[1] = "p", "tied.p",
  frozen %f: f32[1] = "f"
  buffer %b: f32[1] = "b"
  buffer_grad %g: f32[1] = "g"
  %y: f32[2] = "my op"(%x, %"x y",) {a=-inf, b=inf, c=1e5, d=-1.5, e=-3, f=none, g=(), "i j"="\\n",}@"a b"<"c>">
  %z: f32[2] = f() {s=((1,), true), h=false} @m alias=10
  %v: f32[1] = g(%b)
  update "b" = %v
  update "g" = %v by sum
  output %y,
  output %z

"""
    made = parse_graph(text)
    assert made.inputs == (Input("x", ("a", ""), requires_grad=True), Input("x y"))
    assert (made.types["x"], made.types["x y"]) == (Type((2,), "f32"), Type((), "i64"))
    assert made.params == (
        Param("p", ("p", "tied.p"), requires_grad=True, buffer=False),
        Param("f", ("f",), requires_grad=False, buffer=False),
        Param("b", ("b",), requires_grad=False, buffer=True),
        Param("g", ("g",), requires_grad=True, buffer=True),
    )
    attrs = "(('a', -inf), ('b', inf), ('c', 100000.0), ('d', -1.5), ('e', -3), ('f', None), ('g', ()), "
    assert repr(made.ops[0].attrs) == attrs + "('i j', '\\n'))"
    assert made.ops == (
        Op("my op", ("x", "x y"), ("y",), made.ops[0].attrs, "a b", "c>", no_grad=False, alias=None),
        Op("f", (), ("z",), (("s", ((1,), True)), ("h", False)), "m", "", no_grad=False, alias=10),
        Op("g", ("b",), ("v",), (), "", "", no_grad=False, alias=None),
    )
    assert made.updates == (Update("b", "v", "same"), Update("g", "v", "sum"))
    assert (made.outputs, made.loss) == (("y", "z"), None)
    assert parse_graph("graph\n  %l: f32[] = f()\n  output %l\n  loss %l\n").loss == "l"


ONE = "graph\n  input %x: f32[2]\n"
UNREADABLE: dict[str, tuple[str, str, str]] = {
    "graph x": ("line 1, column 7", "found 'x'", "write nothing more on this line"),
    "\n\ngraf": ("line 3, column 1", "found 'graf'", "write 'graph'"),
    "graph\n  input %x: f32[2] (a b)\n": ("line 2, column 23", "found 'b'", "write ',' or ')'"),
    "graph\n  input %x: f32[-2]\n": ("line 2, column 17", "found '-2'", "write a number of at least 0"),
    "graph\n  input %x: f32[1.5]\n": ("line 2, column 17", "found '1.5'", "write a number of at least 0"),
    "graph\n  input %x: 2[2]": ("line 2, column 13", "found '2'", "write a dtype"),
    "graph\n  input %x: f32": ("line 2, column 16", "found the end of the line", "write '['"),
    f"{ONE}  output %x %x\n": ("line 3, column 13", "found '%x'", "write ',' or the end of the line"),
    f"{ONE}  update x = %x\n": ("line 3, column 10", "found 'x'", "write a buffer's path"),
    f"{ONE}  %y: f32[2] = (%x)\n": ("line 3, column 16", "found '('", "write the kind of an operator"),
    f"{ONE}  %y: f32[2] = f(%x) alias=x\n": ("line 3, column 28", "found 'x'", "write the index of an operand"),
    f'{ONE}  %y: f32[2] = f(%x) @"\\q"\n': ("line 3, column 22", "found '@\"\\\\q\"'", "write a JSON string"),
    f"{ONE}  %y: f32[2] = f(%x) {{1=2}}\n": ("line 3, column 23", "found '1'", "write an attribute, such as dim=-1"),
    f"{ONE}  # a comment\n  output\t%x ?": (
        "line 4, column 13",
        "cannot read '?'",
        "see the grammar in meshwright.ir.graph.text",
    ),
    f"{ONE}fold\n": (
        "line 3, column 1",
        "found 'fold'",
        "write a statement of the grammar in meshwright.ir.graph.text",
    ),
}


def test_where_a_text_stops_being_a_graph() -> None:
    """Lines and columns counted by hand, from 1."""
    for text, expected in UNREADABLE.items():
        with pytest.raises(GraphSyntax) as refusal:
            parse_graph(text)
        assert (refusal.value.place, refusal.value.cause, refusal.value.fix) == expected, text


FOLDED = """
fold
  input %x: f32[]

  body a class "A"

    input %x: f32[]
    output %x

  body "b c"
    output

  segment 0 a, "b c" x 2

    paths "m", "n."[9..10], "o",
    entry %x,
    wire 0 segment 0[0].0
    wire 1

  output %x,

  loss 0

"""


def test_everything_that_the_grammar_of_folds_has() -> None:
    """The wire is read as it stands: that a segment may not be its own source is the fold's to say."""
    with pytest.raises(FoldBroken, match=r"no such source: segment 0\[0\]\.0"):
        parse_fold(FOLDED)
    scalar = Type((), "f32")
    whole = parse_fold(FOLDED.replace("segment 0[0].0", "%x"))
    assert whole.bodies == (
        Body("a", Graph({"x": scalar}, (Input("x"),), (), (), ("x",)), "A"),
        Body("b c", Graph({}, (), (), (), ()), ""),
    )
    source = (FromInput("x"),)
    assert whole.segments == (Segment(("a", "b c"), ("m", "n.9", "n.10", "o"), source, (source, ()), glue=False),)
    assert (whole.inputs, whole.outputs, whole.loss) == (((Input("x"), scalar),), source, 0)


UNREADABLE_FOLDS: dict[tuple[str, str], tuple[str, str, str]] = {
    ("segment 0", "segment 1"): ("line 13, column 11", "found '1'", "write 0: segments are numbered in order"),
    ("wire 1", "wire 2"): ("line 18, column 10", "found '2'", "write 1: wires are numbered in order"),
    (" x 2", " x 3"): ("line 13, column 24", "3 repeats, but 4 paths", "name every instance of every repeat"),
    ("[9..10]", "[9.10]"): ("line 15, column 21", "found '9.10'", "write a number of at least 0"),
    ('class "A"', "class A"): ("line 5, column 16", "found 'A'", "write the name of a class"),
    ("entry %x", "entry previous"): (
        "line 16, column 11", "found 'previous'", "write a source: %input, previous.0 or segment 0[0].0",
    ),
    ("wire 0 %x", "wire 0 segment 0[0] 0"): ("line 17, column 25", "found '0'", "write '.'"),
    ("loss 0", "loss %x"): ("line 22, column 8", "found '%x'", "write the index of an output"),
    ("loss 0", "lost 0"): (
        "line 22, column 3", "found 'lost'", "write a statement of the grammar in meshwright.ir.graph.text",
    ),
    ('"m"', "m"): ("line 15, column 11", "found 'm'", "write a module path"),
}  # fmt: skip


def test_where_a_text_stops_being_a_fold() -> None:
    for (right, wrong), expected in UNREADABLE_FOLDS.items():
        with pytest.raises(GraphSyntax) as refusal:
            parse_fold(FOLDED.replace("segment 0[0].0", "%x").replace(right, wrong, 1))
        assert (refusal.value.place, refusal.value.cause, refusal.value.fix) == expected, wrong
