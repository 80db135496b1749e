"""Stages as code: what enters and leaves them, what they hold, and the lines of their forward passes, of a small Llama
whose lines are written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.backends.torch_.emit import Subject
from meshwright.backends.torch_.emit.pipeline import Pipeline
from meshwright.backends.torch_.emit.stage_code import Around, StageCode, Writer
from meshwright.backends.torch_.emit.subject import Instances, Stack
from meshwright.ir.errors import EmissionSchedule
from meshwright.ir.graph import Type
from meshwright.ir.route import CALLED, DEVICE, ROWS, Line
from tests.backends.torch_.small import parts_of, subject

TWO = {"pp": 2, "microbatches": 2, "schedule": "gpipe"}


def stages(plan: Subject) -> tuple[StageCode, ...]:
    return pipeline(plan).stages


def pipeline(plan: Subject) -> Pipeline:
    found = parts_of(plan).pipeline
    assert found is not None
    return found


def text(stage: StageCode) -> str:
    """Its lines but for the first one, one indent less."""
    return "\n".join(line.removeprefix("    ") for line in stage.lines[1:])


def test_two_stages_of_one_block_each() -> None:
    first, second = stages(subject(**TWO))
    assert first.lines == (
        "def forward(self, tokens: Tensor) -> Tensor:",
        '    x = self.get_submodule("embed")(tokens)',
        '    return self.get_submodule("layers.0")(x)',
    )
    assert second.lines == (
        "def forward(self, x: Tensor) -> Tensor:",
        '    x = self.get_submodule("layers.1")(x)',
        '    h3 = self.get_submodule("norm")(x)',
        '    result: Tensor = self.get_submodule("head")(h3)',
        "    return result",
    )
    assert (first.index, first.blocks, first.beside, first.ahead) == (0, ("layers.0",), ("embed",), 1)
    assert (second.index, second.blocks, second.beside, second.ahead) == (1, ("layers.1",), ("norm", "head"), 0)
    assert (first.enters, first.holds, second.leaves, second.holds) == ((), (), (), ())
    (left,), (entered,) = first.leaves, second.enters
    assert left == entered
    assert (left.name, str(left.type), left.differentiable, left.cut) == ("h1", "f32[4, 16, 32]", True, ())


def test_blocks_of_a_stage_are_a_loop() -> None:
    """Where a stage has one alone, it is called."""
    first, second = stages(subject(layers=4, **TWO, stage_blocks=(3, 1)))
    assert text(first) == (
        'x = self.get_submodule("embed")(tokens)\n'
        "for index in BLOCKS[self.index]:\n"
        '    x = self.get_submodule(f"layers.{index}")(x)\n'
        "return x"
    )
    assert (first.blocks, second.blocks) == (("layers.0", "layers.1", "layers.2"), ("layers.3",))
    assert text(second).splitlines()[0] == 'x = self.get_submodule("layers.3")(x)'


def test_ends_without_blocks() -> None:
    """The table alone, and the head alone."""
    plan = subject(pp=2, vp=2, microbatches=2, schedule="1f1b", stage_blocks=(0, 1, 1, 0))
    one, _, _, last = stages(plan)
    assert (one.blocks, one.beside, one.ahead, text(one)) == (
        (),
        ("embed",),
        1,
        'return self.get_submodule("embed")(tokens)',
    )
    assert (last.blocks, last.beside, last.ahead) == ((), ("norm", "head"), 2)
    found = pipeline(plan)
    assert found.held == ((0, 2), (1, 3))
    assert [found.stage_of(piece) for piece in plan.pieces if not piece.repeated] == [0, 3]
    assert (found.tied, found.twice, found.late) == ((), (), ())


def test_shards_are_sent() -> None:
    for degrees in [{"tp": 2, "sequence_parallel": True}, {"cp": 2}]:
        (axis, *_) = degrees
        first, second = stages(subject(**TWO, **degrees))
        assert second.lines[0] == "def forward(self, x: Any) -> Tensor:", degrees
        assert second.lines[1] == f'    x = DTensor.from_local(x, self.mesh["{axis}"], [Shard(1)])', degrees
        assert first.lines[-1] == "    return x.to_local()", degrees
        assert [one.cut for one in (*first.leaves, *second.enters)] == [((axis, 1),)] * 2, degrees
        assert ("DTensor.from_local(tokens" in text(first)) == (axis == "cp"), degrees


def test_shards_of_what_enters_are_no_views_where_gradients_of_weights_are_apart() -> None:
    degrees = {"pp": 4, "tp": 2, "sequence_parallel": True, "microbatches": 4, "schedule": "zb-h1"}
    first, second, *_ = stages(subject(layers=4, **degrees))
    assert first.lines[-1] == "    return x.to_local()"
    assert second.lines[-1] == "    return x.to_local().clone()  # no view: torch detaches it in place"


def test_copies_over_a_tensor_axis_are_sent_as_they_are() -> None:
    first, second = stages(subject(**TWO, tp=2))
    assert (first.leaves[0].cut, second.lines[0]) == ((), "def forward(self, x: Tensor) -> Tensor:")


def with_lines(
    plan: Subject,
    lines: Sequence[Line],
    *,
    shapes: Sequence[tuple[str, str, tuple[int, ...]]] = (),
    entries: tuple[str, ...] = ("tokens",),
    **more: Any,
) -> Subject:
    """The plan, of a model with this forward pass."""
    before = {name: (name, dtype, shape) for name, dtype, shape in plan.calls.route.shapes}
    before |= {name: (name, dtype, shape) for name, dtype, shape in shapes}
    route = replace(plan.calls.route, lines=tuple(lines), shapes=tuple(before.values()), **more)
    return replace(plan, calls=replace(plan.calls, route=route, entries=entries))


def line(makes: str, expression: str, *reads: str, module: str = "", holds: tuple[str, ...] = ()) -> Line:
    return Line(makes=(makes,), expression=expression, reads=reads, module=module, holds=holds)


def called(makes: str, module: str, *reads: str) -> Line:
    given = ", ".join(f"%{name}" for name in reads)
    return line(makes, f'{CALLED}.get_submodule("{module}")({given})', *reads, module=module)


X = ("f32", (4, 16, 32))
EMBED, ONE, TWO_, NORM, HEAD = (
    called("h0", "embed", "tokens"),
    called("h1", "layers.0", "h0"),
    called("h2", "layers.1", "h1"),
    called("h3", "norm", "h2"),
    called("h4", "head", "h3"),
)


def test_what_depends_on_no_parameter_is_made_again() -> None:
    """A table of positions, of the length of what enters, on its device; what is made of it alone stands in its
    place."""
    lines = (
        EMBED,
        line("p", f"torch.arange(%h0.shape[1], device={DEVICE})", "h0"),
        line("c", "%p.cos()", "p"),
        called("h1", "layers.0", "h0", "c"),
        called("h2", "layers.1", "h1", "c"),
        NORM,
        HEAD,
    )
    shapes = [("p", "i64", (16,)), ("c", "f32", (16,))]
    first, second = stages(with_lines(subject(**TWO), lines, shapes=shapes))
    assert text(first) == (
        'x = self.get_submodule("embed")(tokens)\n'
        "c = torch.arange(x.shape[1], device=tokens.device).cos()\n"
        'return self.get_submodule("layers.0")(x, c)'
    )
    assert text(second).splitlines()[:2] == [
        "c = torch.arange(x.shape[1], device=x.device).cos()",
        'x = self.get_submodule("layers.1")(x, c)',
    ]
    assert (second.beside, second.holds) == (("norm", "head"), ())


TAIL: dict[str, tuple[Sequence[Line], str]] = {
    "a sum in a product": (
        (line("t", "%h2 + 1", "h2"), line("u", "%t * 2", "t")),
        "u = (x + 1) * 2",
    ),
    "a sum alone in a call": (
        (line("t", "%h2 + 1", "h2"), line("u", "torch.relu(%t)", "t")),
        "u = torch.relu(x + 1)",
    ),
    "a sum behind another argument, and by name": (
        (line("t", "%h2 + 1", "h2"), line("v", "-%h2", "h2"), line("u", "f(2, %t, y=%v)", "t", "v")),
        "u = f(2, x + 1, y=-x)",
    ),
    "a sign before a method": (
        (line("t", "-%h2", "h2"), line("u", "%t.abs()", "t")),
        "u = (-x).abs()",
    ),
    "a call before a method": (
        (line("t", "f(%h2, [1, 2])", "h2"), line("u", "%t.abs()", "t")),
        "u = f(x, [1, 2]).abs()",
    ),
    "what is read twice by one line": (
        (line("t", "%h2 + 1", "h2"), line("u", "%t * %t", "t")),
        "t = x + 1\nu = t * t",
    ),
    "what is read by two": (
        (line("t", "%h2 + 1", "h2"), line("v", "%t * 2", "t"), line("u", "f(%v, %t)", "v", "t")),
        "t = x + 1\nu = f(t * 2, t)",
    ),
    "what nobody reads": ((line("t", "%h2 + 1", "h2"), line("u", "%h2 * 2", "h2")), "u = x * 2"),
    "what would be too long": (
        (line("t", f"f(%h2, '{'y' * 90}')", "h2"), line("u", "%t.abs().abs()", "t")),
        f"t = f(x, '{'y' * 90}')\nu = t.abs().abs()",
    ),
    "rows of a micro-batch": ((line("u", f"%h2.view({ROWS % 3}, -1)", "h2"),), "u = x.view(12, -1)"),
}


def test_what_is_read_once_stands_where_it_is_read() -> None:
    """Behind the blocks; of eight sequences in two micro-batches, four are rows of one."""
    for what, (lines, expected) in TAIL.items():
        tail = (called("h3", "norm", "u"), HEAD)
        shapes = [(name, *X) for name in "tuv"]
        (_, second) = stages(with_lines(subject(**TWO), (EMBED, ONE, TWO_, *lines, *tail), shapes=shapes))
        blocks, rest = text(second).split("\n", 1)
        assert blocks == 'x = self.get_submodule("layers.1")(x)', what
        assert rest.partition('\nh3 = self.get_submodule("norm")(u)')[0] == expected, what


def test_a_line_as_wide_as_it_may_be_is_put_into_another() -> None:
    """110 letters, with marks before names."""
    for width, inlined in ((110, True), (111, False)):
        long = "y" * (width - len("f(%h2, '').abs()"))
        lines = (line("t", f"f(%h2, '{long}')", "h2"), line("u", "%t.abs()", "t"))
        tail = (called("h3", "norm", "u"), HEAD)
        shapes = [(name, *X) for name in "tu"]
        (_, second) = stages(with_lines(subject(**TWO), (EMBED, ONE, TWO_, *lines, *tail), shapes=shapes))
        assert ("t = " not in text(second)) == inlined


def test_rows_are_those_of_one_rank() -> None:
    lines = (EMBED, ONE, TWO_, line("u", f"%h2.view({ROWS % 3}, -1)", "h2"), called("h3", "norm", "u"), HEAD)
    (_, second) = stages(with_lines(subject(**TWO, dp=2), lines, shapes=[("u", *X)]))
    assert "u = x.view(6, -1)" in text(second)


def test_values_that_are_needed_at_once_have_names_of_their_own() -> None:
    """What is read again behind the blocks is no value that goes on."""
    lines = (EMBED, ONE, TWO_, line("u", "%h1 + %h2", "h1", "h2"), called("h3", "norm", "u"), HEAD)
    (_, second) = stages(with_lines(subject(**TWO), lines, shapes=[("u", *X)]))
    assert second.lines[:3] == (
        "def forward(self, h1: Tensor) -> Tensor:",
        '    h2 = self.get_submodule("layers.1")(h1)',
        "    u = h1 + h2",
    )


def test_a_parameter_that_is_read_by_itself_is_held() -> None:
    """Where gradients of weights are computed apart, it lies behind what enters."""
    scaled = line("s", f"{CALLED}.scale * 2", holds=("scale",))
    lines = (EMBED, ONE, TWO_, scaled, line("u", "%h2 * %s", "h2", "s"), called("h3", "norm", "u"), HEAD)
    shapes = [("s", "f32", (32,)), ("u", *X)]
    for schedule, apart in (("gpipe", False), ("zb-h1", True)):
        (_, second) = stages(with_lines(subject(**{**TWO, "schedule": schedule}), lines, shapes=shapes))
        assert second.holds == ("scale",)
        assert second.beside == ("norm", "head")
        block, *made = text(second).split("\n")[apart:4]
        assert block == 'x = self.get_submodule("layers.1")(x)'
        follows = ["s = self.scale * 2", "s = Following.apply(s, entered)"]
        assert made == (
            follows if apart else ["u = x * (self.scale * 2)", 'h3 = self.get_submodule("norm")(u)', made[-1]]
        )
        assert (text(second).split("\n")[0] == "entered = x") == apart


def test_entries_that_later_stages_read_are_given_to_all() -> None:
    lines = (EMBED, ONE, called("h2", "layers.1", "h1", "mask"), NORM, HEAD)
    plan = with_lines(subject(**TWO), lines, shapes=[("mask", "bool", (4, 16))], entries=("tokens", "mask"))
    first, second = stages(plan)
    assert first.lines[0] == "def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:"
    assert second.lines[0] == "def forward(self, x: Tensor, mask: Tensor) -> Tensor:"
    assert 'self.get_submodule("layers.1")(x, mask)' in text(second)
    assert pipeline(plan).late == ("mask",)
    cut = with_lines(subject(**TWO, cp=2), lines, shapes=[("mask", "bool", (4, 16))], entries=("tokens", "mask"))
    with pytest.raises(EmissionSchedule, match="mask of the batch is read by later stages, beside cut sequences"):
        pipeline(cut)


def test_what_does_not_lie_in_one_piece_is_copied_before_it_is_sent() -> None:
    lines = (EMBED, ONE, TWO_, NORM, HEAD)
    first, second = stages(with_lines(subject(**TWO), lines, strided=("h1", "h4")))
    assert (first.lines[-1], second.lines[-1]) == ("    return x.contiguous()", "    return result")


TABLE = (called("h1", "layers.0", "h0"), called("h2", "layers.1", "h1", "p"), NORM, HEAD)
REFUSED: dict[str, tuple[Sequence[Line], str]] = {
    "a block that is not called": (
        (EMBED, line("h1", "%h0 * 2", "h0"), TWO_, NORM, HEAD),
        "layers.0 is not called as a module",
    ),
    "what is made of parameters": (
        (EMBED, line("p", f"{CALLED}.scale * 2", holds=("scale",)), *TABLE),
        "p depends on parameters, is needed by later stages, and not sent in the plan",
    ),
    "what is made by a module with parameters": (
        (EMBED, called("p", "embed", "tokens"), *TABLE),
        "tokens of the batch is read for p, which later stages need",
    ),
    "what is made of entries": (
        (EMBED, line("p", "%tokens > 0", "tokens"), *TABLE),
        "tokens of the batch is read for p, which later stages need",
    ),
}


def test_what_no_stage_can_do_is_refused() -> None:
    for what, (lines, says) in REFUSED.items():
        with pytest.raises(EmissionSchedule) as refused:
            pipeline(with_lines(subject(**TWO), lines, shapes=[("p", "f32", (32,))]))
        assert refused.value.cause == f"this is not emitted yet: {says}", what
        assert (refused.value.place, refused.value.fix) == ("pipeline stages", "plan with --fix pp=1"), what


def test_what_crosses_in_the_plan_must_cross_in_the_code() -> None:
    lines = (EMBED, ONE, TWO_, NORM, HEAD)
    plan = with_lines(subject(**TWO), lines, shapes=[("h1", "f32", (4, 16, 31))])
    with pytest.raises(EmissionSchedule, match="1 values cross from stage 0 in the plan, and not the same ones"):
        pipeline(plan)


def test_a_forward_pass_that_was_not_watched_is_not_cut() -> None:
    plan = with_lines(subject(**TWO), (), problem="it sorts")
    with pytest.raises(EmissionSchedule, match="the forward pass of tiny cannot be cut: it sorts"):
        pipeline(plan)
    with pytest.raises(EmissionSchedule, match="the forward pass of tiny cannot be cut"):
        pipeline(with_lines(subject(**TWO), ()))


# Blocks that take turns ---------------------------------------------------------------------------------------------


def turns(bodies: str, arguments: Sequence[str], start: int = 0) -> list[str]:
    """The forward pass of a stage with blocks from `start`: of each body by letter, and what each is called with beside
    what goes on; a norm follows."""
    stack = Stack(Instances("m.", tuple(range(len(bodies))), ".b"), "BLOCKS")
    paths = stack.instances.paths
    lines = [
        Line(
            makes=(f"h{n + 1}",),
            expression=f'{CALLED}.get_submodule("m.{n}.b")(%h{n}{arguments[n]})',
            reads=(f"h{n}",),
            module=f"m.{n}.b",
        )
        for n in range(start, len(bodies))
    ]
    last = f"h{len(bodies)}"
    lines.append(called("out", "norm", last))
    around: Any = SimpleNamespace(
        subject=SimpleNamespace(calls=SimpleNamespace(read=(f"h{start}",)), stack_of=dict.fromkeys(paths, stack)),
        route=SimpleNamespace(result="out", created=(), strided=()),
        late=(),
        cut={},
        bodies=dict(zip(paths, bodies, strict=True)),
        shape={f"h{n}": Type((4, 16, 32), "f32") for n in range(len(bodies) + 1)} | {"out": Type((4, 16), "f32")},
        trained=set(),
        apart=False,
    )
    (_, *text) = Writer(around, 4, lines, (), ()).text()
    assert text[-2:] == ['    result: Tensor = self.get_submodule("norm")(x)', "    return result"]
    return [line.removeprefix("    ") for line in text[:-2]]


LOOP, ITS = "for index in BLOCKS[self.index]:", 'self.get_submodule(f"m.{index}.b")'


def test_blocks_of_several_bodies_that_are_called_alike_are_one_loop() -> None:
    assert turns("aab", ["", "", ""]) == [LOOP, f"    x = {ITS}(x)"]


def test_blocks_that_are_called_as_their_bodies_want() -> None:
    """The fewest first, all instances of a body, and the most without a condition; those of earlier stages are told,
    too."""
    local, wide = ", 1", ", 2"
    two = [LOOP, f"    block = {ITS}", "    if index in (2, 5):", "        x = block(x, 2)", "    else:"]
    assert turns("aabaab", [local, local, wide] * 2) == [*two, "        x = block(x, 1)"]
    assert turns("aabaab", [local, local, wide] * 2, start=3) == [*two, "        x = block(x, 1)"]
    assert turns("abcacc", [", 1", ", 2", ", 3", ", 1", ", 3", ", 3"]) == [
        LOOP,
        f"    block = {ITS}",
        "    if index in range(1, 2):",
        "        x = block(x, 2)",
        "    elif index in (0, 3):",
        "        x = block(x, 1)",
        "    else:",
        "        x = block(x, 3)",
    ]
    assert turns("abcc", [", 1", ", 1", ", 3", ", 3"], start=0)[2:4] == [
        "    if index in range(2):",
        "        x = block(x, 1)",
    ]


def test_blocks_of_one_body_that_are_called_in_several_ways_are_no_loop() -> None:
    assert turns("aab", [", 1", ", 2", ", 2"]) == [
        f'x = self.get_submodule("m.{n}.b")(x, {given})' for n, given in enumerate((1, 2, 2))
    ]


def test_constants_of_stacks_have_names_of_their_own() -> None:
    """By the first body of each, in words; by number, too, where two would be called alike: one body in two lists, or
    twice in one."""
    segment = subject(**TWO).fold.segments[1]

    def named(*bodies: str) -> list[str]:
        several = [(replace(segment, period=(body,), paths=(f"m.{n}.0", f"m.{n}.1")),) for n, body in enumerate(bodies)]
        plan = subject(**TWO)
        vars(plan)["stacked"] = tuple(several)
        assert [plan.stack_of[f"m.{n}.1"] for n in range(len(bodies))] == list(plan.stacks)
        return [one.constant for one in plan.stacks]

    assert named("T5Block", "DecoderLayer", "T5Block", "x") == [
        "T5_BLOCK_0_BLOCKS",
        "DECODER_LAYER_BLOCKS",
        "T5_BLOCK_2_BLOCKS",
        "X_BLOCKS",
    ]
    assert named("DecoderLayer") == ["BLOCKS"]


def test_modules_around_parameters_are_trained() -> None:
    """All that they are in, under all of their names; not those that hold buffers alone, nor the model itself."""

    def param(*paths: str, buffer: bool = False) -> Any:
        return SimpleNamespace(paths=paths, buffer=buffer)

    held = {
        "layers.0": (param("mlp.up.weight"), param("rope.table", buffer=True)),
        "": (param("scale"), param("head.weight", "embed.tokens.weight")),
    }
    calls = [
        SimpleNamespace(path=path, body=SimpleNamespace(graph=SimpleNamespace(params=params)))
        for path, params in held.items()
    ]
    plan: Any = SimpleNamespace(fold=SimpleNamespace(calls=lambda: calls))
    around = Around(subject=plan, route=subject().calls.route, late=(), cut={})
    assert around.trained == {
        *("layers", "layers.0", "layers.0.mlp", "layers.0.mlp.up"),
        *("head", "embed", "embed.tokens"),
    }
