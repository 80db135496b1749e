"""Prices of collectives: closed forms, laws, and the published rates that the laws were never fitted on."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from meshwright.cost_models.collectives.collective import (
    COLLECTIVES,
    LIBRARIES,
    NO_CURVES,
    Collective,
    Library,
    collective,
)
from meshwright.cost_models.collectives.curves import Curve, Curves, Network, shipped
from meshwright.cost_models.collectives.facts import facts
from meshwright.cost_models.collectives.laws import Law, law
from meshwright.cost_models.collectives.topology import GroupShape, Level, group_shape
from meshwright.cost_models.hardware.devices import device_names
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.hardware.toml import read
from meshwright.ir.errors import CollectiveUnknown
from meshwright.ir.sharding.mesh import Mesh

SIZES = st.floats(1, 1e11)
KINDS = st.sampled_from(COLLECTIVES)


def group(cluster: str, size: int, axes: str = "", along: str = "x") -> GroupShape:
    return group_shape(read_cluster(cluster), tuple(range(size)), Mesh.parse(axes or f"x={size}"), (along,))


@st.composite
def shapes(draw: st.DrawFn) -> GroupShape:
    """Groups over clusters of several kinds, alone or among others."""
    gpu = draw(st.sampled_from(["H100", "A100", "B200", "V100-PCIe", "RTX-4090", "MI300X", "GB200"]))
    hosts, slots = draw(st.sampled_from([1, 2, 4, 16])), draw(st.sampled_from([1, 2, 4]))
    nic = draw(st.sampled_from(["infiniband", "ethernet"]))
    cluster = f"{hosts}x{slots}x{gpu},inter=100G,nic={nic}"
    along = draw(st.sampled_from(["dp", "tp"]))
    return group_shape(
        read_cluster(cluster), tuple(range(hosts * slots)), Mesh.parse(f"dp={hosts} tp={slots}"), (along,)
    )


def scaled(shape: GroupShape, by: float) -> GroupShape:
    return replace(
        shape,
        levels=tuple(
            replace(
                level,
                part_bytes_per_s=level.part_bytes_per_s * by,
                rank_bytes_per_s=level.rank_bytes_per_s * by,
                pair_bytes_per_s=level.pair_bytes_per_s * by,
            )
            for level in shape.levels
        ),
    )


@for_all(KINDS, SIZES, SIZES, shapes(), st.sampled_from(LIBRARIES))
def test_more_bytes_never_take_less(
    kind: Collective, one: float, other: float, shape: GroupShape, library: Library
) -> None:
    few, many = sorted((one, other))
    assert collective(kind, few, shape, library).seconds <= collective(kind, many, shape, library).seconds * (1 + 1e-12)


@for_all(KINDS, SIZES, shapes(), st.floats(1, 100), st.sampled_from(LIBRARIES))
def test_more_bandwidth_is_never_slower(
    kind: Collective, nbytes: float, shape: GroupShape, by: float, library: Library
) -> None:
    slow = collective(kind, nbytes, shape, library, curves=NO_CURVES).seconds
    assert collective(kind, nbytes, scaled(shape, by), library, curves=NO_CURVES).seconds <= slow * (1 + 1e-12)


@for_all(KINDS, SIZES, st.sampled_from(LIBRARIES))
def test_a_group_of_one_costs_nothing(kind: Collective, nbytes: float, library: Library) -> None:
    assert collective(kind, nbytes, group("2x8xH100", 1), library).seconds == 0
    assert collective(kind, 0, group("2x8xH100", 8), library).seconds == 0


@for_all(SIZES, shapes(), st.sampled_from(LIBRARIES))
def test_all_reduce_costs_at_least_a_reduce_scatter(nbytes: float, shape: GroupShape, library: Library) -> None:
    """By the same algorithm: NCCL has trees for all_reduce alone, and over many hosts they start sooner."""
    if shape.ranks == 1:
        return
    reduce, scatter = (
        Law(tuple(line for line in found.lines if not line.how.startswith(("tree", "NVLS tree"))), found.provenance)
        for found in (law("all_reduce", shape, library), law("reduce_scatter", shape, library))
    )
    assert reduce.seconds(nbytes) >= scatter.seconds(nbytes)


@for_all(KINDS, SIZES, st.sampled_from(["H100", "A100", "MI300X", "RTX-4090"]), st.sampled_from([2, 4, 8, 64]))
def test_a_level_more_is_never_faster(kind: Collective, nbytes: float, gpu: str, hosts: int) -> None:
    cluster = f"{hosts}x8x{gpu},inter=100G"
    inside, whole = group(cluster, 8), group(cluster, 8 * hosts)
    assert [level.tier for level in whole.levels] == [level.tier for level in inside.levels] + ["rail"]
    for library in ("nccl", "gloo"):
        within = collective(kind, nbytes, inside, library, curves=NO_CURVES).seconds
        assert within <= collective(kind, nbytes, whole, library, curves=NO_CURVES).seconds * (1 + 1e-12)


@for_all(SIZES, st.floats(1, 8))
def test_imbalance_scales_what_is_exchanged(nbytes: float, imbalance: float) -> None:
    shape = group("8x8xA100", 64)
    even, uneven, none = (
        collective("all_to_all", size, shape, imbalance=load).seconds
        for size, load in ((nbytes, 1.0), (nbytes, imbalance), (1e-9, 1.0))
    )
    assert uneven - none == pytest.approx(imbalance * (even - none), rel=1e-6, abs=1e-12)


def test_hand_worked_times() -> None:
    """NCCL 2.23's own numbers, by hand: 8 H100, LL: 6.6 us + 7 x 0.6 us + 7/8 x 64 KiB / 141 GB/s."""
    found = law("all_gather", group("1x8xH100", 8))
    assert found.seconds(65536) == pytest.approx(6.6e-6 + 7 * 0.6e-6 + 0.875 * 65536 / 141e9)
    # A hundred gigabytes over two hosts of eight: rings fill eight NICs of 50 GB/s at 96 %, but NVLink is 450 x 82.4 %.
    big, ring = 1e11, min(0.96 * 400e9, 0.824 * 450e9)
    assert law("all_gather", group("2x8xH100", 16)).seconds(big) == pytest.approx(15 / 16 * big / ring, rel=0.02)
    # One rank per host, seven more groups beside it: a NIC each.
    alone = group("4x8xH100", 32, "dp=4 tp=8", "dp")
    assert law("reduce_scatter", alone).seconds(big) == pytest.approx(3 / 4 * big / 48e9, rel=0.02)


