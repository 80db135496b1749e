"""MW4: decisions and programs."""

from meshwright.ir.errors.base import MeshwrightError


class ProgramError(MeshwrightError):
    """Decisions that do not fit their graph, and programs that do not compute it."""

    family = "MW4"
    exit_code = 1


class BodyUnplanned(ProgramError):
    """A stage runs a body that none of its plans is for."""

    code = "MW4001"


class CallsUncovered(ProgramError):
    """Stages that leave a call of the fold out, or run one twice."""

    code = "MW4002"


class RanksOverlap(ProgramError):
    """Stages that share only some ranks, or a mesh that its ranks do not fill."""

    code = "MW4003"


class ScheduleImpossible(ProgramError):
    """A schedule that its stages or micro-batches do not allow, or whose actions wait in a circle."""

    code = "MW4004"
    exit_code = 2


class StorageConflict(ProgramError):
    """A stored placement that does not refine the compute placement of its parameter."""

    code = "MW4005"


class PlanUnknown(ProgramError):
    """A stage that uses a body plan which nobody defines."""

    code = "MW4006"


class BoundaryMismatch(ProgramError):
    """A value that leaves one body in another state than the next one expects."""

    code = "MW4007"


class PartialAcross(ProgramError):
    """A partial sum at the boundary of two stages: it would have to be reduced across them."""

    code = "MW4008"


class NameUnknown(ProgramError):
    """A program statement that reads a name nobody defined, or that was not kept."""

    code = "MW4009"


class NameRedefined(ProgramError):
    """A program that defines a name twice."""

    code = "MW4010"


class WrongPlacement(ProgramError):
    """A program statement whose operand or result lies otherwise than the statement requires."""

    code = "MW4011"


class WrongStep(ProgramError):
    """A program move that does not lead to the placement of its result."""

    code = "MW4012"


class MissingGradient(ProgramError):
    """A program that leaves out the gradient of something trained."""

    code = "MW4013"


class WrongTransfer(ProgramError):
    """A transfer between stages whose type or placement does not match its ends."""

    code = "MW4014"


class ActionMismatch(ProgramError):
    """Sends and receives that do not pair up, or work lists that miss a stage."""

    code = "MW4015"


class CopiesDiffer(ProgramError):
    """Ranks that should hold copies of one value and hold different ones: the program is wrong."""

    code = "MW4016"


class OperatorUncovered(ProgramError):
    """A body program that leaves out an operator of its graph, or runs one twice."""

    code = "MW4017"


class WrongRing(ProgramError):
    """A ring statement on an axis that does not split a coupled pair."""

    code = "MW4018"


class DegreeImpossible(ProgramError):
    """A degree that does not exist, or that this model cannot be cut into."""

    code = "MW4019"
    exit_code = 2


class PlanVersion(ProgramError):
    """A saved plan of another format than this version reads."""

    code = "MW4020"


class PlanKeyMissing(ProgramError):
    """A saved plan without one of its keys."""

    code = "MW4021"


class PlanKeyUnknown(ProgramError):
    """A saved plan with a key that means nothing: what is misspelt would silently be undecided."""

    code = "MW4022"


class PlanValue(ProgramError):
    """A saved plan with a value of the wrong type."""

    code = "MW4023"


class PlanSyntax(ProgramError):
    """The text form of decisions or of a program that cannot be read; the place is a line and a column."""

    code = "MW4024"


class PlanRepeated(ProgramError):
    """Two body plans of one name, or a body plan that decides one thing twice."""

    code = "MW4025"


class PlannedOpUnknown(ProgramError):
    """A body plan with a strategy for an operator that its body does not have."""

    code = "MW4026"


class PlannedValueUnknown(ProgramError):
    """A body plan with a state, or recomputation, for a value that its body does not have."""

    code = "MW4027"


class StoredParamUnknown(ProgramError):
    """A body plan that stores a parameter which its body does not have."""

    code = "MW4028"


class MeshUnfilled(ProgramError):
    """A stage with more or fewer ranks than its mesh has positions, or with one rank twice."""

    code = "MW4029"


class CallsRepeated(ProgramError):
    """Stages that run one call of the fold twice, or in another order."""

    code = "MW4030"


