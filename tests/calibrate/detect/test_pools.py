"""Hosts become pools of equal ones, and the file that is written of them reads back as the same cluster."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.calibrate.detect.outputs.sources import Gathered, gathered, recognised
from meshwright.calibrate.detect.pools import Found, found
from meshwright.calibrate.detect.written import numbers, to_json, warnings, write
from meshwright.cost_models.hardware import toml as cluster_toml
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.ir.errors import MachineUndescribed, NicsUnknown, OutputsContradict
from tests.calibrate.detect.told import HOSTS, cluster, drawn, listed, queried, sources, text_of

CORES = "CPU(s): 4\n"
H100 = listed("NVIDIA H100 80GB HBM3", 8)


def of(hosts: dict[str, list[str]], *lists: str) -> Found:
    texts = [(name, f"{name}/{number}", text) for name, given in hosts.items() for number, text in enumerate(given)]
    return found(gathered(iter([*texts, *(("", "the list", text) for text in lists)])))


def back(cluster_found: Found) -> Cluster:
    return cluster_toml.read(write(cluster_found))


@pytest.mark.parametrize("name", HOSTS)
def test_a_host_in_a_folder(name: str) -> None:
    one = cluster(name)
    assert [(pool.names, pool.hosts.value) for pool in one.pools] == [((name,), 1)]
    assert one.links == ()
    assert back(one).hosts == 1


def test_hosts_that_differ_are_pools_with_assumed_links() -> None:
    """The narrower ends: 8 x 200, 4 x 100 and 1 x 100 Gb/s."""
    many = cluster(*HOSTS)
    assert [pool.name for pool in many.pools] == ["h100-80g", "a100-80g", "v100-32g", "l40s"]
    assert {link.between: link.gbps.value for link in many.links} == {
        ("h100-80g", "a100-80g"): 1600,
        ("h100-80g", "v100-32g"): 400,
        ("h100-80g", "l40s"): 100,
        ("a100-80g", "v100-32g"): 400,
        ("a100-80g", "l40s"): 100,
        ("v100-32g", "l40s"): 100,
    }
    assert {link.kind for link in many.links if "l40s" in link.between} == {"ethernet"}
    assert {link.gbps.known for link in many.links} == {"assumed"}
    read = back(many)
    assert [(pool.name, pool.hosts, pool.gpus_per_host, pool.device.name) for pool in read.pools] == [
        ("h100-80g", 1, 8, "H100-80G"),
        ("a100-80g", 1, 8, "A100-80G"),
        ("v100-32g", 1, 8, "V100-32G"),
        ("l40s", 1, 4, "L40S"),
    ]


def test_hosts_of_a_list_are_declared_to_be_like_the_one_that_was_read() -> None:
    one = of({"": [H100]}, text_of("slurm.txt"))
    (pool,) = one.pools
    assert (pool.hosts.value, pool.hosts.known) == (5, "declared")
    assert pool.names == ("gpu01", "gpu02", "gpu03", "gpu04", "gpu07")
    assert "# declared: Slurm, as equal to a host that was read: gpu[01-04,07]" in write(one)


def test_hosts_with_folders_of_their_own_are_read() -> None:
    one = of(
        {"node2": [listed("NVIDIA L40S", 8), "Settings for e:\n\tSpeed: 100000Mb/s\n"], "": [H100]}, text_of("hostfile")
    )
    assert [(pool.name, pool.names) for pool in one.pools] == [("h100-80g", ("node1",)), ("l40s", ("node2",))]


def test_a_host_is_found_with_its_domain_or_without() -> None:
    one = of({"node1": [H100], "node2.lab": [H100]}, "node1.lab\nnode2\n")
    (pool,) = one.pools
    assert (pool.hosts.value, pool.hosts.by) == (2, "the hostfile")


def test_slots_say_how_many_devices_a_host_gives() -> None:
    one = of({"": [H100]}, "a slots=8\nb slots=4\nc slots=4\n")
    assert [(pool.name, pool.hosts.value, pool.host.count.value) for pool in one.pools] == [
        ("h100-80g", 1, 8),
        ("h100-80g-2", 2, 4),
    ]
    assert one.pools[1].host.count.known == "declared"


def test_a_hostfile_counts_before_slurm() -> None:
    one = of({"": [H100]}, text_of("slurm.txt"), text_of("hostfile"))
    assert one.pools[0].names == ("node1", "node2")
    assert warnings(one) == ("the list is passed over for the list",)


def test_equal_hosts_are_one_pool_whichever_tool_was_asked() -> None:
    one = of({"a": [H100], "b": [queried("NVIDIA H100 80GB HBM3", 8, memory__total="81559 MiB")]})
    (pool,) = one.pools
    assert (pool.hosts.value, pool.hosts.known) == (2, "measured")


@pytest.mark.parametrize(
    ("hosts", "lists", "kind", "cause"),
    [
        ({}, ["a\nb\n"], MachineUndescribed, "no output describes a host"),
        ({}, [], MachineUndescribed, "no output that names"),
        ({"x": [H100]}, ["a\nb\n"], OutputsContradict, "lists no such host"),
        ({"a": [H100], "b": [CORES]}, ["a\nb\nc\n"], MachineUndescribed, "those of others differ"),
        ({"": [H100]}, ["a slots=9\n"], OutputsContradict, "9 devices are declared"),
        ({"": [H100]}, ["a\n", "b\n"], OutputsContradict, "other hosts than"),
        ({"": [CORES]}, ["a\nb\n"], NicsUnknown, "no output tells what joins them"),
        ({"a": [H100], "b": [CORES]}, [], NicsUnknown, "no output tells what joins them"),
    ],
)
def test_lists_and_hosts_that_do_not_fit(
    hosts: dict[str, list[str]], lists: list[str], kind: type[Exception], cause: str
) -> None:
    with pytest.raises(kind, match=cause):
        of(hosts, *lists)


def test_what_differs_from_the_table_is_a_device_of_ones_own() -> None:
    plain = drawn("X\tSYS", "SYS\tX")
    bridged = drawn("X\tNV6", "NV6\tX")
    two = listed("NVIDIA H100 80GB HBM3", 2)
    read = back(of({"a": [two, plain], "b": [two, bridged], "c": [two]}))
    assert [pool.device.name for pool in read.pools] == ["H100-80G-found", "H100-80G-found-2", "H100-80G"]
    first, second, third = (pool.device.island for pool in read.pools)
    assert first is not None
    assert second is not None
    assert third is not None
    assert (first.devices, second.bandwidth.value, third.devices) == (1, 150e9, 8)


def test_every_number_has_a_comment_that_says_how_it_is_known() -> None:
    text = write(cluster(*HOSTS))
    tables = text[text.index("[[pool]]") :]
    for line in tables.splitlines():
        if re.match(r"\w+ = [\d.]+", line):
            assert re.search(r"  # (measured|declared|datasheet|assumed): \S", line), line
    told = re.findall(r"^# (.*) of nics: (measured|datasheet|assumed): ", text, re.MULTILINE)
    assert Counter(key for keys, _ in told for key in keys.split(", ")) == {"kind": 4, "gbps": 4, "count": 4}


def test_json_has_the_same_numbers() -> None:
    one = cluster("dgx_h100")
    shown = to_json(one, write(one), None)
    assert shown["numbers"] == [
        {"of": of_, "key": key, "value": told.value, "known": told.known, "by": told.by}
        for of_, key, told in numbers(one)
    ]
    assert shown["text"] == write(one)


def test_nothing_that_a_tool_prints_leaves_its_comment() -> None:
    one = of({"": [listed("NVIDIA L40S", 1)]})
    strange = Gathered(hosts=(("a\x07\n[[pool]]", sources(listed("NVIDIA L40S", 1))),))
    assert cluster_toml.read(write(found(strange))).pools == back(one).pools


ADAPTER = "CA 'mlx5_{index}'\n\tPort 1:\n\t\tState: Active\n\t\tRate: {rate}\n\t\tLink layer: {layer}\n"
KINDS = st.sampled_from(["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA L40S", "Tesla T4", "NVIDIA GB200"])
ONE = st.tuples(
    KINDS,
    st.integers(1, 16),
    st.sampled_from([10, 56, 100, 400, 2.5]),
    st.integers(1, 12),
    st.sampled_from(["InfiniBand", "Ethernet"]),
)


@given(kinds=st.lists(ONE, min_size=1, max_size=5), counts=st.lists(st.integers(1, 4), min_size=5, max_size=5))
def test_the_file_reads_back_with_the_same_hosts_gpus_and_nics(
    kinds: list[tuple[str, int, float, int, str]], counts: list[int]
) -> None:
    """Any hosts, told by their GPUs and adapters: as many pools as there are kinds, each with what was printed."""
    expected: Counter[tuple[str, int, float, int, str]] = Counter()
    hosts = []
    for kind, count in zip(kinds, counts, strict=False):
        name, gpus, rate, ports, layer = kind
        expected[kind] += count
        printed = "".join(ADAPTER.format(index=index, rate=rate, layer=layer) for index in range(ports))
        hosts += [(listed(name, gpus), printed)] * count
    texts = [(f"n{number}", "x", text) for number, host in enumerate(hosts) for text in host]
    read = back(found(gathered(iter(texts))))
    seen = {
        (
            pool.device.name,
            pool.gpus_per_host,
            pool.nics[0].rate.value,
            pool.nics[0].count,
            pool.nics[0].kind,
        ): pool.hosts
        for pool in read.pools
    }
    layers = {"InfiniBand": "infiniband", "Ethernet": "roce"}
    devices = {name: recognised_device(name) for name, *_ in kinds}
    assert seen == {
        (devices[name], gpus, rate, ports, layers[layer]): count
        for (name, gpus, rate, ports, layer), count in expected.items()
    }


def recognised_device(name: str) -> str:
    return found(Gathered(hosts=(("", (recognised(listed(name, 1), "x"),)),))).pools[0].host.gpu
