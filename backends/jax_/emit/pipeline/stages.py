"""What every stage has: which parameters lie on the first and the last one, and which blocks on each.

All devices run one program, so every stage runs the same sequence of blocks, of one kind or of several in turn, and
what comes before the blocks or after them runs on the first stage or the last, under a condition. The shortest sequence
that repeats is a *unit* (`cuts`). Parameters are kept one stage's after the other's along
their first dimension, cut over the axis of stages: of blocks in a scan that is the stack as the user has it, of all
others a row for each stage, of which those of stages that have no such parameter are zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from meshwright.backends.jax_.emit.pipeline.cuts import LEFT, ONE_STAGE, Cuts, refuse
from meshwright.backends.jax_.emit.pipeline.ticks import Ticks
from meshwright.backends.subject import Subject
from meshwright.ir.errors import EmissionSchedule
from meshwright.ir.graph.calls import Places, Scanned
from meshwright.ir.graph.fold import Fold
from meshwright.ir.graph.graph import Type
from meshwright.ir.program.crossing import Transfer
from meshwright.ir.program.lower import Port, sources_of
from meshwright.ir.program.program import Program, Stage
from meshwright.ir.sharding.mesh import Mesh, MeshAxis

AXIS = "pp"
"""The mesh axis of stages."""


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
            raise _refuse("the plan", "devices run one program, and its stages have different meshes")
        self._check_ends()
        self._check_again()
        self._check_transfers()
        Ticks.of(self.subject.program)

    @cached_property
    def ticks(self) -> Ticks:
        """The ticks in which they run."""
        return Ticks.of(self.subject.program)

    @cached_property
    def rooms(self) -> tuple[str, ...]:
        """The paths of the blocks."""
        several = [self._rooms_of(stage) for stage in self.subject.program.stages]
        if len({len(rooms) for rooms in several}) > 1:
            raise _refuse("the plan", "devices of one program have as many blocks each, and these stages do not")
        return tuple(room for rooms in several for room in rooms)

    @cached_property
    def cut(self) -> tuple[int, Cuts | None]:
        """How many blocks a unit has, and where units are parted; scans part theirs."""
        chunk, refused = len(self.rooms) // len(self.subject.program.stages), list[EmissionSchedule]()
        if self.scan is not None:
            return 1, None
        for length in (length for length in range(1, chunk + 1) if chunk % length == 0):
            units = [self.rooms[at : at + length] for at in range(0, len(self.rooms), length)]
            try:
                return length, Cuts.of(self._places.step, units)
            except EmissionSchedule as error:
                refused.append(error)
        raise refused[-1]

    @property
    def units(self) -> tuple[tuple[str, ...], ...]:
        """The paths of the blocks, by units."""
        length, _ = self.cut
        return tuple(self.rooms[at : at + length] for at in range(0, len(self.rooms), length))

    @property
    def each(self) -> int:
        """Units in a chunk of a stage."""
        return len(self.units) // len(self.subject.program.stages)

    @property
    def order(self) -> tuple[int, ...]:
        """The numbers of the blocks, stage by stage."""
        stages, each = self.ticks.stages, range(self.each)
        chunks = (chunk * stages + stage for stage in range(stages) for chunk in range(self.ticks.chunks))
        return tuple(chunk * self.each + at for chunk in chunks for at in each)

    @cached_property
    def scan(self) -> Scanned | None:
        """The loop that runs the blocks; None where they are written out."""
        scans = self._places.scans
        return next((one for path, one in scans.items() if self.rooms[0].startswith(f"{path}.")), None)

    @property
    def again(self) -> tuple[bool, ...]:
        """Of the blocks of a unit, whether the backward pass computes them again."""
        plans = {room: piece.plan for piece in self.subject.pieces for room in piece.segment.paths}
        return tuple(bool(plans[room].recompute) for room in self.units[0])

    @cached_property
    def ends(self) -> dict[str, tuple[int, ...]]:
        """The stages that hold parameters beside those of blocks, by path: the first, the last, or both."""
        program, last, calls = self.subject.program, len(self.subject.program.stages) - 1, self.subject.fold.calls()
        rooms = [call.path for call in calls]
        held: dict[str, tuple[int, ...]] = {}
        for number in (0, last):
            for call, name in program.stages[number].calls():
                for slot in program.body(name).params if rooms[call] not in self.rooms else ():
                    if slot.buffer:
                        continue
                    at = held.get(slot.path, ())
                    group = self.ticks.stages - 1 if number else 0
                    held[slot.path] = at if group in at else (*at, group)
        return held

    @property
    def _places(self) -> Places:
        assert self.subject.calls.places is not None
        return self.subject.calls.places

    def _rooms_of(self, stage: Stage) -> tuple[str, ...]:
        """The paths of its blocks."""
        calls, instances = list(self.subject.fold.calls()), set(self.subject.fold.instances)
        return tuple(calls[number].path for number, _ in stage.calls() if calls[number].path in instances)

    def _check_ends(self) -> None:
        """Must: what is no block before those of the first stage and behind those of the last alone."""
        program, last = self.subject.program, len(self.subject.program.stages) - 1
        rooms = [call.path for call in self.subject.fold.calls()]
        for number, stage in enumerate(program.stages):
            kinds = [rooms[call] in self.rooms for call, _ in stage.calls()]
            own = kinds.index(True), len(kinds) - kinds[::-1].index(True)
            before, behind = own[0], len(kinds) - own[1]
            if not all(kinds[slice(*own)]) or (before and number) or (behind and number < last):
                raise _refuse(
                    f"stage {number}", "devices run one program, and it runs what others do not, amid the blocks"
                )
        for tie in program.ties:
            if tie.path not in self.ends:
                raise _refuse(tie.path, "several blocks hold it")

    def _check_again(self) -> None:
        """Must: blocks in the same place of all units are computed again, or none of them."""
        plans = {room: piece for piece in self.subject.pieces for room in piece.segment.paths}
        for unit in self.units:
            if any(plans[room].ahead for room in unit) or self.again != tuple(
                bool(plans[room].plan.recompute) for room in unit
            ):
                raise _refuse("the blocks", "some are computed again, and others in the same place of a stage are not")

    @property
    def stacked(self) -> tuple[Type, ...]:
        """What a scan stacks: the types of all blocks' rows in one."""
        return tuple(type_ for _, type_ in self.scan.stacks) if self.scan is not None else ()

    def _check_transfers(self) -> None:
        """Must: stages hand on what blocks do, each to the next, in one placement."""
        hops = handed(self.subject.program, self.subject.fold)
        carried = [carried_in(hop, self.stacked, self.each * at) for at, hop in enumerate(hops, 1)]
        if len({tuple(sorted((str(one.type), str(one.source)) for one in hop)) for hop in carried}) > 1:
            raise refuse(LEFT)
        if any(one.source != one.target for hop in hops for one in hop):
            raise refuse("what goes from stage to stage lies otherwise on the next")
        _, cuts = self.cut
        if self.scan is not None and not self.scan.place.isdecimal():
            raise refuse("their scan lies in another function")
        if unheld := self._unheld():
            raise refuse(f"what is made of {unheld} is planned to be handed on, and the last stage makes it itself")
        if self.scan is not None and [room.rpartition(".")[2] for room in self.rooms[:2]] != ["0", "1"]:
            raise refuse("their scan begins with the last")
        if cuts is not None and any(len(hop) != len(cuts.entering) for hop in carried):
            raise refuse("stages are planned to hand on other values than blocks do")

    def _unheld(self) -> str:
        """A parameter that equations behind the scan follow from, and the last stage is planned without; empty if there
        is none."""
        if self.scan is None:
            return ""
        step, scan = self._places.step, int(self.scan.place)
        needed = {step.loss}
        for at in range(len(step.equations) - 1, -1, -1):
            one = step.equations[at]
            needed |= set(one.reads) if at != scan and not needed.isdisjoint(one.makes) else set()
        read = (path for value, path in step.params.items() if value in needed)
        return next((path for path in read if self.ticks.stages - 1 not in self.ends.get(path, ())), "")


