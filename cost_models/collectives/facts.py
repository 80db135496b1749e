"""Facts about libraries of collectives and about wires, read from `profiles/collectives.json`.

Latencies of NCCL's algorithms and protocols per kind of hop, the share of a wire's rate that a library reaches, how a
torus is wired, and the constants fitted here, each with the rows that it was fitted on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from meshwright.cost_models.hardware.quantity import Kind


@cache
def facts() -> Mapping[str, Any]:
    """The whole table."""
    text = resources.files("meshwright.cost_models").joinpath("profiles", "collectives.json").read_text("utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


@cache
def wire_share(kind: str) -> tuple[float, Kind]:
    """The share of a link's rate that reaches the receiver, with its provenance; a generation, such as pcie4, falls
    back to its family, an unlisted kind to the lowest share of all."""
    shares: dict[str, tuple[float | str, str]] = facts()["wire_share"]
    family = kind if kind in shares else kind.rstrip("0123456789")
    if family not in shares:
        return min(wire_share(other)[0] for other in shares), "assumed"
    value, source = shares[family]
    known: Kind = facts()["sources"][source]["kind"]
    return (fit(value) if isinstance(value, str) else value), known


def fit(name: str) -> float:
    """A constant that was fitted here."""
    value: float = facts()["fits"][name]["value"]
    return value
