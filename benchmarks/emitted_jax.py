"""JAX models by kinds of plans, or by plans that are drawn: what of it is emitted, and exact in `plan verify`.

    python -m benchmarks.emitted_jax --done FILE [--models A B] [--kinds A B] [--table docs/emitted_jax.md]
    python -m benchmarks.emitted_jax --done FILE --draw 40 --seed 1 [--layers]

Models are those of the tests and examples; with `--layers`, the layers that packages ship (`benchmarks.jax_layers`).
Every pair is a plan by degrees of a small model for jax-cpu. Its script is run on as many devices of one process as it
has ranks and held against the model on one device: loss, gradients, parameters after the step, and collectives by kind,
axes and bytes of the compiled step (`backends.jax_.verify`). Pairs that FILE has are not run again, so a run that was
stopped goes on where it was. The exit code is 1 if a pair differs or fails.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.emitted_matrix import Row, each_of, grid, outcome_of, vars_of
from benchmarks.jax_layers import equinox, linen, nnx
from meshwright.backends.jax_.capabilities import JAX_CPU
from meshwright.backends.jax_.emit.files import emit
from meshwright.backends.jax_.verify.emitted import Job, verify
from meshwright.backends.results import Verified
from meshwright.backends.subject import Subject
from meshwright.ir.errors import CapabilityError, MeshwrightError
from meshwright.ir.frontends.door import calls_of, capture, load_model
from meshwright.ir.graph.calls import Calls
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names import Degrees, check, template
from meshwright.ir.program.lower import lower
from meshwright.ir.target.capabilities import Capabilities
from meshwright.ir.target.workload import STACKS, Workload

ROOT = Path(__file__).resolve().parent.parent
ZOO = "tests/ir/frontends/jax_zoo"
BATCH, SEQ, DEVICES = 16, 32, 8
WORKLOADS: Mapping[str, Workload] = {
    dtype: Workload(global_batch=BATCH, seq=SEQ, precision=dtype, recipe=recipe, stack=STACKS["jax"])
    for dtype, recipe in (("fp32", "fp32"), ("bf16", "fsdp-bf16-reduce"))
}
STEPS, LIMIT_S, TOGETHER = 1, 120.0, 8
"""Of a run; and how many scripts are run in one process."""

MODELS: Mapping[str, str] = {
    "llama": "examples/jax_llama.py:tiny",
    "llama, scanned": "examples/jax_llama.py:tiny_scan",
    "perceptron": f"{ZOO}/plain.py:mlp",
    "decoder": f"{ZOO}/plain.py:decoder",
    "decoder, scanned": f"{ZOO}/plain.py:decoder_scan",
    "gshard": f"{ZOO}/plain.py:gshard",
    "in turn": f"{ZOO}/plain.py:in_turn",
    "gshard, scanned": f"{ZOO}/plain.py:gshard_scan",
    "ragged": f"{ZOO}/plain.py:ragged",
    "lora": f"{ZOO}/plain.py:lora",
    "ssm": f"{ZOO}/plain.py:ssm",
    "gpt, nnx": f"{ZOO}/nnx_.py:gpt",
    "scanned, nnx": f"{ZOO}/nnx_.py:scanned",
    "mixer, nnx": f"{ZOO}/nnx_.py:mixer_of_32",
    "gpt, linen": f"{ZOO}/linen.py:gpt",
    "scanned, linen": f"{ZOO}/linen.py:scanned",
    "gpt, equinox": f"{ZOO}/equinox_.py:gpt",
    "vit": f"{ZOO}/images.py:vit",
    "convnet": f"{ZOO}/images.py:convnet",
    "small convnet": f"{ZOO}/images.py:small",
    "translation": f"{ZOO}/translation.py:build",
}
LAYERS: Mapping[str, str] = {
    f"{package.__name__.rpartition('.')[2]}.{name}": f"benchmarks/jax_layers/{Path(str(package.__file__)).name}:{name}"
    for package in (linen, nnx, equinox)
    for name in package.LAYERS
}
SP = {"sequence_parallel": True}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "dp": {"dp": 8},
    "zero 1": {"dp": 4, "zero": 1},
    "zero 2": {"dp": 4, "zero": 2},
    "zero 3": {"dp": 4, "zero": 3},
    "hsdp": {"dp": 4, "zero": 3, "shard": 2},
    "tp": {"tp": 2},
    "tp+sp": {"tp": 2, **SP},
    "cp": {"cp": 2},
    "cp, ring": {"cp": 2, "context": "ring"},
    "cp, ulysses": {"cp": 2, "context": "ulysses"},
    "ep": {"dp": 2, "ep": 2},
    "gpipe": {"pp": 2, "microbatches": 4, "schedule": "gpipe"},
    "1f1b": {"pp": 2, "microbatches": 4, "schedule": "eager-1f1b"},
    "interleaved": {"pp": 2, "vp": 2, "microbatches": 4, "schedule": "interleaved"},
    "recompute": {"dp": 2, "recompute": "full"},
    "waiting on hosts": {"dp": 4, "zero": 3, "recompute": "full", "offload": "activations"},
    "micro-batches": {"dp": 2, "microbatches": 4},
    "micro-batches, zero 3": {"dp": 2, "zero": 3, "microbatches": 2},
    "tp x zero 3": {"tp": 2, "dp": 4, "zero": 3, **SP},
    "tp x dp, micro-batches": {"tp": 2, "dp": 4, "microbatches": 2, **SP},
    "cp x tp x zero 3": {"cp": 2, "tp": 2, "dp": 2, "zero": 3, **SP},
}
"""Degrees of every kind of plan."""

ABOUT = """\
Written by `python -m benchmarks.emitted_jax --done FILE --table docs/emitted_jax.md`: small models in fp32 on 2 to 8
devices of one process, compared as by `plan verify`: loss, every gradient, every parameter after the step, and
collectives of the compiled step by kind, axes and bytes. *exact*: all of it is; *differs*: something is not, and
values are off only where that is said below; a code: the plan is refused with it ([errors.md](errors.md)); `-`: the
model has no such plan; empty: not run."""


def main(argv: Sequence[str]) -> int:
    """Run what is not done, and write the table."""
    args = _parser().parse_args(argv)
    known = args.done.read_text().splitlines() if args.done and args.done.exists() else []
    rows = (Row(**json.loads(line)) for line in known)
    done = {(row.model, row.kind): row for row in rows}
    models = args.models or list(LAYERS if args.layers else MODELS)
    kinds = {kind: KINDS[kind] for kind in args.kinds or KINDS}
    asked = dict.fromkeys(models, kinds) if not args.draw else drawn(models, args.draw, args.seed)
    ran = []
    for model, plans in asked.items():
        left = {kind: degrees for kind, degrees in plans.items() if (model, kind) not in done}
        for row in outcomes(model, left):
            print(f"{row.model:16} {row.kind:24} {row.cell:8} {row.detail[:300]}", flush=True)
            done[row.model, row.kind] = row
            if args.done:
                with args.done.open("a") as file:
                    file.write(json.dumps({name: getattr(row, name) for name in Row.__slots__}) + "\n")
        ran += [done[model, kind] for kind in plans]
    if args.table:
        args.table.write_text("\n".join(page(done)) + "\n")
    return int(any(row.bad for row in ran))


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m benchmarks.emitted_jax", description=__doc__.splitlines()[0])
    parser.add_argument("--done", type=Path, help="a file of pairs that were run, which is added to")
    parser.add_argument("--models", nargs="+", choices=[*MODELS, *LAYERS], metavar="MODEL")
    parser.add_argument("--layers", action="store_true", help="the layers that packages ship")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, metavar="KIND")
    parser.add_argument("--draw", type=int, default=0, metavar="N", help="draw so many pairs instead of the kinds")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--table", type=Path, help="the page that is written")
    return parser


def drawn(models: Sequence[str], number: int, seed: int) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Pairs of models and degrees, by model: a mesh of at most eight devices, and everything else by chance."""
    random = Random(seed)
    found: dict[str, dict[str, Mapping[str, Any]]] = {model: {} for model in models}
    while sum(map(len, found.values())) < number:
        model = random.choice(models)
        sizes = {axis: random.choice((1, 1, 2, 2, 4, 8)) for axis in ("dp", "tp", "cp")}
        if not 1 < prod(sizes.values()) <= DEVICES:
            continue
        degrees: dict[str, Any] = {
            **sizes,
            "zero": random.choice((0, 0, 1, 2, 3)),
            "microbatches": random.choice((1, 1, 2, 4)),
            "recompute": random.choice(("none", "none", "full")),
            "sequence_parallel": random.random() < 0.5,
        }
        name = " ".join(f"{what}={value}" for what, value in vars_of(Degrees(**degrees)))
        found[model].setdefault(name, degrees)
    return {model: plans for model, plans in found.items() if plans}


