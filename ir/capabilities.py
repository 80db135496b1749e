"""Capabilities: what a target can be made to do, as data.

A backend declares, line by line, which layouts, attention algorithms, storage, schedules, recomputation and overlap
its emitted code can express, which reshard steps it can execute and what its library really runs for each. The search
looks only at plans that these lines allow, lowering uses only these steps, and the prices are those of the executed
collectives. So a limit of a backend is one line of data here, not an `if` in the planner.

Every line carries its evidence. `ANY` allows everything that can be priced, lowered as NCCL; it is not a target to
emit for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.ir.adjoint import Split
from meshwright.ir.decisions import BodyPlan, Decisions
from meshwright.ir.errors import NotExpressible
from meshwright.ir.lower_body import Lowering
from meshwright.ir.placement import Contiguous, Layout, Sections, Zigzag
from meshwright.ir.reshard import MOVES
from meshwright.ir.schedules import SCHEDULES

LAYOUTS = ("contiguous", "sections", "zigzag", "uneven")
STORAGE = ("params", "grads", "optimizer")
RECOMPUTE = ("none", "full", "selective")


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that a target can do, and how we know. `executes` names what its library runs instead, where that
    differs."""

    name: str
    evidence: str
    executes: str = ""


@dataclass(frozen=True, slots=True)
class ScheduleLine:
    """A schedule that a target can run, with its conditions on micro-batches m, groups p and virtual stages v."""

    name: str
    evidence: str
    min_microbatches_per_group: int = 1
    """m must be at least this many times p."""
    multiple_of_groups: bool = False


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Everything that one target can do.

    - Names must be of the IR's own vocabulary (`LAYOUTS`, `MOVES`, `SCHEDULES`, …): a line that means nothing is
      refused.
    - What is not listed cannot be done.
    """

    target: str
    device: str
    """Whose kernels decide what is saved for backward: "cuda" or "cpu"."""
    layouts: tuple[Line, ...]
    attention: tuple[Line, ...]
    storage: tuple[Line, ...]
    schedules: tuple[ScheduleLine, ...]
    recompute: tuple[Line, ...]
    moves: tuple[Line, ...]
    overlap: tuple[Line, ...] = ()
    offload: tuple[Line, ...] = ()

    def __post_init__(self) -> None:
        for field, lines, known in (
            ("layouts", self.layouts, LAYOUTS),
            ("storage", self.storage, STORAGE),
            ("recompute", self.recompute, RECOMPUTE),
            ("moves", self.moves, MOVES),
            ("schedules", self.schedules, (*SCHEDULES, "custom")),
        ):
            for line in lines:
                if line.name not in known:
                    raise NotExpressible(
                        place=f"capabilities of {self.target}",
                        cause=f"{field}: {line.name!r}",
                        fix=f"use {', '.join(known)}",
                    )

    def lowering(self) -> Lowering:
        """How programs for this target are lowered."""
        return Lowering(moves=tuple(line.name for line in self.moves), device=self.device)

    def executed(self, move: str) -> str:
        """The collective that the target's library runs for a reshard step."""
        return next((line.executes or line.name for line in self.moves if line.name == move), move)

    def refusals(self, decisions: Decisions) -> Iterator[NotExpressible]:
        """Everything in a plan that this target cannot express."""
        for plan in decisions.plans:
            yield from self._plan_refusals(plan)
        yield from self._schedule_refusals(decisions)
        if decisions.offload and not self.offload:
            yield self._refuse("offload", decisions.offload[0], "keep it on the device")

    def check(self, decisions: Decisions) -> None:
        """Raise the first refusal."""
        for refusal in self.refusals(decisions):
            raise refusal

    def _plan_refusals(self, plan: BodyPlan) -> Iterator[NotExpressible]:
        layouts = [line.name for line in self.layouts]
        algorithms = [line.name for line in self.attention]
        for op, strategy in plan.strategies:
            for _, choice in strategy.choices:
                if not isinstance(choice, Split):
                    continue
                if layout_name(choice.layout) not in layouts:
                    yield self._refuse(f"{plan.name}, %{op}", str(choice), f"use {', '.join(layouts)}")
                if len(choice.factors) == 2 and "ring" not in algorithms:
                    yield self._refuse(f"{plan.name}, %{op}", str(choice), f"use {', '.join(algorithms)} attention")
        stored = [line.name for line in self.storage]
        for item in plan.storage:
            for kind, placement in (("params", item.params), ("grads", item.grads), ("optimizer", item.optimizer)):
                if placement != item.params and kind not in stored:
                    yield self._refuse(f"{plan.name}, {item.path}", f"{kind} {placement}", "keep copies")
        if plan.recompute and not {line.name for line in self.recompute} & {"full", "selective"}:
            yield self._refuse(plan.name, "recompute", "keep every value")

    def _schedule_refusals(self, decisions: Decisions) -> Iterator[NotExpressible]:
        schedule, groups = decisions.schedule, len(decisions.groups)
        if len(decisions.stages) == 1:
            return
        line = next((line for line in self.schedules if line.name == schedule.name), None)
        if line is None:
            names = ", ".join(line.name for line in self.schedules)
            yield self._refuse("schedule", schedule.name, f"use {names}")
            return
        least = line.min_microbatches_per_group * groups
        if schedule.microbatches < least:
            yield self._refuse("schedule", f"{schedule.microbatches} micro-batches", f"use at least {least}")
        if line.multiple_of_groups and schedule.microbatches % groups:
            yield self._refuse("schedule", f"{schedule.microbatches} micro-batches", f"use a multiple of {groups}")

    def _refuse(self, place: str, what: str, fix: str) -> NotExpressible:
        return NotExpressible(place=place, cause=f"target {self.target} cannot express {what}", fix=fix)


def layout_name(layout: Layout) -> str:
    """The name a layout goes by in capabilities."""
    if isinstance(layout, Contiguous):
        return "contiguous"
    if isinstance(layout, Sections):
        return "sections"
    return "zigzag" if isinstance(layout, Zigzag) else "uneven"


_PRICED = "whatever the evaluator can price"

ANY = Capabilities(
    target="any",
    device="cuda",
    layouts=tuple(Line(name, _PRICED) for name in LAYOUTS),
    attention=tuple(Line(name, _PRICED) for name in ("all_gather", "ulysses", "ring")),
    storage=tuple(Line(name, _PRICED) for name in STORAGE),
    schedules=tuple(ScheduleLine(name, _PRICED) for name in (*SCHEDULES, "custom")),
    recompute=tuple(Line(name, _PRICED) for name in RECOMPUTE),
    moves=tuple(Line(name, _PRICED) for name in MOVES),
    overlap=(Line("data_parallel", _PRICED), Line("parameters", _PRICED), Line("ring", _PRICED)),
    offload=(Line("saved", _PRICED),),
)
