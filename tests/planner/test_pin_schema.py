"""Pins in files and on the command line: what each may be, to the edge, and refusals in full."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.ir.errors import MeshwrightError, PinsContradict, PinValue
from meshwright.ir.files.schema import faults_of
from meshwright.planner.question.pin_schema import (
    ConfigTable,
    ConstraintsTable,
    LineTable,
    config_of,
    constraints_of,
    pin,
    pins_of,
)
from meshwright.planner.question.pins import KNOBS, NAMES, Pins, fill, parse
from tests.planner.handmade import config

WHOLE: dict[str, Any] = config("pp=2,tp=2,stage_blocks=3+1", 4).to_json()


GOOD: list[tuple[str, object, object]] = [
    ("tp", 8, 8),
    ("tp", "8", 8),
    ("tp", 999_999_999, 999_999_999),
    ("tp", "0" * 8 + "7", 7),
    ("zero", 0, 0),
    ("zero", 3, 3),
    ("sp", True, True),
    ("sp", "off", False),
    ("stage_blocks", "8+8+10+6", (8, 8, 10, 6)),
    ("stage_blocks", 4, (4,)),
    ("recompute", "selective:a+b", "selective:a+b"),
    ("recompute", "selective:" + "a" * 990, "selective:" + "a" * 990),
    ("offload", "activations+optimizer", "optimizer+activations"),
]
BAD: list[tuple[str, object]] = [
    ("tp", 1_000_000_000),
    ("tp", 0),
    ("tp", 2.0),
    ("tp", None),
    ("tp", [2]),
    ("tp", True),
    ("zero", 4),
    ("zero", "00"),
    ("sp", 1),
    ("sp", "true"),
    ("schedule", "a:b"),
    ("stage_blocks", "8++8"),
    ("stage_blocks", "1234567890"),
    ("recompute", "selective:" + "a" * 991),
]


def test_values_that_a_pin_may_be() -> None:
    assert [(name, value, pin(name, value)) for name, value, _ in GOOD] == GOOD


def test_values_that_a_pin_may_not_be() -> None:
    for name, value in BAD:
        with pytest.raises(PinValue):
            pin(name, value)


def test_what_a_pin_may_be_as_json_schema() -> None:
    assert KNOBS["tp"].kind.schema == {"type": "integer", "minimum": 1, "maximum": 999_999_999}
    assert KNOBS["zero"].kind.schema == {"type": "integer", "enum": [0, 1, 2, 3]}
    assert KNOBS["sp"].kind.schema == {"enum": [True, False, "on", "off"]}
    recompute = KNOBS["recompute"].kind.schema
    assert recompute["type"] == "string"
    assert recompute["description"].endswith(", selective:A+B or full_layers:N")
    assert KNOBS["split"].kind.schema == {"type": "string", "enum": ["even", "ends", "spread"]}
    assert KNOBS["stage_blocks"].kind.schema["pattern"].startswith(r"\d{1,9}")
    assert KNOBS["offload"].kind.schema == {
        "type": "string",
        "description": "offload, as --fix takes it",
        "maxLength": 1000,
    }


@pytest.mark.parametrize("name", [None, "etp", "shard", "split", "stage_blocks"])
def test_a_configuration_is_read_back_with_what_it_leaves_open(name: str | None) -> None:
    """As zero, or as no text, of the same kind that it is written as."""
    one = WHOLE | ({} if name is None else {name: "" if name in ("split", "stage_blocks") else 0})
    table, refused = faults_of(ConfigTable, one)
    assert not refused
    assert config_of(table).to_json() == one


@pytest.mark.parametrize(
    ("name", "value"),
    [("etp", ""), ("etp", False), ("shard", "0"), ("split", 0), ("tp", 0), ("vp", 0), ("sp", "")],
)
def test_what_is_open_is_written_in_one_way(name: str, value: object) -> None:
    _, refused = faults_of(ConfigTable, WHOLE | {name: value})
    assert [fault.path for fault in refused] == [(name,)]


def test_every_name_of_a_configuration_is_needed() -> None:
    for name in NAMES:
        _, refused = faults_of(ConfigTable, {key: value for key, value in WHOLE.items() if key != name})
        assert [fault.path for fault in refused] == [(name,)]


def test_a_line_has_pins_and_a_batch() -> None:
    table, refused = faults_of(LineTable, {"tp": "4", "sp": "off", "stage_blocks": "3+1", "global_batch": 16})
    assert not refused
    line: Any = table
    assert (pins_of(line), line.global_batch) == (Pins(tp=4, sp=False, stage_blocks=(3, 1)), 16)
    empty: Any = faults_of(LineTable, {})[0]
    assert (pins_of(empty), empty.global_batch) == (Pins(), None)


def test_wishes_stand_as_they_were_given() -> None:
    """In the order of names; layers of stages perhaps as a list."""
    given = {"tp": [2, 4], "sp": [True], "etp": [0, 1], "stage_blocks": [[3, 1], "2+2", ""]}
    table, refused = faults_of(ConstraintsTable, dict(reversed(given.items())))
    assert not refused
    found = constraints_of(table)
    assert found == {"tp": (2, 4), "etp": (0, 1), "sp": (True,), "stage_blocks": ((3, 1), "2+2", "")}
    assert list(found) == ["tp", "etp", "sp", "stage_blocks"]
    for name, values in (
        ("tp", []),
        ("tp", [0]),
        ("tp", [[2, 4]]),
        ("stage_blocks", [[3, True]]),
        ("stage_blocks", [[3, 0.5]]),
        ("stage_blocks", [["3"]]),
    ):
        assert faults_of(ConstraintsTable, {name: values})[1], (name, values)


# Refusals of --fix ---------------------------------------------------------------------------------------------------


REFUSED = [
    ("tp", "--fix tp", "there is no value", "write tp=1, for instance"),
    ("sp", "--fix sp", "there is no value", "write sp=on, for instance"),
    ("zero", "--fix zero", "there is no value", "write zero=0, for instance"),
    ("offload", "--fix offload", "there is no value", "write offload=none, for instance"),
    ("stage_blocks", "--fix stage_blocks", "there is no value", "write stage_blocks=8+8+10+6, for instance"),
    ("own", "--fix own", "there is no value", "write own=8, for instance"),
    ("tp=8,tp=4", "--fix tp=4", "tp is given twice: 8 and 4", "give it once"),
    ("qqqqqqqq=1", "--fix", "'qqqqqqqq' cannot be pinned", f"use {', '.join(NAMES)}"),
    ("tpp=1", "--fix", "'tpp' cannot be pinned", "did you mean 'tp'?"),
    ("tp=x", "--fix tp=x", "'x' is no value of tp", "use 1 or any greater whole number"),
    ("zero=9", "--fix zero=9", "'9' is no value of zero", "use 0 or 1 or 2 or 3"),
    ("sp=yes", "--fix sp=yes", "'yes' is no value of sp", "use on or off"),
    ("split=qqqq", "--fix split=qqqq", "'qqqq' is no value of split", "use even or ends or spread"),
    ("split=end", "--fix split=end", "'end' is no value of split", "did you mean split=ends?"),
    (
        "stage_blocks=x",
        "--fix stage_blocks=x",
        "'x' is no value of stage_blocks",
        "use the layers of every stage, 8+8+10+6 for instance",
    ),
]


def test_what_is_no_pin_is_refused_in_full() -> None:
    found = []
    for text, *_ in REFUSED:
        with pytest.raises(MeshwrightError) as refused:
            parse([text])
        found.append((text, refused.value.place, refused.value.cause, refused.value.fix))
    assert found == REFUSED


@pytest.mark.parametrize(
    ("pins", "cause"),
    [
        (
            Pins(dp=2, mbs=2, microbatches=3),
            "8 sequences on dp=2 copies are 2 micro-batches of mbs=2, not 3",
        ),
        (Pins(dp=2, microbatches=3), "8 sequences for dp * microbatches = 2 * 3"),
        (Pins(dp=2, microbatches=5), "8 sequences for dp * microbatches = 2 * 5"),
        (Pins(dp=2, vp=3), "vp=3 virtual stages without a pipeline (pp=1)"),
        (Pins(dp=2, zero=0, shard=2), "shard=2, and zero=0 cuts nothing"),
        (Pins(pp=2, schedule="custom"), "schedule=custom is an order of work that the search makes for a plan; "),
    ],
)
def test_pins_that_contradict_one_another_are_refused_in_full(pins: Pins, cause: str) -> None:
    with pytest.raises(MeshwrightError) as refused:
        fill(pins, ranks=2, global_batch=8, place="line 7")
    assert refused.value.place == "line 7"
    assert refused.value.cause.startswith(cause)
    assert isinstance(refused.value, PinsContradict) == ("microbatches = " not in cause)


def test_ranks_that_are_left_over_are_copies() -> None:
    """A single one at least, where there are too few: that is refused by its count."""
    assert fill(Pins(tp=2), ranks=8, global_batch=4).dp == 4
    with pytest.raises(MeshwrightError, match="multiply to 16"):
        fill(Pins(tp=16), ranks=8, global_batch=16)
