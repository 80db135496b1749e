"""Models with autograd functions of their own are exact under plans that cut what these compute."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.planner.cli.main import main

MODELS = Path(__file__).with_name("functions.py")
WORDS = "--cluster cpu:2 --target torch-gloo --global-batch 8 --seq 8 --dtype fp32 --force"


@pytest.mark.parametrize(
    ("model", "fix"), [("chunked", "pp=2"), ("chunked", "dp=2"), ("looked", "tp=2"), ("recurring", "tp=2")]
)
def test_a_function_of_the_models_own_is_exact(
    model: str, fix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main([f"{MODELS}:{model}", *f"{WORDS} --fix {fix} --out".split(), out]) == 0
    assert main(["verify", out]) == 0
    assert "against one device: exact" in capsys.readouterr().out
