"""`plan estimate` as a command: its JSON key by key, its page, no trace of hash seeds or of processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshwright.ir.names import CONTEXT
from meshwright.ir.names.degrees import RECOMPUTE, SPLITS
from meshwright.ir.schedules import SCHEDULES
from meshwright.ir.workload import OPTIMIZERS, PRECISIONS, RECIPES, STACKS
from meshwright.planner.cli import build_parser
from meshwright.planner.estimate import STEPS
from meshwright.planner.pins import NAMES
from tests.e2e.spine import CONFIGS, EXAMPLES
from tests.e2e.test_inspect import keys

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "estimate.md").read_text()
TINY = f"{EXAMPLES / 'llama.py'}:tiny"
SMALL = ("--cluster", "2x4xA100", "--global-batch", "16", "--seq", "64")

COMMAND = """
import sys
from meshwright.planner import pricing
from meshwright.planner.cli import main
from tests.planner.flat_rates import FlatRates
pricing.price_of = lambda cluster: FlatRates(cluster).evaluate
sys.exit(main(sys.argv[1:]))
"""


def launched(*argv: str, hash_seed: int = 0) -> bytes:
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "estimate", *argv],
        env=os.environ | {"PYTHONHASHSEED": str(hash_seed)},
        cwd=ROOT,
        capture_output=True,
        timeout=120,
        check=True,
    )
    return done.stdout


@pytest.mark.e2e
@pytest.mark.parametrize("json_", [True, False], ids=["json", "tables"])
def test_no_trace_of_hash_seeds(json_: bool) -> None:
    argv = (TINY, *SMALL, "--fix", "tp=2,pp=2", *(("--json",) if json_ else ()))
    first = launched(*argv)
    assert launched(*argv, hash_seed=1) == first
    assert first


@pytest.mark.e2e
def test_many_leave_no_trace_of_hash_seeds_or_processes(tmp_path: Path) -> None:
    path = tmp_path / "configs.jsonl"
    lines = [{"tp": tp, "pp": pp, "recompute": kind} for tp in (1, 2, 4) for pp in (1, 2) for kind in ("none", "full")]
    path.write_text("\n".join(map(json.dumps, [*lines, {"tp": 3}])))
    argv = (TINY, *SMALL, "--json", "--configs", str(path))
    first = launched(*argv, "--jobs", "1")
    assert launched(*argv, "--jobs", "3", hash_seed=1) == first
    found = [json.loads(line) for line in first.splitlines()]
    assert [line["index"] for line in found] == list(range(len(lines) + 1))
    assert ["error" in line for line in found] == [False] * len(lines) + [True]


# The page ------------------------------------------------------------------------------------------------------------


def documented() -> list[str]:
    """The keys that the page describes, in its last table."""
    return re.findall(r"^\| `([a-z][^`]*)` \|", PAGE[PAGE.index("## `--json`") :], re.MULTILINE)


def starred(key: str) -> str:
    """A key as the page writes it: names that vary are a star."""
    return next((known for known in documented() if known.endswith("*") and key.startswith(known[:-1])), key)


@pytest.mark.e2e
def test_the_documented_keys_are_the_emitted_ones(tmp_path: Path) -> None:
    tight = tmp_path / "tight.toml"
    tight.write_text(
        '[[device]]\nname = "Tiny"\nlike = "A100"\nmemory_gb = 0.0005\n'
        '[[pool]]\nname = "p"\nhosts = 2\ngpu = "Tiny"\ngpus_per_host = 4\n'
        'nics = [{kind = "infiniband", gbps = 25, count = 4}]\n'
    )
    found: Any = json.loads(launched(TINY, *SMALL, "--cluster", str(tight), "--fix", "pp=2", "--json"))
    assert {starred(key) for key in keys(found)} == set(documented())
    assert len(documented()) == len(set(documented()))
    assert tuple(found["config"]) == NAMES
    assert found["notes"], "25 GB/s typed as 25 Gb/s"
    assert not found["fits"]


def rows(heading: str) -> dict[str, str]:
    """A table of the page: what its first cell names, and the rest."""
    text = PAGE[PAGE.index(heading) :].split("\n## ")[0]
    return {
        name: row
        for cell, row in re.findall(r"^\| (`[^|]*) \| (.*)$", text, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", cell)
    }


def test_the_page_names_every_pin_and_its_words() -> None:
    pins = rows("## Pins")
    assert set(pins) == set(NAMES)
    for name, words in (("recompute", RECOMPUTE), ("schedule", SCHEDULES), ("context", CONTEXT), ("split", SPLITS)):
        assert all(f"`{word}`" in pins[name] for word in words), name
    assert all(f"`{name}`" in PAGE for name in STEPS)
    listed = next(row for row in PAGE.splitlines() if row.startswith("| `config.*`"))
    assert all(f"`{name}`" in listed for name in NAMES)


def test_the_page_names_every_word_of_a_workload() -> None:
    options = rows("## The workload")
    known = {"--dtype P": PRECISIONS, "--optimizer O": OPTIMIZERS, "--stack S": STACKS, "--recipe R": ("fp32",)}
    for option, words in known.items():
        assert all(f"`{word}`" in options[option] for word in words), option
    assert "fp32" in RECIPES
    help_ = build_parser().parse_args(["estimate", "m", "--cluster", "c"])
    assert all(option.split()[0].lstrip("-").replace("-", "_") in vars(help_) for option in options)


@pytest.mark.e2e
def test_a_real_model_from_its_configuration() -> None:
    argv = (str(CONFIGS / "llama-3.1-8b"), "--cluster", "8x8xH100", "--global-batch", "64", "--seq", "8192")
    found = json.loads(launched(*argv, "--fix", "tp=8,pp=4", "--json"))
    assert found["model"]["parameters"] == 8_030_261_248
    assert [stage["layers"] for stage in found["work"]] == [8, 8, 8, 8]
    assert found["config"]["dp"] == 2
