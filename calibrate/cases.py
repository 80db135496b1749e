"""The cases of a calibration: the distinct ones of a grid and of what a model runs.

*The grid.* Sizes of products lie two octaves apart in each of m, n and k, so that no product inside is more than one
octave from a measured one in any; attention has a few widths and sequences, with and without mask, both ways; streams
and collectives have every second octave of bytes. What would take a sample of more than `LONGEST_FLOPS` is left out.

*The model.* Kernels that the ledgers of its plans ask for, as they are; the largest share of work first, so that what
is left out under a limit is what matters least.

Kernels are measured with one rank of every host at work, and with all: ranks of one host share caches, memory and
cores. Collectives are measured among all ranks of all hosts; over several of these fewer bytes show the rate of the
wires, which are slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from meshwright.backends.measuring import Case
from meshwright.cost_models.compute.kernels import PEAK_OF, Kernel
from meshwright.ir.rules.base import Engine

SIDES, QUICK_SIDES = (16, 64, 256, 1024, 4096), (64, 512, 4096)
LONGEST_FLOPS = 4.5e9
BATCH, HEADS = 1, 8
SEQUENCES, WIDTHS = (64, 256, 1024), (32, 128)
STREAMS = tuple(4**power for power in range(5, 14))
CHAIN = 64
MOVED = tuple(4**power for power in range(4, 13))
MOST_FAR = 4**11
"""Bytes that are moved between hosts at most."""
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p")
OVERLAP, OVERLAP_FAR = (2**23, 512), (2**15, 512)
"""Bytes of an all-reduce, and the size of a product beside it: in one host, and over several."""
BUDGET_S, QUICK_BUDGET_S = 0.08, 0.04
"""Seconds of one case."""
STARTED_S = 12.0
"""Seconds in which ranks are started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be measured."""

    ranks: int
    """Of a host."""
    threads: int
    dtypes: tuple[str, ...]
    quick: bool
    kernels: tuple[Kernel, ...] = ()
    """Those of a model, the most work first."""
    hosts: int = 1

    @property
    def budget_s(self) -> float:
        return QUICK_BUDGET_S if self.quick else BUDGET_S

    @property
    def busy(self) -> tuple[int, ...]:
        return tuple(sorted({1, self.ranks}))


def cases(asked: Asked) -> tuple[Case, ...]:
    """All cases, each once, in the order in which they are measured."""
    kernels = [*_grid(asked), *_of_model(asked)]
    alone = (Case(kind, words, busy) for busy in asked.busy for kind, words in kernels)
    return tuple(dict.fromkeys((*alone, *_wires(asked))))


def expected_s(found: Iterable[Case], asked: Asked) -> float:
    """What measuring takes, about: a budget for each, as much again for warming up and meeting, and starting."""
    return STARTED_S + 1.6 * asked.budget_s * sum(1 for _ in found)


Words = tuple[str, tuple[str | int, ...]]


def _grid(asked: Asked) -> Iterator[Words]:
    sides = QUICK_SIDES if asked.quick else SIDES
    for dtype in asked.dtypes:
        for m, n, k in product(sides, repeat=3):
            if 2.0 * m * n * k <= LONGEST_FLOPS:
                yield "product", (dtype, 1, m, n, k)
        for mask, work, sequence, width in product(("causal", "full"), ("forward", "backward"), SEQUENCES, WIDTHS):
            yield "attention", (dtype, work, mask, BATCH, HEADS, HEADS, sequence, sequence, width, width)
    for nbytes in STREAMS[:: 2 if asked.quick else 1]:
        yield "stream", (nbytes,)
    yield "chain", (CHAIN,)


def _of_model(asked: Asked) -> Iterator[Words]:
    for kernel in asked.kernels:
        dtype = PEAK_OF.get(kernel.dtype, kernel.dtype)
        if kernel.engine is Engine.MATMUL and dtype in asked.dtypes and kernel.flops <= LONGEST_FLOPS:
            yield "product", (dtype, *kernel.shape)
        elif kernel.engine is Engine.ATTENTION and dtype in asked.dtypes and not kernel.window:
            yield "attention", (dtype, kernel.work, "causal" if kernel.causal else "full", *kernel.shape)


def _wires(asked: Asked) -> Iterator[Case]:
    if asked.ranks * asked.hosts == 1:
        return
    far = asked.hosts > 1
    for kind, nbytes in product(KINDS, MOVED[:: 2 if asked.quick else 1]):
        if not far or nbytes <= MOST_FAR:
            yield Case("collective", (kind, nbytes), asked.ranks)
    for what in ("wires", "growth"):
        yield Case("overlap", (what, *(OVERLAP_FAR if far else OVERLAP)), asked.ranks)
