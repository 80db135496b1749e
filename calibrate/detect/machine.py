"""The only room of detection that runs commands and opens files: this machine, or outputs that were saved.

`here` asks this machine, through a `Machine`, which tests replace. A tool that is missing is not asked; GPUs come
from `nvidia-smi`, else from NVML. Where `nvidia-smi` is there and fails, nothing is described: a host whose driver
has failed would pass for one without GPUs. `saved` reads files: those in a folder are of the host that it is named
after.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from meshwright.calibrate.detect import nvml
from meshwright.calibrate.detect.outputs import adapters, processors, smi, topo
from meshwright.calibrate.detect.outputs.names import Declared
from meshwright.calibrate.detect.outputs.sources import Gathered, Source, gathered, recognised
from meshwright.ir.errors import MachineUndescribed, OutputBroken, ToolFailed
from meshwright.ir.files.near import did_you_mean
from meshwright.ir.files.reading import Unreadable, read_text
from meshwright.ir.limits import FILE_BYTES

LONGEST_S = 60
"""Seconds after which a tool is ended: `nvidia-smi` takes some where the driver starts with it."""

NO_GPUS = "No devices were found"
UNASKABLE = "is not a valid field to query"
"""What `nvidia-smi` says where there is no GPU, and where a driver is too old for a column."""

VERBS = "/sys/class/infiniband/*/ports/*/"
NET = "/sys/class/net/*/"
NCCL_FILES = ("NCCL_TOPO_FILE", "NCCL_TOPO_DUMP_FILE")


@dataclass(frozen=True, slots=True)
class Said:
    """What a tool printed, and its exit code."""

    text: str
    code: int


class Machine(Protocol):
    """What is asked of a machine."""

    @property
    def name(self) -> str: ...

    @property
    def environment(self) -> Mapping[str, str]: ...

    def run(self, *words: str) -> Said | None:
        """Run a tool; None where it is missing."""

    def read(self, path: str) -> str | None:
        """The text of a file; None where there is none, or it says nothing."""

    def paths(self, pattern: str) -> list[str]:
        """The files of a pattern, in order."""

    def nvml(self) -> str | None:
        """What NVML lists."""


class This:
    """This machine."""

    @property
    def name(self) -> str:
        return platform.node()

    @property
    def environment(self) -> Mapping[str, str]:
        return os.environ

    def run(self, *words: str) -> Said | None:
        if shutil.which(words[0]) is None:
            return None
        try:
            done = subprocess.run(
                words,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=LONGEST_S,
                check=False,
                env={**os.environ, "LC_ALL": "C"},
            )
        except subprocess.TimeoutExpired:
            return Said(f"it did not end within {LONGEST_S} s", 124)
        except OSError as error:
            return Said((error.strerror or "it cannot be run").lower(), 126)
        return Said(done.stdout or done.stderr, done.returncode)

    def read(self, path: str) -> str | None:
        try:
            return read_text(path, FILE_BYTES, errors="replace")
        except Unreadable:
            return None

    def paths(self, pattern: str) -> list[str]:
        return sorted(map(str, Path("/").glob(pattern.lstrip("/"))))

    def nvml(self) -> str | None:
        library = nvml.library()
        return nvml.listed(library) if library is not None else None


def here(machine: Machine, hostfile: str | None = None) -> Gathered:
    """All that this machine says of itself."""
    gpus = _gpus(machine)
    remarks: list[str] = []
    sources = [*([gpus] if gpus else ()), *_adapters(machine), *_processors(machine)]
    if gpus:
        sources += [*_topo(machine, remarks), *_nccl(machine)]
    else:
        remarks.append("no GPU was found: ranks are cores of the processors, as in cpu:N")
    shared = [recognised(_file(hostfile), hostfile)] if hostfile else []
    slurm = "\n".join(
        f"{key}={value}" for key, value in sorted(machine.environment.items()) if key.startswith("SLURM_")
    )
    # An allocation is told by its nodes: a login node has SLURM_CONF and the like.
    if "SLURM_JOB_ID=" in slurm or "NODELIST=" in slurm:
        shared.append(recognised(slurm, "the environment"))
    remarks += [_elsewhere(one, machine.name) for one in shared if not _lists(one, machine.name)]
    return Gathered(hosts=(("", tuple(sources)),), shared=tuple(shared), remarks=tuple(remarks))


def _lists(source: Source, name: str) -> bool:
    """Whether a list has a host, with its domain or without; one without names may have any."""
    assert isinstance(source.facts, Declared), "lists are what is shared"
    short = {one.partition(".")[0] for one in source.facts.names}
    return not short or name.partition(".")[0] in short


def _elsewhere(source: Source, name: str) -> str:
    return f"{source.by} does not list this machine, {name}, which its hosts are declared to be like"


def _gpus(machine: Machine) -> Source | None:
    said = machine.run("nvidia-smi", f"--query-gpu={','.join(smi.QUERY)}", "--format=csv")
    if said is not None and UNASKABLE in said.text:
        said = machine.run("nvidia-smi", "-L")
    if said is None:
        text = machine.nvml()
        return Source(place="NVML", by="NVML", facts=smi.read_query(text, "NVML")) if text else None
    if NO_GPUS in said.text:
        return None
    if said.code != 0:
        raise ToolFailed(
            place="nvidia-smi",
            cause=f"it ended with {said.code}: {said.text.strip()[:200]}",
            fix="mend the driver; or save outputs of another host like this, and give them to `plan cluster import`",
        )
    return recognised(said.text, "nvidia-smi")


def _topo(machine: Machine, remarks: list[str]) -> Iterator[Source]:
    said = machine.run("nvidia-smi", "topo", "-m")
    if said is not None and said.code == 0 and topo.is_topo(said.text):
        yield recognised(said.text, "nvidia-smi topo -m")
    else:
        remarks.append("nvidia-smi topo -m said nothing: NVLinks are taken to be those of the datasheet")


def _nccl(machine: Machine) -> Iterator[Source]:
    for variable in NCCL_FILES:
        path = machine.environment.get(variable)
        text = machine.read(path) if path else None
        if path and text:
            yield recognised(text, path)
            return


def _adapters(machine: Machine) -> Iterator[Source]:
    said = machine.run("ibstat")
    if said is not None and said.code == 0 and adapters.is_ibstat(said.text):
        yield recognised(said.text, "ibstat")
    elif text := _listing(machine, VERBS, ("rate", "state", "link_layer")):
        yield recognised(text, adapters.BY_VERBS)
    if text := _listing(machine, NET, ("speed", "operstate")):
        yield recognised(text, adapters.BY_NET)


def _listing(machine: Machine, folders: str, names: tuple[str, ...]) -> str:
    """Files with one line each, as `grep . PATHS` prints them."""
    paths = sorted(path for name in names for path in machine.paths(f"{folders}{name}"))
    return "".join(f"{path}:{text.strip()}\n" for path in paths if (text := machine.read(path)))


def _processors(machine: Machine) -> Iterator[Source]:
    said = machine.run("lscpu")
    if said is not None and said.code == 0 and processors.is_lscpu(said.text):
        yield recognised(said.text, "lscpu")
    elif text := machine.read(processors.BY_CPUINFO):
        yield recognised(text, processors.BY_CPUINFO)


def saved(paths: tuple[str, ...]) -> Gathered:
    """Outputs in files."""
    return gathered(_texts(paths))


def _texts(paths: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    taken: set[str] = set()
    for text in paths:
        path = Path(text)
        if not os.path.isdir(path):  # noqa: PTH112 - Path raises where a name is too long
            yield "", text, _file(text)
            continue
        name = path.resolve().name
        host = str(path) if name in taken else name
        taken.add(host)
        files = sorted(one for one in path.iterdir() if not one.name.startswith(".") and one.is_file())
        if not files:
            raise MachineUndescribed(place=text, cause="there is no file in it", fix="put the outputs of a host there")
        for file in files:
            yield host, str(file), _file(str(file))


def _file(path: str) -> str:
    try:
        return read_text(path, FILE_BYTES, errors="replace")
    except Unreadable as error:
        raise OutputBroken(
            place=path,
            cause=f"it cannot be read: {error.cause}",
            fix=did_you_mean(path) + "give the path of a saved output",
        ) from None
