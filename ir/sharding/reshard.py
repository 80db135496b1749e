"""Resharding: the cheapest sequence of collectives from one placement of a tensor to another.

Each *step* moves one axis and is exact by itself:

    slice           copies -> shard             every rank keeps its part (no traffic)
    mask            copies -> partial sum       all but the first rank hold zeros (no traffic)
    pad             shard -> partial sum        the rank's part among zeros (no traffic)
    all_gather      shard -> copies
    all_to_all      shard of one dim -> shard of another
    reduce_scatter  partial sum -> shard
    all_reduce      partial -> copies

A shard can be added or taken off only at the minor end of its dimension, so a plan is a path through placements; the
shortest one by bytes a rank receives is found by Dijkstra's search (a handful of states: only axes that differ move).
`moves` limits the steps to those that a target can execute. A tensor that changes layout on the same axis (contiguous
to zigzag) is gathered and cut again.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from meshwright.ir.errors import NoReshard
from meshwright.ir.sharding.layouts import CONTIGUOUS, LAYOUT_PATTERN, Layout, Padded, parse_layout
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Dim, Partial, Placement, Shard

MOVES = ("slice", "mask", "pad", "all_gather", "all_to_all", "reduce_scatter", "all_reduce")
FREE = frozenset(("slice", "mask", "pad"))
"""Steps without traffic."""


@dataclass(frozen=True, slots=True)
class Step:
    """One move along one axis, or along several that act as one group (`axes`, major to minor).

    `dim` is the dimension cut or gathered, `target` the one that an all-to-all cuts instead, `layout` how it is cut.
    """

    kind: str
    axes: tuple[str, ...]
    dim: int = -1
    target: int = -1
    layout: Layout = CONTIGUOUS
    reduction: str = "sum"

    @property
    def free(self) -> bool:
        return self.kind in FREE

    def __str__(self) -> str:
        words = [".".join(self.axes)]
        if self.dim >= 0:
            words.append(f"dim {self.dim}" + (f" -> {self.target}" if self.target >= 0 else ""))
        if str(self.layout):
            words.append(str(self.layout))
        if self.reduction != "sum":
            words.append(self.reduction)
        return f"{self.kind}({', '.join(words)})"

    @staticmethod
    def parse(text: str) -> Step:
        """Read what `str(step)` writes."""
        found = _STEP.match(text)
        if not found or found["kind"] not in MOVES:
            raise NoReshard(
                place=repr(text), cause="there is no such step", fix="write such as all_to_all(tp, dim 1 -> 2)"
            )
        return Step(
            found["kind"],
            tuple(found["axes"].split(".")),
            int(found["dim"] or -1),
            int(found["target"] or -1),
            parse_layout(found["layout"] or ""),
            found["reduction"] or "sum",
        )


_STEP = re.compile(
    r"^(?P<kind>\w+)\((?P<axes>\w+(?:\.\w+)*)"
    r"(?:, dim (?P<dim>\d+)(?: -> (?P<target>\d+))?)?"
    rf"(?:, (?P<layout>{LAYOUT_PATTERN}))?"
    r"(?:, (?P<reduction>max))?\)$"
)


@lru_cache(maxsize=65536)
def after(placement: Placement, step: Step) -> Placement:
    """The placement after a step. Raises `NoReshard` if the step does not apply."""
    dims, partial = list(placement.dims), placement.partial
    for index, axis in enumerate(reversed(step.axes) if step.kind == "all_gather" else step.axes):
        held = placement.on(axis)
        if step.kind in ("all_gather", "all_to_all", "pad"):
            dims[step.dim] = _pop(placement, dims[step.dim], axis, step)
        elif step.kind in ("reduce_scatter", "all_reduce"):
            if not isinstance(held, Partial) or held.reduction != step.reduction:
                raise _inapplicable(placement, step)
            partial = tuple(p for p in partial if p.axis != axis)
        elif held is not None:
            raise _inapplicable(placement, step)
        if step.kind == "all_to_all":
            dims[step.target] = (*dims[step.target], Shard(axis, step.layout))
        if step.kind in ("slice", "reduce_scatter"):
            dims[step.dim] = (*dims[step.dim], Shard(axis, _of_axis(step.layout, index)))
        if step.kind in ("mask", "pad"):
            partial = (*partial, Partial(axis, step.reduction))
    return Placement(tuple(dims), partial)


def _of_axis(layout: Layout, index: int) -> Layout:
    """The cut of one axis among several that act as one group."""
    return Padded((layout.runs[index],)) if isinstance(layout, Padded) else layout


def _pop(placement: Placement, dim: Dim, axis: str, step: Step) -> Dim:
    if not dim or dim[-1].axis != axis:
        raise _inapplicable(placement, step)
    return dim[:-1]


def _inapplicable(placement: Placement, step: Step) -> NoReshard:
    return NoReshard(place=f"{step} on {placement}", cause="the step does not apply", fix="this is a bug in a lowering")


def traffic_bytes(step: Step, local_bytes: float, mesh: Mesh) -> float:
    """Bytes that a rank receives, by the bandwidth-optimal algorithm; `local_bytes` is the size of the operand's
    shard."""
    n = prod(mesh.axis(axis).size for axis in step.axes)
    if step.free:
        return 0.0
    if step.kind == "all_gather":
        return local_bytes * (n - 1)
    scale = 2.0 if step.kind == "all_reduce" else 1.0
    return scale * local_bytes * (n - 1) / n


def given_elements(step: Step, before: int, reached: int, mesh: Mesh) -> int:
    """Elements that a rank puts into a step, given those that it holds before and after: padded parts are scattered
    from a padded whole."""
    if step.kind == "reduce_scatter" and isinstance(step.layout, Padded):
        return reached * prod(mesh.axis(axis).size for axis in step.axes)
    return before


@lru_cache(maxsize=65536)
def path(
    source: Placement, target: Placement, mesh: Mesh, moves: tuple[str, ...] = MOVES
) -> tuple[tuple[Step, Placement], ...]:
    """The steps of `reshard`, each with the placement after it."""
    found = []
    for step in reshard(source, target, mesh, moves):
        source = after(source, step)
        found.append((step, source))
    return tuple(found)


@lru_cache(maxsize=65536)
def reshard(source: Placement, target: Placement, mesh: Mesh, moves: tuple[str, ...] = MOVES) -> tuple[Step, ...]:
    """The cheapest steps from `source` to `target`; empty if they are the same."""
    if source == target:
        return ()
    counter = 0
    best: dict[Placement, float] = {source: 0.0}
    queue: list[tuple[float, int, int, Placement, tuple[Step, ...]]] = [(0.0, 0, counter, source, ())]
    while queue:
        cost, length, _, placement, steps = heapq.heappop(queue)
        if placement == target:
            return _grouped(steps, mesh)
        if cost > best.get(placement, cost):
            continue
        share = _share(placement, mesh)
        for step in _moves(placement, target):
            if step.kind not in moves:
                continue
            reached = after(placement, step)
            total = cost if step.free else cost + traffic_bytes(step, share, mesh)
            if total < best.get(reached, float("inf")):
                best[reached] = total
                counter += 1
                heapq.heappush(queue, (total, length + 1, counter, reached, (*steps, step)))
    raise NoReshard(
        place=f"{source} -> {target}",
        cause=f"no path with {', '.join(moves)}",
        fix="allow all_gather and slice, or change the plan",
    )


@lru_cache(maxsize=65536)
def _share(placement: Placement, mesh: Mesh) -> float:
    """The share of the tensor that a rank holds."""
    return 1.0 / prod(mesh.axis(shard.axis).size for dim in placement.dims for shard in dim)


def _moves(now: Placement, target: Placement) -> Iterator[Step]:
    """The steps worth trying: each brings one axis nearer to the target."""
    wanted = {p.axis: p.reduction for p in target.partial}
    landing = {
        there[len(here)].axis: (index, there[len(here)].layout)
        for index, (here, there) in enumerate(zip(now.dims, target.dims, strict=True))
        if len(here) < len(there) and here == there[: len(here)]
    }
    for axis, (dim, layout) in landing.items():
        held = now.on(axis)
        if held is None:
            yield Step("slice", (axis,), dim, layout=layout)
        elif isinstance(held, Partial) and held.reduction == "sum":
            yield Step("reduce_scatter", (axis,), dim, layout=layout)
    for axis, reduction in wanted.items():
        if now.on(axis) is None:
            yield Step("mask", (axis,), reduction=reduction)
    for partial in now.partial:
        if wanted.get(partial.axis) != partial.reduction:
            yield Step("all_reduce", (partial.axis,), reduction=partial.reduction)
    for index, (here, there) in enumerate(zip(now.dims, target.dims, strict=True)):
        if not here or here == there[: len(here)]:
            continue
        last = here[-1]
        if last.axis in landing and landing[last.axis][0] != index:
            dim, layout = landing[last.axis]
            yield Step("all_to_all", (last.axis,), index, dim, layout)
        if wanted.get(last.axis) == "sum":
            yield Step("pad", (last.axis,), index, layout=last.layout)
        yield Step("all_gather", (last.axis,), index, layout=last.layout)


def _grouped(steps: tuple[Step, ...], mesh: Mesh) -> tuple[Step, ...]:
    """Join neighbouring all-reduces, and gathers of one dimension that is cut alike, into one collective over both
    axes."""
    joined: list[Step] = []
    for step in steps:
        last = joined[-1] if joined else None
        if last and last.kind == step.kind == "all_reduce" and last.reduction == step.reduction:
            joined[-1] = Step("all_reduce", tuple(sorted((*last.axes, *step.axes))), reduction=step.reduction)
        elif last and last.kind == step.kind == "all_gather" and last.dim == step.dim and _alike(step, last, mesh):
            joined[-1] = _over_both(step, last)
        else:
            joined.append(step)
    return tuple(joined)


def at_once(steps: tuple[tuple[Step, Placement], ...], mesh: Mesh) -> tuple[tuple[Step, Placement], ...]:
    """A path with neighbouring reduce-scatters that cut one dimension alike as one collective over their axes."""
    joined: list[tuple[Step, Placement]] = []
    for step, reached in steps:
        last = joined[-1][0] if joined else step
        scatters = joined and last.kind == step.kind == "reduce_scatter" and last.dim == step.dim
        if scatters and _alike(last, step, mesh):
            joined[-1] = _over_both(last, step), reached
        else:
            joined.append((step, reached))
    return tuple(joined)


def _alike(major: Step, minor: Step, mesh: Mesh) -> bool:
    """Whether two steps cut as one group over both axes would: plainly, or in runs of whole runs."""
    if isinstance(major.layout, Padded) and isinstance(minor.layout, Padded):
        return major.layout.runs[-1] == minor.layout.runs[0] * mesh.axis(minor.axes[0]).size
    return major.layout == minor.layout == CONTIGUOUS


def _over_both(major: Step, minor: Step) -> Step:
    layout = major.layout
    if isinstance(layout, Padded) and isinstance(minor.layout, Padded):
        layout = Padded((*layout.runs, *minor.layout.runs))
    return replace(major, axes=(*major.axes, *minor.axes), layout=layout)
