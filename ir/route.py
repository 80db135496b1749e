"""A model's forward pass as lines of code, at the level at which it is cut into pipeline stages: blocks are called as
wholes, and so are the modules beside them; only what happens between these calls is written out. Plain data;
`meshwright.ir.frontends.route` watches a model for it, and the emitter cuts it into stages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import groupby

DEVICE = "{device}"
"""Stands in an expression for where the stage's inputs lie."""
ROWS = "{rows*%d}"
"""Stands in an expression for so many times the size of the batch."""
NOTHING = "_"
_NAME = re.compile(r"%(\w+)")
LOSS = "{loss}"
"""Stands in an expression for the loss of the model's file."""
CALLED = "{modules}"
"""Stands in an expression for the module that holds the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line: `makes = expression`, where values stand as %name.

    - `reads` and `makes` are the names of values; every name is made once, or is an entry of the batch. NOTHING stands
      among `makes` for what has a name already, and for None.
    - `module` is the path of the module that is called, `holds` those of parameters and buffers that are read by
      themselves.
    """

    makes: tuple[str, ...]
    expression: str
    reads: tuple[str, ...]
    module: str = ""
    holds: tuple[str, ...] = ()

    @property
    def named(self) -> tuple[str, ...]:
        """The names among `makes`."""
        return tuple(name for name in self.makes if name != NOTHING)

    def __str__(self) -> str:
        return f"{', '.join(self.makes)} = {self.expression}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The lines of a forward pass.

    - Lines read nothing but what earlier lines make, and entries of the batch.
    - `shapes` has one entry per name: the dtype and the sizes on the whole batch.
    - `created` are lines by which values that modules make out of nothing are made without them.
    - `problem` says why it could not be written down; there are no lines then.
    """

    lines: tuple[Line, ...] = ()
    result: str = ""
    within: str = ""
    """The attribute of the model's output that the result is, where that is no tensor itself."""
    shapes: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    strided: tuple[str, ...] = ()
    """The names of values that do not lie in one piece, as what is sent must."""
    created: tuple[Line, ...] = ()
    inside: bool = False
    """Whether the result is the loss: the model's own, or that of the file's hook, which reads more than one tensor of
    what the model returns, or of the batch."""
    targets: tuple[str, ...] = ()
    """The entries of the batch that the loss reads."""
    renamed: tuple[tuple[str, str], ...] = ()
    """The entries of the batch that lines call otherwise, and how: a name may be taken, or be none of Python's."""
    problem: str = ""


def settled(route: Route) -> Route:
    """The route with calls of one module in a row, none of which reads another's result, in the order of what they are
    given: a model may go through a set, whose order is another one in every process."""
    lines, renamed = list(route.lines), dict[str, str]()
    start = 0
    for module, run in groupby(route.lines, key=lambda line: line.module):
        calls = list(run)
        made = {name for line in calls for name in line.makes}
        alike = len({tuple(name == NOTHING for name in line.makes) for line in calls}) == 1
        if module and alike and not any(made.intersection(line.reads) for line in calls):
            for number, (call, place) in enumerate(zip(sorted(calls, key=_given), calls, strict=True)):
                lines[start + number] = replace(call, makes=place.makes)
                renamed |= dict(zip(call.makes, place.makes, strict=True))
        start += len(calls)
    renamed = {old: new for old, new in renamed.items() if old != new}
    if not renamed:
        return route

    def called(name: str) -> str:
        return renamed.get(name, name)

    def line_of(line: Line, makes: tuple[str, ...]) -> Line:
        expression = _NAME.sub(lambda found: f"%{called(found[1])}", line.expression)
        return replace(line, makes=makes, expression=expression, reads=tuple(map(called, line.reads)))

    typed = {called(name): (dtype, shape) for name, dtype, shape in route.shapes}
    strided = {called(name) for name in route.strided}
    return replace(
        route,
        lines=tuple(line_of(line, line.makes) for line in lines),
        result=called(route.result),
        shapes=tuple((name, *typed[name]) for name, _, _ in route.shapes),
        strided=tuple(name for name, _, _ in route.shapes if name in strided),
        created=tuple(line_of(line, tuple(map(called, line.makes))) for line in route.created),
    )


def _given(line: Line) -> str:
    return line.expression
