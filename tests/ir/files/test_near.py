"""Paths that were meant: one name is a slip, the rest is as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.ir.files.near import did_you_mean, near
from meshwright.planner.cli.main import main


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("models", "modes"):
        Path(name).mkdir()
    for name in ("models/llama.py", "models/lamp.toml", "site.toml", "tiny.toml"):
        Path(name).touch()


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("site.tml", "site.toml"),
        ("SITE.toml", "site.toml"),
        ("./stie.toml", "site.toml"),
        ("models/lama.py", "models/llama.py"),
        ("model/llama.py", "models/llama.py"),
        ("mode/llama.py", "models/llama.py"),
        ("mode/nothing.py", "modes"),
        ("modles", "models"),
        ("site.toml", None),
        ("question.toml", None),
        ("banana", None),
        ("banana/site.toml", None),
        ("site.toml/x", None),
        ("", None),
        ("x" * 5000, None),
        ("a\0b", None),
    ],
)
def test_a_path_that_exists_is_found(path: str, meant: str | None) -> None:
    assert near(path) == meant
    assert did_you_mean(path) == (f"did you mean {meant}? " if meant else "")


def test_an_absolute_path_stays_absolute(tmp_path: Path) -> None:
    assert near(tmp_path / "site.tml") == str(tmp_path / "site.toml")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("inspect models/lama.py:build", "models/llama.py"),
        ("inspect tiny.tml", "tiny.toml"),
        ("inspect tniy.toml", "tiny.toml"),
        ("inspect modles", "models"),
        ("cluster show stie.toml", "site.toml"),
        ("cluster show site.tml", "site.toml"),
        ("cluster import modls", "models"),
        ("explain modles", "models"),
        ("--config tiny.tml", "tiny.toml"),
        ("estimate m --cluster cpu:2 --seq 8 --global-batch 8 --configs tiny.tom", "tiny.toml"),
        ("estimate m --cluster cpu:2 --seq 8 --global-batch 8 --profile site.tom", "site.toml"),
    ],
)
def test_files_of_every_kind_are_told_so(words: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) != 0
    assert f"fix: did you mean {meant}? " in capsys.readouterr().err
