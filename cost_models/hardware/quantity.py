"""Quantities: numbers with their provenance.

Every price begins with numbers that somebody measured, fitted, published or typed. A `Quantity` carries one of them
with its unit, its source, its date and the *kind* of its provenance:

    measured    observed on hardware, by us or in a document that says how
    fitted      a constant chosen so that a formula meets measurements
    datasheet   what a vendor, or a table of vendors' figures, promises
    user        given by the person who asks; trusted, and labelled
    assumed     a stand-in where nothing is known of the machine: measure it, or give your own

Arithmetic on quantities is left to those who price: they name in words what they derived a number from.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from meshwright.ir.errors import BadQuantity

Kind = Literal["measured", "fitted", "datasheet", "user", "assumed"]
KINDS: tuple[Kind, ...] = ("measured", "fitted", "datasheet", "user", "assumed")

UNITS = ("flop/s", "bytes", "bytes/s", "s", "devices", "Gb/s", "1/device-hour", "1")
"""`1/device-hour` is a price, in whatever currency the user thinks in; `1` a share."""

_DATE = re.compile(r"\d{4}-\d{2}(-\d{2})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One number.

    - It must be finite and positive: what is unknown is absent, never zero.
    - Its unit is one of `UNITS`, its kind one of `KINDS`.
    - It names its source, and, unless a user gave it, a date (year and month).
    """

    value: float
    unit: str
    source: str
    date: str
    kind: Kind

    def __post_init__(self) -> None:
        dated = self.kind == "user" or _DATE.fullmatch(self.date)
        if math.isfinite(self.value) and self.value > 0 and self.unit in UNITS and self.kind in KINDS and dated:
            if self.source:
                return
            raise BadQuantity(place="a quantity", cause=f"{self.value} {self.unit} has no source", fix="name one")
        raise BadQuantity(
            place=self.source or "a quantity",
            cause=f"value {self.value}, unit {self.unit!r}, kind {self.kind!r}, date {self.date!r}",
            fix=f"give a positive value, a unit of {', '.join(UNITS)}, a kind of {', '.join(KINDS)}, a date YYYY-MM",
        )

    def to_json(self) -> dict[str, str | float]:
        return {
            "value": self.value,
            "unit": self.unit,
            "kind": self.kind,
            "source": self.source,
            "date": self.date,
        }


GIVEN = "the cluster description"


def given(value: float, unit: str) -> Quantity:
    """A number that the user gave."""
    return Quantity(value=value, unit=unit, source=GIVEN, date="", kind="user")


_STRENGTH: tuple[Kind, ...] = ("assumed", "datasheet", "fitted", "user", "measured")


def weakest(*quantities: Quantity) -> Quantity:
    """The quantity with the weakest provenance; a number derived from several is worth no more."""
    return min(quantities, key=lambda quantity: _STRENGTH.index(quantity.kind))


def derived(value: float, unit: str, how: str, *origins: Quantity) -> Quantity:
    """A number computed from others: `how` names the computation, the weakest origin gives kind, source and date."""
    origin = weakest(*origins)
    return Quantity(value=value, unit=unit, source=f"{how}; {origin.source}", date=origin.date, kind=origin.kind)


def weakest_kind(*kinds: Kind) -> Kind:
    """The weakest kind of provenance."""
    return min(kinds, key=_STRENGTH.index)
