"""Interfaces of bodies: values that they hand on, and parameters that several of them hold."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.ir.graph.fold import Fold
from meshwright.ir.program.lower import Port, sources_of

End = tuple[str, str]
"""A value at the end of a body: the body's name and the value's."""


def tied(fold: Fold) -> list[tuple[End, ...]]:
    """Trained parameters that several bodies hold, each under its own path."""
    calls = list(fold.calls())
    found = [tuple(dict.fromkeys((calls[number].body.name, path) for number, path in held)) for _, held in fold.tied]
    return [ends for ends in found if len(ends) > 1]


def handed_on(fold: Fold) -> Mapping[End, End]:
    """Values that bodies hand to one another: for every end, the first end whose placement it shares."""
    calls = tuple(fold.calls())
    found: dict[End, End] = {}

    def first(end: End) -> End:
        while found.setdefault(end, end) != end:
            end = found[end]
        return end

    for call, sources in zip(calls, sources_of(calls), strict=True):
        for item, source in zip(call.body.graph.inputs, sources, strict=True):
            if isinstance(source, Port):
                maker = calls[source.call].body
                found[first((call.body.name, item.value))] = first((maker.name, maker.graph.outputs[source.output]))
    return {end: first(end) for end in found}
