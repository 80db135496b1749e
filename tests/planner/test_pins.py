"""Pins: what is read, what is refused, and how the rest is filled in."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.ir.errors import (
    BatchIndivisible,
    MeshwrightError,
    PinRepeated,
    PinsContradict,
    PinUnknown,
    PinValue,
    RanksMismatch,
)
from meshwright.ir.names import Degrees
from meshwright.planner.question.knobs import COUNT
from meshwright.planner.question.pins import KNOBS, NAMES, SHARED, Pins, fill, parse, read

DRAWS = st.dictionaries(st.sampled_from(NAMES), st.integers(min_value=0), max_size=len(NAMES))
"""Which pins, and a number that chooses among what each may be."""

WORDS = {
    **{name: one.kind.words or ("on", "off") for name, one in KNOBS.items()},
    "zero": ("0", "1", "2", "3"),
    "stage_blocks": ("4", "0+6", "3+1", "2+2+5"),
    "offload": ("none", "optimizer", "activations", "activations:3", "optimizer+activations"),
}


def value(name: str, draw: int) -> str:
    return str(1 + draw % 9) if KNOBS[name].kind is COUNT else WORDS[name][draw % len(WORDS[name])]


@given(DRAWS)
def test_text_and_json_say_the_same(draws: dict[str, int]) -> None:
    words = {name: value(name, draw) for name, draw in draws.items()}
    text = ",".join(f" {name} = {word}" for name, word in words.items())
    pins = parse([text])
    assert pins == parse([f"{name}={word}" for name, word in words.items()])
    assert pins == read(pins.to_json(), "line 1")
    assert set(pins.to_json()) == set(words)


def test_what_the_design_promises_can_be_pinned() -> None:
    """DESIGN fixes these names at the edge."""
    pins = parse(["tp=8,pp=16,dp=128,cp=1,ep=8,etp=1,vp=4,zero=1,mbs=1,recompute=full,schedule=1f1b"])
    assert tuple(pins.given[name] for name in ("dp", "recompute", "schedule")) == (128, "full", "1f1b")


@pytest.mark.parametrize(
    ("text", "kind", "told"),
    [
        ("ttp=8", PinUnknown, "did you mean 'tp'?"),
        ("nonsense=8", PinUnknown, "tp, pp, dp"),
        ("tp", PinValue, "tp=1"),
        ("recompute", PinValue, "recompute=none"),
        ("tp=", PinValue, "''"),
        ("tp=eight", PinValue, "'eight'"),
        ("tp=0", PinValue, "tp=0"),
        ("tp=-2", PinValue, "1 or any greater"),
        ("tp=2.0", PinValue, "2.0"),
        ("tp=²", PinValue, "²"),
        pytest.param(f"tp={'9' * 5000}", PinValue, "1 or any greater", id="tp=999…"),
        ("zero=4", PinValue, "0 or 1 or 2 or 3"),
        ("recompute=ful", PinValue, "did you mean recompute=full?"),
        ("schedule=1b1f", PinValue, "1f1b"),
        ("sp=true", PinValue, "on or off"),
        ("offload", PinValue, "offload=none"),
        ("offload=optimiser", PinValue, "did you mean 'optimizer'?"),
        ("offload=activations:x", PinValue, "activations:N"),
        ("offload=on", PinValue, "'on'"),
        ("tp=8,pp=2,tp=4", PinRepeated, "8 and 4"),
        ("tp=8,tp=8", PinRepeated, "give it once"),
    ],
)
def test_refused(text: str, kind: type[MeshwrightError], told: str) -> None:
    with pytest.raises(kind) as refusal:
        parse([text])
    assert told in str(refusal.value)


def test_what_is_pinned_reaches_degrees() -> None:
    """By the same name, but for one; what `mbs` says is in the number of micro-batches."""
    meant = {one.name for one in fields(Degrees)}
    assert {*SHARED} == {*NAMES} - {"sp", "mbs"} == meant - {"sequence_parallel"}
    found = fill(parse(["tp=2,dp=2,zero=3,recompute=full,stage_blocks=3+1,offload=optimizer"]), ranks=8, global_batch=8)
    assert [getattr(found.degrees(), name) for name in SHARED] == [getattr(found, name) for name in SHARED]
    assert found.degrees().sequence_parallel
    assert not replace(found, sp=False).degrees().sequence_parallel


def test_names_that_there_are_not_are_no_pins() -> None:
    with pytest.raises(TypeError, match="zeor"):
        Pins(tp=2, zeor=1)


@pytest.mark.parametrize("odd", [True, None, 2.5, [1], {"a": 1}])
def test_json_values_of_other_types_are_refused(odd: Any) -> None:
    with pytest.raises(PinValue):
        read({"tp": odd}, "line 1")


def test_switches_are_json_booleans_too() -> None:
    assert read({"sp": False, "zigzag": True}, "line 1") == Pins(sp=False, zigzag=True)


sizes = st.sampled_from((1, 2, 3, 4, 8))


@settings(max_examples=200)
@given(sizes, sizes, sizes, sizes, sizes, sizes)
def test_what_is_filled_in_multiplies_out(tp: int, pp: int, cp: int, dp: int, mbs: int, count: int) -> None:
    ranks, batch = tp * pp * cp * dp, dp * mbs * count
    fixed = Pins(tp=tp, pp=pp, cp=cp)
    one, other = (
        fill(pins.over(fixed), ranks=ranks, global_batch=batch) for pins in (Pins(mbs=mbs), Pins(microbatches=count))
    )
    assert one == other
    assert (one.dp, one.mbs, one.microbatches) == (dp, mbs, count)
    assert one.zero == (dp * cp > 1)
    assert one.sp == (tp > 1)
    settled = replace(one, open=())
    assert settled.degrees().ranks == ranks
    again = fill(parse([str(settled)]), ranks=ranks, global_batch=batch)
    assert replace(again, open=()) == settled


def test_layers_of_stages_are_read_and_written() -> None:
    pins = parse(["pp=4,stage_blocks=8+8+10+6"])
    assert pins.given["stage_blocks"] == (8, 8, 10, 6)
    config = fill(pins, ranks=4, global_batch=8)
    assert config.to_json()["stage_blocks"] == "8+8+10+6"
    assert "stage_blocks=8+8+10+6" in str(config)
    assert config.degrees().stage_blocks == (8, 8, 10, 6)
    with pytest.raises(PinValue, match="the layers of every stage"):
        parse(["stage_blocks=8+"])


def test_schedules_follow_virtual_stages() -> None:
    assert fill(Pins(pp=2), ranks=2, global_batch=4).schedule == "1f1b"
    assert fill(Pins(pp=2, vp=2), ranks=2, global_batch=4).schedule == "interleaved"
    assert fill(Pins(pp=2, schedule="gpipe"), ranks=2, global_batch=4).schedule == "gpipe"
    assert fill(Pins(pp=2, schedule="zbv"), ranks=2, global_batch=4).vp == 2
    assert fill(Pins(pp=2, schedule="zb-h1"), ranks=2, global_batch=4).vp == 1


def test_zigzag_is_for_sequences_cut_inside_attention() -> None:
    assert fill(Pins(cp=2), ranks=2, global_batch=1).zigzag
    assert not fill(Pins(cp=2, context="ulysses"), ranks=2, global_batch=1).zigzag
    assert not fill(Pins(cp=2, zigzag=False), ranks=2, global_batch=1).zigzag
    assert not fill(Pins(zigzag=True), ranks=2, global_batch=2).zigzag


@pytest.mark.parametrize(
    ("pins", "batch", "kind", "told"),
    [
        (Pins(tp=3), 64, RanksMismatch, "tp * "),
        (Pins(tp=2, dp=3), 64, RanksMismatch, "multiply to 6"),
        (Pins(tp=16), 64, RanksMismatch, "multiply to 16"),
        (Pins(dp=8), 60, BatchIndivisible, "60 sequences"),
        (Pins(dp=8, mbs=3), 64, BatchIndivisible, "8 * 3"),
        (Pins(dp=8, microbatches=3), 64, BatchIndivisible, "8 * 3"),
        (Pins(dp=8, microbatches=16), 64, BatchIndivisible, "8 * 16"),
        (Pins(dp=8, mbs=2, microbatches=2), 64, PinsContradict, "4 micro-batches of mbs=2, not 2"),
        (Pins(vp=2), 64, PinsContradict, "vp=2"),
        (Pins(zero=0, shard=2), 64, PinsContradict, "shard=2"),
    ],
)
def test_what_cannot_hold_together(pins: Pins, batch: int, kind: type[MeshwrightError], told: str) -> None:
    with pytest.raises(kind) as refusal:
        fill(pins, ranks=8, global_batch=batch)
    assert told in str(refusal.value)


def test_lines_win_over_what_is_fixed_for_all() -> None:
    assert Pins(tp=2).over(Pins(tp=8, pp=4)) == Pins(tp=2, pp=4)


PLAIN: dict[str, Any] = {
    **dict.fromkeys(("tp", "pp", "dp", "cp", "ep", "vp", "mbs", "microbatches"), 1),
    **dict.fromkeys(("etp", "shard", "zero"), 0),
    **dict.fromkeys(("sp", "zigzag"), False),
    "recompute": "none",
    "schedule": "1f1b",
    "context": "all_gather",
    "split": "even",
    "stage_blocks": "",
    "regather": True,
    "offload": "none",
}
"""One rank and one sequence, as the table of `meshwright.planner.question.pins` says."""

ELSE_ZERO = ("zero", (2, 3, 0))
ELSE_TP = (("sp", (False,)), ("etp", (1,)))
ELSE_PP = ("split", ("ends", "spread"))
ELSE_CP = (("zigzag", (False,)), ("context", ("ring", "ulysses")))


@pytest.mark.parametrize(
    ("pins", "ranks", "batch", "meant", "otherwise"),
    [
        ("", 1, 1, {}, ()),
        ("", 4, 8, {"dp": 4, "zero": 1, "microbatches": 2}, (ELSE_ZERO,)),
        ("zero=0", 4, 8, {"dp": 4, "microbatches": 2}, ()),
        ("zero=3,shard=2,regather=off", 4, 4, {"dp": 4, "zero": 3, "shard": 2, "regather": False}, ()),
        ("shard=2", 4, 4, {"dp": 4, "zero": 1, "shard": 2}, (("zero", (2, 3)),)),
        ("tp=2", 2, 1, {"tp": 2, "sp": True}, ELSE_TP),
        ("tp=2,sp=off", 2, 1, {"tp": 2}, (ELSE_TP[1],)),
        ("sp=on", 1, 1, {}, ()),
        ("tp=2,etp=2", 2, 1, {"tp": 2, "sp": True, "etp": 2}, (ELSE_TP[0],)),
        ("cp=2", 2, 1, {"cp": 2, "zero": 1, "zigzag": True}, (*ELSE_CP, ELSE_ZERO)),
        ("cp=2,zigzag=off,zero=1", 2, 1, {"cp": 2, "zero": 1}, (ELSE_CP[1],)),
        ("cp=2,context=ring,zero=1", 2, 1, {"cp": 2, "zero": 1, "zigzag": True, "context": "ring"}, (ELSE_CP[0],)),
        ("cp=2,context=ulysses,zero=1", 2, 1, {"cp": 2, "zero": 1, "context": "ulysses"}, ()),
        ("zigzag=on", 1, 1, {}, ()),
        ("pp=2", 2, 4, {"pp": 2, "microbatches": 4}, (ELSE_PP,)),
        ("pp=2,vp=2", 2, 4, {"pp": 2, "vp": 2, "schedule": "interleaved", "microbatches": 4}, (ELSE_PP,)),
        ("pp=2,schedule=zbv", 2, 4, {"pp": 2, "vp": 2, "schedule": "zbv", "microbatches": 4}, (ELSE_PP,)),
        ("schedule=zbv", 1, 4, {"schedule": "zbv", "microbatches": 4}, ()),
        ("pp=2,split=spread", 2, 4, {"pp": 2, "split": "spread", "microbatches": 4}, ()),
        ("stage_blocks=3+1", 2, 1, {"pp": 2, "stage_blocks": "3+1"}, ()),
        ("stage_blocks=3", 1, 1, {"stage_blocks": "3"}, ()),
        (
            "stage_blocks=1+2+3+4,vp=2",
            2,
            1,
            {"pp": 2, "vp": 2, "schedule": "interleaved", "stage_blocks": "1+2+3+4"},
            (),
        ),
        (
            "stage_blocks=1+2+3+4,pp=2",
            2,
            1,
            {"pp": 2, "vp": 2, "schedule": "interleaved", "stage_blocks": "1+2+3+4"},
            (),
        ),
        ("stage_blocks=1+2,pp=2", 2, 1, {"pp": 2, "stage_blocks": "1+2"}, ()),
        ("stage_blocks=1+2,pp=1", 1, 1, {"stage_blocks": "1+2"}, ()),
        ("mbs=2", 2, 8, {"dp": 2, "zero": 1, "mbs": 2, "microbatches": 2}, (ELSE_ZERO,)),
        ("microbatches=2", 2, 8, {"dp": 2, "zero": 1, "mbs": 2, "microbatches": 2}, (ELSE_ZERO,)),
        ("ep=2,dp=2,zero=1", 2, 2, {"dp": 2, "ep": 2, "zero": 1}, ()),
        ("recompute=full,offload=optimizer", 1, 1, {"recompute": "full", "offload": "optimizer"}, ()),
    ],
)
def test_what_is_left_open_is_filled_in(
    pins: str, ranks: int, batch: int, meant: dict[str, Any], otherwise: tuple[tuple[str, tuple[Any, ...]], ...]
) -> None:
    config = fill(parse([pins]), ranks=ranks, global_batch=batch)
    assert config.to_json() == PLAIN | meant
    assert sorted(config.open) == sorted(otherwise)


@pytest.mark.parametrize(
    ("pins", "ranks", "batch", "text"),
    [
        ("", 1, 1, "tp=1,pp=1,dp=1,zero=0,mbs=1,microbatches=1,recompute=none,schedule=1f1b"),
        (
            "tp=2,sp=off,cp=2,zigzag=off,ep=2,etp=1,shard=2,zero=3,regather=off,context=ring",
            8,
            2,
            (
                "tp=2,pp=1,dp=2,cp=2,ep=2,etp=1,shard=2,zero=3,mbs=1,microbatches=1,recompute=none,schedule=1f1b,sp=off,"
                "context=ring,zigzag=off,regather=off"
            ),
        ),
        (
            "tp=2,cp=2,pp=2,vp=3,split=ends,offload=optimizer,zero=1",
            8,
            4,
            (
                "tp=2,pp=2,dp=1,cp=2,vp=3,zero=1,mbs=1,microbatches=4,recompute=none,schedule=interleaved,split=ends,"
                "offload=optimizer"
            ),
        ),
        (
            "stage_blocks=3+1",
            2,
            1,
            "tp=1,pp=2,dp=1,zero=0,mbs=1,microbatches=1,recompute=none,schedule=1f1b,stage_blocks=3+1",
        ),
    ],
)
def test_a_configuration_is_written_without_what_goes_without_saying(
    pins: str, ranks: int, batch: int, text: str
) -> None:
    config = fill(parse([pins]), ranks=ranks, global_batch=batch)
    assert str(config) == text
    assert str(fill(parse([text]), ranks=ranks, global_batch=batch)) == text


def test_the_way_that_works_has_as_little_as_possible_otherwise() -> None:
    """Both names may be otherwise; of the ways with one otherwise the last name's comes first."""
    config = fill(parse(["tp=2,pp=2"]), ranks=4, global_batch=1)
    tried: list[tuple[bool, int, str]] = []

    def judge(one: Any) -> None:
        assert one.open == ()
        tried.append((one.sp, one.etp, one.split))
        if one.sp or one.split == "even":
            raise BatchIndivisible(place="here", cause=str(len(tried)), fix="none")

    found = config.workable(judge)
    assert tried[:5] == [
        (True, 0, "even"),
        (True, 0, "ends"),
        (True, 0, "spread"),
        (True, 1, "even"),
        (False, 0, "even"),
    ]
    assert (found.sp, found.etp, found.split) == (False, 0, "ends") == tried[-1]

    def never(one: Any) -> None:
        tried.append((one.sp, one.etp, one.split))
        raise BatchIndivisible(place="here", cause=str(len(tried)), fix="none")

    tried.clear()
    with pytest.raises(BatchIndivisible, match="1"):
        config.workable(never)
    assert len(set(tried)) == len(tried) == 2 * 2 * 3


