"""When garbage is collected: rarely. Frameworks are imported by making a million objects that stay, and a search makes
millions of small values that go by themselves; at Python's usual thresholds collections took a tenth of the time of a
command, and an eighth of planning and lowering on forked processes (Llama-3.1-8B, 2026-11)."""

from __future__ import annotations

import gc

THRESHOLDS = (100_000, 20, 100)


def collect_rarely() -> None:
    gc.set_threshold(*THRESHOLDS)
