"""Emitted scripts that are kept: what a change of the emitter does to them is seen in its diff. Tests compare the bytes
and run these very files. Written anew by

    python -m tests.backends.torch_.golden
"""

from __future__ import annotations

import re
from pathlib import Path

from meshwright.backends.torch_.emit import Subject, emit

FOLDER = Path(__file__).parents[2] / "golden" / "emitted"
KEPT = ("dp", "fsdp", "tp", "tp+sp", "tp x fsdp", "tp+sp x fsdp, recompute")
"""Of the plans of test_emit.py."""
PRINTED, KEPT_CASE = "printed, tp+sp x zero 3", "llama, tp+sp x zero 3"
"""Of those of test_emit_printed.py, and what it is called there."""


def file_of(kind: str) -> Path:
    return FOLDER / f"{re.sub(r'[^a-z0-9]+', '_', kind)}.py"


def text_of(plan: Subject) -> str:
    return dict(emit(plan, FOLDER).texts)["train.py"]


def main() -> None:
    """Write all of them."""
    from tests.backends.torch_.test_emit import plan_of
    from tests.backends.torch_.test_emit_printed import printed_plan

    for kind in KEPT:
        file_of(kind).write_text(text_of(plan_of(kind)), encoding="utf-8")
    file_of(PRINTED).write_text(text_of(printed_plan(KEPT_CASE)), encoding="utf-8")


if __name__ == "__main__":
    main()
