"""Collectives of a group, timed, alone and beside products.

All ranks run as many in a sample: the first of them counts how many the budget has room for. Bytes are those of prices:
of one tensor as one rank sees it whole, of a message what the sender sends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from meshwright.backends.measuring import Case

SAMPLES, MOST = 9, 400
BESIDE = 6
"""Products, and all-reduces beside them, in one run of an overlap."""
Run = Callable[[], object]


def timed_together(run: Run, without: Run | None, group: dist.ProcessGroup, budget_s: float) -> list[float]:
    """Seconds of one run, sample by sample, of as many runs on every rank; by how much they are more than those
    `without` something, in turns with it."""
    for _ in range(2):
        run()
    dist.barrier(group)
    begin = time.perf_counter()
    for _ in range(3):
        run()
    once = torch.tensor([(time.perf_counter() - begin) / 3])
    dist.all_reduce(once, op=dist.ReduceOp.MAX, group=group)
    runs = max(1, min(MOST, int(budget_s / SAMPLES / max(once.item(), 1e-7))))
    seconds = []
    for _ in range(SAMPLES):
        took = [_timed(one, runs, group) for one in (run, without) if one is not None]
        seconds.append(took[0] - sum(took[1:]))
    return seconds


def _timed(run: Run, runs: int, group: dist.ProcessGroup) -> float:
    dist.barrier(group)
    begin = time.perf_counter()
    for _ in range(runs):
        run()
    return (time.perf_counter() - begin) / runs


def ranks_of_a_host() -> int:
    """How many ranks a launcher started on every host."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))


def moving(case: Case, group: dist.ProcessGroup) -> tuple[Run, Run | None]:
    """What a case of a group runs on this rank, and without what it is to be counted."""
    if case.kind != "overlap":
        return _RUNS[str(case.words[0])](case.ints[0], group), None
    if case.words[0] == "wires":
        return _overlap(case, group, computes=False), None
    return _overlap(case, group), _overlap(case, group, sends=False)


def _elements(nbytes: int, ranks: int) -> int:
    """Elements of a tensor of so many bytes that all ranks have equal shares of."""
    return max(ranks, nbytes // 4 // ranks * ranks)


def _all_reduce(nbytes: int, group: dist.ProcessGroup) -> Run:
    whole = torch.ones(_elements(nbytes, 1))
    return lambda: dist.all_reduce(whole, op=dist.ReduceOp.MAX, group=group)


def _all_gather(nbytes: int, group: dist.ProcessGroup) -> Run:
    whole = torch.ones(_elements(nbytes, group.size()))
    own = torch.ones(len(whole) // group.size())
    return lambda: dist.all_gather_into_tensor(whole, own, group=group)


def _reduce_scatter(nbytes: int, group: dist.ProcessGroup) -> Run:
    whole = torch.ones(_elements(nbytes, group.size()))
    own = torch.empty(len(whole) // group.size())
    return lambda: dist.reduce_scatter_tensor(own, whole, group=group)


def _all_to_all(nbytes: int, group: dist.ProcessGroup) -> Run:
    sent = torch.ones(_elements(nbytes, group.size()))
    got = torch.empty_like(sent)
    return lambda: dist.all_to_all_single(got, sent, group=group)


def _broadcast(nbytes: int, group: dist.ProcessGroup) -> Run:
    whole = torch.ones(_elements(nbytes, 1))
    return lambda: dist.broadcast(whole, group=group, group_src=0)


def _p2p(nbytes: int, group: dist.ProcessGroup) -> Run:
    """A message there or back, in turns between the first ranks of two hosts, or the first two of one."""
    whole, rank, each = torch.ones(_elements(nbytes, 1)), dist.get_rank(group), ranks_of_a_host()
    ends = (0, each if each < group.size() else 1)
    turn = [0]

    def run() -> None:
        turn[0] += 1
        if rank not in ends:
            return
        other = sum(ends) - rank
        if (turn[0] % 2 == 0) == (rank == 0):
            dist.send(whole, group=group, group_dst=other)
        else:
            dist.recv(whole, group=group, group_src=other)

    return run


_RUNS = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "p2p": _p2p,
}


def _overlap(case: Case, group: dist.ProcessGroup, *, computes: bool = True, sends: bool = True) -> Run:
    """Products one after the other, all-reduces in the background one by one, or both at once."""
    nbytes, size = case.ints
    tensors = [torch.ones(_elements(nbytes, 1)) for _ in range(BESIDE)]
    left, right = torch.randn(size, size), torch.randn(size, size)

    def run() -> None:
        sent = []
        for tensor in tensors:
            if sends:
                sent.append(dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=group, async_op=True))
            if computes:
                torch.mm(left, right)
        for work in sent:
            assert work is not None
            work.wait()

    return run
