"""The error catalogue: every way in which a user's input, or an artefact, can be refused.

One class per kind of error, found by a stable code. An error says four things, always: the *code*, the *place* (a file
and line, a key, an argument), the *cause* with the offending value in it, and the *fix*. ``str(error)`` reads

    error MW1002 at model.py: the file defines no 'build'
      fix: name one of its functions: 'model', 'tiny'

Families take number ranges in the order of the data path: loading and tracing a model, configuration files, the IR, and
so on; a family also gives its members their exit code. To add an error: subclass its family, take the next free code,
say in the docstring what is refused and why, run ``python -m meshwright.ir.errors > docs/errors.md``, and test the
place that raises it:

    raise FactoryMissing(place=path, cause=f"the file defines no {name!r}", fix=f"name one of its functions: {names}")

A class enters the catalogue by being defined; a code that is malformed, outside its family or taken is refused right
there. All classes live in this file, so that the numbers are given out in one place. It imports nothing heavy:
``plan --help`` passes through here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import ClassVar

_BY_CODE: dict[str, type[MeshwrightError]] = {}


class MeshwrightError(Exception):
    """Anything that Meshwright refuses. Raised through its subclasses only.

    A subclass without a code of its own is a family: it declares the prefix of its members' codes and their exit code.
    """

    code: ClassVar[str]
    family: ClassVar[str]
    exit_code: ClassVar[int]
    hook: ClassVar[str] = ""
    """Code that a user can paste as it is; a raiser ends the fix with it."""

    def __init_subclass__(cls) -> None:
        """Enter a kind of error into the catalogue."""
        if "code" not in cls.__dict__:
            return
        if not re.fullmatch(rf"{cls.family}\d\d\d", cls.code):
            raise TypeError(f"{cls.__name__}: code {cls.code!r} is not {cls.family!r} and three digits")
        if cls.code in _BY_CODE:
            raise TypeError(f"{cls.__name__}: code {cls.code} is taken by {_BY_CODE[cls.code].__name__}")
        _BY_CODE[cls.code] = cls

    def __init__(self, *, place: str, cause: str, fix: str) -> None:
        """``place``: where; ``cause``: what was found there; ``fix``: what to do, as an instruction."""
        super().__init__(place, cause, fix)
        self.place = place
        self.cause = cause
        self.fix = fix

    def __str__(self) -> str:
        """Return the message as a terminal shows it; further lines of a fix stay at the margin, ready to be pasted."""
        return f"error {self.code} at {self.place}: {self.cause}\n  fix: {self.fix}"

    def __reduce__(self) -> tuple[Callable[..., MeshwrightError], tuple[object, ...]]:
        """Errors cross process boundaries; the default would lose the keywords."""
        return _rebuild, (type(self), self.place, self.cause, self.fix)

    def to_json(self) -> dict[str, object]:
        """Return the error as ``--json`` prints it."""
        return {
            "code": self.code,
            "kind": type(self).__name__,
            "exit_code": self.exit_code,
            "place": self.place,
            "cause": self.cause,
            "fix": self.fix,
        }


def _rebuild(kind: type[MeshwrightError], place: str, cause: str, fix: str) -> MeshwrightError:
    return kind(place=place, cause=cause, fix=fix)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that ``word`` was most likely meant to be, or None if none is close."""
    from difflib import get_close_matches

    # Sorted, so that a tie does not depend on the order in which the words were collected.
    return next(iter(get_close_matches(word, sorted(known), n=1)), None)


# MW1: loading and tracing a model ------------------------------------------------------------------------------------


class ModelError(MeshwrightError):
    """Loading and tracing a model."""

    family = "MW1"
    exit_code = 5


class ModelFileMissing(ModelError):
    """MODEL names a file or a directory that does not exist."""

    code = "MW1001"
    exit_code = 2


class FactoryMissing(ModelError):
    """The model file has no attribute of the name after the colon, or it is not callable."""

    code = "MW1002"
    exit_code = 2


class FactoryRaised(ModelError):
    """The model file, or the factory that it defines, raised an exception. The place is the user's innermost line."""

    code = "MW1003"


class ModelFileExited(ModelError):
    """The model file called ``sys.exit`` while it was imported or built. Loading a model file executes it."""

    code = "MW1004"


class ModelTimedOut(ModelError):
    """Importing the model file or calling its factory took longer than the time allowed."""

    code = "MW1005"


class EmptyModel(ModelError):
    """The model has no parameters: there is nothing to place."""

    code = "MW1006"


