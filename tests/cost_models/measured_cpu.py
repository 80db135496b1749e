"""Measurements made up for tests, of two ranks on a CPU whose memory and wires are quick for what is small."""

from __future__ import annotations

from itertools import product

from meshwright.cost_models.collectives.curves import Curve
from meshwright.cost_models.measured.measured import (
    AttentionTime,
    Busy,
    Identity,
    Measured,
    ProductTime,
    StreamTime,
)

SIDES = (16, 64, 256, 1024, 4096)
RATE, START_S = 40e9, 5e-6
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p")


def product_s(m: int, n: int, k: int) -> float:
    return START_S + 2.0 * m * n * k / RATE


def stream_s(nbytes: float) -> float:
    """Ten times as slow, byte for byte, beyond a megabyte."""
    return START_S + nbytes / (20e9 if nbytes <= 2**20 else 2e9)


def wire_s(nbytes: float) -> float:
    return 1e-4 + nbytes / (4e9 if nbytes <= 2**16 else 2.5e8)


def busy(ranks: int, slower: float = 1.0) -> Busy:
    return Busy(
        ranks=ranks,
        products=tuple(
            ProductTime(dtype="fp32", shape=(1, m, n, k), p50_s=s, p90_s=s)
            for m, n, k in product(SIDES, repeat=3)
            for s in (slower * product_s(m, n, k),)
        ),
        attention=tuple(
            AttentionTime(
                dtype="fp32", work=work, causal=True, shape=(1, 8, 8, seq, seq, 64, 64), p50_s=seconds, p90_s=seconds
            )
            for work, times in (("forward", 1.0), ("backward", 2.5))
            for seq in (64, 256, 1024)
            for seconds in (slower * times * (START_S + 8 * seq * seq * 128 / 1e10),)
        ),
        streams=tuple(
            StreamTime(nbytes=float(4**power), p50_s=s, p90_s=s)
            for power in range(5, 14)
            for s in (slower * stream_s(4**power),)
        ),
        launch_s=1e-5,
        scale=1.0,
    )


def hand(*ranks: int) -> Measured:
    return Measured(
        name="by-hand",
        made="2026-11-30",
        forced=False,
        identity=Identity(
            device="CPU", processor="a CPU", driver="", libraries=(("torch", "2.13.0"),), cores=2, threads=1
        ),
        synchronous=True,
        covered=1.0,
        slowdown=0.75,
        busy=tuple(busy(count, float(count)) for count in ranks or (1, 2)),
        curves=tuple(
            Curve(
                kind=kind,
                device="CPU",
                hosts=1,
                per_host=2,
                points=tuple((float(4**power), wire_s(4**power)) for power in range(5, 13)),
                source="profile by-hand",
                libraries=("gloo",),
            )
            for kind in KINDS
        ),
    )
