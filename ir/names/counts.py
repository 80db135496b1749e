"""Arithmetic of degrees: ranks, batches and divisors, and suggestions of values that work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import isqrt, prod

from meshwright.ir.errors import BatchIndivisible, RanksMismatch


def check_ranks(sizes: Mapping[str, int], ranks: int) -> None:
    """Check that the degrees multiply to the ranks of the cluster. The last one named is the one to change."""
    held = prod(sizes.values())
    if held == ranks:
        return
    *others, free = sizes
    rest = held // sizes[free]
    raise RanksMismatch(
        place="degrees",
        cause=f"{' * '.join(f'{name}={size}' for name, size in sizes.items())} multiply to {held}, "
        f"the cluster has {ranks} ranks",
        fix=f"use {free}={ranks // rest}" if ranks % rest == 0 else f"make {' * '.join(others)} a divisor of {ranks}",
    )


def microbatches(global_batch: int, dp: int, mbs: int) -> int:
    """How many micro-batches of `mbs` sequences on each of dp copies make the global batch."""
    if global_batch < 1 or global_batch % (dp * mbs):
        raise indivisible(global_batch, dp, mbs, "in all")
    return global_batch // (dp * mbs)


def indivisible(batch: int, dp: int, mbs: int, which: str) -> BatchIndivisible:
    each = dp * mbs
    near = sorted({batch // each * each, -(-batch // each) * each} - {0}) or [each]
    return BatchIndivisible(
        place="batch",
        cause=f"{batch} sequences {which} for dp * mbs = {dp} * {mbs} = {each}",
        fix=f"use {' or '.join(map(str, near))} sequences, or a dp * mbs of {among(divisors(batch))}",
    )


def divisors(size: int) -> list[int]:
    return list(_divisors(size))


@lru_cache(maxsize=4096)
def _divisors(size: int) -> tuple[int, ...]:
    small = [n for n in range(1, isqrt(size) + 1) if size % n == 0]
    return tuple(dict.fromkeys((*small, *(size // n for n in reversed(small)))))


def among(values: Sequence[int], limit: int = 12) -> str:
    """A list for people: the first dozen."""
    return f"one of {', '.join(map(str, values[:limit]))}" + (", …" if len(values) > limit else "")
