"""What a plan is to communicate, by group of ranks: worked out by hand for a small Llama, in bytes that a rank gives.

Its micro-batch holds 4 sequences of 16 tokens, 32 wide; 8 heads and 4 of keys and values, 4 wide each; 64 in its
feed-forward parts, 64 words. So sequences are X = 4 * 16 * 32 elements, the scores' statistics L = 4 * 16; of
parameters the table and the head have T = 64 * 32 each, a block
B = 1024 + 512 + 512 + 1024 (attention) + 3 * 2048 (feed-forward) + 2 * 32 (norms), the last norm 32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from meshwright.backends.torch_.capabilities import TORCH_GLOO
from meshwright.backends.torch_.verify.groups import Group, groups_of
from meshwright.backends.torch_.verify.predicted import Predicted, predicted
from meshwright.backends.torch_.verify.run.counting import Collective
from meshwright.ir.decisions.decisions import Schedule
from meshwright.ir.graph.fold import FromInput, FromPrevious
from meshwright.ir.graph.graph import Graph, Input, Op, Type
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.lower import lower
from meshwright.ir.program.program import BodyProgram, Local, Move, Program, Run, Stage
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement
from meshwright.ir.sharding.reshard import Step
from meshwright.ir.target.workload import Workload
from meshwright.planner.refine.heterogeneous import neighbours, over_parts
from tests.llama_block import Sizes, model

X, L, T, B, NORM = 4 * 16 * 32, 4 * 16, 64 * 32, 9280, 32
ALL = 2 * T + 2 * B + NORM
FP32 = Workload(global_batch=8, seq=16, precision="fp32", recipe="fp32")
MIXED = Workload(global_batch=8, seq=16, precision="bf16")
"""Gathered in bf16, summed in fp32."""
ROUGH = Workload(global_batch=8, seq=16, precision="bf16", recipe="fsdp-bf16-reduce")
LOW = Workload(global_batch=8, seq=16, precision="bf16", recipe="bf16")
SCALED = Workload(global_batch=8, seq=16, precision="fp16")
TP, DP, CP = ("tp",), ("dp",), ("cp",)


def groups(
    degrees: Degrees, workload: Workload | None = FP32, *, layers: int = 2, tied: bool = False
) -> Sequence[Group]:
    kind = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}[workload.precision if workload else "fp32"]
    fold = model(Sizes(layers=layers, dtype=kind), tied=tied)
    return groups_of(lower(fold, template(fold, degrees), TORCH_GLOO.lowering(), workload), fold)


def said(one: Predicted) -> dict[str, Any]:
    """What is not empty."""
    parts = {name: getattr(one, name) for name in ("values", "packed", "whole", "routed", "counts")}
    parts["packed"] = dict(Counter(one.packed) + Counter(one.scalars))  # numbers are packed like what else is
    return {name: dict(part) for name, part in parts.items() if part}


ONE_GROUP: dict[str, tuple[Degrees, Workload | None, dict[str, Any]]] = {
    # table, two halves of two blocks; back, the same and the head; the loss: greatest, sum, and score of the label
    "tp": (Degrees(tp=2), FP32, {"values": {("all_reduce", TP, 4 * X): 5 + 5, ("all_reduce", TP, 4 * L): 3}}),
    # each sum is scattered, and gathered for what reads it; gradients of norms are sums
    "tp+sp": (
        Degrees(tp=2, sequence_parallel=True),
        FP32,
        {
            "values": {
                ("reduce_scatter", TP, 4 * X): 10,
                ("all_gather", TP, 2 * X): 10,
                ("all_reduce", TP, 4 * L): 3,
            },
            "packed": {("all_reduce", TP): 4 * 5 * NORM},
            "whole": {("all_gather", TP, 8 * L // 2): 2},
        },
    ),
    # gradients of norms travel as they were added up, in fp32
    "tp+sp in bf16, micro-batches": (
        Degrees(tp=2, microbatches=2, sequence_parallel=True),
        MIXED,
        {
            "values": {
                ("reduce_scatter", TP, 2 * X): 20,
                ("all_gather", TP, X): 20,
                ("all_reduce", TP, 2 * L): 6,
            },
            "packed": {("all_reduce", TP): 4 * 5 * NORM},
            "whole": {("all_gather", TP, 8 * L // 2): 4},
        },
    ),
    # and as they were computed, in bf16, of one micro-batch; what is cut in two is summed in fp32 over dp
    "tp+sp in bf16, zero 1": (
        Degrees(dp=2, tp=2, zero=1, sequence_parallel=True),
        MIXED,
        {
            "values": {
                ("reduce_scatter", TP, X): 10,
                ("all_gather", TP, X // 2): 10,
                ("all_reduce", TP, L): 3,
            },
            "packed": {
                ("all_reduce", TP): 2 * 5 * NORM,
                ("reduce_scatter", DP): 4 * (ALL + 5 * NORM) // 2,
                ("all_gather", DP): 2 * (ALL + 5 * NORM) // 2 // 2,
                ("all_reduce", DP): 4 * 2,
            },
            "whole": {("all_gather", TP, 8 * L // 4): 2},
        },
    ),
    # those of norms are summed in bf16 before they are scattered, for each micro-batch: that is no sum of several
    "tp+sp in bf16, zero 3, micro-batches": (
        Degrees(dp=2, tp=2, zero=3, microbatches=2, sequence_parallel=True),
        MIXED,
        {
            "values": {
                ("reduce_scatter", TP, X): 20,
                ("all_gather", TP, X // 2): 20,
                ("all_reduce", TP, L): 6,
            },
            "packed": {
                ("all_reduce", TP): 2 * 2 * 5 * NORM,
                ("reduce_scatter", DP): 2 * 4 * (ALL + 5 * NORM) // 2,
                ("all_gather", DP): 2 * 2 * (2 * (ALL + 5 * NORM) - T) // 2 // 2,
                ("all_reduce", DP): 4 * 2 * 2,
            },
            "whole": {("all_gather", TP, 8 * L // 4): 4},
        },
    ),
    # gradients once, targets and losses of every micro-batch
    "copies": (Degrees(dp=2, microbatches=2), FP32, {"packed": {("all_reduce", DP): 4 * (ALL + 2 * 2)}}),
    "copies, as nothing else is said": (
        Degrees(dp=2, microbatches=2),
        None,
        {"packed": {("all_reduce", DP): 4 * (ALL + 2 * 2)}},
    ),
    "zero 1": (
        Degrees(dp=2, zero=1),
        FP32,
        {
            "packed": {
                ("reduce_scatter", DP): 4 * ALL,
                ("all_gather", DP): 4 * ALL // 2,
                ("all_reduce", DP): 4 * 2,
            }
        },
    ),
    # gathered twice for every micro-batch, but for the table, of which no gradient depends; scattered for each
    "zero 3": (
        Degrees(dp=2, zero=3, microbatches=2),
        FP32,
        {
            "packed": {
                ("all_gather", DP): 2 * 4 * (2 * ALL - T) // 2,
                ("reduce_scatter", DP): 2 * 4 * ALL,
                ("all_reduce", DP): 2 * 4 * 2,
            }
        },
    ),
    "zero 3 in bf16": (
        Degrees(dp=2, zero=3, microbatches=2),
        MIXED,
        {
            "packed": {
                ("all_gather", DP): 2 * 2 * (2 * ALL - T) // 2,
                ("reduce_scatter", DP): 2 * 4 * ALL,
                ("all_reduce", DP): 4 * 2 * 2,
            }
        },
    ),
    "zero 3, gradients in bf16": (
        Degrees(dp=2, zero=3),
        ROUGH,
        {
            "packed": {
                ("all_gather", DP): 2 * (2 * ALL - T) // 2,
                ("reduce_scatter", DP): 2 * ALL,
                ("all_reduce", DP): 4 * 2,
            }
        },
    ),
    # shards among two ranks, then the sums of these over both copies; the loss over all four
    "copies of shards": (
        Degrees(dp=4, shard=2, zero=3),
        MIXED,
        {
            "packed": {
                ("all_gather", ("dp_shard",)): 2 * (2 * ALL - T) // 2,
                ("reduce_scatter", ("dp_shard",)): 4 * ALL,
                ("all_reduce", DP): 4 * ALL // 2,
                ("all_reduce", ("dp", "dp_shard")): 4 * 2,
            }
        },
    ),
    # keys and values of half of the tokens, of four heads; back, the gradients of all
    "gathered sequences": (
        Degrees(cp=2),
        FP32,
        {
            "values": {
                ("all_gather", CP, 4 * X // 2 // 2): 2 * 2,
                ("reduce_scatter", CP, 4 * X // 2): 2 * 2,
            },
            "packed": {("all_reduce", CP): 4 * (ALL + 2)},
        },
    ),
}


def test_what_every_rank_communicates() -> None:
    for what, (degrees, workload, expected) in ONE_GROUP.items():
        (group,) = groups(degrees, workload)
        assert said(group.predicted[0]) == expected, what
        assert len(set(map(str, group.predicted))) == 1, what
        assert group.messages == {}, what
        assert (group.last, group.ranks) == (True, range(group.mesh.size)), what
        assert len(group.parameters) == 2 * 9 + 3, what


def both(pairs: dict[tuple[int, int], int], size: int) -> dict[Collective, int]:
    """Messages as they are sent and as they are received."""
    return {(kind, ends, size): number for ends, number in pairs.items() for kind in ("send", "recv")}


def test_stages_send_what_crosses_and_sum_what_they_share() -> None:
    """Sequences there, their gradients back, four times; half of the table, which the head reads, too."""
    first, second = groups(Degrees(pp=2, tp=2, microbatches=4), tied=True)
    expected = both({(0, 2): 4, (1, 3): 4, (2, 0): 4, (3, 1): 4}, 4 * X)
    expected |= {("all_reduce", (0, 2), 4 * T // 2): 1, ("all_reduce", (1, 3), 4 * T // 2): 1}
    assert first.messages == second.messages == expected
    assert (first.ranks, second.ranks) == (range(2), range(2, 4))
    assert (first.last, second.last) == (False, True)
    assert said(first.predicted[1]) == {"values": {("all_reduce", TP, 4 * X): 4 * (3 + 2)}}
    assert said(second.predicted[0]) == {"values": {("all_reduce", TP, 4 * X): 4 * 5, ("all_reduce", TP, 4 * L): 4 * 3}}
    names = [one for (one,) in second.parameters]
    assert names[:2] == ["layers.1.norm1.weight", "layers.1.q.weight"]
    assert names[-2:] == ["norm.weight", "embed.weight"]
    assert first.parameters[0] == ("embed.weight",)
    assert len(first.parameters) == 1 + 9


def test_what_stages_share_is_summed_as_it_is_kept() -> None:
    """Where losses are scaled, ranks tell one another whether gradients are finite, too."""
    for workload, gradient in [(None, 4), (FP32, 4), (MIXED, 4), (LOW, 2), (SCALED, 4)]:
        (first, _) = groups(Degrees(pp=2), workload, tied=True)
        wide = 2 if workload and workload.precision != "fp32" else 4
        expected = both({(0, 1): 1, (1, 0): 1}, wide * X) | {("all_reduce", (0, 1), gradient * T): 1}
        assert first.messages == expected | ({("all_reduce", (0, 1), 4): 1} if workload is SCALED else {}), (
            workload,
            gradient,
        )


def test_nobody_is_told_whether_its_own_gradients_are_finite() -> None:
    (alone,) = groups(Degrees(), SCALED)
    assert (alone.messages, said(alone.predicted[0])) == ({}, {})


def test_stages_of_one_rank_send_one_another_nothing() -> None:
    """In a V the first rank has both ends: what it sends the second are sequences of the first stage, and gradients of
    the last; nothing crosses between the two in the middle, and the table is on one rank alone."""
    first, second = groups(Degrees(pp=2, vp=2, microbatches=2, schedule="zbv"), MIXED, layers=4, tied=True)
    assert first.messages == second.messages == both({(0, 1): 2 * 2, (1, 0): 2 * 2}, 2 * X)
    assert (first.ranks, second.ranks, first.last, second.last) == (range(1), range(1, 2), True, False)
    assert (len(first.parameters), len(second.parameters)) == (1 + 2 * 9 + 2, 2 * 9)


def test_keys_and_values_go_around_in_each_stage() -> None:
    """Of a quarter of the tokens, to the next rank of four: three times there; back three times, and their gradients
    four times. Keys and values, two micro-batches."""
    first, second = groups(Degrees(cp=4, context="ring", pp=2, microbatches=2, schedule="1f1b"))
    around = [(0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 7), (7, 4)]
    expected = both(dict.fromkeys(around, 2 * 2 * (3 + 3 + 4)), 4 * X // 2 // 4)
    across = [pair for one in range(4) for pair in ((one, one + 4), (one + 4, one))]
    assert first.messages == second.messages == expected | both(dict.fromkeys(across, 2), 4 * X // 4)
    assert said(first.predicted[0]) == {"packed": {("all_reduce", CP): 4 * (T + B)}}
    assert said(second.predicted[0]) == {"packed": {("all_reduce", CP): 4 * (T + B + NORM + 2 * 2)}}


def test_unlike_stages_send_parts() -> None:
    """Both ranks of tp need the halves of both of dp; of their copies of the gradients, the first one sends both
    halves. Of a table that is cut in halves on either side, those that have the same half exchange it."""
    for tied in [False, True]:
        fold = model(Sizes(layers=2, dtype="f32"), tied=tied)
        parts = neighbours(Degrees(dp=2, zero=1), Degrees(tp=2))
        plan = over_parts(fold, parts, (1, 1), Schedule("1f1b", 2), "any")
        first, second = groups_of(lower(fold, plan, TORCH_GLOO.lowering(), FP32), fold)
        halves = Counter({(0, 2): 2, (1, 2): 2, (0, 3): 2, (1, 3): 2, (2, 0): 2, (2, 1): 2})
        if tied:
            halves += Counter({(0, 2): 1, (2, 0): 1, (1, 3): 1, (3, 1): 1})
        assert 4 * X // 2 == 4 * T // 2, tied  # of one size, so that they count together
        assert first.messages == second.messages == both(dict(halves), 4 * X // 2), tied
        assert (first.mesh.size, first.ranks, second.ranks) == (2, range(2), range(2, 4)), tied


# A program that is written down --------------------------------------------------------------------------------------

MESH = Mesh.parse("dp=2 cp=2 ep=2 tp=2")
EP = ("ep",)
SLOTS = (("num_experts", 4), ("capacity", 8))
KEPT = (*SLOTS, ("dropless", True))
ROUTED = Graph(
    types={
        "x": Type((4, 6), "f32"),
        "h": Type((16, 16), "f32"),
        "idx": Type((16, 2), "i64"),
        "weights": Type((16, 2), "f32"),
        **dict.fromkeys(("rows", "back", "few", "some"), Type((4, 8, 16), "f32")),
        **dict.fromkeys(("y", "z"), Type((16, 16), "f32")),
    },
    inputs=(Input("x"), Input("h"), Input("idx"), Input("weights")),
    params=(),
    ops=(
        Op("dispatch", ("h", "idx"), ("rows",), KEPT),
        Op("silu", ("rows",), ("back",)),
        Op("combine", ("back", "idx", "weights"), ("y",), KEPT),
        Op("dispatch", ("h", "idx"), ("few",), SLOTS),
        Op("silu", ("few",), ("some",)),
        Op("combine", ("some", "idx", "weights"), ("z",), SLOTS),
    ),
    outputs=("y", "z"),
)
"""Four experts with room for all of eight rows, 16 wide; and some with a capacity."""
LOCALS = {
    name: Local(Type(shape, "f32"), Placement.parse(placed))
    for name, shape, placed in (
        *((name, (4, 8, 16), "[-, ep, -]") for name in ("rows", "few", "some", "drows")),
        *((name, (4, 8, 16), "[ep, -, -]") for name in ("back", "rows@2", "dback", "back@2")),
        ("rows@cut", (4, 8, 16), "[cp, ep, -]"),
        *((name, (4, 6), "[-, -]") for name in ("x", "dx", "h", "w", "dw", "dw2", "dw3", "out")),
        *((name, (), "[]") for name in ("loss", "loss2")),
    )
}


def planned(workload: Workload | None = MIXED, microbatches: int = 1, **lists: tuple[Move, ...]) -> dict[str, Any]:
    """What is planned of a body of these moves, whose first input is an entry of the batch."""
    given: dict[str, Any] = {"forward": (), "backward": (), **lists}
    body = BodyProgram("one", "body", MESH, LOCALS, (), (), (), output_grads=(), input_grads=(), kept=(), **given)
    stage = Stage(MESH, tuple(range(MESH.size)), (Run(("one",), 1, 0),), 0, 1)
    program = Program((body,), (stage,), (), (), microbatches=microbatches, workload=workload)
    sources = (FromInput("tokens"), *map(FromPrevious, range(3)))
    call = SimpleNamespace(body=SimpleNamespace(graph=ROUTED), sources=sources)
    fold: Any = SimpleNamespace(calls=lambda: [call])
    return said(predicted(program, fold, (0,)))


def move(kind: str, axes: Sequence[str], operand: str, result: str = "out", reason: str = "value") -> Move:
    return Move(Step(kind, tuple(axes), 0, 1 if kind == "all_to_all" else -1), operand, result, reason)


def test_rows_travel_to_experts_and_back() -> None:
    """Of 4 * 8 * 16 elements a half, in fp32: 1024 bytes; of rows that are cut by experts already, 512. Before rows
    that come from tokens ranks tell one another how many for each of 4 experts come, or 2; and where they are gathered,
    whose each of 4 * 4 is, in 8 bytes each."""
    there, back = move("all_to_all", EP, "rows"), move("all_to_all", EP, "back")
    in_parts = replace(there, step=Step("all_to_all", EP, dim=2, target=0))
    counted = {("all_to_all", EP, 8 * 4): 3}
    for what, lists, expected in (
        ("there", {"forward": (there,)}, {"routed": {EP: (3, 3 * 1024, EP)}, "counts": counted}),
        ("back", {"forward": (back,)}, {"routed": {EP: (3, 3 * 1024, EP)}}),
        ("there in parts", {"forward": (in_parts,)}, {"routed": {EP: (3, 3 * 1024, EP)}}),
        ("both", {"forward": (there, back)}, {"routed": {EP: (6, 6 * 1024, EP)}, "counts": counted}),
        (
            "gradients",
            {"backward": (move("all_to_all", EP, "drows", reason="gradient"), move("all_to_all", EP, "dback"))},
            {"routed": {EP: (3, 3 * 1024, EP)}, "values": {("all_to_all", EP, 1024): 3}},  # the other is of its name
        ),
        (
            "along another axis, too",
            {"forward": (there, move("all_to_all", EP, "rows@cut"))},
            {
                "routed": {EP: (6, 3 * 1024 + 3 * 512, ("cp", "ep"))},
                "counts": counted | {("all_to_all", EP, 8 * 2): 3},
            },
        ),
        (
            "two axes",
            {"forward": (move("all_to_all", ("tp", "ep"), "rows"),)},
            {
                "routed": {("ep", "tp"): (3, 3 * 1024, ("ep", "tp"))},
                "counts": {("all_to_all", ("ep", "tp"), 8 * 4): 3},
            },
        ),
        (
            "gathered",
            {"forward": (move("all_gather", EP, "rows"), move("all_gather", EP, "back"))},
            {"values": {("all_gather", EP, 1024): 6}, "counts": {("all_gather", EP, 8 * 4 * 4): 3}},
        ),
        (
            "gathered gradients",
            {"backward": (move("all_gather", EP, "drows", reason="gradient"),)},
            {"values": {("all_gather", EP, 1024): 3}},
        ),
        (
            "a capacity",
            {"forward": (move("all_to_all", EP, "few"), move("all_to_all", EP, "some"))},
            {"values": {("all_to_all", EP, 1024): 6}},
        ),
    ):
        assert planned(microbatches=3, **lists) == expected, what


def test_entries_are_whole_and_numbers_are_packed() -> None:
    """Of what concerns one input of two, an entry of the batch; a sum of one number, and what travels nowhere."""
    lists = {
        "forward": (
            move("all_gather", TP, "x"),
            move("all_gather", TP, "h"),
            move("slice", CP, "h"),
            move("all_reduce", ("tp", "dp"), "loss"),
        ),
        "backward": (move("all_gather", TP, "dx", reason="gradient"),),
    }
    assert planned(microbatches=3, **lists) == {
        "whole": {("all_gather", TP, 96): 3},
        "values": {("all_gather", TP, 96): 6},
        "packed": {("all_reduce", ("dp", "tp")): 3 * 4},
    }


SUM = move("all_reduce", TP, "dw", "dw2", "sync")
SCATTER = move("reduce_scatter", DP, "dw2", "dw3", "sync")
GATHER = move("all_gather", DP, "dw2", "dw3", "sync")
BOTH = move("all_reduce", ("dp", "tp"), "dw", reason="sync")
EXCHANGE = move("all_reduce", TP, "h")


def test_gradients_travel_as_they_were_computed_or_added_up() -> None:
    """24 elements, of 2 bytes as they were computed and used, of 4 as they are reduced."""
    for what, microbatches, lists, size in (
        ("alone", 1, {"sync": (SUM,)}, 4),
        ("alone, micro-batches", 2, {"sync": (SUM,)}, 4),
        ("before it is scattered", 1, {"sync": (SUM, SCATTER)}, 2),
        ("before it is scattered, of several", 2, {"sync": (SUM, SCATTER)}, 4),
        ("of each before it is scattered", 2, {"backward": (SUM, SCATTER)}, 2 * 2),
        ("of each, scattered at last", 2, {"backward": (SUM,), "sync": (SCATTER,)}, 2 * 2),
        ("of each alone", 2, {"backward": (SUM,)}, 2 * 4),
        ("before it is gathered", 1, {"sync": (SUM, GATHER)}, 4),
        ("before both", 1, {"sync": (SUM, GATHER, SCATTER)}, 2),
        ("along an axis of values", 1, {"forward": (EXCHANGE,), "sync": (SUM,)}, 2),
        ("of their gradients", 1, {"backward": (move("all_reduce", TP, "dx", reason="gradient"), SUM)}, 2),
        ("along one of another", 1, {"forward": (move("all_reduce", CP, "h"),), "sync": (SUM,)}, 4),
        ("along one of numbers", 1, {"forward": (move("slice", TP, "h"),), "sync": (SUM,)}, 4),
        ("along two, of which values know one", 1, {"forward": (EXCHANGE,), "sync": (BOTH,)}, 4),
        ("a parameter", 1, {"forward": (move("all_gather", DP, "w", reason="parameter"),)}, 2),
        ("an update", 1, {"publish": (move("all_gather", DP, "w", reason="update"),)}, 2),
        (
            "a parameter of two micro-batches",
            2,
            {"backward": (move("all_gather", DP, "w", reason="parameter"),)},
            2 * 2,
        ),
    ):
        first = next(one for part in lists.values() for one in part if one.reason in ("sync", "parameter", "update"))
        packed = planned(microbatches=microbatches, **lists)["packed"]
        assert packed[first.step.kind, tuple(sorted(first.step.axes))] == 24 * size, what


def test_a_number_is_no_value_that_is_exchanged() -> None:
    """It leaves the gradients along its axis as they are reduced."""
    forward = (move("all_reduce", TP, "loss"),)
    assert planned(forward=forward, sync=(SUM,)) == {"packed": {("all_reduce", TP): 4 + 24 * 4}}
    assert planned(None, forward=(EXCHANGE,), sync=(SUM,))["packed"] == {("all_reduce", TP): 24 * 4}
