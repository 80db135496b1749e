"""Shapes of groups, against `Cluster.link`, counts by hand and a slow search over all groups."""

from __future__ import annotations

import pickle
from itertools import permutations

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from meshwright.cost_models.collectives.topology import GroupShape, Level, group_shape, pair_shape
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.devices import device
from meshwright.cost_models.hardware.parts import LinkMatrix, Nic, Place, Pool, PoolLink
from meshwright.cost_models.hardware.quantity import given
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.ir.errors import BadGroup
from meshwright.ir.sharding.mesh import Mesh

H100_NVLINK, CX7 = 450e9, 50e9


def ranks(count: int, first: int = 0) -> tuple[int, ...]:
    return tuple(range(first, first + count))


def two_pools(hosts: int = 2) -> Cluster:
    link = PoolLink(between=("a", "b"), kind="ethernet", rate=given(800, "Gb/s"), latency=given(20e-6, "s"))
    pools = (
        Pool(name="a", hosts=hosts, device=device("H100"), gpus_per_host=8),
        Pool(name="b", hosts=hosts, device=device("A100"), gpus_per_host=8),
    )
    return Cluster(pools=pools, links=(link,))


def rates(shape: GroupShape) -> list[tuple[str, int, float]]:
    return [(level.tier, level.parts, level.part_bytes_per_s) for level in shape.levels]


def test_tensor_parallel_inside_data_parallel_across() -> None:
    cluster, mesh = read_cluster("16x8xH100"), Mesh.parse("dp=16 tp=8")
    assert rates(group_shape(cluster, ranks(128), mesh, ("tp",))) == [("island", 8, H100_NVLINK)]
    across = group_shape(cluster, ranks(128), mesh, ("dp",))
    assert rates(across) == [("rail", 16, CX7)], "eight groups share eight NICs"
    assert across.levels[0].groups == 8
    assert rates(group_shape(cluster, ranks(128), mesh, ("dp", "tp"))) == [
        ("island", 8, H100_NVLINK),
        ("rail", 16, 8 * CX7),
    ]


def test_groups_that_share_adapters_divide_them() -> None:
    pool = Pool(
        name="a",
        hosts=4,
        device=device("A100"),
        gpus_per_host=8,
        nics=(Nic(kind="infiniband", rate=given(200, "Gb/s"), count=2),),
    )
    cluster, total = Cluster(pools=(pool,)), 2 * 25e9
    crowd = group_shape(cluster, ranks(32), Mesh.parse("dp=4 tp=8"), ("dp",)).levels[0]
    assert crowd.part_bytes_per_s == crowd.rank_bytes_per_s == total / 8
    lonely = group_shape(cluster, (0, 8, 16, 24), Mesh.parse("dp=4"), ("dp",)).levels[0]
    assert lonely.part_bytes_per_s == total / 2, "a rank alone fills one port, not two"
    four = group_shape(cluster, ranks(32), Mesh.parse("dp=4 tp=2 fs=4"), ("dp", "fs")).levels[-1]
    assert (four.part_bytes_per_s, four.rank_bytes_per_s) == (total / 2, total / 2)


@pytest.mark.parametrize(
    "text", ["2x8xH100", "2x8xV100-16G", "4x4xGB200", "20x4xGB200", "2x4xRTX-4090,inter=25G", "cpu:4"]
)
def test_a_pair_alone_has_what_the_cluster_says_of_it(text: str) -> None:
    cluster = read_cluster(text)
    for other in range(1, cluster.ranks):
        found = cluster.link(0, other)
        shape = group_shape(cluster, (0, other), Mesh.parse("x=2"), ("x",))
        (level,) = shape.levels
        assert (level.tier, level.rank_bytes_per_s) == (found.tier, found.bandwidth.value)
        assert level.latency_s == found.latency.value
        assert pair_shape(cluster, (0,), (other,)) == shape


