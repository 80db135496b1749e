"""Stages of different meshes: each kind of stage is read by itself, and one script says what all of them do.

    Subject -> a Subject per kind of stage (`only` its stages) -> Parts each -> Heterogeneous

All ranks have the same names of mesh axes: along an axis that its own stage does not have, a rank stands alone. What
crosses between stages is sent by the script itself (`write.stages.heterogeneous`), as `meshwright.ir.program.crossing`
says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from meshwright.backends.subject import Subject, told_apart
from meshwright.backends.torch_.emit.read.axes import Axes
from meshwright.backends.torch_.emit.read.pipeline import Pipeline
from meshwright.backends.torch_.emit.read.sections import Sizes, named
from meshwright.backends.torch_.emit.write.parts import Parts
from meshwright.ir.errors import EmissionSchedule
from meshwright.ir.program.ties import ends_of
from meshwright.ir.sharding.layouts import CONTIGUOUS
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement


@dataclass(frozen=True)
class Heterogeneous:
    """The parts of a script, for every kind of stage, the last stage's last."""

    kinds: tuple[Parts, ...]

    @property
    def main(self) -> Parts:
        """The parts of the last stage, which knows the loss."""
        return self.kinds[-1]

    @property
    def pipeline(self) -> Pipeline:
        found = self.main.pipeline
        assert found is not None
        return found

    @property
    def axes(self) -> tuple[str, ...]:
        """All mesh axes, major to minor."""
        return merged([kind.subject.mesh for kind in self.kinds])

    @property
    def meshes(self) -> tuple[Mesh, ...]:
        """The mesh of every stage."""
        return tuple(stage.mesh for stage in self.main.subject.decisions.stages)

    @property
    def tied(self) -> tuple[tuple[int, str, Placement], ...]:
        """The stages and names of every tied parameter, with its placement."""
        program, names = self.main.subject.program, dict(self.pipeline.tied)
        ends = (ends_of(program, tie) for tie in program.ties)
        lies = next((found for found in ends if found.keys() == names.keys()), {})
        return tuple((stage, name, lies[stage][1].placement) for stage, name in names.items())

    @property
    def batch(self) -> str | None:
        """The axis that cuts micro-batches, where a stage has one."""
        return next((axis for kind in self.kinds for axis in kind.axes.batch), None)


def kinds_of(subject: Subject) -> tuple[Subject, ...]:
    """A plan as the stages of each mesh see it, the last stage's last; the plan itself alone if all meshes are the
    same."""
    stages = subject.decisions.stages
    meshes = dict.fromkeys(stage.mesh for stage in reversed(stages))
    if len(meshes) == 1:
        return (subject,)
    _check(subject, list(meshes))
    return tuple(
        replace(subject, only=tuple(index for index, stage in enumerate(stages) if stage.mesh == mesh))
        for mesh in reversed(meshes)
    )


def joined_kinds(kinds: Sequence[Parts]) -> Heterogeneous:
    """The parts of all kinds of stages, together."""
    axes = {index: kind.axes for kind in kinds for index in kind.subject.only}
    by_stage = tuple(axes[index] for index in range(len(axes)))
    for problem in _problems(kinds, by_stage):
        raise _refuse(problem)
    sections = _sections(kinds, len(by_stage))
    in_units = {stage for kind in kinds if kind.kept.units for stage in kind.subject.only}
    meshes = ("_".join(f"{axis.name}{axis.size}" for axis in kind.subject.mesh.axes) or "alone" for kind in kinds)
    kinds = [
        replace(kind, by_stage=by_stage, sections_by_stage=sections, in_units=in_units, kind=name)
        for kind, name in zip(kinds, told_apart(tuple(meshes)), strict=True)
    ]
    return Heterogeneous(tuple(_printed(kinds)))


def _printed(kinds: Sequence[Parts]) -> Iterator[Parts]:
    """The parts of kinds, each with the function names of the others."""
    found = [kind.printed for kind in kinds if kind.printed is not None]
    beside = frozenset(name for one in found for name in one.reserved)
    found = [replace(one, beside=beside) for one in found]
    by_stage = {stage: one for one in found for stage in one.subject.only}
    every = tuple(by_stage[stage] for stage in sorted(by_stage))
    for number, kind in enumerate(kinds):
        yield replace(kind, printed=found[number], printed_by_stage=every)


def _sections(kinds: Sequence[Parts], stages: int) -> dict[str, tuple[int, Sizes, tuple[int, ...]]]:
    """Parameters that stages cut in sections, with the number of parts."""
    found: dict[str, tuple[int, Sizes, tuple[int, ...]]] = {}
    for kind in kinds:
        for name, cut in named(kind.subject.pieces, kind.fused).items():
            dim, sizes = cut[:2]
            *_, ranks = found.get(name, (dim, sizes, (1,) * stages))
            own = kind.subject.mesh.axis(str(kind.axes.tensor)).size
            ranks = tuple(own if stage in kind.subject.only else one for stage, one in enumerate(ranks))
            found[name] = dim, sizes, ranks
    return found


def merged(meshes: Sequence[Mesh]) -> tuple[str, ...]:
    """The axes of several meshes, in an order that all of them share."""
    places: dict[str, int] = {}
    for mesh in meshes:
        for place, name in enumerate(mesh.names):
            places[name] = max(place, places.get(name, 0))
    return tuple(sorted(places, key=lambda name: places[name]))


def _check(subject: Subject, meshes: Sequence[Mesh]) -> None:
    """Check that there is one stage per group of ranks, with forward and whole backward passes, and that what is
    exchanged is cut in runs."""
    decisions, order = subject.decisions, merged(meshes)
    if len(decisions.stages) > len(decisions.groups):
        raise _refuse("several stages per rank")
    if any(action.kind in "IW" for _, actions in subject.program.actions for action in actions):
        raise _refuse(f"schedule {decisions.schedule.name}, which computes gradients of weights apart")
    if any(list(mesh.names) != [name for name in order if name in mesh.names] for mesh in meshes):
        raise _refuse("mesh axes in different orders")
    for hop in subject.program.transfers:
        if not (_plain(hop.source) and _plain(hop.target)):
            raise _refuse(f"what crosses after stage {hop.from_stage} as {hop.source} -> {hop.target}")
    for tie in subject.program.ties:
        if not all(_plain(end.placement) for _, end in ends_of(subject.program, tie).values()):
            raise _refuse(f"{tie.path}, of which stages have other parts than runs")


def _plain(placement: Placement) -> bool:
    """Whether every dimension is whole, or cut into runs."""
    return all(shard.layout == CONTIGUOUS for dim in placement.dims for shard in dim)


def _problems(kinds: Sequence[Parts], axes: Sequence[Axes]) -> Iterator[str]:
    if any(own.context for own in axes):
        yield "sequences that an axis cuts"
    if len({axis for own in axes for axis in own.batch}) > 1:
        yield "several axes that cut the batch"
    if any(kind.copies for kind in kinds):
        yield "parameters that an axis of copies cuts, or whose gradients all copies compute"
    if any(kind.statistics for kind in kinds):
        yield "batch norms whose batch several ranks have parts of"


def _refuse(what: str) -> EmissionSchedule:
    return EmissionSchedule(
        place="stages of different meshes",
        cause=f"this is not emitted yet beside them: {what}",
        ways=("--fix pp=1",),
        fix="with degrees (--fix tp=, dp=), which all stages have",
    )
