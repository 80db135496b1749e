"""Every line of a law, worked out by hand from NCCL's tables (2.23, tuning.cc) and the formulas of the module."""

from __future__ import annotations

from math import inf

import pytest

from meshwright.cost_models.collectives.collective import Collective, Library
from meshwright.cost_models.collectives.laws import Law, Line, law
from meshwright.cost_models.collectives.topology import GroupShape, Level
from meshwright.cost_models.hardware.quantity import Kind
from meshwright.ir.errors import CollectiveUnknown

US = 1e-6
RAMP, PEER, SPREAD = 28 * US, 0.86 * US, 0.833
"""Fitted here: on the way to the full rate, for every peer of an exchange, and the share that exchanges reach."""
NVLINK, NET = 0.824 * 450e9, 0.96 * 200e9


def level(tier: str, kind: str, parts: int, gbytes: float, *, members: int = 1, us: float = 0.0) -> Level:
    """One rank alone has a quarter of the rate of its part, a pair of parts half."""
    return Level(
        tier=tier,  # type: ignore[arg-type]
        kind=kind,
        parts=parts,
        members=members,
        part_bytes_per_s=gbytes * 1e9,
        rank_bytes_per_s=gbytes * 1e9 / 4,
        pair_bytes_per_s=gbytes * 1e9 / 2,
        latency_s=us * US,
    )


def shape(ranks: int, units: int, *levels: Level) -> GroupShape:
    return GroupShape(ranks=ranks, units=units, levels=levels, devices=("GPU",))


HOST = shape(8, 1, level("island", "nvlink4", 8, 450))
HOSTS = shape(32, 4, level("island", "nvlink4", 8, 450), level("rail", "infiniband", 4, 200, members=8, us=3.7))
APART = shape(4, 4, level("rail", "infiniband", 4, 200, us=2.7))
OLD = shape(8, 2, level("host", "pcie3", 4, 12), level("rail", "ethernet", 2, 12.5, members=4, us=30))
PAIR = shape(16, 2, level("island", "nvlink4", 8, 450), level("rail", "infiniband", 2, 200, members=8, us=2.7))
ODD = shape(12, 2, level("island", "nvlink4", 8, 450), level("rail", "infiniband", 2, 200, members=8, us=2.7))
HALVES = shape(8, 1, level("island", "nvlink2", 4, 150), level("host", "pcie3", 2, 12))
POOLS = shape(4, 4, level("rail", "infiniband", 2, 200, us=2.7), level("pools", "ethernet", 2, 10, us=30))
SIX = shape(6, 2, level("host", "pcie3", 3, 12), level("rail", "ethernet", 2, 12.5, members=3, us=30))

OLD_RING, TCP = 0.27 * 12e9, (30 - 2.7 + 124) * US
"""PCIe is the narrower of the two. What TCP adds to a hop of InfiniBand."""
TREE = 0.92 * NVLINK

