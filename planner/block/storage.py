"""Storage of parameters, with its costs, as a part of the cost of the operators that read them.

For the state in which operators want a parameter there are as many ways to store it as there are levels of ZeRO, over
the axes that hold copies of it. Each has seconds per micro-batch (gathers before use, reductions of gradients to
shards, adding gradients up), seconds per step (reductions, optimizer, publication), which the micro-batches share, and
bytes. Parameters of a body travel together, so each pays for its share of a transmission in which all of them are cut
as it is; likewise for the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import prod
from typing import cast

from meshwright.cost_models.collectives.collective import Collective
from meshwright.cost_models.ledger.ledger import Phase, Transmission, streaming, travelling_bytes, updating_bytes
from meshwright.ir.decisions.decisions import Storage
from meshwright.ir.decisions.sharding import ZERO, Sharding, levels
from meshwright.ir.graph.graph import ITEMSIZE, Graph, Param, Type
from meshwright.ir.names.storage import cut_further, in_shards
from meshwright.ir.program.program import local_elements
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement, State
from meshwright.ir.sharding.reshard import given_elements, path
from meshwright.planner.block.exposure import Exposure
from meshwright.planner.block.space import Space, Terms

ROUNDING = 1e-9
"""Relative, of seconds that are sums of the same parts in different orders."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One way to store a parameter. `storage` is None where it is stored as it is read."""

    storage: Storage | None
    forward_s: float = 0.0
    backward_s: float = 0.0
    """Per micro-batch."""
    once_s: float = 0.0
    """Per step."""
    nbytes: float = 0.0
    """Parameter, gradient and optimizer state on one rank."""
    spared_s: float = 0.0
    """Per step, where another body counts them: it holds the same parameter."""

    def total_s(self, microbatches: int) -> float:
        """Seconds per micro-batch, with the seconds per step shared out."""
        return self.forward_s + self.backward_s + self.once_s / microbatches

    def of(self, path: str) -> Stored:
        """The same way for the parameter at this path."""
        if self.storage is None or self.storage.path == path:
            return self
        return replace(self, storage=replace(self.storage, path=path))


