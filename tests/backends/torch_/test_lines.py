"""Emitted calls, laid out as ruff would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.backends.lines import WIDTH, call

LONG = [f'model.get_submodule("transformer.part{number}")' for number in range(4)]
CALLS = {
    "on one line": ["model", "mesh=mesh"],
    "arguments on one line": LONG[:2],
    "an argument a line": LONG,
    "a list": [f"[{', '.join(LONG)}]", "mesh=mesh"],
    "a call": [f"together({', '.join(LONG)})", "mesh=mesh"],
}


@pytest.mark.parametrize("what", CALLS)
def test_calls_are_laid_out(what: str, tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text("\n".join(call(0, "fully_shard", CALLS[what])) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "ruff", "format", "--check", "--isolated", "--line-length", str(WIDTH)]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