class NoExampleInputs(ModelError):
    """The inputs of the model cannot be derived, and its file defines no ``example_inputs(batch, seq)``."""

    code = "MW1007"
    hook = """\
def example_inputs(batch, seq):
    import torch

    # The model is given the entries that its forward has parameters for; the loss sees them all.
    text = torch.zeros(batch, seq + 1, dtype=torch.long)
    return {"tokens": text[:, :-1], "labels": text[:, 1:]}
"""


class NoLoss(ModelError):
    """The model's output is no scalar, and its file defines no ``loss(outputs, batch)``: there is no backward."""

    code = "MW1008"
    hook = """\
def loss(outputs, batch):
    import torch.nn.functional as F

    return F.cross_entropy(outputs.flatten(0, 1).float(), batch["labels"].flatten(), ignore_index=-100)
"""


class DataDependentControlFlow(ModelError):
    """The model branches on, or sizes a tensor by, the value of a tensor; a plan is made without any values."""

    code = "MW1009"


class UnsupportedDtype(ModelError):
    """A parameter, buffer or input has a dtype for which there is no size or no rule."""

    code = "MW1010"


class ForwardRaised(ModelError):
    """The forward pass, or the loss, raised an exception while one training step was traced."""

    code = "MW1011"


class HookUnusable(ModelError):
    """A hook of the model file that is not what the contract says: ``dims`` that do not fit the inputs, a ``loss`` that
    cannot be called with outputs and batch."""

    code = "MW1013"


class ModelKindUnknown(ModelError):
    """MODEL is none of the things that a model can be read from."""

    code = "MW1012"
    exit_code = 2


# MW2: configuration files --------------------------------------------------------------------------------------------


class ConfigError(MeshwrightError):
    """Hugging Face configurations and shape files."""

    family = "MW2"
    exit_code = 6


class UnknownModelType(ConfigError):
    """The ``model_type`` of a Hugging Face configuration is unknown to the installed transformers."""

    code = "MW2001"


class RemoteCodeRefused(ConfigError):
    """The Hugging Face configuration asks for code of its own (``auto_map``), and such code is never run."""

    code = "MW2002"


class ShapeFileNotToml(ConfigError):
    """The shape file is not valid TOML."""

    code = "MW2003"


class ShapeKeyUnknown(ConfigError):
    """The shape file has a key that no shape has. Nothing is ignored: a misspelt key would price another model."""

    code = "MW2004"


class ShapeKeyMissing(ConfigError):
    """The shape file lacks a key that has no default."""

    code = "MW2005"


class ShapeImpossible(ConfigError):
    """A number in the shape file is of the wrong type, not positive, or contradicts another one."""

    code = "MW2006"


class ConfigUnreadable(ConfigError):
    """The Hugging Face configuration is not a JSON object."""

    code = "MW2007"


# MW3: the IR ---------------------------------------------------------------------------------------------------------


class IRError(MeshwrightError):
    """Meshes, placements, graphs, rules, folds and cuts that break a law of their type.

    A user meets one only through a rule or a text form that they wrote themselves; otherwise it is a bug of ours.
    """

    family = "MW3"
    exit_code = 1


class BadAxisName(IRError):
    """A mesh axis whose name is not an identifier: it could not be written in a placement."""

    code = "MW3001"


class BadAxisSize(IRError):
    """A mesh axis of less than one rank."""

    code = "MW3002"


class AxisRepeated(IRError):
    """A mesh with two axes of one name."""

    code = "MW3003"


class MeshSyntax(IRError):
    """The text form of a mesh that cannot be read."""

    code = "MW3004"


class UnknownAxis(IRError):
    """A placement, strategy or group that names an axis which its mesh does not have."""

    code = "MW3005"


class IndivisibleExtent(IRError):
    """A dimension that a layout cannot cut into equal parts."""

    code = "MW3006"


class SectionsMismatch(IRError):
    """Section or part sizes that do not add up to the dimension."""

    code = "MW3007"


class UnevenMismatch(IRError):
    """An uneven layout with more or fewer sizes than its mesh axis has ranks."""

    code = "MW3008"


class BadLayoutSize(IRError):
    """A layout with an empty or negative part."""

    code = "MW3009"


class AxisUsedTwice(IRError):
    """A placement that uses one mesh axis for two things."""

    code = "MW3010"


class UnknownReduction(IRError):
    """A partial value whose reduction is neither sum nor max."""

    code = "MW3011"


class PlacementRank(IRError):
    """A placement with more or fewer dimensions than its tensor."""

    code = "MW3012"


