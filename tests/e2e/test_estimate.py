"""`plan estimate` as a command: its JSON key by key, its page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from meshwright.ir.names import CONTEXT
from meshwright.ir.names.degrees import RECOMPUTE, SPLITS
from meshwright.ir.schedules import SCHEDULES
from meshwright.ir.target.workload import OPTIMIZERS, PRECISIONS, RECIPES, STACKS
from meshwright.planner.answer.estimate import STEPS
from meshwright.planner.cli.main import build_parser, main
from meshwright.planner.question.pins import NAMES
from tests.e2e.spine import CONFIGS, EXAMPLES
from tests.e2e.test_inspect import keys

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "estimate.md").read_text()
TINY = f"{EXAMPLES / 'llama.py'}:tiny"
SMALL = ("--cluster", "2x4xA100", "--global-batch", "16", "--seq", "64")

# The page ------------------------------------------------------------------------------------------------------------


def documented() -> list[str]:
    """The keys that the page describes, in its last table."""
    return re.findall(r"^\| `([a-z][^`]*)` \|", PAGE[PAGE.index("## `--json`") :], re.MULTILINE)


def starred(key: str) -> str:
    """A key as the page writes it: names that vary are a star."""
    return next((known for known in documented() if known.endswith("*") and key.startswith(known[:-1])), key)


def estimated(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    """The JSON that the command prints."""
    assert main(["estimate", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_documented_keys_are_the_emitted_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tight = tmp_path / "tight.toml"
    tight.write_text(
        '[[device]]\nname = "Tiny"\nlike = "A100"\nmemory_gb = 0.0005\n'
        '[[pool]]\nname = "p"\nhosts = 2\ngpu = "Tiny"\ngpus_per_host = 4\n'
        'nics = [{kind = "infiniband", gbps = 25, count = 4}]\n'
    )
    found = estimated(capsys, TINY, *SMALL, "--cluster", str(tight), "--fix", "pp=2")
    assert {starred(key) for key in keys(found)} == set(documented()) - {"annotated.*"}  # of models in JAX alone
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


def test_a_real_model_from_its_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    argv = (str(CONFIGS / "llama-3.1-8b"), "--cluster", "8x8xH100", "--global-batch", "64", "--seq", "8192")
    found = estimated(capsys, *argv, "--fix", "tp=8,pp=4")
    assert found["model"]["parameters"] == 8_030_261_248
    assert [stage["layers"] for stage in found["work"]] == [8, 8, 8, 8]
    assert found["config"]["dp"] == 2
