"""A plan as a backend is given it: bodies and their plans by segment, the blocks of stages, the calls of the model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count

from meshwright.backends.turns import counted, stacked
from meshwright.ir.analysis.account import account_fold
from meshwright.ir.decisions.decisions import BodyPlan, Decisions
from meshwright.ir.errors import EmissionSchedule
from meshwright.ir.graph.calls import Calls
from meshwright.ir.graph.fold import Fold, Segment
from meshwright.ir.graph.graph import Graph, Param, name_in, owners_in
from meshwright.ir.graph.paths import NUMBERED, counted_by, counting, number_in
from meshwright.ir.program.program import BodyProgram, Program
from meshwright.ir.quoting import around, identifier
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.target.workload import Workload

UNSAID = {"cp": "1", "ep": "1", "vp": "1", "context": "all_gather", "offload": "none"}
"""Degrees that the text of a configuration leaves out, as they are then."""


@dataclass(frozen=True)
class Subject:
    """A plan to emit."""

    fold: Fold
    decisions: Decisions
    program: Program
    workload: Workload
    calls: Calls
    config: str
    """The plan's degrees, for the reader of the script."""
    peak_flops: float = 0.0
    """FLOP/s of one device by which the plan's MFU is counted; 0 if that is not known."""
    init: str = ""
    """Where weights come from (`initial.INITS`); empty for what the model's size wants."""
    prints: bool = False
    """Whether the model is printed, also where its own code could run."""
    only: tuple[int, ...] = ()
    """The stages that are looked at, which have one mesh and the same plans; empty for all of them, if these do."""

    @property
    def mesh(self) -> Mesh:
        return self.decisions.stages[self.only[0] if self.only else 0].mesh

    @cached_property
    def step_flops(self) -> float:
        """Floating-point work of the model in one step, without recomputation."""
        done = account_fold(self.fold)
        return (done.forward_flops + done.backward_flops) * self.decisions.schedule.microbatches

    def has(self, way: str) -> bool:
        """Whether the plan was made with this option of `plan` and one of these values."""
        option, _, value = way.partition(" ")
        if option == "--fix":
            said = dict(pair.split("=", 1) for pair in self.config.partition(";")[0].split(",") if "=" in pair)
            given = (pair.split("=", 1) for pair in value.split(","))
            return all(said.get(name, UNSAID.get(name)) == wanted for name, wanted in given)
        if option == "--forbid":
            return value not in self.config
        workload, stack = self.workload, self.workload.stack
        return value == {
            "--target": self.decisions.target,
            "--style": self.decisions.style,
            "--stack": stack.name,
            "--recipe": workload.recipe or stack.recipe,
            "--optimizer": workload.optimizer,
        }.get(option)

    @property
    def compiled(self) -> bool:
        """Whether blocks are compiled."""
        return self.decisions.style == "compiled"

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return sum(len(ranks) for ranks in self.decisions.groups)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """All segments of the stages, each with the plan of its body."""
        return tuple(
            Piece(segment, *self._plans(segment.period[0]), self.fold.body[segment.period[0]].graph)
            for segment in self.segments
            if segment.period[0] in {self.decisions.plan[name].body for name in self.bodies}
        )

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments of the model, with one for each body where blocks take turns."""
        return tuple(segment for several in self.stacked for segment in several)

    @cached_property
    def stacked(self) -> tuple[tuple[Segment, ...], ...]:
        """The segments of the model, those of bodies that take turns together."""
        return stacked(self.fold)

    @cached_property
    def stacks(self) -> tuple[Stack, ...]:
        """The blocks of all stages, those of bodies that take turns together."""
        repeated = [several for several in self.stacked if not several[0].glue]
        first = [several[0].period[0] for several in repeated]
        names = [identifier(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", body)).upper() for body in first]
        constants = [f"{name}_BLOCKS" if len(names) > 1 else "BLOCKS" for name in told_apart(names)]
        blocks = (Instances.of(_in_order(several)) for several in repeated)
        return tuple(Stack(own, constant) for own, constant in zip(blocks, constants, strict=True))

    @cached_property
    def stack_of(self) -> Mapping[str, Stack]:
        """The stack of every block, by its path."""
        return {path: one for one in self.stacks for path in one.instances.paths}

    @cached_property
    def bodies(self) -> Mapping[str, BodyProgram]:
        """The bodies of the stages, by plan: the first program of each; others differ in offloading, and in the calls
        that reduce their gradients, not in what they compute and exchange."""
        calls, found = list(self.fold.calls()), dict[str, BodyProgram]()
        for index in self.only or range(len(self.decisions.stages)):
            stage, run = self.decisions.stages[index], self.program.stages[index].calls()
            plans = self.decisions.plans_for(index, (call.body.name for call in calls[stage.first : stage.last]))
            for plan, (_, program) in zip(plans, run, strict=True):
                if plan.name not in found:
                    found[plan.name] = self.program.body(program)
        return found

    def calls_blocks(self, piece: Piece) -> bool:
        """Whether the model's own code calls the blocks of a piece as modules, rather than the modules inside them."""
        called, again = self.calls.called, self.calls.again
        return not called or all(again.get(path, path) in called for path in piece.segment.paths)

    def _plans(self, body: str) -> tuple[BodyPlan, BodyPlan | None]:
        """The plan of a body, which must be the same in all stages, and that of its first calls in each."""
        plans = [plan for plan in self.decisions.plans if plan.body == body and plan.name in self.bodies]
        ahead, usual = [plan for plan in plans if plan.first], [plan for plan in plans if not plan.first]
        alike = {replace(plan, name="", first=0, recompute=()) for plan in plans}
        if len(ahead) > 1 or len(usual) > 1 or len(alike) > 1:
            raise EmissionSchedule(
                place=f"plans {', '.join(plan.name for plan in plans)}",
                cause="stages that run a body in different ways are not emitted yet",
                ways=("--fix pp=1", "--fix recompute=none"),
            )
        return (usual[0], ahead[0] if ahead else None) if usual else (ahead[0], None)


