"""Constants of printed models: the functions that make them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from meshwright.backends.printing.naming import free
from meshwright.backends.subject import Piece, Subject
from meshwright.backends.torch_.emit.printed.naming import RESERVED
from meshwright.backends.torch_.emit.read.allowed import device_of
from meshwright.ir.errors import EmissionPrinted
from meshwright.ir.graph.constants import Held
from meshwright.ir.graph.graph import Graph
from meshwright.ir.quoting import literal


@dataclass(frozen=True, slots=True)
class Made:
    """A constant: the lines of its function, and the expression that it returns."""

    called: str
    lines: tuple[str, ...]
    returns: str
    given: str = ""
    """What it reads: "block", of the block that it is a constant of, "model", or nothing."""

    def holder(self, piece: Piece) -> str:
        """The module that code of a piece passes to its function."""
        return {"": "", "model": "model" if piece.repeated else "self"}.get(self.given, "self")


def constants_of(subject: Subject, taken: set[str]) -> dict[str, tuple[str, Made]]:
    """The function of every constant that the model's bodies have, by its law."""
    graphs = (subject.fold.body[segment.period[0]].graph for segment in subject.segments)
    laws = (law for graph in graphs for law in laws_in(graph))
    found: dict[str, tuple[str, Made]] = {}
    for law in dict.fromkeys(laws):
        one = subject.calls.constants.get(law)
        if one is None or one.problem or not one.lines:
            raise EmissionPrinted(
                place=f"the constant {law}", cause=one.problem if one is not None and one.problem else "it is not known"
            )
        holders = {"block" if held.relative else "model" for held in one.held}
        if one.data or len(holders) > 1:
            cause = "it is made of values that no code makes" if one.data else "it is made of several modules' tensors"
            raise EmissionPrinted(place=f"the constant {law}", cause=cause)
        holder = next(iter(holders), "")
        code = one.code(device=literal(device_of(subject)), held=partial(Held.read, holder=holder), taken=RESERVED)
        *lines, (last, text) = code
        name = free(f"make_{last}", taken)
        found[law] = name, Made(last, tuple(f"{n} = {t}" for n, t in lines), text, holder)
    return found


def laws_in(graph: Graph) -> Iterator[str]:
    """The laws of the constants in a body."""
    yield from (str(op.attr("law")) for op in graph.ops if op.kind == "constant")
