"""Folds of graphs that are written down, line by line; what does not repeat as its stacks promise, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from meshwright.ir.frontends.folding.assemble import NotFoldable
from meshwright.ir.frontends.folding.segment import fold_trace, names_of, unlike
from meshwright.ir.frontends.folding.stacks import Stack
from meshwright.ir.graph.fold import Fold, FromPrevious, FromSegment
from meshwright.ir.graph.graph import Graph
from meshwright.ir.graph.text import fold_text, parse_fold, parse_graph

HEAD = """%y: f32[4, 4] = linear(%x, %p.head) @head
  %l: f32[] = sum(%y) {dim=(0, 1), keepdim=false}
  output %l
  loss %l"""
FIVE = Stack("blocks", (0,) * 5, (0, 2, 4))


def graph(*lines: str) -> Graph:
    return parse_graph("graph\n" + "".join(f"  {line}\n" for line in lines))


def folded(traced: Graph, *stacks: Stack) -> Fold:
    """Blocks at even positions are of a class `a.Even`, those at odd ones of `a.b.Odd`."""
    paths = [(stack.block(at), at) for stack in stacks for at in range(stack.depth)]
    return fold_trace(traced, stacks, {path: "a.b.Odd" if at % 2 else "a.Even" for path, at in paths})


def same(found: Fold, wanted: str) -> bool:
    assert fold_text(found) == fold_text(parse_fold(wanted))
    return found == parse_fold(wanted)


def block(at: int, given: str, makes: str, kind: str = "relu") -> str:
    product = f"%{makes}.up: f32[4, 4] = linear(%{given}, %p.{at}) @blocks.{at}.up"
    return f"{product}\n  %{makes}: f32[4, 4] = {kind}(%{makes}.up) @blocks.{at}"


def params(*positions: int) -> str:
    return "\n  ".join(f'param %p.{at}: f32[4, 4] = "blocks.{at}.up.weight"' for at in positions)


LOSS = "sum(%linear) {dim=(0, 1), keepdim=false}"
BODY = """
    frozen %none: f32[2] = "none"
    input %in0: f32[4, 4] grad
    param %up.weight: f32[4, 4] = "up.weight"
    %linear: f32[4, 4] = linear(%in0, %up.weight) @up
    %relu: f32[4, 4] = relu(%linear)
    output %relu
"""
LAST = f"""
    input %in0: f32[4, 4] grad
    param %head.weight: f32[4, 4] = "head.weight"
    %linear: f32[4, 4] = linear(%in0, %head.weight) @head
    %sum: f32[] = {LOSS}
    output %sum
"""


def test_three_blocks_stand_for_five() -> None:
    """A parameter that nothing reads stays in its block. Values are called after what makes them."""
    traced = graph(
        "input %tokens: f32[4, 4] (b, s)",
        'param %p.first: f32[4, 4] = "first.weight"',
        *(f'frozen %none.{at}: f32[2] = "blocks.{at}.none"' for at in (0, 2, 4)),
        params(0, 2, 4),
        'param %p.head: f32[4, 4] = "head.weight"',
        "%e: f32[4, 4] = linear(%tokens, %p.first) @first",
        block(0, "e", "a"),
        block(2, "a", "b"),
        block(4, "b", "x"),
        HEAD,
    )
    assert same(
        folded(traced, FIVE),
        f"""fold
  input %tokens: f32[4, 4] (b, s)
  body embed
    input %in0: f32[4, 4] (b, s)
    param %first.weight: f32[4, 4] = "first.weight"
    %linear: f32[4, 4] = linear(%in0, %first.weight) @first
    output %linear
  body Even class "a.Even" {BODY}
  body head {LAST}
  segment 0 glue embed x 1
    paths ""
    entry %tokens
    wire 0 %tokens
  segment 1 Even x 5
    paths "blocks."[0..4]
    entry previous.0
    wire 0 previous.0
  segment 2 glue head x 1
    paths ""
    entry previous.0
    wire 0 previous.0
  output previous.0
  loss 0
