"""MW6: clusters."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.ir.errors.base import MeshwrightError


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


class HostUnknown(ClusterError):
    """Work for the processors of a host whose memory bandwidth is not known."""

    code = "MW6020"


class AttentionUnknown(ClusterError):
    """A generation of attention kernels of which no efficiency is known on the device."""

    code = "MW6030"


class KernelMalformed(ClusterError):
    """A kernel to be priced whose sizes or work do not fit the part of the device it keeps busy. A bug of ours."""

    code = "MW6031"


class BadGroup(ClusterError):
    """A group of ranks that cannot be: a mesh of another size than its ranks, a level of one part, a rate of zero. A
    bug of ours, or of who calls the price of a collective."""

    code = "MW6032"


class CollectiveUnknown(ClusterError):
    """A collective, or a library of collectives, that has no price; or fewer than zero bytes."""

    code = "MW6033"


class ProfileUnreadable(ClusterError):
    """--profile names a file that does not exist or cannot be read."""

    code = "MW6040"


class ProfileBroken(ClusterError):
    """A profile file that is no JSON, of another release, cut short, or that has a key or a value which is never
    written there."""

    code = "MW6041"


class ProfileElsewhere(ClusterError):
    """A profile of a device that the cluster does not have: its measurements would price nothing."""

    code = "MW6042"


class ProfilesUnlike(ClusterError):
    """Profiles that are to be joined are of several machines, or of other versions of their libraries."""

    code = "MW6043"


class OutputUnknown(ClusterError):
    """A file given to `plan cluster import` that is the output of no tool which it reads."""

    code = "MW6050"


class OutputBroken(ClusterError):
    """An output of a known tool that lacks what it always has, that cannot be opened, or that is the tool's own report
    of a failure."""

    code = "MW6051"


class OutputsContradict(ClusterError):
    """Two outputs of one machine, or of one job, that cannot both be true."""

    code = "MW6052"


class MachineUndescribed(ClusterError):
    """Outputs that do not say which devices a host has: neither GPUs with their names, nor processors."""

    code = "MW6053"


class GpusDiffer(ClusterError):
    """A host with GPUs of several kinds: the hosts of a pool have one kind of device."""

    code = "MW6054"


def _rebuild_faults(faults: tuple[MeshwrightError, ...], place: str) -> ClusterFaults:
    return ClusterFaults(faults, place=place)
