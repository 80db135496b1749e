"""Reading what nobody vouches for: texts, documents, schemas, and the page of limits."""

from __future__ import annotations

import json
import os
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from meshwright.ir.errors import MeshwrightError, WorkloadImpossible
from meshwright.ir.files.documents import Fault, Unparsed, differences, parse_json, parse_toml, shown, spelled
from meshwright.ir.files.reading import Unreadable, read_text
from meshwright.ir.limits import DEPTH, FILE_BYTES, LIMITS, Limit, counted, render
from meshwright.ir.target.workload import Workload
from meshwright.planner.cli.arguments.reference import SCHEMAS
from meshwright.planner.cli.main import main
from meshwright.planner.cli.verbs.reference.schema import TABLES, schema_of
from meshwright.planner.question.pin_schema import LINE
from tests.mutations import mutated, refusal, repeated

ROOT = Path(__file__).parents[3]
SMALL = Limit(most=10, what="bytes", why="this is a test")


def test_only_a_regular_file_within_its_limit_is_read(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbfa\r\nb")
    assert read_text(tmp_path / "text", SMALL) == "a\nb"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"12345678901")
    (tmp_path / "bytes").write_bytes(b"\xff")
    for name, says in (
        (str(tmp_path / "pipe"), "a pipe"),
        (str(tmp_path), "a directory"),
        ("/dev/zero", "a device"),
        (str(tmp_path / "large"), "11 bytes, and at most 10"),
        (str(tmp_path / "bytes"), "byte 0"),
        (str(tmp_path / "none"), "no such file"),
        ("a" * 5000, "too long"),
        ("a\0b", "no file can have this name"),
    ):
        with pytest.raises(Unreadable, match=says):
            read_text(name, SMALL)


@pytest.mark.parametrize(
    ("text", "says", "path"),
    [
        ('{"a": {"b": 1, "b": 1}}', "given twice", ("a", "b")),
        ('{"a": [0, NaN]}', "it is nan", ("a", 1)),
        ('{"a": -1e999}', "it is -inf", ("a",)),
        (f'{{"a": {"9" * 5000}}}', "too large a number", ("a",)),
        ('{"a": 9223372036854775808}', "too large a number", ("a",)),
        ('{"a": "\\ud800"}', "half a character", ("a",)),
        ("[" * 65 + "]" * 65, "nested too deep", (0, 0, 0, 0)),
    ],
)
def test_what_json_lets_pass_is_refused_at_its_place(text: str, says: str, path: tuple[str | int, ...]) -> None:
    with pytest.raises(Fault, match=says) as caught:
        parse_json(text)
    assert caught.value.path == path


@pytest.mark.parametrize("text", ["", "{", '{"a": tru', "[" * 100_000, "nonsense", '"', '{"a": 01}'])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(Unparsed):
        parse_json(text)


@pytest.mark.parametrize(
    "text", ["a = ", f"a = {'9' * 5000}", "a = " + "[" * 100_000, "a = 1\na = 2", "a = 1e9999999999999999999"]
)
def test_what_is_no_toml_is_refused(text: str) -> None:
    with pytest.raises((Unparsed, Fault)):
        parse_toml(text)


def test_what_is_allowed_passes() -> None:
    deep: Any = 1
    for _ in range(DEPTH.most):
        deep = [deep]
    for document in (deep, {"a": [1, -1.5, None, True, "é", 2**63 - 1]}, 5, "text"):
        assert parse_json(json.dumps(document)) == document


def test_places_and_values_are_written_for_people() -> None:
    assert spelled(("stages", 1, "first")) == "stages[1].first"
    assert spelled(("tensors", "a.b", 0)) == "tensors['a.b'][0]"
    assert shown({"a": 1}) == "an object of 1"
    assert shown("x" * 5000).endswith("…")
    assert list(differences({"a": [1, 2.0]}, {"a": [1, 2.0000001], "b": 1}, near=1e-6)) == [(("b",), None, 1)]


def test_the_page_of_limits_is_current() -> None:
    assert (ROOT / "docs" / "limits.md").read_text() == render(), "python -m meshwright.ir.limits > docs/limits.md"


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_says_how_many_and_why(name: str) -> None:
    limit = LIMITS[name]
    assert not limit.refused(limit.most)
    for number in (limit.most + 1, 10**5000):
        refused = limit.refused(number)
        assert f"at most {limit.most:,}" in refused
        assert limit.why in refused
        assert len(refused) < 300


