"""What verbs print where nothing is said of how: on 80 columns no line is wider, and none has more than a screen.

Help is held to the same by `test_help.py`, and every view to more widths by `test_widths.py`.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest
from rich.cells import cell_len

from meshwright.cost_models.measured.file import measured_text
from meshwright.ir.errors import ClusterFaults, catalogue, pages
from meshwright.planner.cli.main import VERBS, main
from meshwright.planner.cli.views.reference.errors import broken
from pages.samples import ROOT, run
from tests.cost_models.measured_cpu import hand
from tests.planner.refused.cases import CASES

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
    "plan cluster show examples/clusters/two_pools.toml",
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
    "plan errors",
    "plan errors MW6007",
    "plan inspect tiny.tml",
)
"""In this order; what the first ones write is read by others."""
CATALOGUE = {kind.code: kind for kind in catalogue()}
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


class Terminal(io.StringIO):
    """What is printed to a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("code", sorted({*CASES} - {ClusterFaults.code}))
@pytest.mark.parametrize("width", [60, 80])
def test_refusals_fit_a_terminal(code: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that errors.md shows, broken at words and nothing lost; code to be pasted stays as it is."""
    monkeypatch.setenv("COLUMNS", str(width))
    example = next(page.example for page in pages() if page.code == code)
    assert example is not None
    error = CATALOGUE[code](place=example.place, cause=example.cause, fix=example.fix)
    code_lines = example.fix.split("\n")[1:]
    lines = broken(error, Terminal()).split("\n")
    prose, pasted = lines[: len(lines) - len(code_lines)], lines[len(lines) - len(code_lines) :]
    assert max(map(cell_len, prose)) <= width
    assert len(lines) <= LINES
    assert pasted == code_lines
    assert "".join("".join(prose).split()) == "".join(f"{error}".removesuffix("\n".join(("", *code_lines))).split())


def test_several_faults_are_broken_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    one, other = (
        CATALOGUE["MW6007"](place=f"site.toml:{line}", cause="a cause of some " + "words " * 9, fix="do:\n[[device]]")
        for line in (3, 7)
    )
    lines = broken(ClusterFaults((one, other), place="site.toml"), Terminal()).split("\n")
    assert lines[0] == "error MW6019 at site.toml: 2 faults"
    assert max(map(len, lines)) <= 60
    assert [line for line in lines if line.startswith(("error", "  fix", "[["))] == [
        lines[0],
        lines[1],
        "  fix: do:",
        "[[device]]",
        lines[5],
        "  fix: do:",
        "[[device]]",
    ]


def test_what_is_no_terminal_is_given_whole_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slip = ["cluster", "show", "2x8H100"]
    assert main(slip) == 6
    whole = capsys.readouterr().err
    assert len(whole.splitlines()) == 2
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    assert main(slip) == 6
    assert len(terminal.getvalue().splitlines()) > 2
    assert terminal.getvalue().split() == whole.split()


def test_every_verb_is_among_them() -> None:
    second = {words.split()[1] for words in OUTPUTS}
    assert {verb.name for verb in VERBS} - second - {"plan"} == set(ELSEWHERE)
