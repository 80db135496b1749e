"""The text of programs, written by hand with everything that a program can hold, beside the program that it means."""

from __future__ import annotations

from math import inf

import pytest

from meshwright.ir.errors import PlanSyntax
from meshwright.ir.graph.graph import Type, Update
from meshwright.ir.program.crossing import Transfer
from meshwright.ir.program.program import (
    Action,
    Add,
    BodyProgram,
    Compute,
    Entry,
    Gradient,
    Kept,
    Kernels,
    Local,
    Move,
    ParamSlot,
    Program,
    Ring,
    Run,
    Stage,
    Tie,
    Zero,
    operands_of,
    results_of,
    values_read,
)
from meshwright.ir.program.reading import parse_program
from meshwright.ir.program.text import program_text
from meshwright.ir.rules.base import Signature
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.ir.sharding.layouts import Padded
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement
from meshwright.ir.sharding.reshard import Step
from meshwright.ir.target.workload import STACKS, Workload

WORKLOAD = Workload(global_batch=8, seq=16, stack=STACKS["megatron"])
DP, ONE = Mesh.parse("dp=2"), Mesh()
ROW, NUMBER = Type((4,), "f32"), Type((), "f32")


def at(text: str) -> Placement:
    return Placement.parse(text)


ATTRS = (
    ("a", True), ("b", False), ("c", None), ("d", 1.5), ("e", -3), ("f", inf), ("g", -inf), ("h", 1e-06),
    ("i", 'te "xt'), ("j", ((1, 2), ())), ("k l", 2), ("m", 0), ("n", "true"),
)  # fmt: skip

FULL = BodyProgram(
    name="a",
    body="block 1",
    mesh=DP,
    locals={
        "x": Local(ROW, at("[dp]")),
        "w": Local(ROW, at("[-]+sum(dp)")),
        "n o": Local(Type((2, 0), "bool"), at("[-, -]")),
        "l": Local(NUMBER, at("[]")),
    },
    inputs=("x", "n o"),
    outputs=("l",),
    params=(
        ParamSlot("w.1", "w", "w!stored", at("[-]"), at("[dp]"), "dw", "dw2", "w!updated", "w!", host=True),
        ParamSlot("u", "u", "u!stored", at("[-]"), at("[dp]"), "du", "du2", "u!updated", "u!", lent="du!lent"),
        ParamSlot("v", "v", "v", at("[-]"), at("[-]"), "dv", borrowed="block 2"),
        ParamSlot("seen", "s", "s", at("[-]"), at("[-]"), buffer=True),
    ),
    forward=(
        Compute(Signature("relu", (ROW,)), Strategy(), ("x",), ("h",), "h"),
        Compute(
            Signature("split", (ROW,), (("dim", 0), ("sizes", (1, 3)))), Strategy.parse("dp=d0 tp=-|P"),
            ("w",), ("y", "y2"), "y",
        ),
        Compute(Signature("odd", (Type((4,), "i64"), NUMBER, NUMBER), ATTRS), Strategy(), ("x", "?", "l"), ("z",), "z"),
        Ring(Signature("attention", (ROW, ROW, ROW)), Strategy.parse("cp=sq+sk"), "cp", ("x", "x", "w"), ("r",), "r"),
        Move(Step("all_gather", ("dp", "cp"), 0, layout=Padded((4, 2))), "x", "m", "parameter"),
        Move(Step("all_reduce", ("dp",), reduction="max"), "m", "m2"),
        Move(Step("all_to_all", ("dp",), 0, 1), "m", "m3", "gradient"),
        Add(("m", "m2", "m3"), "s"),
    ),
    backward=(
        Zero("dz"),
        Gradient(
            Signature("linear", (ROW, ROW)), Strategy.parse("dp=d0"), ("x", "w"), ("y", "y2"), ("dy", None), (0, 1),
            ("dx", "dw"), "y",
        ),
        Gradient(Signature("sum", (ROW,), (("dim", -1),)), Strategy(), ("x",), ("y",), (None,), (), ("d0",), "y"),
        Ring(
            Signature("attention", (ROW, ROW)), Strategy(), "cp", ("x", "w"), ("dq", "dk"), "r",
            outputs=("r",), grads=("dr",), wanted=(0, 1),
        ),
    ),
    output_grads=("dl",),
    input_grads=("dx", None),
    kept=(Kept("x", 16), Kept("h!1", 0, host=True)),
    updates=(Update("seen", "y2", "mean"),),
    sync=(Move(Step("reduce_scatter", ("dp",), 0), "dw", "dw2", "sync"),),
    publish=(Move(Step("all_gather", ("dp",), 0), "w!updated", "w!", "update"),),
    kernels=Kernels("fused", "cuda", "flash3", True, "mxfp8"),
)  # fmt: skip
EMPTY = BodyProgram("b c", "glue", ONE, {}, (), (), (), (), (), (), (), (), kernels=Kernels("eager", "cpu", "math"))