def told_apart(names: Sequence[str]) -> tuple[str, ...]:
    """Names made unique: those that occur several times get their place, or the next number that makes no other
    name."""
    found = {number: name for number, name in enumerate(names) if names.count(name) == 1}
    for number, name in enumerate(names):
        numbered = (f"{name}_{one}" for one in count(number))
        found.setdefault(number, next(one for one in numbered if one not in found.values()))
    return tuple(found[number] for number in range(len(names)))


def _in_order(several: Sequence[Segment]) -> tuple[str, ...]:
    """The paths of instances, by their numbers where several bodies take turns."""
    paths = [path for one in several for path in one.paths]
    found = [(path, NUMBERED.fullmatch(path)) for path in paths]
    numbers = {path: int(number[2]) for path, number in found if number}
    return tuple(sorted(paths, key=numbers.__getitem__) if len(several) > 1 and len(numbers) == len(paths) else paths)


@dataclass(frozen=True)
class Piece:
    """A segment of the model: instances of one body, which one plan is for."""

    segment: Segment
    plan: BodyPlan
    ahead: BodyPlan | None
    """The plan of its first calls in a stage, where that differs; it does so only in what is computed again."""
    graph: Graph

    @property
    def repeated(self) -> bool:
        return not self.segment.glue

    @property
    def first(self) -> str:
        """The path of the first instance; empty for what is not repeated."""
        return self.segment.paths[0] if self.repeated else ""

    def around(self) -> tuple[str, ...]:
        """The paths of all instances."""
        return self.segment.paths if self.repeated else ("",)

    def instances(self) -> Instances:
        return Instances.of(self.segment.paths)

    @cached_property
    def held(self) -> Mapping[str, tuple[Param, ...]]:
        """The parameters by the modules that hold and read them, in order; paths are relative to the instance."""
        found: dict[str, tuple[Param, ...]] = {}
        for param in self.graph.params:
            for owner in self.owners_of(param):
                found[owner] = (*found.get(owner, ()), param)
        return found

    def owners(self) -> tuple[str, ...]:
        """The modules that hold its parameters."""
        return tuple(self.held)

    def passes(self, owner: str) -> bool:
        """Whether the piece hands on a value that a module holds."""
        return any(param.value in self.graph.outputs for param in self.held[owner])

    def owner(self, param: Param) -> str:
        """The first module that reads a parameter with several names here, of those that hold it."""
        return self.owners_of(param)[0]

    def owners_of(self, param: Param) -> tuple[str, ...]:
        """Modules that read a parameter with several names here, of those that hold it; the first holder, if none
        does."""
        return owners_in(self.graph, param)

    def read_as(self, param: Param) -> str:
        """The name under which a parameter is read here."""
        return name_in(self.graph, param)

    def path(self, relative: str) -> str:
        """The path in the model for a path in the first instance."""
        return ".".join(part for part in (self.first, relative) if part)


@dataclass(frozen=True)
class Stack:
    """Blocks in a list of the model, of one body or of several that take turns."""

    instances: Instances
    constant: str
    """What says which of them every stage has, by their numbers."""


@dataclass(frozen=True)
class Instances:
    """Paths of a stack as a loop: `before`, rising `numbers`, `after`."""

    before: str
    numbers: tuple[int, ...]
    after: str

    @staticmethod
    def of(paths: tuple[str, ...]) -> Instances:
        for before, after in counted_by(paths[0]):
            numbers = counting(paths, before, after)
            if len(numbers) == len(paths):
                return Instances(before, numbers, after)
        raise EmissionSchedule(
            place=f"blocks {paths[0]} to {paths[-1]}",
            cause="their names do not count",
            fix="hold the blocks of a stack in one nn.ModuleList",
        )

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(f"{self.before}{number}{self.after}" for number in self.numbers)

    def part(self, start: int, stop: int | None) -> Instances:
        """The instances with these numbers."""
        return replace(self, numbers=self.numbers[start:stop])

    def number(self, path: str) -> int:
        """The number in one path."""
        return number_in(path, self.before, self.after)

    def loop(self, name: str = "block", of: str = "") -> tuple[str, ...]:
        """The head of the loop over the instances, or over named ones."""
        return (
            f"for index in {of or counted(self.numbers)}:",
            f"    {name} = model.get_submodule({around(self.before, 'index', self.after)})",
        )