EXPECTED: list[tuple[GroupShape, Collective, Library, list[tuple[str, float, float, float]]]] = [
    (
        HOST,
        "all_reduce",
        "nccl",
        [
            ("ring LL", (6.6 + 14 * 0.6) * US, 1.75 / 141e9, 0),
            ("ring LL128", (14 + 14 * 1.9) * US, 1.75 / (0.92 * NVLINK), RAMP),
            ("ring Simple", (8.4 + 14 * 3.4) * US, 1.75 / NVLINK, RAMP),
            ("tree LL", (6.8 + 14 * 0.6) * US, 2 / (TREE / 3.8), 0),
            ("tree LL128", (14 + 14 * 1.25) * US, 2 / (TREE * 7 / 9), RAMP),
            ("tree Simple", (8.4 + 14 * 4) * US, 2 / TREE, RAMP),
            ("NVLS", 25 * US, 1.125 / (0.85 * NVLINK), RAMP),
        ],
    ),
    (
        HOST,
        "all_gather",
        "nccl",
        [
            ("ring LL", (6.6 + 7 * 0.6) * US, 0.875 / 141e9, 0),
            ("ring LL128", (14 + 7 * 1.9) * US, 0.875 / (0.92 * NVLINK), RAMP),
            ("ring Simple", (8.4 + 7 * 3.4) * US, 0.875 / NVLINK, RAMP),
        ],
    ),
    (
        HOST,
        "broadcast",
        "nccl",
        [
            ("ring LL", (6.6 + 7 * 0.6) * US, 1 / 141e9, 0),
            ("ring LL128", (14 + 7 * 1.9) * US, 1 / (0.92 * NVLINK), RAMP),
            ("ring Simple", (8.4 + 7 * 3.4) * US, 1 / NVLINK, RAMP),
        ],
    ),
    (
        HOST,
        "p2p",
        "nccl",
        [("send LL", 7.2 * US, 1 / (NVLINK / 4 / 2), 0), ("send Simple", 9.0 * US, 1 / (NVLINK / 4), 0)],
    ),
    (HOST, "all_to_all", "nccl", [("send to all", 6.6 * US + 7 * PEER, 0.875 / NVLINK / SPREAD, 0)]),
    (
        HOSTS,  # 28 steps inside, at least as long as the network's proxy takes, and three of 2.7 + 1 us outside
        "all_reduce",
        "nccl",
        [
            ("ring LL", (6.6 + 2 * (28 * 1 + 3 * 3.7)) * US, 2 * 31 / 32 / 20.4e9, 0),
            ("ring LL128", (14 + 2 * (28 * 1.9 + 3 * 5)) * US, 2 * 31 / 32 / (0.92 * NET), RAMP),
            ("ring Simple", (8.4 + 2 * (28 * 3.4 + 3 * 15)) * US, 2 * 31 / 32 / NET, RAMP),
            ("tree LL", (6.8 + 2 * (7 * 1 + 2 * 6)) * US, 2 / 20.4e9, 0),
            ("tree LL128", (14 + 2 * (7 * 1.25 + 2 * 9.5)) * US, 2 / (0.92 * NET * 120 / 128), RAMP),
            ("tree Simple", (8.4 + 2 * (7 * 4 + 2 * 15)) * US, 2 / (0.92 * NET), RAMP),
            ("NVLS tree", (25 + 2 * 2 * 15) * US, 2 / NET, RAMP),
        ],
    ),
    (
        HOSTS,  # a host sends 8 x 24/32 of a buffer over its adapters, and half of what they have to another one
        "all_to_all",
        "nccl",
        [("send to all", (6.6 + 1) * US + 31 * PEER, 6 / NET / SPREAD, 0)],
    ),
    (
        APART,  # one rank per host: the latency of trees
        "all_gather",
        "nccl",
        [
            ("ring LL", (6.6 + 3 * 5) * US, 0.75 / 20.4e9, 0),
            ("ring LL128", (14 + 3 * 8.5) * US, 0.75 / (0.92 * NET), RAMP),
            ("ring Simple", (8.4 + 3 * 14) * US, 0.75 / NET, RAMP),
            ("PAT", (8 + 2 * 14 / 3.5 + 2.8 * 4) * US, 1 / (0.75 * NET), RAMP),
        ],
    ),
    (
        APART,
        "reduce_scatter",
        "rccl",
        [
            ("ring LL", (12 + 3 * 5) * US, 0.75 / 20.4e9, 0),
            ("ring LL128", (12 + 3 * 8.5) * US, 0.75 / (0.92 * NET), RAMP),
            ("ring Simple", (17 + 3 * 14) * US, 0.75 / NET, RAMP),
        ],
    ),
    (
        APART,
        "all_reduce",
        "rccl",
        [
            ("ring LL", (12 + 6 * 5) * US, 1.5 / 20.4e9, 0),
            ("ring LL128", (12 + 6 * 8.5) * US, 1.5 / (0.92 * NET), RAMP),
            ("ring Simple", (17 + 6 * 14) * US, 1.5 / NET, RAMP),
            ("tree LL", (12 + 2 * 2 * 5) * US, 2 / 20.4e9, 0),
            ("tree LL128", (12 + 2 * 2 * 8.5) * US, 2 / (0.92 * NET * 120 / 128), RAMP),
            ("tree Simple", (17 + 2 * 2 * 14) * US, 2 / (0.92 * NET), RAMP),
        ],
    ),
    (
        OLD,
        "all_reduce",
        "nccl",
        [
            ("ring LL", (6.6 + 2 * (6 * 1 + 2.7)) * US + 2 * TCP, 1.75 / (OLD_RING / 2), 0),
            ("ring Simple", (8.4 + 2 * (6 * 5.7 + 14)) * US + 2 * TCP, 1.75 / OLD_RING, RAMP),
            ("tree LL", (6.8 + 2 * (3 * 1 + 5)) * US + 2 * TCP, 2 / (0.92 * OLD_RING / 3.8), 0),
            ("tree Simple", (8.4 + 2 * (3 * 4 + 14)) * US + 2 * TCP, 2 / (0.92 * OLD_RING), RAMP),
        ],
    ),
    (
        OLD,  # four ranks send half a buffer each over Ethernet; PCIe is less of a limit
        "all_to_all",
        "nccl",
        [("send to all", 6.6 * US + 7 * PEER + TCP, 4 / (0.9415 * 12.5e9) / SPREAD, 0)],
    ),
    (
        PAIR,
        "shift",
        "nccl",
        [
            ("send LL", (6.6 + 2.7) * US, 1 / (NET / 4 / 2), 0),
            ("send Simple", (8.4 + 2.7) * US, 1 / (NET / 4), 0),
        ],
    ),
    (
        ODD,  # ten steps inside, one outside; two hosts: 39 GB/s of LL; a chain of six ranks in each
        "all_reduce",
        "nccl",
        [
            ("ring LL", (6.6 + 2 * (10 * 1 + 2.7)) * US, 2 * 11 / 12 / 39e9, 0),
            ("ring LL128", (14 + 2 * (10 * 1.9 + 4)) * US, 2 * 11 / 12 / (0.92 * NET), RAMP),
            ("ring Simple", (8.4 + 2 * (10 * 3.4 + 14)) * US, 2 * 11 / 12 / NET, RAMP),
            ("tree LL", (6.8 + 2 * (5 * 1 + 5)) * US, 2 / 39e9, 0),
            ("tree LL128", (14 + 2 * (5 * 1.25 + 8.5)) * US, 2 / (0.92 * NET * 120 / 128), RAMP),
            ("tree Simple", (8.4 + 2 * (5 * 4 + 14)) * US, 2 / (0.92 * NET), RAMP),
            ("NVLS tree", (25 + 2 * 14) * US, 1 / NET, RAMP),
        ],
    ),
    (
        ODD,  # 8 x 8 / 12 of a buffer between the hosts, where a pair of them has half
        "all_to_all",
        "nccl",
        [("send to all", 6.6 * US + 11 * PEER, 64 / 12 / (NET / 2) / SPREAD, 0)],
    ),
    (
        HALVES,  # six steps over NVLink, one over PCIe, which LL128 does not go over; no switch joins the halves
        "all_reduce",
        "nccl",
        [
            ("ring LL", (6.6 + 2 * (6 * 0.6 + 1)) * US, 1.75 / (0.27 * 12e9 / 2), 0),
            ("ring Simple", (8.4 + 2 * (6 * 3.4 + 5.7)) * US, 1.75 / (0.27 * 12e9), RAMP),
            ("tree LL", (6.8 + 2 * 7 * 1) * US, 2 / (0.92 * 0.27 * 12e9 / 3.8), 0),
            ("tree Simple", (8.4 + 2 * 7 * 4) * US, 2 / (0.92 * 0.27 * 12e9), RAMP),
        ],
    ),
    (
        POOLS,  # two ranks send 2/4 over the link between pools, and a pair of pools 2 x 2/4 at half the rate
        "all_to_all",
        "nccl",
        [("send to all", 6.6 * US + 3 * PEER + TCP, 1 / (0.9415 * 5e9) / SPREAD, 0)],
    ),
    (POOLS, "p2p", "gloo", [("send", 170 * US, 1 / (0.9415 * 2.5e9), 0)]),
    (SIX, "broadcast", "gloo", [("binomial tree", 3 * 170 * US, 3 / (OLD_RING / 4), 0)]),
    (OLD, "all_reduce", "gloo", [("ring", 2 * 7 * 170 * US, 1.75 / 0.9e9, 0)]),
    (OLD, "reduce_scatter", "gloo", [("ring", 2 * 7 * 170 * US, 1.75 / 0.9e9, 0)]),
    (OLD, "all_gather", "gloo", [("ring", 7 * 170 * US, 0.875 / 0.9e9, 0)]),
    (OLD, "broadcast", "gloo", [("binomial tree", 3 * 170 * US, 3 / (OLD_RING / 4), 0)]),
    (OLD, "all_to_all", "gloo", [("pairwise", 7 * 170 * US, 0.875 / 0.9e9, 0)]),
    (OLD, "p2p", "gloo", [("send", 170 * US, 1 / (OLD_RING / 4), 0)]),
]


