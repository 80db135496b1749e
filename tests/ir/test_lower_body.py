"""Bodies of two products, lowered: every statement written by hand, in the order of the passes.

up = x · w1,  act = relu(up),  down = act · w2,  y = x + down          x[4, 8], w1[16, 8], w2[8, 16]
"""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.ir.decisions.decisions import BodyPlan, Storage
from meshwright.ir.errors import StorageConflict
from meshwright.ir.graph.graph import Graph
from meshwright.ir.program.lower_body import Lowering, lower_body
from meshwright.ir.program.program import BodyProgram, results_of
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement, State
from tests.build import Builder


def graph(*, frozen: bool = False) -> Graph:
    g = Builder()
    x = g.input((4, 8), labels=("b", ""), requires_grad=True)
    up = g.op("linear", x, g.param("w1", (16, 8), requires_grad=not frozen), name="up")
    down = g.op("linear", g.op("relu", up, name="act"), g.param("w2", (8, 16)), name="down")
    g.output(g.op("add", x, down, name="y"))
    return g.graph()


def lowered(
    strategies: dict[str, str],
    end: str,
    mesh: str,
    storage: dict[str, tuple[str, str, str]] | None = None,
    made: Graph | None = None,
    again: tuple[str, ...] = (),
    *,
    regather: bool = True,
    **lowering: Any,
) -> BodyProgram:
    plan = BodyPlan(
        "body",
        "body",
        tuple((op, Strategy.parse(text)) for op, text in strategies.items()),
        (("x", State.parse(end)), ("y", State.parse(end))),
        tuple(Storage(path, *map(Placement.parse, placed)) for path, placed in (storage or {}).items()),
        again,
        regather,
    )
    return lower_body(made or graph(), plan, Mesh.parse(mesh), Lowering(**lowering))


def lines(body: BodyProgram) -> dict[str, list[str]]:
    return {title: list(map(str, getattr(body, title))) for title in ("forward", "backward", "sync", "publish")}


DATA = dict.fromkeys(("up", "act", "down", "y"), "dp=d0")
FORWARD = [
    "%up = linear(%x, %p.w1)  {dp=d0}",
    "%act = relu(%up)  {dp=d0}",
    "%down = linear(%act, %p.w2)  {dp=d0}",
    "%y = add(%x, %down)  {dp=d0}",
]
ADD_BACK = "%dx@1, %ddown@2 = add'(%x, %down; %dy!out0)  {dp=d0}"
DOWN_BACK = "%dact@3, %dp.w2@4 = linear'(%act, %p.w2; %ddown@2)  {dp=d0}"
ACT_BACK = "%dup@5 = relu'(%up; %dact@3)  {dp=d0}"
UP_BACK = "%dx@6, %dp.w1@7 = linear'(%x, %p.w1; %dup@5)  {dp=d0}"
SUM = "%dx+8 = %dx@1 + %dx@6"
GATHERED = [f"%p.w{at} = all_gather(dp, dim 0) %p.w{at}!stored  for parameter" for at in (1, 2)]
WHOLE, CUT = "[-, -]", "[dp, -]"
SCATTERED = [
    "%dp.w1@9 = reduce_scatter(dp, dim 0) %dp.w1@7  for sync",
    "%dp.w2@10 = reduce_scatter(dp, dim 0) %dp.w2@4  for sync",
]
BACKWARD = [ADD_BACK, DOWN_BACK, ACT_BACK, UP_BACK, SUM]


def both(params: str, grads: str, optimizer: str) -> dict[str, tuple[str, str, str]]:
    return dict.fromkeys(("w1", "w2"), (params, grads, optimizer))


LEVELS: list[tuple[dict[str, tuple[str, str, str]], dict[str, list[str]]]] = [
    (
        {},
        {
            "forward": FORWARD,
            "backward": BACKWARD,
            "sync": ["%dp.w1@9 = all_reduce(dp) %dp.w1@7  for sync", "%dp.w2@10 = all_reduce(dp) %dp.w2@4  for sync"],
            "publish": [],
        },
    ),
    (
        both(WHOLE, WHOLE, CUT),
        {
            "forward": FORWARD,
            "backward": BACKWARD,
            "sync": [SCATTERED[0], SCATTERED[1].replace("@10", "@11")],
            "publish": [
                "%p.w1!@10 = all_gather(dp, dim 0) %p.w1!updated  for update",
                "%p.w2!@12 = all_gather(dp, dim 0) %p.w2!updated  for update",
            ],
        },
    ),
    (
        both(WHOLE, CUT, CUT),
        {
            "forward": FORWARD,
            "backward": [*BACKWARD, SCATTERED[0], SCATTERED[1].replace("@10", "@11")],
            "sync": [],
            "publish": [
                "%p.w1!@10 = all_gather(dp, dim 0) %p.w1!updated  for update",
                "%p.w2!@12 = all_gather(dp, dim 0) %p.w2!updated  for update",
            ],
        },
    ),
    (
        both(CUT, CUT, CUT),
        {
            "forward": [*GATHERED, *FORWARD],
            "backward": [ADD_BACK, GATHERED[1], DOWN_BACK, ACT_BACK, GATHERED[0], UP_BACK, SUM, *SCATTERED],
            "sync": [],
            "publish": [],
        },
    ),
]


