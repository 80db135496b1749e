"""The pages on settings: their commands run, their refusal is what is told, their options are those of the tables."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from meshwright.planner.cli.main import main
from meshwright.planner.exchange.__main__ import page
from meshwright.planner.exchange.target import REASONS
from meshwright.planner.exchange.targets.every import TARGETS
from tests.planner.refused.cases import CASES, FILES, ROOT

PAGE = (ROOT / "docs" / "exchange.md").read_text()


@pytest.mark.slow
def test_the_commands_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```sh\n((?:plan .*\n)+)```", PAGE)
    commands = [shlex.split(line, comments=True)[1:] for line in block.splitlines()]
    assert len(commands) == 4
    for words in commands:
        assert main([str(ROOT / word) if word.startswith("examples/") else word for word in words]) == 0, words
    out = capsys.readouterr().out
    assert "as written" in out
    assert "beside settings/megatron.sh, as Megatron-LM takes it" in out


def test_the_refusal_of_the_page_is_what_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (FILES | CASES["MW2017"].files).items():
        Path(name).write_text(text)
    ((words, shown),) = re.findall(r"```console\n\$ plan (.*)\n((?:.*\n)*?)```", PAGE)
    assert main(words.split()) == 6
    assert capsys.readouterr().err == shown


def test_the_page_names_every_framework_and_its_file() -> None:
    rows = dict(re.findall(r"^\| `([\w-]+)` \| `([\w.]+)` \|", PAGE, re.MULTILINE))
    assert rows == {name: target.file for name, target in TARGETS.items()}


def test_the_page_of_options_is_current() -> None:
    text = (ROOT / "docs" / "exchange_options.md").read_text()
    assert text == page(), "python -m meshwright.planner.exchange > docs/exchange_options.md"
    used = {limit.reason for target in TARGETS.values() for limit in target.limits}
    assert used | {"beyond names"} == set(REASONS)