@pytest.mark.parametrize(
    ("group", "kind", "library", "lines"), EXPECTED, ids=lambda one: one if isinstance(one, str) else ""
)
def test_lines(
    group: GroupShape, kind: Collective, library: Library, lines: list[tuple[str, float, float, float]]
) -> None:
    found = law(kind, group, library).lines
    assert [line.how for line in found] == [how for how, *_ in lines]
    for line, (_, alpha, beta, ramp) in zip(found, lines, strict=True):
        assert line.alpha_s == pytest.approx(alpha), line.how
        assert line.beta_s_per_byte == pytest.approx(beta), line.how
        assert line.ramp_s == pytest.approx(ramp), line.how


def test_two_hosts_send_up_once() -> None:
    """Then the network takes half as long, and may be as quick as the switch."""
    (tree,) = (line for line in law("all_reduce", PAIR).lines if line.how == "NVLS tree")
    assert tree.alpha_s == pytest.approx((25 + 2 * 14) * US)
    assert tree.beta_s_per_byte == pytest.approx(max(1 / NET, 1.125 / (0.85 * NVLINK)))
    fast = shape(16, 2, HOST.levels[0], level("rail", "infiniband", 2, 900, members=8))
    (tree,) = (line for line in law("all_reduce", fast).lines if line.how == "NVLS tree")
    assert tree.beta_s_per_byte == pytest.approx(1.125 / (0.85 * NVLINK))