PROGRAM = Program(
    bodies=(FULL, EMPTY),
    stages=(
        Stage(DP, (0, 1), (Run(("a", "b c"), 2, 0), Run(("a",), 1, 4)), 0, 5),
        Stage(ONE, (5,), (), 5, 6),
        Stage(DP, (7, 3), (Run(("a",), 1, 6),), 6, 7),
    ),
    transfers=(
        Transfer(1, 0, 0, 1, ROW, at("[dp]"), at("[-]"), True),
        Transfer(0, 12, 1, 2, Type((), "i64"), at("[]"), at("[]"), False),
        Transfer(2, 0, 1, 2, ROW, at("[-]"), at("[-]"), True, ("dp", "tp")),
    ),
    actions=(
        (
            (0, 1),
            (
                Action("F", 0, 0), Action("send_F", 0, 0, 1), Action("recv_B", 0, 0, 1), Action("I", 0, 10),
                Action("W", 12, 3), Action("sync"), Action("step"),
            ),
        ),
        ((5,), ()),
    ),
    ties=(Tie("w", ((0, 1), (1, 2))), Tie("none", ())),
    entries=(Entry("to kens", Type((4, 2), "i64"), at("[dp, -]"), DP), Entry("y", NUMBER, at("[]"), ONE)),
    microbatches=3,
    workload=WORKLOAD,
)  # fmt: skip

TEXT = f"""program x 3
  workload {WORKLOAD}
  stage 0..5 on (dp=2) ranks 0..1
    run a, "b c" x 2 at 0
    run a x 1 at 4
  stage 5..6 on () ranks 5
  stage 6..7 on (dp=2) ranks 7, 3
    run a x 1 at 6
  transfer 1.0 stage 0 -> 1  f32[4]  [dp] -> [-] grad
  transfer 0.12 stage 1 -> 2  i64[]  [] -> []
  transfer 2.0 stage 1 -> 2  f32[4]  [-] -> [-] grad waiting dp, tp
  actions ranks 0..1: 0F0 0send_F0>1 0recv_B0<1 0I10 12W3 sync step
  actions ranks 5:
  tie "w" held 0.1, 1.2
  tie "none" held
  entry %"to kens"  i64[4, 2]  [dp, -] on (dp=2)
  entry %y  f32[]  [] on ()
  body a for "block 1" on (dp=2) by fused cuda flash3 fused_loss copied mxfp8
    local %x  f32[4]  [dp]
    local %w  f32[4]  [-]+sum(dp)
    local %"n o"  bool[2, 0]  [-, -]
    local %l  f32[]  []
    input %x grad %dx
    input %"n o"
    output %l grad %dl
    param "w.1" value %w stored %w!stored grad %dw synced %dw2 updated %w!updated published %w! \
grads [-] optimizer [dp] host
    param "u" value %u stored %u!stored grad %du synced %du2 updated %u!updated published %u! \
lent %du!lent grads [-] optimizer [dp]
    param "v" value %v stored %v grad %dv grads [-] optimizer [-] borrowed "block 2"
    param "seen" value %s stored %s grads [-] optimizer [-] buffer
    kept %x 16
    kept %h!1 0 host
    update "seen" = %y2 by mean
    forward
      %h = relu(%x)  as %h
      %y, %y2 = split[dim=0, sizes=(1, 3)](%w)  {{dp=d0 tp=-|P}}  as %y
      %z = odd[a=true, b=false, c=none, d=1.5, e=-3, f=inf, g=-inf, h=1e-06, i="te \\"xt", j=((1, 2), ()), "k l"=2, \
m=0, n="true"](%x: i64[4], %"?": f32[], %l)  as %z
      %r = ring[cp] attention(%x, %x, %w)  {{cp=sq+sk}}  as %r
      %m = all_gather(dp.cp, dim 0, padded(4,2)) %x  for parameter
      %m2 = all_reduce(dp, max) %m  for value
      %m3 = all_to_all(dp, dim 0 -> 1) %m  for gradient
      %s = %m + %m2 + %m3
    backward
      %dz = 0
      %dx, %dw = linear'(%x, %w)  grads %dy, 0 of %y, %y2 wanted 0, 1  {{dp=d0}}  as %y
      %d0 = sum'[dim=-1](%x)  grads 0 of %y wanted none  as %y
      %dq, %dk = ring[cp] attention'(%x, %w)  grads %dr of %r wanted 0, 1  as %r
    sync
      %dw2 = reduce_scatter(dp, dim 0) %dw  for sync
    publish
      %w! = all_gather(dp, dim 0) %w!updated  for update
  body "b c" for glue on () by eager cpu math
    forward
    backward
    sync
    publish
"""


