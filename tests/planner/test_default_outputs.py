"""What verbs print where nothing is said of how: on 80 columns no line is wider, and none has more than a screen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest
from rich.cells import cell_len

from meshwright.cost_models.measured.file import measured_text
from meshwright.planner.cli.main import VERBS
from pages.samples import ROOT, run
from tests.cost_models.measured_cpu import hand

WIDTH, LINES = 80, 45
GPT2 = "examples/configs/gpt2 --cluster 2x8xH100 --global-batch 64 --seq 1024"
LLAMA = "examples/configs/llama-3.1-8b --cluster 8x8xH100 --global-batch 64 --seq 8192"
OUTPUTS = (
    f"plan {GPT2} --out out",
    "plan examples/llama.py:tiny --cluster cpu:2 --target torch-gloo --global-batch 8 --seq 16 --out tiny",
    "plan examples/configs/llama-3.1-8b --cluster 1x1xA100-40G --global-batch 8 --seq 4096",
    "plan explain out",
    "plan explain out --why-not tp=4",
    "plan diff out tp=4",
    "plan report out -o report.html",
    "plan trace out -o trace.json",
    "plan emit tiny --out train",
    "plan inspect examples/configs/llama-3.1-8b",
    "plan inspect examples/llama.py:tiny",
    "plan cluster show 2x8xH100",
    "plan gpus",
    "plan gpus H100",
    "plan gpus GB200",
    f"plan estimate {GPT2}",
    f"plan estimate {LLAMA} --fix tp=8,pp=4",
    f"plan estimate {GPT2} --configs many.jsonl",
    "plan profile show profile.json",
    "plan profile diff profile.json profile.json",
    "plan cache",
    f"plan init {GPT2}",
    "plan errors MW6007",
    "plan inspect tiny.tml",
)
"""In this order; what the first ones write is read by others."""
ELSEWHERE = {
    "verify": "its view is held to every width by test_widths.py, and has a line for each kind of collective",
    "compare": "its view is held to every width by test_widths.py, and has a line for each figure",
    "calibrate": "a line for each case that it measures",
    "completion": "a script",
    "schema": "JSON",
}
"""Verbs of which no command line stands above, and why."""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What is printed, by command line."""
    folder = tmp_path_factory.mktemp("outputs")
    with chdir(folder):
        Path("examples").symlink_to(ROOT / "examples")
        Path("profile.json").write_text(measured_text(hand()), encoding="utf-8")
        Path("many.jsonl").write_text('{"tp": 2}\n{"tp": 4, "pp": 2}\n{"dp": 16}\n', encoding="utf-8")
        yield {words: run(words)[1] for words in OUTPUTS}


@pytest.mark.slow
def test_twenty_outputs_fit_a_screen(printed: dict[str, str]) -> None:
    assert len(printed) >= 20
    for words, text in printed.items():
        lines = text.splitlines()
        assert 0 < len(lines) <= LINES, words
        for line in lines:
            assert cell_len(line) <= WIDTH, (words, line)


def test_every_verb_is_among_them() -> None:
    second = {words.split()[1] for words in OUTPUTS}
    assert {verb.name for verb in VERBS} - second - {"plan"} == set(ELSEWHERE)
