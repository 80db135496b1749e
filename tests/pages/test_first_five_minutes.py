"""`.ci/first_five_minutes` types what README.md says, and fails where a step does. CI runs it as it is: `.ci/run`."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / ".ci" / "first_five_minutes"
STUB = r"""#!/bin/sh
echo "$(basename "$0") $*" >> "$TYPED"
case "$(basename "$0") $*" in
  "$FAILS"*) exit 3 ;;
  "python3 -m venv "*) mkdir -p venv/bin; touch venv/bin/activate ;;
  "pip wheel "*) mkdir -p dist; touch dist/meshwright-1.whl ;;
  "plan "*) awk -v line="\$ plan $*" '$0 == line {on = 1; next} /^(\$ |```)/ {on = 0} on' "${SHOWN:-README.md}" ;;
esac
"""
"""What the page shows of a command of `plan` is what it prints."""
STEPS = (
    "python3 -m venv",
    "pip wheel",
    "pip install",
    "plan model.py:Net",
    "plan emit",
    "plan verify out",
)


@pytest.fixture
def typed(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """Where commands are noted that do nothing, and their environment."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("python3", "pip", "plan"):
        (tools / name).write_text(STUB)
        (tools / name).chmod(0o755)
    notes = tmp_path / "typed"
    return notes, os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "TYPED": str(notes), "FAILS": "nothing"}


def run(folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, folder], env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_what_is_typed_is_what_the_page_says(typed: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    notes, env = typed
    done = run(tmp_path / "new", env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("first five minutes: 0.")
    steps = notes.read_text().splitlines()
    assert [next(one for one in STEPS if step.startswith(one)) for step in steps] == list(STEPS)
    page = (tmp_path / "new" / "README.md").read_text()
    model = (tmp_path / "new" / "model.py").read_text()
    assert f'title="model.py"\n{model}```' in page
    assert len(model.splitlines()) <= 20


def test_what_is_printed_is_what_the_page_shows(typed: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    _, env = typed
    shown = (ROOT / "README.md").read_text()
    for page in (shown.replace("one device: exact", "one device: off"), shown.replace("written: train/train.py\n", "")):
        (tmp_path / "shown").write_text(page)
        done = run(tmp_path / "new", env | {"SHOWN": str(tmp_path / "shown")})
        assert done.returncode == 1
        assert "shows something else\n$ plan " in done.stderr


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_fails_is_the_end(step: str, typed: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    notes, env = typed
    done = run(tmp_path / "new", env | {"FAILS": step})
    assert done.returncode == 3
    assert "a command failed" in done.stderr
    assert notes.read_text().splitlines()[-1].startswith(step)


def test_a_page_without_the_section_is_refused() -> None:
    script = runpy.run_path(str(SCRIPT))["script"]
    with pytest.raises(SystemExit, match="no section"):
        script("# Meshwright\n\n```sh\nplan --version\n```\n")


def test_continuous_integration_runs_it() -> None:
    assert ".ci/first_five_minutes" in (ROOT / ".ci" / "run").read_text()
    assert ".ci/first_five_minutes" in (ROOT / "Makefile").read_text()