def test_data_parallelism_at_every_level_of_storage() -> None:
    for storage, expected in LEVELS:
        body = lowered(DATA, CUT, "dp=2", storage)
        assert lines(body) == expected
        assert (body.inputs, body.outputs, body.input_grads, body.output_grads) == (
            ("x",),
            ("y",),
            ("dx+8",),
            ("dy!out0",),
        )
        # On a rank two samples: x of eight f32 each, what relu made of sixteen.
        assert [(kept.name, kept.nbytes) for kept in body.kept] == [("act", 128), ("x", 64)]


def test_slots_name_every_form_of_a_parameter() -> None:
    slots = lowered(DATA, CUT, "dp=2", {"w1": (CUT, CUT, CUT), "w2": (WHOLE, WHOLE, CUT)}).params
    assert [
        (
            one.path,
            one.value,
            one.stored,
            one.grad,
            one.synced,
            one.updated,
            one.published,
            str(one.grads),
            str(one.optimizer),
        )
        for one in slots
    ] == [
        ("w1", "p.w1", "p.w1!stored", "dp.w1@9", "dp.w1@9", "p.w1!updated", "p.w1!updated", CUT, CUT),
        ("w2", "p.w2", "p.w2", "dp.w2@4", "dp.w2@10", "p.w2!updated", "p.w2!@11", WHOLE, CUT),
    ]


def test_what_is_kept_gathered_is_not_gathered_again() -> None:
    """Weights are kept then: sixteen rows of eight, f32."""
    body = lowered(DATA, CUT, "dp=2", both(CUT, CUT, CUT), regather=False)
    assert lines(body)["backward"] == [*BACKWARD, *SCATTERED]
    assert [(kept.name, kept.nbytes) for kept in body.kept] == [("act", 128), ("p.w2", 512), ("x", 64), ("p.w1", 512)]


AGAIN: list[tuple[tuple[str, ...], list[str], list[tuple[str, int]]]] = [
    (("act",), [ADD_BACK, FORWARD[1], DOWN_BACK, ACT_BACK, UP_BACK, SUM], [("up", 128), ("x", 64)]),
    (("up", "act"), [ADD_BACK, FORWARD[0], FORWARD[1], DOWN_BACK, ACT_BACK, UP_BACK, SUM], [("x", 64)]),
    # A derivative that reads a result reads the operands too, to run its operator again.
    (("up",), [ADD_BACK, DOWN_BACK, FORWARD[0], ACT_BACK, UP_BACK, SUM], [("act", 128), ("x", 64)]),
    # What no derivative reads is not made again.
    (("down", "y"), BACKWARD, [("act", 128), ("x", 64)]),
    (
        ("x", "up", "act", "down", "y"),
        [ADD_BACK, FORWARD[0], FORWARD[1], DOWN_BACK, ACT_BACK, UP_BACK, SUM],
        [("x", 64)],
    ),
]


def test_what_is_computed_again_runs_before_what_reads_it() -> None:
    for again, backward, kept in AGAIN:
        body = lowered(DATA, CUT, "dp=2", again=again)
        assert lines(body)["backward"] == backward
        assert [(one.name, one.nbytes) for one in body.kept] == kept


