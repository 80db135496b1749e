"""The constants of `cost_models/profiles/collectives.json` that are fitted here.

ramp_s            least mean |error| of the law, of rows of NVLink in one host from 256 KiB on: the mean of the mean
                  over gathers and reductions of `nccl_curves.csv` and that over the all_reduce rows of
                  `RAMP_SOURCE` in `collectives.csv`, which were timed inside a training framework
peer_s            median over curves of all_to_all of (least time - base) / (n - 1)
all_to_all_share  median over the same curves of the rate between the two largest sizes over the wire's share
pcie_share        median over curves of PCIe in one host of that rate over the wire's, as a ring
tcp_hop_s         median over curves of several hosts of the least time, less base and NCCL's own hops, per step of
                  the ring between hosts

python -m benchmarks.kernels_nccl_fit        print them; the profile is edited by hand
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median

from benchmarks.kernels_nccl import DATA, FROM_BYTES, in_one_host, priced, rows_of, unpriced
from meshwright.cost_models.collectives.curves import Curve, built
from meshwright.cost_models.collectives.facts import facts, wire_share
from meshwright.cost_models.collectives.laws import Law, law
from meshwright.cost_models.hardware.devices import device, latency_of

RAMPS_S = tuple(step * 1e-6 for step in range(101))
"""Where the least error is looked for: every microsecond."""


RAMP_SOURCE = "galvatron_hardware_profile"


def fits(curves: Sequence[Curve], lines: Sequence[Mapping[str, str]]) -> dict[str, float]:
    """Every constant, by name."""
    one_host = [curve for curve in curves if curve.hosts == 1]
    nvlink = [curve for curve in one_host if device(curve.device).island]
    exchanges = [curve for curve in nvlink if curve.kind == "all_to_all"]
    base: float = facts()["base_s"]["ring"]["LL"]
    return {
        "ramp_s": _ramp([curve for curve in nvlink if curve.kind not in ("all_to_all", "p2p")], lines),
        "peer_s": median((curve.points[0][1] - base) / (curve.ranks - 1) for curve in exchanges),
        "all_to_all_share": median(_last_rate(curve) / _wire(curve) for curve in exchanges),
        "pcie_share": median(
            2 * _last_rate(curve) / device(curve.device).host_link.bandwidth.value
            for curve in one_host
            if not device(curve.device).island
        ),
        "tcp_hop_s": median(_hop(curve) for curve in curves if curve.hosts > 1),
    }


def _ramp(curves: Sequence[Curve], lines: Sequence[Mapping[str, str]]) -> float:
    clean = [
        (law(curve.kind, in_one_host(curve.device, curve.ranks)), *point)
        for curve in curves
        for point in curve.points
        if point[0] >= FROM_BYTES
    ]
    framework = [
        priced(line)
        for line in lines
        if line["source"] == RAMP_SOURCE and line["collective"] == "all_reduce" and not unpriced(line)
    ]

    def error(ramp_s: float) -> float:
        return fmean(
            fmean(abs(_with_ramp(found, ramp_s).seconds(size) / seconds - 1) for found, size, seconds in rows)
            for rows in (clean, framework)
        )

    return min(RAMPS_S, key=error)


def _with_ramp(found: Law, ramp_s: float) -> Law:
    lines = tuple(replace(line, ramp_s=ramp_s) if line.ramp_s else line for line in found.lines)
    return Law(lines, found.provenance)


def _last_rate(curve: Curve) -> float:
    """Bytes/s that a rank sends, between the two largest sizes."""
    (small, soon), (large, late) = curve.points[-2:]
    return (large - small) * (curve.ranks - 1) / curve.ranks / (late - soon)


def _wire(curve: Curve) -> float:
    island = device(curve.device).island
    assert island is not None
    return island.bandwidth.value * wire_share(island.kind)[0]


def _hop(curve: Curve) -> float:
    """What a step between hosts costs beyond what the law has for it without TCP; all_reduce by ring and LL."""
    table = facts()
    net = table["hop_s"]["net"]["tree" if curve.per_host == 1 else "ring"]["LL"]
    inside = max(table["hop_s"]["pci"]["ring"]["LL"], table["net_overhead_s"]["LL"])
    between = 2 * (curve.hosts - 1)
    rest = curve.points[0][1] - table["base_s"]["ring"]["LL"] - (2 * (curve.ranks - 1) - between) * inside
    hop: float = rest / between - net - (latency_of("ethernet").value - latency_of("infiniband").value)
    return hop


def main(argv: Sequence[str]) -> int:
    """Print the constants."""
    curves, _ = built(rows_of(DATA / "nccl_curves.csv"))
    with (DATA / "collectives.csv").open(encoding="utf-8", newline="") as file:
        print(json.dumps(fits(curves, list(csv.DictReader(file))), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
