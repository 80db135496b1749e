"""Traffic between hosts: the bytes that every pair of them exchanges in a step, in both directions together.

`traffic` books bytes on tiers; here they are laid on pairs of hosts, as `topology` takes the wires to be used:

    rings        host by host in the order of the ranks: each neighbour passes on what one rank receives
    all-to-all   every rank the same to every other
    passed on    rank to rank between stages, values one way and gradients the other
    tied         pair by pair between the stages that hold a parameter, both ways

It shows which links a placement spares.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from math import prod

from meshwright.cost_models.collectives.topology import groups_along, pairs_between
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.ledger.ledger import ONCE
from meshwright.cost_models.prices import Prices
from meshwright.cost_models.traffic import tied
from meshwright.ir.graph.graph import ITEMSIZE
from meshwright.ir.program.program import Program

HostPair = tuple[int, int]


def between_hosts(program: Program, prices: Prices) -> dict[HostPair, float]:
    """Bytes of a step for each pair of hosts, by their numbers in the whole cluster; pairs without any are left out."""
    host = _hosts(prices.cluster)
    found: dict[HostPair, float] = {}
    for one, other, nbytes in (*_grouped(program, prices), *_paired(program)):
        if host[one] != host[other]:
            pair = min(host[one], host[other]), max(host[one], host[other])
            found[pair] = found.get(pair, 0.0) + nbytes
    return dict(sorted(found.items()))


def _hosts(cluster: Cluster) -> list[int]:
    sizes = [pool.gpus_per_host for pool in cluster.pools for _ in range(pool.hosts)]
    return [host for host, size in enumerate(sizes) for _ in range(size)]


def _grouped(program: Program, prices: Prices) -> Iterator[tuple[int, int, float]]:
    assert program.workload is not None
    accumulates = program.microbatches > 1
    for stage in program.stages:
        loads: defaultdict[tuple[tuple[str, ...], bool], float] = defaultdict(float)
        for run in stage.runs:
            for name in run.programs:
                book = prices.ledger(program.body(name), program.workload, accumulates)
                for phase_name, phase in book.phases.items():
                    times = run.repeats * (1 if phase_name in ONCE else program.microbatches)
                    for one, count in phase.transmissions.items():
                        ranks = prod(stage.mesh.axis(axis).size for axis in one.axes)
                        loads[one.axes, one.kind == "all_to_all"] += times * count * one.received_bytes(ranks)
        for (axes, exchange), nbytes in loads.items():
            for group in groups_along(stage.ranks, stage.mesh, axes).tolist():
                yield from _exchange(group, nbytes) if exchange else _ring(sorted(group), nbytes)


def _exchange(group: Sequence[int], nbytes: float) -> Iterator[tuple[int, int, float]]:
    for one, other in combinations(group, 2):
        yield one, other, 2 * nbytes / (len(group) - 1)


def _ring(group: Sequence[int], nbytes: float) -> Iterator[tuple[int, int, float]]:
    for one, other in zip(group, [*group[1:], group[0]], strict=True):
        yield one, other, nbytes


def _paired(program: Program) -> Iterator[tuple[int, int, float]]:
    for hop in program.transfers:
        here, there = program.stages[hop.from_stage], program.stages[hop.to_stage]
        pairs = pairs_between(here.ranks, there.ranks).tolist()
        for target, placement in ((there, hop.target), (here, hop.source))[: 1 + hop.differentiable]:
            nbytes = prod(placement.local_shape(hop.type.shape, target.mesh)) * ITEMSIZE[hop.type.dtype]
            share = nbytes * len(target.ranks) / len(pairs) * program.microbatches
            yield from ((one, other, share) for one, other in pairs)
    assert program.workload is not None
    for tie in tied(program, program.workload):
        first, second = (program.stages[stage].ranks for stage in tie.stages)
        pairs = pairs_between(first, second).tolist()
        yield from ((one, other, tie.received / len(pairs)) for one, other in pairs)