""",
    )


def test_blocks_by_turns() -> None:
    """Of six, of two classes, four were walked; each is written out like its like."""
    traced = graph(
        "input %tokens: f32[4, 4] grad",
        params(0, 1, 4, 5),
        'param %p.head: f32[4, 4] = "head.weight"',
        "%e: f32[4, 4] = neg(%tokens)",
        block(0, "e", "a"),
        block(1, "a", "b", "silu"),
        block(4, "b", "c"),
        block(5, "c", "x", "silu"),
        HEAD,
    )
    found = folded(traced, Stack("blocks", (0, 1) * 3, (0, 1, 4, 5)))
    assert [(one.period, one.paths, one.glue) for one in found.segments] == [
        (("embed",), ("",), True),
        (("Even", "Odd"), tuple(f"blocks.{at}" for at in range(6)), False),
        (("head",), ("",), True),
    ]
    assert [body.module_class for body in found.bodies] == ["", "a.Even", "a.b.Odd", ""]


def test_what_all_blocks_read_comes_from_before_them() -> None:
    """From the call before it is for the first of them, from the first segment for all others. Outputs of a body are in
    the order in which they are made; what nobody else reads is none."""
    traced = graph(
        "input %tokens: f32[4, 4]",
        "input %more: f32[4, 4] (-, s)",
        *("%table: f32[4, 4] = sin(%tokens)", "%e: f32[4, 4] = neg(%tokens)", "%unused: f32[4, 4] = abs(%e)"),
        *(
            line
            for at, given, makes in ((0, "e", "a"), (2, "a", "b"), (4, "b", "c"))
            for line in (
                f"%{makes}.1: f32[4, 4] = add(%{given}, %table) @blocks.{at}.in",
                f"%{makes}: f32[4, 4] = add(%{makes}.1, %more) @blocks.{at}",
            )
        ),
        "%y: f32[4, 4] = add(%c, %table)",
        "output %y",
    )
    assert same(
        folded(traced, FIVE),
        """fold
  input %tokens: f32[4, 4]
  input %more: f32[4, 4] (-, s)
  body embed
    input %in0: f32[4, 4]
    %sin: f32[4, 4] = sin(%in0)
    %neg: f32[4, 4] = neg(%in0)
    %abs: f32[4, 4] = abs(%neg)
    output %sin, %neg
  body Even class "a.Even"
    input %in0: f32[4, 4]
    input %in1: f32[4, 4]
    input %in2: f32[4, 4] (-, s)
    %add: f32[4, 4] = add(%in0, %in1) @in
    %add_2: f32[4, 4] = add(%add, %in2)
    output %add_2
  body head
    input %in0: f32[4, 4]
    input %in1: f32[4, 4]
    %add: f32[4, 4] = add(%in0, %in1)
    output %add
  segment 0 glue embed x 1
    paths ""
    entry %tokens
    wire 0 %tokens
  segment 1 Even x 5
    paths "blocks."[0..4]
    entry previous.1, previous.0, %more
    wire 0 previous.0, segment 0[0].0, %more
  segment 2 glue head x 1
    paths ""
    entry previous.0, segment 0[0].0
    wire 0 previous.0, segment 0[0].0
  output previous.0
""",
    )


def test_what_blocks_share_and_what_they_update() -> None:
    """A parameter that several read enters through the opening glue; a buffer of a block's stays in it, and so does a
    parameter with two names inside it. Glue between two blocks is of the second. Several results are numbered."""
    traced = graph(
        "input %tokens: f32[4, 4]",
        'param %p.shared: f32[4] = "blocks.0.scale", "blocks.1.scale"',
        *(f'buffer %p.{at}: f32[4] = "blocks.{at}.seen"' for at in (0, 1)),
        *(f'param %w.{at}: f32[4, 4] = "blocks.{at}.a", "blocks.{at}.b"' for at in (0, 1)),
        "%a: f32[4, 4] = mul(%tokens, %p.shared) @blocks.0",
        "%b: f32[2, 4], %c: f32[2, 4] = split(%a) {dim=0, sizes=(2, 2)} @blocks.0",
        "%n: f32[4] = add(%p.0, %p.0) @blocks.0",
        "%d: f32[4, 4] = matmul(%a, %w.0) @blocks.0",
        "%between: f32[4, 4] = neg(%d)",
        "%e: f32[4, 4] = mul(%between, %p.shared) @blocks.1",
        "%n1: f32[4] = add(%p.1, %p.1) @blocks.1",
        "%f: f32[4, 4] = matmul(%e, %w.1) @blocks.1",
        'update "blocks.0.seen" = %n by mean',
        'update "blocks.1.seen" = %n1 by mean',
        "%y: f32[4, 4] = neg(%f)",
        "output %y",
    )
    found = folded(traced, Stack("blocks", (0, 1), (0, 1)))
    assert same(
        found,
        """fold
  input %tokens: f32[4, 4]
  body embed
    param %blocks.0.scale: f32[4] = "blocks.0.scale", "blocks.1.scale"
    output %blocks.0.scale
  body Even class "a.Even"
    input %in0: f32[4, 4]
    input %in1: f32[4] grad
    buffer %seen: f32[4] = "seen"
    param %a: f32[4, 4] = "a", "b"
    %mul: f32[4, 4] = mul(%in0, %in1)
    %split.0: f32[2, 4], %split.1: f32[2, 4] = split(%mul) {dim=0, sizes=(2, 2)}
    %add: f32[4] = add(%seen, %seen)
    %matmul: f32[4, 4] = matmul(%mul, %a)
    update "seen" = %add by mean
    output %matmul
  body Odd class "a.b.Odd"
    input %in0: f32[4, 4] grad
    input %in1: f32[4] grad
    buffer %seen: f32[4] = "seen"
    param %a: f32[4, 4] = "a", "b"
    %neg: f32[4, 4] = neg(%in0)
    %mul: f32[4, 4] = mul(%neg, %in1)
    %add: f32[4] = add(%seen, %seen)
    %matmul: f32[4, 4] = matmul(%mul, %a)
    update "seen" = %add by mean
    output %matmul
  body head
    input %in0: f32[4, 4] grad
    %neg: f32[4, 4] = neg(%in0)
    output %neg
  segment 0 glue embed x 1
    paths ""
    entry
    wire 0
  segment 1 Even x 1
    paths "blocks.0"
    entry %tokens, previous.0
    wire 0 %tokens, previous.0
  segment 2 Odd x 1
    paths "blocks.1"
    entry previous.0, segment 0[0].0
    wire 0 previous.0, segment 0[0].0
  segment 3 glue head x 1
    paths ""
    entry previous.0
    wire 0 previous.0
  output previous.0
