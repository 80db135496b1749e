"""Emitted scripts that are kept: what a change of the emitter does to them is seen in its diff. Tests compare the bytes
and run these very files. Written anew by

    python -m tests.backends.torch_.golden
"""

from __future__ import annotations

import re
from pathlib import Path

from meshwright.backends.torch_.emit import Subject, emit

FOLDER = Path(__file__).parents[2] / "golden" / "emitted"
KEPT = ("dp", "fsdp", "tp", "tp+sp x fsdp, recompute")
"""Of the plans of test_emit.py."""


def file_of(kind: str) -> Path:
    return FOLDER / f"{re.sub(r'[^a-z0-9]+', '_', kind)}.py"


def text_of(plan: Subject) -> str:
    return dict(emit(plan, FOLDER).texts)["train.py"]


def main() -> None:
    """Write all of them."""
    from tests.backends.torch_.test_emit import plan_of

    for kind in KEPT:
        file_of(kind).write_text(text_of(plan_of(kind)), encoding="utf-8")


if __name__ == "__main__":
    main()
