"""Where ranks stand, and what a matrix of measured rates says of groups, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.cost_models.collectives.locations import Locations, locations_of, measured_rates, torus_share
from meshwright.cost_models.hardware.parts import TIERS, Tier
from meshwright.ir.same import Same
from tests.cost_models.test_topology_by_hand import BOTH, DEVICES, HOSTS, RACKS

INSIDE = {(0, 1): 50, (0, 2): 40, (1, 2): 45, (0, 3): 26, (1, 3): 35, (2, 3): 28}
RATES = INSIDE | {(0, 4): 20, (1, 4): 12, (2, 4): 22, (3, 4): 15}
"""Between five ranks."""


def square(size: int, rates: dict[tuple[int, int], int]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    found = np.zeros((size, size))
    for (one, other), rate in rates.items():
        found[one, other] = found[other, one] = rate
    return found


def array(*numbers: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array(numbers, dtype=np.int64)


FIVE = Locations(
    pool=array(0, 0, 0, 0, 1),
    unit=array(0, 0, 0, 1, 2),
    island=array(0, 0, 1, 2, 3),
    host=array(0, 0, 0, 1, 2),
    pools=(),
    matrix=square(5, RATES),
    by_host=False,
)
"""Two ranks in an island, one more in their host, one on another host, one in another pool."""
BY_HOST = replace(FIVE, matrix=square(3, {(0, 1): 8, (0, 2): 5, (1, 2): 6}), by_host=True)

Found = tuple[float, float] | None


def rates(locations: Locations, *group: int) -> dict[Tier, Found]:
    return {tier: found for tier in TIERS if (found := measured_rates(locations, array(*group), tier)) is not None}


def test_the_slowest_neighbours_and_the_slowest_pair_of_every_tier() -> None:
    """Of a ring, which ends where it began; where no neighbours meet on a tier, its pairs speak for them."""
    table: list[tuple[Locations, tuple[int, ...], dict[Tier, Found]]] = [
        # ring: 0-1, 1-2, 2-3, 3-4, 4-0
        (FIVE, (0, 1, 2, 3, 4), {"island": (50, 50), "host": (45, 40), "rail": (28, 26), "pools": (15, 12)}),
        # ring: 0-3, 3-1, 1-4, 4-0; the island's two are no neighbours
        (FIVE, (0, 3, 1, 4), {"island": (50, 50), "rail": (26, 26), "pools": (12, 12)}),
        (FIVE, (0, 3), {"rail": (26, 26)}),
        (FIVE, (2,), {}),
        # hosts: what is inside them was not measured
        (BY_HOST, (0, 1, 2, 3, 4), {"rail": (8, 8), "pools": (5, 5)}),
        (BY_HOST, (3, 0, 4, 1), {"rail": (8, 8), "pools": (5, 5)}),
        (BY_HOST, (3, 4), {"pools": (6, 6)}),
        (BY_HOST, (0, 1), {}),
        (replace(FIVE, matrix=None), (0, 1, 2, 3, 4), {}),
    ]
    for locations, group, expected in table:
        assert rates(locations, *group) == expected, group


def test_where_the_ranks_of_a_cluster_stand() -> None:
    """Two hosts of four, in islands of two; then four hosts of two, of which two are an island."""
    found = locations_of(Same(RACKS))
    assert found.pool.tolist() == [0] * 8 + [1] * 8
    assert found.host.tolist() == [0] * 4 + [1] * 4 + [2, 2, 3, 3, 4, 4, 5, 5]
    assert found.unit.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert found.island.tolist() == [0, 0, 1, 1, 2, 2, 3, 3] + [4] * 4 + [5] * 4
    assert (found.matrix, found.by_host) == (None, False)
    # Without islands each is one of its own.
    found = locations_of(Same(BOTH))
    assert found.island.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 5]
    assert found.host.tolist() == [0] * 4 + [1] * 4 + [2, 2]
    first, second = found.pools
    assert (first.island, first.island_size, first.island_kind) == (100e9, 2, "nvlink3")
    # Two adapters of 10 GB/s on a host; one of 5 for two devices.
    assert (first.host, first.host_kind, first.port, first.total, first.nic_kinds) == (
        20e9,
        "pcie4",
        10e9,
        20e9,
        ("infiniband",),
    )
    assert (second.island, second.island_size, second.island_kind) == (float("inf"), 1, "")
    assert (second.port, second.total, second.nic_kinds) == (5e9, 5e9, ("roce",))
    assert [len(one.quantities) for one in (first, second)] == [3, 2]
    # Two hosts of an island send together.
    rack = locations_of(Same(RACKS)).pools[1]
    assert (rack.island_size, rack.port, rack.total) == (4, 10e9, 20e9)


def test_the_slower_direction_counts_in_bytes() -> None:
    for cluster, by_host, one, other, gbps in ((DEVICES, False, 1, 6, 8.0), (HOSTS, True, 0, 1, 56.0)):
        found = locations_of(Same(cluster))
        assert found.by_host is by_host
        assert found.matrix is not None
        assert found.matrix[one, other] == found.matrix[other, one] == gbps * 1e9 / 8


def test_sides_of_a_torus() -> None:
    """Two links of a side that wraps around, one of a shorter one, none of one alone; of two a dimension."""
    table = [
        ("H100-80G", 8, 1.0),
        ("TPU-v4", 1, 0.0),
        ("TPU-v4", 2, 1 / 6),
        ("TPU-v4", 4, 2 / 6),  # 2 x 2
        ("TPU-v4", 8, 3 / 6),
        ("TPU-v4", 27, 3 / 6),
        ("TPU-v4", 64, 1.0),
        ("TPU-v4", 48, 5 / 6),  # 4 x 4 x 3
        ("TPU-v5e", 2, 1 / 4),
        ("TPU-v5e", 225, 2 / 4),  # 15 x 15
        ("TPU-v5e", 256, 1.0),
    ]
    for name, devices, share in table:
        assert torus_share(name, devices) == pytest.approx(share), (name, devices)
