"""What this machine is asked, in which order, and what becomes of tools that are missing or fail."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from meshwright.calibrate.detect import nvml
from meshwright.calibrate.detect.machine import Said, This, here, saved
from meshwright.calibrate.detect.pools import Found, found
from meshwright.ir.errors import MachineUndescribed, OutputBroken, ToolFailed
from tests.calibrate.detect.told import OUTPUTS, listed, text_of


@dataclass
class Told:
    """A machine that says what it is told to; tools by their first words."""

    tools: dict[str, Said] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    library: str | None = None
    name: str = "n1.lab"

    def run(self, *words: str) -> Said | None:
        line = " ".join(words)
        return next((said for start, said in self.tools.items() if line.startswith(start)), None)

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def paths(self, pattern: str) -> list[str]:
        return sorted(path for path in self.files if fnmatch(path, pattern))

    def nvml(self) -> str | None:
        return self.library


def dgx() -> Told:
    return Told(
        tools={
            "nvidia-smi --query-gpu": Said(text_of("dgx_h100/gpus.csv"), 0),
            "nvidia-smi topo": Said(text_of("dgx_h100/topo.txt"), 0),
            "ibstat": Said(text_of("dgx_h100/ibstat.txt"), 0),
            "lscpu": Said(text_of("dgx_h100/lscpu.txt"), 0),
        }
    )


def cluster(machine: Told, hostfile: str | None = None) -> Found:
    return found(here(machine, hostfile))


def test_a_machine_whose_tools_are_all_there() -> None:
    (pool,) = cluster(dgx()).pools
    assert (pool.host.gpu, pool.host.count.value, pool.hosts.value) == ("H100-80G", 8, 1)
    assert pool.host.nics is not None
    assert (pool.host.nics.gbps.value, pool.host.nics.count.value) == (400, 8)


def test_this_machine_is_what_its_saved_outputs_are() -> None:
    files = saved((str(OUTPUTS / "dgx_h100"),))
    assert [pool.host for pool in found(files).pools] == [pool.host for pool in cluster(dgx()).pools]


def test_a_machine_without_gpus_is_its_processors() -> None:
    machine = Told(tools={"lscpu": Said(text_of("dgx_h100/lscpu.txt"), 0)})
    for tools in ({}, {"nvidia-smi": Said("No devices were found\n", 6)}):
        machine.tools |= tools
        one = cluster(machine)
        assert (one.pools[0].name, one.pools[0].host.count.value) == ("cpu", 112)
        assert "as in cpu:N" in one.remarks[0]


def test_processors_without_lscpu() -> None:
    machine = Told(files={"/proc/cpuinfo": "processor\t: 0\nmodel name\t: A\n\nprocessor\t: 1\nmodel name\t: A\n"})
    assert cluster(machine).pools[0].host.count.value == 2


def test_a_machine_that_says_nothing_is_refused() -> None:
    with pytest.raises(MachineUndescribed):
        cluster(Told())


def test_a_driver_that_fails_is_not_a_machine_without_gpus() -> None:
    machine = dgx()
    machine.tools["nvidia-smi --query-gpu"] = Said("Failed to initialize NVML: Driver/library version mismatch\n", 18)
    with pytest.raises(ToolFailed) as refused:
        here(machine)
    assert "version mismatch" in refused.value.cause
    assert "ended with 18" in refused.value.cause


def test_a_driver_that_lacks_a_column_lists_its_gpus() -> None:
    machine = dgx()
    machine.tools["nvidia-smi --query-gpu"] = Said('Field "mig.mode.current" is not a valid field to query.\n', 2)
    machine.tools["nvidia-smi -L"] = Said(listed("NVIDIA H100 80GB HBM3", 8), 0)
    assert cluster(machine).pools[0].host.count.by == "nvidia-smi -L"


def test_without_a_drawing_links_are_those_of_the_datasheet() -> None:
    machine = dgx()
    del machine.tools["nvidia-smi topo"]
    one = cluster(machine)
    assert "topo -m said nothing" in one.remarks[0]
    assert one.pools[0].host.own == ()


def test_the_file_that_nccl_wrote_is_read() -> None:
    machine = dgx()
    del machine.tools["nvidia-smi topo"], machine.tools["ibstat"]
    machine.environment = {"NCCL_TOPO_DUMP_FILE": "/run/system.xml"}
    machine.files = {"/run/system.xml": text_of("dgx_h100/system.xml")}
    (pool,) = cluster(machine).pools
    assert pool.host.nics is not None
    assert (pool.host.nics.count.value, pool.host.nics.count.by) == (8, "NCCL's topology")


def test_adapters_of_sys_where_ibstat_is_missing() -> None:
    machine = dgx()
    del machine.tools["ibstat"]
    ports = {"rate": "200 Gb/sec (4X HDR)\n", "state": "4: ACTIVE\n", "link_layer": "InfiniBand\n"}
    machine.files = {f"/sys/class/infiniband/mlx5_0/ports/1/{name}": text for name, text in ports.items()}
    machine.files["/sys/class/net/eth0/speed"] = "1000\n"
    (pool,) = cluster(machine).pools
    assert pool.host.nics is not None
    assert (pool.host.nics.kind, pool.host.nics.gbps.value, pool.host.nics.count.value) == ("infiniband", 200, 1)


def test_hosts_of_the_job_or_of_a_hostfile(tmp_path: Path) -> None:
    machine = dgx()
    machine.environment = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_NNODES": "3", "HOME": "/root"}
    assert cluster(machine).pools[0].names == ("n1", "n2", "n3")
    assert cluster(machine).remarks == ()
    (tmp_path / "hosts").write_text("a\nb\n")
    other = cluster(machine, str(tmp_path / "hosts"))
    assert other.pools[0].names == ("a", "b")
    assert (
        other.remarks[0] == "the hostfile does not list this machine, n1.lab, which its hosts are declared to be like"
    )
    machine.environment = {"SLURM_CONF": "/etc/slurm.conf"}
    assert cluster(machine).pools[0].hosts.value == 1


def test_nvml_where_nvidia_smi_is_missing() -> None:
    machine = Told(library=nvml.listed(Library(2)))
    (pool,) = cluster(machine).pools
    assert (pool.host.gpu, pool.host.count.value, pool.host.count.by) == ("L40S", 2, "NVML")
    assert dict(pool.host.own)["host_gb_per_s"].value == 15.75


@dataclass
class Library:
    """NVML with L40S, of which it does not know the memory."""

    count: int
    driver: int = 0

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return self.driver

    def nvmlShutdown(self) -> int:  # noqa: N802
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = self.count
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, handle: Any) -> int:  # noqa: N802
        handle._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetName(self, handle: Any, name: Any, size: ctypes.c_uint) -> int:  # noqa: N802
        name.value = b"NVIDIA L40S"
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:  # noqa: N802
        return 3

    def nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:  # noqa: N802
        return 3

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any, found: Any) -> int:  # noqa: N802
        found._obj.value = 4
        return 0

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: Any, found: Any) -> int:  # noqa: N802
        found._obj.value = 8
        return 0


def test_nvml_without_a_driver_or_a_gpu_lists_none() -> None:
    assert nvml.listed(Library(0)) is None
    assert nvml.listed(Library(1, driver=9)) is None


def test_saved_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputBroken, match="cannot be read: no such file"):
        saved((str(tmp_path / "none.txt"),))
    (tmp_path / "empty").mkdir()
    with pytest.raises(MachineUndescribed, match="no file in it"):
        saved((str(tmp_path / "empty"),))


def test_folders_of_one_name_are_two_hosts(tmp_path: Path) -> None:
    for rack in ("a", "b"):
        (tmp_path / rack / "n1").mkdir(parents=True)
        (tmp_path / rack / "n1" / "gpus.txt").write_text(listed("NVIDIA L40S", 1))
    names = [name for name, _ in saved((str(tmp_path / "a" / "n1"), str(tmp_path / "b" / "n1"))).hosts]
    assert names == ["n1", str(tmp_path / "b" / "n1")]


def test_this_machine_runs_tools_and_reads_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho $LC_ALL $1; exit 3\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    machine = This()
    assert machine.run("tool", "x") == Said("C x\n", 3)
    assert machine.run("no-such-tool-here") is None
    assert machine.read(str(tool)) == tool.read_text()
    assert machine.read(str(tmp_path / "none")) is None
    assert machine.paths(f"{tmp_path}/*") == [str(tool)]
