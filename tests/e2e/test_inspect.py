"""`plan inspect` as a person meets it: the command, its JSON, its dumps, its refusals."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshwright.ir.errors import UnknownStep
from meshwright.planner.cli.main import main
from meshwright.planner.question.inspection import STEPS
from tests.e2e.spine import CONFIGS, EXAMPLES

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "inspect.md"
TINY = f"{EXAMPLES / 'llama.py'}:tiny"
ODD = f"{Path(__file__).parent / 'odd_model.py'}:build"
SMALL = ("--batch", "2", "--seq", "32")


def inspected(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    """The JSON that the command prints, run in this process."""
    assert main(["inspect", *argv, *SMALL, "--json"]) == 0
    out = capsys.readouterr().out
    found = json.loads(out)
    assert out == f"{json.dumps(found, indent=2)}\n"
    return found


# JSON ----------------------------------------------------------------------------------------------------------------


def keys(value: Any, at: str = "") -> Iterator[str]:
    """The path of every leaf, as docs/inspect.md writes it."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from keys(inner, f"{at}.{name}" if at else name)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner, f"{at}[]")
    else:
        yield at


def test_the_documented_keys_are_the_emitted_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """Between them, the models fill every list."""
    documented = re.findall(r"^\| `([^`]+)` \|", SCHEMA.read_text(), re.MULTILINE)
    emitted = {key for reference in (ODD, TINY) for key in keys(inspected(capsys, reference))}
    assert emitted == set(documented)
    assert len(documented) == len(set(documented))


def test_what_it_says_of_an_odd_model(capsys: pytest.CaptureFixture[str]) -> None:
    found = inspected(capsys, ODD)
    assert [(o["target"], o["count"]) for o in found["coverage"]["opaque"]] == [("aten::masked_scatter", 1)]
    assert found["coverage"]["bytes"] < 1
    assert not found["microbatches"]["legal"]
    assert {blocker["kind"] for blocker in found["microbatches"]["blockers"]} == {"batch_norm", "opaque"}
    assert [(s["kind"], s["repeats"]) for s in found["segments"]] == [("glue", 1), ("stack", 4), ("glue", 1)]


def test_dtype_style_and_device_count(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers of twice the size take twice the bytes; a compiler keeps less."""
    config = str(CONFIGS / "gpt2")
    half, whole, compiled = (
        inspected(capsys, config, *options)
        for options in (("--dtype", "fp16"), ("--dtype", "fp32"), ("--dtype", "fp16", "--style", "compiled"))
    )
    assert whole["model"]["parameter_bytes"] == 2 * half["model"]["parameter_bytes"] == 4 * 124_439_808
    assert compiled["totals"]["saved_bytes"] < half["totals"]["saved_bytes"] < whole["totals"]["saved_bytes"]


# Text ----------------------------------------------------------------------------------------------------------------


def test_the_table_names_the_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", TINY, *SMALL]) == 0
    shown = capsys.readouterr().out
    assert "runs as: embed, Block x 4, head" in shown
    assert "micro-batches: legal" in shown


@pytest.mark.parametrize(
    ("step", "shows"),
    [("load", "blocks.3.feed_forward"), ("fold", "Block"), ("loops", "ffn = 128"), ("cuts", "after 1[0] x 3")],
)
def test_dumps(step: str, shows: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", TINY, *SMALL, "--dump-after", step]) == 0
    assert shows in capsys.readouterr().out


def test_every_step_is_dumped_above() -> None:
    assert set(STEPS) == {"load", "fold", "loops", "cuts"}


# Refusals ------------------------------------------------------------------------------------------------------------

HEAD = """
import torch
class Net(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x)
def build():
    return Net(4, 4)
"""
INPUTS = """
def example_inputs(batch, seq):
    return {"x": torch.zeros(batch, seq, 4)}
"""
LOSS = """
def loss(outputs, batch):
    return outputs.sum()
"""
BRANCHES = HEAD.replace("        return", "        if x.sum() > 0: x = -x\n        return") + INPUTS + LOSS

REFUSALS = {
    "no such file": ("missing.py", None, 2, "there is no such file"),
    "no such factory": ("model.py:biuld", HEAD, 2, "did you mean 'build'?"),
    "raises": ("model.py:build", HEAD.replace("return Net", "return 1 / 0, Net"), 5, "model.py:7"),
    "exits": ("model.py:build", "import sys\nsys.exit(0)\n", 5, "model.py:2"),
    "empty": ("model.py:build", "import torch\ndef build():\n    return torch.nn.ReLU()\n" + INPUTS + LOSS, 5, ""),
    "no inputs": ("model.py:build", HEAD + LOSS, 5, "def example_inputs(batch, seq):"),
    "no loss": ("model.py:build", HEAD + INPUTS, 5, "def loss(outputs, batch):"),
    "data-dependent": ("model.py:build", BRANCHES, 5, "model.py:5"),
    "unknown type": ("config.json", '{"model_type": "lama"}', 6, "did you mean 'llama'?"),
    "remote code": ("config.json", '{"model_type": "llama", "auto_map": {"AutoModel": "evil.Model"}}', 6, "auto_map"),
    "unknown key": ("shape.toml", "layers = 2\nhiden = 64\n", 6, "hidden"),
    "impossible": ("shape.toml", "layers = 2\nhidden = 64\nffn_hidden = 128\nvocab = 100\nheads = 7\n", 6, "heads"),
}  # fmt: skip
"""MODEL, what is in its file, the exit code, and what the message must name."""


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reference, text, exit_code, told = REFUSALS[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    if text is not None:
        Path(reference.partition(":")[0]).write_text(text)
    assert main(["inspect", reference, "--json"]) == exit_code
    shown = capsys.readouterr()
    error = json.loads(shown.out)["error"]
    assert error["exit_code"] == exit_code
    assert told in shown.err
    assert error["code"] in shown.err


def test_a_step_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    """Refused before the model is touched."""
    assert main(["inspect", "missing.py", "--dump-after", "lod"]) == 2
    refusal = capsys.readouterr().err
    assert UnknownStep.code in refusal
    assert "did you mean 'load'?" in refusal
