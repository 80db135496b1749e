"""`plan report` and `plan trace`, from a saved plan to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.planner.cli.main import main
from meshwright.planner.report.page.document import GENERATOR
from tests.planner.report.checked import check_page
from tests.planner.report.test_trace import read
from tests.planner.solved import ARGV


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a plan of a tiny model on four devices."""
    folder = tmp_path_factory.mktemp("plan")
    assert main([*ARGV, "--fix", "pp=2,mbs=1", "--out", str(folder)]) == 0
    return folder


def test_a_page_is_written_of_a_plan(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Into a folder that is made; the same again, byte for byte."""
    file = tmp_path / "new" / "report.html"
    assert main(["report", str(saved), "-o", str(file)]) == 0
    assert capsys.readouterr().out == f"written: {file}\n"
    text = file.read_text(encoding="utf-8")
    assert len(text.encode()) < 300_000
    said = " ".join(check_page(text).said().split())
    predicted = json.loads((saved / "plan.json").read_text())["predicted"]
    assert f"MFU {100 * predicted['mfu']:.2f} %" in said
    assert "group 1" in said
    assert "pipeline parallel 2" in said
    assert main(["report", str(saved / "plan.json"), "--out", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"written": [str(file)]}
    assert file.read_text(encoding="utf-8") == text


def test_a_trace_is_written_of_a_plan(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.json"
    assert main(["trace", str(saved), "-o", str(file)]) == 0
    assert capsys.readouterr().out == f"written: {file}\n"
    found, events = read(file.read_text(encoding="utf-8"))
    predicted = json.loads((saved / "plan.json").read_text())["predicted"]
    assert found["otherData"]["step_time_us"] == pytest.approx(predicted["step_time_s"] * 1e6)
    assert {event["tid"] for event in events if event["pid"] == 1} == {0, 1}
    assert main(["trace", str(saved), "-o", str(file)]) == 0


@pytest.mark.parametrize("verb", ["report", "trace"])
@pytest.mark.parametrize(
    ("name", "content", "code", "said"),
    [
        ("mine.txt", "my notes", "MW7030", "was not written here"),
        ("", None, "MW7026", "it names no file"),
        (".", None, "MW7026", "it is a directory"),
        ("mine.txt/report.html", "my notes", "MW7026", "--out"),
    ],
)
def test_what_is_not_ours_is_not_written_over(
    verb: str, name: str, content: str | None, code: str, said: str, tmp_path: Path, capsys: Any, saved: Path
) -> None:
    mine = tmp_path / "mine.txt"
    if content is not None:
        mine.write_text(content)
    out = str(tmp_path / name) if name else ""
    assert main([verb, str(saved), "-o", out]) == 8
    told = capsys.readouterr().err
    assert code in told
    assert said in told
    assert content is None or mine.read_text() == content


def test_what_is_not_ours_is_written_over_when_that_is_asked_for(saved: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("my notes")
    assert main(["report", str(saved), "-o", str(mine), "--force"]) == 0
    assert GENERATOR in mine.read_text(encoding="utf-8")


def test_another_model_is_refused(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Path(__file__).parents[3] / "examples" / "tiny_decoder.toml"
    file = tmp_path / "report.html"
    assert main(["report", str(saved), "-o", str(file), "--model", str(other)]) != 0
    assert "MW7" in capsys.readouterr().err
    assert not file.exists()


@pytest.mark.parametrize("verb", ["report", "trace"])
def test_other_prices_are_told(saved: Path, tmp_path: Path, capsys: Any, verb: str) -> None:
    """The plan says that it was priced by another profile: both warn, and the page says so, too."""
    document = json.loads((saved / "plan.json").read_text())
    document["provenance"]["profile"]["digest"] = "0123456789abcdef"
    (tmp_path / "plan.json").write_text(json.dumps(document))
    file = tmp_path / "out"
    assert main([verb, str(tmp_path), "-o", str(file)]) == 0
    assert "prices are made again" in capsys.readouterr().err
    if verb == "report":
        assert "Priced again: " in check_page(file.read_text(encoding="utf-8")).said()
