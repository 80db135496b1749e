"""What `--help` tells: a screen of what most command lines need, and with `--help-all` everything, at every width."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Iterator

import pytest

from meshwright.planner.cli.main import VERBS, build_parser, main
from meshwright.planner.cli.parser import SELDOM

LINES, WIDTHS = 45, (60, 80, 100, 140)


def places(parser: ArgumentParser | None = None, *path: str) -> Iterator[tuple[tuple[str, ...], ArgumentParser]]:
    """The parsers of the command line, of verbs and of their actions, each with the words that lead there."""
    parser = parser or build_parser()
    yield path, parser
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for name, inner in action.choices.items():
                yield from places(inner, *path, name)


PLACES = dict(places())


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("path", PLACES, ids=" ".join)
def test_help_fits(
    path: tuple[str, ...], width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether short or whole, no line is wider than the terminal; of 80 columns, it is a screen."""
    monkeypatch.setenv("COLUMNS", str(width))
    short, whole = told(capsys, *path, "--help").splitlines(), told(capsys, *path, "--help-all").splitlines()
    assert max(map(len, (*short, *whole))) <= width
    assert len(short) <= LINES or width < 80
    assert not any(re.search(r"\w-$", line) for line in (*short, *whole)), "a name is not broken"


@pytest.mark.parametrize("path", PLACES, ids=" ".join)
def test_nothing_is_lost(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """What is left out of short help is counted there, and told with --help-all, with every choice."""
    short, whole = told(capsys, *path, "--help"), told(capsys, *path, "--help-all")
    options = {name: action for action in PLACES[path]._actions for name in action.option_strings[-1:]}
    shown = set(re.findall(r"^  (?:-\w(?: \w+)?, )?(--[\w-]+)", short, re.MULTILINE))
    left = set(options) - shown - {"--help-all"}
    assert left <= SELDOM
    said = re.search(r"^(\d+) options more, .*: (plan.* --help-all)$", short, re.MULTILINE)
    assert (said is not None) == bool(left)
    assert said is None or (int(said[1]), said[2]) == (len(left), " ".join(("plan", *path, "--help-all")))
    assert set(re.findall(r"^  (?:-\w(?: \w+)?, )?(--[\w-]+)", whole, re.MULTILINE)) == set(options) - {"--help-all"}
    words = set(re.findall(r"[\w-]+", whole))
    choices = {str(one) for action in options.values() for one in action.choices or ()}
    assert choices <= words


def test_what_is_seldom_needed_is_an_option() -> None:
    known = {name for parser in PLACES.values() for action in parser._actions for name in action.option_strings}
    assert known >= SELDOM


def test_what_must_be_said_is_never_left_out() -> None:
    for path, parser in PLACES.items():
        for action in parser._actions:
            assert not (action.required and SELDOM.intersection(action.option_strings)), path


def test_every_verb_has_a_line_under_what_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    listed = re.findall(r"^  (\w+)  +\S", told(capsys, "--help").partition("\noptions:")[0], re.MULTILINE)
    assert sorted(listed) == sorted(verb.name for verb in VERBS)


def test_a_usage_error_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "m", "--cluster", "cpu:2", "--dtype", "bf61"])
    usage, error = capsys.readouterr().err.splitlines()
    assert usage == "usage: plan plan [OPTIONS] --cluster CLUSTER MODEL"
    assert "did you mean 'bf16'?" in error


@pytest.mark.parametrize("width", WIDTHS)
def test_a_usage_error_fits_a_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", str(width))
    with pytest.raises(SystemExit) as end:
        main(["plan", "m", "--cluster", "cpu:2", "--dtype", "bf61"])
    assert end.value.code == 2
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "did you mean 'bf16'?" in " ".join(line.strip() for line in lines)


def test_help_takes_no_time() -> None:
    """Of the processor, starting Python included."""
    script = "from meshwright.planner.cli.main import main; main(['plan', '--help'])"
    before = os.times()
    subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=True)
    after = os.times()
    took_s = after.children_user + after.children_system - before.children_user - before.children_system
    assert took_s <= 0.3
