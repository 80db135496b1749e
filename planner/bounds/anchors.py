"""What the price of one anchor, a configuration that is priced whole, says of a micro-batch on the whole model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from meshwright.cost_models.cost import Cost
from meshwright.cost_models.ledger.ledger import Transmission
from meshwright.cost_models.memory.storages import Shared
from meshwright.ir.names import CONTEXT
from meshwright.planner.bounds.bases import Held, Piece
from meshwright.planner.bounds.common import Common

Vector = npt.NDArray[np.float64]
WORK = ("forward", "recompute", "inputs", "weights")


@dataclass(frozen=True, slots=True)
class Anchor:
    """The values of a kernel configuration that tell anchors apart."""

    tp: int
    ep: int
    recompute: str
    sequences: int
    cp: int = 1
    context: str = CONTEXT[0]
    etp: int = 1


class Sums:
    """The costs of a micro-batch on the whole model at one anchor, each computed when it is first asked for. Bodies
    that the model or the target cannot have cost nothing here. `piece` prices one body."""

    def __init__(self, common: Common, piece: Callable[[str], Piece | None]) -> None:
        self.common, self.piece = common, piece
        self.names = common.names

    def by_body(self, of: Callable[[Piece], float]) -> Vector:
        """A quantity of one call of every body."""
        found = map(self.piece, self.names)
        return np.array([of(one) if one is not None else 0.0 for one in found])

    def by_phase(self, of: Callable[[Cost], float]) -> Vector:
        """A quantity of every phase of one call of every body."""
        return np.array([self.by_body(partial(_of_phase, of, phase)) for phase in WORK])

    @cached_property
    def device(self) -> Vector:
        """Seconds of kernels without attention, by phase and body."""
        return self.by_phase(lambda one: one.device_s - one.engines[1])

    @cached_property
    def attention(self) -> Vector:
        """Seconds of attention, by phase and body."""
        return self.by_phase(lambda one: one.engines[1])

    @cached_property
    def tensor(self) -> Vector:
        """Seconds of collectives within a copy, by phase and body, for bodies without experts."""
        return np.where(self.common.routed, 0.0, self.waited)

    @cached_property
    def routed(self) -> Vector:
        """Seconds of collectives within a copy, by phase and body, for bodies with experts."""
        return np.where(self.common.routed, self.waited, 0.0)

    @cached_property
    def waited(self) -> Vector:
        left = self.common.tensor_left
        return self.by_phase(lambda one: one.values[0] * left + one.values[1])

    @cached_property
    def exchanges(self) -> Mapping[str, Mapping[Transmission, int]]:
        """Seconds of the exchanges between experts, in one call of every body that has experts."""
        found = {}
        for name in self.common.routed_names:
            if (own := self.piece(name)) is not None:
                sent = Counter[Transmission]()
                for phase in WORK:
                    sent.update(own.asked[phase].transmissions)
                found[name] = {one: count for one, count in sent.items() if one.kind == "all_to_all"}
        return found

    @cached_property
    def awaited(self) -> Vector:
        """Seconds of host launches in lists where the host waits for the device, by phase and body."""
        return self.by_phase(lambda one: one.awaited * self.common.host_s)

    @cached_property
    def launches(self) -> Vector:
        """Seconds in which the host starts kernels, by phase and body."""
        return self.by_phase(lambda one: one.launches * self.common.host_s)

    @cached_property
    def update(self) -> Vector:
        """Seconds of the optimizer's step, by body."""
        return self.by_body(lambda one: one.costs["update"].device_s)

    @cached_property
    def kept(self) -> Vector:
        """Bytes saved for the backward pass, by body, without values that an earlier call may have saved already."""
        pieces = [own for name in self.names if (own := self.piece(name)) is not None]
        left = {key for own in pieces for key, _ in own.memory.passes.left}
        return self.by_body(lambda one: one.memory.passes.kept.total - _entered(one, left))

    @cached_property
    def waiting(self) -> Vector:
        """Bytes of the saved values that gradients of weights still need where they are put off, by body."""
        return np.minimum(self.kept, self.by_body(lambda one: one.memory.passes.weight_kept))

    @cached_property
    def working(self) -> Vector:
        """Bytes that the backward pass holds at its fullest beside the saved values, by body."""
        return self.by_body(lambda one: max(0.0, one.memory.passes.backward.held.total - one.memory.passes.kept.total))

    @cached_property
    def used(self) -> Vector:
        return np.array([self.kept, self.waiting, self.working])

    @cached_property
    def states(self) -> tuple[tuple[Held, ...], tuple[Held, ...]]:
        """Parameter state outside and inside the experts, by body."""
        pieces = {name: self.piece(name) for name in self.names}
        sides = [{name: own.states[at] if own else Held() for name, own in pieces.items()} for at in (0, 1)]
        for path, body in self.common.held_twice:
            if own := pieces[body]:
                held, routed = own.slot(path)
                sides[routed][body] = sides[routed][body].plus(held, -1)
        return tuple(sides[0].values()), tuple(sides[1].values())


def _of_phase(of: Callable[[Cost], float], phase: str, piece: Piece) -> float:
    return of(piece.costs[phase])


def _entered(piece: Piece, left: Set[Shared]) -> float:
    return sum(size for key, size in piece.memory.passes.entered if key in left)
