"""MW5: capabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Self

from meshwright.ir.errors.base import MeshwrightError

AGAIN = "make the plan again, for this target: `plan` answers with what is emitted"
"""What helps against the refusal of a plan of whatever origin."""

BODIES, CUTS, STORAGE, SCHEDULE, RECOMPUTE = "bodies", "cuts", "storage", "schedule", "recompute"
"""Parts of a plan that a refusal may depend on alone: all that is inside of bodies; which axes cut values there; how
parameters are stored, and along which axes there are copies of them; the order of a pipeline's work, and whether there
is one; what is computed again."""


class CapabilityError(MeshwrightError):
    """What was asked of a target that it does not declare."""

    family = "MW5"
    exit_code = 6
    depends: frozenset[str] | None = None
    """The parts of a plan that the refusal depends on: it holds for every plan of the same model, workload and target
    with the same ones. None: on all of it."""


class NotExpressible(CapabilityError):
    """Something in a plan that the target cannot express. Raised through its subclasses only."""

    def depending(self, parts: Iterable[str] | None) -> Self:
        """The refusal, which depends on these parts of a plan."""
        self.depends = frozenset(parts) if parts is not None else None
        return self


class LayoutNotExpressible(NotExpressible):
    """A layout that the target cannot cut a tensor by."""

    code = "MW5001"


class AttentionNotExpressible(NotExpressible):
    """An algorithm for context-parallel attention that the target does not have."""

    code = "MW5002"


class StorageNotExpressible(NotExpressible):
    """Parameters, gradients or optimizer states that the target can only keep as compute has them."""

    code = "MW5003"


class RecomputeNotExpressible(NotExpressible):
    """A choice of what to compute again that the target does not have."""

    code = "MW5004"


class ScheduleNotExpressible(NotExpressible):
    """A pipeline schedule that the target does not have."""

    code = "MW5005"


class MicrobatchesNotExpressible(NotExpressible):
    """A number of micro-batches that the target's schedule does not take."""

    code = "MW5006"


class OffloadNotExpressible(NotExpressible):
    """Saved values that the target cannot keep in host memory."""

    code = "MW5007"


class CapabilityUnknown(CapabilityError):
    """A declared capability whose name means nothing to the IR."""

    code = "MW5008"


class NotEmitted(CapabilityError):
    """Something in a plan that no code is written for yet. Raised through its subclasses only.

    What is to be changed is said as options of `plan` (`ways`, one of which is enough), so that whoever knows the plan
    can leave out those that it was made with (`apart_from`).
    """

    def __init__(
        self,
        *,
        place: str,
        cause: str,
        fix: str = "",
        ways: tuple[str, ...] = (),
        depends: Iterable[str] | None = None,
    ) -> None:
        """``fix`` is what helps besides `ways`, or without them."""
        if depends is not None:
            self.depends = frozenset(depends)
        planned = f"plan with {', or with '.join(ways)}" if ways else ""
        super().__init__(place=place, cause=cause, fix=", or ".join(filter(None, (planned, fix))) or AGAIN)
        self.ways = ways
        self.besides = fix

    def apart_from(self, had: Callable[[str], bool]) -> NotEmitted:
        """The same refusal without the ways that the plan has gone already."""
        if not any(map(had, self.ways)):
            return self
        left = tuple(way for way in self.ways if not had(way))
        return type(self)(place=self.place, cause=self.cause, fix=self.besides, ways=left, depends=self.depends)

    def with_others(self, others: Iterable[NotEmitted], parts: Iterable[str] = ()) -> NotEmitted:
        """The same refusal where these hold, too, and because of these parts of the plan: it depends on all of that."""
        every = [self.depends, *(one.depends for one in others)]
        known = [one for one in every if one is not None]
        self.depends = frozenset().union(*known, parts) if len(known) == len(every) else None
        return self


class EmissionTarget(NotEmitted):
    """A plan for a target that no code is written for: `any` stands for no runtime."""

    code = "MW5010"


class EmissionModel(NotEmitted):
    """A model that emitted code cannot call: it needs a factory in a file, with a dict as batch and a loss."""

    code = "MW5011"


class EmissionStorage(NotEmitted):
    """A way to keep parameters, gradients or optimizer states that no code is written for."""

    code = "MW5013"


class EmissionModule(NotEmitted):
    """A placement inside a module that cannot be said at the module's boundary."""

    code = "MW5014"
    depends = frozenset((BODIES,))


class EmissionSchedule(NotEmitted):
    """Stages, micro-batches or a schedule that no code is written for."""

    code = "MW5015"


class EmissionRecompute(NotEmitted):
    """A choice of what to compute again that no code is written for."""

    code = "MW5016"


class EmissionSoftware(NotEmitted):
    """A style, a precision or an optimizer that no code is written for."""

    code = "MW5017"


class CombinationNotExpressible(NotExpressible):
    """Things that the target can have each, and not together."""

    code = "MW5018"


class NothingEmitted(NotEmitted):
    """A question of whose plans that fit none is emitted, for reasons of several kinds."""

    code = "MW5019"


class EmissionLoss(NotEmitted):
    """A loss that is no mean and no sum over the batch: what copies and micro-batches have of it does not add up."""

    code = "MW5020"


class EmissionPrinted(NotEmitted):
    """An operator or a move that printed code has no form for; or a model whose training step its graph does not say
    whole: an autograd function whose backward pass is not the derivative of its forward pass, and that code cannot
    call; draws outside of torch; parameters that its forward pass writes into."""

    code = "MW5021"


class EmissionWritten(NotEmitted):
    """Parameters that the forward pass writes into, in storage that gathers or casts them for it: torch runs the
    forward pass on what it gathered, and lets go of that with all that was written into it."""

    code = "MW5022"