def test_an_exchange_is_bound_by_its_network() -> None:
    """16 ranks on two hosts: each host sends half of eight buffers over eight NICs."""
    share = facts()["fits"]["all_to_all_share"]["value"]
    volume, nics = 8 * 1e9 / 2, 0.96 * 400e9
    found = law("all_to_all", group("2x8xH100", 16)).seconds(1e9)
    assert found == pytest.approx(volume / nics / share, rel=0.01)


def test_trees_and_nvls_only_where_nccl_has_them() -> None:
    def choices(kind: Collective, shape: GroupShape, library: Library = "nccl") -> set[str]:
        return {line.how for line in law(kind, shape, library).lines}

    assert choices("all_gather", group("1x8xH100", 8)) == {"ring LL", "ring LL128", "ring Simple"}
    assert "NVLS" in choices("all_reduce", group("1x8xH100", 8))
    assert "NVLS" not in choices("all_reduce", group("1x8xA100", 8))
    assert "NVLS tree" in choices("all_reduce", group("2x8xB200", 16))
    assert "NVLS tree" not in choices("all_reduce", group("2x8xB200,inter=100G,nic=ethernet", 16))
    assert "PAT" in choices("reduce_scatter", group("4x8xH100", 32, "dp=4 tp=8", "dp"))
    assert "ring LL128" not in choices("all_gather", group("1x4xRTX-4090", 4))
    assert not any("NVLS" in how for how in choices("all_reduce", group("1x8xMI300X", 8), "rccl"))


@pytest.mark.parametrize(("hosts", "times"), [(2, 1), (3, 2), (4, 2)])
def test_a_tree_of_switches_sends_twice_over_the_network_but_between_two_hosts(hosts: int, times: int) -> None:
    """Eight adapters of 50 Gb/s at 96 %, far slower than NVLink. Up and down; of two hosts each sends up what the other
    needs, once."""
    (tree,) = (
        line
        for line in law("all_reduce", group(f"{hosts}x8xB200,inter=50G", 8 * hosts)).lines
        if line.how == "NVLS tree"
    )
    assert tree.beta_s_per_byte == pytest.approx(times / (8 * 50e9 / 8 * 0.96), rel=1e-6)


