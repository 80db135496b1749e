"""`plan cache`: what is kept is shown, and removed."""

import json
from pathlib import Path

import pytest

from meshwright.ir.files.store import Store
from meshwright.planner.cli.main import main


def test_what_is_kept_is_shown_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MESHWRIGHT_CACHE", str(tmp_path))
    for name in "ab":
        Store(tmp_path).put(name, name * 500)
    (tmp_path / "notes.txt").write_text("of somebody")
    assert main(["cache"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}\n2 results of earlier runs, 1.01 KiB of 256 MiB\n"
    assert main(["cache", "clear", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": str(tmp_path), "results": 0, "bytes": 0, "removed": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out.endswith("removed: 0\n")


def test_nothing_is_kept_where_it_is_off(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MESHWRIGHT_CACHE", "off")
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == "nothing is kept: MESHWRIGHT_CACHE is off\n"
    assert main(["cache", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["folder"] is None
