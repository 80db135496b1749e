"""The stages of a pipeline as code: what of the model each one holds, what enters and leaves it, and the lines of its
forward pass (`printed.stages` makes them); and what stages share.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from meshwright.backends.subject import Piece, Subject
from meshwright.backends.torch_.emit.read.axes import Axes
from meshwright.ir.errors import EmissionSchedule
from meshwright.ir.graph.fold import Call, joined
from meshwright.ir.graph.graph import Param, Type
from meshwright.ir.program.units import slot_of
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement

FIRST, FOLLOWING, HANDED = "entered", "Following", "handed"


@dataclass(frozen=True, slots=True)
class Crossing:
    """A value that goes from one stage to the next."""

    name: str
    type: Type
    placement: Placement
    differentiable: bool


@dataclass(frozen=True, slots=True)
class StageCode:
    """The code of one stage."""

    index: int
    mesh: Mesh
    enters: tuple[Crossing, ...]
    """Empty for the first stage, which is given entries of the batch."""
    leaves: tuple[Crossing, ...]
    """Empty for the last one."""
    blocks: tuple[str, ...]
    """The paths of its blocks."""
    beside: tuple[str, ...]
    """The paths of the other modules."""
    ahead: int
    """How many of these run before the first block."""
    holds: tuple[str, ...]
    """The paths of parameters and buffers that it reads by themselves, and that no module of it has."""
    lines: tuple[str, ...]
    """Its forward pass."""
    late: tuple[str, ...] = ()
    """The entries of the batch that it is given by name."""
    given: tuple[str, ...] = ()
    """Those that it is given first, of a first stage."""


@dataclass(frozen=True)
class Pipeline:
    """All stages, with the group of ranks that holds each."""

    stages: tuple[StageCode, ...]
    held: tuple[tuple[int, ...], ...]
    tied: tuple[tuple[int, str], ...] = ()
    """The stage and name of every copy of a parameter that groups of ranks share."""
    twice: tuple[tuple[tuple[int, str], ...], ...] = ()
    """The same of parameters that ranks hold in several stages."""

    glue: Mapping[str, int] = field(default_factory=dict)
    """The stage of every body that is not repeated."""

    late: tuple[str, ...] = ()
    """The entries of the batch that are read behind the first stage: all stages are given them."""

    def stage_of(self, piece: Piece) -> int:
        """The stage of a piece that is not repeated."""
        return self.glue[piece.plan.body]


def check_rows(subject: Subject, axes: Sequence[Axes]) -> None:
    """Check that micro-batches divide the batch on the ranks of every stage."""
    schedule = subject.decisions.schedule
    for stage, own in zip(subject.decisions.stages, axes, strict=True):
        if subject.workload.global_batch % prod((schedule.microbatches, *(stage.mesh.axis(a).size for a in own.batch))):
            along = ".".join(own.batch)
            raise EmissionSchedule(
                place=f"{schedule.microbatches} micro-batches",
                cause=f"on ranks along {along} they do not divide {subject.workload.global_batch} sequences",
                fix="plan with a --global-batch that they divide",
            )


def held_by(subject: Subject) -> tuple[tuple[int, ...], ...]:
    """The stages that each group of ranks holds."""
    stages = subject.decisions.stages
    groups = subject.decisions.groups
    return tuple(tuple(n for n, stage in enumerate(stages) if stage.ranks == ranks) for ranks in groups)


def shared_by(
    subject: Subject, codes: Sequence[StageCode]
) -> tuple[tuple[tuple[int, str], ...], tuple[tuple[tuple[int, str], ...], ...]]:
    """Parameters that groups of ranks share, and those that ranks hold in several stages."""
    held, tied = held_by(subject), _tied(subject, codes)
    by_group = [[tuple(one for one in names if one[0] in group) for group in held] for names in tied]
    twice = tuple(names for groups in by_group for names in groups if len(names) > 1)
    apart = [tuple(names[0] for names in groups if names) for groups in by_group if sum(map(bool, groups)) > 1]
    if len(apart) > 1 or any(len(names) > 2 for names in apart):
        raise _refuse("more than one parameter that two stages share")
    return next(iter(apart), ()), twice


def _tied(subject: Subject, codes: Sequence[StageCode]) -> list[tuple[tuple[int, str], ...]]:
    """The stages and names of every parameter that several stages hold."""
    calls, found = list(subject.fold.calls()), []
    for tie, (_, by) in zip(subject.program.ties, subject.fold.tied, strict=True):
        names = []
        for stage, number in tie.holders:
            params = [one for one in calls[number].body.graph.params if tie.path in _names(calls[number], one)]
            inside = {*codes[stage].beside, calls[number].path}
            here = [
                name
                for name in _names(calls[number], params[0])
                if name in codes[stage].holds or is_inside(name.rpartition(".")[0], inside)
            ]
            if not here:
                raise _refuse(f"stage {stage} reads {tie.path} of a module that it does not call")
            names += [(stage, name) for name in here]
        parts = {
            (subject.decisions.stages[stage].mesh, _stored(subject, stage, *own))
            for (stage, _), own in zip(tie.holders, by, strict=True)
        }
        if len(parts) > len({mesh for mesh, _ in parts}):
            raise _refuse(f"{tie.path}, which stages hold in different parts")
        found.append(tuple(dict.fromkeys(names)))
    return [names for names in found if len(names) > 1]


def is_inside(module: str, around: Container[str]) -> bool:
    """Whether a module is one of these, or within one."""
    return module in around or any(one in around for one in above(module))


def above(module: str) -> Iterator[str]:
    """Modules that contain a module, except for the model itself."""
    while "." in module:
        module = module.rpartition(".")[0]
        yield module


def _stored(subject: Subject, stage: int, number: int, path: str) -> Placement:
    """The path under which a stage holds a parameter of a call."""
    body = subject.program.body(dict(subject.program.stages[stage].calls())[number])
    return body.locals[slot_of(body, path).stored].placement


def _names(call: Call, param: Param) -> tuple[str, ...]:
    return tuple(joined(call.path, path) for path in param.paths)


def _refuse(cause: str) -> EmissionSchedule:
    return EmissionSchedule(place="pipeline stages", cause=f"this is not emitted yet: {cause}", ways=("--fix pp=1",))