class PlacementSyntax(IRError):
    """The text form of a placement, state or layout that cannot be read."""

    code = "MW3013"


class UnknownDtype(IRError):
    """A dtype outside the table of the IR."""

    code = "MW3014"


class NegativeExtent(IRError):
    """A value with a dimension below zero."""

    code = "MW3015"


class BadAttribute(IRError):
    """An operator attribute that is missing or of the wrong type."""

    code = "MW3016"


class ValueRedefined(IRError):
    """A graph that defines one value twice."""

    code = "MW3017"


class UsedBeforeDefinition(IRError):
    """A graph that reads a value before, or without, defining it."""

    code = "MW3018"


class TypeMissing(IRError):
    """A value without shape and dtype."""

    code = "MW3019"


class TypeOrphaned(IRError):
    """A type for a value that nothing defines."""

    code = "MW3020"


class LossNotScalar(IRError):
    """A loss that is not a scalar output of the graph."""

    code = "MW3021"


class FactorRepeated(IRError):
    """A rule that declares a factor twice, or uses it twice in one tensor."""

    code = "MW3022"


class FactorUndeclared(IRError):
    """A rule, strategy or expansion that names a factor which the rule does not declare."""

    code = "MW3023"


class FactorDropped(IRError):
    """A rule whose parallel factor is missing from a result: splitting it would lose data."""

    code = "MW3024"


class RuleArity(IRError):
    """A rule whose laws, types or dims do not match its operands and results in number."""

    code = "MW3025"


class RuleRegistered(IRError):
    """A second rule for one kind of operator."""

    code = "MW3026"


class UnknownOp(IRError):
    """An operator kind without a rule."""

    code = "MW3027"


class NoExpansion(IRError):
    """A factor that is split through an expansion which nobody registered."""

    code = "MW3028"


class BadOperand(IRError):
    """Operands or attributes that an operator's rule cannot take."""

    code = "MW3029"


class IllegalStrategy(IRError):
    """A choice for a mesh axis that the operator's rule does not allow."""

    code = "MW3030"


class FoldBroken(IRError):
    """A fold whose wiring names a body, segment or output that does not exist."""

    code = "MW3032"


class FoldInstances(IRError):
    """A segment whose instance paths are not a whole number of periods, or repeat a path."""

    code = "MW3033"


class FoldPort(IRError):
    """A block input that receives a value of another type than its body expects."""

    code = "MW3034"


class NoReshard(IRError):
    """Two placements between which the allowed collectives make no path."""

    code = "MW3060"


class GraphSyntax(IRError):
    """The text form of a graph or fold that cannot be read; the place is a line and a column."""

    code = "MW3035"


class ResultType(IRError):
    """An operator whose result has another shape or dtype than its rule derives from the operands."""

    code = "MW3036"


class ResultCount(IRError):
    """An operator with more or fewer results than its rule."""

    code = "MW3037"


class AttributeRepeated(IRError):
    """An operator that gives one attribute twice."""

    code = "MW3038"


class OpaqueUnnamed(IRError):
    """An opaque operator that does not say, in the attribute ``target``, what it stands for."""

    code = "MW3039"


class AliasUnknown(IRError):
    """An operator that shares the storage of an operand which it does not have."""

    code = "MW3040"


class AliasIllegal(IRError):
    """An operator that shares the storage of an operand although it computes new elements."""

    code = "MW3041"


class IndexDifferentiated(IRError):
    """An operator that reads as an index what a gradient should flow through."""

    code = "MW3042"


class GradientOfIntegers(IRError):
    """An input or parameter that asks for a gradient although its dtype has none."""

    code = "MW3043"


class BufferTrained(IRError):
    """A buffer that asks for a gradient: what is trained is a parameter."""

    code = "MW3044"


class LossDetached(IRError):
    """A loss that depends on no trained parameter although the graph has some."""

    code = "MW3045"


class UpdateUnknown(IRError):
    """An update of a buffer that the graph does not have."""

    code = "MW3046"


class UpdateRepeated(IRError):
    """A buffer that is updated twice: only one of the values could be its next one."""

    code = "MW3047"


class UpdateType(IRError):
    """An update of another shape or dtype than its buffer."""

    code = "MW3048"


class UpdateReduction(IRError):
    """An update whose shards are combined in an unknown way."""

    code = "MW3049"


class ParamPaths(IRError):
    """A parameter without a path, or a path that names two parameters."""

    code = "MW3050"