@pytest.mark.parametrize(
    ("kind", "start", "share"),
    [("all_gather", 15, 15 / 16), ("reduce_scatter", 15, 15 / 16), ("all_reduce", 15, 30 / 16), ("broadcast", 15, 1)],
)
def test_a_torus_has_rings_on_all_axes(kind: Collective, start: int, share: float) -> None:
    """Sixteen chips on two axes: twelve steps along the first and three along the other, a microsecond each."""
    torus = shape(16, 1, level("island", "ici", 4, 90, us=1), level("island", "ici", 4, 90, members=4, us=5))
    (line,) = law(kind, torus, "xla").lines
    assert (line.how, line.alpha_s, line.beta_s_per_byte) == (
        "torus",
        pytest.approx(start * US),
        pytest.approx(share / 90e9),
    )
    (near,) = law("shift", torus, "xla").lines
    assert (near.how, near.alpha_s, near.beta_s_per_byte) == ("neighbour", 1 * US, pytest.approx(4 / 90e9))
    (every,) = law("all_to_all", torus, "xla", 1.5).lines
    assert every.alpha_s == pytest.approx(start * US)
    assert every.beta_s_per_byte == pytest.approx(1.5 * 4 * 12 / 16 / 90e9)  # four ranks send 12/16 each
    assert {one.how for one in law("all_gather", HOST, "xla").lines} == {"ring LL", "ring LL128", "ring Simple"}


