"""The declared space: every configuration that its table names, and no other, counted out for small clusters."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest

from meshwright.planner.question.constraints import Constraints
from meshwright.planner.question.pins import Config, parse
from meshwright.planner.question.pricing import target_of
from meshwright.planner.space.declared import Space, Storage

ANY = target_of("any")


def space(*, pins: str = "", never: dict[str, tuple[Any, ...]] | None = None, **changes: Any) -> Space:
    """Eight ranks on two hosts, four layers of four heads, eight sequences of 8,192 tokens."""
    own: dict[str, Any] = {
        "ranks": 8,
        "per_host": 4,
        "global_batch": 8,
        "seq": 8192,
        "layers": 4,
        "experts": (),
        "heads": 4,
        "scores": False,
        "target": ANY,
    }
    constraints = replace(Constraints.of(parse([pins])), never=never or {})
    return Space(**own | {"constraints": constraints} | changes)


def split_ways(one: Space) -> set[tuple[int, ...]]:
    return {(base.tp, base.cp, base.ep, base.etp, base.dp) for base in one.bases()}


UP_TO_EIGHT = range(1, 9)


@pytest.mark.parametrize(
    ("changes", "most_tp", "most_cp"),
    [
        ({}, 4, 4),
        ({"heads": 2}, 2, 4),
        ({"heads": 6}, 2, 4),
        ({"heads": 0}, 4, 4),
        ({"per_host": 2}, 2, 4),
        ({"seq": 4096}, 4, 2),
        ({"seq": 4095}, 4, 1),
        ({"seq": 2048 * 3}, 4, 2),
    ],
)
def test_ranks_that_a_dense_layer_can_be_cut_over(changes: dict[str, Any], most_tp: int, most_cp: int) -> None:
    """Tensor parallelism by heads and inside a host, context parallelism in pieces of 2,048 tokens."""
    expected = {
        (tp, cp, 1, 0, 1)
        for tp, cp in product(UP_TO_EIGHT, UP_TO_EIGHT)
        if 8 % (tp * cp) == 0 and tp <= most_tp and cp <= most_cp
    }
    assert split_ways(space(**changes)) == expected


def test_sizes_that_are_not_powers_of_two() -> None:
    assert split_ways(space(ranks=6, heads=6, per_host=6, seq=6144)) == {
        (tp, cp, 1, 0, 1) for tp, cp in ((1, 1), (2, 1), (3, 1), (6, 1), (1, 2), (3, 2), (1, 3), (2, 3))
    }


def test_experts_nest_in_the_ranks_of_a_stage() -> None:
    """Experts apart on any ranks; tensor parallel ones with none apart only, and as one layer or as all of them."""
    runs = [(tp, cp) for tp, cp in product((1, 2, 4), (1, 2, 4)) if tp * cp <= 8]
    expected = set()
    for (tp, cp), (ep, etp) in product(runs, [(1, 1), (1, 2), (1, 4), (2, 1), (4, 1)]):
        if etp not in (1, tp):
            continue
        ordered = sorted({tp, tp * cp, etp, etp * ep})
        if any(high % low for low, high in pairwise(ordered)):
            continue
        copies = next(n for n in UP_TO_EIGHT if n * tp * cp % (ep * etp) == 0)
        expected.add((tp, cp, ep, etp, copies))
    assert split_ways(space(experts=(4,))) == expected
    assert {ep for _, _, ep, _, _ in split_ways(space(experts=(4, 6)))} == {1, 2}
    assert {ep for _, _, ep, _, _ in split_ways(space(experts=(16,)))} == {1, 2, 4, 8}


@pytest.mark.parametrize(
    ("ranks", "pins", "expected"),
    [
        (12, "tp=3,cp=1", {(1, 1), (1, 3), (3, 1), (6, 1), (12, 1)}),  # two or four apart would cut three ranks
        (8, "tp=2,cp=1", {(1, 1), (1, 2), (2, 1), (4, 1)}),
        (8, "tp=2,cp=1,etp=2", {(1, 2), (2, 2), (4, 2)}),
        (8, "tp=2,cp=1,ep=4", {(4, 1)}),
    ],
)
def test_experts_beside_tensor_parallelism(ranks: int, pins: str, expected: set[tuple[int, int]]) -> None:
    found = split_ways(space(ranks=ranks, heads=12, experts=(12 if ranks == 12 else 4,), pins=pins, per_host=ranks))
    assert {(ep, etp) for _, _, ep, etp, _ in found} == expected


def test_sequences_of_a_micro_batch() -> None:
    """Divisors of the batch up to 131,072 tokens, or one, two, four and eight."""
    assert space(global_batch=48).sequences == [1, 2, 3, 4, 6, 8, 12, 16]
    assert space(global_batch=48, seq=65536).sequences == [1, 2, 4, 8]
    assert space(global_batch=48, experts=(4,)).sequences == [1, 2, 4, 8]
    assert space(global_batch=6, experts=(4,)).sequences == [1, 2]
    assert space(pins="mbs=5").sequences == [5]
    assert space(never={"mbs": (4, 8)}).sequences == [1, 2]
    assert space(never={"mbs": (4, 8)}).most_sequences == 2
    assert space(never={"mbs": (1, 2, 4, 8)}).most_sequences == 1


@pytest.mark.parametrize(
    ("tp", "cp", "context", "changes", "expected"),
    [
        (1, 1, "all_gather", {}, (False, False)),
        (2, 1, "all_gather", {}, (True, False)),
        (2, 1, "all_gather", {"seq": 8191}, (False, False)),
        (2, 1, "all_gather", {"pins": "sp=off"}, (False, False)),
        (1, 2, "ring", {}, (False, True)),
        (1, 2, "ulysses", {}, (False, False)),
        (1, 2, "ring", {"pins": "zigzag=off"}, (False, False)),
        (2, 2, "ring", {"seq": 4 * 3}, (False, True)),
        (2, 2, "ulysses", {"seq": 4 * 3}, (True, False)),
        (2, 2, "ring", {"seq": 8 * 3}, (True, True)),
    ],
)
def test_who_shares_sequences(
    tp: int, cp: int, context: str, changes: dict[str, Any], expected: tuple[bool, bool]
) -> None:
    """Tensor parallel ranks where pieces come out equal, of which zigzag makes two per rank."""
    assert space(**changes).tokens(tp, cp, context) == expected


def test_what_is_computed_again() -> None:
    assert space().recompute() == ["none", "selective_op", "full"]
    assert space(scores=True).recompute() == ["none", "selective", "selective_op", "full"]
    assert {base.recompute for base in space(never={"recompute": ("full",)}).bases()} == {"none", "selective_op"}


def test_bases_are_as_asked() -> None:
    assert {base.context for base in space().bases() if base.cp > 1} == {"all_gather", "ring", "ulysses"}
    assert {base.context for base in space().bases() if base.cp == 1} == {"all_gather"}
    assert {base.context for base in space(pins="context=ring").bases()} == {"ring"}
    assert {base.cp for base in space(never={"context": ("all_gather",)}).bases()} == {1, 2, 4}
    assert not any(base.sp for base in space(pins="sp=off").bases())
    assert {base.tp for base in space(pins="sp=on").bases()} == {2, 4}
    assert list(space(pins="offload=optimizer").bases()) == []
    assert list(space(pins="ep=2").bases()) == []
    assert {base.ep for base in space(pins="ep=2", experts=(4,)).bases()} == {2}
    assert list(space(pins="tp=3").bases()) == []
    assert list(space(pins="cp=3").bases()) == []


def base(one: Space, **changes: Any) -> Config:
    asked = {"tp": 1, "cp": 1, "ep": 1, "etp": 0, "mbs": 1, "context": "all_gather", "recompute": "none"} | changes
    return one.base(**asked)


def test_copies_and_stages_that_are_left() -> None:
    """Stages divide the ranks and have a layer each, copies divide the batch."""

    def counted(one: Space, **changes: Any) -> list[tuple[int, int, int]]:
        return [(config.pp, config.dp, config.microbatches) for config in one.pipelined(base(one, **changes))]

    assert counted(space()) == [(1, 8, 1), (2, 4, 2), (4, 2, 4)]
    assert counted(space(layers=8)) == [(1, 8, 1), (2, 4, 2), (4, 2, 4), (8, 1, 8)]
    assert counted(space(), tp=2) == [(1, 4, 2), (2, 2, 4), (4, 1, 8)]
    assert counted(space(), cp=4) == [(1, 2, 4), (2, 1, 8)]
    assert counted(space(), mbs=2) == [(2, 4, 1), (4, 2, 2)]
    assert counted(space(global_batch=4)) == [(2, 4, 1), (4, 2, 2)]
    assert counted(space(pins="dp=4")) == [(2, 4, 2)]
    assert counted(space(pins="microbatches=4")) == [(4, 2, 4)]
    assert counted(space(pins="pp=8")) == [(8, 1, 8)]
    assert counted(space(pins="pp=3")) == []
    assert counted(space(experts=(4,)), ep=4, etp=1) == [(1, 8, 1), (2, 4, 2)]
    assert space(ranks=8192, layers=6).pipeline_sizes(base(space())) == [1, 2, 4]
    assert space(ranks=4096, layers=6).pipeline_sizes(base(space())) == [1, 2, 4]
    assert space(layers=0).pipeline_sizes(base(space())) == [1]


def test_schedules_by_stages_and_micro_batches() -> None:
    one = {"gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2"}
    folded = {"zbv", "v-half", "v-min"}

    def found(asked: Space, pp: int, microbatches: int) -> set[tuple[str, int]]:
        return set(asked.schedules(pp, microbatches))

    flat = {(name, 1) for name in one}
    vees = {(name, 2) for name in folded}
    assert found(space(), 1, 8) == {("1f1b", 1)}
    assert found(space(), 2, 3) == flat | vees  # interleaving takes turns of two
    assert found(space(), 2, 4) == flat | vees | {("dualpipev", 2), ("interleaved", 2)}
    assert found(space(), 2, 1) == set()
    assert found(space(), 4, 8) == flat  # a V of four would have eight stages
    assert found(space(layers=8), 2, 2) == flat | vees | {("interleaved", vp) for vp in (2, 3, 4)}
    assert {vp for name, vp in found(space(layers=64), 2, 2) if name == "interleaved"} == set(range(2, 9))
    assert found(space(pins="vp=2"), 2, 3) == vees
    assert found(space(pins="vp=2"), 1, 8) == set()
    assert found(space(pins="schedule=gpipe"), 2, 4) == {("gpipe", 1)}
    assert found(space(pins="schedule=gpipe"), 1, 4) == set()
    assert found(space(pins="schedule=1f1b"), 1, 4) == {("1f1b", 1)}


def test_what_is_stored_where() -> None:
    """Levels in order; over all copies, or over those of one host, which hold whole sequences."""

    def found(one: Space, **changes: Any) -> list[tuple[int, int, bool]]:
        pipeline = replace(base(one), **{"dp": 8} | changes)
        return [(storage.zero, storage.shard, storage.regather) for storage in one.storages(pipeline)]

    levels = [(0, 0, True)]
    for zero in (1, 2):
        levels += [(zero, 0, True), (zero, 4, True)]
    levels += [(3, 0, True), (3, 0, False), (3, 4, True), (3, 4, False)]
    whole = [(0, 0, True), (1, 0, True), (2, 0, True), (3, 0, True), (3, 0, False)]
    assert found(space()) == levels
    assert found(space(), dp=4) == whole  # a host has them all
    assert found(space(per_host=3)) == whole
    assert found(space(), dp=1) == [(0, 0, True)]
    assert {shard for _, shard, _ in found(space(), dp=4, tp=2)} == {0, 2}
    assert {shard for _, shard, _ in found(space(), dp=4, tp=4)} == {0}
    assert {shard for _, shard, _ in found(space(), dp=2, cp=4)} == {0, 4}
    assert {shard for _, shard, _ in found(space(), dp=1, cp=8)} == {0}
    assert found(space(pins="zero=2")) == [(2, 0, True), (2, 4, True)]
    assert found(space(pins="zero=2"), dp=1) == []
    assert found(space(pins="shard=2,zero=1")) == [(1, 2, True)]
    assert found(space(pins="shard=3,zero=1")) == []
    assert found(space(pins="shard=2")) == [(1, 2, True), (2, 2, True), (3, 2, True), (3, 2, False)]
    assert found(space(pins="zero=3,shard=4,regather=off")) == [(3, 4, False)]
    assert found(space(never={"zero": (0, 1, 3)})) == [(2, 0, True), (2, 4, True)]
    target = replace(ANY, storage=tuple(line for line in ANY.storage if line.name == "optimizer"))
    assert {zero for zero, _, _ in found(space(target=target))} == {0, 1}


def test_layers_are_shared_out_by_the_first_way_that_goes() -> None:
    assert space().shares(2) == (("even", ()),)
    assert space(layers=6).shares(4) == (("ends", ()),)  # 1 + 2 + 2 + 1
    assert space(layers=5).shares(4) == (("spread", ()),)
    assert space(layers=6, pins="split=spread").shares(4) == (("spread", ()),)
    assert space(layers=5, pins="split=even").shares(4) == ()
    assert space(pins="stage_blocks=3+1").shares(2) == (("even", (3, 1)),)
    assert space(pins="stage_blocks=3+1").shares(4) == ()
    assert space(pins="stage_blocks=3+2").shares(2) == ()
    assert space(never={"split": ("even",)}).shares(1) == (("even", ()),)
    assert space(never={"stage_blocks": ("2+2",)}).shares(2) == ()
    assert space(never={"stage_blocks": ("3+1",)}).shares(2) == (("even", ()),)
    # what is even is spread, too: 2 + 2 is what either word says
    assert space(never={"split": ("spread",)}).shares(2) == ()
    assert space(pins="split=spread").shares(2) == (("spread", ()),)


def test_shapes_are_all_of_pipelines_and_storages() -> None:
    one = space(pins="tp=1,cp=1,mbs=1,recompute=none,schedule=1f1b,vp=1")
    (own,) = one.bases()
    found = {(config.pp, config.dp, config.zero, config.shard, config.regather) for config in one.shapes(own)}
    expected = {
        (pp, dp, storage.zero, storage.shard, storage.regather)
        for pp, dp in ((1, 8), (2, 4), (4, 2))
        for storage in one.storages(replace(own, pp=pp, dp=dp))
    }
    assert found == expected
    assert all(one.grants(config) for config in one.shapes(own))
    shaped = Storage(3, 2, regather=False).on(own)
    assert (shaped.zero, shaped.shard, shaped.regather) == (3, 2, False)


def test_wishes_hold_for_names_that_are_of_use() -> None:
    """A schedule says nothing of one stage, and a way to attend nothing where no rank shares a sequence."""
    own = replace(base(space()), dp=8)
    assert space(never={"schedule": ("1f1b",)}).grants(own)
    assert not space(never={"schedule": ("1f1b",)}).grants(replace(own, pp=2, dp=4))
    assert space(never={"context": ("all_gather",)}).grants(own)
    assert not space(never={"context": ("all_gather",)}).grants(replace(own, cp=2, dp=4))
    assert not space(pins="schedule=gpipe").grants(own)
    assert not space(pins="tp=2").grants(own)
    assert not space(pins="stage_blocks=3+1").grants(replace(own, pp=2, dp=4))
    assert space(pins="stage_blocks=3+1").grants(replace(own, pp=2, dp=4, stage_blocks=(3, 1)))
    routed = replace(own, tp=2, etp=0, dp=4)
    assert space(pins="etp=2", experts=(4,)).as_asked(routed, ("etp",))
    assert not space(pins="etp=1", experts=(4,)).as_asked(routed, ("etp",))
    assert space(pins="etp=1").as_asked(routed, ("etp",))


def test_what_is_settled() -> None:
    config = replace(base(space()), tp=2, pp=4, sp=False, open=(("sp", (False,)),))
    assert space().settled(config).sp
    assert not space().settled(replace(config, open=())).sp
    assert space().settled(config).open == ()
    assert space(layers=6).settled(config).split == "ends"
    assert space(layers=3).settled(config).split == "spread"
    assert (space().settled(config).etp, space(experts=(4,)).settled(config).etp) == (0, 2)


def test_what_wishes_leave() -> None:
    constraints = Constraints(only={"tp": (2, 3), "schedule": ("1f1b", "custom"), "vp": (2,)}, never={"tp": (3,)})
    assert [constraints.grants("tp", size) for size in (2, 3, 4)] == [True, False, False]
    assert constraints.among("tp", [1, 2]) == [2]
    assert constraints.among("cp", [1, 2]) == [1, 2]
    assert constraints.named.only == {"tp": (2, 3), "schedule": ("1f1b",), "vp": (2,)}
    assert constraints.meant.only["schedule"] == ("interleaved", "custom")
    assert Constraints(only={"schedule": ("1f1b",), "vp": (1, 2)}).meant.only["schedule"] == ("1f1b",)
    assert Constraints(only={"schedule": ("1f1b",)}).meant.only["schedule"] == ("1f1b",)
    assert Constraints(only={"schedule": ("1f1b", "interleaved"), "vp": (2,)}).meant.only["schedule"] == (
        "interleaved",
    )
    made = Constraints(only={"schedule": ("custom",)})
    assert (made.made_only, constraints.made_only, Constraints().made_only) == (True, False, False)
    assert made.named.only == {}


def test_what_is_left_out_is_said() -> None:
    """With the numbers that `test_sequences_of_a_micro_batch` and others count out."""
    dense, routed = space().truncated, space(experts=(4,)).truncated
    assert dense[0] == "micro-batches of more than 131072 tokens"
    assert routed[0] == "micro-batches of other than 1, 2, 4, 8 sequences"
    assert dense[1:] == routed[1:]
    assert {"less than 2048 tokens of a sequence on a rank", "more than 8 virtual stages"} < set(dense)
