"""One host, as its outputs describe it together.

In: the `Source`s of a host. Out: a `Host`: which device it has, how many, in what its devices differ from those of
the table (`gpus`), and its adapters (`nics`). Two outputs that cannot both be true are refused; what a cluster file
cannot say becomes a remark.
"""

from __future__ import annotations

from typing import TypeVar

from meshwright.calibrate.detect.gpus import device_of, differences, of_state
from meshwright.calibrate.detect.nics import nics_of, wirings_of
from meshwright.calibrate.detect.outputs.nccl import System
from meshwright.calibrate.detect.outputs.processors import Processors
from meshwright.calibrate.detect.outputs.smi import Gpus
from meshwright.calibrate.detect.outputs.sources import Source
from meshwright.calibrate.detect.outputs.topo import Wiring
from meshwright.calibrate.detect.told import Host, Told
from meshwright.ir.errors import GpusDiffer, MachineUndescribed, OutputsContradict
from meshwright.ir.target.capabilities import PROCESSOR

T = TypeVar("T")


def host_of(sources: tuple[Source, ...], where: str, like: str | None = None) -> Host:
    """The host of these outputs; `like`: the device that GPUs are described as where the table lacks theirs."""
    gpus, processors = _one(sources, Gpus), _one(sources, Processors)
    _one(sources, System)
    _one(sources, Wiring)
    if gpus is not None:
        return _of_gpus(*gpus, sources, like)
    if wirings_of(sources):
        raise MachineUndescribed(
            place=where,
            cause="there are GPUs, and nothing says which",
            fix="add the output of `nvidia-smi -L`, or of `nvidia-smi --query-gpu=name,memory.total --format=csv`",
        )
    if processors is None:
        raise MachineUndescribed(
            place=where,
            cause="there is no output that names GPUs or processors",
            fix="add the output of `nvidia-smi -L`, or of `lscpu` where there are no GPUs",
        )
    return _of_processors(*processors, sources)


def _one(sources: tuple[Source, ...], kind: type[T]) -> tuple[T, Source] | None:
    """The facts of one kind; several outputs of one tool must agree, and the first tool has the word."""
    found = [(one.facts, one) for one in sources if isinstance(one.facts, kind)]
    if not found:
        return None
    first, source = found[0]
    for facts, other in found[1:]:
        if other.by == source.by and facts != first:
            raise OutputsContradict(
                place=other.place,
                cause=f"it says other things than {source.place}, which is of the same host",
                fix="give one of both, or put each host's outputs into a folder of its own",
            )
    return first, source


def _of_processors(found: Processors, source: Source, sources: tuple[Source, ...]) -> Host:
    nics, remarks = nics_of(sources, None)
    sockets = f", {found.sockets} socket{'s' if found.sockets > 1 else ''}" if found.sockets else ""
    return Host(
        gpu=PROCESSOR,
        called=f"{found.name or 'processors'}{sockets}",
        count=Told(found.cores, "measured", f"{source.by}, one rank for each core"),
        nics=nics,
        remarks=remarks,
    )


def _of_gpus(found: Gpus, source: Source, sources: tuple[Source, ...], like: str | None) -> Host:
    names = list(dict.fromkeys(gpu.name for gpu in found.gpus))
    if len(names) != 1:
        raise GpusDiffer(
            place=source.place,
            cause=f"the host has {' and '.join(names) or 'no GPU'}",
            fix="save outputs that show one kind alone (`nvidia-smi -i 0,1,…`), each in a folder of its own",
        )
    _check_counts(len(found.gpus), source, sources)
    _check_names(names, source, sources)
    _check_islands(sources)
    base, of_name = device_of(names[0], source.place, like)
    own, of_wiring = differences(found.gpus, base, source, sources)
    nics, of_nics = nics_of(sources, base.nic)
    return Host(
        gpu=base.name,
        called=names[0],
        count=Told(len(found.gpus), "measured", source.by),
        own=own,
        nics=nics,
        remarks=(*of_name, *of_state(found.gpus), *of_wiring, *of_nics),
    )


def _check_counts(count: int, source: Source, sources: tuple[Source, ...]) -> None:
    """Check that all outputs see the same number of GPUs."""
    counts = [(len(one.facts.gpus), one) for one in sources if isinstance(one.facts, Gpus)]
    counts += [(wiring.gpus, one) for wiring, one in wirings_of(sources)]
    for other, one in counts:
        if other != count:
            raise OutputsContradict(
                place=one.place,
                cause=f"it has {_gpus(other)}, and {source.place} has {_gpus(count)}",
                fix="take both from one host, with the same GPUs visible",
            )


def _check_names(names: list[str], source: Source, sources: tuple[Source, ...]) -> None:
    for one in sources:
        for gpu in one.facts.gpus if isinstance(one.facts, Gpus) else ():
            if gpu.name not in names:
                raise OutputsContradict(
                    place=one.place,
                    cause=f"it has {gpu.name}, and {source.place} has {names[0]}",
                    fix="take both from one host",
                )


def _check_islands(sources: tuple[Source, ...]) -> None:
    drawn = wirings_of(sources)
    for wiring, one in drawn[1:]:
        if wiring.islands != drawn[0][0].islands:
            raise OutputsContradict(
                place=one.place,
                cause=f"NVLinks join other GPUs in it than in {drawn[0][1].place}",
                fix="leave out the one that is of another machine, or was taken with NVLinks switched off",
            )


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"
