"""From samples to a profile: medians and 90th percentiles, curves, and a few constants.

*Disturbed samples.* A kernel on one thread has a core all the time, or, where more ranks are at work than there are
cores, its share of them. Samples that had less by more than `DISTURBED` were taken while something else ran, and are
left out; where all were, the one that had most counts.

*Collectives* take as long as their slowest rank, sample by sample; curves are cleaned by the rules of published ones
(`cost_models.collectives.curves`).

*Launches.* A chain of products of nothing takes what its launches take. The least stream and the least product have one
launch of each kernel inside; `launch_s` is what a launch in a training step takes beyond that.

*Overlap.* Compute that has wires beside it takes longer than alone, in turns, by G, and the wires alone take W: it
grows by G / W of what runs behind it. Nothing is hidden where that is 1, all where it is 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median, quantiles

from meshwright.backends.measuring import CHAIN_LAUNCHES, Case, Sample
from meshwright.calibrate.samples import Found
from meshwright.cost_models.collectives.curves import Curve, Row, built
from meshwright.cost_models.measured.measured import (
    AttentionTime,
    Busy,
    Identity,
    Measured,
    ProductTime,
    StreamTime,
)

ALONE = ("product", "attention", "stream", "chain")
"""Cases that every rank measures by itself."""
DISTURBED = 0.1
"""The share of a core that a sample may have lacked."""


def fitted(
    found: Found,
    identity: Identity,
    *,
    name: str,
    made: str,
    forced: bool,
    library: str,
    synchronous: bool,
    hosts: int = 1,
) -> Measured:
    """The measurements that samples amount to."""
    busy = sorted({case.busy for case in found if case.kind == "product"})
    return Measured(
        name=name,
        made=made,
        forced=forced,
        identity=identity,
        synchronous=synchronous,
        covered=1.0,
        slowdown=_slowdown(found),
        busy=tuple(_busy(found, identity, ranks) for ranks in busy),
        curves=_curves(found, identity.device, library, hosts),
    )


def _busy(found: Found, identity: Identity, ranks: int) -> Busy:
    share = min(1.0, identity.cores / (ranks * identity.threads))
    alone = {case: of for case, of in found.items() if case.busy == ranks and case.kind in ALONE}
    times = {case: _times(of, share) for case, of in alone.items()}
    products, attention, streams = [], [], []
    for case, (p50_s, p90_s) in times.items():
        if case.kind == "product":
            g, m, n, k = case.ints
            products.append(ProductTime(dtype=str(case.words[0]), shape=(g, m, n, k), p50_s=p50_s, p90_s=p90_s))
        elif case.kind == "attention":
            dtype, work, mask = map(str, case.words[:3])
            b, h, kv, sq, sk, d_qk, d_v = case.ints
            attention.append(
                AttentionTime(
                    dtype=dtype,
                    work=work,
                    causal=mask == "causal",
                    shape=(b, h, kv, sq, sk, d_qk, d_v),
                    p50_s=p50_s,
                    p90_s=p90_s,
                )
            )
        elif case.kind == "stream":
            streams.append(StreamTime(nbytes=float(case.ints[0]), p50_s=p50_s, p90_s=p90_s))
    inside_s = min(*(row.p50_s for row in products), *(row.p50_s for row in streams))
    launches = [times[case][0] / (CHAIN_LAUNCHES * case.ints[0]) - inside_s for case in times if case.kind == "chain"]
    return Busy(
        ranks=ranks,
        products=tuple(sorted(products, key=lambda row: (row.dtype, row.shape))),
        attention=tuple(sorted(attention, key=lambda row: (row.dtype, row.work, row.causal, row.shape))),
        streams=tuple(sorted(streams, key=lambda row: row.nbytes)),
        launch_s=max([0.0, *launches]),
        scale=1.0,
    )


def _times(samples: Iterable[Sample], share: float) -> tuple[float, float]:
    """The median and the 90th percentile of the samples of all ranks that were not disturbed."""
    pairs = [pair for sample in samples for pair in zip(sample.seconds, sample.cpu, strict=True)]
    calm = [seconds for seconds, cpu in pairs if cpu >= share - DISTURBED]
    return _quantiles(calm or [max(pairs, key=lambda pair: pair[1])[0]])


def _quantiles(seconds: Sequence[float]) -> tuple[float, float]:
    if len(seconds) == 1:
        return seconds[0], seconds[0]
    return median(seconds), max(median(seconds), quantiles(seconds, n=10, method="inclusive")[-1])


def _slowest(samples: Sequence[Sample]) -> tuple[float, ...]:
    """Seconds of a group, sample by sample: those of its slowest rank."""
    return tuple(map(max, zip(*(sample.seconds for sample in samples), strict=True)))


def _curves(found: Found, device: str, library: str, hosts: int) -> tuple[Curve, ...]:
    rows = [
        Row(
            kind=str(case.words[0]),
            device=device,
            hosts=hosts,
            per_host=case.busy,
            dtype="fp32",
            nbytes=float(case.ints[0]),
            seconds=median(_slowest(samples)),
            source="calibration",
        )
        for case, samples in found.items()
        if case.kind == "collective"
    ]
    curves, _ = built(rows)
    return tuple(replace(one, libraries=(library,)) for one in curves)


def _slowdown(found: Found) -> float:
    """The growth of compute by collectives in the background, over what these take alone; 1 where that is unknown."""
    seconds = {
        str(case.words[0]): median(_slowest(samples)) for case, samples in found.items() if case.kind == "overlap"
    }
    return min(1.0, max(0.0, seconds["growth"] / seconds["wires"])) if set(seconds) == {"growth", "wires"} else 1.0


def missing(cases: Iterable[Case], found: Found) -> tuple[Case, ...]:
    """Cases that are still to be measured."""
    return tuple(case for case in cases if case not in found)