def test_imbalance_is_of_exchanges_alone() -> None:
    for kind, times in (("all_to_all", 3.0), ("all_gather", 1.0), ("p2p", 1.0)):
        even, uneven = (law(kind, HOST, "nccl", by).lines[-1].beta_s_per_byte for by in (1.0, 3.0))  # type: ignore[arg-type]
        assert uneven == pytest.approx(times * even)
    assert law("all_to_all", OLD, "gloo", 3.0).lines[0].beta_s_per_byte == pytest.approx(3 * 0.875 / 0.9e9)


def test_a_pair_of_parts_may_be_what_is_slowest() -> None:
    """Two hosts of eight, one adapter between them that is eight times as slow as what each has."""
    slow = level("rail", "infiniband", 2, 200, members=8)
    slow = Level(**{name: getattr(slow, name) for name in slow.__slots__} | {"pair_bytes_per_s": 25e9})
    (line,) = law("all_to_all", shape(16, 2, HOST.levels[0], slow)).lines
    assert line.beta_s_per_byte == pytest.approx(8 * 8 / 16 / (0.96 * 25e9) / SPREAD)


def test_the_least_line_counts_and_grows_with_a_root() -> None:
    found = Law((Line("quick", 1.0, 4.0), Line("wide", 3.0, 1.0, 16.0)), "fitted")
    assert found.best(0) == (1.0, "quick")
    assert found.best(1) == (5.0, "quick")  # the other: 3 + 1 + 4
    assert found.best(4) == (3 + 4 + 8, "wide")  # the other: 17
    assert found.seconds(4) == 15
    assert (found.clock(0), found.clock(1), found.clock(4)) == (1.0, 4.0, 7.0)  # without the root
    tie = Law((Line("first", 1.0, 1.0), Line("second", 1.0, 1.0)), "fitted")
    assert tie.best(5) == (6.0, "first")
    assert Law((), "fitted").best(5) == (inf, "")


def test_levels_that_hold_more_than_the_group_leave_one_rank_outside() -> None:
    """Four, two and two parts of four ranks: on the last level four ranks send a quarter of a buffer each."""
    wide = Level(
        tier="rail",
        kind="infiniband",
        parts=2,
        members=2,
        part_bytes_per_s=1e6,
        rank_bytes_per_s=1e6,
        pair_bytes_per_s=1e15,
        latency_s=0.0,
    )
    (line,) = law("all_to_all", shape(4, 2, *HALVES.levels, wide)).lines
    assert line.beta_s_per_byte == pytest.approx(1 / (0.96 * 1e6) / SPREAD)


def test_no_switch_sums_over_two_levels_of_a_host() -> None:
    found = shape(8, 1, level("island", "nvlink4", 4, 450), level("host", "pcie5", 2, 60))
    assert [line.how for line in law("all_reduce", found).lines] == ["ring LL", "ring Simple", "tree LL", "tree Simple"]


@pytest.mark.parametrize(
    ("kind", "library", "imbalance", "group"),
    [("scan", "nccl", 1.0, HOST), ("p2p", "mpi", 1.0, HOST), ("p2p", "nccl", 0.9, HOST), ("p2p", "nccl", 1.0, None)],
)
def test_what_no_law_is_about_is_refused(kind: str, library: str, imbalance: float, group: GroupShape | None) -> None:
    with pytest.raises(CollectiveUnknown):
        law(kind, group or shape(1, 1), library, imbalance)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rates", "kind", "expected"),
    [
        ("measured", "nvlink4", "fitted"),  # so is the share of it that arrives
        ("datasheet", "nvlink4", "datasheet"),
        ("measured", "ici", "datasheet"),
        ("assumed", "ici", "assumed"),
        ("measured", "unheard of", "assumed"),
    ],
)
def test_what_is_known_least_of_is_said(rates: Kind, kind: str, expected: str) -> None:
    wires = (level("island", kind, 8, 450),)
    found = law("all_gather", GroupShape(ranks=8, units=1, levels=wires, devices=("GPU",), weakest=rates))
    assert found.provenance == expected
