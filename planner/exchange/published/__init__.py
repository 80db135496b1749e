"""Names of options as targets publish them, each list with its source, commit and date. In: a target. Out: its names.

The lists are facts, taken from the sources that they name: names of command-line options, of fields of classes of
configurations, of keys of a file of defaults. They tell what is an option of no concern from what is none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The options of a target, and where they stand."""

    target: str
    source: str
    files: tuple[str, ...]
    version: str
    commit: str
    date: str
    options: frozenset[str]

    def has(self, name: str) -> bool:
        """Whether there is such an option, or one whose value has it inside."""
        parts = name.split(".")
        return any(".".join(parts[:end]) in self.options for end in range(len(parts), 0, -1))


@lru_cache
def published(target: str) -> Published:
    """The options of a target."""
    text = Path(__file__).with_name(f"{target.replace('-', '_')}.json").read_text(encoding="utf-8")
    found = json.loads(text)
    return Published(**found | {"files": tuple(found["files"]), "options": frozenset(found["options"])})
