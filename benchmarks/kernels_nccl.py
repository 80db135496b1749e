"""How well prices of collectives meet published measurements.

**Left out.** Every second row of every curve (collective, GPU, hosts, GPUs per host, dtype) is left out, a curve is
built from the rest by the function that builds the shipped profile, and the rows left out are compared with it; then
the other half. Errors are |predicted - measured| / measured, from `FROM_BYTES` on: below, a published microsecond is a
tenth. Rows that the builder calls corrupt (`collective_curves.SPIKE`) are named and neither used nor scored.

**Never fitted.** Rows of `collectives.csv` are priced by the laws alone, without any curve. Which constants were fitted
on what stands in `benchmarks/kernels_nccl_fit.py`: of that file, one constant saw the all_reduce rows of one source.

    python -m benchmarks.kernels_nccl                    print both
    python -m benchmarks.kernels_nccl --write-profile    write cost_models/profiles/collectives_curves.json anew
"""

from __future__ import annotations

import csv
import json
import re
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from math import prod
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.kernel_scores import Scored, Skip, number, read_each, report, summary
from meshwright.cost_models.collectives.curves import SPIKE, Curve, Reader, Row, built, ends
from meshwright.cost_models.collectives.laws import COLLECTIVES, Collective, Law, law
from meshwright.cost_models.collectives.topology import GroupShape, group_shape
from meshwright.cost_models.hardware.devices import device, device_names
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.ir.errors import DeviceUnknown
from meshwright.ir.sharding.mesh import Mesh, MeshAxis

DATA = Path(__file__).parent / "data"
PROFILE = Path(__file__).resolve().parents[1] / "cost_models" / "profiles" / "collectives_curves.json"
FROM_BYTES = 256 * 1024
KINDS: dict[str, Collective] = {"alltoall": "all_to_all", "sendrecv": "p2p"}
"""What nccl-tests calls them; the other names are ours too."""


def rows_of(path: Path) -> list[Row]:
    """The rows of a file with the columns of `nccl_curves.csv`; those that cannot be read are left out."""
    return read_rows(path)[0]


def read_rows(path: Path) -> tuple[list[Row], Counter[str]]:
    """The rows that can be read, and why how many others cannot."""
    return read_each(path, _row)


def _row(line: Mapping[str, str]) -> Row:
    kind, gpu = line.get("collective") or "", line.get("gpu") or ""
    if not (kind and gpu):
        raise Skip("no collective, or no gpu")
    return Row(
        kind=KINDS.get(kind, kind),
        device=_device_name(gpu),
        hosts=int(number(line, "n_nodes")),
        per_host=int(number(line, "gpus_per_node")),
        dtype=line.get("dtype") or "",
        nbytes=_not_negative(line, "size_kib") * 1024,
        seconds=_not_negative(line, "time_us") * 1e-6,
        source=line.get("source") or "",
    )


def _not_negative(line: Mapping[str, str], name: str) -> float:
    """A number of a row; 0 is one: sweeps begin there, and a time of 0 is a corrupt row to be named."""
    text = line.get(name) or ""
    return 0.0 if text.strip("0.") == "" and "0" in text else number(line, name)


def _device_name(gpu: str) -> str:
    try:
        return device(gpu).name
    except DeviceUnknown:
        return gpu


def clock(curve: Curve) -> Callable[[float], float]:
    """The law that a curve is read by: of a group in one host of a known device, else of the curve's own ends."""
    known = curve.device in device_names() and curve.kind in COLLECTIVES
    if curve.hosts > 1 or curve.per_host < 2 or not known:
        return ends(curve.points)
    return law(curve.kind, in_one_host(curve.device, curve.per_host), "nccl").clock


def in_one_host(name: str, ranks: int) -> GroupShape:
    cluster = read_cluster(f"1x{ranks}x{name}")
    return group_shape(cluster, tuple(range(ranks)), Mesh((MeshAxis("all", ranks),)), ("all",))