@for_all(st.data())
def test_a_matrix_is_felt_at_its_slowest_neighbours(data: st.DataObject) -> None:
    """A brute-force ring over hosts in order, for every group; the slowest group is what is returned."""
    hosts = data.draw(st.integers(2, 5))
    entry = st.integers(1, 400).map(float)
    upper = {(i, j): data.draw(entry) for i in range(hosts) for j in range(i + 1, hosts)}
    rows = tuple(tuple(upper.get((min(i, j), max(i, j)), 1.0) for j in range(hosts)) for i in range(hosts))
    pool = Pool(name="a", hosts=hosts, device=device("H100"), gpus_per_host=2)
    cluster = Cluster(pools=(pool,), matrix=LinkMatrix(rows))
    shape = group_shape(cluster, ranks(2 * hosts), Mesh.parse(f"dp={hosts} tp=2"), ("dp",))
    ring = min(rows[i][(i + 1) % hosts] for i in range(hosts)) * 1e9 / 8
    assert shape.levels[0].part_bytes_per_s == pytest.approx(min(CX7, ring / 2))
    assert shape.levels[0].pair_bytes_per_s == pytest.approx(min(CX7, min(upper.values()) * 1e9 / 16))


@for_all(st.data())
def test_the_narrowest_ring_of_all_groups_is_found(data: st.DataObject) -> None:
    """Every group, one rank after the other: how many ranks it has on a host, how many groups meet there."""
    slots = data.draw(st.sampled_from([1, 2, 4]))
    hosts = (data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)))
    adapters = (data.draw(st.sampled_from([1, 2, 4])), data.draw(st.sampled_from([1, 2, 4])))
    pools = tuple(
        Pool(
            name=name,
            hosts=count,
            device=device(gpu),
            gpus_per_host=slots,
            nics=(Nic(kind="roce", rate=given(200, "Gb/s"), count=nics),),
        )
        for name, count, nics, gpu in zip("ab", hosts, adapters, ("H100", "A100"), strict=True)
    )
    gbps = data.draw(st.sampled_from([150, 100_000]))  # slower than adapters, or faster than all of them
    wire = PoolLink(between=("a", "b"), kind="roce", rate=given(gbps, "Gb/s"), latency=given(1e-5, "s"))
    cluster = Cluster(pools=pools, links=(wire,))
    chosen = data.draw(st.permutations(range(cluster.ranks)))
    rows = data.draw(st.sampled_from([size for size in (1, 2, 3) if size <= cluster.ranks]))
    columns = cluster.ranks // rows
    stage = tuple(chosen[: rows * columns])
    mesh = Mesh.parse(f"a={rows} b={columns}")
    for axes in (("a",), ("b",), ("a", "b"), ("b", "a")):
        groups = [[cluster.place(stage[rank]) for rank in group] for group in mesh.groups(axes)]
        spread = [{(at.pool, at.host) for at in group} for group in groups]
        found = group_shape(cluster, stage, mesh, axes)
        assert found.ring_bytes_per_s == pytest.approx(
            min(narrowest(cluster, group, spread, gbps) for group in groups), rel=1e-12
        )


def narrowest(cluster: Cluster, group: list[Place], spread: list[set[tuple[int, int]]], gbps: float) -> float:
    """The slowest wire of a group, by the definitions at the head of `topology`."""
    pools = [cluster.pools[pool] for pool in sorted({at.pool for at in group})]
    hosts = [(at.pool, at.host) for at in group]
    islands = [pool.device.island.bandwidth.value for pool in pools if pool.device.island]
    slowest = min(islands) if max(hosts.count(host) for host in hosts) > 1 else float("inf")
    if len(set(hosts)) == 1:
        return slowest
    meeting = max(sum(len(other) > 1 and host in other for other in spread) for host in set(hosts))
    port = min(pool.host_gbps / pool.ports for pool in pools) / 8 * 1e9
    total = min(pool.host_gbps for pool in pools) / 8 * 1e9
    slowest = min(slowest, min(hosts.count(host) for host in hosts) * port, total / meeting)
    if len(pools) > 1:
        crossing = sum(len({pool for pool, _ in other}) > 1 for other in spread)
        slowest = min(slowest, gbps * 1e9 / 8 / crossing)
    return slowest


