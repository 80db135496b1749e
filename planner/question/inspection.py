"""What the planner sees in a model.

    load -> capture -> fold -> (verify) -> account, saved, loops, cuts, micro-batches -> Inspection -> table or JSON

`report` makes an `Inspection`, which is plain data; `to_json` and `show` print it; `inspect` is the same for Python.
Nothing here decides anything: every number comes from the same analyses that the search will use. The JSON schema is
documented in docs/inspect.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from meshwright import __version__
from meshwright.ir.analysis.account import Account, account, account_fold, parameters
from meshwright.ir.analysis.cuts import Cut, cuts
from meshwright.ir.analysis.loops import loops
from meshwright.ir.analysis.microbatch import MicrobatchLegality, microbatch
from meshwright.ir.analysis.saved import saved_bytes
from meshwright.ir.frontends.door import Source, capture, load_model, load_object
from meshwright.ir.frontends.folding.captured import Captured
from meshwright.ir.graph.digest import digest
from meshwright.ir.graph.fold import Fold, unfold, unfolded_short
from meshwright.ir.graph.graph import Graph
from meshwright.ir.graph.text import fold_text, graph_text
from meshwright.ir.same import Same
from meshwright.ir.target.workload import check_amount
from meshwright.ir.verify.graphs import verify_fold

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Workload:
    """What the model is inspected for. The dtype is that of a configuration's model; a module has its own."""

    batch: int = 1
    seq: int = 1024
    dtype: str = "bf16"
    style: str = "eager"
    device: str = "cuda"

    def __post_init__(self) -> None:
        check_amount(self.batch, self.seq)


DEFAULT = Workload()


@dataclass(frozen=True, slots=True)
class BodyReport:
    """One unique block, or glue; costs are of one run."""

    name: str
    module_class: str
    runs: int
    parameters: int
    account: Account
    saved_bytes: int


@dataclass(frozen=True, slots=True)
class LoopReport:
    """One loop of the model, and the kinds of operators that run over it."""

    name: str
    size: int
    label: str
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class Inspection:
    """The output of `plan inspect`."""

    reference: str
    digest: str
    workload: Workload
    parameters: int
    trainable: int
    parameter_bytes: int
    buffers: int
    bodies: tuple[BodyReport, ...]
    segments: tuple[tuple[bool, tuple[str, ...], int], ...]
    total: Account
    saved_bytes: int
    loops: tuple[LoopReport, ...]
    cuts: tuple[Cut, ...]
    microbatch: MicrobatchLegality
    notes: tuple[str, ...]


def inspect(model: Any, *, workload: Workload = DEFAULT, **hooks: Any) -> Inspection:
    """The Python form of `plan inspect`: MODEL is given as on the command line, or as an existing model whose
    `example_inputs`, `loss` and `dims` may be given as keywords."""
    if isinstance(model, str):
        source, reference = load_model(model, dtype=workload.dtype), model
    else:
        source, reference = load_object(model, **hooks), type(model).__qualname__
    return report(reference, source, verified(source, workload), workload)


def verified(source: Source, workload: Workload, seed: int = 0) -> Captured:
    """Capture a model, and verify the graph independently of the front end."""
    captured = capture(source, batch=workload.batch, seq=workload.seq, seed=seed)
    verify_fold(captured.fold)
    return captured


STEPS: Mapping[str, Callable[[Fold], str]] = {
    "load": lambda fold: graph_text(unfold(fold)),
    "fold": fold_text,
    "loops": lambda fold: "\n".join(
        f"{loop.name} = {loop.size}: {', '.join(loop.kinds)}" for loop in loop_reports(unfolded_short(Same(fold)).graph)
    ),
    "cuts": lambda fold: "\n".join(map(str, cuts(fold))),
}
"""What --dump-after can print, in the order of the data path."""


