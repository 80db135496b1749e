"""The fuzz of the command line: what it calls a fault, and a sample of its cases."""

import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.fuzz import KINDS, drawn
from benchmarks.fuzzing.case import Case, Ran, faults
from benchmarks.fuzzing.documents import Told, as_json, as_toml, changed

REPO = Path(__file__).parents[2]
REFUSAL = "error MW2008 at config.json: n_layer: it is 0\n  fix: give a whole number\n"
TRACEBACK = "Traceback (most recent call last):\n"


def ran(code: int | None, err: str = "", out: str = "", *, out_of_time: bool = False) -> Ran:
    return Ran(
        code=code, stopped=None if code is not None else 11, out_of_time=out_of_time, cpu_s=1.0, out=out, err=err
    )


PLAIN, NONSENSE = Case(argv=("inspect", "x")), Case(argv=("inspect", "x"), nonsense="x is none")
LINES, JSON = Case(argv=("estimate",), nonsense="a line", lines=True), Case(argv=("inspect", "x", "--json"))


@pytest.mark.parametrize(
    ("case", "how", "said"),
    [
        (PLAIN, ran(0), []),
        (PLAIN, ran(6, REFUSAL), []),
        (PLAIN, ran(2, "usage: plan\nplan inspect: error: argument --seq: 'x' is not a number\n"), []),
        (PLAIN, ran(2, "error MW2008 at config.json: n_layer: it is 0\n"), ["no reason"]),
        (PLAIN, ran(6, ""), ["no reason"]),
        (PLAIN, ran(1, "error MW9002 at plan inspect: x\n  fix: y\n"), ["exit 1"]),
        (PLAIN, ran(70, TRACEBACK), ["exit 70", "traceback"]),
        (PLAIN, ran(None, out_of_time=True), ["hang"]),
        (PLAIN, ran(None), ["stopped by signal 11"]),
        (NONSENSE, ran(6, REFUSAL), []),
        (NONSENSE, ran(0), ["accepted"]),
        (NONSENSE, ran(3), ["accepted"]),
        (LINES, ran(0, out="2 MW8005 tp=0"), []),
        (LINES, ran(0, out="2 tp=0"), ["accepted"]),
        (JSON, ran(6, REFUSAL, '{"error": {}}\n'), []),
        (JSON, ran(6, REFUSAL), ["no JSON"]),
        (Case(argv=(), signal=15), ran(143), []),
        (PLAIN, ran(143), ["exit 143"]),
    ],
)
def test_how_a_case_may_end(case: Case, how: Ran, said: list[str]) -> None:
    assert list(faults(case, how)) == said


PLAN: dict[str, Any] = {
    "placements": {"Block": {"body": "Block", "states": {"in0": "[-]"}, "strategies": {"linear": "dp=n"}}},
    "stages": [{"plans": ["Block"], "blocks": {"Block": 1}}],
    "ranks": [[0, 1]],
    "model": {"tensors": {"a": "bf16[1]"}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_case_follows_from_its_seed_and_number(kind: str) -> None:
    plan = json.dumps(PLAN).encode()
    cases = [drawn("7", number, kind, plan)[1] for number in range(30)]
    assert cases == [drawn("7", number, kind, plan)[1] for number in range(30)]
    assert len(set(cases)) > 10


DOCUMENT = {"size": 4, "name": "a", "inside": {"size": 2, "free": [1, 2]}}
TOLD = Told(needed=lambda path: path == ("size",), sized=lambda path: path[-1] == "size", typed=lambda path: True)


def test_what_is_called_nonsense_says_why() -> None:
    """Whatever reads as the same document is none."""
    reasons = set()
    for seed in range(500):
        text, nonsense = changed(Random(seed), DOCUMENT, TOLD, as_json)
        reasons.add(nonsense.partition(" at ")[0])
        try:
            same = json.loads(text) == DOCUMENT and text.count('"size"') == 2 and text.count('"name"') == 1
        except (ValueError, RecursionError):
            same = False
        assert not (same and nonsense and "twice" not in nonsense)
    assert reasons == {
        "", "a key is missing", "an unknown key", "another type", "a negative size", "a number that is not finite",
        "an endless number", "deep nesting", "a key given twice", "the file ends in the middle",
    }  # fmt: skip


def test_documents_are_written_as_they_are_read() -> None:
    import tomllib

    assert tomllib.loads(as_toml(DOCUMENT)) == json.loads(as_json(DOCUMENT)) == DOCUMENT


@pytest.mark.e2e
@pytest.mark.slow
def test_cases_of_a_seed() -> None:
    command = [sys.executable, "-m", "benchmarks.fuzz", "--draw", "50", "--seed", "sample", "--jobs", "1"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout
    assert "traceback: 0, exit 1: 0, hang: 0, accepted: 0, other: 0" in done.stdout
