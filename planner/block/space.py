"""The plans of a body that are searched, and the terms that their prices depend on.

A `Space` says which choices the block solver may make; what a target cannot be made to do is masked by its
capabilities. A `Terms` is everything that a price of a body depends on beside the plan: cluster and profile, the ranks
of the stage, the workload and how the target lowers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from meshwright.cost_models.cost import Cost
from meshwright.cost_models.ledger.ledger import Phase
from meshwright.cost_models.prices import Prices
from meshwright.ir.names.pinned import Allowed
from meshwright.ir.program.lower_body import Lowering
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.target.capabilities import ANY, Capabilities
from meshwright.ir.target.workload import Workload
from meshwright.planner.block.exposure import Exposure


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The plans of a body that are searched.

    - `zero` is 0 to 3, over all axes that `storing` names; or None for whatever is cheapest of those that the target
      can store, over any of these axes.
    - `storing` names the axes over which storage may be cut further; None for all.
    - `recompute` is a word of `ir.names.recompute`, or the values themselves.
    """

    zero: int | None = None
    storing: tuple[str, ...] | None = None
    regather: bool = True
    recompute: str | tuple[str, ...] = "none"
    zigzag: tuple[str, ...] = ()
    """Axes that cut the sequence in a zigzag, wherever they cut it."""
    whole: tuple[str, ...] = ("head_dim",)
    """Loops that nothing splits."""
    joined: bool = True
    """Tie followers (`groups`). Without, every operator chooses for itself: a larger space, for few axes."""
    closed: bool = True
    """A block of a stack ends in the state it begins with."""
    partial_gradients: bool = True
    """Let partial gradients pass through idle operators."""
    partial_values: bool = False
    """Let partial values pass through linear operators."""
    pins: Mapping[str, Allowed] = field(default_factory=dict)
    """What is asked of single operators of the body."""


ALL = Space()
"""Nothing recomputed, storage as is cheapest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of a body's prices that do not depend on its plan."""

    prices: Prices
    workload: Workload
    ranks: tuple[int, ...]
    lowering: Lowering
    target: Capabilities = ANY
    microbatches: int = 1
    """What happens once per step is shared out over them."""
    hides: bool = True
    """Whether parameters' and gradients' traffic finds enough compute to hide behind, where the stack hides it."""

    @staticmethod
    def of(
        prices: Prices,
        workload: Workload,
        ranks: tuple[int, ...],
        target: Capabilities = ANY,
        microbatches: int = 1,
        hides: bool = True,
    ) -> Terms:
        """The terms under a target, as `lower` lowers for it."""
        lowering = replace(target.lowering().for_stack(workload.stack), style=workload.stack.style)
        return Terms(
            prices=prices,
            workload=workload,
            ranks=ranks,
            lowering=lowering,
            target=target,
            microbatches=microbatches,
            hides=hides,
        )

    @property
    def exposure(self) -> Exposure:
        """The exposure of communication under these terms."""
        return Exposure(stack=self.workload.stack, step=self.prices.profile.step, hides=self.hides)

    def cost(self, phase: Phase, mesh: Mesh) -> Cost:
        """The cost of one phase on the slowest of the devices, with its wires to itself."""
        return self.prices.phase(phase, self.ranks, mesh, self.workload)
