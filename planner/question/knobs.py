"""Knobs: what a name of a configuration may be, and all that is said of it, in one entry.

The table is the fields of `Config` (`planner.question.pins`): `tp: int = knob(1, COUNT, "…")`. Pins and their refusals,
--allow and --forbid, JSON and its schemas, what is filled in anew beside other pins, and what is said of a pin that a
plan does not keep are made of it. `ir.names.held` reads a name back from plans.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from meshwright.ir.decisions.offload import NOTHING, Offload
from meshwright.ir.decisions.sharding import ZERO

DIGITS = 9
"""Of a count, at most."""
LONGEST = 1000
"""Characters of a pin, at most."""
BLOCKS = re.compile(r"\d{1,9}(\+\d{1,9})*", re.ASCII)
"""The layers of stages, as --fix takes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The kind of value that a knob takes: how it is read from text (None if it is not a value), described in words,
    and in JSON Schema."""

    read: Callable[[str], Any]
    said: str
    example: str
    schema: Mapping[str, Any]
    words: tuple[str, ...] = ()
    """Those of which one may be meant that is misspelt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """The entry of a configuration's name in the table of knobs.

    - `needs` is the name without which there is nothing to ask of it, if there is one.
    - `refills` are names that are filled in anew where this one is pinned, with blanks between them.
    - `shown`: also where it is as it starts.
    - `off` is what is left of it where it is forbidden altogether, if it can be; `open` what stands for "not said".
    """

    default: Any
    kind: Kind
    meaning: str
    needs: str = ""
    refills: str = ""
    shown: bool = False
    off: Any = None
    open: Any = None


def knob(default: Any, kind: Kind, meaning: str, **more: Any) -> Any:
    """A field of a configuration that can be pinned."""
    return field(default=default, metadata={"knob": Knob(default=default, kind=kind, meaning=meaning, **more)})


def knobs_of(table: Any) -> Mapping[str, Knob]:
    """The knobs among the fields of a class, by name."""
    return {one.name: one.metadata["knob"] for one in fields(table) if "knob" in one.metadata}


# Kinds ---------------------------------------------------------------------------------------------------------------


def words(*known: str, more: str = "") -> Kind:
    """A kind whose values are fixed words; with `more`, also words with an argument after a colon."""
    return Kind(
        read=lambda text: text if text in known or (more and ":" in text) else None,
        said=" or ".join(known),
        example=known[0],
        schema={"type": "string"} | ({"description": f"{', '.join(known)}, {more}"} if more else {"enum": list(known)}),
        words=known,
    )


def _counted(text: str) -> int | None:
    counts = text.isascii() and text.isdigit() and len(text) <= DIGITS
    return int(text) or None if counts else None


COUNT = Kind(
    read=_counted,
    said="1 or any greater whole number",
    example="1",
    schema={"type": "integer", "minimum": 1, "maximum": 10**DIGITS - 1},
)
SWITCH = Kind(
    read={"on": True, "off": False}.get,
    said="on or off",
    example="on",
    schema={"enum": [True, False, "on", "off"]},
)
LEVEL = Kind(
    read={str(level): level for level in ZERO}.get,
    said=" or ".join(map(str, ZERO)),
    example="0",
    schema={"type": "integer", "enum": list(ZERO)},
)
LAYERS = Kind(
    read=lambda text: tuple(map(int, text.split("+"))) if BLOCKS.fullmatch(text) else None,
    said="the layers of every stage, 8+8+10+6 for instance",
    example="8+8+10+6",
    schema={"type": "string", "pattern": BLOCKS.pattern},
)
WAITING = Kind(
    read=lambda text: str(Offload.parse(text)),
    said="none, or optimizer, activations or activations:N, joined by +",
    example=str(NOTHING),
    schema={"type": "string", "description": "offload, as --fix takes it", "maxLength": LONGEST},
)
