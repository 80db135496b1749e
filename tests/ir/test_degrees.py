"""Arithmetic of degrees and stages, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.ir.errors import BatchIndivisible, DegreeImpossible, LayersIndivisible, RanksMismatch
from meshwright.ir.names import Degrees, uses
from meshwright.ir.names.counts import among, check_ranks, divisors, indivisible, microbatches
from meshwright.ir.names.degrees import recompute_parts
from meshwright.ir.names.stages import shared
from meshwright.ir.sharding.layouts import CONTIGUOUS, ZIGZAG
from meshwright.ir.sharding.mesh import Mesh

# Counts --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 7, 12, 16, 36, 97])
def test_divisors(size: int) -> None:
    assert divisors(size) == [n for n in range(1, size + 1) if size % n == 0]


def test_a_list_for_people() -> None:
    assert among([1, 2]) == "one of 1, 2"
    assert among([1, 2, 3], 3) == "one of 1, 2, 3"
    assert among([1, 2, 3], 2) == "one of 1, 2, …"
    assert among(range(13)).endswith("10, 11, …")


@pytest.mark.parametrize(
    ("sizes", "cause", "fix"),
    [
        ({"tp": 2, "dp": 3}, "tp=2 * dp=3 multiply to 6, the cluster has 8 ranks", "use dp=4"),
        ({"tp": 3, "pp": 2, "dp": 1}, "multiply to 6", "make tp * pp a divisor of 8"),
        ({"tp": 16, "dp": 1}, "multiply to 16", "make tp a divisor of 8"),
    ],
)
def test_degrees_multiply_to_the_ranks(sizes: dict[str, int], cause: str, fix: str) -> None:
    check_ranks({"tp": 2, "dp": 4}, 8)
    with pytest.raises(RanksMismatch) as refusal:
        check_ranks(sizes, 8)
    assert cause in refusal.value.cause
    assert refusal.value.fix == fix


def test_micro_batches_make_the_batch() -> None:
    assert microbatches(24, 3, 2) == 4
    assert microbatches(1, 1, 1) == 1
    for batch, dp in ((25, 3), (0, 1)):
        with pytest.raises(BatchIndivisible):
            microbatches(batch, dp, 2)
    assert indivisible(25, 3, 2, "in all").fix == "use 24 or 30 sequences, or a dp * mbs of one of 1, 5, 25"
    assert indivisible(4, 3, 2, "in all").fix == "use 6 sequences, or a dp * mbs of one of 1, 2, 4"
    assert indivisible(0, 3, 2, "in all").fix.startswith("use 6 sequences")
    assert indivisible(12, 3, 2, "in all").fix.startswith("use 12 sequences")


# Layers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "stages", "split", "expected"),
    [
        (8, 4, "even", (2, 2, 2, 2)),
        (6, 4, "ends", (1, 2, 2, 1)),
        (6, 1, "ends", (6,)),
        (2, 2, "ends", (1, 1)),
        (10, 4, "spread", (2, 3, 2, 3)),
        (7, 1, "spread", (7,)),
        (0, 1, "spread", (0,)),
        (2, 4, "ends", (0, 1, 1, 0)),
    ],
)
def test_layers_are_shared_out(layers: int, stages: int, split: str, expected: tuple[int, ...]) -> None:
    assert shared(layers, stages, split) == expected


@pytest.mark.parametrize(
    ("layers", "stages", "split", "kind", "said"),
    [
        (6, 4, "even", LayersIndivisible, "use a pp * vp of one of 1, 2, 3, 6; or split='ends', where"),
        (7, 4, "even", LayersIndivisible, "use a pp * vp of one of 1, 7; or split='spread'"),
        (8, 4, "ends", LayersIndivisible, "8 layers with embedding and head for pp * vp = 4 stages"),
        (7, 4, "even", LayersIndivisible, "7 layers for pp * vp = 4 stages"),
        (3, 4, "even", DegreeImpossible, "use at most 3"),
        (3, 4, "spread", DegreeImpossible, "4 stages for 3 blocks"),
        (0, 2, "spread", DegreeImpossible, "use at most 1"),
    ],
)
def test_layers_that_do_not_go(layers: int, stages: int, split: str, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind) as refusal:
        shared(layers, stages, split, "pp * vp = ")
    assert said in str(refusal.value)


# Axes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [
        ({}, []),
        ({"dp": 2, "cp": 3, "tp": 4}, [("dp", 2, True), ("cp", 3, True), ("tp", 4, True)]),
        ({"dp": 8, "shard": 2}, [("dp", 4, False), ("dp_shard", 2, True)]),
        ({"dp": 8, "shard": 8}, [("dp", 8, True)]),
        ({"dp": 4, "cp": 2, "shard": 4}, [("dp", 2, False), ("dp_shard", 2, True), ("cp", 2, True)]),
        ({"dp": 8, "ep": 4}, [("dp", 2, True), ("ep", 4, True)]),
        ({"dp": 4, "tp": 2, "ep": 2}, [("dp", 2, True), ("ep", 2, True), ("tp", 2, True)]),
        ({"dp": 4, "tp": 2, "ep": 4, "etp": 1}, [("dp", 2, True), ("ep", 2, True), ("tp_ep", 2, True)]),
        ({"dp": 4, "tp": 2, "ep": 2, "etp": 1}, [("dp", 4, True), ("tp_ep", 2, True)]),
        ({"dp": 4, "tp": 2, "etp": 4}, [("dp", 2, True), ("dp_tp", 2, True), ("tp", 2, True)]),
        ({"cp": 4, "ep": 2}, [("cp", 2, True), ("cp_ep", 2, True)]),
    ],
)
def test_axes_of_a_stage(degrees: dict[str, int], expected: list[tuple[str, int, bool]]) -> None:
    """Major to minor; what lies between boundaries of the arrangements outside and inside the experts is an axis."""
    own = Degrees(**degrees)
    assert [(use.name, use.size, use.stores) for use in uses(own)] == expected
    assert own.mesh() == Mesh.parse(" ".join(f"{name}={size}" for name, size, _ in expected))


@pytest.mark.parametrize(
    ("degrees", "said"),
    [
        ({"dp": 2, "ep": 4}, "ep * etp = 4 * 1 does not divide dp * cp * tp = 2"),
        ({"dp": 4, "shard": 3}, "storage over 3 of dp * cp = 4 copies"),
        ({"dp": 6, "tp": 2, "ep": 3, "etp": 1}, "runs of 2 and of 3 ranks do not nest"),
        ({"pp": 2, "vp": 2, "stage_blocks": (1, 2)}, "2 numbers of layers for pp * vp = 4 stages"),
        ({"microbatches": 0}, "microbatches=0"),
        ({"zero": 4}, "ZeRO-4"),
        ({"context": "star"}, "context='star'"),
        ({"split": "odd"}, "split='odd'"),
        ({"recompute": "selective:all"}, "recompute='selective:all'"),
        ({"recompute": "full_layers:0"}, "recompute='full_layers:0'"),
    ],
)
def test_what_cannot_be(degrees: dict[str, Any], said: str) -> None:
    with pytest.raises(DegreeImpossible) as refusal:
        Degrees(**degrees)
    assert said in refusal.value.cause


def test_products_of_degrees() -> None:
    own = Degrees(dp=2, tp=3, cp=5, pp=7, vp=2)
    assert (own.stages, own.stage_ranks, own.ranks) == (14, 30, 210)
    own.check_ranks(210)
    with pytest.raises(RanksMismatch):
        own.check_ranks(30)


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [({"tp": 2}, 2), ({"tp": 2, "dp": 2, "ep": 2}, 2), ({"tp": 2, "ep": 2}, 1), ({"tp": 2, "dp": 2, "etp": 4}, 4)],
)
def test_tensor_parallelism_inside_experts(degrees: dict[str, int], expected: int) -> None:
    assert Degrees(**degrees).expert_tp == expected


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [
        ({}, "gpipe"),
        ({"microbatches": 2}, "1f1b"),
        ({"pp": 2, "microbatches": 2}, "gpipe"),
        ({"vp": 2, "microbatches": 2}, "gpipe"),
        ({"pp": 2, "schedule": "1f1b"}, "1f1b"),
        ({"pp": 2, "vp": 2, "schedule": "1f1b"}, "interleaved"),
        ({"pp": 2, "vp": 2, "schedule": "zbv"}, "zbv"),
    ],
)
def test_schedules_by_their_full_names(degrees: dict[str, Any], expected: str) -> None:
    assert Degrees(**degrees).order == expected


def test_recomputation_by_its_words() -> None:
    assert [Degrees(recompute=kind).first_layers for kind in ("full_layers:3", "full", "none")] == [3, 0, 0]
    assert recompute_parts("selective") == ("core_attn",)
    assert recompute_parts("selective:moe_act+layernorm") == ("moe_act", "layernorm")
    with pytest.raises(DegreeImpossible):
        recompute_parts("full:layernorm")


def test_what_axes_split() -> None:
    own = Degrees(dp=4, cp=2, tp=2, ep=2, etp=1, sequence_parallel=True, zigzag=True)
    dense = {"dp": ("b",), "cp": ("s",), "tp_ep": ("heads", "group", "ffn", "vocab", "channels", "s")}
    inside = {"dp": ("b", "slots"), "cp": ("s", "slots"), "tp_ep": ("s", "experts", "slots")}
    assert {use.name: own.preferences(use.name) for use in uses(own)} == dense
    assert {use.name: own.preferences(use.name, expert=True) for use in uses(own)} == inside
    assert Degrees(tp=2).preferences("tp", expert=True) == ("ffn",)
    assert Degrees(tp=2).preferences("tp") == ("heads", "group", "ffn", "vocab", "channels")
    assert [own.layout(use.name) for use in uses(own)] == [CONTIGUOUS, ZIGZAG, CONTIGUOUS]
    assert Degrees(cp=2).layout("cp") == CONTIGUOUS
    copies = {use.name: (use.holds_copies(expert=False), use.holds_copies(expert=True)) for use in uses(own)}
    assert copies == {"dp": (True, True), "cp": (True, True), "tp_ep": (False, False)}
    apart = {use.name: use.holds_copies(expert=True) for use in uses(Degrees(dp=4, ep=2))}
    assert apart == {"dp": True, "ep": False}


def test_pins_and_what_is_left() -> None:
    own = Degrees.of(ranks=16, global_batch=24, mbs=3, tp=2, pp=2)
    assert (own.dp, own.microbatches) == (4, 2)
    assert Degrees.of(ranks=2, global_batch=4, tp=2).dp == 1
    assert Degrees.of(ranks=4, global_batch=4, tp=2, dp=2).microbatches == 2
    with pytest.raises(RanksMismatch):
        Degrees.of(ranks=4, global_batch=4, tp=2, dp=1)


def test_bodies_are_the_same_for_every_pipeline() -> None:
    own = Degrees(dp=2, pp=2, vp=2, microbatches=4, schedule="zbv", split="spread", offload="optimizer", zero=3)
    assert own.of_body() == Degrees(dp=2, zero=3)
    staged = Degrees(dp=2, pp=2, stage_blocks=(1, 2), regather=False, zero=3, recompute="full")
    assert staged.of_body() == Degrees(dp=2, regather=False, zero=3, recompute="full")
    assert staged.of_compute() == Degrees(dp=2)
