"""The README shows what its commands print, and the file of docs/models.md can be inspected."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from meshwright.planner.cli.main import main

ROOT = Path(__file__).parents[2]


def test_the_worked_example_is_what_plan_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = re.search(
        r"```console\n\$ plan (?P<words>.*)\n(?P<printed>(?:.*\n)*?)```", (ROOT / "README.md").read_text()
    )
    assert found
    monkeypatch.chdir(ROOT)
    assert main(found["words"].split()) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert printed == found["printed"].splitlines()


def test_the_model_file_of_the_docs_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "models.md").read_text(), re.DOTALL)
    assert code
    (tmp_path / "model.py").write_text(code[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["inspect", "model.py:build", "--batch", "2", "--seq", "128"]) == 0
    assert "TransformerEncoderLayer x 12" in capsys.readouterr().out