def test_gloo_scatters_by_reducing_all() -> None:
    shape = group("cpu:4", 4)
    for nbytes in (1e3, 1e8):
        assert collective("reduce_scatter", nbytes, shape, "gloo") == collective("all_reduce", nbytes, shape, "gloo")
        assert collective("broadcast", nbytes, shape, "nccl") == collective("broadcast", nbytes, shape, "gloo"), (
            "on CPUs"
        )


def test_xla_gathers_over_a_torus_at_the_rate_of_its_links() -> None:
    """64 chips of v5p, 4x4x4: 63/64 of the bytes over six links of 100 GB/s."""
    priced = collective("all_gather", 6e11, group("16x4xTPU-v5p", 64), "xla")
    assert priced.seconds == pytest.approx(63 / 64, rel=1e-3)


def test_curves_are_read_where_they_were_measured_and_nowhere_else() -> None:
    inside = group("2x8xH100", 8)
    assert collective("all_gather", 1e8, inside).provenance == "measured"
    assert collective("all_gather", 1e8, group("2x8xH100", 16)).provenance == "datasheet"
    assert collective("all_gather", 1e8, group("1x6xH100", 6)).how.startswith("ring")
    assert collective("all_gather", 1e8, inside, "rccl").provenance != "measured"
    assert collective("shift", 1e8, inside).provenance == "measured"
    assert collective("all_gather", 1e8, scaled(inside, 0.5)).provenance != "measured", "slower wires than the device's"
    assert collective("all_gather", 1e8, group("1x8xMI300X", 8), "rccl").provenance == "assumed"


@pytest.mark.parametrize("curve", shipped().all, ids=lambda curve: f"{curve.kind}-{curve.device}-{curve.per_host}")
def test_a_measured_point_is_read_exactly(curve: Curve) -> None:
    shape = group(f"1x{curve.per_host}x{curve.device}", curve.per_host)
    for nbytes, seconds in curve.points:
        assert collective(curve.kind, nbytes, shape).seconds == pytest.approx(seconds, rel=1e-9)


HOSTS = """\
link_matrix = [[0, 0.1, 0.4], [0.1, 0, 0.1], [0.4, 0.1, 0]]
[[pool]]
name = "a"
hosts = 3
gpu = "CPU"
gpus_per_host = 1
nics = [{ kind = "ethernet", gbps = 0.4, count = 1 }]
"""


def test_what_was_measured_over_all_hosts_says_what_goes_with_a_time_of_the_law() -> None:
    """A profile whose collectives take twice what the law has for all three hosts: so does a pair, on faster wires."""
    cluster = read(HOSTS)
    whole = group_shape(cluster, (0, 1, 2), Mesh.parse("x=3"), ("x",))
    fast, slow = (group_shape(cluster, pair, Mesh.parse("x=2"), ("x",)) for pair in ((0, 2), (0, 1)))
    points = tuple((float(nbytes), 2 * law("all_reduce", whole, "gloo").seconds(nbytes)) for nbytes in (1e3, 1e6))
    sent = tuple((float(nbytes), 3 * law("p2p", slow, "gloo").seconds(nbytes)) for nbytes in (1e3, 1e6))
    both = [Curve(kind="all_reduce", device="CPU", hosts=3, per_host=1, points=points, source="", libraries=("gloo",))]
    both.append(replace(both[0], kind="p2p", points=sent))
    known = Curves(tuple(both), Network(3, 1, whole, slow))
    for shape, worth in ((whole, "measured"), (fast, "fitted"), (slow, "fitted")):
        priced = collective("all_reduce", 1e6, shape, "gloo", curves=known)
        assert priced.seconds == pytest.approx(2 * law("all_reduce", shape, "gloo").seconds(1e6), rel=0.01)
        assert priced.provenance == worth
    priced = collective("shift", 1e6, fast, "gloo", curves=known)
    assert priced.seconds == pytest.approx(3 * law("p2p", fast, "gloo").seconds(1e6), rel=0.01)
    for lacking in (Curves(tuple(both)), replace(known, network=Network(2, 1, whole, slow))):
        plain = collective("all_reduce", 1e6, whole, "gloo", curves=lacking).seconds
        assert plain == law("all_reduce", whole, "gloo").seconds(1e6)
    assert collective("all_gather", 1e6, whole, "gloo", curves=known).seconds == law(
        "all_gather", whole, "gloo"
    ).seconds(1e6)


