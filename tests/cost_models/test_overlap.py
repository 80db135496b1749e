"""What the last bucket of gradients holds."""

from __future__ import annotations

from collections import Counter

import pytest

from meshwright.cost_models.collectives.collective import Collective
from meshwright.cost_models.ledger.ledger import Phase, Transmission
from meshwright.cost_models.overlap import last_bucket

MIB = 2**20


def reduced(kind: Collective, *sizes: float) -> Phase:
    sent = [Transmission(kind=kind, nbytes=size, axes=("dp",), reason="sync") for size in sizes]
    return Phase(Counter(), Counter(sent))


@pytest.mark.parametrize(
    ("sizes", "share"),
    [
        ((15 * MIB,), 14 / 15),  # after a first bucket of one
        ((0.5 * MIB,), 0),
        ((10 * MIB, 16 * MIB), 25 / 26),
        ((10 * MIB, 17 * MIB), 1 / 27),
        ((), 0),
    ],
)
def test_buckets_are_filled_one_after_another(sizes: tuple[float, ...], share: float) -> None:
    assert last_bucket([(reduced("all_reduce", *sizes), 1)]) == pytest.approx(share)


def test_bodies_count_as_often_as_they_run() -> None:
    assert last_bucket([(reduced("all_reduce", 3 * MIB), 5), (reduced("all_reduce", 6 * MIB), 1)]) == pytest.approx(
        20 / 21
    )


def test_shards_have_no_buckets() -> None:
    both = [(reduced("reduce_scatter", 8 * MIB), 1), (reduced("all_reduce", 8 * MIB), 1)]
    assert last_bucket(both) == 0
