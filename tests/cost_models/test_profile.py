"""The shipped profile: every constant says what it stands on, and the page that lists them is current."""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, fields, replace
from importlib.resources import files
from pathlib import Path

import pytest

from meshwright.cost_models.compute.profile import ComputeConstants
from meshwright.cost_models.constants import BEGIN, END, main, render, rows, written
from meshwright.cost_models.hardware.quantity import KINDS, weakest_kind
from meshwright.cost_models.intervals.widths import PREFIX, Widths
from meshwright.cost_models.memory.peak import MemoryConstants, kind_of_memory
from meshwright.cost_models.profile import StepConstants, digest, kind_of_step, published
from meshwright.ir.errors import BadQuantity

PAGE = Path(__file__).parents[2] / "docs" / "prices.md"
MOST_FITTED = 30


def test_the_page_is_current() -> None:
    page = PAGE.read_text()
    assert page.count(BEGIN) == page.count(END) == 1
    assert written(page) == page, "run: python -m meshwright.cost_models.constants docs/prices.md"


def test_the_command_writes_the_table_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert main([str(page)]) == 0
    assert page.read_text() == f"before\n{render()}\nafter\n"


def test_every_constant_has_a_unit_a_kind_a_reason_and_a_date() -> None:
    found = list(rows())
    assert len({row.name for row in found}) == len(found)
    for row in found:
        assert row.unit in ("1", "s", "bytes"), row.name
        assert row.kind in KINDS, row.name
        assert len(row.basis.split()) > 2, row.name
        assert re.fullmatch(r"20\d\d-\d\d", row.date), row.name
        assert (row.unit == "s") == row.name.endswith("_s"), row.name
    priced = [row for row in found if not row.name.startswith(PREFIX)]  # widths of intervals are no part of a price
    assert sum(row.kind == "fitted" for row in priced) <= MOST_FITTED


def test_what_prices_use_is_what_is_listed() -> None:
    """All fields of the profile, by value."""
    listed = {row.name: row.value for row in rows()}
    profile = published()
    for part, of, prefix in (
        (profile.step, StepConstants, ""),
        (profile.compute, ComputeConstants, ""),
        (profile.memory, MemoryConstants, ""),
        (profile.intervals.widths, Widths, PREFIX),
    ):
        for field in fields(of):
            assert getattr(part, field.name) == listed[prefix + field.name], field.name


def test_the_weakest_kinds_are_named() -> None:
    kinds = {row.name: row.kind for row in rows()}
    step = {kinds[field.name] for field in fields(StepConstants)}
    memory = {kinds[field.name] for field in fields(MemoryConstants)}
    assert kind_of_step() == ("assumed" if "assumed" in step else "fitted")
    assert kind_of_memory() == weakest_kind(*memory)


def test_impossible_constants_of_a_step_are_refused() -> None:
    """Shares are up to 1; what is no share is not."""
    shares, rest = ("hidden_tensor", "hidden_backward", "covered"), ("slowdown", "straggling")
    wrong = [(name, value) for name in shares for value in (-0.1, 1.1)] + [(name, -0.1) for name in rest]
    for name, value in wrong:
        with pytest.raises(BadQuantity, match="shares"):
            replace(published().step, **{name: value})
    least, most = dict.fromkeys((*shares, *rest), 0.0), dict.fromkeys(shares, 1.0) | dict.fromkeys(rest, 7.0)
    for right in (least, most):
        assert asdict(replace(published().step, **right)) == right


def test_a_digest_is_of_every_shipped_number() -> None:
    """Names and contents in order, as `sha256sum` of them one after the other would have it."""
    folder = Path(str(files("meshwright.cost_models"))) / "profiles"
    whole = hashlib.sha256()
    for path in sorted(path for path in folder.glob("*") if path.is_file()):
        whole.update(path.name.encode())
        whole.update(path.read_bytes())
    assert digest() == whole.hexdigest()[:16]
    assert published().name == "published"