def report(reference: str, source: Source, captured: Captured, workload: Workload) -> Inspection:
    """Run every analysis on a captured model."""
    fold = captured.fold
    short = unfolded_short(Same(fold)).graph
    held = parameters(fold)
    weights = [(param, type_) for param, type_ in held.values() if not param.buffer]
    bodies = tuple(_body(fold, name, workload) for name in (body.name for body in fold.bodies))
    return Inspection(
        reference=reference,
        digest=digest(fold, source.config),
        workload=workload,
        parameters=sum(type_.elements for _, type_ in weights),
        trainable=sum(type_.elements for param, type_ in weights if param.requires_grad),
        parameter_bytes=sum(type_.nbytes for _, type_ in weights),
        buffers=len(held) - len(weights),
        bodies=bodies,
        segments=tuple((segment.glue, segment.period, segment.repeats) for segment in fold.segments),
        total=account_fold(fold),
        saved_bytes=sum(body.saved_bytes * body.runs for body in bodies),
        loops=loop_reports(short),
        cuts=cuts(fold),
        microbatch=microbatch(short),
        notes=captured.notes,
    )


def _body(fold: Fold, name: str, workload: Workload) -> BodyReport:
    body = fold.body[name]
    return BodyReport(
        name=name,
        module_class=body.module_class,
        runs=fold.count(name),
        parameters=sum(body.graph.types[param.value].elements for param in body.graph.parameters()),
        account=account(body.graph),
        saved_bytes=saved_bytes(body.graph, workload.style, workload.device),
    )


def loop_reports(graph: Graph) -> tuple[LoopReport, ...]:
    """The loops of a graph, each with the kinds of its operators in order of first use."""
    kinds = {op.name: op.kind for op in graph.ops}
    return tuple(
        LoopReport(loop.name, loop.size, loop.label, tuple(dict.fromkeys(kinds[op] for op, _ in loop.occurs)))
        for loop in loops(graph).loops
    )


# JSON ----------------------------------------------------------------------------------------------------------------


def to_json(found: Inspection) -> dict[str, Any]:
    """The inspection as docs/inspect.md describes it."""
    return {
        "format_version": FORMAT_VERSION,
        "meshwright": __version__,
        "model": {
            "ref": found.reference,
            "digest": found.digest,
            "parameters": found.parameters,
            "trainable_parameters": found.trainable,
            "parameter_bytes": found.parameter_bytes,
            "buffers": found.buffers,
        },
        "workload": {
            "batch": found.workload.batch,
            "seq": found.workload.seq,
            "dtype": found.workload.dtype,
            "style": found.workload.style,
            "device": found.workload.device,
        },
        "totals": {**_account_json(found.total), "saved_bytes": found.saved_bytes},
        "bodies": [
            {
                "name": body.name,
                "class": body.module_class,
                "runs": body.runs,
                "parameters": body.parameters,
                **_account_json(body.account),
                "saved_bytes": body.saved_bytes,
            }
            for body in found.bodies
        ],
        "segments": [
            {"kind": "glue" if glue else "stack", "period": list(period), "repeats": repeats}
            for glue, period, repeats in found.segments
        ],
        "loops": [
            {"name": loop.name, "size": loop.size, "label": loop.label, "kinds": list(loop.kinds)}
            for loop in found.loops
        ],
        "cuts": [_cut_json(cut) for cut in found.cuts],
        "microbatches": {
            "legal": found.microbatch.legal,
            "blockers": [
                {"op": b.op, "kind": b.kind, "module": b.module, "source": b.source, "reason": b.reason}
                for b in found.microbatch.blockers
            ],
        },
        "coverage": {
            "flops": found.total.covered_flops,
            "bytes": found.total.covered_bytes,
            "opaque": [
                {"target": o.target, "module": o.module, "source": o.source, "count": o.count}
                for o in found.total.opaque
            ],
        },
        "notes": list(found.notes),
    }


def _account_json(costs: Account) -> dict[str, Any]:
    return {
        "ops": costs.ops,
        "forward_flops": costs.forward_flops,
        "backward_flops": costs.backward_flops,
        "forward_bytes": costs.nbytes,
    }


def _cut_json(cut: Cut) -> dict[str, Any]:
    return {
        "segment": cut.segment,
        "position": cut.position,
        "first_repeat": cut.first,
        "count": cut.count,
        "op": cut.op,
        "forward_bytes": cut.forward_bytes,
        "backward_bytes": cut.backward_bytes,
        "live": [str(value) for value in cut.live],
        "skips": [str(value) for value in cut.skips],
        "recomputed": [str(value) for value in cut.recomputed],
    }
