"""Every collective is counted once: its kind, who takes part, and the bytes that a rank gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from meshwright.backends.torch_.verify.run.counting import Counting

ALL, PAIR = (0, 1, 2, 3), (2, 3)


@pytest.fixture
def pair() -> Iterator[dist.ProcessGroup]:
    """Two of four ranks, none of which is there: nothing is sent. This is rank 2."""
    dist.init_process_group("fake", store=FakeStore(), rank=2, world_size=4)
    try:
        yield dist.new_group(list(PAIR))
    finally:
        dist.destroy_process_group()


def numbers(count: int) -> Tensor:
    return torch.ones(count, dtype=torch.float32)


def waited(made: Tensor) -> Tensor:
    return functional.wait_tensor(made)


Sent = Callable[[dist.ProcessGroup], object]
CASES: dict[str, tuple[Sent, tuple[str, tuple[int, ...], int]]] = {
    "all_reduce": (lambda pair: dist.all_reduce(numbers(6)), ("all_reduce", ALL, 24)),
    "all_reduce of a pair": (lambda pair: dist.all_reduce(numbers(6), group=pair), ("all_reduce", PAIR, 24)),
    "all_gather_into_tensor": (
        lambda pair: dist.all_gather_into_tensor(numbers(24), numbers(6)),
        ("all_gather", ALL, 24),
    ),
    "all_gather": (
        lambda pair: dist.all_gather([numbers(6), numbers(6)], numbers(6), group=pair),
        ("all_gather", PAIR, 24),
    ),
    "reduce_scatter_tensor": (
        lambda pair: dist.reduce_scatter_tensor(numbers(6), numbers(24)),
        ("reduce_scatter", ALL, 96),
    ),
    "reduce_scatter": (
        lambda pair: dist.reduce_scatter(numbers(6), [numbers(6), numbers(6)], group=pair),
        ("reduce_scatter", PAIR, 48),
    ),
    "all_to_all_single": (
        lambda pair: dist.all_to_all_single(numbers(8), numbers(8)),
        ("all_to_all", ALL, 32),
    ),
    "all_to_all": (
        lambda pair: dist.all_to_all([numbers(2), numbers(2)], [numbers(2), numbers(2)], group=pair),
        ("all_to_all", PAIR, 16),
    ),
    "broadcast": (lambda pair: dist.broadcast(numbers(6), src=0), ("broadcast", ALL, 24)),
    "functional all_reduce": (
        lambda pair: waited(functional.all_reduce(numbers(6), "sum", pair)),
        ("all_reduce", PAIR, 24),
    ),
    "functional all_gather": (
        lambda pair: waited(functional.all_gather_tensor(numbers(6), 0, pair)),
        ("all_gather", PAIR, 24),
    ),
    "functional reduce_scatter": (
        lambda pair: waited(functional.reduce_scatter_tensor(numbers(6), "sum", 0, pair)),
        ("reduce_scatter", PAIR, 24),
    ),
    "send": (lambda pair: dist.send(numbers(6), dst=3), ("send", (2, 3), 24)),
    "recv": (lambda pair: dist.recv(numbers(6), src=0), ("recv", (0, 2), 24)),
    "all_reduce of several": (
        lambda pair: dist.all_reduce_coalesced([numbers(6), numbers(2)], group=pair),
        ("all_reduce", PAIR, 32),
    ),
    "functional all_to_all": (
        lambda pair: waited(functional.all_to_all_single(numbers(4), None, None, pair)),
        ("all_to_all", PAIR, 16),
    ),
    "functional broadcast": (lambda pair: waited(functional.broadcast(numbers(6), 0, pair)), ("broadcast", PAIR, 24)),
    "one that has no name": (lambda pair: dist.reduce(numbers(6), dst=0), ("c10d::reduce_", ALL, 24)),
    "one that has none, of a pair": (
        lambda pair: dist.reduce(numbers(6), dst=2, group=pair),
        ("c10d::reduce_", PAIR, 24),
    ),
    "send in a pair": (lambda pair: dist.send(numbers(6), dst=3, group=pair), ("send", (2, 3), 24)),
}


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")  # newer torch has other names for some
def test_it_is_counted_once(pair: dist.ProcessGroup) -> None:
    """Every kind, in one test: to set up what nothing is sent by takes longest."""
    for what, (send, expected) in CASES.items():
        with Counting() as counting:
            send(pair)
            numbers(3) + 1  # an operator that sends nothing
        assert dict(counting.found) == {expected: 1}, what


def test_the_same_is_added_up_and_a_barrier_is_none(pair: dist.ProcessGroup) -> None:
    with Counting() as counting:
        for _ in range(3):
            dist.all_reduce(numbers(2), group=pair)
        dist.all_reduce(numbers(2))
        dist.barrier()
    assert dict(counting.found) == {("all_reduce", PAIR, 8): 3, ("all_reduce", ALL, 8): 1}
