"""MW8: the command line."""

from meshwright.ir.errors.base import MeshwrightError


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


class ArgumentsMissing(UsageError):
    """An action of a verb that takes other arguments than are given."""

    code = "MW8010"


class AnnotatedMesh(UsageError):
    """A mesh of --annotated that cannot be read, or has more or fewer ranks than the cluster."""

    code = "MW8011"


class CodeUnknown(UsageError):
    """`plan errors` is asked for a code, or for the name of an error, that is none."""

    code = "MW8012"


class ChangeUnknown(UsageError):
    """A word of --what-if that names nothing which may be changed of a question, or is given twice."""

    code = "MW8013"


class ChangeImpossible(UsageError):
    """A change of --what-if that the cluster cannot have: it names a pool or a link that there is not, or a number that
    would change nothing there."""

    code = "MW8014"


class ScaleImpossible(UsageError):
    """Sizes of --scale that cannot be read, or that the cluster cannot be scaled to: devices that are no whole hosts,
    unlike pools, rates of a link matrix."""

    code = "MW8015"
