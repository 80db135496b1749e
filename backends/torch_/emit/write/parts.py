"""Parts of a script: the plan, and what `axes`, `storage`, `recompute` and `printed` found in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

from meshwright.backends.subject import Piece, Subject
from meshwright.backends.torch_.emit.printed.bodies import Printed
from meshwright.backends.torch_.emit.printed.stages import printed_pipeline
from meshwright.backends.torch_.emit.read.axes import Axes
from meshwright.backends.torch_.emit.read.copies import COPIED, Copies
from meshwright.backends.torch_.emit.read.pipeline import Pipeline, check_rows
from meshwright.backends.torch_.emit.read.precision import Precision
from meshwright.backends.torch_.emit.read.recompute import Again, recomputed
from meshwright.backends.torch_.emit.read.sections import Fused, Sizes, by_name, pattern, whatever_numbers
from meshwright.backends.torch_.emit.read.statistics import shared_statistics
from meshwright.backends.torch_.emit.read.storage import Kept, Unit, around_units, check_sharded, scalars_of
from meshwright.backends.torch_.emit.write.initial import drawn_in_parts
from meshwright.backends.turns import among
from meshwright.ir.graph.fold import joined
from meshwright.ir.graph.graph import Param
from meshwright.ir.sharding.shares import shares_along


@dataclass(frozen=True)
class Parts:
    """The parts of a script, as its writers read them."""

    subject: Subject
    axes: Axes
    kept: Kept
    precision: Precision
    model: str
    """The model file, from the folder of the script."""
    by_stage: tuple[Axes, ...] = ()
    """The axes of every stage, where their meshes differ: this is what the script says of one kind of them then."""
    sections_by_stage: Mapping[str, tuple[int, Sizes, tuple[int, ...]]] = field(default_factory=dict)
    """What all of them cut in sections: dimensions and sizes by names, and the parts of every stage."""
    in_units: Set[int] = frozenset()
    """Those of them that have units of `fully_shard`."""
    printed: Printed | None = None
    """The model as it is printed, where that is how it is cut."""
    printed_by_stage: tuple[Printed, ...] = ()
    """The same of every stage, where their meshes differ."""
    kind: str = ""
    """What these stages are called then, in names of functions and tables."""

    @cached_property
    def drawn_in_parts(self) -> bool:
        return drawn_in_parts(self.subject, self.kept, self.axes, self.pipeline)

    @cached_property
    def shares(self) -> tuple[int, ...]:
        """The shares of a batch that the ranks of the data axes take, relative to each other; nothing if all take the
        same."""
        return shares_along(self.subject.decisions, self.axes.batch)

    @cached_property
    def statistics(self) -> tuple[tuple[Piece, tuple[str, ...]], ...]:
        """Modules whose batch norms have the statistics of all copies."""
        return shared_statistics(self.subject, self.axes.batch)

    @cached_property
    def recomputed(self) -> tuple[Again, ...]:
        return recomputed(self.subject)

    @cached_property
    def pipeline(self) -> Pipeline | None:
        if self.printed is None or len(self.subject.decisions.stages) == 1:
            return None
        stages = self.by_stage or (self.axes,) * len(self.subject.decisions.stages)
        check_rows(self.subject, stages)
        if self.kept.units:
            check_sharded(self.subject, self.kept, self.axes)
        return printed_pipeline(self.subject, self.printed_by_stage or (self.printed,) * len(stages))

    @property
    def some_train_nothing(self) -> bool:
        """Whether some ranks have stages without any trained parameter."""
        calls, trains = list(self.subject.fold.calls()), dict[tuple[int, ...], bool]()
        for stage in self.subject.decisions.stages:
            held = (param for call in calls[stage.first : stage.last] for param in call.body.graph.params)
            trains[stage.ranks] = any(param.requires_grad for param in held) or trains.get(stage.ranks, False)
        return not all(trains.values())

    @property
    def left_apart(self) -> bool:
        """Whether axes cut parameters apart that no other axis shards, beside others that are sharded."""
        over = set(self.kept.over)
        return bool(self.kept.units) and any(over <= set(axes) for axes in self.copies.of_apart.values())

    def loop(self, piece: Piece, again: Again | None = None) -> tuple[str, ...]:
        """The head of the loop over a piece's blocks, or those that are recomputed: of the stage at hand, where there
        are several."""
        if self.pipeline is not None:
            stack = self.subject.stack_of[piece.first]
            given = f"{stack.constant}[model.index]{again.which if again is not None else ''}"
            own, every = piece.instances(), stack.instances
            return own.loop(of=given if own == every else among(given, own.numbers, every.numbers))
        return piece.instances().part(again.start, again.stop).loop() if again is not None else piece.instances().loop()

    def only(self, piece: Piece, lines: Iterable[str]) -> Iterator[str]:
        """Lines about a piece, restricted to the stage that has it."""
        if self.pipeline is None or piece.repeated:
            yield from lines
        else:
            yield f"    if model.index == {self.pipeline.stage_of(piece)}:"
            yield from (f"    {line}" for line in lines)

    @property
    def fused(self) -> tuple[tuple[Piece, Fused], ...]:
        """Parameters of the pieces that an axis cuts in sections."""
        return self.printed.fused if self.printed is not None else ()

    @property
    def reorders(self) -> bool:
        """Whether parameters are in another order than in the model, on this stage or another."""
        return bool(self.fused or self.sections_by_stage)

    @property
    def untied(self) -> tuple[tuple[str, str], ...]:
        """Tied parameters that several units of `fully_shard` hold: a name, and that of the parameter which is stepped.
        Names that one body reads are one parameter of its unit."""
        if not self.kept.units or self.kept.whole:
            return ()
        apart = ((names[0], names[1:]) for read, _ in self._read if len(names := self._of_units(read)) > 1)
        return tuple((other, first) for first, others in apart for other in others)

    def _of_units(self, names: Sequence[str]) -> list[str]:
        """The first name of a parameter in every unit."""
        units = {name: self._owners[name.rpartition(".")[0]] for name in reversed(names)}
        return sorted({unit: name for name, unit in units.items()}.values(), key=names.index)

    @property
    def held_twice(self) -> tuple[tuple[tuple[int, str], ...], ...]:
        """Tied parameters that stages of a rank hold in units of their own: stages and names; the first one's is
        stepped."""
        if self.by_stage and self.pipeline is not None:
            return tuple(names for names in self.pipeline.twice if names[0][0] in self.in_units)
        return self.pipeline.twice if self.pipeline is not None and self.kept.units else ()

    @property
    def unread(self) -> tuple[tuple[str, str], ...]:
        """Names under which no module reads a parameter that a unit holds, with the name of the one which is
        stepped."""
        return tuple((name, read[0]) for read, others in self._read for name in others) if self.kept.units else ()

    @property
    def _read(self) -> Iterator[tuple[list[str], list[str]]]:
        """The names of parameters that have several: those under which modules read them, and the others."""
        for names in self._several:
            reads = [name.rpartition(".")[0] in self._owners for name in names]
            yield (
                [n for n, read in zip(names, reads, strict=True) if read],
                [n for n, read in zip(names, reads, strict=True) if not read],
            )

    @cached_property
    def _owners(self) -> Mapping[str, tuple[str, str]]:
        """Modules that read parameters, each with the first body and block that it is part of."""
        found = [
            (joined(path, owner), (piece.plan.body, path))
            for piece in self.subject.pieces
            for path in piece.around()
            for owner in piece.owners()
        ]
        return dict(reversed(found))

    @property
    def one_unit(self) -> bool:
        """Whether everything outside of blocks is one unit: of what `fully_shard` keeps whole, several names of one
        parameter."""
        return self.kept.whole and bool(self._several)

    @cached_property
    def around_units(self) -> frozenset[str]:
        """Modules outside of blocks that are no unit of their own: units that come later lie in them, or another one
        holds parameters of theirs."""
        return around_units(self.kept.units, self._beside)

    def _beside(self, unit: Unit, other: Unit) -> bool:
        """Whether these are two units, which one stage may have."""
        if unit is other or self.pipeline is None or other.piece.repeated:
            return unit is not other
        return self.pipeline.stage_of(unit.piece) == self.pipeline.stage_of(other.piece)

    @property
    def _several(self) -> tuple[tuple[str, ...], ...]:
        """The names of parameters that have several."""
        if self.pipeline is not None:
            return ()
        calls = list(self.subject.fold.calls())
        own = (self._apart(joined(c.path, path) for path in one.paths) for c in calls for one in c.body.graph.params)
        within = tuple(one for one in own if len(one) > 1)
        held = [[calls[number] for _, number in tie.holders] for tie in self.subject.program.ties]
        params = [[(call, one) for call in calls for one in call.body.graph.params] for calls in held]
        names = [[[joined(call.path, path) for path in one.paths] for call, one in found] for found in params]
        between = tuple(
            self._apart(name for group in groups if tie.path in group for name in group)
            for tie, groups in zip(self.subject.program.ties, names, strict=True)
        )
        return (*between, *(one for one in within if not any(set(one) & set(other) for other in between)))

    def _apart(self, names: Iterable[str]) -> tuple[str, ...]:
        """Names of one parameter that belong to several modules: one module may have several paths."""
        again = self.subject.calls.again
        by_module = {
            (again.get(name.rpartition(".")[0], name.rpartition(".")[0]), name.rpartition(".")[2]): name
            for name in reversed(tuple(dict.fromkeys(names)))
        }
        return tuple(reversed(by_module.values()))

    @property
    def offloaded(self) -> bool:
        """Whether the optimizer's state lies in the host's memory."""
        return self.subject.decisions.offload.optimizer

    @property
    def optimizer(self) -> str:
        """The class of `make_optimizer`'s result, as far as a script must know it."""
        return "OnHost" if self.offloaded else "torch.optim.Optimizer"

    @property
    def async_tp(self) -> bool:
        """Whether products of compiled blocks run in pieces beside the communication of the tensor axis."""
        return "tensor" in self.subject.workload.stack.hides and self.axes.tensor is not None

    @property
    def spread(self) -> bool:
        """Whether the script has a second file: with stages it would be long."""
        return self.pipeline is not None

    @property
    def wrapped(self) -> bool:
        """Whether DDP sums the gradients of copies."""
        copied = self.axes.copied is not None and not self.kept.units
        return copied and not self._has_dtensors and not self.copies and self.pipeline is None

    @property
    def summed(self) -> bool:
        """Whether the script sums the gradients of copies itself: DDP does not support DTensors or schedules, and waits
        for all gradients."""
        return self.axes.copied is not None and not self.kept.units and not self.wrapped

    @cached_property
    def summed_otherwise(self) -> dict[str, tuple[str, ...]]:
        """The axes along which the script sums gradients of a parameter, where these are not all that have copies of
        others, by a regular expression of its names."""
        if not self.copies or not (self.summed or self.left_apart):
            return {}
        every = [(piece, param) for piece in self.subject.pieces for param in piece.graph.params]
        if self.kept.units:
            over = set(self.kept.over)
            left = ((piece, one, over <= set(self.copies.apart(piece, one.path))) for piece, one in every)
            axes = ((piece, one, self._sums(piece, one) if apart else ()) for piece, one, apart in left)
            return by_name((piece, piece.read_as(one), summed or None) for piece, one, summed in axes)
        return by_name(
            (piece, piece.read_as(one), self._sums(piece, one) if self._added(piece, one) != self.axes.copies else None)
            for piece, one in every
        )

    def _sums(self, piece: Piece, param: Param) -> tuple[str, ...]:
        """All axes along which gradients of a parameter add up."""
        return (*self._added(piece, param), *self._summed_inside(piece, param))

    def _added(self, piece: Piece, param: Param) -> tuple[str, ...]:
        """The axes with copies along which gradients of a parameter add up."""
        return self.copies.added(piece, param.path, self.axes.copies)

    def _summed_inside(self, piece: Piece, param: Param) -> tuple[str, ...]:
        """The tensor axis, where the gradients that its ranks have of a parameter add up."""
        return self.copies.summed(piece, param.path)

    @property
    def inside(self) -> tuple[tuple[str, ...], ...]:
        """The axes of units within others."""
        return tuple(axes for unit in self.kept.units for axes in unit.inner.values())

    @property
    def microbatches(self) -> int:
        return self.subject.decisions.schedule.microbatches

    @property
    def called(self) -> str:
        """The class of `parallelize`'s result, as far as a step must know it."""
        return "DistributedDataParallel" if self.wrapped and self.microbatches > 1 else "nn.Module"

    @property
    def hidden(self) -> bool:
        """Whether stages must not look sharded to torch, which gathers and scatters once per step for a sharded stage,
        while `fully_shard` otherwise does for every micro-batch."""
        return self.pipeline is not None and self.kept.level > 1

    @property
    def stays_gathered(self) -> bool:
        """Whether parameters stay gathered for the next micro-batch, although gradients are scattered."""
        return self.kept.level == 2 and self.microbatches > 1

    @property
    def cutting(self) -> tuple[str, ...]:
        """The axes along which parameters are DTensors."""
        return self.printed.cutting if self.printed is not None else ()

    @property
    def _has_dtensors(self) -> bool:
        return bool(self.cutting)

    @property
    def copies(self) -> Copies:
        """Parameters on ranks along data and context axes."""
        return self.printed.copies if self.printed is not None else COPIED

    @property
    def added(self) -> bool:
        """Whether gradients of copies are added up: each rank's loss is its share. Else they are averaged, over as many
        copies in all stages."""
        return self.summed or bool(self.copies) or bool(self.by_stage) or self.kept.scalars

    @property
    def sums_scalars(self) -> bool:
        """Whether the script sums the gradients of parameters that `fully_shard` does not take."""
        return self.axes.copied is not None and self.kept.scalars and not all(self.alike_scalars.values())

    @property
    def sums_apart(self) -> bool:
        """Whether the script sums gradients of parameters that axes cut apart, and that `fully_shard` is told to
        leave."""
        return self.left_apart and bool(self.summed_otherwise)

    @property
    def alike(self) -> bool:
        """Whether ranks compute the whole gradients of some parameters that have copies."""
        return bool(self.copies.of_alike)

    @property
    def alike_scalars(self) -> dict[str, bool]:
        """Whether all ranks compute the whole gradient of a scalar parameter, by a regular expression of its names."""
        pieces = [(piece, path) for piece in self.subject.pieces for path in sorted(scalars_of(piece))]
        return {pattern(piece, path): bool(self.copies.alike(piece, path)) for piece, path in pieces}

    @property
    def cast_whole(self) -> bool:
        """Whether the script casts what `fully_shard` does not take."""
        return bool(self.precision.sums) and (self.kept.frozen or self.kept.scalars)

    @property
    def distributed(self) -> bool:
        """Whether parameters are DTensors."""
        return bool(self.kept.units) or self._has_dtensors

    @property
    def shared(self) -> str | None:
        """What the script calls the axes along which each rank has its share of the loss. What is printed has all."""
        return self.axes.copied if self.printed is None else None

    @property
    def copies_said(self) -> str:
        """How many copies average gradients, as the script says it."""
        return "group.size()" if self.shared == self.axes.copied else f'mesh["{self.axes.copied}"].size()'

    @property
    def partial_gradients(self) -> bool:
        """Whether parameters are left with gradients that are sums over the tensor axis. `fully_shard` reduces its
        own."""
        return self.printed is not None and self.printed.partial and not self.kept.units

    @cached_property
    def untrained(self) -> tuple[str, ...]:
        """Parameters that the model would train, and that no gradient of the loss comes to, by regular expressions of
        their names."""
        own = self.subject.calls.untrained
        said = [
            (piece, path, None if param.requires_grad or param.buffer or joined(piece.first, path) in own else True)
            for piece in self.subject.pieces
            for param in piece.graph.params
            for path in param.paths
        ]
        trained = [joined(at, path) for piece, path, what in said if what is None for at in piece.around()]
        return whatever_numbers(by_name(said), trained)

    @property
    def flattened(self) -> tuple[tuple[str, ...], ...]:
        """Axes of the mesh that the script makes one, to communicate over them together."""
        copies, tensor = self.axes.copies, (self.axes.tensor,) if self.axes.tensor is not None else ()
        both = [(*copies, *tensor)] if self.summed and self.partial_gradients else []
        together = self.printed.together if self.printed is not None else ()
        several = (self.axes.batch, copies, *self.inside, *both, *together)
        wanted = dict.fromkeys((*several, *self.summed_otherwise.values()))
        return tuple(axes for axes in wanted if len(axes) > 1)