@cache
def model_at(reference: str, batch: int = BATCH, dtype: str = "fp32", seq: int = SEQ) -> tuple[Fold, Calls]:
    """A model as it is captured with so many sequences, and what code calls of it."""
    source = load_model(str(ROOT / reference)).in_dtype(dtype)
    return capture(source, batch=batch, seq=seq).fold, calls_of(source, str(ROOT / reference), batch=batch, seq=seq)


def subject_of(
    reference: str,
    degrees: Degrees,
    *,
    on: Capabilities = JAX_CPU,
    dtype: str = "fp32",
    batch: int = BATCH,
    seq: int = SEQ,
) -> Subject:
    """The plan that degrees mean. Raises a `MeshwrightError` where the model has none, or the target refuses it."""
    fold, calls = model_at(reference, batch // degrees.microbatches, dtype, seq)
    workload = replace(WORKLOADS[dtype], global_batch=batch, seq=seq)
    check(degrees, fold, degrees.ranks, batch)
    ran = replace(degrees, **on.ran(degrees.zero, degrees.microbatches))
    decisions = replace(on.stored(template(fold, ran, on.target), fold), style="xla")
    on.check(decisions, fold, workload)
    program = lower(fold, decisions, on.lowering().for_stack(workload.stack), workload)
    config = ",".join(f"{name}={value}" for name, value in vars_of(ran))
    return Subject(fold=fold, decisions=decisions, program=program, workload=workload, calls=calls, config=config)


@dataclass(frozen=True, slots=True)
class Made:
    """A pair whose script is written."""

    kind: str
    job: Job


def outcomes(model: str, plans: Mapping[str, Mapping[str, Any]]) -> Iterator[Row]:
    """The pairs of a model: refused ones first, then what runs, several in one process."""
    with tempfile.TemporaryDirectory() as name:
        made = []
        for number, (kind, degrees) in enumerate(plans.items()):
            folder = Path(name) / str(number)
            try:
                subject = subject_of({**MODELS, **LAYERS}[model], Degrees(**degrees))
                emit(subject, folder).write(folder)
                made.append(Made(kind, Job.of(subject, folder)))
            except CapabilityError as error:
                yield Row(model=model, kind=kind, outcome="refused", code=error.code, detail=str(error))
            except MeshwrightError as error:
                yield Row(model=model, kind=kind, outcome="none", code=error.code, detail=str(error))
        for at in range(0, len(made), TOGETHER):
            yield from compared(model, made[at : at + TOGETHER])


def compared(model: str, made: Sequence[Made]) -> Iterator[Row]:
    """Run scripts in one process, or one by one if that fails, and compare."""

    def run(some: Sequence[Made]) -> list[Verified]:
        return verify([one.job for one in some], steps=STEPS, limit_s=LIMIT_S * len(some))

    for one, found in each_of(made, run):
        outcome, detail = outcome_of(found)
        yield Row(model=model, kind=one.kind, outcome=outcome, detail=detail)


def page(done: Mapping[tuple[str, str], Row]) -> Iterable[str]:
    """The table, as a page of the documentation."""
    yield "# What is emitted in JAX, and exact"
    yield ""
    yield from ABOUT.splitlines()
    yield ""
    yield from grid(MODELS, KINDS, done)
    yield ""
    pairs = [row for (_, kind), row in done.items() if kind in KINDS]
    yield f"Of {len(MODELS) * len(KINDS)} pairs {len(pairs)} were tried: {counts(pairs)}."
    by_chance = [row for (_, kind), row in done.items() if kind not in KINDS]
    if by_chance:
        yield f"Of {len(by_chance)} plans that were drawn: {counts(by_chance)}."
    bad = [row for row in done.values() if row.bad]
    if bad:
        yield ""
        yield from (f"- {row.model}, {row.kind}: {said(row.detail)}" for row in bad)


def said(detail: str) -> str:
    """What is said of a pair in a line: its first difference, or the error that a run died of."""
    lines = detail.splitlines()
    return next((line for line in reversed(lines) if "Error: " in line), lines[0].partition(";")[0])


def counts(rows: Sequence[Row]) -> str:
    """How many came to what."""
    words = {"exact": "exact", "refused": "refused", "none": "do not apply", "differs": "differ", "failed": "fail"}
    return ", ".join(f"{sum(row.outcome == outcome for row in rows)} {word}" for outcome, word in words.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
