"""MW9: the environment, and ourselves."""

from meshwright.ir.errors.base import MeshwrightError


class EnvironmentFault(MeshwrightError):
    """The machine and the installation, and faults of Meshwright itself."""

    family = "MW9"
    exit_code = 8


class DependencyMissing(EnvironmentFault):
    """A package that this input needs is not installed; optional ones come with extras, as in ``meshwright[hf]``."""

    code = "MW9001"


class InternalError(EnvironmentFault):
    """An exception that nobody foresaw: a bug in Meshwright."""

    code = "MW9002"
    exit_code = 1


class PricingLost(EnvironmentFault):
    """A process that priced a configuration ended, or took longer than it may. The others are priced all the same."""

    code = "MW9003"


class RanksFailed(EnvironmentFault):
    """A process of a verification ended early, or the verification took longer than it may. All others were ended."""

    code = "MW9004"


class VerificationTooLarge(EnvironmentFault):
    """A plan that cannot be run on one machine without its devices, or would take more memory there than it may."""

    code = "MW9005"


class HLOUnreadable(EnvironmentFault):
    """A compiled program whose collectives cannot be read: another version of XLA writes them otherwise, or a loop of
    unknown length holds some."""

    code = "MW9006"


class MachineBusy(EnvironmentFault):
    """A machine on which something else runs while it is to be measured: what was found would be of both together."""

    code = "MW9007"


class SamplesOfAnotherMachine(EnvironmentFault):
    """Samples of an interrupted calibration that were taken on another machine, with other software, or with another
    number of ranks or threads: nothing can be added to them."""

    code = "MW9008"


class MeasuringUnknown(EnvironmentFault):
    """A target that no measuring is written for."""

    code = "MW9009"


class DevicesMissing(EnvironmentFault):
    """A program that runs on as many devices as the plan has ranks, where there are fewer."""

    code = "MW9010"


class ToolFailed(EnvironmentFault):
    """A tool of this machine that is there and fails: what it would have listed is not taken to be missing."""

    code = "MW9011"
