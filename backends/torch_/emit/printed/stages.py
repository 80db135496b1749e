"""The stages of a printed pipeline: each a forward pass of the calls that the plan gives it.

What crosses between stages is what the Program sends, as it lies on the ranks: shards. The last stage is given the
targets beside what enters, and what its micro-batch counts for in the loss; it returns its share of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from meshwright.backends.lines import head
from meshwright.backends.printing.naming import free
from meshwright.backends.printing.wires import At
from meshwright.backends.subject import Subject
from meshwright.backends.torch_.emit.printed.bodies import Printed, ways_of
from meshwright.backends.torch_.emit.printed.language.dialect import TERMS
from meshwright.backends.torch_.emit.printed.naming import axes_in
from meshwright.backends.torch_.emit.printed.passes import CARRIED, Pass
from meshwright.backends.torch_.emit.read.pipeline import (
    FIRST,
    HANDED,
    Crossing,
    Pipeline,
    StageCode,
    above,
    held_by,
    is_inside,
    shared_by,
)
from meshwright.backends.torch_.emit.read.storage import weights_apart
from meshwright.ir.errors import EmissionPrinted
from meshwright.ir.graph.fold import Call
from meshwright.ir.graph.graph import name_in

SHARE = "share"
"""What the last stage calls what its micro-batch counts for."""


def printed_pipeline(subject: Subject, by_stage: Sequence[Printed]) -> Pipeline | None:
    """The stages of a plan, each with a printed model; None where there is only one."""
    if len(subject.decisions.stages) == 1:
        return None
    codes = _with_unread(subject, tuple(_codes(subject, by_stage)))
    late = tuple(dict.fromkeys(name for one in codes for name in one.late))
    tied, twice = shared_by(subject, codes)
    calls = list(subject.fold.calls())
    stages = subject.decisions.stages
    glue = {calls[number].body.name: n for n, stage in enumerate(stages) for number in range(stage.first, stage.last)}
    return Pipeline(codes, held_by(subject), tied, twice, glue, (*late, SHARE, *[TERMS] * bool(ways_of(subject))))


def _codes(subject: Subject, by_stage: Sequence[Printed]) -> Iterator[StageCode]:
    stages, calls = subject.decisions.stages, list(subject.fold.calls())
    read = tuple(map(_read, calls))
    sent = [_sent(subject, index, by_stage[index]) for index in range(len(stages) - 1)]
    for index, (stage, printed) in enumerate(zip(stages, by_stage, strict=True)):
        enters = {at: entered for at, (_, entered) in sent[index - 1].items()} if index else {}
        leaves = {at: left for at, (left, _) in sent[index].items()} if index < len(sent) else {}
        names = {at: one.name for at, one in enters.items()}
        behind = {at for at, one in enters.items() if one.differentiable} if weights_apart(subject) else set[At]()
        run = Pass(printed, stage.first, stage.last, names, behind=behind)
        lines = list(run.lines())
        holds, last = _Holds(run, read), index == len(stages) - 1
        returns = [run.name(run.loss)] if last else [run.names[at] for at in leaves]
        own = [name for name in run.entries if name in printed.entries]
        given = [printed.entry_names[name] for name in own] if not index else [one.name for one in enters.values()]
        late = tuple(printed.entry_names[name] for name in own) if index else ()
        named = (*given, *late, *([SHARE] * last), *axes_in(lines, (TERMS,)))
        ahead = tuple(holds.modules(ahead=True))
        yield StageCode(
            index=index,
            mesh=stage.mesh,
            enters=tuple(enters.values()),
            leaves=tuple(leaves.values()),
            blocks=tuple(call.path for call in calls[stage.first : stage.last] if call.path),
            beside=tuple(dict.fromkeys((*ahead, *holds.modules(ahead=False)))),
            ahead=len(ahead),
            holds=tuple(holds.loose()),
            lines=tuple(_text(printed, [*_entered(enters.values(), run), *lines], named, returns)),
            late=late,
            given=() if index else tuple(given),
        )


def _with_unread(subject: Subject, codes: tuple[StageCode, ...]) -> tuple[StageCode, ...]:
    """Stages, with the buffers that no stage reads, nor holds with a module, on the first one."""
    held = {name for one in codes for name in (*one.blocks, *one.beside, *one.holds)}
    unread = (name for name in subject.calls.buffers if not is_inside(name, held))
    return (replace(codes[0], holds=(*codes[0].holds, *unread)), *codes[1:])


def _sent(subject: Subject, stage: int, printed: Printed) -> dict[At, tuple[Crossing, Crossing]]:
    """Values that the Program sends from a stage to the next, by where they are made: as they leave, and as they
    enter."""
    found: dict[At, tuple[Crossing, Crossing]] = {}
    alike = len({one.mesh for one in subject.decisions.stages}) == 1
    taken = {*printed.reserved, *printed.entry_names.values()}
    for hop in subject.program.transfers:
        if hop.from_stage != stage:
            continue
        if alike and hop.source != hop.target:
            raise EmissionPrinted(place=f"stage {stage}", cause="what it sends lies otherwise where it is received")
        name = free(CARRIED if hop.differentiable else "beside", taken)
        left, entered = (Crossing(name, hop.type, one, hop.differentiable) for one in (hop.source, hop.target))
        found[hop.call, hop.output] = left, entered
    return found


@dataclass(frozen=True)
class _Holds:
    """The parts of the model that a stage holds beside blocks: `read` are the parameters and buffers of every call of
    the model that is no block."""

    run: Pass
    read: Sequence[tuple[str, ...]]

    @cached_property
    def blocks(self) -> list[int]:
        return [n for n in range(self.run.first, self.run.last) if self.run.calls[n].path]

    def modules(self, *, ahead: bool) -> Iterator[str]:
        """Modules that hold what bodies outside of blocks read, before the first block or behind it."""
        first = min(self.blocks, default=self.run.last)
        numbers = range(self.run.first, first) if ahead else range(first, self.run.last)
        names = [name for n in numbers for name in self.read[n]] + list(_constants(self.run) if ahead else ())
        within = {self.run.calls[n].path for n in self.blocks}
        found = dict.fromkeys(module for name in names if (module := self.whole(name)))
        yield from (one for one in found if not is_inside(one, within) and found.keys().isdisjoint(above(one)))

    def loose(self) -> Iterator[str]:
        """Parameters and buffers of modules that the stage does not hold whole, nested as in the model."""
        names = [name for number in range(self.run.first, self.run.last) for name in self.read[number]]
        yield from (name for name in dict.fromkeys((*names, *_constants(self.run))) if not self.whole(name))

    @cached_property
    def shared(self) -> set[str]:
        """Modules that a stage does not have to itself: blocks, those that hold what only calls outside of blocks of
        other stages read, and those around them."""
        own = range(self.run.first, self.run.last)
        read = {True: set[str](), False: set[str]()}
        for number, names in enumerate(self.read):
            read[number in own].update(names)
        elsewhere = {name.rpartition(".")[0] for name in read[False] - read[True]}
        others = {call.path for call in self.run.calls if call.path} | elsewhere
        return others | {module for one in others for module in above(one)}

    def whole(self, name: str) -> str:
        """The module that holds a parameter, if the stage can hold that whole; empty if not."""
        module = name.rpartition(".")[0]
        return "" if module in self.shared else module


def _read(call: Call) -> tuple[str, ...]:
    """The parameters and buffers of a call that is no block."""
    return () if call.path else tuple(name_in(call.body.graph, param) for param in call.body.graph.params)


def _constants(run: Pass) -> Iterator[str]:
    """Parts of the model that its constants are made of."""
    for call in run.calls[run.first : run.last]:
        for op in call.body.graph.ops:
            if op.kind == "constant":
                held = run.printed.subject.calls.constants[str(op.attr("law"))].held
                yield from (one.path for one in held if not one.relative)


def _entered(enters: Iterable[Crossing], run: Pass) -> Iterator[str]:
    """Lines that take the inputs of a stage, where torch is to find the gradients of weights apart."""
    if not run.behind:
        return
    trained = [one.name for one in enters if one.differentiable]
    yield from (f"{name} = {HANDED}({name})" for name in trained)
    if run.follows:
        yield f"{FIRST} = {trained[0]}"


def _text(printed: Printed, lines: Sequence[str], named: Sequence[str], returns: Sequence[str]) -> Iterator[str]:
    """The forward method of a stage; that of the last one is given its share of the loss."""
    subject = printed.subject
    arguments = ["self", *(f"{name}: Tensor" for name in named), "**others: Tensor"]
    result = "Tensor" if len(returns) == 1 else f"tuple[{', '.join(['Tensor'] * len(returns))}]"
    yield from head("forward", arguments, result, deep=4)
    for axis in axes_in(lines, subject.mesh.names + printed.joined_axes):
        yield f'    {axis} = self.mesh["{axis}"]'
    yield from (f"    {line}" for line in lines)
    apart = weights_apart(subject)
    sent = ", ".join(f"{HANDED}({name})" if apart else f"{name}.contiguous()" for name in returns)
    yield f"    return {returns[0]} * {SHARE}.sum()" if SHARE in named else f"    return {sent}"