def test_a_device_matrix_replaces_the_island_too() -> None:
    rows = tuple(tuple(80.0 if {i, j} == {1, 2} else 800.0 for j in range(4)) for i in range(4))
    cluster = Cluster(pools=(Pool(name="a", hosts=1, device=device("H100"), gpus_per_host=4),), matrix=LinkMatrix(rows))
    assert rates(group_shape(cluster, ranks(4), Mesh.parse("tp=4"), ("tp",))) == [("island", 4, 10e9)]
    pairs = group_shape(cluster, ranks(4), Mesh.parse("dp=2 tp=2"), ("tp",))
    assert rates(pairs) == [("island", 2, 100e9)], "no group of two holds the slow pair"


@pytest.mark.parametrize(
    ("rows", "rate"), [(0, CX7), (2, CX7), (16, 10e9)], ids=["data sheet", "hosts measured", "devices measured"]
)
def test_the_host_with_fewest_members_holds_a_ring_back(rows: int, rate: float) -> None:
    """One member on the first host and three on the second: the ring enters and leaves the first by one adapter, where
    hosts manage 120 GB/s together, and devices 10 GB/s."""
    gbps = 960.0 if rows == 2 else 80.0
    matrix = LinkMatrix(((gbps,) * rows,) * rows) if rows else None
    cluster = Cluster(pools=(Pool(name="a", hosts=2, device=device("H100"), gpus_per_host=8),), matrix=matrix)
    rail = group_shape(cluster, (0, 8, 9, 10), Mesh.parse("dp=4"), ("dp",)).levels[-1]
    assert (rail.tier, rail.members, rail.part_bytes_per_s) == ("rail", 3, rate)


def test_identical_hosts_can_be_permuted() -> None:
    cluster, mesh = read_cluster("4x2xH100"), Mesh.parse("pp=2 dp=2 tp=2")
    seen = {
        group_shape(cluster, tuple(2 * host + slot for host in order for slot in (0, 1)), mesh, axes)
        for order in permutations(range(4))
        for axes in [("dp",)]
    }
    assert len(seen) == 1


def test_two_pools_meet_over_their_link_in_the_slower_transport() -> None:
    cluster = two_pools()
    whole = group_shape(cluster, ranks(32), Mesh.parse("dp=32"), ("dp",))
    assert rates(whole) == [("island", 8, 300e9), ("rail", 2, 200e9), ("pools", 2, 100e9)]
    assert whole.levels[-1].kind == "ethernet"
    assert whole.devices == ("A100-80G", "H100-80G")
    crowd = group_shape(cluster, ranks(32), Mesh.parse("dp=4 tp=8"), ("dp",))
    assert rates(crowd) == [("rail", 2, 25e9), ("pools", 2, 100e9 / 8)]
    assert crowd.levels[-1].latency_s == 20e-6


def test_the_slowest_group_counts() -> None:
    cluster = two_pools()
    apart = group_shape(cluster, ranks(32), Mesh.parse("pp=2 dp=2 tp=8"), ("dp",))
    assert rates(apart) == [("rail", 2, 25e9)], "the groups of A100s have the slower NICs"
    straddling = group_shape(read_cluster("2x8xH100"), ranks(12, 2), Mesh.parse("dp=3 tp=4"), ("tp",))
    assert straddling.units == 2, "ranks 6 to 9 lie on two hosts"