def test_a_program_reads_as_it_is_written() -> None:
    assert program_text(PROGRAM) == TEXT
    assert parse_program(TEXT) == PROGRAM


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("wanted 0, 1  {", "wanted 0, 1  # and here\n"),
        ("%dz = 0", "%dz = 1"),
        ("%dz = 0", "%dz = 0 %x"),
        ("d=1.5", "d=1.5.1"),
        ("f=inf", "f=nan"),
        ("a=true", "a=truely"),
        ("local %x", "lokal %x"),
        ('%"?": f32[]', '%"?"'),
        ("for value", "for"),
        ("  publish\n", ""),
        ("0send_F0>1", "0send_F0>1x"),
        ("ranks 0..1:", "ranks 0..1"),
        ("program x 3", "program x"),
        ("{dp=d0 tp=-|P}", "{dp=d0 tp=-|P"),
        ("all_to_all(dp", "all_to_some(dp"),
    ],
)
def test_what_cannot_be_read_is_refused(old: str, new: str) -> None:
    assert old in TEXT
    with pytest.raises(PlanSyntax):
        parse_program(TEXT.replace(old, new, 1))


def test_short_forms_of_statements_are_for_messages() -> None:
    assert list(map(str, FULL.forward)) == [
        "%h = relu(%x)",
        "%y, %y2 = split(%w)  {dp=d0 tp=-|P}",
        "%z = odd(%x, %?, %l)",
        "%r = ring[cp] attention(%x, %x, %w)",
        "%m = all_gather(dp.cp, dim 0, padded(4,2)) %x  for parameter",
        "%m2 = all_reduce(dp, max) %m  for value",
        "%m3 = all_to_all(dp, dim 0 -> 1) %m  for gradient",
        "%s = %m + %m2 + %m3",
    ]
    assert list(map(str, FULL.backward)) == [
        "%dz = 0",
        "%dx, %dw = linear'(%x, %w; %dy, 0)  {dp=d0}",
        "%d0 = sum'(%x; 0)",
        "%dq, %dk = ring[cp] attention'(%x, %w)",
    ]


def test_what_statements_read_and_make() -> None:
    """The derivatives of a product read both operands, each for the other; those of a sum none."""
    read = [("x",), ("w",), ("x", "?", "l"), ("x", "x", "w"), ("x",), ("m",), ("m",), ("m", "m2", "m3")]
    assert list(map(operands_of, FULL.forward)) == list(map(values_read, FULL.forward)) == read
    assert list(map(operands_of, FULL.backward)) == [
        (), ("x", "w", "y", "y2", "dy"), ("x", "y"), ("x", "w", "r", "dr"),
    ]  # fmt: skip
    types = (Type((2, 8), "f32"), Type((4, 8), "f32"))
    product = Gradient(Signature("linear", types), Strategy(), ("x", "w"), ("y",), ("dy",), (0,), ("dx",), "y")
    summed = Gradient(Signature("sum", types[:1]), Strategy(), ("x",), ("y",), ("dy",), (0,), ("dx",), "y")
    norm = Gradient(Signature("softmax", types[:1]), Strategy(), ("x",), ("y",), ("dy",), (0,), ("dx",), "y")
    assert list(map(values_read, (product, summed, norm, Zero("z")))) == [("w", "dy"), ("dy",), ("x", "y", "dy"), ()]
    made = [("h",), ("y", "y2"), ("z",), ("r",), ("m",), ("m2",), ("m3",), ("s",)]
    assert list(map(results_of, FULL.forward)) == made
    assert list(map(results_of, FULL.backward)) == [("dz",), ("dx", "dw"), ("d0",), ("dq", "dk")]


def test_what_a_program_says_of_its_parts() -> None:
    assert PROGRAM.kernels == FULL.kernels
    assert Program((), (), (), ()).kernels == Kernels()
    assert PROGRAM.body("b c") is EMPTY
    first, _, last = PROGRAM.stages
    assert list(first.calls()) == [(0, "a"), (1, "b c"), (2, "a"), (3, "b c"), (4, "a")]
    assert list(last.calls()) == [(6, "a")]
    assert [move.result for move in FULL.moves()] == ["m", "m2", "m3"]
    assert (FULL.offloads, EMPTY.offloads) == (True, False)
    assert dict(FULL.elements) == {"x": 2, "w": 4, "n o": 0, "l": 1}
    assert dict(FULL.nbytes) == {"x": 8, "w": 16, "n o": 0, "l": 4}
    assert [entry.nbytes for entry in PROGRAM.entries] == [2 * 2 * 8, 4]
    ring, again = FULL.forward[3], FULL.backward[3]
    assert isinstance(ring, Ring)
    assert isinstance(again, Ring)
    mesh = Mesh.parse("cp=4")
    assert (ring.backward, ring.shifts(mesh), again.backward, again.shifts(mesh)) == (False, 3, True, 7)


def test_axes_that_cut_unevenly_are_told_once_for_each_cut() -> None:
    local = Local(Type((8,), "f32"), at("[dp:uneven(3,5)]"))
    body = BodyProgram(
        "u", "u", DP, {"x": local, "y": local, "z": Local(ROW, at("[dp]"))}, (), (),
        (ParamSlot("w", "w", "w", at("[dp:uneven(1,3)]"), at("[dp:uneven(2,2)]")),), (), (), (), (), (),
    )  # fmt: skip
    assert body.uneven == (("dp", (3, 5)), ("dp", (1, 3)), ("dp", (2, 2)))
    assert FULL.uneven == ()