def score(nccl_csv: Path, from_bytes: float = FROM_BYTES) -> dict[str, Any]:
    """Left-out rows as `kernel_scores.report` sums them up, by curve; each half; and the rows called corrupt."""
    rows, skipped = read_rows(nccl_csv)
    named: list[dict[str, Any]] = []
    second: list[Scored] = []
    first: list[Scored] = []
    for _, same in groupby(sorted(rows, key=_curve_of), key=_curve_of):
        run = [row for row in same if row.nbytes > 0]
        _, corrupt = built(run)
        named += [_named(row, run) for row in corrupt]
        sound = [row for row in run if row not in corrupt]
        second += _left_out(sound, 1, from_bytes)
        first += _left_out(sound, 0, from_bytes)
    scored = [*second, *first]
    skipped["corrupt"] += len(named)
    skipped[f"below {from_bytes / 1024:g} KiB, or alone on its curve"] += len(rows) - len(named) - len(scored)
    found = report(scored, +skipped)
    by_curve = [part["mape"] for part in found["groups"].values()]
    return found | {
        "mape_second_left_out": summary(second)["mape"],
        "mape_first_left_out": summary(first)["mape"],
        "macro_mape": fmean(by_curve) if by_curve else None,
        "corrupt": named,
    }


def _curve_of(row: Row) -> tuple[str, str, int, int, str]:
    return row.kind, row.device, row.hosts, row.per_host, row.dtype


def _left_out(rows: list[Row], parity: int, from_bytes: float) -> list[Scored]:
    """The rows at odd (1) or even (0) places, priced from the others."""
    ordered = sorted(rows, key=lambda row: row.nbytes)
    curves, _ = built([row for place, row in enumerate(ordered) if place % 2 != parity])
    if not curves:
        return []
    reader = Reader(curves[0].points, clock(curves[0]))
    return [
        Scored(" ".join(map(str, _curve_of(row))), reader.seconds(row.nbytes), row.seconds)
        for place, row in enumerate(ordered)
        if place % 2 == parity and row.nbytes >= from_bytes
    ]


def _named(row: Row, run: list[Row]) -> dict[str, Any]:
    later = [other for other in run if other.nbytes > row.nbytes and other.seconds > 0]
    least = min(later, key=lambda other: other.seconds, default=row)
    return {
        "curve": " ".join(map(str, _curve_of(row))),
        "size_kib": row.nbytes / 1024,
        "time_us": row.seconds * 1e6,
        "reason": f"took more than {1 + SPIKE:g} x the {least.seconds * 1e6:g} us of {least.nbytes / 1024:g} KiB"
        if row.seconds > 0
        else "took no time",
    }


def score_laws(collectives_csv: Path, from_bytes: float = FROM_BYTES) -> dict[str, Any]:
    """The error of the laws alone on rows of `collectives.csv`, by source, device, hosts and kind; what is not priced,
    and why."""
    found: dict[str, list[tuple[float, float]]] = {}
    skipped: dict[str, int] = {}
    with collectives_csv.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            reason = unpriced(line)
            if reason:
                skipped[f"{line['source']}: {reason}"] = skipped.get(f"{line['source']}: {reason}", 0) + 1
                continue
            at, nbytes, measured = priced(line)
            if nbytes >= from_bytes:
                found.setdefault(_label(line), []).append((at.seconds(nbytes), measured))
    return {
        "by_source": {
            name: {
                "rows": len(pairs),
                "mape": fmean(abs(ours - theirs) / theirs for ours, theirs in pairs),
                "bias": fmean((ours - theirs) / theirs for ours, theirs in pairs),
            }
            for name, pairs in sorted(found.items())
        },
        "skipped": skipped,
    }


PEAK_BYTES = 16 * 1024**3
"""Where a row gives a rate without a size, it is the peak that a sweep of sizes reached: sweeps end here."""


def unpriced(line: Mapping[str, str]) -> str:
    """Why a row cannot be priced; empty if it can."""
    if line["collective"] not in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        return "not a collective of NCCL, or point to point in an unstated pattern"
    if _device_of(line) not in device_names():
        return "device not stated"
    if line["n_nodes"] not in ("", "1") and not _gbps(line):
        return "network not stated"
    if "consec" in line["interconnect"] or "strided" in line["interconnect"]:
        return "size not stated, and not the peak"
    return ""