@pytest.mark.parametrize(("batch", "seq"), [(99999999999999999, 1), (1, 10**30), (0, 1), (1, -1)])
def test_a_workload_beyond_the_limits_is_refused(batch: int, seq: int) -> None:
    with pytest.raises(WorkloadImpossible):
        Workload(global_batch=batch, seq=seq)


# Lines of --configs --------------------------------------------------------------------------------------------------

FULL = {
    "tp": 2, "pp": 2, "dp": 2, "cp": 2, "ep": 2, "etp": 2, "vp": 2, "shard": 2, "zero": 1, "mbs": 2, "microbatches": 2,
    "recompute": "full", "schedule": "1f1b", "sp": True, "context": "ring", "zigzag": "off", "split": "even",
    "stage_blocks": "1+1", "regather": True, "offload": "none", "global_batch": 8,
}  # fmt: skip


def read_line(text: str) -> object:
    return LINE.read(LINE.json(text, "line 1"), "line 1")


def test_every_key_of_a_line_is_held_to_its_schema() -> None:
    read_line(json.dumps(FULL))
    accepted = set[tuple[str, str]]()
    for path, how, line in mutated(FULL):
        refused = refusal(partial(read_line, json.dumps(line)))
        if refused is None:
            accepted.add((str(path[0]), how))
        else:
            assert f"line 1: {spelled(path)}" in refused.place, (path, how)
    legal = {("zero", "zero"), ("zigzag", "true")}
    assert accepted - {("stage_blocks", "zero")} == {(name, "dropped") for name in FULL} | legal
    for path, text in repeated(FULL):
        with pytest.raises(MeshwrightError, match="given twice") as caught:
            read_line(text)
        assert spelled(path) in caught.value.place


# The verb ------------------------------------------------------------------------------------------------------------


def test_the_schema_of_every_kind_of_file_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(SCHEMAS) == set(TABLES)
    for kind in SCHEMAS:
        assert main(["schema", kind]) == 0
        assert json.loads(capsys.readouterr().out) == schema_of(kind)


def test_a_schema_names_the_keys_that_are_read() -> None:
    assert set(schema_of("configs")["properties"]) == set(FULL)
    assert {"stages", "predicted", "bounds"} <= set(schema_of("plan")["required"])
    assert schema_of("plan")["$defs"]["StageOfPlan"]["properties"]["first"]["minimum"] == 0
    assert schema_of("shape")["properties"]["layers"]["maximum"] == LIMITS["LAYERS"].most
    assert schema_of("cluster")["$defs"]["PoolTable"]["additionalProperties"] is False
    assert FILE_BYTES.most == 2**20


# Documents, to the letter --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), ""),
        (("a",), "a"),
        ((3,), "[3]"),
        (("a", "b-c", "d_e"), "a.b-c.d_e"),
        (("a b", "c"), "['a b'].c"),
        (("", 0), "[''][0]"),
        (("x" * 70, "y" * 70), f"{'x' * 60}.{'y' * 60}"),
        (("x " * 40,), f"['{'x ' * 30}']"),
    ],
)
def test_paths_are_written_as_code(path: tuple[str | int, ...], text: str) -> None:
    assert spelled(path) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "an empty object"),
        ([], "an empty list"),
        ({"a": 1, "b": 2}, "an object of 2"),
        ([1], "a list of 1"),
        ("é", '"é"'),
        ("x" * 58, f'"{"x" * 58}"'),
        ("x" * 59, f'"{"x" * 59}…'),
        (Decimal("1.50"), "1.50"),
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
    ],
)
def test_values_are_cut_to_the_length_of_a_message(value: object, text: str) -> None:
    assert shown(value) == text


