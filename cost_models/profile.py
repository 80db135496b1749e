"""Profiles: every number that a price needs beside datasheets, as one frozen value.

`published()` is the profile that is shipped: constants fitted on published runs, tables and curves of published
measurements. A calibration on the target replaces parts of it. Constants of compute, memory and collectives live with
their models; here are those of the step as a whole, read from `profiles/step.json`, each with its unit, what it was
fitted on, and its date.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Any

from meshwright.cost_models.compute.profile import ComputeConstants, constants
from meshwright.cost_models.hardware.quantity import Kind
from meshwright.cost_models.memory.peak import MemoryConstants, memory_constants
from meshwright.ir.errors import BadQuantity


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConstants:
    """Constants of how compute and communication overlap in a step.

    - Shares must lie in [0, 1]; the others must not be negative.
    """

    hidden_tensor: float
    """Share of tensor-parallel collectives that a stack which splits them into chunks hides behind products."""
    hidden_backward: float
    """Share of the backward pass's tensor-parallel collectives that run beside weight gradients by themselves."""
    covered: float
    """Share of compute that gathers and reductions of parameters and gradients can run behind."""
    slowdown: float
    """Slow-down of compute while such a collective runs beside it."""
    straggling: float
    """Growth of the step per doubling of the hosts: ranks wait for the slowest."""
    interval: float
    """Half width of the interval around a predicted step time, as a share of it."""

    def __post_init__(self) -> None:
        shares = (self.hidden_tensor, self.hidden_backward, self.covered)
        rest = (self.slowdown, self.straggling, self.interval)
        if not all(0 <= share <= 1 for share in shares) or min(rest) < 0:
            raise BadQuantity(
                place="the constants of a step",
                cause=f"shares {shares}, others {rest}",
                fix="give shares in [0, 1], and nothing negative",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """All constants that prices use."""

    name: str
    compute: ComputeConstants
    step: StepConstants
    memory: MemoryConstants


@cache
def published() -> Profile:
    """The shipped profile."""
    table = step_table()
    values = {field.name: float(table[field.name]["value"]) for field in fields(StepConstants)}
    return Profile(name="published", compute=constants(), step=StepConstants(**values), memory=memory_constants())


@cache
def step_table() -> dict[str, Any]:
    """The constants of a step with their provenance, as written."""
    text = resources.files("meshwright.cost_models").joinpath("profiles", "step.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


@cache
def digest() -> str:
    """A short hexadecimal digest of the shipped profile: every number that prices are made of, as written."""
    files = resources.files("meshwright.cost_models").joinpath("profiles").iterdir()
    held = sorted((file.name, file.read_bytes()) for file in files if file.is_file())
    return hashlib.sha256(b"".join(name.encode() + text for name, text in held)).hexdigest()[:DIGITS]


DIGITS = 16
"""Hexadecimal digits of a digest."""


def kind_of_step() -> Kind:
    """The weakest provenance among the constants of a step."""
    kinds: list[Kind] = [step_table()[field.name]["kind"] for field in fields(StepConstants)]
    return "assumed" if "assumed" in kinds else "fitted"
