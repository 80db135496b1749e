"""The stages of a printed pipeline: each a forward pass of the calls that the plan gives it.

What crosses between stages is what the Program sends, as it lies on the ranks: shards. The last stage is given the
targets beside what enters, and what its micro-batch counts for in the loss; it returns its share of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from meshwright.backends.torch_.emit.pipeline import Pipeline, held_by, shared_by
from meshwright.backends.torch_.emit.printed.bodies import Printed, axes_in, free
from meshwright.backends.torch_.emit.printed.passes import CARRIED, At, Pass
from meshwright.backends.torch_.emit.stage_code import Crossing, StageCode
from meshwright.backends.torch_.emit.subject import Subject
from meshwright.backends.torch_.emit.writing.lines import head
from meshwright.ir.errors import EmissionPrinted

SHARE = "share"
"""What the last stage calls what its micro-batch counts for."""


def printed_pipeline(subject: Subject, printed: Printed) -> Pipeline | None:
    """The stages of a plan; None where there is only one."""
    if len(subject.decisions.stages) == 1:
        return None
    codes = tuple(_codes(subject, printed))
    late = tuple(dict.fromkeys(name for one in codes for name in one.late))
    tied, twice = shared_by(subject, codes)
    calls = list(subject.fold.calls())
    stages = subject.decisions.stages
    glue = {calls[number].body.name: n for n, stage in enumerate(stages) for number in range(stage.first, stage.last)}
    return Pipeline(codes, held_by(subject), tied, twice, glue, (*late, SHARE))


def _codes(subject: Subject, printed: Printed) -> Iterator[StageCode]:
    stages = subject.decisions.stages
    sent = [_sent(subject, index, printed) for index in range(len(stages) - 1)]
    for index, stage in enumerate(stages):
        enters, leaves = sent[index - 1] if index else {}, sent[index] if index < len(sent) else {}
        names = {at: one.name for at, one in enters.items()}
        run = Pass(printed, stage.first, stage.last, names)
        lines = list(run.lines())
        last = index == len(stages) - 1
        returns = [run.name(run.loss)] if last else [run.names[at] for at in leaves]
        own = [name for name in run.entries if name in printed.entries]
        given = [printed.entry_names[name] for name in own] if not index else [one.name for one in enters.values()]
        late = tuple(printed.entry_names[name] for name in own) if index else ()
        yield StageCode(
            index=index,
            mesh=stage.mesh,
            enters=tuple(enters.values()),
            leaves=tuple(leaves.values()),
            blocks=tuple(_blocks(subject, run)),
            beside=tuple(dict.fromkeys((*_modules(run, ahead=True), *_modules(run, ahead=False)))),
            ahead=len(list(_modules(run, ahead=True))),
            holds=tuple(_loose(run)),
            lines=tuple(_text(printed, run, lines, given, late, returns, last=last)),
            late=late,
            again=tuple(
                (name, (body, printed.bodies[body].again(outputs))) for name, (body, outputs) in run.again.items()
            ),
            given=() if index else tuple(given),
        )


def _sent(subject: Subject, stage: int, printed: Printed) -> dict[At, Crossing]:
    """What the Program sends from a stage to the next, by where it is made."""
    found: dict[At, Crossing] = {}
    taken = {*printed.reserved, *printed.entry_names.values()}
    for hop in subject.program.transfers:
        if hop.from_stage != stage:
            continue
        if (
            hop.source != hop.target
            and subject.decisions.stages[stage].mesh == subject.decisions.stages[stage + 1].mesh
        ):
            raise EmissionPrinted(place=f"stage {stage}", cause="what it sends lies otherwise where it is received")
        name = free(CARRIED if hop.differentiable else "beside", taken)
        found[hop.call, hop.output] = Crossing(name, hop.type, hop.target, hop.differentiable)
    return found


def _blocks(subject: Subject, run: Pass) -> Iterator[tuple[str, int, int]]:
    numbers = [n for n in range(run.first, run.last) if run.calls[n].path]
    for stack, members in groupby(numbers, key=lambda n: run.stack(n)[0]):
        counted = [run.stack(n)[1].number(run.calls[n].path) for n in members]
        yield stack, counted[0], counted[-1] + 1


def _modules(run: Pass, *, ahead: bool) -> Iterator[str]:
    """The modules that hold what bodies outside of blocks read, before the first block or behind it."""
    blocks = [n for n in range(run.first, run.last) if run.calls[n].path]
    first = min(blocks, default=run.last)
    numbers = range(run.first, first) if ahead else range(first, run.last)
    pieces = [run.printed.bodies[run.calls[n].body.name].piece for n in numbers if not run.calls[n].path]
    owners = dict.fromkeys(owner for piece in pieces for owner in piece.owners())
    if ahead:
        owners |= dict.fromkeys(path.rpartition(".")[0] for path in _constants(run))
    paths = [run.calls[n].path for n in blocks]
    outside = [one for one in owners if one and not any(one == path or one.startswith(f"{path}.") for path in paths)]
    yield from (one for one in outside if not any(one.startswith(f"{other}.") for other in outside))


def _loose(run: Pass) -> Iterator[str]:
    """The parameters and buffers that the model itself holds."""
    names = list[str]()
    for number in range(run.first, run.last):
        piece = run.printed.bodies[run.calls[number].body.name].piece
        if not piece.repeated:
            names += (piece.read_as(param) for param in piece.graph.params)
    yield from dict.fromkeys(name for name in (*names, *_constants(run)) if "." not in name)


def _constants(run: Pass) -> Iterator[str]:
    """What of the model its constants are made of."""
    called = [run.calls[number].body.name for number in range(run.first, run.last)]
    for name in (*called, *(body for body, _ in run.again.values())):
        for op in run.printed.bodies[name].piece.graph.ops:
            if op.kind == "constant":
                held = run.printed.subject.calls.constants[str(op.attr("law"))].held
                yield from (one.path for one in held if not one.relative)


def _text(
    printed: Printed,
    run: Pass,
    lines: list[str],
    given: Sequence[str],
    late: Sequence[str],
    returns: Sequence[str],
    *,
    last: bool,
) -> Iterator[str]:
    """The method of a stage."""
    named = (*given, *late, SHARE) if last else (*given, *late)
    arguments = ["self", *(f"{name}: Tensor" for name in named), "**others: Tensor"]
    result = "Tensor" if len(returns) == 1 else f"tuple[{', '.join(['Tensor'] * len(returns))}]"
    yield from head("forward", arguments, result, deep=4)
    for axis in axes_in(lines, printed.subject.mesh.names + printed.joined_axes):
        yield f'    {axis} = self.mesh["{axis}"]'
    yield from (f"    {line}" for line in lines)
    sent = ", ".join(f"{name}.contiguous()" for name in returns)
    yield f"    return {returns[0]} * {SHARE}.sum()" if last else f"    return {sent}"
