"""The same question has the same answer in every process, whatever the hash seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.same_answers import ANSWERS, TINY

ROOT = Path(__file__).parents[2]
SEEDS = ("0", "1")
LIMIT_S = 300


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """The answers under each seed; one process after the other, in folders of one name."""
    folder = tmp_path_factory.mktemp("told") / "answers"
    found = []
    for seed in SEEDS:
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-m", "tests.e2e.same_answers", str(folder)],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            cwd=ROOT,
            capture_output=True,
            timeout=LIMIT_S,
            check=True,
        )
        found.append(json.loads(done.stdout))
        folder.rename(folder.with_name(seed))
    return found


@pytest.mark.e2e
@pytest.mark.parametrize("name", ANSWERS)
def test_the_hash_seed_changes_nothing(told: list[dict[str, str]], name: str) -> None:
    first, second = (found[name] for found in told)
    assert first == second
    assert len(first) > 500


def test_they_are_the_answers_that_are_meant(told: list[dict[str, str]]) -> None:
    found = told[0]
    assert json.loads(found["inspect, a factory"])["model"]["ref"] == TINY
    # embedding and head, four blocks of query/output, key/value, feed-forward and norms, a last norm
    parameters = 2 * 256 * 64 + 4 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64) + 64
    assert json.loads(found["inspect, a factory"])["model"]["parameters"] == parameters
    assert json.loads(found["inspect, a configuration"])["model"]["parameters"] == 999_885_952
    assert TINY in found["plan"]
    assert len(found["folds"]) > 10_000
    lines = [json.loads(line) for line in found["estimate, many"].splitlines()]
    assert [line["index"] for line in lines] == list(range(13))
    assert ["error" in line for line in lines] == [False] * 12 + [True]
