"""The README shows what its commands print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meshwright.planner.cli import main

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
