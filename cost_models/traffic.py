"""Traffic: the bytes that all ranks together receive in a step, and over which links.

    in groups   every transmission of a ledger (`ledger`): what a rank receives by the bandwidth-optimal algorithm,
                times the ranks, the repeats of the body, and the micro-batches where it runs for each of them
    passed on   values and gradients from stage to stage, as often as there are micro-batches
    tied        once a step, gradients of parameters that stages on different ranks hold
    host        what goes to the host and comes back: activations for every micro-batch, gradients and parameters once

Bytes are booked on the widest tier that a group spans: those of eight ranks on two hosts all count as `rail`, though a
library sends most of them inside the hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

from meshwright.cost_models.collectives.topology import group_shape, pair_shape
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.ledger.ledger import ONCE, Ledger
from meshwright.cost_models.offload import host_traffic
from meshwright.ir.graph.graph import ITEMSIZE
from meshwright.ir.program.crossing import End, messages
from meshwright.ir.program.program import Program, Stage
from meshwright.ir.program.ties import ends_of
from meshwright.ir.target.workload import Workload


class Load(NamedTuple):
    """Bytes that all ranks of a stage together receive in a step, for one purpose over one tier."""

    tier: str
    nbytes: float
    reason: str
    """That of a transmission; `stages`: from stage to stage; `tied`: gradients of tied parameters; `host`: to the
    host's memory and back."""
    axes: tuple[str, ...] = ()
    """The mesh axes that the groups are along."""
    ranks: int = 2
    """Of one group."""


def traffic(
    program: Program, cluster: Cluster, ledgers: Mapping[str, Ledger], workload: Workload
) -> tuple[tuple[str, float], ...]:
    """Bytes received in a step, by tier."""
    found: dict[str, float] = {}
    for load in loads(program, cluster, ledgers, workload):
        found[load.tier] = found.get(load.tier, 0.0) + load.nbytes
    return tuple(sorted(found.items()))


def loads(program: Program, cluster: Cluster, ledgers: Mapping[str, Ledger], workload: Workload) -> Iterator[Load]:
    """Everything that is received in a step."""
    yield from _grouped(program, cluster, ledgers)
    yield from _passed(program, cluster)
    yield from _tied(program, cluster, workload)
    if any(body.offloads for body in program.bodies):
        yield Load(tier="host", nbytes=host_traffic(program, workload), reason="host", ranks=1)


def _grouped(program: Program, cluster: Cluster, ledgers: Mapping[str, Ledger]) -> Iterator[Load]:
    for stage in program.stages:
        for run in stage.runs:
            for name in run.programs:
                yield from _of_body(stage, cluster, ledgers[name], program.microbatches, run.repeats)


def _of_body(stage: Stage, cluster: Cluster, book: Ledger, microbatches: int, repeats: int) -> Iterator[Load]:
    for name, phase in book.phases.items():
        times = len(stage.ranks) * (1 if name in ONCE else microbatches)
        for one, count in phase.transmissions.items():
            shape = group_shape(cluster, stage.ranks, stage.mesh, one.axes)
            if shape.levels:
                nbytes = times * count * one.received_bytes(shape.ranks) * repeats
                tier = shape.levels[-1].tier
                yield Load(tier=tier, nbytes=nbytes, reason=one.reason, axes=one.axes, ranks=shape.ranks)


def _passed(program: Program, cluster: Cluster) -> Iterator[Load]:
    for hop in program.transfers:
        here, there = program.stages[hop.from_stage], program.stages[hop.to_stage]
        if here.ranks == there.ranks:
            continue
        ways = [(here, there, hop.target)] + ([(there, here, hop.source)] if hop.differentiable else [])
        for source, target, placement in ways:
            nbytes = prod(placement.local_shape(hop.type.shape, target.mesh)) * ITEMSIZE[hop.type.dtype]
            received = nbytes * len(target.ranks) * program.microbatches
            yield Load(tier=_tier(cluster, source, target), nbytes=received, reason="stages")


def _tied(program: Program, cluster: Cluster, workload: Workload) -> Iterator[Load]:
    for tie in tied(program, workload):
        one, other = (program.stages[stage] for stage in tie.stages)
        yield Load(tier=_tier(cluster, one, other), nbytes=tie.received, reason="tied")


def _tier(cluster: Cluster, one: Stage, other: Stage) -> str:
    return pair_shape(cluster, one.ranks, other.ranks).levels[-1].tier


@dataclass(frozen=True, slots=True)
class Tied:
    """A parameter that two groups of ranks hold: a stage of each, and bytes of its gradient."""

    stages: tuple[int, int]
    busiest: float
    """What a rank sends, or receives, whichever is more; of all ranks the most."""
    received: float
    """By all ranks together."""


def tied(program: Program, workload: Workload) -> Iterator[Tied]:
    """Gradients that stages on different ranks exchange of parameters that both hold: the first holder with each other
    one."""
    for tie in program.ties:
        (first, (shape, one)), *others = ends_of(program, tie).items()
        for stage, (_, other) in others:
            busiest, received = _exchanged(shape, one, other)
            each = workload.states.gradient
            yield Tied((first, stage), busiest * each, received * each)


@lru_cache(maxsize=4096)
def _exchanged(shape: tuple[int, ...], one: End, other: End) -> tuple[int, int]:
    """Elements exchanged: by the busiest rank, and by all ranks."""
    if one == other:
        own = prod(one.placement.local_shape(shape, one.mesh))
        return own, 2 * own * one.mesh.size
    passed = Counter[tuple[End, str, int]]()
    for here, there in ((one, other), (other, one)):
        for sender, receiver, elements in messages(shape, here, there):
            passed[here, "sent", sender] += elements
            passed[there, "received", receiver] += elements
    return max(passed.values()), sum(number for (_, what, _), number in passed.items() if what == "received")
