"""The site: generated pages are current, all pages are in it, and it is built without a warning."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from argparse import ArgumentParser
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean

import pytest

import meshwright
from meshwright.cost_models.compute.known import all_known
from meshwright.planner.cli.main import VERBS
from pages.accuracy import KEPT
from pages.generated import GENERATED, ROOT
from pages.site import inside

PRICES = ROOT / "tests" / "benchmarks" / "prices.json"
MOVED = 0.02
"""How far prices may be from those that the page on accuracy is made of, in the mean."""


@pytest.mark.parametrize("page", GENERATED)
def test_a_generated_page_is_current(page: str) -> None:
    assert (ROOT / page).read_text(encoding="utf-8") == GENERATED[page](), "run: python -m pages"


@pytest.mark.e2e
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is not installed: the extra `docs`")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "pictures/step.svg" in first
    assert "plan examples/configs/phi-3-mini" in re.sub(r"<[^>]+>", "", first)
    assert not re.findall(r'(?:src|href)="https?://(?!squidfunk)[^"]*\.(?:js|css|woff2?)"', first)


def test_every_page_is_in_the_site() -> None:
    listed = set(re.findall(r"\b([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}


def test_links_out_of_the_site_become_paths() -> None:
    page = (
        "[CONTRIBUTING.md](../CONTRIBUTING.md), [the code](../ir/plan.py#L3), [plan](plan.md), [an image](../x/y.svg)"
    )
    assert inside(page, "architecture.md") == (
        "`CONTRIBUTING.md`, the code (`ir/plan.py`), [plan](plan.md), an image (`x/y.svg`)"
    )
    assert inside("[Plan](../plan.md) [code](../../ir/a.py)", "how-to/jax.md") == "[Plan](../plan.md) code (`ir/a.py`)"


def test_the_reference_has_all_of_it() -> None:
    """Every option of every verb, every public name, every device."""
    page = GENERATED["docs/reference/cli.md"]()
    for verb in VERBS:
        parser = ArgumentParser(allow_abbrev=False)
        verb.arguments(parser)
        section = page.partition(f"\n## `plan {verb.name}`\n")[2].partition("\n## ")[0]
        assert section, verb.name
        for option in re.findall(r"(?<!\S)--[a-z-]+", parser.format_usage()):
            assert f"{option}" in section, (verb.name, option)
    page = GENERATED["docs/reference/python.md"]()
    assert all(f"### `{name}`\n" in page for name in meshwright.__all__ if not name.startswith("__"))
    page = GENERATED["docs/reference/devices.md"]()
    assert all(f"| `{one.device.name}` |" in page for one in all_known())


def test_the_page_on_accuracy_is_of_the_prices_that_there_are() -> None:
    kept = json.loads(KEPT.read_text(encoding="utf-8"))["published_runs"]["rows"]
    prices = json.loads(PRICES.read_text(encoding="utf-8"))
    moved = [
        abs(one["predicted"]["step_s"] / kept[row[1]] - 1)
        for name, one in prices.items()
        if (row := re.match(r"row (\d+):", name)) and row[1] in kept
    ]
    assert len(moved) > 30
    assert fmean(moved) <= MOVED, "run: python -m pages.accuracy"