""",
    )


def chain(*calls: tuple[int, str, str], more: Sequence[str] = (), output: str = "y") -> Graph:
    """Blocks of one operator: position, what it reads, what it makes; then the head."""
    lines = [f"%{makes}: f32[4] = relu(%{given}) @blocks.{at}" for at, given, makes in calls]
    last = calls[-1][2]
    return graph(
        "input %x: f32[4]", "%e: f32[4] = neg(%x)", *lines, *more, f"%y: f32[4] = neg(%{last})", f"output %{output}"
    )


REFUSED: dict[str, tuple[Graph, list[Stack], str]] = {
    "a block twice": (
        chain((0, "e", "a"), (2, "a", "b"), (0, "b", "c")),
        [FIVE],
        "blocks.0 is entered twice",
    ),
    "another order": (
        chain((0, "e", "a"), (4, "a", "b"), (2, "b", "c")),
        [FIVE],
        "the blocks of blocks do not run one after another",
    ),
    "one is missing": (
        chain((0, "e", "a"), (2, "a", "b")),
        [FIVE],
        "the blocks of blocks do not run one after another",
    ),
    "others between": (
        graph(
            "input %x: f32[4]",
            "%e: f32[4] = neg(%x)",
            *(
                f"%{makes}: f32[4] = relu(%{given}) @{path}"
                for path, given, makes in (
                    ("blocks.0", "e", "a"),
                    ("more.0", "a", "b"),
                    ("blocks.2", "b", "c"),
                    ("more.1", "c", "d"),
                    ("blocks.4", "d", "f"),
                )
            ),
            "%y: f32[4] = neg(%f)",
            "output %y",
        ),
        [FIVE, Stack("more", (0, 0), (0, 1))],
        "other blocks run between those of blocks",
    ),
    "something else": (
        graph(
            "input %x: f32[4]",
            "%e: f32[4] = neg(%x)",
            "%a: f32[4] = relu(%e) @blocks.0",
            "%b: f32[4] = relu(%a) @blocks.2",
            "%c: f32[4] = silu(%b) @blocks.4",
            "%y: f32[4] = neg(%c)",
            "output %y",
        ),
        [FIVE],
        "blocks.2 and blocks.4 look alike but compute different things",
    ),
    "something else read": (
        chain((0, "e", "a"), (2, "a", "b"), (4, "e", "c")),
        [FIVE],
        "blocks.2 and blocks.4 look alike but compute different things",
    ),
    "a value from amid repeated blocks": (
        chain((0, "e", "a"), (2, "a", "b"), (4, "b", "c"), more=["%z: f32[4] = neg(%a)"]),
        [FIVE],
        "a value of blocks.0 skips over blocks that are traced for others",
    ),
    "an early output": (
        chain((0, "e", "a"), (2, "a", "b"), (4, "b", "c"), output="e, %y"),
        [FIVE],
        "an output of the model is computed before its last glue",
    ),
}


def test_what_does_not_repeat_as_promised() -> None:
    for name, (traced, stacks, reason) in REFUSED.items():
        with pytest.raises(NotFoldable) as caught:
            folded(traced, *stacks)
        assert str(caught.value) == reason, name


def sums(positions: Sequence[int], changed: Mapping[int, str] | None = None) -> Graph:
    """Blocks of which each adds what the one before made to what that was given, and multiplies by a table: `s` is the
    sum in a block, `r` what it makes. The first makes of what comes into it alone. Some are changed."""
    lines = [f"%r0: f32[4] = relu(%e) @blocks.{positions[0]}"]
    given = "%e"
    for at, position in enumerate(positions[1:], 1):
        usual = f"%s{at}: f32[4] = add({given}, %r{at - 1}) @blocks.{position}"
        product = f"%r{at}: f32[4] = mul(%s{at}, %t) @blocks.{position}"
        line = f"{usual}\n  {product}"
        for old, new in [one.split(" to ") for one in (changed or {}).get(at, "").split("; ") if one]:
            assert old in line
            line = line.replace(old, new)
        lines.append(line)
        given = f"%s{at}"
    made = ("%e: f32[4] = neg(%x)", "%t: f32[4] = sin(%x)", "%u: f32[4] = cos(%x)")
    last = f"%y: f32[4] = add({given}, %r{len(positions) - 1})"
    return graph("input %x: f32[4]", *made, *lines, last, "%z: f32[4] = add(%y, %u)", "output %z")


SEVEN = Stack("blocks", (0,) * 7, (0, 1, 2, 5, 6))


def test_the_second_block_may_read_what_came_into_the_first() -> None:
    """Where all later ones read the sum of the one before them. The table that all of them read is no difference."""
    found = folded(sums(SEVEN.walk), SEVEN)
    table, previous = FromSegment(0, 0, 1), FromPrevious
    assert [(one.paths, one.entry, one.wires) for one in found.segments if not one.glue] == [
        (("blocks.0",), (previous(0),), ((previous(0),),)),
        (
            tuple(f"blocks.{at}" for at in range(1, 7)),
            (FromSegment(0, 0, 0), previous(0), table),
            ((previous(0), previous(1), table),),
        ),
    ]


TURNS, LATER = Stack("blocks", (0, 1) * 4, (0, 1, 2, 3, 4, 5)), Stack("blocks", (0, 0, 1, 1, 1, 1, 1), tuple(range(6)))
SECOND: dict[str, tuple[Graph, Stack, str]] = {
    "too few agree": (sums((0, 1, 2, 6)), Stack("blocks", (0,) * 7, (0, 1, 2, 6)), "blocks.1 and blocks.2"),
    "it computes something else": (sums(SEVEN.walk, {1: "add to sub"}), SEVEN, "blocks.1 and blocks.2"),
    "it reads another table": (sums(SEVEN.walk, {1: "%t to %u"}), SEVEN, "blocks.1 and blocks.2"),
    "it is of another class than the first": (sums(TURNS.walk), TURNS, "blocks.1 and blocks.3"),
    "it is not the second": (sums(LATER.walk, {3: "(%s2 to (%e"}), LATER, "blocks.3 and blocks.4"),
    "the third differs, too": (sums(SEVEN.walk, {2: "(%s1 to (%e"}), SEVEN, "blocks.2 and blocks.5"),
}


def test_nothing_else_may_differ_of_the_second() -> None:
    for name, (traced, stack, who) in SECOND.items():
        with pytest.raises(NotFoldable) as caught:
            folded(traced, stack)
        assert str(caught.value) == f"{who} look alike but compute different things", name


@pytest.mark.parametrize(
    ("reads", "depth", "spans"),
    [
        ("previous", 4, [(1, 4)]),
        ("first", 4, [(1, 1), (1, 3)]),
    ],
)
def test_stacks_that_are_walked_whole_repeat(reads: str, depth: int, spans: list[tuple[int, int]]) -> None:
    """Each reads the one before, and maybe what came into the first: that one reads one value, the others two."""
    calls = [(at, f"v{at}", f"v{at + 1}") for at in range(depth)]
    lines = [
        f"%{makes}: f32[4] = add(%{given}, %{'v0' if reads == 'first' else given}) @blocks.{at}"
        for at, given, makes in calls
    ]
    traced = graph("input %x: f32[4]", "%v0: f32[4] = neg(%x)", *lines, f"%y: f32[4] = neg(%v{depth})", "output %y")
    stack = Stack("blocks", (0,) * depth, tuple(range(depth)))
    found = [(len(one.period), one.repeats) for one in folded(traced, stack).segments if not one.glue]
    assert found == spans


def test_paths_of_a_reduced_model_in_the_whole_one() -> None:
    names = names_of([Stack("a.b", (0,) * 30, (0, 3, 29)), Stack("c", (0, 1), (0, 1))])
    reduced = ("a.b.0.up", "a.b.1", "a.b.2.up.1", "a.b", "a.b.more", "a.b.1x", "axb.1", "c.1.a.b.2", "head", "z.a.b.1")
    assert [names.path(one) for one in reduced] == [
        *("a.b.0.up", "a.b.3", "a.b.29.up.1", "a.b", "a.b.more", "a.b.1x", "axb.1", "c.1.a.b.2", "head", "z.a.b.1"),
    ]
    whole = ("a.b.29.up", "a.b.3", "a.b", "c.1.x", "c.10", "head", "z.a.b.1", "a.b.3.c.1")
    assert [names.room(one) for one in whole] == ["a.b.29", "a.b.3", "", "c.1", "c.10", "", "", "a.b.3"]


PLAIN = (
    "input %x: f32[4]",
    "input %z: f32[4]",
    'param %p: f32[4] = "w"',
    'buffer %b: f32[4] = "seen"',
    "%a: f32[4] = add(%x, %p) @one",
    "%c: f32[4] = mul(%a, %b) @two",
    'update "seen" = %a by mean',
    "output %c, %a",
)


DIFFERENCES: list[tuple[int, str, str]] = [
    (4, "%other: f32[4] = add(%x, %p) @one", ""),
    (2, 'param %p: f32[4] = "v"', "parameter w"),
    (4, "%a: f32[4] = sub(%x, %p) @one", "add in one"),
    (4, "%a: f32[4] = add(%x, %p) @three", "add in one"),
    (4, "%a: f32[4] = add(%z, %p) @one", "add in one"),
    (5, "%c: f32[4] = mul(%a, %p) @two", "mul in two"),
    (5, "%c: f32[4] = mul(%a, %b) @two\n  %d: f32[4] = neg(%c)", "2 operators, not 3"),
    (6, 'update "seen" = %c by mean', "the buffer updates"),
    (6, 'update "seen" = %a', "the buffer updates"),
    (7, "output %a, %c", "the outputs"),
    (7, "output %c", "the outputs"),
]


def test_how_graphs_differ() -> None:
    """Names of values aside."""
    for at, line, difference in DIFFERENCES:
        changed = [line if number == at else one for number, one in enumerate(PLAIN)]
        if at == 4 and not difference:
            changed = [one.replace("%a", "%other") for one in changed]
        assert unlike(graph(*PLAIN), graph(*changed)) == difference, line


def test_types_differ() -> None:
    plain = graph("input %x: f32[4]", "%a: f32[4] = neg(%x) @one", "output %a")
    other = replace_type(plain, "a")
    assert unlike(plain, other) == "a type in one"


def replace_type(one: Graph, value: str) -> Graph:
    return replace(one, types={**one.types, value: replace(one.types[value], dtype="bf16")})


@pytest.mark.parametrize(
    ("read", "repeats"),
    [((), [3]), (("a",), [1, 2]), (("b",), [2, 1]), (("c",), [3]), (("a", "b"), [1, 1, 1]), (("a", "c"), [1, 2])],
)
def test_a_block_that_is_read_later_ends_its_segment(read: tuple[str, ...], repeats: list[int]) -> None:
    """Where all blocks are traced: it is known which they are."""
    more = [f"%z{at}: f32[4] = neg(%{value})" for at, value in enumerate(read)]
    traced = chain((0, "e", "a"), (1, "a", "b"), (2, "b", "c"), more=more)
    fold = folded(traced, Stack("blocks", (0, 0, 0), (0, 1, 2)))
    assert [len(one.paths) for one in fold.segments if not one.glue] == repeats


def test_blocks_of_two_lists_are_two_segments() -> None:
    """Also where they are alike and follow each other: a loop goes over one list."""
    pairs = [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2)]
    lines = [f"%v{n + 1}: f32[4] = relu(%v{n}) @{name}.{at}" for n, (name, at) in enumerate(pairs)]
    traced = graph("input %x: f32[4]", "%v0: f32[4] = neg(%x)", *lines, "%y: f32[4] = neg(%v5)", "output %y")
    stacks = (Stack("a", (0, 0), (0, 1)), Stack("b", (0, 0, 0), (0, 1, 2)))
    found = [one.paths for one in folded(traced, *stacks).segments if not one.glue]
    assert found == [("a.0", "a.1"), ("b.0", "b.1", "b.2")]
