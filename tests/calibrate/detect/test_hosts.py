"""A host from all its outputs: its device, in what that differs from the table, its adapters, and contradictions."""

from __future__ import annotations

import pytest

from meshwright.calibrate.detect.gpus import LANE_GB_PER_S, device_of
from meshwright.calibrate.detect.told import Host
from meshwright.cost_models.hardware.devices import devices
from meshwright.ir.errors import DeviceUnknown, GpusDiffer, MachineUndescribed, OutputsContradict
from tests.calibrate.detect.told import drawn, host, listed, queried, text_of

H100, L40S = "NVIDIA H100 80GB HBM3", "NVIDIA L40S"


def own(found: Host) -> dict[str, float]:
    return {key: told.value for key, told in found.own}


def nics(found: Host) -> tuple[str, float, float] | None:
    return (found.nics.kind, found.nics.gbps.value, found.nics.count.value) if found.nics else None


@pytest.mark.parametrize(
    ("name", "device"),
    [
        (H100, "H100-80G"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA A100-SXM4-40GB", "A100-40G"),
        ("NVIDIA A100-SXM4-80GB", "A100-80G"),
        ("NVIDIA A800-SXM4-80GB", "A800-80G"),
        ("NVIDIA GH200 480GB", "GH200-96G"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("Tesla V100-SXM2-16GB", "V100-16G"),
        ("Tesla V100-PCIE-16GB", "V100-PCIe-16G"),
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA TITAN RTX", "Titan-RTX"),
    ],
)
def test_a_drivers_name_is_that_of_a_device(name: str, device: str) -> None:
    assert host(listed(name, 1)).gpu == device


def test_a_whole_host_is_as_its_datasheet_says() -> None:
    names = ("gpus.csv", "topo.txt", "ibstat.txt", "system.xml", "lscpu.txt")
    found = host(*(text_of(f"dgx_h100/{name}") for name in names))
    assert (found.gpu, found.count.value, own(found)) == ("H100-80G", 8, {})
    assert nics(found) == ("infiniband", 400, 8)
    assert found.remarks == ("left out (no PCIe switch in common with a GPU): mlx5_1, mlx5_6",)


def test_other_hosts_are_as_their_datasheets_say() -> None:
    a100 = host(*(text_of(f"dgx_a100/{name}.txt") for name in ("gpus", "topo", "ibstat")))
    assert (a100.gpu, own(a100), nics(a100)) == ("A100-80G", {}, ("infiniband", 200, 8))
    v100 = host(text_of("dgx_1v/gpus.csv"), text_of("dgx_1v/topo.txt"))
    assert (v100.gpu, own(v100), nics(v100)) == ("V100-32G", {}, ("infiniband", 100, 4))
    assert v100.nics is not None
    assert (v100.nics.gbps.known, v100.nics.count.known) == ("datasheet", "measured")
    cloud = host(*(text_of(f"cloud_l40s/{name}") for name in ("gpus.csv", "topo.txt", "ethtool.txt")))
    assert (cloud.gpu, own(cloud), nics(cloud)) == ("L40S", {}, ("ethernet", 100, 1))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (("X\tNV18", "NV18\tX"), {}),
        (("X\tSYS", "SYS\tX"), {"island_size": 1}),
        (("X\tNV6", "NV6\tX"), {"island_gb_per_s": 150}),
        (
            ("X\tNV18\tSYS\tSYS", "NV18\tX\tSYS\tSYS", "SYS\tSYS\tX\tNV18", "SYS\tSYS\tNV18\tX"),
            {"island_size": 2},
        ),
    ],
)
def test_nvlinks_beside_those_of_the_datasheet(rows: tuple[str, ...], expected: dict[str, float]) -> None:
    """An H100 has 18 of 25 GB/s each way."""
    assert own(host(listed(H100, len(rows)), drawn(*rows))) == expected


def test_islands_of_unequal_sizes_or_out_of_order_are_told() -> None:
    unequal = host(listed(H100, 3), drawn("X\tNV18\tSYS", "NV18\tX\tSYS", "SYS\tSYS\tX"))
    assert own(unequal) == {"island_size": 1}
    assert unequal.remarks == ("NVLinks join 1 and 2 GPUs; all are described as joined by 1",)
    crossed = host(
        listed(H100, 4),
        drawn("X\tSYS\tNV18\tSYS", "SYS\tX\tSYS\tNV18", "NV18\tSYS\tX\tSYS", "SYS\tNV18\tSYS\tX"),
    )
    assert own(crossed) == {"island_size": 2}
    assert "CUDA_VISIBLE_DEVICES=0,2,1,3" in crossed.remarks[0]


def test_nvlinks_of_a_device_that_has_none_in_the_table_are_left_out() -> None:
    found = host(listed("NVIDIA GeForce RTX 3090", 2), drawn("X\tNV4", "NV4\tX"))
    assert own(found) == {}
    assert "left out" in found.remarks[0]


def test_a_narrow_host_link_is_measured() -> None:
    found = host(queried(L40S, 2, pcie__link__gen__max="4", pcie__link__width__max="8"))
    assert own(found) == {"host_gb_per_s": 15.75}
    assert found.own[0][1].by == "nvidia-smi --query-gpu, PCIe 4 x8"


def test_a_host_link_that_devices_share_is_divided() -> None:
    """Two A100 of the table stand behind one switch: 15.75 GB/s of generation 3 are 7.875 for each."""
    found = host(queried("NVIDIA A100-SXM4-80GB", 2, pcie__link__gen__max="3", pcie__link__width__max="16"))
    assert own(found) == {"host_gb_per_s": 7.875}


