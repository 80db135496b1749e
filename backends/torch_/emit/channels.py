"""Convolutions and norms whose channels an axis cuts, and the style that says it.

torch has styles for `nn.Linear`, `nn.Embedding` and norms over tokens. Of a module with channels every rank runs the
user's own code on plain tensors, with its part of the parameters and buffers:

    output channels cut     OwnChannels(takes=Replicate(), makes=Shard(1))     gradients of what it takes add up
    input channels cut      OwnChannels(takes=Shard(1), makes=Partial())       what ranks make adds up, then the bias
    groups, or norms        OwnChannels(takes=Shard(1), makes=Shard(1))        nothing is exchanged
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.ir.adjoint import Choice, Split
from meshwright.ir.graph import Op
from meshwright.ir.quoting import literal

NAME = "OwnChannels"
CHANNEL = "1"
"""The dimension of channels in a value."""
CONVOLUTIONS = tuple(f"conv{transposed}{rank}d" for transposed in ("", "_transpose") for rank in (1, 2, 3))
NORMS = ("batch_norm", "group_norm")


@dataclass(frozen=True, slots=True)
class Cut:
    """How an axis cuts such an operator: how its input lies, and its result; `groups`: whether it has some of them."""

    takes: str
    makes: str
    groups: bool = False

    def options(self, dims: Mapping[str, int]) -> tuple[str, ...]:
        """Of the style; `dims` are those along which parameters and buffers are cut."""
        said = ", ".join(f"{literal(name)}: {dim}" for name, dim in dims.items())
        counted = ("groups=True",) if self.groups else ()
        return (f"dims={{{said}}}", f"takes={_layout(self.takes)}", f"makes={_layout(self.makes)}", *counted)


def has_channels(op: Op) -> bool:
    return op.kind in (*CONVOLUTIONS, *NORMS)


def cut_of(op: Op, choice: Choice) -> Cut | None:
    """What an axis does to the channels of an operator, if that is what it cuts."""
    factors = choice.factors if isinstance(choice, Split) else ()
    if op.kind in CONVOLUTIONS:
        known: dict[tuple[str, ...], Cut] = {
            ("co",): Cut("R", CHANNEL),
            ("ci",): Cut(CHANNEL, "P"),
            ("g",): Cut(CHANNEL, CHANNEL, groups=True),
        }
        grouped = op.attr("groups", 1) != 1 and factors != ("g",)
        return None if grouped else known.get(factors)
    own: dict[tuple[str, ...], Cut] = {("c",): Cut(CHANNEL, CHANNEL), ("g",): Cut(CHANNEL, CHANNEL, groups=True)}
    return own.get(factors)


def _layout(at: str) -> str:
    return {"R": "Replicate()", "P": "Partial()"}.get(at, f"Shard({at})")