@pytest.mark.parametrize(
    ("one", "other", "near", "found"),
    [
        ({"a": 1}, {"a": 1}, 0.0, []),
        ({"a": 1, "b": 2}, {"a": 3, "c": 4}, 0.0, [(("a",), 1, 3), (("b",), 2, None), (("c",), None, 4)]),
        ([1, [2, 3]], [1, [2, 4]], 0.0, [((1, 1), 3, 4)]),
        ([1, 2], [1], 0.0, [((), [1, 2], [1])]),
        ([1, 2], (1, 2), 0.0, []),
        ({"a": []}, {"a": {}}, 0.0, [(("a",), [], {})]),
        (1.0, 1.0000001, 1e-6, []),
        (1.0, 1.00001, 1e-6, [((), 1.0, 1.00001)]),
        (1.0, 1.0000001, 0.0, [((), 1.0, 1.0000001)]),
        ("1", 1, 1e-6, [((), "1", 1)]),
        (1, "1", 1e-6, [((), 1, "1")]),
        ({"a": [1.0]}, {"a": [1.0000001]}, 1e-6, []),
        ({"a": 1.0}, {"a": 1.0000001}, 1e-6, []),
    ],
)
def test_documents_differ_at_paths(one: Any, other: Any, near: float, found: list[Any]) -> None:
    assert list(differences(one, other, near=near)) == found


@pytest.mark.parametrize(
    ("text", "line", "column", "cut"),
    [
        ("", 1, 1, True),
        ('{"a": 1', 1, 8, True),
        ('{"a": 1,\n "b"', 2, 5, True),
        ('{"a": "open', 1, 7, True),
        ('{"a": "open" and much more that is no JSON}', 1, 14, False),
        ('{"a": tru', 1, 7, True),
        ("nonsense, and a long one", 1, 1, False),
        ('[1, 2}, {"more": 3, "and": 4}', 1, 6, False),
    ],
)
def test_where_a_text_stops_being_json(text: str, line: int, column: int, cut: bool) -> None:
    with pytest.raises(Unparsed) as caught:
        parse_json(text)
    assert (caught.value.line, caught.value.column, caught.value.cut) == (line, column, cut)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"a": {"b": [1, {"c": 1, "d": 2, "c": 3}]}}', ("a", "b", 1, "c")),
        ('{"a": 1, "b": 2, "b": 3, "a": 4}', ("b",)),
        ("[9223372036854775807, -9223372036854775808]", (1,)),
        ("[1, 2, 9223372036854775808, NaN]", (2,)),
        ('{"x": NaN, "y": Infinity}', ("x",)),
        ('{"x": [], "y": {"z": "\\udc00"}}', ("y", "z")),
        ('{"x": {"\\ud800": 1}}', ("x",)),
    ],
)
def test_the_first_fault_is_told(text: str, path: tuple[str | int, ...]) -> None:
    with pytest.raises(Fault) as caught:
        parse_json(text)
    assert caught.value.path == path


def test_depth_is_counted_in_lists_and_objects() -> None:
    """As many as are allowed one inside the other, and a number in the innermost."""
    for opens, closes in (("[", "]"), ('{"a":', "}")):
        parse_json(opens * DEPTH.most + "1" + closes * DEPTH.most)
        with pytest.raises(Fault, match="nested too deep") as caught:
            parse_json(opens * (DEPTH.most + 1) + "1" + closes * (DEPTH.most + 1))
        assert len(caught.value.path) == 4
    assert parse_toml("a = 1.50\nb = 9223372036854775807") == {"a": Decimal("1.50"), "b": 2**63 - 1}
    with pytest.raises(Fault, match="it is Infinity"):
        parse_toml("a = inf")


def test_long_numbers_are_told_by_their_digits() -> None:
    """10^5000 has 16,610 bits, of which ten are about three digits."""
    assert "about 4983 digits" in SMALL.refused(10**5000)
    assert "11 " in SMALL.refused(11)


def test_numbers_that_are_too_long_to_say_are_told_by_their_digits() -> None:
    """Up to 63 bits they are said; of 64 bits there are about 64 * 0.3 = 19 digits, of 67 about 20."""
    table = {
        2**63 - 1: "9,223,372,036,854,775,807",
        2**63: "a number of about 19 digits of",
        -(2**63) + 1: "-9,223,372,036,854,775,807",
        -(2**66): "a number of about 20 digits of",
    }
    assert {number: counted(number) for number in table} == table
    assert SMALL.refused(10) == ""
    assert SMALL.refused(1234) == "1,234 bytes, and at most 10 are taken on: this is a test"
    assert SMALL.refused(2**66) == "a number of about 20 digits of bytes, and at most 10 are taken on: this is a test"
