"""Where ranks sit, and which arrangements cost the same: on two pools of two hosts, and on devices without links."""

from __future__ import annotations

from meshwright.cost_models.hardware.toml import read
from meshwright.planner.refine.placement.symmetry import Symmetry

POOL = """
[[pool]]
name = "{name}"
hosts = {hosts}
gpu = "{gpu}"
gpus_per_host = {count}
nics = [{{ kind = "infiniband", gbps = 200, count = 2 }}]
"""
LINK = """
[[link]]
between = ["fast", "slow"]
kind = "infiniband"
gbps = 800
latency_us = 5
"""


def seats(fast: tuple[int, int], slow: tuple[int, int], gpu: str = "A100-80G") -> Symmetry:
    """Hosts and devices of each of two pools."""
    first = POOL.format(name="fast", gpu="H100", hosts=fast[0], count=fast[1])
    return Symmetry(read(first + POOL.format(name="slow", gpu=gpu, hosts=slow[0], count=slow[1]) + LINK))


def test_hosts_of_a_pool_are_exchangeable() -> None:
    """Named in the order in which an assignment comes to them, and so are their devices; by shape alone, those of other
    pools too."""
    own = seats((2, 2), (2, 2))
    assert [unit.ranks for unit in own.units] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert ([own.unit_of(rank) for rank in (0, 3, 4, 7)], [own.pool_of(rank) for rank in (3, 4)]) == (
        [0, 1, 2, 3],
        [0, 1],
    )
    assert [own.device_of(rank)[:4] for rank in (3, 4)] == ["H100", "A100"]
    assert own.kind(0) == own.kind(3) != own.kind(4) == own.kind(7)
    assert (own.block, own.nested, own.measured, own.by_device) == (2, False, False, False)
    assert own.blocks(2) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert own.blocks(1) == [(rank,) for rank in range(8)]
    for assignment, canonical, shape in (
        ((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)),
        ((3, 2, 1, 0), (0, 1, 2, 3), (0, 1, 2, 3)),
        ((3, 0, 2, 1), (0, 2, 1, 3), (0, 2, 1, 3)),
        ((7, 6, 1), (4, 5, 0), (0, 1, 2)),
        ((7, 1, 4), (4, 0, 6), (0, 2, 4)),
    ):
        assert own.canonical(assignment) == canonical
        assert own.shape(assignment) == shape


def test_units_of_other_sizes_are_told_apart() -> None:
    """Runs of ranks are as long as divides all units."""
    own = seats((1, 4), (2, 2))
    assert [unit.ranks for unit in own.units] == [(0, 1, 2, 3), (4, 5), (6, 7)]
    assert own.block == 2
    assert own.blocks(2) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert own.canonical((6, 3, 4)) == (4, 0, 6)
    assert own.shape((6, 3, 4)) == (4, 0, 6)


def test_devices_without_links_are_islands_of_their_own() -> None:
    """Four T4 of a host, which sit behind one way out; beside four H100 that one island joins."""
    own = seats((1, 4), (1, 4), "T4")
    assert [unit.islands for unit in own.units] == [((0, 1, 2, 3),), ((4,), (5,), (6,), (7,))]
    assert not own.nested
    assert own.canonical((7, 5, 2)) == own.shape((7, 5, 2)) == (4, 5, 0)