class LabelsRank(IRError):
    """An input with more or fewer labels than dimensions."""

    code = "MW3051"


class RuleBook(IRError):
    """A rule whose work, saved tensors or pairs name factors or tensors that it does not have."""

    code = "MW3052"


class ExpansionMismatch(IRError):
    """An expansion whose graph has other inputs or outputs than the operator that it replaces."""

    code = "MW3053"


class FoldGlue(IRError):
    """Glue that is repeated, has a period, or has a module path: glue is one body, once."""

    code = "MW3054"


class FoldTie(IRError):
    """One parameter path that stands for different parameters in different blocks."""

    code = "MW3055"


class FoldGradient(IRError):
    """A block input that takes a value with a gradient and hands no gradient back."""

    code = "MW3056"


class FoldLoss(IRError):
    """The loss of a fold that names no output."""

    code = "MW3057"


class UnknownStyle(IRError):
    """An execution style that is none of eager, fused, compiled, xla, or attention that is neither flash nor math."""

    code = "MW3058"


class CannotRebatch(IRError):
    """A fold whose sizes at another batch do not follow from those at the batch it was captured at."""

    code = "MW3061"


# MW4: decisions and programs -----------------------------------------------------------------------------------------


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


class StorageConflict(ProgramError):
    """A stored placement that does not refine the compute placement of its parameter."""

    code = "MW4005"


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
    """A sequence that context or sequence parallelism does not divide."""

    code = "MW4075"
    exit_code = 2


class BatchIndivisible(ProgramError):
    """A batch that does not divide into micro-batches on every copy of the model."""

    code = "MW4076"
    exit_code = 2


class RuleUntrue(ProgramError):
    """A registered rule under which the split operator computes something else than the whole one."""

    code = "MW4060"
    exit_code = 7


class PlanUnknown(ProgramError):
    """A stage that uses a body plan which nobody defines."""

    code = "MW4006"


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


class SecondsImpossible(ProgramError):
    """Durations that do not fit the stages they are for, or are negative or not finite."""

    code = "MW4077"


class OffloadImpossible(ProgramError):
    """Something that cannot wait in the host's memory: no such kind, more blocks than a stage has, a number without
    activations, the state of a parameter that is not trained."""

    code = "MW4078"
    exit_code = 2


# MW5: capabilities ---------------------------------------------------------------------------------------------------


class CapabilityError(MeshwrightError):
    """What was asked of a target that it does not declare."""

    family = "MW5"
    exit_code = 6


class CapabilityUnknown(CapabilityError):
    """A declared capability whose name means nothing to the IR."""

    code = "MW5008"


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


# MW6: clusters -------------------------------------------------------------------------------------------------------


class ClusterError(MeshwrightError):
    """Cluster descriptions."""

    family = "MW6"
    exit_code = 6


class ClusterSyntax(ClusterError):
    """CLUSTER is neither a shorthand such as ``2x8xH100``, nor ``cpu:N``, nor the path of a TOML file."""

    code = "MW6001"


class ClusterFileMissing(ClusterError):
    """CLUSTER, or the link matrix that it names, is a file that does not exist or cannot be read."""

    code = "MW6002"


class ClusterFileNotToml(ClusterError):
    """The cluster file is not valid TOML."""

    code = "MW6003"


class ClusterKeyUnknown(ClusterError):
    """The cluster file has a key that means nothing there. Nothing is ignored: a misspelt key would price another
    cluster.
    """

    code = "MW6004"


class ClusterKeyMissing(ClusterError):
    """The cluster file lacks a key that has no default."""

    code = "MW6005"


class ClusterValueBad(ClusterError):
    """A value of a cluster that is of the wrong type, not positive, or not among the words allowed."""

    code = "MW6006"


class DeviceUnknown(ClusterError):
    """A device that is not in the table, and that the cluster file does not describe."""

    code = "MW6007"


class DeviceIncomplete(ClusterError):
    """A device without a single peak: no computation on it could be priced."""

    code = "MW6008"


class PeakUnknown(ClusterError):
    """A dtype that the device has no matrix peak for."""

    code = "MW6009"


class LinkKindUnknown(ClusterError):
    """A kind of link without a known latency."""

    code = "MW6010"


class HostUnknown(ClusterError):
    """Work for the processors of a host whose memory bandwidth is not known."""

    code = "MW6020"


class NicsUnknown(ClusterError):
    """A pool of several hosts with nothing between them: it gives no NICs, and its device has no usual ones."""

    code = "MW6011"


