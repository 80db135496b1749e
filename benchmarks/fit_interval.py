"""Fits the widths of intervals on published runs that were held out of the fit.

    python -m benchmarks.fit_interval [--write]

Constants of a step are fitted anew without each source, family of models, precision, stack, device, and without all
large runs (`left_out`), and the runs that were left out are priced under them. Of each such price we know what the run
has that no fitted one had (`meshwright.cost_models.intervals.seen`), and its residual e, the logarithm of measured over
predicted time. Every width is the least that holds `HELD` of its runs:

    base of dense models,        |e|, of runs whose source or family was left out, and that lack nothing of what was
      of mixtures of experts     fitted
    widening for what is unseen  sqrt(max(0, e² - w²)), of runs that lack it where its kind was left out; w is the half
                                 width by what else they lack. In the order of `WIDENINGS`: runs that lack something
                                 whose widening comes later are left to that one

A run counts 1/sqrt(runs of its fold), as in the fit: two hundred runs of one source say less of the next source than
two hundred of as many. A widening of 0 says that runs without the like are no farther off than those of any new source.

The report: every width, with the share of its runs that it holds, and, for every fold, the share of its runs that
widths hold which were fitted on all other runs. With `--write`, widths and what was seen go to the shipped profile: run
it whenever the constants of a step were fitted anew (`benchmarks.fit_step`).
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.fit_step import PROFILES, Fitter, parser_of
from benchmarks.left_out import LeftOut, case_of, folds_of, leave_out
from benchmarks.price import Pricer
from benchmarks.scores import Scored
from benchmarks.scoring import read_and_score
from meshwright.cost_models.intervals.seen import Seen
from meshwright.cost_models.intervals.widths import PREFIX, Widths
from meshwright.cost_models.profile import published

HELD = 0.8
"""Share of its runs that a width holds."""
ROUNDING = 1e-9
"""Of a sum, as a share."""
WIDENINGS: Mapping[str, str] = {"precision": "precision", "stack": "stack", "ranks": "scale", "device": "device"}
"""What is unseen, in the order of fitting, by the kind of fold that leaves it out."""
BASES = ("source", "family")
"""Kinds of folds whose runs bases are fitted on."""
KINDS = (*BASES, *WIDENINGS.values())
OPEN = Widths(dense=1.0, experts=1.0, precision=0.0, device=0.0, stack=0.0, ranks=0.0)
"""Where fitting starts."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """Widths, each with the number of runs that it was fitted on and the share that it holds."""

    widths: Widths
    runs: Mapping[str, int]
    holds: Mapping[str, float]


def fitted(rows: Sequence[LeftOut]) -> Fitted:
    """The least widths that hold their share of the runs."""
    widths, of = OPEN, {name: used(name, rows) for name in (field.name for field in fields(Widths))}
    for name in ("dense", "experts"):
        base = least([abs(row.residual) for row in of[name]], weights(of[name]))
        widths = replace(widths, **{name: base or getattr(OPEN, name)})
    for name in WIDENINGS:
        lacking = [max(0.0, row.residual**2 - widths.half(row.case, row.lacks) ** 2) for row in of[name]]
        widths = replace(widths, **{name: sqrt(least(lacking, weights(of[name])))})
    holds = {name: held(some, widths) for name, some in of.items()}
    return Fitted(widths, {name: len(some) for name, some in of.items()}, holds)


def used(name: str, rows: Iterable[LeftOut]) -> list[LeftOut]:
    """The runs that a width is fitted on."""
    if name in WIDENINGS:
        order = list(WIDENINGS)
        later = set(order[order.index(name) + 1 :])
        kind = WIDENINGS[name]
        return [row for row in rows if row.kind == kind and name in row.lacks and later.isdisjoint(row.lacks)]
    experts = name == "experts"
    return [row for row in rows if row.kind in BASES and not row.lacks and row.case.experts == experts]


def weights(rows: Sequence[LeftOut]) -> list[float]:
    """What runs count, by how many of their fold there are."""
    many = Counter((row.kind, row.fold) for row in rows)
    return [many[row.kind, row.fold] ** -0.5 for row in rows]


def least(values: Sequence[float], counts: Sequence[float]) -> float:
    """The least of some values that as much as is to be held is not above; 0 where there are none."""
    wanted, found = HELD * sum(counts) * (1 - ROUNDING), 0.0
    for value, count in sorted(zip(values, counts, strict=True)):
        found += count
        if found >= wanted:
            return value
    return 0.0


def held(rows: Sequence[LeftOut], widths: Widths) -> float:
    """The share of runs whose measurement lies in their interval."""
    return fmean(abs(row.residual) <= widths.half(row.case, row.lacks) for row in rows) if rows else 1.0


def crossed(kind: str, rows: Sequence[LeftOut]) -> dict[str, tuple[int, float]]:
    """Of each fold of a kind: its runs, and the share of them that widths fitted without these runs hold."""
    found: dict[str, tuple[int, float]] = {}
    for fold in dict.fromkeys(row.fold for row in rows if row.kind == kind):
        own = [row for row in rows if (row.kind, row.fold) == (kind, fold)]
        numbers = {row.row.run.row for row in own}
        others = [row for row in rows if row.row.run.row not in numbers]
        found[fold] = (len(own), held(own, fitted(others).widths))
    return found


def entries(found: Fitted) -> dict[str, dict[str, Any]]:
    """Widths with their provenance, as the profile holds them."""
    return {
        PREFIX + name: {
            "value": float(f"{getattr(found.widths, name):.3g}"),
            "unit": "1",
            "kind": "fitted" if found.runs[name] else "assumed",
            "how": _how(name, found.runs[name], found.holds[name]),
            "rows": found.runs[name],
        }
        for name in (field.name for field in fields(Widths))
    }


def _how(name: str, runs: int, holds: float) -> str:
    if name in WIDENINGS:
        what = f"widening that holds {holds:.0%} of {runs} runs; {WIDENINGS[name]} in turn left out"
    else:
        models = "mixtures of experts" if name == "experts" else "dense models"
        what = f"half width that holds {holds:.0%} of {runs} runs of {models}; source and family in turn left out"
    return f"{what}: python -m benchmarks.fit_interval"


def write(found: Fitted, seen: Seen, path: Path) -> None:
    """Write the widths and what was seen into a profile; entries keep their date."""
    whole: dict[str, Any] = json.loads(path.read_text())
    whole |= {name: {**whole[name], **entry} for name, entry in entries(found).items()} | {"seen": seen.to_json()}
    path.write_text(json.dumps(whole, indent=1) + "\n")


def report(found: Fitted, rows: Sequence[LeftOut]) -> str:
    """Every width, and the share of the runs of every fold that widths of other runs hold."""
    lines = [
        f"{name:12} {getattr(found.widths, name):7.3f}  {found.runs[name]:4} runs, {found.holds[name]:.0%} held"
        for name in (field.name for field in fields(Widths))
    ]
    for kind in dict.fromkeys(row.kind for row in rows):
        folds = crossed(kind, rows)
        runs, inside = sum(count for count, _ in folds.values()), sum(count * share for count, share in folds.values())
        lines.append(f"{kind}: {inside / runs:.0%} of {runs} held by widths fitted without them")
        lines += [f"  {name[:40]:40} {count:4} {share:4.0%}" for name, (count, share) in folds.items()]
    return "\n".join(lines)


def _told(what: str, done: int, of: int) -> None:
    print(f"{done} of {of} {what}", file=sys.stderr, flush=True)


def main(argv: Sequence[str]) -> int:
    given = parser_of("fit_interval", __doc__).parse_args(argv)
    # Programs that this process builds are there in those that it forks.
    scored = read_and_score(given.runs, given.models, Pricer(), progress=partial(_told, "rows"))
    runs = [row.run for row in scored if isinstance(row, Scored) and row.run.step_time_s is not None]
    start = published()
    fitter = Fitter.of(runs, start, given.processes)
    rows = leave_out(
        folds_of(KINDS, runs), fitter, start, Pricer, processes=given.processes, progress=partial(_told, "folds")
    )
    found = fitted(rows)
    print(report(found, rows))
    if given.write:
        write(found, Seen.of(map(case_of, runs)), PROFILES / "step.json")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
