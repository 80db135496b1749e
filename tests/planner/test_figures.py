"""Figures of reference cases are as they were kept (`tests.figures`)."""

import pytest

from tests.figures import changes, kept
from tests.figures.tables import TABLES

OWN = (
    "plans",
    "words",
    "spaces",
    "blocks",
    "jobs",
    "searches",
)


@pytest.mark.parametrize(("table", "name"), [(table, name) for table in OWN for name in TABLES[table]])
def test_a_case_is_as_it_was_kept(table: str, name: str) -> None:
    assert not changes(table, name, TABLES[table][name]())


@pytest.mark.parametrize("table", OWN)
def test_no_case_is_kept_that_is_not_compared(table: str) -> None:
    assert list(kept(table)) == list(TABLES[table])