def test_tensor_parallelism_reduces_once_each_way() -> None:
    body = lowered({"up": "tp=n", "act": "tp=d1", "down": "tp=k"}, WHOLE, "tp=2")
    assert lines(body) == {
        "forward": [
            "%up = linear(%x, %p.w1)  {tp=n}",
            "%act = relu(%up)  {tp=d1}",
            "%down = linear(%act, %p.w2)  {tp=k}",
            "%down@1 = all_reduce(tp) %down  for value",
            "%y = add(%x, %down@1)",
        ],
        "backward": [
            "%dx@2, %ddown@3 = add'(%x, %down@1; %dy!out0)",
            "%dact@4, %dp.w2@5 = linear'(%act, %p.w2; %ddown@3)  {tp=k}",
            "%dup@6 = relu'(%up; %dact@4)  {tp=d1}",
            "%dx@7, %dp.w1@8 = linear'(%x, %p.w1; %dup@6)  {tp=n}",
            "%dx@9 = all_reduce(tp) %dx@7  for gradient",
            "%dx+10 = %dx@2 + %dx@9",
        ],
        "sync": [],
        "publish": [],
    }
    assert {name: str(body.locals[name].placement) for name in ("p.w1", "up", "down", "down@1", "dx@7")} == {
        "p.w1": "[tp, -]",
        "up": "[-, tp]",
        "down": "[-, -]+sum(tp)",
        "down@1": "[-, -]",
        "dx@7": "[-, -]+sum(tp)",
    }


def test_sequence_parallelism_gathers_and_scatters() -> None:
    """Rows are cut at both ends: gathered for the first product, scattered after the second; and the dual."""
    strategies = {"up": "tp=n", "act": "tp=d1", "down": "tp=k", "y": "tp=d0"}
    body = lowered(strategies, "[tp, -]", "tp=2")
    moved = {title: [line for line in found if " for " in line] for title, found in lines(body).items()}
    assert moved == {
        "forward": [
            "%x@1 = all_gather(tp, dim 0) %x  for value",
            "%down@2 = reduce_scatter(tp, dim 0) %down  for value",
        ],
        "backward": [
            "%ddown@5 = all_gather(tp, dim 0) %ddown@4  for gradient",
            "%dx@11 = reduce_scatter(tp, dim 0) %dx@9  for gradient",
        ],
        "sync": [],
        "publish": [],
    }
    assert [(one.name, one.nbytes) for one in body.kept] == [("act", 128), ("x@1", 128)]
    again = lowered(strategies, "[tp, -]", "tp=2", regathers=True)
    assert [(one.name, one.nbytes) for one in again.kept] == [("act", 128), ("x", 64)]
    assert [line for line in lines(again)["backward"] if line.startswith("%x@1")] == [moved["forward"][0]]


def test_frozen_weights_have_no_gradient_and_no_state() -> None:
    body = lowered(DATA, CUT, "dp=2", made=graph(frozen=True))
    assert lines(body)["backward"] == [
        ADD_BACK,
        DOWN_BACK,
        ACT_BACK,
        "%dx@6 = linear'(%x, %p.w1; %dup@5)  {dp=d0}",
        "%dx+7 = %dx@1 + %dx@6",
    ]
    assert [(one.path, one.grad, one.synced, one.updated) for one in body.params] == [
        ("w1", None, None, None),
        ("w2", "dp.w2@4", "dp.w2@8", "p.w2!updated"),
    ]
    assert [one.name for one in body.kept] == ["act"]


TWO = dict.fromkeys(("up", "act", "down", "y"), "a=d0 b=d0")


REDUCED: list[tuple[str, dict[str, bool], str]] = [
    ("[-, -]", {}, "all_reduce(a.b)"),
    ("[a, -]", {}, "reduce_scatter(a, dim 0) all_reduce(b)"),
    ("[b, -]", {}, "reduce_scatter(b, dim 0) all_reduce(a)"),
    ("[a.b, -]", {}, "reduce_scatter(a, dim 0) reduce_scatter(b, dim 0)"),
    # Inner axes are summed before the outer one scatters, outer ones sum what is scattered.
    ("[-, -]", {"sums_first": True}, "all_reduce(a.b)"),
    ("[a, -]", {"sums_first": True}, "all_reduce(b) reduce_scatter(a, dim 0)"),
    ("[b, -]", {"sums_first": True}, "reduce_scatter(b, dim 0) all_reduce(a)"),
    ("[a.b, -]", {"sums_first": True}, "reduce_scatter(a.b, dim 0)"),
    # What is cast sums copies along the outermost axis apart.
    ("[-, -]", {"sums_first": True, "casts": True}, "all_reduce(b) all_reduce(a)"),
    ("[b, -]", {"sums_first": True, "casts": True}, "reduce_scatter(b, dim 0) all_reduce(a)"),
    ("[-, -]", {"casts": True}, "all_reduce(a.b)"),
]


def test_gradients_are_reduced_in_the_order_of_the_target() -> None:
    for optimizer, lowering, sync in REDUCED:
        storage = {"w1": (WHOLE, WHOLE, optimizer)}
        body = lowered(TWO, "[a.b, -]", "a=2 b=2", storage, made=graph(), **lowering)
        (slot,) = (one for one in body.params if one.path == "w1")
        steps, name = list[str](), slot.grad
        for line in lines(body)["sync"]:
            result, _, rest = line.partition(" = ")
            step, _, operand = rest.removesuffix("  for sync").rpartition(" ")
            if operand == f"%{name}":
                steps, name = [*steps, step], result.removeprefix("%")
        assert (" ".join(steps), name) == (sync, slot.synced)