PUBLISHED_BUS_RATES = [
    ("1x8xH200", "all_gather", 361.4e9, 0.05),
    ("1x8xH200", "reduce_scatter", 362.9e9, 0.05),
    ("1x8xH200", "all_reduce", 480.0e9, 0.05),
    ("1x8xB200", "all_reduce", 845.7e9, 0.05),
    ("1x8xA100", "all_reduce", 234.9e9, 0.05),
    ("4x8xB200,inter=400G", "all_reduce", 380.4e9, 0.05),
]
"""benchmarks/data/collectives.csv, stas00 ML engineering: nccl-tests at 8 to 16 GiB. Nothing was fitted on them."""


@pytest.mark.parametrize(("cluster", "kind", "rate", "within"), PUBLISHED_BUS_RATES)
def test_laws_meet_published_peaks(cluster: str, kind: Collective, rate: float, within: float) -> None:
    size = read_cluster(cluster).ranks
    share = (size - 1) / size * (2 if kind == "all_reduce" else 1)
    nbytes = 16 * 2**30
    assert nbytes * share / law(kind, group(cluster, size)).seconds(nbytes) == pytest.approx(rate, rel=within)


def test_shares_of_a_host_follow_from_how_many_groups_meet() -> None:
    """Galvatron's two hosts of eight: groups of 2, 4, 8 ranks that cross them, side by side, have 8.1, 16.2, 20.8 GB/s,
    16 in one group 44.7. The network is not stated; doubling with the members of a group per host is what we claim."""
    measured = {2: 8.13007, 4: 16.22, 8: 20.7724, 16: 44.682}
    rates = {
        size: group("2x8xA100,inter=68G", 16, f"x={size} y={16 // size}").levels[-1].part_bytes_per_s / 1e9
        for size in measured
    }
    assert rates[16] == pytest.approx(2 * rates[8]) == pytest.approx(4 * rates[4]) == pytest.approx(8 * rates[2])
    assert fmean(abs(rates[size] / measured[size] - 1) for size in measured) < 0.35


def test_a_law_is_made_once_for_all_sizes() -> None:
    shape = group("16x8xH100", 128)
    collective("all_gather", 1e6, shape)
    made = law.cache_info().misses
    for step in range(1_000):
        collective("all_gather", 1e6 + step, shape)
    assert law.cache_info().misses == made


def test_every_device_has_a_price_on_its_own_wires() -> None:
    for name in device_names():
        shape = group(f"2x4x{name},inter=100G", 8)
        library: Library = "xla" if name.startswith("TPU") else "nccl"
        for kind in COLLECTIVES:
            assert 0 < collective(kind, 1e6, shape, library).seconds < 1


def test_fitted_constants_say_what_they_were_fitted_on() -> None:
    fits = facts()["fits"]
    assert len(fits) <= 5
    assert all(entry["fitted_on"] and entry["date"] and entry["unit"] and entry["value"] > 0 for entry in fits.values())


def test_what_has_no_price_is_refused() -> None:
    shape = group("1x8xH100", 8)
    for kind, nbytes, library, imbalance in [
        ("scan", 1, "nccl", 1.0),
        ("all_gather", 1, "mpi", 1.0),
        ("all_gather", -1, "nccl", 1.0),
        ("all_to_all", 1, "nccl", 0.5),
    ]:
        with pytest.raises(CollectiveUnknown):
            collective(kind, nbytes, shape, library, imbalance=imbalance)  # type: ignore[arg-type]


def test_an_unknown_wire_gets_the_least_share_and_says_so() -> None:
    level = Level(
        tier="rail",
        kind="carrier-pigeon",
        parts=2,
        members=1,
        part_bytes_per_s=1e9,
        rank_bytes_per_s=1e9,
        pair_bytes_per_s=1e9,
        latency_s=1.0,
    )
    shape = GroupShape(ranks=2, units=2, levels=(level,), devices=("H100-80G",))
    assert collective("p2p", 1e9, shape).provenance == "assumed"