def test_scale_up_domains() -> None:
    rack = read_cluster("36x4xGB200")
    assert rates(group_shape(rack, ranks(72), Mesh.parse("tp=72"), ("tp",))) == [("island", 72, 900e9)]
    assert group_shape(rack, ranks(144), Mesh.parse("tp=144"), ("tp",)).units == 2
    halves = group_shape(read_cluster("1x8xV100-16G"), ranks(8), Mesh.parse("tp=8"), ("tp",))
    assert [(level.tier, level.parts) for level in halves.levels] == [("island", 4), ("host", 2)]
    instinct = read_cluster("1x8xMI300X")
    two = group_shape(instinct, ranks(8), Mesh.parse("dp=4 tp=2"), ("tp",))
    assert two.levels[0].part_bytes_per_s == pytest.approx(448e9 / 7), "one of seven wires leads to the other device"


@pytest.mark.parametrize(("name", "chips", "links"), [("TPU-v5p", 4, 2), ("TPU-v5p", 8, 3), ("TPU-v5p", 64, 6)])
def test_a_torus_offers_the_sides_that_a_group_spans(name: str, chips: int, links: int) -> None:
    """2x2x1, 2x2x2, and 4x4x4, which wraps around: by hand."""
    cluster = read_cluster(f"16x4x{name}")
    shape = group_shape(cluster, ranks(chips), Mesh.parse(f"x={chips}"), ("x",))
    assert shape.levels[0].part_bytes_per_s == pytest.approx(600e9 * links / 6)


def test_stages_talk_pairwise_all_at_once() -> None:
    cluster = read_cluster("4x8xH100")
    assert rates(pair_shape(cluster, ranks(8), ranks(8, 8))) == [("rail", 2, CX7)]
    assert rates(pair_shape(cluster, ranks(4), ranks(4, 4))) == [("island", 2, H100_NVLINK)]
    assert pair_shape(cluster, ranks(16), ranks(8, 16)).levels[0].groups == 16, "two senders to each receiver"
    assert pair_shape(cluster, ranks(2), ranks(2)).ranks == 1


def test_groups_of_thousands_of_ranks_are_looked_at_once() -> None:
    cluster, whole, mesh = read_cluster("2048x8xH100"), ranks(16384), Mesh.parse("dp=256 pp=8 tp=8")
    first = group_shape(cluster, whole, mesh, ("dp", "pp"))
    assert all(group_shape(cluster, whole, mesh, ("dp", "pp")) is first for _ in range(1000))
    assert (first.ranks, first.units) == (2048, 2048)


def test_a_shape_survives_a_trip_to_another_process() -> None:
    shape = group_shape(read_cluster("2x8xH100"), ranks(16), Mesh.parse("dp=16"), ("dp",))
    again = pickle.loads(pickle.dumps(shape))
    assert again == shape
    assert hash(again) == hash(shape)


def test_what_cannot_be_a_group_is_refused() -> None:
    with pytest.raises(BadGroup, match="given 3 ranks"):
        group_shape(read_cluster("1x8xH100"), ranks(3), Mesh.parse("tp=2"), ("tp",))
    with pytest.raises(BadGroup):
        GroupShape(ranks=2, units=1, levels=(), devices=("H100-80G",))
    with pytest.raises(BadGroup):
        Level(
            tier="rail",
            kind="roce",
            parts=1,
            members=1,
            part_bytes_per_s=1.0,
            rank_bytes_per_s=1.0,
            pair_bytes_per_s=1.0,
            latency_s=0.0,
        )


def test_a_rack_sends_by_the_ports_of_all_its_hosts() -> None:
    """Two racks of 18 hosts of 4 devices: a ring over both leaves each by 72 ports."""
    cluster = read_cluster("36x4xGB200")
    shape = group_shape(cluster, ranks(144), Mesh.parse("dp=144"), ("dp",))
    port = cluster.link(0, 72).bandwidth.value
    assert [level.parts for level in shape.levels] == [72, 2]
    assert shape.levels[1].part_bytes_per_s == pytest.approx(72 * port)
