"""Ranks, tiers and links: by hand where a number can be worked out, by law where it cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from meshwright.cost_models.hardware import toml
from meshwright.cost_models.hardware.cluster import Cluster, suspicions
from meshwright.cost_models.hardware.devices import device, latency_of
from meshwright.cost_models.hardware.faults import faults, spelled
from meshwright.cost_models.hardware.parts import TIERS, LinkMatrix, Nic, Place, Pool, PoolLink, route
from meshwright.cost_models.hardware.quantity import given
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.ir.errors import (
    ClusterValueBad,
    LinkEndUnknown,
    LinkMatrixSize,
    LinkMatrixValue,
    NicsUnknown,
    PoolRepeated,
    PoolsDisconnected,
    RankUnknown,
)
from tests.cost_models.clusters import clusters


def pool(name: str, gpu: str = "H100", hosts: int = 2, gpus: int = 8, **more: object) -> Pool:
    return Pool(name=name, hosts=hosts, device=device(gpu), gpus_per_host=gpus, **more)


def wire(one: str, other: str, gbps: float = 800, latency_us: float = 20) -> PoolLink:
    return PoolLink(
        between=(one, other), kind="ethernet", rate=given(gbps, "Gb/s"), latency=given(latency_us * 1e-6, "s")
    )


def test_ranks_are_numbered_pool_by_pool_host_by_host() -> None:
    cluster = Cluster(pools=(pool("a"), pool("b", "A100", hosts=3, gpus=4)), links=(wire("a", "b"),))
    assert (cluster.ranks, cluster.hosts) == (28, 5)
    places = [(at.pool, at.host, at.slot) for at in map(cluster.place, range(cluster.ranks))]
    assert places == [(0, h, s) for h in range(2) for s in range(8)] + [(1, h, s) for h in range(3) for s in range(4)]
    assert cluster.device(15).name == "H100-80G"
    assert cluster.device(16).name == "A100-80G"


def test_tiers_of_a_usual_cluster() -> None:
    cluster = read_cluster("2x8xH100")
    assert [cluster.tier(0, other) for other in (1, 7, 8, 15)] == ["island", "island", "rail", "rail"]
    assert cluster.link(0, 7).bandwidth.value == 450e9
    assert cluster.link(0, 8).bandwidth.value == 400e9 / 8
    assert cluster.link(0, 8).bandwidth.kind == "datasheet"
    assert cluster.link(0, 8).latency.kind == "fitted"


def test_an_island_may_span_hosts_or_be_smaller_than_one() -> None:
    rack = read_cluster("36x4xGB200")
    assert (rack.tier(0, 71), rack.tier(0, 72), rack.tier(72, 143)) == ("island", "rail", "island")
    assert read_cluster("2x4xH100").tier(0, 4) == "rail", "eight H100 share NVLink only inside one host"
    halves = read_cluster("1x8xV100-16G")
    assert (halves.tier(0, 3), halves.tier(0, 4), halves.tier(4, 7)) == ("island", "host", "island")
    assert read_cluster("1x4xL40S").tier(0, 1) == "host"
    assert read_cluster("1x4xL40S").link(0, 1).bandwidth.value == 31.5e9


def test_two_racks_of_tpus_need_a_network_and_one_does_not() -> None:
    assert read_cluster("64x4xTPUv5e").tier(0, 255) == "island"
    with pytest.raises(NicsUnknown):
        read_cluster("65x4xTPUv5e")


def test_nics_are_shared_by_the_devices_of_a_host() -> None:
    """Two adapters of 400 Gb/s for eight devices: alone 50 GB/s, together a quarter of it."""
    few = Cluster(pools=(pool("a", nics=(Nic(kind="infiniband", rate=given(400.0, "Gb/s"), count=2),)),))
    link = few.link(0, 8)
    assert (link.bandwidth.value, link.sharers, link.share_bytes_per_s) == (50e9, 4.0, 12.5e9)
    assert link.bandwidth.kind == "user"
    many = Cluster(pools=(pool("a", gpus=2, nics=(Nic(kind="roce", rate=given(100.0, "Gb/s"), count=4),)),))
    assert (many.link(0, 2).bandwidth.value, many.link(0, 2).sharers) == (25e9, 1.0)


def test_a_link_between_pools_is_as_fast_as_its_narrowest_part() -> None:
    pools = (pool("a"), pool("b", "A100"))
    thin = Cluster(pools=pools, links=(wire("a", "b", 80),)).link(0, 16)
    assert (thin.tier, thin.bandwidth.value, thin.latency.value) == ("pools", 10e9, pytest.approx(20e-6))
    assert thin.share_bytes_per_s == pytest.approx(10e9 / 16)
    thick = Cluster(pools=pools, links=(wire("a", "b", 80_000),)).link(0, 16)
    assert (thick.bandwidth.value, thick.share_bytes_per_s) == (25e9, 25e9)
    assert thick.bandwidth.kind == "datasheet"


def test_pools_without_a_direct_link_are_joined_by_a_chain() -> None:
    links = (wire("a", "b", 100, 10), wire("b", "c", 50, 30))
    cluster = Cluster(pools=(pool("a"), pool("b"), pool("c")), links=links)
    link = cluster.link(0, 40)
    assert (link.bandwidth.value, link.latency.value) == (50e9 / 8, pytest.approx(40e-6))
    assert route("c", "a", links) == (links[1], links[0])
    assert route("a", "d", links) is None


def test_a_matrix_of_hosts_replaces_rates_between_hosts_only() -> None:
    matrix = LinkMatrix(((0.0, 800.0), (760.0, 0.0)))
    plain = read_cluster("2x8xH100")
    measured = Cluster(pools=plain.pools, matrix=matrix)
    assert measured.link(0, 1) == plain.link(0, 1)
    link = measured.link(0, 8)
    assert (link.bandwidth.value, link.share_bytes_per_s) == (50e9, pytest.approx(760e9 / 8 / 8))
    assert link.bandwidth.kind == "user"


def test_a_matrix_of_devices_replaces_every_rate() -> None:
    rows = tuple(tuple(100.0 for _ in range(4)) for _ in range(4))
    cluster = Cluster(pools=(pool("a", gpus=2),), matrix=LinkMatrix(rows))
    assert {cluster.link(0, other).bandwidth.value for other in (1, 2, 3)} == {12.5e9}


def test_a_matrix_can_stand_in_for_links() -> None:
    rows = tuple(tuple(100.0 for _ in range(4)) for _ in range(4))
    cluster = Cluster(pools=(pool("a"), pool("b", "A100")), matrix=LinkMatrix(rows))
    assert (cluster.tier(0, 16), cluster.link(0, 16).bandwidth.value) == ("pools", 12.5e9)


@for_all(clusters(), st.data())
def test_a_link_is_the_same_both_ways_and_never_crowded_faster(cluster: Cluster, data: st.DataObject) -> None:
    ranks = st.integers(0, cluster.ranks - 1)
    one, other = data.draw(ranks), data.draw(ranks)
    if one == other:
        return
    there, back = cluster.link(one, other), cluster.link(other, one)
    assert (there.tier, there.bandwidth.value, there.latency) == (back.tier, back.bandwidth.value, back.latency)
    assert there.tier in TIERS
    assert there.sharers >= 1 - 1e-12
    assert 0 < there.share_bytes_per_s <= there.bandwidth.value * (1 + 1e-12)


@for_all(clusters(with_matrix=False), st.data())
def test_permuting_identical_hosts_changes_nothing(cluster: Cluster, data: st.DataObject) -> None:
    """Hosts in any order; where islands span hosts, islands in any order."""
    index = data.draw(st.integers(0, len(cluster.pools) - 1))
    chosen = cluster.pools[index]
    island = chosen.device.island
    group = max(1, island.devices // chosen.gpus_per_host) if island and island.spans_hosts else 1
    islands = list(range(-(-chosen.hosts // group)))
    whole = islands if chosen.hosts % group == 0 else islands[:-1]
    order = [*data.draw(st.permutations(whole)), *islands[len(whole) :]]
    hosts = [host for at in order for host in range(at * group, min((at + 1) * group, chosen.hosts))]
    first = sum(pool.ranks for pool in cluster.pools[:index])

    def moved(rank: int) -> int:
        at = cluster.place(rank)
        return rank if at.pool != index else first + hosts[at.host] * chosen.gpus_per_host + at.slot

    ranks = st.integers(0, cluster.ranks - 1)
    one, other = data.draw(ranks), data.draw(ranks)
    if one != other:
        assert cluster.link(one, other) == cluster.link(moved(one), moved(other))


@st.composite
def measured_hosts(draw: st.DrawFn) -> Cluster:
    """Rates between all hosts; the first pool has several devices per host, whose islands end there."""
    made = draw(clusters(with_matrix=False))
    first = made.pools[0]
    island = first.device.island
    known = replace(first.device, name="first", aliases=(), island=island and replace(island, spans_hosts=False))
    first = replace(first, device=known, hosts=draw(st.integers(2, 5)), gpus_per_host=draw(st.integers(2, 9)))
    made = replace(made, pools=(first, *made.pools[1:]))
    entry = {(i, j): draw(st.integers(1, 9999)) for i in range(made.hosts) for j in range(i)}
    numbers = range(made.hosts)
    rows = tuple(tuple(float(entry.get((max(i, j), min(i, j)), 0)) for j in numbers) for i in numbers)
    return replace(made, matrix=LinkMatrix(rows))


@for_all(measured_hosts(), st.data())
def test_renumbering_measured_hosts_renumbers_their_links(cluster: Cluster, data: st.DataObject) -> None:
    chosen = cluster.pools[0]
    order = [*data.draw(st.permutations(range(chosen.hosts))), *range(chosen.hosts, cluster.hosts)]
    assert cluster.matrix is not None
    rows = cluster.matrix.rows
    shuffled = LinkMatrix(tuple(tuple(rows[order[i]][order[j]] for j in range(len(rows))) for i in range(len(rows))))
    other_cluster = replace(cluster, matrix=shuffled)

    def moved(rank: int) -> int:
        host, slot = divmod(rank, chosen.gpus_per_host)
        return order.index(host) * chosen.gpus_per_host + slot if rank < chosen.ranks else rank

    ranks = st.integers(0, cluster.ranks - 1)
    one, other = data.draw(st.lists(ranks, min_size=2, max_size=2, unique=True))
    assert cluster.link(one, other) == other_cluster.link(moved(one), moved(other))


@for_all(clusters(with_matrix=False), st.floats(1, 10))
def test_faster_nics_never_slow_a_link_down(cluster: Cluster, factor: float) -> None:
    def faster(nic: Nic) -> Nic:
        return replace(nic, rate=given(nic.rate.value * factor, "Gb/s"))

    pools = tuple(replace(pool, nics=tuple(map(faster, pool.nics))) for pool in cluster.pools)
    better = replace(cluster, pools=pools)
    for other in range(1, cluster.ranks):
        was, now = cluster.link(0, other), better.link(0, other)
        assert now.bandwidth.value >= was.bandwidth.value * (1 - 1e-12)
        assert now.share_bytes_per_s >= was.share_bytes_per_s * (1 - 1e-12)


@pytest.mark.parametrize(
    ("parts", "error", "says"),
    [
        ({"pools": ()}, ClusterValueBad, "there is no pool"),
        ({"pools": (pool("a", hosts=0),)}, ClusterValueBad, "pool 1, key 'hosts'"),
        ({"pools": (pool("a", "L40S"),)}, NicsUnknown, "no usual NIC"),
        ({"pools": (pool("a"), pool("a"))}, PoolRepeated, "two pools 'a'"),
        ({"pools": (pool("a"), pool("b"))}, PoolsDisconnected, "leads from 'a' to 'b'"),
        ({"pools": (pool("a"),), "links": (wire("a", "z"),)}, LinkEndUnknown, "no pool 'z'"),
        ({"pools": (pool("a"),), "links": (wire("a", "a"),)}, LinkEndUnknown, "both ends"),
        (
            {"pools": (pool("a"), pool("b")), "links": (wire("a", "b"), wire("b", "a"))},
            PoolRepeated,
            "linked already",
        ),
        ({"pools": (pool("a"),), "matrix": LinkMatrix(((1.0,),))}, LinkMatrixSize, "it is 1 x 1"),
        ({"pools": (pool("a"),), "matrix": LinkMatrix(((0.0, 1.0), (1.0,)))}, LinkMatrixSize, "2 x 1 or 2"),
        ({"pools": (pool("a"),), "matrix": LinkMatrix(((0.0, -1.0), (1.0, 0.0)))}, LinkMatrixValue, "is -1"),
        ({"pools": (pool("a"),), "matrix": LinkMatrix(((0.0, 9.0), (5.0, 0.0)))}, LinkMatrixValue, "way back 5"),
    ],
)
def test_what_is_no_cluster_is_refused(parts: dict[str, object], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Cluster(**parts)


def test_ranks_that_are_not_there_are_refused() -> None:
    cluster = read_cluster("1x2xH100")
    for one, other in ((0, 2), (-1, 0), (1, 1)):
        with pytest.raises(RankUnknown):
            cluster.link(one, other)


@pytest.mark.parametrize(
    ("reference", "warned"),
    [
        ("2x8xH100,inter=50G", True),
        ("2x8xH100,inter=50G,nic=roce", True),
        ("2x8xH100,inter=12.5G", True),
        ("2x8xA100,inter=25G", True),
        ("2x8xH100,inter=9999G", True),
        ("2x8xH100,inter=400G", False),
        ("2x8xH100,inter=100G", False),
        ("2x8xH100,inter=25G,nic=ethernet", False),
        ("2x8xV100-16G", False),
    ],
)
def test_bytes_written_for_bits_are_noticed(reference: str, warned: bool) -> None:
    assert bool(suspicions(read_cluster(reference))) is warned


# Whole answers, by hand ----------------------------------------------------------------------------------------------

ADD_NICS = 'add nics = [{ kind = "ethernet", gbps = 100, count = 1 }], or inter=100G (per GPU) to a shorthand'
NONE = Nic(kind="roce", rate=given(100.0, "Gb/s"), count=0)


def rows(*entries: tuple[float, ...]) -> LinkMatrix:
    return LinkMatrix(entries)


@pytest.mark.parametrize(
    ("pools", "links", "matrix", "found"),
    [
        ((), (), None, [(("pool",), ClusterValueBad, "there is no pool", "describe at least one [[pool]]")]),
        (
            (pool("a", hosts=0, gpus=-1),),
            (),
            None,
            [
                (("pool", 0, "hosts"), ClusterValueBad, "0 is below 1", "give at least 1"),
                (("pool", 0, "gpus_per_host"), ClusterValueBad, "-1 is below 1", "give at least 1"),
            ],
        ),
        (
            (pool("a"), pool("b", nics=(NONE,)), pool("a")),
            (wire("a", "b"),),
            None,
            [
                (
                    ("pool", 1, "nics"),
                    ClusterValueBad,
                    "a count is below 1",
                    "give at least 1, or drop the NIC",
                ),
                (("pool", 2, "name"), PoolRepeated, "there are two pools 'a'", "give each its own name"),
            ],
        ),
        ((pool("a", "L40S", hosts=1),), (), None, []),
        (
            (pool("a", "L40S"),),
            (),
            None,
            [(("pool", 0, "nics"), NicsUnknown, "there are 2 hosts, and {} has no usual NIC", ADD_NICS)],
        ),
        (
            (pool("a", "L40S", gpus=0),),
            (),
            None,
            [(("pool", 0, "gpus_per_host"), ClusterValueBad, "0 is below 1", "give at least 1")],
        ),
        (
            (pool("a"), pool("b", "L40S", hosts=1)),
            (),
            rows(*((9.0,) * 3,) * 3),
            [(("pool", 1, "nics"), NicsUnknown, "there are other pools, and {} has no usual NIC", ADD_NICS)],
        ),
        ((pool("b", "L40S", hosts=1),), (), rows((0.0,)), []),
        (
            (pool("a"), pool("b"), pool("c"), pool("d")),
            (wire("b", "a"),),
            None,
            [
                (
                    ("pool", 2),
                    PoolsDisconnected,
                    "no chain of links leads from 'a' to 'c', 'd'",
                    'add [[link]] between = ["a", "c"], kind, gbps, latency_us; or a link_matrix',
                )
            ],
        ),
        (
            (pool("a"), pool("b")),
            (wire("a", "z"), wire("b", "b"), wire("a", "b"), wire("b", "a")),
            None,
            [
                (("link", 0, "between"), LinkEndUnknown, "there is no pool 'z'", "use one of a, b"),
                (("link", 1, "between"), LinkEndUnknown, "both ends are 'b'", "name two pools"),
                (("link", 3, "between"), PoolRepeated, "b and a are linked already", "join both into one"),
            ],
        ),
        (
            (pool("a", hosts=3),),
            (),
            rows((0.0, 10.0, 10.0), (9.0, 0.0, 0.0), (8.9, 5.0, float("inf"))),
            [
                (
                    ("link_matrix",),
                    LinkMatrixValue,
                    "row 1, column 3 is 10, the way back 8.9",
                    "measure again: directions may differ by 10%",
                ),
                (("link_matrix",), LinkMatrixValue, "row 2, column 3 is 0", "give a positive rate in Gb/s"),
            ],
        ),
        (
            (pool("a", hosts=3),),
            (),
            rows((0.0, 5.0, 5.0), (float("inf"), 0.0, 5.0), (5.0, 0.0, 0.0)),
            [
                (("link_matrix",), LinkMatrixValue, "row 2, column 1 is inf", "give a positive rate in Gb/s"),
                (("link_matrix",), LinkMatrixValue, "row 3, column 2 is 0", "give a positive rate in Gb/s"),
            ],
        ),
        (
            (pool("a"),),
            (),
            rows((1.0, 1.0), (1.0,)),
            [
                (
                    ("link_matrix",),
                    LinkMatrixSize,
                    "it is 2 x 1 or 2",
                    "give 2 x 2, one row per host, or 16 x 16, one per device",
                )
            ],
        ),
        (
            (pool("a"),),
            (),
            rows(),
            [
                (
                    ("link_matrix",),
                    LinkMatrixSize,
                    "it is 0 x 0",
                    "give 2 x 2, one row per host, or 16 x 16, one per device",
                )
            ],
        ),
    ],
)
def test_every_fault_is_told_in_full(
    pools: tuple[Pool, ...],
    links: tuple[PoolLink, ...],
    matrix: LinkMatrix | None,
    found: list[tuple[tuple[str | int, ...], type[Exception], str, str]],
) -> None:
    name = device("L40S").name
    assert list(faults(pools, links, matrix)) == [
        (path, kind, cause.format(name), fix) if "{}" in cause else (path, kind, cause, fix)
        for path, kind, cause, fix in found
    ]


def test_of_many_bad_entries_five_are_shown() -> None:
    many = rows(*((-1.0,) * 4,) * 4)
    assert len(list(faults((pool("a", hosts=4),), (), many))) == 5


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (("link_matrix",), "key 'link_matrix'"),
        (("pool", 0, "hosts"), "pool 1, key 'hosts'"),
        (("pool", 1, "nics", 2, "gbps"), "pool 2, nics 3, key 'gbps'"),
    ],
)
def test_a_path_is_spelled_as_a_person_counts(path: tuple[str | int, ...], words: str) -> None:
    assert spelled(path) == words


def test_a_host_has_its_number_in_the_whole_cluster() -> None:
    cluster = Cluster(pools=(pool("a"), pool("b", hosts=3, gpus=4)), links=(wire("a", "b"),))
    assert cluster.place(27) == Place(1, 2, 3)
    assert cluster.host_index(cluster.place(27)) == 4
    assert cluster.host_index(Place(0, 1, 0)) == 1
    assert cluster.heterogeneous
    assert not read_cluster("2x8xH100").heterogeneous
    assert cluster.kinds is not None
    assert cluster.kinds(16) == "H100-80G"
    assert read_cluster("2x8xH100").kinds is None
    with pytest.raises(RankUnknown, match="the cluster has 28 ranks") as caught:
        cluster.place(28)
    assert caught.value.fix == "use 0 to 27"


def test_islands_that_do_not_fill_a_host_are_numbered_host_by_host() -> None:
    """Six devices in islands of four: four and two on each host."""
    halves = Pool(name="v", hosts=2, device=device("V100-16G"), gpus_per_host=6)
    assert [[halves.island_of(host, slot) for slot in range(6)] for host in (0, 1)] == [
        [0, 0, 0, 0, 1, 1],
        [2, 2, 2, 2, 3, 3],
    ]
    known = device("GB200")
    assert known.island is not None
    pairs = replace(known, island=replace(known.island, size=given(8.0, "devices")))
    two = Pool(name="two", hosts=4, device=pairs, gpus_per_host=4)
    assert (two.hosts_per_island, [two.island_of(host, 1) for host in range(4)]) == (2, [0, 0, 1, 1])
    assert pool("l", "L40S", hosts=1).island_of(0, 0) is None


@pytest.mark.parametrize(
    ("hosts", "given", "each"),
    [
        (2, None, 18),  # a part of one rack
        (18, None, 18),  # one rack
        (54, None, 18),  # three whole ones
        (40, None, 16),  # schedulers give jobs 64 GPUs of each
        (64, None, 16),
        (64, 72, 18),  # said otherwise
        (64, 32, 8),
    ],
)
def test_jobs_get_segments_of_racks(hosts: int, given: int | None, each: int) -> None:
    racks = Pool(name="r", hosts=hosts, device=device("GB200"), gpus_per_host=4, gpus_per_island=given)
    assert racks.hosts_per_island == each
    assert [racks.island_of(host, 3) for host in (0, each - 1, each)] == [0, 0, 1]


def test_racks_that_are_given_read_back_the_same() -> None:
    text = '[[pool]]\nname = "a"\nhosts = 64\ngpu = "GB200"\ngpus_per_host = 4\ngpus_per_island = 72\n'
    cluster = toml.read(text)
    assert cluster.pools[0].hosts_per_island == 18
    assert toml.read(toml.write(cluster)) == cluster


@pytest.mark.parametrize(
    ("gpu", "each", "cause"),
    [
        ("GB200", 70, "70 GPUs are not whole hosts of 4 in an island of 72"),
        ("GB200", 76, "76 GPUs are not whole hosts"),
        ("H100", 4, "islands of H100-80G end with the host"),
    ],
)
def test_racks_that_cannot_be_are_refused(gpu: str, each: int, cause: str) -> None:
    text = f'[[pool]]\nname = "a"\nhosts = 4\ngpu = "{gpu}"\ngpus_per_host = 4\ngpus_per_island = {each}\n'
    with pytest.raises(ClusterValueBad, match=cause):
        toml.read(text)


def test_what_hosts_measured_is_shared_by_the_larger_of_both() -> None:
    """40 Gb/s between a host of eight H100 and one of two A100 with an adapter of 20: alone 2.5 GB/s, together 5 GB/s
    for eight."""
    few = pool("b", "A100", hosts=1, gpus=2, nics=(Nic(kind="roce", rate=given(20.0, "Gb/s"), count=1),))
    cluster = Cluster(pools=(pool("a", hosts=1), few), matrix=rows((0.0, 40.0), (44.0, 0.0)))
    link = cluster.link(3, 9)
    assert (link.tier, link.bandwidth.value, link.sharers) == ("pools", 2.5e9, pytest.approx(2.5 / (5 / 8)))
    assert link.bandwidth.source.startswith("link matrix, between hosts, 40 Gb/s / 8")
    fast = Cluster(pools=(pool("a", hosts=2, gpus=1),), matrix=rows((0.0, 4000.0), (4000.0, 0.0)))
    assert (fast.link(0, 1).bandwidth.value, fast.link(0, 1).sharers) == (50e9, 1.0)


def test_the_slower_adapter_lends_its_latency_where_only_a_matrix_joins_pools() -> None:
    def one(name: str, kind: str) -> Pool:
        return pool(name, hosts=1, gpus=1, nics=(Nic(kind=kind, rate=given(8.0, "Gb/s"), count=1),))

    rates = rows((0.0, 8.0), (8.0, 0.0))
    slow = latency_of("ethernet")
    for kinds in (("infiniband", "ethernet"), ("ethernet", "infiniband")):
        link = Cluster(pools=tuple(map(one, "ab", kinds)), matrix=rates).link(0, 1)
        assert (link.tier, link.kind, link.latency) == ("pools", "ethernet", slow)


@pytest.mark.parametrize(
    ("gbps", "alone", "share"), [(80, 10e9, 10e9 / 8), (1600, 50e9, 12.5e9), (160, 20e9, 20e9 / 8)]
)
def test_the_ranks_of_the_smaller_pool_share_a_link_between_pools(gbps: float, alone: float, share: float) -> None:
    """`a` has sixteen ranks with two adapters of 50 GB/s per host of eight, `b` eight with as many of 25."""

    def nics(rate: float) -> tuple[Nic, ...]:
        return (Nic(kind="infiniband", rate=given(rate, "Gb/s"), count=2),)

    pools = (pool("a", nics=nics(400)), pool("b", hosts=1, nics=nics(400)))
    link = Cluster(pools=pools, links=(wire("a", "b", gbps),)).link(0, 16)
    assert (link.kind, link.bandwidth.value, link.share_bytes_per_s) == ("ethernet", alone, pytest.approx(share))


def test_the_way_of_fewest_links_is_taken_and_of_those_the_first_by_name() -> None:
    links = (wire("a", "c"), wire("c", "d"), wire("b", "d"), wire("a", "b"), wire("d", "e"))
    assert route("a", "d", links) == (links[3], links[2])
    assert route("e", "a", links) == (links[4], links[2], links[3])
    assert route("a", "a", links) == ()


LOOKS = "rates are in gigabits; if {} gigabytes per second are meant, write {}"


@pytest.mark.parametrize(
    ("kind", "gbps", "said"),
    [
        ("infiniband", 50, "50 Gb/s (infiniband) looks like GB/s: " + LOOKS.format(50, 400)),
        ("roce", 12.5, "12.5 Gb/s (roce) looks like GB/s: " + LOOKS.format("12.5", 100)),
        ("roce", 50, "50 Gb/s (roce) looks like GB/s: " + LOOKS.format(50, 400)),
        ("roce", 25, ""),
        ("roce", 1600, ""),
        ("roce", 1601, "no roce adapter has 1601 Gb/s; rates are in gigabits per second, of one adapter"),
        ("pigeon", 9999, ""),
    ],
)
def test_a_suspicion_says_what_to_write(kind: str, gbps: float, said: str) -> None:
    """H100 usually have adapters of 400 Gb/s, of which 50 is an eighth; between pools nothing is usual."""
    nics = (Nic(kind=kind, rate=given(gbps, "Gb/s"), count=8),)
    link = PoolLink(between=("a", "b"), kind=kind, rate=given(gbps, "Gb/s"), latency=given(1e-5, "s"))
    cluster = Cluster(pools=(pool("a"), pool("b", nics=nics)), links=(link,))
    at_link = [] if gbps == 50 and kind == "roce" else [f"link a - b: {said}"]
    assert list(suspicions(cluster)) == ([f"pool 'b': {said}", *at_link] if said else [])
