"""MW3: the IR."""

from meshwright.ir.errors.base import MeshwrightError


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


class NoReshard(IRError):
    """Two placements between which the allowed collectives make no path."""

    code = "MW3060"


class CannotRebatch(IRError):
    """A fold whose sizes at another batch do not follow from those at the batch it was captured at."""

    code = "MW3061"
