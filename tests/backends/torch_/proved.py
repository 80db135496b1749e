"""Runs of emitted scripts that are on record, so that what was shown is not shown again by every run of the tests.

    plans and their scripts  ->  what `verify` found of each: on record, or run now

A run follows from the text of the script, the model's file, the Program, the number of steps, and the versions of torch
and transformers. Where all of these are as they were when the script was run and found exact, the record has what came
of it: losses, executed collectives, measured memory. Beside it stands the memory that was planned, to the byte, so that
a change of what is planned is a change of the record.

    what differs from the record        the tests fail, and say so
    MESHWRIGHT_PROVE=1 (`make prove`)   runs what is not on record, and records what is exact
    MESHWRIGHT_PROVE=all                runs everything, and records what is exact
    other versions                      run everything, and record nothing

One script in `DRAWN` is run each time all the same, by its digest, on record or not. What compares is not part of the
record: these runs hold it, `test_emit.py`, where faults are planted, and its own tests.

Runs that are not `verify`'s have facts on record (`observed`): whatever a launch leaves that its tests ask about.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from meshwright.backends.results import Verified
from meshwright.backends.torch_.emit import Subject
from meshwright.backends.torch_.verify.emitted import Job, verify
from meshwright.ir.program.text import program_text
from meshwright.planner.plan.needs import planned_memory

ROOT = Path(__file__).parents[3]
RECORDS = Path(__file__).parent / "proved"
VERSIONS = {"torch": torch.__version__.partition("+")[0], "transformers": transformers.__version__}
DRAWN = 60
PROVE = os.environ.get("MESHWRIGHT_PROVE", "")


def proved(name: str, plans: Mapping[str, tuple[Subject, Path]], *, steps: int, limit_s: float) -> dict[str, Verified]:
    """What is found of scripts, by their names; `name` is that of the record, one for each launch."""
    file = RECORDS / f"{name}.json"
    record = json.loads(file.read_text()) if file.is_file() else {"versions": VERSIONS, "runs": {}}
    known = record["runs"] if record["versions"] == VERSIONS else {}
    asked = {kind: _asked(plan, script, steps) for kind, (plan, script) in plans.items()}
    fresh = [kind for kind, one in asked.items() if _of(known, kind, "asked") != one]
    if fresh and not PROVE and record["versions"] == VERSIONS:
        changed = {kind: changed_in(asked[kind], _of(known, kind, "asked") or {}) for kind in fresh}
        pytest.fail(f"not as it was when it was run, in {file.name}: {changed}; `make prove` runs it", pytrace=False)
    run = [kind for kind, one in asked.items() if kind in fresh or PROVE == "all" or is_drawn(one)]
    jobs = [Job.of(*plans[kind]) for kind in run]
    now = dict(zip(run, verify(jobs, steps=steps, limit_s=limit_s), strict=True)) if run else {}
    if PROVE:
        known = {kind: known[kind] for kind in asked if kind not in fresh}
        known |= {kind: {"asked": asked[kind], "found": asdict(one)} for kind, one in now.items() if one.exact}
        write(file, VERSIONS, {"runs": {kind: known[kind] for kind in asked if kind in known}})
    return {kind: now[kind] if kind in now else _read(known[kind]["found"]) for kind in asked}


def observed(name: str, plans: Mapping[str, tuple[Subject, Path]], observe: Callable[[], dict[str, Any]]) -> Any:
    """The facts that a launch of scripts leaves, as JSON: on record, or of a launch now."""
    file = RECORDS / f"{name}.json"
    record = json.loads(file.read_text()) if file.is_file() else {"versions": VERSIONS, "asked": {}}
    asked = {kind: _asked(plan, script, steps=0) for kind, (plan, script) in plans.items()}
    known = record["asked"] == asked and record["versions"] == VERSIONS
    if known and PROVE != "all":
        return record["found"]
    if not PROVE and record["versions"] == VERSIONS:
        changed = {kind: changed_in(one, record["asked"].get(kind, {})) for kind, one in asked.items()}
        changed = {kind: what for kind, what in changed.items() if what}
        pytest.fail(f"not as it was when it was run, in {file.name}: {changed}; `make prove` runs it", pytrace=False)
    found = json.loads(json.dumps(observe()))
    if PROVE:
        write(file, VERSIONS, {"asked": asked, "found": found})
    return found


def _asked(plan: Subject, script: Path, steps: int) -> dict[str, Any]:
    """All that a run follows from, as digests, and the memory that is planned for each rank."""
    texts = {path.name: anywhere(path) for path in sorted(script.parent.glob("*.py"))}
    model = anywhere(plan.calls.file) if plan.calls.file.is_file() else ""
    return {
        "script": digest(texts, model, steps),
        "program": digest(program_text(plan.program)),
        "planned": [round(one) for one in planned_memory(plan.program)],
    }


def anywhere(file: Path) -> str:
    """The text of a file, wherever it, the model and this checkout lie."""
    text = re.sub("^MODEL = .*$", "MODEL", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if file.is_relative_to(ROOT):
        return text
    return text.replace(os.path.relpath(ROOT, file.parent.resolve()), ".").replace(str(ROOT), ".")


def digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _of(known: Mapping[str, Any], kind: str, what: str) -> Any:
    return known.get(kind, {}).get(what)


def changed_in(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    return ", ".join(what for what in one if one[what] != other.get(what))


def is_drawn(asked: Mapping[str, Any], one_in: int = DRAWN) -> bool:
    """Whether a script is among those that are run each time, by its digest."""
    return int(asked["script"], 16) % one_in == 0


def write(file: Path, versions: Mapping[str, str], record: Mapping[str, Mapping[str, Any]]) -> None:
    """One line for each run, under each head."""
    heads = [f'"versions": {json.dumps(versions)}']
    for head, runs in record.items():
        lines = ",\n".join(f"{json.dumps(kind)}: {json.dumps(one)}" for kind, one in runs.items())
        heads.append(f'"{head}": {{\n{lines}\n}}')
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"{{{', '.join(heads)}}}\n", encoding="utf-8")


def _read(found: Mapping[str, Any]) -> Verified:
    return Verified(**{name: _tuples(one) for name, one in found.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