class PoolRepeated(ClusterError):
    """A cluster with two pools, or two devices, of one name, or two links between the same pools."""

    code = "MW6012"


class LinkEndUnknown(ClusterError):
    """A link that names a pool which the cluster does not have, or that does not join two different ones."""

    code = "MW6013"


class PoolsDisconnected(ClusterError):
    """A cluster that falls into parts: no chain of links leads from one pool to another."""

    code = "MW6014"


class LinkMatrixSize(ClusterError):
    """A link matrix that is not square, or has neither one row per host nor one per device."""

    code = "MW6015"


class LinkMatrixValue(ClusterError):
    """A link matrix with an entry that is no positive rate, or whose two directions differ."""

    code = "MW6016"


class RankUnknown(ClusterError):
    """A rank that the cluster does not have, or a link between a rank and itself."""

    code = "MW6017"


class BadQuantity(ClusterError):
    """A number without a known unit, source, date or kind, or that is not positive and finite. A bug of ours, or of
    a profile.
    """

    code = "MW6018"


class AttentionUnknown(ClusterError):
    """A generation of attention kernels of which no efficiency is known on the device."""

    code = "MW6030"


class KernelMalformed(ClusterError):
    """A kernel to be priced whose sizes or work do not fit the part of the device it keeps busy. A bug of ours."""

    code = "MW6031"


class ClusterFaults(ClusterError):
    """Several things are wrong with one cluster description. All are listed, each with its own code, line and fix."""

    code = "MW6019"

    def __init__(self, faults: tuple[MeshwrightError, ...], *, place: str) -> None:
        """``faults``: the errors, in the order of the text."""
        super().__init__(place=place, cause=f"{len(faults)} faults", fix="correct them all; each is explained below")
        self.faults = faults

    def __str__(self) -> str:
        """Return every fault under one heading."""
        return "\n".join([f"error {self.code} at {self.place}: {self.cause}", *map(str, self.faults)])

    def __reduce__(self) -> tuple[Callable[..., MeshwrightError], tuple[object, ...]]:
        """Errors cross process boundaries, with all that they carry."""
        return _rebuild_faults, (self.faults, self.place)

    def to_json(self) -> dict[str, object]:
        """Return the error with its faults."""
        return super().to_json() | {"faults": [fault.to_json() for fault in self.faults]}


def _rebuild_faults(faults: tuple[MeshwrightError, ...], place: str) -> ClusterFaults:
    return ClusterFaults(faults, place=place)


# MW7: the search ------------------------------------------------------------------------------------------------------


class SearchError(MeshwrightError):
    """The search, and plans that are saved and read back."""

    family = "MW7"
    exit_code = 2


class ProblemMalformed(SearchError):
    """A block problem whose tables do not fit each other, or a solver's answer that is untrue: a bug of ours."""

    code = "MW7001"
    exit_code = 1


class ProblemTooLarge(SearchError):
    """A block problem beyond what a method takes on, which elimination says before it writes its tables."""

    code = "MW7002"
    exit_code = 1


class SolverFailed(SearchError):
    """The process of an integer-program solver ended before its time and said nothing of the problem."""

    code = "MW7003"
    exit_code = 8


class PlanUnreadable(SearchError):
    """A plan file that is missing, or cannot be read."""

    code = "MW7020"


class PlanNotJson(SearchError):
    """A plan file that is no JSON: cut short, or broken by hand. The place has the line and the column."""

    code = "MW7021"


class PlanOfAnotherRelease(SearchError):
    """A plan file in another format than this release reads."""

    code = "MW7022"


class PlanBroken(SearchError):
    """A plan file that is JSON and no plan: a key is missing, means nothing or has a value that it cannot have. The
    cause is the refusal of whoever read it."""

    code = "MW7023"


class PlanOfAnotherModel(SearchError):
    """A plan for another model than the one it is used with; the cause names what differs first."""

    code = "MW7024"


class PlanOfAnotherCluster(SearchError):
    """A plan for another number of devices than the cluster has."""

    code = "MW7025"


class PlanUnwritable(SearchError):
    """A plan cannot be written where it should: --out names a file, or a place that may not be written to."""

    code = "MW7026"
    exit_code = 8


class WishesContradict(SearchError):
    """What --fix, --allow and --forbid leave of a name is nothing."""

    code = "MW7040"


class NoPlanInTime(SearchError):
    """The time limit, or an interrupt, ended a search before any plan that fits was found."""

    code = "MW7041"


class ObjectiveUnknown(SearchError):
    """An objective that plans cannot be compared by."""

    code = "MW7042"