def _device_of(line: Mapping[str, str]) -> str:
    return _device_name(line["device"].removesuffix("-class(unstated)"))


def _gbps(line: Mapping[str, str]) -> float:
    """Gb/s per GPU, from such as `efa_v4_50GBps_per_gpu`."""
    found = re.search(r"(\d+)GBps_per_gpu", line["interconnect"])
    return 8 * float(found[1]) if found else 0.0


def _label(line: Mapping[str, str]) -> str:
    where = f"{line['n_nodes'] or 1} host(s)"
    sized = "" if line["size_bytes"] else f", peak {line['algo']}"
    return f"{line['source']}, {_device_of(line)}, {where}, {line['collective']}{sized}"


def priced(line: Mapping[str, str]) -> tuple[Law, float, float]:
    """The law of a row's group, its bytes, the seconds measured."""
    torus = re.fullmatch(r"ici (\d+)x(\d+)x(\d+)", line["interconnect"])
    ranks = prod(map(int, torus.groups())) if torus else int(line["n_ranks"])
    hosts = int(line["n_nodes"] or 1)
    inter = f",inter={_gbps(line):g}G" if hosts > 1 else ""
    cluster = read_cluster(f"{hosts}x{ranks // hosts}x{_device_of(line)}{inter}")
    shape = group_shape(cluster, tuple(range(ranks)), Mesh((MeshAxis("all", ranks),)), ("all",))
    nbytes = float(line["size_bytes"] or PEAK_BYTES)
    share = (ranks - 1) / ranks * (2 if line["collective"] == "all_reduce" else 1)
    if torus:  # the size is what was transferred
        measured, nbytes = nbytes / (float(line["busbw_gb_per_s"]) * 1e9), nbytes / share
    elif line["time_ms"]:
        measured = float(line["time_ms"]) * 1e-3
    else:
        measured = nbytes * share / (float(line["busbw_gb_per_s"]) * 1e9)
    found = law(line["collective"], shape, "xla" if torus else "nccl")
    if line["algo"].startswith("Ring"):  # the only one that it was let choose
        found = Law(tuple(one for one in found.lines if one.how.startswith("ring")), found.provenance)
    return found, nbytes, measured


def write_profile(nccl_csv: Path, target: Path) -> None:
    """Write the curves that are shipped: those of one host, because the file does not state the network."""
    curves, _ = built(row for row in rows_of(nccl_csv) if row.hosts == 1)
    sources = sorted({curve.source for curve in curves})
    table = {
        "format_version": 1,
        "sources": {
            f"s{number}": {"document": f"benchmarks/data/nccl_curves.csv, source {name}", "date": "2026-11"}
            for number, name in enumerate(sources)
        },
        "curves": [
            {
                "kind": curve.kind,
                "device": curve.device,
                "hosts": curve.hosts,
                "per_host": curve.per_host,
                "source": f"s{sources.index(curve.source)}",
                "bytes_us": [[int(nbytes), round(seconds * 1e6, 3)] for nbytes, seconds in curve.points],
            }
            for curve in curves
        ],
    }
    text = re.sub(r"\[\s+(\d+),\s+([\d.]+)\s+\]", r"[\1, \2]", json.dumps(table, indent=1))
    target.write_text(text + "\n", encoding="utf-8")


def main(argv: Sequence[str]) -> int:
    """Print both scores, or write the profile."""
    parser = ArgumentParser(prog="benchmarks.kernels_nccl", description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--nccl", type=Path, default=DATA / "nccl_curves.csv")
    parser.add_argument("--collectives", type=Path, default=DATA / "collectives.csv")
    parser.add_argument("--write-profile", action="store_true", help=f"write {PROFILE.name} and print nothing")
    args = parser.parse_args(argv)
    if args.write_profile:
        write_profile(args.nccl, PROFILE)
        return 0
    print(json.dumps({"curves": score(args.nccl), "laws": score_laws(args.collectives)}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
