"""`plan cluster detect` and `plan cluster import`: the file that they write, where, and what the page says of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from meshwright.calibrate.detect.machine import This
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.planner.cli.main import main

ROOT = Path(__file__).parents[2]
OUTPUTS = ROOT / "tests" / "calibrate" / "detect" / "outputs"
PAGE = (ROOT / "docs" / "cluster.md").read_text()
SECTION = PAGE.partition("## Written from machines\n")[2].partition("\n## ")[0]


def test_the_page_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    for action in ("detect", "import"):
        with pytest.raises(SystemExit):
            main(["cluster", action, "--help"])
        for option in re.findall(r"--[a-z-]+", capsys.readouterr().out):
            assert option == "--help" or f"`{option}" in SECTION, option


def test_a_file_is_written_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "site.toml"
    words = ["cluster", "import", str(OUTPUTS / "dgx_h100"), str(OUTPUTS / "dgx_a100"), "--out", str(out)]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{out}: 16 ranks on 2 hosts\n"
    assert "warning: pool a100-80g: left out" in printed.err
    assert main(["cluster", "show", str(out), "-v"]) == 0
    assert "pool a100-80g: 1 x 8 A100-80G, ranks 8 to 15" in capsys.readouterr().out
    assert read_cluster(str(out)).ranks == 16


def test_what_is_there_is_kept_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "site.toml"
    out.write_text("mine")
    words = ["cluster", "import", str(OUTPUTS / "dgx_h100"), "--out", str(out)]
    assert main(words) == 8
    assert "MW7030" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert main([*words, "--force"]) == 0
    assert read_cluster(str(out)).ranks == 8


def test_a_place_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "import", str(OUTPUTS / "dgx_h100"), "--out", str(tmp_path / "no" / "site.toml")]) == 8
    assert "MW7026" in capsys.readouterr().err


def test_json_holds_the_text_and_every_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "import", str(OUTPUTS / "dgx_h100"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert set(shown) == {"format_version", "meshwright", "out", "text", "pools", "numbers", "warnings"}
    told = {key for key in shown if re.search(rf"`{key}(\[\])?`", SECTION)}
    assert set(shown) - told == {"format_version", "meshwright"}


@pytest.mark.parametrize(
    ("text", "code", "exit_code"),
    [
        ("hello, world!", "MW6050", 6),
        ("index, name, memory.total [MiB]\n0, A", "MW6051", 6),
        ("SLURM_NNODES=1\nSLURM_JOB_NODELIST=a[1-2]", "MW6052", 6),
        ("node1\nnode2\n", "MW6053", 6),
        ("GPU 0: NVIDIA A10 (UUID: GPU-1)\nGPU 1: Tesla T4 (UUID: GPU-2)\n", "MW6054", 6),
        ("GPU 0: NVIDIA Z9 (UUID: GPU-1)\n", "MW6007", 6),
    ],
)
def test_what_is_refused(
    text: str, code: str, exit_code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "saved.txt").write_text(text)
    assert main(["cluster", "import", str(tmp_path / "saved.txt"), "--json"]) == exit_code
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code


def test_this_machine_is_detected(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """By /proc and /sys alone: no driver, and no job."""
    monkeypatch.setattr(This, "run", lambda self, *words: None)
    monkeypatch.setattr(This, "nvml", lambda self: None)
    monkeypatch.setattr(This, "environment", {})
    assert main(["cluster", "detect", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(pool["name"], pool["device"]) for pool in shown["pools"]] == [("cpu", "CPU")]
