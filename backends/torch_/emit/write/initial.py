"""Where a script's weights come from: every rank draws the whole model and keeps its part, or, of a model that is too
big for that, it makes its part only.

The model is built on the meta device then, parallelized as it is, and memory is made for this rank's part alone
(`to_empty`), which modules draw themselves: by their `reset_parameters`, or by `draw_weights(module)` of the model's
file. Tensors that modules hold are DTensors by then, and their parts are drawn as parts of a whole. The weights are not
those of the whole model from the same seed: a checkpoint is how a run begins with given ones.
"""

from __future__ import annotations

from meshwright.backends.subject import Subject
from meshwright.backends.torch_.emit.read.axes import Axes
from meshwright.backends.torch_.emit.read.pipeline import Pipeline
from meshwright.backends.torch_.emit.read.storage import Kept
from meshwright.ir.errors import EmissionModel

MOST_WHOLE_BYTES = 4 * 2**30
"""What a rank is given to build whole; the eight of a host build as much each."""
WHOLE, META = "whole", "meta"
INITS = (WHOLE, META)


def drawn_in_parts(subject: Subject, kept: Kept, axes: Axes, pipeline: Pipeline | None) -> bool:
    """Whether every rank makes the weights of its part only. Raises `EmissionModel` if that is asked for and cannot
    be."""
    problem = _problem(subject, kept, axes, pipeline)
    if subject.init == META and problem:
        raise EmissionModel(place="--init meta", cause=problem, fix="emit it with --init whole")
    return subject.init == META or (not subject.init and not problem and whole_bytes(subject) > MOST_WHOLE_BYTES)


def built_whole(subject: Subject, *, parts: bool) -> str:
    """A note on a big model that every rank builds whole."""
    if parts or subject.init == WHOLE or whole_bytes(subject) <= MOST_WHOLE_BYTES:
        return ""
    why = f": {_modules(subject)}" if subject.calls.undrawn else ""
    return f"every rank builds all {whole_bytes(subject) / 2**30:.0f} GiB of the model{why}"


def whole_bytes(subject: Subject) -> int:
    """Bytes of all parameters of the model as they are kept."""
    graphs = [(segment, subject.fold.body[segment.period[0]].graph) for segment in subject.segments]
    elements = sum(
        graph.types[param.value].elements * len(segment.paths) for segment, graph in graphs for param in graph.params
    )
    return round(elements * subject.workload.states.stored)


def _problem(subject: Subject, kept: Kept, axes: Axes, pipeline: Pipeline | None) -> str:
    if subject.calls.undrawn:
        return _modules(subject)
    if subject.program.ties:
        return f"{subject.program.ties[0].path} is one parameter in several places, and parts would be drawn apart"
    if not kept.units and pipeline is None and axes.tensor is None:
        return "parameters are copies, so that every rank holds the whole model"
    return ""


def _modules(subject: Subject) -> str:
    first = subject.calls.undrawn[0]
    return (
        f"module {first or 'of the model itself'} has no reset_parameters(), and the model's file no "
        "draw_weights(module), to draw what it holds"
    )