class StageEmpty(ProgramError):
    """A stage that runs no call."""

    code = "MW4031"


class ScheduleUnknown(ProgramError):
    """A schedule of a name that does not exist."""

    code = "MW4032"


class ActionSyntax(ProgramError):
    """An action of a custom schedule that cannot be read."""

    code = "MW4033"


class WaitCircle(ProgramError):
    """Action lists that wait for each other in a circle: the step would hang."""

    code = "MW4034"


class WorkMiscounted(ProgramError):
    """Action lists that leave out a stage's work on a micro-batch, or do it twice."""

    code = "MW4035"


class WorkForeign(ProgramError):
    """An action list with the work of a stage that its ranks do not hold."""

    code = "MW4036"


class TransferMissing(ProgramError):
    """A value that is read on a later stage and is not carried there."""

    code = "MW4037"


class NameUntyped(ProgramError):
    """A name of a program without type and placement."""

    code = "MW4038"


class WrongType(ProgramError):
    """A program statement whose operand or result has another shape or dtype than it must."""

    code = "MW4039"


class GradientUnused(ProgramError):
    """A gradient that is computed, and left out of the total that flows on."""

    code = "MW4040"


class GradientMixed(ProgramError):
    """A program that adds gradients of different values, or takes one for the gradient of another value."""

    code = "MW4041"


class GradientTwice(ProgramError):
    """A gradient that is counted twice in the total that flows on."""

    code = "MW4042"


class WrongDerivative(ProgramError):
    """A gradient statement, or a recomputation, that does not match its forward statement."""

    code = "MW4043"


class WrongOperand(ProgramError):
    """A program statement that computes something else than its operator does in the graph."""

    code = "MW4044"


class TieMissing(ProgramError):
    """A parameter that several calls hold, whose gradients are not added over all of them."""

    code = "MW4045"


class WrongKept(ProgramError):
    """A program that counts too few, too many or too large tensors as kept for the backward pass."""

    code = "MW4046"


class WrongUpdate(ProgramError):
    """A program that leaves a buffer's update out, or writes another value into it."""

    code = "MW4047"


class WrongRun(ProgramError):
    """A stage of a program that runs other bodies than the fold does there."""

    code = "MW4048"


class WrongAddition(ProgramError):
    """A sum of values that lie, or reduce, differently."""

    code = "MW4049"


class RuleUntrue(ProgramError):
    """A registered rule under which the split operator computes something else than the whole one."""

    code = "MW4060"
    exit_code = 7


class LayersIndivisible(ProgramError):
    """The layers of the model cannot be shared out among the stages as asked."""

    code = "MW4070"
    exit_code = 2


class RanksMismatch(ProgramError):
    """Degrees that do not multiply to the ranks of the cluster."""

    code = "MW4071"
    exit_code = 2


class HeadsIndivisible(ProgramError):
    """Attention heads, or key-value heads, that the degrees which split them do not divide."""

    code = "MW4072"
    exit_code = 2


class ExpertsIndivisible(ProgramError):
    """Experts that expert parallelism does not divide, or a model that has none."""

    code = "MW4073"
    exit_code = 2


class WidthIndivisible(ProgramError):
    """A feed-forward width that tensor parallelism does not divide."""

    code = "MW4074"
    exit_code = 2


class SequenceIndivisible(ProgramError):
    """A sequence that context or sequence parallelism does not divide, or a model that has none."""

    code = "MW4075"
    exit_code = 2


class BatchIndivisible(ProgramError):
    """A batch that does not divide into micro-batches on every copy of the model."""

    code = "MW4076"
    exit_code = 2


class SecondsImpossible(ProgramError):
    """Durations that do not fit the stages they are for, or are negative or not finite."""

    code = "MW4077"


class OffloadImpossible(ProgramError):
    """Something that cannot wait in the host's memory: no such kind, more blocks than a stage has, a number without
    activations, the state of a parameter that is not trained."""

    code = "MW4078"
    exit_code = 2


class SharesImpossible(ProgramError):
    """Unequal shares of a batch that the plan's copies cannot take: not one for each, or of something else than whole
    sequences."""

    code = "MW4079"
    exit_code = 2


class BodyUnknown(ProgramError):
    """A body plan of a body that the model does not have."""

    code = "MW4080"
