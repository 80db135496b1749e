"""Pins: what is read, what is refused, and how the rest is filled in."""

from __future__ import annotations

from dataclasses import replace
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
from meshwright.planner.pins import COUNTS, NAMES, SWITCHES, WORDS, Pins, fill, parse, read

DRAWS = st.dictionaries(st.sampled_from(NAMES), st.integers(min_value=0), max_size=len(NAMES))
"""Which pins, and a number that chooses among what each may be."""

OFFLOADS = ("none", "optimizer", "activations", "activations:3", "optimizer+activations")


def value(name: str, draw: int) -> str:
    if name in COUNTS:
        return str(1 + draw % 9)
    if name == "zero":
        return str(draw % 4)
    if name == "stage_blocks":
        return "+".join(str(draw % 7) for _ in range(1 + draw % 3))
    if name == "offload":
        return OFFLOADS[draw % len(OFFLOADS)]
    words = ("on", "off") if name in SWITCHES else WORDS[name]
    return words[draw % len(words)]


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
    assert (pins.dp, pins.recompute, pins.schedule) == (128, "full", "1f1b")


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
    assert pins.stage_blocks == (8, 8, 10, 6)
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