def test_host_links_of_the_table_are_those_of_their_generations() -> None:
    """What the table calls pcieN has N's rate at 16 lanes, so that a usual machine differs in nothing."""
    for one in devices():
        kind = one.host_link.kind
        if kind[:4] == "pcie" and kind[4:].isdigit() and int(kind[4:]) in LANE_GB_PER_S:
            assert one.host_link.bandwidth.value == pytest.approx(16e9 * LANE_GB_PER_S[int(kind[4:])], rel=0.01), (
                one.name
            )


def test_memory_beyond_the_tolerance_is_measured() -> None:
    assert own(host(queried(L40S, 1, memory__total="46068 MiB"))) == {}
    assert own(host(queried(L40S, 1, memory__total="23034 MiB"))) == {"memory_gb": 24.153}


def test_what_makes_a_gpu_less_is_told() -> None:
    text = queried(L40S, 1, mig__mode__current="Enabled", power__limit="250 W", power__default_limit="350 W")
    assert host(text).remarks == (
        "MIG divides GPU 0; whole GPUs are described",
        "power is held at 250 of 350 W; peaks are the datasheet's",
    )


IB = "CA '{name}'\n\tPort 1:\n\t\tState: Active\n\t\tRate: {rate}\n\t\tLink layer: {layer}\n"


APART = drawn(*("\t".join("X" if one == other else "SYS" for other in range(8)) for one in range(8)))
BOND = (("eth0", 25000), ("eth1", 25000), ("bond0", 50000))


def port(name: str, rate: float, layer: str = "InfiniBand") -> str:
    return IB.format(name=name, rate=rate, layer=layer)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([port("a", 400) + port("b", 400) + port("c", 200)], ("infiniband", 400, 2)),
        ([port("a", 100) + port("b", 400, "Ethernet")], ("infiniband", 100, 1)),
        ([port("a", 100, "Ethernet"), "Settings for eth0:\n\tSpeed: 400000Mb/s\n"], ("roce", 100, 1)),
        (["Settings for eth0:\n\tSpeed: 25000Mb/s\nSettings for eth1:\n\tSpeed: 1000Mb/s\n"], ("ethernet", 25, 1)),
        (
            ["".join(f"Settings for {name}:\n\tSpeed: {speed}Mb/s\n" for name, speed in BOND)],
            ("ethernet", 50, 1),
        ),
        (["Settings for docker0:\n\tSpeed: 10000Mb/s\n"], None),
    ],
)
def test_adapters_that_carry_a_jobs_traffic(texts: list[str], expected: tuple[str, float, float] | None) -> None:
    assert nics(host(listed(L40S, 2), *texts)) == expected


def test_adapters_of_nccl_are_of_the_usual_kind() -> None:
    found = host(text_of("dgx_h100/gpus.csv"), text_of("dgx_h100/system.xml"))
    assert nics(found) == ("infiniband", 400, 8)
    assert found.nics is not None
    assert (found.nics.kind_known, found.nics.gbps.known) == ("datasheet", "measured")


def test_sockets_of_nccl_are_ethernet() -> None:
    system = text_of("dgx_h100/system.xml").replace("mlx5_", "eth")
    assert nics(host(text_of("dgx_h100/gpus.csv"), system)) == ("ethernet", 400, 8)


def test_processors_are_ranks_where_there_is_no_gpu() -> None:
    found = host(text_of("dgx_h100/lscpu.txt"))
    assert (found.gpu, found.count.value, found.nics) == ("CPU", 112, None)
    assert found.called == "Intel(R) Xeon(R) Platinum 8480C, 2 sockets"


def test_an_unknown_gpu_is_refused_and_may_be_described_as_another() -> None:
    text = listed("NVIDIA A100 80GB PCIe", 2)
    with pytest.raises(DeviceUnknown) as refused:
        host(text)
    assert refused.value.place == "output 1"
    assert "'NVIDIA A100 80GB PCIe'" in refused.value.cause
    assert "--like" in refused.value.fix
    found = host(text, like="A100-80G")
    assert found.gpu == "A100-80G"
    assert "declared, --like" in found.remarks[0]
    with pytest.raises(DeviceUnknown, match="A101"):
        host(text, like="A101")


def test_like_changes_nothing_of_a_known_gpu() -> None:
    assert device_of(H100, "x", "T4")[0].name == "H100-80G"


@pytest.mark.parametrize(
    ("texts", "kind", "cause"),
    [
        ([listed(H100, 8), drawn("X\tNV18", "NV18\tX")], OutputsContradict, "2 GPUs, and output 1 has 8 GPUs"),
        (
            [listed(H100, 8), APART, text_of("dgx_h100/system.xml")],
            OutputsContradict,
            "join other GPUs in it than in output 2",
        ),
        ([listed(H100, 1), listed(H100, 2)], OutputsContradict, "other things than output 1"),
        ([listed(H100, 1), queried(L40S, 1, memory__total="1 MiB")], OutputsContradict, "NVIDIA L40S"),
        ([listed(H100, 1) + listed(L40S, 1)], GpusDiffer, "NVIDIA H100 80GB HBM3 and NVIDIA L40S"),
        ([drawn("X\tNV18", "NV18\tX")], MachineUndescribed, "nothing says which"),
        (["Settings for eth0:\n\tSpeed: 25000Mb/s\n"], MachineUndescribed, "no output that names GPUs"),
    ],
)
def test_outputs_that_cannot_be_of_one_host(texts: list[str], kind: type[Exception], cause: str) -> None:
    with pytest.raises(kind, match=cause):
        host(*texts)
