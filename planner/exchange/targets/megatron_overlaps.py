"""What Megatron-Core runs beside compute: its options for that, and the stack that has so many of them.

A run makes use of some overlaps only; the others are as the usual stack has them, and nothing is said of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from meshwright.ir.errors import SettingsContradict
from meshwright.ir.target.workload import STACKS, Stack
from meshwright.planner.exchange.options import SWITCH, Given, Option, word
from meshwright.planner.exchange.run import Room, Run
from meshwright.planner.exchange.target import Line

USUAL = "megatron"
STACKS_ = (USUAL, "megatron-tp-overlap")


@dataclass(frozen=True, slots=True)
class Named:
    """Options by what Megatron-Core calls them."""

    names: Mapping[str, str]

    def of(self, name: str, kind: Any, default: Any = None) -> Option:
        return Option(self.names[name], kind, default)

    def has(self, name: str) -> bool:
        return name in self.names


OVERLAPS = {
    "overlap_grad_reduce": ("gradients",),
    "overlap_param_gather": ("parameters", "publish"),
    "overlap_p2p_comm": ("pipeline",),
    "tp_comm_overlap": ("tensor",),
    "overlap_moe_expert_parallel_comm": ("expert",),
}
"""What every option hides behind compute, in the words of a stack."""
DISPATCHER = "moe_token_dispatcher_type"
TENSOR = "tp_comm_overlap"
"""It needs tensor and sequence parallelism, and hides other small collectives, too: without them it is off."""


def _asked(known: Mapping[str, Any]) -> dict[str, bool]:
    """The overlaps for which a run has a use."""
    copies = known["copies"] > 1
    return {
        "overlap_grad_reduce": copies,
        "overlap_param_gather": copies and known["zero"] > 0,
        "overlap_p2p_comm": known["pp"] > 1,
        TENSOR: known["tp"] > 1 and known["sp"],
        "overlap_moe_expert_parallel_comm": known["ep"] > 1,
        DISPATCHER: known["ep"] > 1,
    }


def flags(stack: Stack, known: Mapping[str, Any]) -> dict[str, bool]:
    """The overlaps of a stack that a run can use, by option; and whether tokens go to every host once."""
    found = {name: set(hidden) <= set(stack.hides) for name, hidden in OVERLAPS.items()} | {DISPATCHER: stack.dedupes}
    asked = _asked(known)
    own = {name: value for name, value in found.items() if asked[name] or name == TENSOR}
    if own.get("overlap_param_gather"):
        own["overlap_param_gather"] = own["overlap_grad_reduce"]
    return own


def stack_with(asked: Mapping[str, bool], known: Mapping[str, Any]) -> Stack:
    """The stack that has these overlaps: a named one if there is one, else one of its own."""
    for name in STACKS_:
        if flags(STACKS[name], known) == asked:
            return STACKS[name]
    usual = STACKS[USUAL]
    whole = {name: asked.get(name, set(hidden) <= set(usual.hides)) for name, hidden in OVERLAPS.items()}
    hides = tuple(
        kind
        for kind in ("gradients", "parameters", "publish", "ring", "tensor", "pipeline", "expert")
        if kind == "ring" or any(whole[name] for name, hidden in OVERLAPS.items() if kind in hidden)
    )
    return replace(usual, name=f"{USUAL}-as-said", hides=hides, dedupes=asked.get(DISPATCHER, False))


def known_of(run: Run) -> dict[str, Any]:
    """The fields of a run on which it depends which overlaps it has a use for."""
    return {"copies": run.copies, "zero": run.zero, "pp": run.pp, "tp": run.tp, "sp": run.sp, "ep": run.ep}


def line(named: Named) -> Line:
    switches = {name: named.of(name, SWITCH, name == "overlap_p2p_comm") for name in OVERLAPS}
    dispatcher = named.of(DISPATCHER, word("allgather", "alltoall", "flex"), "allgather")

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        found = flags(run.stack, known_of(run))
        once = found.pop(DISPATCHER, None)
        own = {switches[name].name: value for name, value in found.items() if value != switches[name].default}
        return own | ({} if once is None else {dispatcher.name: "flex" if once else "alltoall"})

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        now = dict(known) | {"copies": max(1, room.ranks // (known["tp"] * known["pp"]))}
        asked = {name: given[one] for name, one in switches.items()} | {DISPATCHER: given[dispatcher] == "flex"}
        uses = _asked(now)
        own = {name: value for name, value in asked.items() if uses[name]}
        own.setdefault(TENSOR, False)
        if own.get("overlap_param_gather") and not own["overlap_grad_reduce"]:
            raise SettingsContradict(
                place=given.at(switches["overlap_param_gather"].name),
                cause=f"it cannot be without {switches['overlap_grad_reduce'].name}",
                fix="give both",
            )
        return {"stack": stack_with(own, now)}

    return Line((*switches.values(), dispatcher), says, means)
