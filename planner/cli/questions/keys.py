"""The keys of a question's file. A key is called as its option: `global_batch` is --global-batch."""

from __future__ import annotations

from collections.abc import Mapping

TOP = ""
"""The table of the keys that stand before all tables."""
KEYS: Mapping[str, tuple[str, ...]] = {
    TOP: ("model", "cluster", "profile", "objective", "seed"),
    "workload": ("global_batch", "micro_batch", "seq", "dtype", "optimizer", "imbalance"),
    "software": ("target", "stack", "style", "recipe"),
    "constraints": ("fix", "allow", "forbid"),
    "search": ("time_limit", "operators", "max_gap", "top"),
}
HOME: Mapping[str, str] = {key: table for table, keys in KEYS.items() for key in keys}
"""The table of every key."""

FILES = ("model", "cluster", "profile")
"""Keys that may name a file, which is looked for beside the question's."""

OF_ONE_RUN = frozenset(
    (
        "config", "out", "force", "json", "dump_after", "no_cache", "detail", "help",
        "what_if", "scale", "scaling", "beat", "from_format",
    )
)  # fmt: skip
"""Options of a verb that takes questions which say what becomes of the answer, and are no part of the question."""
OF_ONE_VERB: Mapping[str, frozenset[str]] = {
    "plan": frozenset(),
    "estimate": frozenset({"from_", "configs", "annotated", "jobs", "top", "check"}),
    "inspect": frozenset({"batch", "device", "dtype", "style"}),
    "calibrate": frozenset({"ranks", "threads", "target", "dtype", "quick", "plan_only", "name"}),
}
"""Options that mean something of the verb's own there; every verb that takes questions, as a key."""