def handed(program: Program, fold: Fold) -> list[list[Transfer]]:
    """What every stage hands on to the next: what follows from parameters. Each makes what follows from the batch."""
    calls, trained = list(fold.calls()), set[tuple[int, int]]()
    for number, (call, sources) in enumerate(zip(calls, sources_of(tuple(calls)), strict=True)):
        graph = call.body.graph
        known = {param.value for param in graph.params if not param.buffer}
        ports = zip(graph.inputs, sources, strict=True)
        known |= {one.value for one, port in ports if isinstance(port, Port) and (port.call, port.output) in trained}
        for op in graph.ops:
            known |= set() if known.isdisjoint(op.operands) else set(op.results)
        trained |= {(number, at) for at, value in enumerate(graph.outputs) if value in known}
    found = [one for one in program.transfers if (one.call, one.output) in trained]
    return [[one for one in found if one.from_stage == stage] for stage in range(len(program.stages) - 1)]


def carried_in(hop: Sequence[Transfer], stacked: Sequence[Type], blocks: int) -> list[Transfer]:
    """What goes from stage to stage, but for rows of what a scan stacks, behind so many blocks."""
    left = list(hop)
    for rows in stacked:
        own = [one for one in left if (one.type.shape, one.type.dtype) == (rows.shape[1:], rows.dtype)][:blocks]
        left = [one for one in left if one not in own]
    return left


def _refuse(place: str, cause: str) -> EmissionSchedule:
    return EmissionSchedule(place=place, cause=cause, ways=ONE_STAGE)
