"""Commands, outputs and texts of README.md and docs/ are what commands do, or stand in a list with the reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meshwright.ir.files.store import VARIABLE
from meshwright.ir.frontends import remembered
from pages.fenced import blocks
from pages.left_out import LEFT_OUT
from pages.samples import ROOT, check, left_out, same, samples, within, written

PAGES = samples()
LANGUAGES = {"console", "sh", "python", "toml", "json"}
OURS = remembered._ours()
"""Files that no model follows from; neither do those of tests."""
RUN_BY_NOTHING = 6
"""Entries of the list that nothing else runs."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where answers are kept, so that a question that pages ask again is answered once."""
    return tmp_path_factory.mktemp("answers")


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_what_is_printed(page: str, answers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(answers))
    monkeypatch.setattr(remembered, "_ours", lambda: (*OURS, f"{ROOT}/tests/", f"{ROOT}/pages/"))
    monkeypatch.delenv("COLUMNS", raising=False)
    found = check(page)
    assert not found, "\n".join(("run: python -m pages.samples", *map(str, found)))


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in blocks(text):
        assert block.language in LANGUAGES, f"{page}:{block.line}"
        if block.language in ("console", "sh"):
            assert block.commands, f"{page}:{block.line}"
    assert len(re.findall(r"^ *```", text, re.MULTILINE)) == 2 * len(blocks(text))


def test_what_is_left_out_is_there_and_says_why() -> None:
    for one in LEFT_OUT:
        pages = PAGES if one.page == "*" else [one.page]
        begun = [
            words
            for page in pages
            for block in blocks((ROOT / page).read_text(encoding="utf-8"))
            for words in (*(command.words for command in block.commands), block.text.strip().partition("\n")[0].strip())
            if left_out(page, words) is one
        ]
        assert begun, one
        assert one.why, one
        file, _, name = one.by.partition("::")
        assert not one.by or (ROOT / file).is_file(), one
        assert not name or f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), one
    assert sum(not one.by for one in LEFT_OUT) <= RUN_BY_NOTHING


@pytest.mark.parametrize(
    ("shown", "printed", "is_same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\n", "a\nb\n", False),
        ("a\n…\n", "a\nb\nc\n", True),
        ("…\nc\n", "a\nb\n", False),
        ("took …\n", "took 3 s\n", True),
        ("1…2\n", "1\n2\n", False),
        ("a.c\n", "abc\n", False),
    ],
)
def test_what_stands_for_anything(shown: str, printed: str, is_same: bool) -> None:
    assert same(shown, printed) is is_same


def test_a_part_of_a_text_is_whole_lines() -> None:
    assert within("b = 2\n", "a = 1\nb = 2\nc = 3\n")
    assert within("a = 1\n…\nc = 3\n", "a = 1\nb = 2\nc = 3")
    assert not within("b = 2\n", "ab = 2\n")
    assert not within("b = 2\n", "b = 22\n")


WRONG = {
    "another output": "```console\n$ plan --version\nmeshwright 99\n```",
    "a command that fails": "```sh\nplan inspect nothing.toml\n```",
    "a command of the shell": "```sh\nfalse\n```",
    "a refusal of another kind": "```console\n$ plan inspect nothing.toml\nerror MW9999 at nothing.toml: gone\n```",
    "a file of another text": '```toml title="examples/tiny_decoder.toml"\nlayers = 1234567\n```',
    "a text of no file": "```toml\nlayers = 2\n```",
    "code that fails": "```python\nraise ValueError\n```",
    "what goes before": "<!-- before: plan inspect nothing.toml -->\n```sh\ntrue\n```",
}


@pytest.mark.parametrize("what", WRONG)
def test_a_page_that_is_wrong_is_noticed(what: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(f"# A page\n\n{WRONG[what]}\n", encoding="utf-8")
    (off,) = check("page.md", tmp_path)
    assert off.line >= 3


def test_what_is_printed_is_written(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo one\n2\n$ echo three\nthree\n$ echo four\n5\n6\n```\nend\n", encoding="utf-8")
    written("page.md", check("page.md", tmp_path), tmp_path)
    assert (
        page.read_text(encoding="utf-8")
        == "```console\n$ echo one\none\n$ echo three\nthree\n$ echo four\nfour\n```\nend\n"
    )
    assert check("page.md", tmp_path) == []
