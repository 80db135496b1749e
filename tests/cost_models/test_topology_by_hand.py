"""Whole shapes of groups, worked out by hand on small clusters with round numbers; who talks to whom.

A host of pool `a` has four devices in two islands of 100 GB/s, joined by PCIe at 20 GB/s, and two adapters of 10 GB/s.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.cost_models.collectives.topology import (
    GroupShape,
    Level,
    Tier,
    group_shape,
    groups_along,
    pair_shape,
    pairs_between,
)
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.devices import Device, HostLink, Island, latency_of
from meshwright.cost_models.hardware.parts import LinkMatrix, Nic, Pool, PoolLink
from meshwright.cost_models.hardware.quantity import Kind, Quantity, given
from meshwright.ir.errors import BadGroup
from meshwright.ir.sharding.mesh import Mesh

G = 1e9


def own(name: str, wire: str, wire_g: float, island: tuple[str, float, int] | None = None) -> Device:
    return Device(
        name=name,
        vendor="",
        peaks=(("fp32", given(1e12, "flop/s")),),
        memory=given(1e9, "bytes"),
        memory_bandwidth=given(1e12, "bytes/s"),
        host_link=HostLink(kind=wire, bandwidth=given(wire_g * G, "bytes/s")),
        island=island
        and Island(kind=island[0], bandwidth=given(island[1] * G, "bytes/s"), size=given(float(island[2]), "devices")),
    )


def nic(kind: str, gbps: float, count: int) -> Nic:
    return Nic(kind=kind, rate=given(gbps, "Gb/s"), count=count)


def link(one: str, other: str, kind: str, gbps: float, latency_s: float) -> PoolLink:
    return PoolLink(between=(one, other), kind=kind, rate=given(gbps, "Gb/s"), latency=given(latency_s, "s"))


A = Pool(
    name="a",
    hosts=2,
    device=own("D", "pcie4", 20, ("nvlink3", 100, 2)),
    gpus_per_host=4,
    nics=(nic("infiniband", 80, 2),),
)
B = Pool(name="b", hosts=1, device=own("E", "pcie5", 10), gpus_per_host=2, nics=(nic("roce", 40, 1),))
C = replace(A, name="c", hosts=1)
R = Pool(
    name="r",
    hosts=4,
    device=replace(
        own("R", "pcie5", 30),
        island=Island(
            kind="nvlink5", bandwidth=given(200 * G, "bytes/s"), size=given(4.0, "devices"), spans_hosts=True
        ),
    ),
    gpus_per_host=2,
    nics=(nic("infiniband", 80, 1),),
)
"""Its islands join two hosts each, which have one adapter of 10 GB/s."""
ALONE = Cluster(pools=(A,))
RACKS = Cluster(pools=(A, R), links=(link("a", "r", "infiniband", 1600, 1e-4),))
BOTH = Cluster(pools=(A, B), links=(link("a", "b", "ethernet", 16, 1e-3),))
CHAIN = Cluster(pools=(A, B, C), links=(link("b", "a", "roce", 160, 1e-3), link("b", "c", "infiniband", 24, 2e-3)))


def matrix(size: int, *slow: tuple[int, int, float]) -> LinkMatrix:
    """In an island 64 Gb/s, in a host 32, else 16; some pairs are slower."""
    same = 1 if size == 2 else 2
    rows = [
        [64.0 if i // same == j // same else 32.0 if i // 4 == j // 4 else 16.0 for j in range(size)]
        for i in range(size)
    ]
    for one, other, gbps in slow:
        rows[one][other] = gbps
        rows[other][one] = gbps * 1.05  # the slower of both directions counts
    return LinkMatrix(tuple(map(tuple, rows)))


DEVICES = replace(ALONE, matrix=matrix(8, (1, 6, 8.0), (0, 3, 16.0)))
HOSTS = replace(ALONE, matrix=matrix(2, (0, 1, 56.0)))

Row = tuple[Tier, str, int, int, float, float, float, int]
"""Tier, kind, parts, members; GB/s of a part, of one rank, of a pair; groups."""

EXPECTED: list[tuple[Cluster, tuple[int, ...], str, str, int, list[Row]]] = [
    (
        ALONE,  # eight ranks, four islands, two hosts
        tuple(range(8)),
        "x=8",
        "x",
        2,
        [
            ("island", "nvlink3", 2, 1, 100, 100, 100, 1),
            ("host", "pcie4", 2, 2, 20, 20, 20, 1),
            ("rail", "infiniband", 2, 4, 20, 10, 20, 1),
        ],
    ),
    (
        ALONE,  # three islands hold two, one and two ranks
        (0, 1, 2, 4, 5),
        "x=5",
        "x",
        2,
        [
            ("island", "nvlink3", 2, 1, 100, 100, 100, 1),
            ("host", "pcie4", 2, 2, 20, 20, 20, 1),
            ("rail", "infiniband", 2, 3, 20, 10, 20, 1),
        ],
    ),
    (ALONE, tuple(range(8)), "x=2 y=4", "x", 2, [("rail", "infiniband", 2, 1, 5, 5, 5, 4)]),
    (ALONE, tuple(range(8)), "x=2 y=2 z=2", "y", 1, [("host", "pcie4", 2, 1, 20, 20, 20, 1)]),
    (
        BOTH,  # four islands and two devices without, on three hosts; the adapter of `b` has 5 GB/s, the link 2
        tuple(range(10)),
        "x=10",
        "x",
        3,
        [
            ("island", "nvlink3", 2, 1, 100, 100, 100, 1),
            ("host", "pcie5", 2, 2, 10, 10, 10, 1),
            ("rail", "roce", 2, 4, 5, 5, 5, 1),
            ("pools", "ethernet", 2, 6, 2, 2, 2, 1),
        ],
    ),
    (
        CHAIN,  # two groups share 3 GB/s, the narrower of both links
        (0, 4, 10, 1, 5, 11),
        "y=2 x=3",
        "x",
        3,
        [
            ("rail", "infiniband", 2, 1, 10, 10, 10, 2),
            ("pools", "roce", 2, 2, 1.5, 1.5, 1.5, 2),
        ],
    ),
    (
        DEVICES,  # neighbours in order of the ranks, and the slowest of all pairs; a host has two ports
        tuple(range(8)),
        "x=8",
        "x",
        2,
        [
            ("island", "nvlink3", 2, 1, 8, 8, 8, 1),
            ("host", "pcie4", 2, 2, 4, 4, 2, 1),
            ("rail", "infiniband", 2, 4, 4, 2, 2, 1),
        ],
    ),
    (DEVICES, tuple(range(8)), "x=2 y=4", "x", 2, [("rail", "infiniband", 2, 1, 1, 1, 1, 4)]),
    (
        HOSTS,  # what two hosts manage together
        tuple(range(8)),
        "x=8",
        "x",
        2,
        [
            ("island", "nvlink3", 2, 1, 100, 100, 100, 1),
            ("host", "pcie4", 2, 2, 20, 20, 20, 1),
            ("rail", "infiniband", 2, 4, 7, 7, 7, 1),
        ],
    ),
    (
        RACKS,  # two islands of four, each with two adapters, of which one rank fills one
        tuple(range(8, 16)),
        "x=8",
        "x",
        2,
        [("island", "nvlink5", 4, 1, 200, 200, 200, 1), ("rail", "infiniband", 2, 4, 20, 10, 20, 1)],
    ),
    (
        RACKS,  # as many from both pools: four islands and one, three units; the slower wires of each sort
        (*range(8), *range(8, 12)),
        "x=12",
        "x",
        3,
        [
            ("island", "nvlink3", 3, 1, 100, 100, 100, 1),
            ("host", "pcie4", 2, 3, 20, 20, 20, 1),
            ("rail", "infiniband", 2, 4, 20, 10, 20, 1),
            ("pools", "infiniband", 2, 6, 20, 10, 20, 1),
        ],
    ),
    (HOSTS, tuple(range(8)), "x=2 y=4", "x", 2, [("rail", "infiniband", 2, 1, 1.75, 1.75, 1.75, 4)]),
]


@pytest.mark.parametrize(("cluster", "ranks", "mesh", "axis", "units", "rows"), EXPECTED)
def test_a_shape_in_full(
    cluster: Cluster, ranks: tuple[int, ...], mesh: str, axis: str, units: int, rows: list[Row]
) -> None:
    found = group_shape(cluster, ranks, Mesh.parse(mesh), (axis,))
    told = [
        (
            level.tier,
            level.kind,
            level.parts,
            level.members,
            pytest.approx(level.part_bytes_per_s / G),
            pytest.approx(level.rank_bytes_per_s / G),
            pytest.approx(level.pair_bytes_per_s / G),
            level.groups,
        )
        for level in found.levels
    ]
    assert told == rows
    assert (found.units, found.weakest) == (units, "user")
    for level in found.levels[: len(rows) - (len(cluster.pools) > 1)]:
        assert level.latency_s == latency_of(level.kind).value


def test_latencies_of_a_way_add_up_and_devices_are_named() -> None:
    whole = group_shape(CHAIN, (0, 10), Mesh.parse("x=2"), ("x",))
    assert whole.levels[-1].latency_s == pytest.approx(3e-3)
    assert whole.devices == ("D",)
    assert group_shape(BOTH, tuple(range(10)), Mesh.parse("x=10"), ("x",)).devices == ("D", "E")
    assert group_shape(BOTH, (8, 9), Mesh.parse("x=2"), ("x",)).devices == ("E",)


def test_without_a_link_only_a_matrix_joins_pools() -> None:
    """Its rate is that of the two hosts, the latency that of the least capable adapter."""
    rates = LinkMatrix(((0.0, 8.0), (8.0, 0.0)))
    cluster = Cluster(pools=(C, B), matrix=rates)
    (level,) = group_shape(cluster, (0, 4), Mesh.parse("x=2"), ("x",)).levels
    assert (level.tier, level.kind, level.part_bytes_per_s) == ("pools", "roce", 1 * G)
    assert level.latency_s == latency_of("roce").value


@pytest.mark.parametrize(("size", "rate"), [(2, 30), (3, 60), (4, 90)])
def test_a_device_reaches_others_of_a_mesh_by_as_many_of_its_wires(size: int, rate: float) -> None:
    """Four of eight devices that could be meshed are there: 90 GB/s lead to three others."""
    pool = Pool(name="m", hosts=1, device=own("M", "pcie5", 10, ("xgmi", 90, 8)), gpus_per_host=4)
    (level,) = group_shape(Cluster(pools=(pool,)), tuple(range(size)), Mesh.parse(f"x={size}"), ("x",)).levels
    assert level.part_bytes_per_s == pytest.approx(rate * G)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("user", "user", "user"),
        ("measured", "user", "user"),
        ("user", "measured", "user"),
        ("measured", "fitted", "fitted"),
        ("user", "datasheet", "datasheet"),
        ("assumed", "datasheet", "assumed"),
    ],
)
def test_a_shape_is_worth_what_its_weakest_rate_is(first: Kind, second: Kind, expected: Kind) -> None:
    def pool(one: Pool, kind: Kind) -> Pool:
        wire = replace(one.device.host_link, bandwidth=known(one.device.host_link.bandwidth, kind))
        nics = tuple(replace(each, rate=known(each.rate, kind)) for each in one.nics)
        return replace(one, device=replace(one.device, host_link=wire, island=None), nics=nics)

    cluster = replace(BOTH, pools=(pool(A, first), pool(B, second)))
    assert group_shape(cluster, (0, 8), Mesh.parse("x=2"), ("x",)).weakest == expected


def known(quantity: Quantity, kind: Kind) -> Quantity:
    return replace(quantity, kind=kind, source="a paper", date="2024-05")


def test_the_slowest_of_unlike_groups_comes_first_and_the_others_are_kept() -> None:
    """Each enters some host by one adapter of its two; over more hosts is slower, then in more levels."""
    pool = replace(A, hosts=4)
    found = group_shape(Cluster(pools=(pool,)), (0, 4, 8, 1, 5, 6), Mesh.parse("y=2 x=3"), ("x",))
    assert [(one.units, len(one.levels)) for one in (found, *found.also)] == [(3, 1), (2, 2)]
    turned = group_shape(Cluster(pools=(pool,)), (1, 5, 6, 0, 4, 8), Mesh.parse("y=2 x=3"), ("x",))
    assert turned == found
    alike = group_shape(Cluster(pools=(pool,)), (0, 4, 8, 1, 5, 9), Mesh.parse("y=2 x=3"), ("x",))
    assert (alike.units, alike.also) == (3, ())


def test_ranks_count_from_their_own_unit() -> None:
    """Ranks 6 to 11 of three hosts: pairs (6, 7), (8, 9), (10, 11) stay inside; triples straddle two hosts."""
    cluster = Cluster(pools=(replace(A, hosts=5),))
    late = tuple(range(14, 20))
    assert [level.tier for level in group_shape(cluster, late, Mesh.parse("y=3 x=2"), ("x",)).levels] == ["island"]
    straddling = group_shape(cluster, late, Mesh.parse("y=2 x=3"), ("x",))
    assert (straddling.units, straddling.levels[-1].members) == (2, 2)
    assert pair_shape(cluster, (6, 7), (8, 9)) == pair_shape(cluster, (2, 3), (4, 5))


def test_a_stage_of_a_later_pool_runs_on_its_devices() -> None:
    for cluster in (BOTH, replace(BOTH, matrix=LinkMatrix(tuple((8.0,) * 3 for _ in range(3))))):
        late = group_shape(cluster, (8, 9), Mesh.parse("x=2"), ("x",))
        assert (late.devices, late.levels[0].kind) == (("E",), "pcie5")
    assert group_shape(BOTH, (9,), Mesh.parse("x=1"), ("x",)).devices == ("E",)
    assert group_shape(BOTH, (0, 9), Mesh.parse("x=1 y=2"), ("x",)).devices == ("D",)


def test_measured_hosts_keep_their_own_rates() -> None:
    """80 Gb/s between the first two hosts, 24 between the others."""
    rows = ((0.0, 80.0, 24.0), (80.0, 0.0, 24.0), (24.0, 24.0, 0.0))
    cluster = Cluster(pools=(replace(A, hosts=3),), matrix=LinkMatrix(rows))
    for ranks, rate in (((0, 4), 10), ((4, 8), 3)):
        assert group_shape(cluster, ranks, Mesh.parse("x=2"), ("x",)).levels[0].rank_bytes_per_s == rate * G


@pytest.mark.parametrize(
    ("senders", "receivers", "pairs"),
    [
        ((0, 1, 2, 3), (8, 9), [[0, 8], [1, 8], [2, 9], [3, 9]]),
        ((0, 1), (5, 6, 7), [[0, 5], [0, 6], [1, 7]]),
        ((3, 4), (4, 3), [[3, 4], [4, 3]]),
    ],
)
def test_each_rank_of_the_larger_stage_has_a_partner(
    senders: tuple[int, ...], receivers: tuple[int, ...], pairs: list[list[int]]
) -> None:
    assert pairs_between(senders, receivers).tolist() == pairs


def test_groups_along_axes_in_the_order_asked_for() -> None:
    """Places of `x=2 y=2 z=2` count with z fastest."""
    ranks, mesh = tuple(range(10, 18)), Mesh.parse("x=2 y=2 z=2")
    assert groups_along(ranks, mesh, ("z",)).tolist() == [[10, 11], [12, 13], [14, 15], [16, 17]]
    assert groups_along(ranks, mesh, ("x",)).tolist() == [[10, 14], [11, 15], [12, 16], [13, 17]]
    assert groups_along(ranks, mesh, ("y", "x")).tolist() == [[10, 14, 12, 16], [11, 15, 13, 17]]
    assert groups_along(ranks, mesh, ()).tolist() == [[rank] for rank in ranks]


LEVEL = Level(
    tier="rail",
    kind="roce",
    parts=2,
    members=1,
    part_bytes_per_s=1.0,
    rank_bytes_per_s=1.0,
    pair_bytes_per_s=1.0,
    latency_s=0.0,
)


@pytest.mark.parametrize(
    "change",
    [
        {"tier": "floor"},
        {"parts": 1},
        {"members": 0},
        {"part_bytes_per_s": 0.0},
        {"rank_bytes_per_s": 0.0},
        {"pair_bytes_per_s": 0.0},
        {"latency_s": -1e-9},
    ],
)
def test_a_level_joins_parts_at_rates(change: dict[str, object]) -> None:
    with pytest.raises(BadGroup):
        replace(LEVEL, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ranks", "units", "levels", "good"),
    [
        (1, 1, 0, True),
        (2, 1, 1, True),
        (2, 2, 1, True),
        (0, 0, 0, False),
        (1, 1, 1, False),
        (2, 1, 0, False),
        (2, 0, 1, False),
        (2, 3, 1, False),
    ],
)
def test_a_shape_has_levels_where_it_has_ranks(ranks: int, units: int, levels: int, good: bool) -> None:
    if good:
        assert GroupShape(ranks=ranks, units=units, levels=(LEVEL,) * levels, devices=("D",)).ranks == ranks
        return
    with pytest.raises(BadGroup):
        GroupShape(ranks=ranks, units=units, levels=(LEVEL,) * levels, devices=("D",))
