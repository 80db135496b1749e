"""The words of the command line: what every verb has where nothing is said, and which values are read."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any

import pytest

from meshwright.planner.cli.arguments import common as arguments
from meshwright.planner.cli.arguments.reference import SCHEMAS
from meshwright.planner.cli.main import VERBS, build_parser, main, with_verb
from meshwright.planner.cli.verbs.reference.schema import DRAFT, TABLES, schema_of

OUT: dict[str, Any] = {"json": False, "dump_after": None, "seed": 0}
WORKLOAD: dict[str, Any] = {
    "global_batch": None,
    "micro_batch": None,
    "seq": None,
    "dtype": None,
    "optimizer": "adamw",
    "stack": None,
    "style": None,
    "recipe": None,
    "imbalance": 1.0,
}
ASKED: dict[str, Any] = WORKLOAD | {
    "profile": None,
    "target": None,
    "fix": [],
    "allow": [],
    "forbid": [],
    "objective": "time",
    "time_limit": None,
    "operators": False,
    "max_gap": None,
    "top": 5,
}
"""What `plan` asks, and `init` writes down."""
DEFAULTS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "plan": (
        ["m", "--cluster", "c"],
        OUT
        | ASKED
        | {
            "model": "m",
            "cluster": "c",
            "out": None,
            "force": False,
            "config": None,
            "no_cache": False,
            "detail": "page",
            "what_if": [],
            "scale": None,
            "scaling": "strong",
            "beat": None,
            "from_format": None,
        },
    ),
    "estimate": (
        ["m", "--cluster", "c"],
        OUT
        | WORKLOAD
        | {
            "model": "m",
            "cluster": "c",
            "profile": None,
            "target": "any",
            "fix": [],
            "annotated": None,
            "from_": None,
            "from_format": None,
            "no_cache": False,
            "configs": None,
            "config": None,
            "jobs": 2,
            "top": 20,
            "check": False,
        },
    ),
    "explain": ([], {"plan": ".", "why_not": None, "model": None, "cluster": None, "detail": "page", "json": False}),
    "diff": (["a", "b"], {"a": "a", "b": "b", "json": False}),
    "report": (["p", "--out", "f"], {"plan": "p", "model": None, "json": False, "out": "f", "force": False}),
    "trace": (
        ["p", "--out", "f"],
        {"plan": "p", "model": None, "json": False, "out": "f", "force": False, "measured": [], "skip": 1},
    ),
    "emit": (
        ["p", "--out", "d"],
        {
            "plan": "p",
            "model": None,
            "json": False,
            "out": "d",
            "force": False,
            "target": None,
            "tiny": False,
            "init": None,
            "to": None,
        },
    ),
    "verify": (
        ["p"],
        {
            "plan": "p",
            "model": None,
            "json": False,
            "tiny": False,
            "steps": 2,
            "time_limit": 120.0,
            "memory_limit": None,
            "out": None,
            "alone": False,
        },
    ),
    "compare": (["p", "log"], {"plan": "p", "log": ["log"], "skip": 1, "learn": None, "json": False}),
    "inspect": (
        ["m"],
        OUT
        | {"model": "m", "config": None, "batch": 1, "seq": 1024, "dtype": "bf16", "style": "eager", "device": "cuda"},
    ),
    "cluster": (["show", "c"], {"action": "show", "cluster": "c", "verbose": False, "json": False}),
    "calibrate": (
        [],
        {
            "ranks": 2,
            "threads": 1,
            "target": "torch-gloo",
            "dtype": None,
            "config": None,
            "model": None,
            "global_batch": 8,
            "seq": 128,
            "quick": False,
            "plan_only": False,
            "force": False,
            "name": None,
            "out": None,
            "json": False,
        },
    ),
    "profile": (["show"], {"action": "show", "paths": [], "out": None, "json": False}),
    "cache": ([], {"action": "show", "json": False}),
    "gpus": ([], {"name": None, "json": False}),
    "errors": ([], {"code": None, "verbose": False, "json": False}),
    "init": (
        [],
        ASKED
        | {
            "model": None,
            "cluster": None,
            "seed": 0,
            "out": "plan.toml",
            "force": False,
        },
    ),
    "completion": (["bash"], {"shell": "bash"}),
    "schema": (["plan"], {"kind": "plan"}),
}


def parsed(verb: str, *argv: str) -> dict[str, Any]:
    found = vars(build_parser().parse_args([verb, *argv]))
    assert found.pop("verb") == verb
    assert found.pop("module") == next(one.module for one in VERBS if one.name == verb)
    return found


def test_every_verb_is_here() -> None:
    assert {verb.name for verb in VERBS} == set(DEFAULTS)


@pytest.mark.parametrize("verb", DEFAULTS)
def test_what_is_not_said_is_so(verb: str) -> None:
    argv, expected = DEFAULTS[verb]
    assert parsed(verb, *argv) == expected


@pytest.mark.parametrize("verb", [verb for verb, (argv, _) in DEFAULTS.items() if argv])
def test_what_must_be_said(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All but the last word, or the last two where that is of an option."""
    argv, _ = DEFAULTS[verb]
    short = argv[:-2] if len(argv) > 1 and argv[-2].startswith("--") else argv[:-1]
    with pytest.raises(SystemExit) as end:
        build_parser().parse_args([verb, *short])
    assert end.value.code == 2
    assert "required" in capsys.readouterr().err


