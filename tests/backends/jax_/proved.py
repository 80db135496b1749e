"""Runs of emitted scripts in JAX that are on record, as those of torch are (`tests.backends.torch_.proved`).

A run follows from the text of the script, the model's file, what the plan tells the run (which parts lie where, how
many words there are, which branches are taken), the code that runs and reads it, and the versions of JAX and its
libraries. What it left is on record: losses, how far every tensor was off, collectives of the compiled step.
What is planned is no part of that, so every test holds it against the record anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from meshwright.backends.jax_ import verify
from meshwright.backends.jax_.verify.apart import Cuts
from meshwright.backends.jax_.verify.emitted import Job, Ran, run, words
from meshwright.backends.jax_.verify.pipelines import taken
from tests.backends.torch_.proved import PROVE, anywhere, digest, is_drawn, write

RECORDS = Path(__file__).parent / "proved"
VERSIONS = {name: version(name) for name in ("jax", "flax", "optax", "equinox")}
DRAWN = 12
"""One script in so many is run each time all the same: there are few."""
READ_BY = ("apart.py", "hlo.py", "run.py", "waiting.py")
"""Of the verifier: what runs a script, and what reads the step."""


def ran(name: str, jobs: Mapping[str, Job], limit_s: float) -> dict[str, Ran]:
    """What scripts left after a step, by their names; `name` is that of the record, one for each process."""
    file = RECORDS / f"{name}.json"
    record = json.loads(file.read_text()) if file.is_file() else {"versions": VERSIONS, "runs": {}}
    known = record["runs"] if record["versions"] == VERSIONS else {}
    asked = {kind: _asked(job) for kind, job in jobs.items()}
    fresh = [kind for kind, one in asked.items() if known.get(kind, {}).get("asked") != one]
    if fresh and not PROVE and record["versions"] == VERSIONS:
        pytest.fail(f"not as when it was run, in {file.name}: {fresh}; `make prove` runs it", pytrace=False)
    again = [kind for kind, one in asked.items() if kind in fresh or PROVE == "all" or is_drawn(one, DRAWN)]
    now = dict(zip(again, run([jobs[kind] for kind in again], steps=1, limit_s=limit_s), strict=True)) if again else {}
    if PROVE:
        rows = {kind: known[kind] for kind in asked if kind not in fresh}
        rows |= {kind: {"asked": asked[kind], "found": _plain(one)} for kind, one in now.items()}
        write(file, VERSIONS, {"runs": {kind: rows[kind] for kind in asked}})
    return {kind: now[kind] if kind in now else _read(known[kind]["found"]) for kind in asked}


def _asked(job: Job) -> dict[str, str]:
    texts = {path.name: anywhere(path) for path in sorted(job.script.parent.glob("*.py"))}
    by = [(Path(verify.__file__).parent / name).read_text() for name in READ_BY]
    told = Cuts.of(job.subject).plain(), words(job.subject.fold), taken(job.subject.program)
    return {"script": digest(texts, anywhere(job.subject.calls.file), by, told)}


def _plain(one: Ran) -> dict[str, Any]:
    return {
        "steps": one.steps,
        "losses": one.losses,
        "tensors": one.tensors,
        "off": dict(one.off),
        "temp_bytes": one.temp_bytes,
        "waiting_bytes": one.waiting_bytes,
        "executed": [[*key, number] for key, number in sorted(one.executed.items())],
        "in_fp64": one.in_fp64,
        "failed_in_fp64": one.failed_in_fp64,
    }


def _read(found: Mapping[str, Any]) -> Ran:
    executed = {(kind, tuple(axes), nbytes): number for kind, axes, nbytes, number in found["executed"]}
    return Ran(**{**found, "losses": tuple(found["losses"]), "executed": executed})
