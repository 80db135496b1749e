"""MW5: capabilities."""

from meshwright.ir.errors.base import MeshwrightError


class CapabilityError(MeshwrightError):
    """What was asked of a target that it does not declare."""

    family = "MW5"
    exit_code = 6


class NotExpressible(CapabilityError):
    """Something in a plan that the target cannot express. Raised through its subclasses only."""


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
