"""Messages between stages: every rank gets its shard once, from ranks that have it, by turns where several have."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import prod

import pytest

from meshwright.ir.program.crossing import End, messages
from meshwright.ir.sharding.layouts import length
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement

SHAPE = (4, 8, 6)


def end(mesh: str, placement: str) -> End:
    return End(Mesh.parse(mesh), Placement.parse(placement))


ENDS = (
    end("", "[-, -, -]"),
    end("tp=2", "[-, -, -]"),
    end("tp=2", "[-, tp, -]"),
    end("dp=2", "[dp, -, -]"),
    end("dp=2 tp=2", "[dp, tp, -]"),
    end("dp=2 tp=2", "[dp, -, -]"),
    end("tp=2 dp=2", "[dp, -, -]"),
    end("cp=2", "[-, cp:zigzag, -]"),
    end("dp=4 tp=2", "[dp, -, tp]"),
)


@pytest.mark.parametrize(("left", "arrives"), list(product(ENDS, ENDS)), ids=str)
def test_every_rank_gets_its_shard_once(left: End, arrives: End) -> None:
    got: Counter[int] = Counter()
    for sender, receiver, elements in messages(SHAPE, left, arrives):
        assert 0 <= sender < left.mesh.size
        got[receiver] += elements
        assert elements <= prod(map(length, left.boxes(SHAPE)[sender]))
    assert got == {rank: prod(map(length, box)) for rank, box in enumerate(arrives.boxes(SHAPE))}


@pytest.mark.parametrize("one", ENDS, ids=str)
def test_between_stages_that_are_arranged_alike_each_rank_sends_to_the_one_in_its_place(one: End) -> None:
    assert [(sender, receiver) for sender, receiver, _ in messages(SHAPE, one, one)] == [
        (rank, rank) for rank in range(one.mesh.size)
    ]


def test_ranks_that_have_the_same_are_asked_by_turns() -> None:
    whole = 4 * 8 * 6
    assert messages(SHAPE, ENDS[0], ENDS[1]) == ((0, 0, whole), (0, 1, whole))
    assert messages(SHAPE, ENDS[1], ENDS[0]) == ((0, 0, whole),)
    assert messages(SHAPE, ENDS[0], ENDS[3]) == ((0, 0, whole // 2), (0, 1, whole // 2))
    assert messages(SHAPE, ENDS[3], ENDS[0]) == ((0, 0, whole // 2), (1, 0, whole // 2))
    assert messages(SHAPE, ENDS[3], ENDS[1]) == (
        (0, 0, whole // 2),
        (1, 0, whole // 2),
        (0, 1, whole // 2),
        (1, 1, whole // 2),
    )
