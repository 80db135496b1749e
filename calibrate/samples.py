"""Raw samples in a file: a first line that says of what machine they are, and a line for every case and rank.

The file grows by whole lines, each kept before the next case begins, so that whatever ends a calibration leaves a file
from which it is taken up again: a last line that was cut is passed over, and a case counts as measured once all of its
ranks have a line. Compacting writes a new file beside it and puts it in its place at once.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from meshwright.backends.measuring import Case, Sample
from meshwright.cost_models.measured.measured import Identity
from meshwright.ir.errors import SamplesOfAnotherMachine

Found = Mapping[Case, tuple[Sample, ...]]


def header(identity: Identity, ranks: int, hosts: int = 1) -> str:
    """The first line; `ranks` are those of a host."""
    return json.dumps({"identity": asdict(identity), "ranks": ranks, "hosts": hosts}, sort_keys=True)


def taken_up(path: Path, first: str) -> Found:
    """The samples that a file has already, which is begun if there is none. Raises `SamplesOfAnotherMachine`."""
    if not path.exists() or not path.read_bytes().strip():
        replaced(path, [first])
        return {}
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    if lines[0] != json.dumps(json.loads(first), sort_keys=True):
        raise SamplesOfAnotherMachine(
            place=str(path),
            cause=f"they are of {lines[0][:200]}, and this is {first[:200]}",
            fix="remove the file, or name another one with --out",
        )
    found = whole(lines[1:], json.loads(first)["hosts"])
    compacted(path, first, found)
    return found


def whole(lines: Iterable[str], hosts: int = 1) -> Found:
    """Cases of which every rank of so many hosts has a line; what cannot be read was cut."""
    by_case: dict[Case, dict[int, Sample]] = defaultdict(dict)
    for line in lines:
        try:
            sample = Sample.read(line)
        except (ValueError, KeyError, TypeError):
            continue
        by_case[sample.case].setdefault(sample.rank, sample)
    return {case: tuple(of.values()) for case, of in by_case.items() if len(of) == case.busy * hosts}


def compacted(path: Path, first: str, found: Found) -> None:
    """Write a file anew: whole cases alone, each once."""
    replaced(path, [first, *(sample.line() for of in found.values() for sample in of)])


def replaced(path: Path, lines: Iterable[str]) -> None:
    """Put a text in the place of a file at once."""
    beside = path.with_name(f"{path.name}.new")
    with beside.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
