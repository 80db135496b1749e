"""The file of a question, with every key: what is known of it is said, the rest stands behind a #."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

from meshwright.ir.quoting import said, toml
from meshwright.planner.cli.declared import Declared, Option
from meshwright.planner.cli.questions.keys import KEYS

WIDTH = 100

HEADING = """\
# A question to `plan`, asked with `plan --config {name}`. What the command line says takes the place of what
# stands here. A key behind a # says nothing: it has what is taken if nobody says otherwise, or an example.
"""
TOLD = {
    "": "",
    "workload": "What is trained.",
    "software": "The software that runs it, and what code is written for.",
    "constraints": "What the plan may be.",
    "search": "The search.",
}
"""What every table is about."""

EXAMPLES: Mapping[str, Any] = {
    "model": "model.py:build",
    "cluster": "2x8xH100",
    "profile": "published",
    "global_batch": 256,
    "micro_batch": 1,
    "seq": 4096,
    "dtype": "bf16",
    "target": "torch-cuda",
    "stack": "torch",
    "style": "compiled",
    "recipe": "fp32",
    "fix": ["tp=8", "recompute=full"],
    "allow": ["pp=1|2|4"],
    "forbid": ["cp"],
    "time_limit": 60,
    "max_gap": 0.02,
}
"""Values of the keys that have no usual one."""


def template(known: Mapping[str, Any], verb: Declared, name: str) -> str:
    """The text of a file: the keys that are known, and all others as examples."""
    lines = HEADING.format(name=said(name)).splitlines()
    for table, keys in KEYS.items():
        if table:
            lines += ["", f"[{table}]  # {TOLD[table]}"]
        for key in keys:
            lines += ["", *_key(verb.of(key), known.get(key))]
    return "\n".join(lines) + "\n"


def _key(option: Option, known: Any) -> Iterator[str]:
    for told in (option.told, f"one of {', '.join(option.choices)}" if option.choices else ""):
        yield from (f"# {line}" for line in wrap(told, WIDTH, break_on_hyphens=False))
    usual = EXAMPLES.get(option.dest, option.default)
    yield f"{'# ' if known is None else ''}{option.dest} = {_value(usual if known is None else known)}"


def _value(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return toml(value) if isinstance(value, str) else repr(value)