def test_options_that_may_be_given_again() -> None:
    found = parsed("plan", "m", "--cluster", "c", "--fix", "a", "--fix", "b", "--allow", "c", "--forbid", "d")
    assert (found["fix"], found["allow"], found["forbid"]) == (["a", "b"], ["c"], ["d"])
    again = parsed("plan", "m", "--cluster", "c")
    assert (again["fix"], again["allow"], again["forbid"]) == ([], [], [])


@pytest.mark.parametrize(
    ("read", "good", "bad"),
    [
        (arguments.positive, {"1": 1, "007": 7, "9" * 20: 10**20 - 1}, ["0", "-1", "", "1.0", "9" * 21]),
        (arguments.whole, {"0": 0, "-3": -3, "9" * 20: 10**20 - 1}, ["", "--3", "1.0", "+3", "9" * 21]),
        (arguments.count, {"0": 0, "3": 3}, ["-1", "", "x", "9" * 21]),
        (
            arguments.at_least_one,
            {"1": 1.0, "1.5": 1.5, "1.": 1.0, "2e0": 2.0},
            ["0.99", ".5", "-1", "inf", "1e999", "nan", "1e9999", ""],
        ),
        (arguments.at_least_zero, {"0": 0.0, ".5": 0.5, "1e-3": 0.001, "0.02": 0.02}, ["-0.1", "inf", "1e400", "x"]),
    ],
)
def test_numbers_that_are_read(read: Callable[[str], float], good: dict[str, float], bad: list[str]) -> None:
    assert {text: read(text) for text in good} == good
    for text in bad:
        with pytest.raises(ArgumentTypeError, match="is not a "):
            read(text)


def test_what_is_repeated_of_a_value_is_cut() -> None:
    for read in (arguments.positive, arguments.whole, arguments.count, arguments.at_least_one, arguments.at_least_zero):
        with pytest.raises(ArgumentTypeError) as refused:
            read("x" * 99)
        assert str(refused.value).startswith(f"'{'x' * 60}' is not a ")


@pytest.mark.parametrize(
    ("words", "verb"),
    [
        (["m.toml"], True),
        (["-q", "m.toml"], True),
        (["--config=plan.toml"], True),
        (["--version"], False),
        (["--clustre", "c"], False),
        (["plam"], False),  # close to a verb
        (["plan"], False),
        (["-h"], False),
        ([], False),
    ],
)
def test_a_command_line_that_begins_with_a_model(words: list[str], verb: bool) -> None:
    assert with_verb(words, VERBS) == (["plan", *words] if verb else words)
    assert with_verb(words, VERBS[1:]) == words  # without that verb nothing is short for it


def test_a_file_that_is_called_like_a_slip_is_a_model(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plam").touch()
    assert with_verb(["plam"], VERBS) == ["plan", "plam"]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_kind_of_file_has_a_schema(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(SCHEMAS) == set(TABLES)
    found = schema_of(kind)
    assert found["$schema"] == DRAFT
    assert found["type"] == ("array" if kind == "matrix" else "object")
    assert main(["schema", kind]) == 0
    assert capsys.readouterr().out.startswith(f'{{\n  "$schema": "{DRAFT}",\n')
