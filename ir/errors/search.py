"""MW7: the search."""

from meshwright.ir.errors.base import MeshwrightError


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


class BlockUnsolvable(SearchError):
    """A block of which no plan is legal on a mesh: an operator that nothing fits, or boundaries that contradict one
    another."""

    code = "MW7010"
    exit_code = 3


class NoPlanFits(SearchError):
    """A question in Python to which there is no plan that fits memory; the command line shows instead what would
    help, which the cause tells in short."""

    code = "MW7011"
    exit_code = 3


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
    """A plan, a page or a trace cannot be written where it should: --out names a file where a directory is meant, or
    the reverse, or a place that may not be written to."""

    code = "MW7026"
    exit_code = 8


class LogUnreadable(SearchError):
    """A log that is missing, that has no lines of an emitted script's steps, or that is of another plan."""

    code = "MW7027"


class BatchImpossible(SearchError):
    """A batch in a loop of one's own that the plan cannot share out among ranks and micro-batches."""

    code = "MW7028"


class OptimizerElsewhere(SearchError):
    """An optimizer in a loop of one's own whose state does not lie where the plan has it."""

    code = "MW7029"


class OutputTaken(SearchError):
    """What would be written over is not what the same command wrote before: a plan of another model, a file that was
    changed by hand, or one of something else."""

    code = "MW7030"
    exit_code = 8


class TraceUnreadable(SearchError):
    """A trace that is missing, that no profiler of torch or JAX has written, that has no marked steps, or that does not
    go together with the others that are given."""

    code = "MW7031"


class ConstraintsContradict(SearchError):
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


class ModulePinUnmatched(SearchError):
    """A pin by module pattern that meets nothing: no module or parameter has such a path, or none of those that have it
    has what the pin speaks of."""

    code = "MW7045"


class ModulePinUneven(SearchError):
    """A pin by module pattern that is for some of several blocks which are planned alike, and not for the others."""

    code = "MW7046"


class ModulePinUnmet(SearchError):
    """A plan that does not, or cannot, do what a pin by module pattern asks of an operator."""

    code = "MW7047"
    exit_code = 3


class PinUnmet(SearchError):
    """A plan that has not, or cannot have, what was asked of a name: the model, the cluster or other pins leave nothing
    of it."""

    code = "MW7048"


class RanksMissing(SearchError):
    """Fewer ranks, or more, than a plan has places for, where it is to be put on others."""

    code = "MW7060"
