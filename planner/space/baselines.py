"""The plans that a person would write, as a search sees them: where it starts, and what its answer is held against.

    data parallel        everything copied, gradients reduced
    fsdp                 everything sharded over all copies (ZeRO-3)
    hsdp                 sharded inside a host, copied between hosts
    tp in host + fsdp    tensor parallelism over as much of a host as the model allows, the rest sharded
    megatron             tensor parallelism (with experts, expert parallelism) inside the host, then pipeline stages
                         until it fits, virtual ones where they divide, ZeRO-1: Narayanan et al. 2104.04473, section 5.4

Each is a list of variants, the fastest first as a person would expect; what is meant is the first that fits. Where none
does, the last one is shown, as one that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

from meshwright.ir.errors import MeshwrightError
from meshwright.ir.names.counts import divisors
from meshwright.planner.question.pins import Config, Pins, fill
from meshwright.planner.space.declared import Space

NAMES = ("data parallel", "fsdp", "hsdp", "tp in host + fsdp", "megatron")
"""Of all of them, in the order in which they are shown."""
AGAIN = ("none", "selective_op", "full")
"""What a person tries, one after another, until memory suffices."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A plan that a person would write: its name, and its variants in the order in which one tries them."""

    name: str
    variants: tuple[Config, ...]


def baselines(space: Space) -> tuple[Baseline, ...]:
    """All baselines, each with the variants that the space and the constraints allow, if any."""
    pins = (
        [Pins(zero=0, recompute=again) for again in AGAIN],
        [Pins(zero=3, recompute=again) for again in AGAIN],
        [Pins(zero=3, shard=space.per_host, recompute=again) for again in AGAIN],
        [Pins(tp=max(_inside(space)), zero=3, recompute=again) for again in AGAIN],
        list(_megatron(space)),
    )
    return tuple(Baseline(name, tuple(_configs(variants, space))) for name, variants in zip(NAMES, pins, strict=True))


def _inside(space: Space) -> list[int]:
    """Tensor-parallel degrees inside a host."""
    return [size for size in divisors(space.per_host) if (space.heads or 1) % size == 0]


def _megatron(space: Space) -> Iterator[Pins]:
    """As little model parallelism as fits: first inside the host, then over stages, then with recomputation."""
    inside = _inside(space)
    for tp in inside:
        yield Pins(tp=tp, recompute="none", ep=_experts(space))
    tp = 1 if space.experts else max(inside)
    for again in AGAIN:
        for pp in divisors(space.ranks // tp):
            if 1 < pp <= space.layers:
                for vp in (_virtual(space, pp), 1):
                    if vp:
                        yield Pins(tp=tp, pp=pp, vp=vp, recompute=again, ep=_experts(space))


def _experts(space: Space) -> int | None:
    """Experts spread over a host, where exchanges are fast."""
    return gcd(space.per_host, *space.experts) if space.experts else None


def _virtual(space: Space, pp: int) -> int:
    """Two virtual stages where the layers divide, else none."""
    return 2 if space.layers % (2 * pp) == 0 or (space.layers + 2) % (2 * pp) == 0 else 0


def _configs(variants: list[Pins], space: Space) -> Iterator[Config]:
    """The configurations of baselines that ranks, batch and constraints allow."""
    whole = Pins(microbatches=None if space.target.accumulates else 1)
    for pins in variants:
        try:
            config = space.settled(fill(pins.over(whole), ranks=space.ranks, global_batch=space.global_batch))
        except MeshwrightError:
            continue
        if space.grants(config):
            yield config