def test_all_weights_of_a_unit_are_gathered_again_or_none() -> None:
    """Of a target that sums first: w1 is gathered again for what it reads, though its own product wants none of it."""
    g = Builder()
    x = g.input((4, 8), labels=("b", ""))
    up = g.op("linear", x, g.param("w1", (16, 8)), name="up")
    g.output(g.op("linear", g.op("relu", up, name="act"), g.param("w2", (8, 16)), name="y"))
    for sums_first in (False, True):
        body = lowered(
            {"up": "dp=d0", "act": "dp=d0", "y": "dp=d0"},
            CUT,
            "dp=2",
            both(CUT, CUT, CUT),
            g.graph(),
            sums_first=sums_first,
        )
        gathers = [line for line in lines(body)["backward"] if "for parameter" in line]
        assert gathers == ([GATHERED[1], GATHERED[0]] if sums_first else [GATHERED[1]])


@pytest.mark.parametrize("placed", ["[-, dp]", "[tp.dp, -]", "[dp, -]"])
def test_storage_refines_what_operators_want(placed: str) -> None:
    """Weights are cut over tp along their rows: others may be added behind, or along the columns."""
    strategies, storage = {"up": "tp=n", "act": "tp=d1", "down": "tp=k"}, {"w1": (placed, placed, placed)}
    fits = placed.startswith("[tp")
    if fits:
        assert lowered(strategies, WHOLE, "dp=2 tp=2", storage).params[0].stored == "p.w1!stored"
        return
    with pytest.raises(StorageConflict):
        lowered(strategies, WHOLE, "dp=2 tp=2", storage)


@pytest.mark.parametrize(("losses", "copied"), [(0, "mxfp8"), (1, "")])
def test_a_body_that_ends_in_a_loss_multiplies_as_it_was_traced(losses: int, copied: str) -> None:
    """Whatever it returns beside it; products of other bodies keep copies in fewer bits."""
    g = Builder()
    x = g.input((4, 8), labels=("b", ""), requires_grad=True)
    y = g.op("linear", x, g.param("w", (8, 8)), name="y")
    g.output(y)
    for number in range(losses):
        g.output(g.op("sum", y, name=f"loss{number}", dims=(0, 1), keepdim=False))
    made = g.graph()
    ends = tuple((value, State.parse(WHOLE if made.types[value].shape else "[]")) for value in (x, *made.outputs))
    plan = BodyPlan("body", "body", tuple((op.name, Strategy()) for op in made.ops), ends, ())
    body = lower_body(made, plan, Mesh.parse("dp=2"), Lowering(style="fused", copied="mxfp8"))
    assert body.kernels.copied == copied


def attends(*, trained: bool) -> Graph:
    """Attention of one head with a bias of the scores."""
    g = Builder()
    x = g.input((2, 1, 4, 8), requires_grad=True)
    q, k, v = (g.op("relu", x, name=name) for name in "qkv")
    bias = g.param("bias", (1, 1, 4, 4), requires_grad=trained)
    g.output(g.op("relu", g.op("attention", q, k, v, bias, name="attention"), name="y"))
    return g.graph()


@pytest.mark.parametrize(
    ("trained", "again", "lowering", "runs"),
    [
        (True, ("q", "k", "v"), {"device": "cpu"}, True),
        (True, ("q", "k"), {"device": "cpu"}, False),
        (False, ("q", "k", "v"), {"device": "cpu"}, False),
        (True, ("q", "k", "v"), {"device": "cuda"}, False),
        (True, ("q", "k", "v"), {"device": "cpu", "style": "compiled"}, False),
    ],
    ids=["written out", "not all that it reads", "fused", "fused on GPUs", "compiled"],
)
def test_attention_that_is_written_out_runs_again_with_what_it_reads(
    trained: bool, again: tuple[str, ...], lowering: dict[str, str], runs: bool
) -> None:
    """A policy keeps what kernels of attention make, and there is none of these."""
    body = lower_body(
        attends(trained=trained), BodyPlan("body", "body", recompute=again), Mesh.parse(""), Lowering(**lowering)
    )
    assert ("attention" in {name for one in body.backward for name in results_of(one)}) is runs
    assert any(one.name.startswith("attention!") for one in body.kept) is not runs