def test_what_decides_how_bodies_are_split() -> None:
    """The number of micro-batches and stages does not; ZeRO decides their plans, and not how operators are split."""
    plain = fill(parse(["dp=4,zero=1"]), ranks=4, global_batch=8)
    assert plain.batch == 4
    assert replace(plain, mbs=2).batch == 8
    for name, value in {"microbatches": 9, "pp": 2, "vp": 2, "schedule": "gpipe", "split": "ends"}.items():
        other = replace(plain, **{name: value})  # type: ignore[arg-type]
        assert (other.compute, other.kind) == (plain.compute, plain.kind)
    for name, value in {"zero": 2, "shard": 2, "regather": False, "recompute": "full"}.items():
        other = replace(plain, **{name: value})  # type: ignore[arg-type]
        assert other.compute == plain.compute
        assert other.kind != plain.kind
    for name in ("tp", "dp", "cp", "ep", "etp", "mbs"):
        assert replace(plain, **{name: 7}).compute != plain.compute  # type: ignore[arg-type]
    for name, value in {"sp": True, "context": "ring", "zigzag": True}.items():
        assert replace(plain, **{name: value}).compute != plain.compute  # type: ignore[arg-type]


REFUSED: tuple[tuple[str, str, str, str], ...] = (
    ("tp", "--fix tp", "there is no value", "write tp=1, for instance"),
    ("zero", "--fix zero", "there is no value", "write zero=0, for instance"),
    ("sp", "--fix sp", "there is no value", "write sp=on, for instance"),
    ("nothing", "--fix nothing", "there is no value", "write nothing=8, for instance"),
    ("tp=2, tp = 4", "--fix tp = 4", "tp is given twice: 2 and 4", "give it once"),
    ("ttp=2", "--fix", "'ttp' cannot be pinned", "did you mean 'tp'?"),
    ("qqqqqqq=2", "--fix", "'qqqqqqq' cannot be pinned", f"use {', '.join(NAMES)}"),
    ("tp=1234567890", "--fix tp=1234567890", "'1234567890' is no value of tp", "use 1 or any greater whole number"),
    ("zero=01", "--fix zero=01", "'01' is no value of zero", "use 0 or 1 or 2 or 3"),
    ("sp=yes", "--fix sp=yes", "'yes' is no value of sp", "use on or off"),
    ("split=qqqqq", "--fix split=qqqqq", "'qqqqq' is no value of split", "use even or ends or spread"),
    ("context=a:b", "--fix context=a:b", "'a:b' is no value of context", "use all_gather or ring or ulysses"),
    ("split=evn", "--fix split=evn", "'evn' is no value of split", "did you mean split=even?"),
    (
        "stage_blocks=1+1234567890",
        "--fix stage_blocks=1+1234567890",
        "'1+1234567890' is no value of stage_blocks",
        "use the layers of every stage, 8+8+10+6 for instance",
    ),
)
CONTRADICT: tuple[tuple[Pins, int, str, str], ...] = (
    (
        Pins(schedule="custom"),
        64,
        "schedule=custom is an order of work that the search makes for a plan; names alone do not say it",
        "name another schedule, or let `plan MODEL --fix schedule=custom` make one",
    ),
    (
        Pins(vp=2),
        64,
        "vp=2 virtual stages without a pipeline (pp=1)",
        "pin pp too, or leave vp out",
    ),
    (Pins(zero=0, shard=2), 64, "shard=2, and zero=0 cuts nothing", "pin zero=1, 2 or 3 too"),
    (Pins(tp=8, shard=1), 64, "shard=1, and zero=0 cuts nothing", "pin zero=1, 2 or 3 too"),
    (
        Pins(dp=8, microbatches=16),
        64,
        "64 sequences for dp * microbatches = 8 * 16",
        "pin mbs instead, or numbers whose product divides the global batch",
    ),
    (
        Pins(dp=4, tp=2, mbs=2, microbatches=2),
        64,
        "64 sequences on dp=4 copies are 8 micro-batches of mbs=2, not 2",
        "pin one of the two",
    ),
)