@dataclass(slots=True)
class Storing:
    """Ways to store the parameters of one body on one mesh."""

    graph: Graph
    mesh: Mesh
    terms: Terms
    exposure: Exposure
    space: Space
    elsewhere: frozenset[str] = frozenset()
    """Paths of parameters that other bodies hold, too, and count: what happens once a step, and bytes."""
    known: dict[tuple[Type, bool, bool, State], Stored] = field(default_factory=dict)
    """The cheapest way of every parameter that was asked for: those of one type that are read alike share it."""
    whole: int = field(init=False)
    """Elements of all trained parameters of the body."""
    _parts: dict[tuple[object, ...], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        trained = [param for param in self.graph.params if param.requires_grad and not param.buffer]
        self.whole = sum(self.graph.types[param.value].elements for param in trained)

    def best(self, param: Param, state: State) -> Stored:
        """The cheapest way that the space leaves open, for the state in which the parameter is read: of those that take
        as long the first, so that parameters of a body are stored alike and travel together."""
        elsewhere = param.path in self.elsewhere
        key = self.graph.types[param.value], param.requires_grad and not param.buffer, elsewhere, state
        if key not in self.known:
            ways = list(self.ways(param, state))
            if elsewhere:
                ways = [replace(way, once_s=0.0, nbytes=0.0, spared_s=way.once_s) for way in ways]
            seconds = [way.total_s(self.terms.microbatches) for way in ways]
            least_s = min(seconds) * (1 + ROUNDING)
            self.known[key] = next(way for way, taken_s in zip(ways, seconds, strict=True) if taken_s <= least_s)
        return self.known[key].of(param.path)

    def ways(self, param: Param, state: State) -> Iterator[Stored]:
        compute = Placement(state.dims)
        if param.buffer or not param.requires_grad:
            yield Stored(None, nbytes=self.elements(param, compute) * self.terms.workload.states.stored)
            return
        free = [axis for axis in self.mesh.names if compute.on(axis) is None]
        over = [axis for axis in free if self.space.storing is None or axis in self.space.storing]
        for level in levels([line.name for line in self.terms.target.storage]):
            if self.space.zero in (None, level):
                fewest = min(1, len(over)) if self.space.zero is None and level else len(over)
                for count in range(fewest, len(over) + 1):
                    for axes in combinations(over, count):
                        yield self.way(param, compute, state.grad, ZERO[level], axes)

    def way(
        self, param: Param, compute: Placement, grad: Placement, sharding: Sharding, over: tuple[str, ...]
    ) -> Stored:
        shape, pads = self.graph.types[param.value].shape, self.terms.target.pads
        cut = cut_further(compute, shape, over, self.mesh, pads=pads)
        storage = in_shards(param.path, sharding, compute, cut)
        gather_s = self.moved(param, storage.params, compute, "parameter", "parameters")
        reduced_s, since = 0.0, grad
        if storage.grads != compute:
            reduced_s, since = self.moved(param, grad, storage.grads, "sync", "gradients"), storage.grads
        sync_s = self.moved(param, since, storage.optimizer, "sync", "gradients")
        publish_s = self.moved(param, storage.optimizer, storage.params, "update", "publish")
        workload, states = self.terms.workload, self.terms.workload.states
        updated = self.elements(param, storage.optimizer)
        once_s = sync_s + publish_s + self.streamed(param, updated * updating_bytes(workload))
        added_s = 0.0
        if self.terms.microbatches > 1 and workload.stack.style != "fused":
            added_s = self.streamed(param, self.elements(param, since) * 2 * states.gradient)
        nbytes = self.elements(param, storage.params) * states.stored
        nbytes += self.elements(param, storage.grads) * states.gradient
        nbytes += updated * (states.master + workload.moments)
        plain = not sharding.kinds or cut == compute
        return Stored(
            None if plain else storage,
            forward_s=gather_s,
            backward_s=reduced_s + added_s + (gather_s if self.space.regather else 0.0),
            once_s=once_s,
            nbytes=nbytes,
        )

    def elements(self, param: Param, placement: Placement) -> int:
        return local_elements(placement, self.graph.types[param.value].shape, self.mesh)

    def share(self, param: Param) -> float:
        """The share of one parameter in all trained parameters of the body."""
        return self.graph.types[param.value].elements / self.whole

    def moved(self, param: Param, source: Placement, target: Placement, reason: str, what: str) -> float:
        """A parameter's share of moving all equally cut parameters from one placement to another."""
        seconds, held, share = 0.0, source, self.share(param)
        width = travelling_bytes(reason, self.terms.workload) or ITEMSIZE[self.graph.types[param.value].dtype]
        for step, reached in path(source, target, self.mesh, self.terms.lowering.moves) if source != target else ():
            if not step.free:
                given = given_elements(step, self.elements(param, held), self.elements(param, reached), self.mesh)
                nbytes = given * width / share
                seconds += share * self.transmitted(step.kind, step.axes, nbytes, reason)
            held = reached
        return seconds * self.exposure.parameters(what)

    def transmitted(self, kind: str, axes: tuple[str, ...], nbytes: float, reason: str) -> float:
        key = (kind, axes, nbytes, reason)
        if key not in self._parts:
            n = prod(self.mesh.axis(axis).size for axis in axes)
            full = nbytes * n if kind == "all_gather" else nbytes
            phase = Phase()
            phase.transmissions[Transmission(cast(Collective, kind), axes, full, reason)] = 1
            cost = self.terms.cost(phase, self.mesh)
            self._parts[key] = cost.gathers_s + cost.reductions_s + cost.starts_s
        return self._parts[key]

    def streamed(self, param: Param, nbytes: float) -> float:
        """A parameter's share of one kernel over all parameters."""
        share = self.share(param)
        key = ("stream", nbytes / share)
        if key not in self._parts:
            phase = Phase()
            phase.kernels[streaming(nbytes / share, self.terms.workload)] = 1
            self._parts[key] = self.terms.cost(phase, self.mesh).device_s
        return share * self._parts[key]
