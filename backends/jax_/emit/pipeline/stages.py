"""What every stage has: which parameters lie on the first and the last one, and which blocks on each.

All devices run one program, so every stage has as many blocks, of one body, and what comes before the blocks or after
them runs on the first stage or the last, under a condition. Parameters are kept one stage's after the other's along
their first dimension, cut over the axis of stages: of blocks in a scan that is the stack as the user has it, of all
others a row for each stage, of which those of stages that have no such parameter are zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from meshwright.backends.jax_.emit.pipeline.ticks import Ticks
from meshwright.backends.subject import Piece, Subject
from meshwright.ir.errors import EmissionSchedule
from meshwright.ir.graph.calls import Scanned
from meshwright.ir.sharding.mesh import Mesh, MeshAxis

AXIS = "pp"
"""The mesh axis of stages."""
ONE_STAGE = ("--fix pp=1",)


def whole_mesh(subject: Subject) -> Mesh:
    """The mesh of all stages: that of one, behind the axis of stages where there are several."""
    stages = len(subject.decisions.groups)
    return Mesh((MeshAxis(AXIS, stages), *subject.mesh.axes)) if stages > 1 else subject.mesh


@dataclass(frozen=True)
class Stages:
    """The stages of a plan. Raises `EmissionSchedule` for those that one program does not run."""

    subject: Subject

    def check(self) -> None:
        """Refuse stages that are unlike each other, and values that do not go from each to the next."""
        if len({stage.mesh for stage in self.subject.decisions.stages}) > 1:
            raise _refuse("the plan", "its stages have different meshes")
        if len({len(self._blocks_of(number)) for number in range(len(self.subject.program.stages))}) > 1:
            raise _refuse("the plan", "devices of one program have as many blocks each, and these stages do not")
        self._check_ends()
        self._check_transfers()
        if self.scan is None:
            self._check_written_out()
        elif not self.scan.place.isdecimal():
            raise _refuse("the blocks", "their scan lies in another function")
        Ticks.of(self.subject.program)

    @cached_property
    def ticks(self) -> Ticks:
        """The ticks in which they run."""
        return Ticks.of(self.subject.program)

    @cached_property
    def blocks(self) -> Piece:
        """The blocks that stages share."""
        repeated = [piece for piece in self.subject.pieces if piece.repeated]
        if len(repeated) != 1 or repeated[0].ahead is not None:
            raise _refuse("the blocks", "stages that share blocks of several kinds are not emitted")
        return repeated[0]

    @property
    def rooms(self) -> tuple[str, ...]:
        """The paths of the blocks."""
        return self.blocks.segment.paths

    @property
    def each(self) -> int:
        """Blocks in a chunk of a stage."""
        return len(self.rooms) // len(self.subject.program.stages)

    @property
    def order(self) -> tuple[int, ...]:
        """The numbers of the blocks, stage by stage."""
        stages, each = self.ticks.stages, range(self.each)
        chunks = (chunk * stages + stage for stage in range(stages) for chunk in range(self.ticks.chunks))
        return tuple(chunk * self.each + at for chunk in chunks for at in each)

    @cached_property
    def scan(self) -> Scanned | None:
        """The loop that runs the blocks; None where they are written out."""
        places = self.subject.calls.places
        assert places is not None
        return next((one for path, one in places.scans.items() if self.rooms[0].startswith(f"{path}.")), None)

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The first equation of every block that is written out, and that after its last."""
        places = self.subject.calls.places
        assert places is not None
        return tuple(places.spans.get(room, (0, 0)) for room in self.rooms)

    @property
    def again(self) -> bool:
        """Whether the backward pass computes blocks again."""
        return bool(self.blocks.plan.recompute)

    @cached_property
    def ends(self) -> dict[str, tuple[int, ...]]:
        """The stages that hold parameters beside those of blocks, by path: the first, the last, or both."""
        program, last = self.subject.program, len(self.subject.program.stages) - 1
        held: dict[str, tuple[int, ...]] = {}
        for number in (0, last):
            for _, name in program.stages[number].calls():
                for slot in program.body(name).params if program.body(name).body != self.blocks.plan.body else ():
                    if slot.buffer:
                        continue
                    at = held.get(slot.path, ())
                    group = self.ticks.stages - 1 if number else 0
                    held[slot.path] = at if group in at else (*at, group)
        return held

    @property
    def between(self) -> int:
        """Equations between blocks that are written out, which are not known to be of one of them."""
        return self.spans[1][0] - self.spans[0][1]

    def _blocks_of(self, stage: int) -> tuple[str, ...]:
        program = self.subject.program
        names = [program.body(name) for _, name in program.stages[stage].calls()]
        return tuple(body.name for body in names if body.body == self.blocks.plan.body)

    def _check_ends(self) -> None:
        """Must: other bodies before the blocks of the first stage and behind those of the last alone."""
        program, last = self.subject.program, len(self.subject.program.stages) - 1
        for number, stage in enumerate(program.stages):
            kinds = [program.body(name).body == self.blocks.plan.body for _, name in stage.calls()]
            own = kinds.index(True), len(kinds) - kinds[::-1].index(True)
            before, behind = own[0], len(kinds) - own[1]
            if not all(kinds[slice(*own)]) or (before and number) or (behind and number < last):
                raise _refuse(f"stage {number}", "it runs more than blocks, and is neither the first nor the last")
        for tie in program.ties:
            if tie.path not in self.ends:
                raise _refuse(tie.path, "several blocks hold it")

    def _check_transfers(self) -> None:
        stages = len(self.subject.program.stages)
        found = self.subject.program.transfers
        alike = {(one.type, one.source, one.target, one.differentiable) for one in found}
        neighbours = [(one.from_stage, one.to_stage) for one in found] == [(at, at + 1) for at in range(stages - 1)]
        if not neighbours or len(alike) > 1 or found[0].source != found[0].target or not found[0].differentiable:
            raise _refuse("the blocks", "more goes from stage to stage than one value that all blocks hand on")

    def _check_written_out(self) -> None:
        """Must: equations of blocks one block after the other, as many in each (the first may have what all read)."""
        spans = self.spans
        apart = {other[0] - one[1] for one, other in pairwise(spans)}
        if len(apart) > 1 or min(apart) < 0 or len({last - first for first, last in spans[1:]}) != 1:
            raise _refuse("the blocks", "their equations do not stand one block after the other, alike")


def _refuse(place: str, cause: str) -> EmissionSchedule:
    return EmissionSchedule(place=place, cause=cause, ways=ONE_STAGE)
