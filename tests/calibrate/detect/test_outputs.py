"""Each tool's output is told by its content, and read into the facts that it has; what is none of them is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.calibrate.detect.outputs.adapters import Adapter, Adapters
from meshwright.calibrate.detect.outputs.nccl import System
from meshwright.calibrate.detect.outputs.processors import Processors
from meshwright.calibrate.detect.outputs.smi import Gpu, Gpus
from meshwright.calibrate.detect.outputs.sources import SOURCES, recognised
from meshwright.calibrate.detect.outputs.topo import Links, Wiring
from meshwright.ir.errors import MeshwrightError, OutputBroken, OutputUnknown
from tests.calibrate.detect.told import OUTPUTS, drawn, listed, queried, text_of

FILES = sorted(str(path.relative_to(OUTPUTS)) for path in OUTPUTS.rglob("*") if path.is_file() and path.suffix != ".md")

VERBS = """/sys/class/infiniband/mlx5_0/ports/1/link_layer:InfiniBand
/sys/class/infiniband/mlx5_0/ports/1/rate:400 Gb/sec (4X NDR)
/sys/class/infiniband/mlx5_0/ports/1/state:4: ACTIVE
/sys/class/infiniband/mlx5_1/ports/1/link_layer:Ethernet
/sys/class/infiniband/mlx5_1/ports/1/rate:40 Gb/sec (4X QDR)
/sys/class/infiniband/mlx5_1/ports/1/state:1: DOWN
"""
NET = """/sys/class/net/eth0/operstate:up
/sys/class/net/eth0/speed:25000
/sys/class/net/eth1/operstate:down
/sys/class/net/eth1/speed:-1
"""
CPUINFO = "".join(
    f"processor\t: {thread}\nmodel name\t: Some CPU\nphysical id\t: 0\ncore id\t\t: {thread // 2}\n\n"
    for thread in range(4)
)


def read(name: str) -> object:
    return recognised(text_of(name), name).facts


@pytest.mark.parametrize("name", FILES)
def test_one_parser_takes_an_output(name: str) -> None:
    assert [kind.by for kind in SOURCES if kind.told(text_of(name))] == [recognised(text_of(name), name).by]


def test_gpus_of_a_query() -> None:
    facts = read("dgx_h100/gpus.csv")
    gpu = Gpu(
        name="NVIDIA H100 80GB HBM3",
        memory_mib=81559,
        pcie_generation=5,
        pcie_width=16,
        power_w=700,
        default_power_w=700,
    )
    assert facts == Gpus((gpu,) * 8)


def test_numbers_that_the_tool_does_not_have_are_none() -> None:
    text = queried(
        "Tesla T4", 1, memory__total="[N/A]", pcie__link__gen__max="[Not Supported]", mig__mode__current="[N/A]"
    )
    assert recognised(text, "x").facts == Gpus((Gpu(name="Tesla T4"),))


def test_gpus_stand_in_the_order_of_their_numbers() -> None:
    text = "index, name, memory.total [MiB]\n1, B, 2 MiB\n0, A, 1 MiB\n"
    assert recognised(text, "x").facts == Gpus((Gpu(name="A", memory_mib=1), Gpu(name="B", memory_mib=2)))


def test_gpus_of_a_list_with_slices() -> None:
    text = listed("NVIDIA A100-SXM4-40GB", 2) + "  MIG 1g.5gb     Device  0: (UUID: MIG-1)\n"
    assert recognised(text, "x").facts == Gpus(
        (Gpu(name="NVIDIA A100-SXM4-40GB"), Gpu(name="NVIDIA A100-SXM4-40GB", sliced=True))
    )


def test_a_matrix_with_numbered_adapters() -> None:
    """NIC1 and NIC6 of the drawing are mlx5_1 and mlx5_6, which no GPU is beside."""
    facts = read("dgx_h100/topo.txt")
    assert isinstance(facts, Wiring)
    assert (facts.gpus, facts.islands) == (8, (tuple(range(8)),))
    assert facts.links == (Links(most=18, together=126),) * 8
    assert facts.links[0].of(18) == 18
    assert facts.adapters == tuple(f"mlx5_{index}" for index in range(10))
    assert sorted(set(facts.adapters) - facts.beside) == ["mlx5_1", "mlx5_6"]


def test_a_matrix_with_adapters_under_their_names() -> None:
    facts = read("dgx_a100/topo.txt")
    assert isinstance(facts, Wiring)
    assert sorted(set(facts.adapters) - facts.beside) == ["mlx5_4", "mlx5_5"]


def test_links_without_a_switch_add_up() -> None:
    """DGX-1: each V100 has six, to four of its seven neighbours."""
    facts = read("dgx_1v/topo.txt")
    assert isinstance(facts, Wiring)
    assert facts.islands == (tuple(range(8)),)
    assert facts.links == (Links(most=2, together=6),) * 8
    assert facts.links[0].of(6) == 6


@pytest.mark.parametrize("way", ["SYS", "SOC", "NODE", "PHB", "PXB", "PIX", "N/A"])
def test_ways_without_nvlinks_join_no_island(way: str) -> None:
    facts = recognised(drawn(f"X\t{way}", f"{way}\tX"), "x").facts
    assert isinstance(facts, Wiring)
    assert facts.islands == ((0,), (1,))


def test_bridges_join_pairs() -> None:
    text = drawn("X\tNV4\tSYS\tSYS", "NV4\tX\tSYS\tSYS", "SYS\tSYS\tX\tNV4", "SYS\tSYS\tNV4\tX")
    facts = recognised(text, "x").facts
    assert isinstance(facts, Wiring)
    assert facts.islands == ((0, 1), (2, 3))


def test_nccls_topology_agrees_with_the_drivers() -> None:
    system, drawing = read("dgx_h100/system.xml"), read("dgx_h100/topo.txt")
    assert isinstance(system, System)
    assert isinstance(drawing, Wiring)
    assert (system.wiring.gpus, system.wiring.islands) == (drawing.gpus, drawing.islands)
    assert system.wiring.beside == drawing.beside
    assert [links.of(18) for links in system.wiring.links] == [18] * 8
    assert system.pcie == ((5, 16),) * 8
    assert {adapter.gbps for adapter in system.adapters} == {200, 400}


def test_nvlinks_between_gpus_in_nccls_topology() -> None:
    gpus = "".join(
        f'<pci busid="0000:0{index}:00.0" link_speed="8.0 GT/s" link_width="16"><gpu dev="{index}" sm="70">'
        f'<nvlink target="0000:0{1 - index}:00.0" count="2" tclass="0x030200"/></gpu></pci>'
        for index in range(2)
    )
    facts = recognised(f'<system version="1"><cpu>{gpus}</cpu></system>', "x").facts
    assert isinstance(facts, System)
    assert facts.wiring.islands == ((0, 1),)
    assert facts.wiring.links == (Links(most=2, together=2),) * 2
    assert facts.pcie == ((3, 16), (3, 16))


def test_adapters_of_ibstat() -> None:
    facts = read("dgx_a100/ibstat.txt")
    assert isinstance(facts, Adapters)
    assert facts.adapters[0] == Adapter(name="mlx5_0", kind="infiniband", gbps=200, up=True)
    assert facts.adapters[5] == Adapter(name="mlx5_5", kind="roce", gbps=100, up=False)


def test_adapters_of_sys() -> None:
    assert recognised(VERBS, "x").facts == Adapters(
        (
            Adapter(name="mlx5_0", kind="infiniband", gbps=400, up=True),
            Adapter(name="mlx5_1", kind="roce", gbps=40, up=False),
        )
    )
    assert recognised(NET, "x").facts == Adapters(
        (
            Adapter(name="eth0", kind="ethernet", gbps=25, up=True),
            Adapter(name="eth1", kind="ethernet", gbps=None, up=False),
        )
    )


def test_interfaces_of_ethtool() -> None:
    facts = read("cloud_l40s/ethtool.txt")
    assert isinstance(facts, Adapters)
    assert [(one.name, one.gbps, one.up) for one in facts.adapters] == [
        ("ens5", 100, True),
        ("lo", None, True),
        ("docker0", None, False),
    ]


def test_threads_of_a_core_are_one() -> None:
    assert read("dgx_h100/lscpu.txt") == Processors(name="Intel(R) Xeon(R) Platinum 8480C", cores=112, sockets=2)
    assert recognised(CPUINFO, "x").facts == Processors(name="Some CPU", cores=2, sockets=1)


@pytest.mark.parametrize("text", ["", "\n", "hello, world!\n", "{}", "<html></html>", "[[pool]]\nname = 'a'\n"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(OutputUnknown) as refused:
        recognised(text, "some.txt")
    assert refused.value.place == "some.txt"
    assert "hostfile" in refused.value.fix


@pytest.mark.parametrize(
    ("text", "place", "cause"),
    [
        ("index, name, memory.total [MiB]\n0, A\n", "x:2", "2 values"),
        (queried("[Unknown Error]", 1, memory__total="1 MiB"), "x:2", "'[Unknown Error]'"),
        (drawn("X", "X\tX"), "x:2", "1 cells"),
        (drawn("X\tNV4", "SYS\tX"), "x", "one way only"),
        (drawn("X\tWIFI", "WIFI\tX"), "x:2", "'WIFI'"),
        (drawn("X\tNV4", "NV4\tX").replace("\nGPU1", "\nGPU9"), "x", "no row of GPU1"),
        ("<system version='1'><cpu></system>", "x", "no XML"),
        ("<system><gpu dev='first'/></system>", "x", "'first'"),
        ("<system>" + "<pci>" * 99 + "</pci>" * 99 + "</system>", "x", "levels of nesting"),
        ("<system><!DOCTYPE a></system>", "x", "a type of document"),
        ("CA 'a'\n\tPort 1:\n\t\tState: Active\n\t\tLink layer: Carrier pigeon\n", "x, a", "'Carrier pigeon'"),
        ("CPU(s): 0\n", "x", "counts no processors"),
    ],
)
def test_a_broken_output_is_refused_with_its_place(text: str, place: str, cause: str) -> None:
    with pytest.raises(OutputBroken) as refused:
        recognised(text, "x")
    assert refused.value.place == place
    assert cause in refused.value.cause


@given(name=st.sampled_from(FILES), data=st.data())
def test_a_mangled_output_is_read_or_refused(name: str, data: st.DataObject) -> None:
    """Whatever is cut out of an output or put into it, nothing but a refusal of ours comes of it."""
    text = text_of(name)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 40)))
    put = data.draw(st.sampled_from(["", "X", "\n", "-1", "[", "NV", "<", '"', ",", "9" * 400, "\0", "é"]))
    with suppress(MeshwrightError):
        recognised(text[:start] + put + text[end:], name)
