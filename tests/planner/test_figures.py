"""Figures of reference cases are as they were kept (`tests.figures`)."""

import pytest

from tests.figures import differences, kept
from tests.figures.tables import TABLES

NAMES = [
    (table, name)
    for table in (
        "plans",
        "words",
    )
    for name in TABLES[table]
]


@pytest.mark.parametrize(("table", "name"), NAMES)
def test_a_case_is_as_it_was_kept(table: str, name: str) -> None:
    found = list(differences(TABLES[table][name](), kept(table)[name]))
    assert not found, f"python -m tests.figures {table}, if that is meant:\n" + "\n".join(found)


@pytest.mark.parametrize("table", sorted({table for table, _ in NAMES}))
def test_no_case_is_kept_that_is_not_compared(table: str) -> None:
    assert list(kept(table)) == list(TABLES[table])