class PriceMissing(SearchError):
    """Plans are to be compared by cost, and the cluster has devices without a price."""

    code = "MW7043"


class SpaceEmpty(SearchError):
    """No configuration is as was asked for: what is pinned cannot be had together on this model, cluster and batch."""

    code = "MW7044"


class BlockUnsolvable(SearchError):
    """A block of which no plan is legal on a mesh: an operator that nothing fits, or boundaries that contradict one
    another."""

    code = "MW7010"
    exit_code = 3


class RanksMissing(SearchError):
    """Fewer ranks, or more, than a plan has places for, where it is to be put on others."""

    code = "MW7060"


# MW8: the command line -----------------------------------------------------------------------------------------------


class UsageError(MeshwrightError):
    """Arguments that are well formed and mean nothing."""

    family = "MW8"
    exit_code = 2


class UnknownStep(UsageError):
    """A step of the data path that --dump-after does not know."""

    code = "MW8001"


class WorkloadImpossible(UsageError):
    """A workload of no work, or with an unknown precision, optimizer or stack."""

    code = "MW8002"


class WorkloadMissing(UsageError):
    """A part of the workload that has no default: how many sequences a step takes, or how long they are; or
    all of it, in a program to be priced."""

    code = "MW8003"


class PinUnknown(UsageError):
    """--fix, or a line of --configs, names something that cannot be pinned."""

    code = "MW8004"


class PinValue(UsageError):
    """A pin without a value, or with one that it cannot have."""

    code = "MW8005"


class PinRepeated(UsageError):
    """One pin given twice."""

    code = "MW8006"


class PinsContradict(UsageError):
    """Pins that are well formed, each by itself, and cannot hold together."""

    code = "MW8007"


class ConfigsUnreadable(UsageError):
    """The file of --configs is missing, cannot be read, or holds no configuration."""

    code = "MW8008"


class ConfigLineBad(UsageError):
    """A line of --configs that is no JSON object. The other lines are priced all the same."""

    code = "MW8009"


class BadGroup(ClusterError):
    """A group of ranks that cannot be: a mesh of another size than its ranks, a level of one part, a rate of zero. A
    bug of ours, or of who calls the price of a collective."""

    code = "MW6032"


class CollectiveUnknown(ClusterError):
    """A collective, or a library of collectives, that has no price; or fewer than zero bytes."""

    code = "MW6033"


# MW9: the environment, and ourselves ---------------------------------------------------------------------------------


class EnvironmentFault(MeshwrightError):
    """The machine and the installation, and faults of Meshwright itself."""

    family = "MW9"
    exit_code = 8


class DependencyMissing(EnvironmentFault):
    """A package that this input needs is not installed; optional ones come with extras, as in ``meshwright[hf]``."""

    code = "MW9001"


class PricingLost(EnvironmentFault):
    """A process that priced a configuration ended, or took longer than it may. The others are priced all the same."""

    code = "MW9003"


class InternalError(EnvironmentFault):
    """An exception that nobody foresaw: a bug in Meshwright."""

    code = "MW9002"
    exit_code = 1


# The catalogue -------------------------------------------------------------------------------------------------------


def catalogue() -> tuple[type[MeshwrightError], ...]:
    """Return every kind of error, by code."""
    return tuple(kind for _, kind in sorted(_BY_CODE.items()))


def render() -> str:
    """Return docs/errors.md."""
    lines = [
        "# Errors",
        "",
        "Generated by `python -m meshwright.ir.errors > docs/errors.md`; a test keeps it current.",
        "",
        "A refusal goes to standard error as `error CODE at PLACE: CAUSE` and a line with the fix; with `--json`, also",
        'to standard output as `{"error": {"code", "kind", "exit_code", "place", "cause", "fix"}}`. Codes are stable:',
        "none is ever given to another error. Usage errors of the command line itself exit with 2, an interrupt with",
        "130.",
    ]
    family = ""
    for kind in catalogue():
        if kind.family != family:
            family = kind.family
            owner = next(base for base in kind.__mro__ if "family" in base.__dict__)
            lines += ["", f"## {family}xxx", "", f"{inspect.getdoc(owner)}"]
        meaning = f"{inspect.getdoc(kind)} Exit code {kind.exit_code}.".replace("``", "`")
        lines += ["", f"### {kind.code} {kind.__name__}", "", meaning]
        if kind.hook:
            lines += ["", "Put this into the model file, and adapt it:", "", "```python", kind.hook.rstrip(), "```"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201