def test_refusals_of_pins_in_full() -> None:
    for text, place, cause, fix in REFUSED:
        with pytest.raises(MeshwrightError) as refused:
            parse([text])
        assert (refused.value.place, refused.value.cause, refused.value.fix) == (place, cause, fix)
    for pins, batch, cause, fix in CONTRADICT:
        with pytest.raises(MeshwrightError) as refused:
            fill(pins, ranks=8, global_batch=batch, place="line 3")
        assert (refused.value.place, refused.value.cause, refused.value.fix) == ("line 3", cause, fix)
    with pytest.raises(PinValue) as offload:
        read({"offload": "on"}, "line 4")
    assert offload.value.place == "line 4 offload=on"


def test_pins_as_far_as_they_go() -> None:
    """Nine digits, zeros before others, blanks between commas; what is open in the order in which it is given up."""
    assert parse(["tp=123456789, ,pp=08", "", " sp = off "]) == Pins(tp=123456789, pp=8, sp=False)
    assert parse(["stage_blocks=0+123456789", "recompute=selective:layernorm"]) == Pins(
        stage_blocks=(0, 123456789), recompute="selective:layernorm"
    )
    whole = fill(Pins(tp=2, cp=2, pp=2, dp=2), ranks=16, global_batch=4)
    assert whole.open == (*ELSE_TP[:1], ELSE_CP[0], ELSE_TP[1], ELSE_PP, ELSE_CP[1], ELSE_ZERO)
    assert fill(Pins(mbs=4, microbatches=2), ranks=1, global_batch=8).microbatches == 2
    assert fill(Pins(), ranks=8, global_batch=8) == fill(Pins(), ranks=8, global_batch=8, place="elsewhere")
    for layers, pins, stages in (
        ((1, 2, 3), Pins(pp=2), (2, 1)),
        ((1, 2, 3), Pins(vp=2, pp=2), (2, 2)),
        ((1, 2, 3, 4), Pins(pp=4), (4, 1)),
        ((1, 2, 3, 4), Pins(), (4, 1)),
    ):
        made = fill(Pins(stage_blocks=layers).over(pins), ranks=stages[0], global_batch=1)
        assert (made.pp, made.vp) == stages
