"""The matrix of models and plans goes on where it stopped; the page that it wrote has all pairs that there are."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.emitted_matrix import KINDS, MODELS, main

PAGE = Path(__file__).parents[2] / "docs" / "emitted.md"


def test_the_page_has_every_model_and_every_kind() -> None:
    table = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text().splitlines()
        if line.startswith("|")
    ]
    assert table[0] == ["plan", *MODELS]
    assert [row[0] for row in table[2:]] == list(KINDS)
    known = re.compile(r"(-|exact|exact [+-]\d+\.\d%|differs|failed|MW\d{4})?")
    assert all(known.fullmatch(cell) for row in table[2:] for cell in row[1:])


def test_what_is_done_is_not_run_again(tmp_path: Path) -> None:
    done, page = tmp_path / "done.jsonl", tmp_path / "page.md"
    given = ["--done", str(done), "--table", str(page), "--emit-only", "--models", "vit", "--kinds", "ep", "cp"]
    assert main(given) == 0
    once = done.read_text()
    assert len(once.splitlines()) == 2
    done.write_text(once.replace('"outcome": "none"', '"outcome": "failed"'))
    assert main(given) == 1
    assert done.read_text().count("failed") == 2
    assert "| ep |" in page.read_text()
