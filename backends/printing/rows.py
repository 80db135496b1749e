"""Rows of experts: where nothing is dropped, an expert has as many rows as tokens that chose it.

A graph has slots for them, rows[e, c, d], of which c is the mean. Printed code has all rows one after another by their
experts, rows[n, d], and the numbers at which each expert's end. What the graph does to slots it does to each row by
itself, or with what its expert has, so that the two leading dimensions are one here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from meshwright.ir.errors import EmissionPrinted
from meshwright.ir.graph.graph import Attr, Graph, Op, Type
from meshwright.ir.program.routes import Way
from meshwright.ir.sharding.placement import Dim, Placement
from meshwright.ir.sharding.reshard import Step
from meshwright.ir.sharding.rewrite import facts_of

ENDS, PLACES = "@ends", "@places"
"""The local names beside that of what is dispatched: where each expert's rows end, and where that of each choice is."""
PRODUCTS = ("grouped_linear", "bmm", "matmul")
EXPERTS, SLOTS = 0, 1
"""Dimensions of what is dispatched."""
ARRIVE, LEAVE, OWN = "arrive", "leave", "keep_own"
"""What steps between ranks are for rows: to experts, back from them (added up, if all ranks have them), and back with
what all have alike."""
ARRIVE_WHOLE, LEAVE_IN_PARTS = "arrive_whole", "leave_in_parts"
"""The same of rows of which every rank has a part, along another dimension: they are whole where their experts are."""
DIMS = ("dim", "dims", "perm")
"""Attributes that number dimensions."""


def rows_of(graph: Graph) -> Mapping[str, str]:
    """The values that are rows of experts, and the dispatched value that they are made of."""
    found: dict[str, str] = {}
    for op in graph.ops:
        if op.kind == "dispatch" and op.attr("dropless"):
            found[op.results[0]] = op.results[0]
        elif op.kind != "combine" and (made_of := {found[value] for value in op.operands if value in found}):
            if len(made_of) > 1 or not _by_row(graph, op, found):
                raise EmissionPrinted(place=f"%{op.name} ({op.kind}) {op.source}", cause="it mixes rows of experts")
            found |= dict.fromkeys(op.results, made_of.pop())
    return found


def _by_row(graph: Graph, op: Op, rows: Mapping[str, str]) -> bool:
    """Whether an operator makes each row of rows alone, and of values that every expert has."""
    rule = facts_of(graph)[op.name].rule
    lead = {rule.operands[slot][:2] for slot, value in enumerate(op.operands) if value in rows}
    if len(lead) > 1 or {made[:2] for made in rule.results} != lead:
        return False
    ((experts, slots),) = lead
    others = [dims for slot, dims in enumerate(rule.operands) if op.operands[slot] not in rows]
    return len(experts) == len(slots) == 1 and not any(slots[0] in dim for dims in others for dim in dims)


def merged(type_: Type) -> Type:
    """The type of rows, for that of slots. Their number is not known."""
    experts, slots, *rest = type_.shape
    return Type((experts * slots, *rest), type_.dtype)


def renumbered(op: Op) -> Op:
    """An operator on slots as one on rows."""
    return replace(op, attrs=tuple((name, _less(one) if name in DIMS else one) for name, one in op.attrs))


def _less(dims: Attr) -> Attr:
    if isinstance(dims, tuple):
        return tuple(dict.fromkeys(map(_less, dims)))
    return max(0, dims - 1) if isinstance(dims, int) and dims >= 0 else dims


Lead = tuple[Dim, Dim]
Trips = tuple["Trip", ...]


@dataclass(frozen=True, slots=True)
class Trip:
    """The journey of rows to the experts of other ranks, by a step, from where they are dispatched, or behind another
    trip."""

    behind: str
    step: Step

    @property
    def name(self) -> str:
        """Its local name; another one has the end of each expert's rows there."""
        return f"{self.behind}@to.{'.'.join(self.step.axes)}.{self.step.kind}{'.in_parts' * in_parts(self.step)}"


def lead(placement: Placement) -> Lead:
    """The placement of experts and slots."""
    return placement.dims[0], placement.dims[1]


def travelled(rows: str, trips: Trips, steps: Iterable[Step]) -> Trips:
    """The trips that rows have made after some steps: one more, or the last one taken back, by each that they travel
    by."""
    for step in filter(_travels, steps):
        uneven = any(trip.step.kind == "all_to_all" for trip in trips)
        last = trips[-1].step if trips else None
        to_all = step.kind == "all_gather" and step.dim == SLOTS
        if (to_all and not uneven) or (step.kind == "all_to_all" and step.dim > EXPERTS == step.target):
            trips = (*trips, Trip(trips[-1].name if trips else rows, step))
        elif last is not None and _takes_back(step, last):
            trips = trips[:-1]
        else:
            raise EmissionPrinted(place=f"%{rows}", cause=f"rows of experts take {step}")
    return trips


def _takes_back(step: Step, there: Step) -> bool:
    return (
        step.axes == there.axes
        and step.kind in BACK[there.kind]
        and (step.kind != "all_to_all" or (step.dim == EXPERTS and (step.target > SLOTS) == in_parts(there)))
    )


def in_parts(there: Step) -> bool:
    """Whether a step takes parts of rows to where their experts are."""
    return there.dim > SLOTS


BACK = {"all_to_all": ("all_to_all",), "all_gather": ("reduce_scatter", "slice")}
"""The steps that take rows back, by the one that took them there."""


def along_rows(way: Way, rows: str, trips: Trips, numbers: Mapping[Trip, int]) -> Way:
    """The move of slots as one of rows that have made trips; steps of rows have the numbers of theirs for a
    dimension, and for a target the one along which they are in parts."""
    starts = Placement((way.starts.dims[0] + way.starts.dims[1], *way.starts.dims[2:]), way.starts.partial)
    there, trips = _of_rows(way.there, rows, trips, numbers)
    back, _ = _of_rows(way.back, rows, trips, numbers)
    return replace(way, there=there, back=back, starts=starts)


def _travels(step: Step) -> bool:
    return not {step.dim, step.target}.isdisjoint((EXPERTS, SLOTS))


def _of_rows(
    steps: Iterable[Step], rows: str, trips: Trips, numbers: Mapping[Trip, int]
) -> tuple[tuple[Step, ...], Trips]:
    found = []
    for step in steps:
        then = travelled(rows, trips, (step,))
        if then == trips:
            found.append(replace(step, dim=max(-1, step.dim - 1), target=max(-1, step.target - 1)))
        else:
            arrives, trip = len(then) > len(trips), max(then, trips, key=len)[-1]
            if in_parts(trip.step):
                kind, target = ARRIVE_WHOLE if arrives else LEAVE_IN_PARTS, max(step.dim, step.target) - 1
            else:
                kind, target = ARRIVE if arrives else OWN if step.kind == "slice" else LEAVE, -1
            found.append(Step(kind, step.axes, numbers[trip], target))
        trips = then
    return tuple(found), trips
