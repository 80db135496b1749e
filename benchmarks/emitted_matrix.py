"""Models by kinds of plans: what of it is emitted, and exact in `plan verify`; what is refused, with its code.

    python -m benchmarks.emitted_matrix --done FILE [--models A B] [--kinds A B] [--table docs/emitted.md]
        [--compiled] [--printed] [--dtype bf16]

Every pair is a plan by degrees of a small model for torch-gloo. Its script is run on as many processes as it has ranks
and held against the model on one device: loss, gradients, parameters after the step, and collectives by kind, group and
bytes (`backends.torch_.verify`); and the fullest instant of every rank against the planned one. With `--compiled`
blocks are compiled, which takes a minute each, and memory is not measured; with `--printed` all models are printed.
Pairs that FILE has are not run again, so a
run that was stopped goes on where it was. The exit code is 1 if a pair differs or fails.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any, TypeVar

from meshwright.backends.results import Verified
from meshwright.backends.torch_.capabilities import TORCH_GLOO
from meshwright.backends.torch_.emit import Subject, emit
from meshwright.ir.errors import CapabilityError, MeshwrightError, RanksFailed
from meshwright.ir.frontends.door import calls_of, capture, load_model, twin_of
from meshwright.ir.frontends.twin import Scale, Twin
from meshwright.ir.graph.calls import Calls
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names import Degrees, check, template
from meshwright.ir.names.stages import layer_calls
from meshwright.ir.program.lower import lower
from meshwright.ir.target.workload import STACK_OF_STYLE, STACKS, Workload
from meshwright.planner.plan.needs import planned_memory
from meshwright.planner.refine.heterogeneous import neighbours, over_parts

T = TypeVar("T")
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
BATCH, SEQ, LAYERS = 8, 16, 4
TURNING = {"gemma-3": 12}
"""Layers of models whose blocks take turns: two periods, five that see a window and one that sees everything."""
STEPS, LIMIT_S, TOGETHER = 2, 120.0, 6
"""Of a run; and how many scripts are run in one launch."""

MODELS: Mapping[str, str] = {
    "llama": "llama.py:tiny",
    "llama, HF": "configs/llama-3.1-8b",
    "gpt2": "configs/gpt2",
    "phi-3": "configs/phi-3-mini",
    "gemma-3": "configs/gemma-3-27b",
    "mixtral": "configs/mixtral-8x7b",
    "qwen3-moe": "configs/qwen3-moe",
    "deepseek-v3": "configs/deepseek-v3",
    "t5": "configs/t5-large",
    "vit": "vit.py:tiny",
    "lora": "lora_llama.py:tiny",
    "unet": "unet.py:tiny",
    "mixture": "mixture.py:limited",
}
"""References from `examples`; a configuration is made small as for a twin."""

RECIPES = {"fp32": "fp32", "bf16": "fsdp"}
"""What each precision is run with."""
NEAR = 0.05
"""What planned and measured memory may be apart."""

ABOUT = """\
Written by `python -m benchmarks.emitted_matrix --done FILE --table docs/emitted.md`: small models in fp32 on 2 to 8
local processes, compared as by `plan verify`: loss, every gradient, every parameter after the step, and collectives
by kind, group and bytes. *exact*: all of it is; a code: the plan is refused with it ([errors.md](errors.md)); `-`:
the model has no such plan; empty: not run. `mixture` is `examples/mixture.py:limited`, whose experts have a capacity.
Beside *exact* stands how far planned memory is from the measured one, on the rank where it is furthest, if that is
more than 5 %."""

EMITTED = "emitted"
"""The outcome of what was not run; it is not noted as done."""
FULL = {"zero": 3, "sequence_parallel": True}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "dp": {"dp": 2},
    "zero 1": {"dp": 2, "zero": 1},
    "zero 1, micro-batches": {"dp": 2, "zero": 1, "microbatches": 2},
    "zero 2": {"dp": 2, "zero": 2},
    "zero 3": {"dp": 2, "zero": 3},
    "zero 3, kept": {"dp": 2, "zero": 3, "regather": False},
    "hsdp": {"dp": 4, "zero": 3, "shard": 2},
    "micro-batches": {"dp": 2, "microbatches": 2},
    "tp": {"tp": 2},
    "tp+sp": {"tp": 2, "sequence_parallel": True},
    "cp": {"cp": 2},
    "cp, ring": {"cp": 2, "context": "ring"},
    "cp, ulysses": {"cp": 2, "context": "ulysses"},
    "ep": {"dp": 2, "ep": 2},
    "ep, capacity": {"dp": 2, "ep": 2},
    "gpipe": {"pp": 2, "microbatches": 2, "schedule": "gpipe"},
    "1f1b": {"pp": 2, "microbatches": 4, "schedule": "1f1b"},
    "1f1b, uneven": {"pp": 2, "microbatches": 4, "schedule": "1f1b", "stage_blocks": (1, 0)},
    "interleaved": {"pp": 2, "vp": 2, "microbatches": 4, "schedule": "interleaved"},
    "zb-h1": {"pp": 2, "microbatches": 4, "schedule": "zb-h1"},
    "zb-h2": {"pp": 2, "microbatches": 4, "schedule": "zb-h2"},
    "zbv": {"pp": 2, "vp": 2, "microbatches": 4, "schedule": "zbv"},
    "v-half": {"pp": 2, "vp": 2, "microbatches": 4, "schedule": "v-half"},
    "v-min": {"pp": 2, "vp": 2, "microbatches": 4, "schedule": "v-min"},
    "dualpipev": {"pp": 2, "vp": 2, "microbatches": 4, "schedule": "dualpipev"},
    "recompute, full": {"dp": 2, "recompute": "full"},
    "recompute, selective": {"dp": 2, "recompute": "selective"},
    "recompute, selective_op": {"dp": 2, "recompute": "selective_op"},
    "recompute, full_layers:1": {"dp": 2, "recompute": "full_layers:1"},
    "tp 2 x zero 3": {"tp": 2, "dp": 2, **FULL},
    "pp 2 x zero 1": {"pp": 2, "dp": 2, "zero": 1, "microbatches": 2, "schedule": "1f1b"},
    "pp 2 x tp 2 x dp 2": {"pp": 2, "tp": 2, "dp": 2, "microbatches": 2, "schedule": "1f1b"},
    "pp 2 x tp 2 x zero 3": {"pp": 2, "tp": 2, "dp": 2, "microbatches": 2, "schedule": "1f1b", **FULL},
    "cp 2 x tp 2 x zero 3": {"cp": 2, "tp": 2, "dp": 2, **FULL},
    "pp 2 x cp 2 x zero 3": {"pp": 2, "cp": 2, "dp": 2, "microbatches": 2, "schedule": "1f1b", "zero": 3},
    "hsdp 4 x tp 2": {"dp": 4, "tp": 2, "shard": 2, **FULL},
    "unequal, 1 + 2": {"pp": 2, "microbatches": 2, "schedule": "1f1b", "stage_blocks": (1, 0)},
}
"""Degrees of every kind of plan; the last stage has the layers that are left."""
UNEQUAL = {"unequal, 1 + 2": (Degrees(), Degrees(tp=2))}
"""Degrees inside of stages whose meshes are unlike."""
LIMITED = {"ep": False, "ep, capacity": True}
"""Kinds for models whose experts have no capacity, or one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One pair, and what became of it: exact, refused (`code` says by what), none (there is no such plan of this
    model), differs or failed."""

    model: str
    kind: str
    outcome: str
    code: str = ""
    detail: str = ""
    memory: float | None = None
    """Planned by measured memory, of the rank where they are furthest apart."""

    @property
    def bad(self) -> bool:
        return self.outcome in ("differs", "failed")

    @property
    def off(self) -> float | None:
        """How far planned memory is from the measured one."""
        return None if self.memory is None else self.memory - 1

    @property
    def cell(self) -> str:
        far = f" {self.off:+.1%}" if self.off is not None and abs(self.off) > NEAR else ""
        return {"refused": self.code, "none": "-"}.get(self.outcome, self.outcome) + far


def main(argv: Sequence[str]) -> int:
    """Run what is not done, and write the table."""
    args = _parser().parse_args(argv)
    done = {(row.model, row.kind): row for row in _read(args.done)} if args.done else {}
    for model in args.models or MODELS:
        kinds = [kind for kind in args.kinds or KINDS if (model, kind) not in done]
        style = "compiled" if args.compiled else "eager"
        small = {"style": style, "dtype": args.dtype, "prints": args.printed}
        for row in rows(model, kinds, run=not args.emit_only, **small):
            memory = f"{row.off:+.1%}" if row.off is not None else ""
            print(f"{row.model:12} {row.kind:24} {row.cell:8} {memory} {row.detail[:200]}", flush=True)
            if row.outcome == EMITTED:
                continue
            done[row.model, row.kind] = row
            if args.done:
                with args.done.open("a") as file:
                    file.write(json.dumps({name: getattr(row, name) for name in Row.__slots__}) + "\n")
    if args.table:
        args.table.write_text("\n".join(page(done)) + "\n")
    return int(any(row.bad for row in done.values()))


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m benchmarks.emitted_matrix", description=__doc__.splitlines()[0])
    parser.add_argument("--done", type=Path, help="a file of pairs that were run, which is added to")
    parser.add_argument("--models", nargs="+", choices=MODELS, metavar="MODEL")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, metavar="KIND")
    parser.add_argument("--table", type=Path, help="the page that is written, of runs in fp32")
    parser.add_argument("--compiled", action="store_true", help="blocks are compiled (give a --done of its own)")
    parser.add_argument("--printed", action="store_true", help="models are printed (give a --done of its own)")
    parser.add_argument("--dtype", choices=RECIPES, default="fp32", help="the precision (give a --done of its own)")
    parser.add_argument("--emit-only", action="store_true", help="run nothing: note only what is refused")
    return parser


def _read(file: Path) -> Iterator[Row]:
    if file.exists():
        yield from (Row(**json.loads(line)) for line in file.read_text().splitlines())


def rows(model: str, kinds: Sequence[str], *, run: bool, **options: Any) -> Iterator[Row]:
    """The pairs of a model: refused ones first, then what runs, several in one launch."""
    with tempfile.TemporaryDirectory() as name:
        small, made = Small(model, Path(name), **options), list[Made]()
        for number, kind in enumerate(kinds):
            try:
                found = small.made(kind, Path(name) / str(number))
            except CapabilityError as error:
                found = Row(model=model, kind=kind, outcome="refused", code=error.code, detail=str(error))
            except MeshwrightError as error:
                found = Row(model=model, kind=kind, outcome="failed", code=error.code, detail=str(error))
            if isinstance(found, Row):
                yield found
            else:
                made.append(found)
        while made:
            several, made = made[:TOGETHER], made[TOGETHER:]
            yield from (compared(model, several) if run else (one.row(model, EMITTED) for one in several))


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A pair whose script is written."""

    kind: str
    subject: Subject
    script: Path

    def row(self, model: str, outcome: str, detail: str = "", measured: Sequence[int] = ()) -> Row:
        """With planned memory by measured, if there is something measured."""
        row = Row(model=model, kind=self.kind, outcome=outcome, detail=detail)
        if not measured:
            return row
        planned = planned_memory(self.subject.program)
        ratios = (one / run for one, run in zip(planned, measured, strict=True))
        return replace(row, memory=max(ratios, key=lambda one: abs(one - 1)))


@cache
def _twin(reference: str, scale: Scale) -> Twin:
    return twin_of(load_model(reference), reference, scale)


class Small:
    """A model of the matrix, small."""

    def __init__(
        self, name: str, folder: Path, *, style: str = "eager", dtype: str = "fp32", prints: bool = False
    ) -> None:
        self.dtype, self.prints = dtype, prints
        self.name, self.stack, reference = name, STACKS[STACK_OF_STYLE[style]], str(EXAMPLES / MODELS[name])
        if Path(reference).is_dir():
            scale = Scale(layers=TURNING.get(name, LAYERS), seq=SEQ, tokens=4096)
            for file, text in _twin(reference, scale).files(folder):
                (folder / file).write_text(text)
            reference = str(folder)
        self.reference = reference
        self.captured: dict[int, tuple[Fold, Calls]] = {}

    def made(self, kind: str, folder: Path) -> Made | Row:
        """Plan and emit; a row where there is no such plan."""
        subject = self.subject(kind, Degrees(**KINDS[kind]), UNEQUAL.get(kind, ()))
        if isinstance(subject, str):
            return Row(model=self.name, kind=kind, outcome="none", detail=subject)
        emit(subject, folder).write(folder)
        return Made(kind=kind, subject=subject, script=folder / "train.py")

    def subject(self, kind: str, degrees: Degrees, unequal: Sequence[Degrees] = ()) -> Subject | str:
        """The plan, or why there is none; of stages with unlike meshes if degrees inside of them are given."""
        batch = BATCH // degrees.microbatches
        if batch not in self.captured:
            source = load_model(self.reference, dtype=self.dtype).in_dtype(self.dtype)
            found = capture(source, batch=batch, seq=SEQ)
            fold = found.fold
            calls = calls_of(source, self.reference, batch=batch, seq=SEQ, constants=found.constants)
            self.captured[batch] = fold, calls
        fold, calls = self.captured[batch]
        if kind in LIMITED and limited(fold) not in (LIMITED[kind], None):
            return f"experts with{'out' * LIMITED[kind]} a capacity"
        if degrees.stage_blocks:
            given = degrees.stage_blocks[:-1]
            degrees = replace(degrees, stage_blocks=(*given, len(layer_calls(fold)) - sum(given)))
        elif len(layer_calls(fold)) % (degrees.pp * degrees.vp):
            degrees = replace(degrees, split="spread")
        workload = Workload(
            global_batch=BATCH, seq=SEQ, precision=self.dtype, recipe=RECIPES[self.dtype], stack=self.stack
        )
        try:
            check(degrees, fold, degrees.ranks, BATCH)
            ran = replace(degrees, **TORCH_GLOO.ran(degrees.zero, degrees.microbatches))
            decisions = template(fold, ran, TORCH_GLOO.target)
            if unequal:
                stages, schedule = degrees.stage_blocks, decisions.schedule
                decisions = over_parts(fold, neighbours(*unequal), stages, schedule, TORCH_GLOO.target)
            decisions = replace(decisions, style=self.stack.style)
        except MeshwrightError as error:
            return str(error)
        TORCH_GLOO.check(decisions, fold, workload)
        return Subject(
            fold=fold,
            decisions=decisions,
            program=lower(fold, decisions, TORCH_GLOO.lowering().for_stack(self.stack), workload),
            workload=workload,
            calls=calls,
            config=",".join(f"{name}={value}" for name, value in vars_of(degrees)),
            prints=self.prints,
        )


def limited(fold: Fold) -> bool | None:
    """Whether the experts of a model have a capacity; None without experts."""
    sent = [op for body in fold.bodies for op in body.graph.ops if op.kind == "dispatch"]
    return not all(op.attr("dropless") for op in sent) if sent else None


def vars_of(degrees: Degrees) -> Iterator[tuple[str, Any]]:
    """What differs from the defaults."""
    usual = Degrees()
    for name in Degrees.__slots__:
        if getattr(degrees, name) != getattr(usual, name):
            yield name, getattr(degrees, name)


def compared(model: str, made: Sequence[Made]) -> Iterator[Row]:
    """Run scripts in one launch, or one by one if that fails, and compare."""
    from meshwright.backends.torch_.verify.emitted import Job, verify

    def run(some: Sequence[Made]) -> list[Verified]:
        return verify([Job.of(one.subject, one.script) for one in some], steps=STEPS, limit_s=LIMIT_S * len(some))

    for one, found in each_of(made, run):
        memory = () if isinstance(found, str) else found.memory
        yield one.row(model, *outcome_of(found), memory)


def each_of(made: Sequence[T], run: Callable[[Sequence[T]], Sequence[Verified]]) -> Iterator[tuple[T, Verified | str]]:
    """What is found of several that run in one launch, or one by one if that fails; or what one died of."""
    try:
        yield from zip(made, run(made), strict=True)
    except RanksFailed as error:
        if len(made) == 1:
            yield made[0], str(error)
        else:
            for one in made:
                yield from each_of([one], run)


def outcome_of(found: Verified | str) -> tuple[str, str]:
    """The outcome of a run, and its details."""
    if isinstance(found, str):
        return "failed", found
    return "differs" if found.differences else "exact", "; ".join(found.differences[:4])


def grid(models: Iterable[str], kinds: Iterable[str], done: Mapping[tuple[str, str], Row]) -> Iterator[str]:
    """The table of models and kinds."""
    names = list(models)
    yield f"| plan | {' | '.join(names)} |"
    yield f"|---|{'---|' * len(names)}"
    for kind in kinds:
        cells = (done[model, kind].cell if (model, kind) in done else "" for model in names)
        yield f"| {kind} | {' | '.join(cells)} |"


def page(done: Mapping[tuple[str, str], Row]) -> Iterable[str]:
    """The table, as a page of the documentation."""
    yield "# What is emitted, and exact"
    yield ""
    yield from ABOUT.splitlines()
    yield ""
    yield from grid(MODELS, KINDS, done)
    run = list(done.values())
    yield ""
    counts = ", ".join(
        f"{sum(row.outcome == outcome for row in run)} {word}"
        for outcome, word in (("exact", "exact"), ("refused", "refused"), ("none", "do not apply"))
    )
    bad = [row for row in run if row.bad]
    off = [abs(row.off) for row in run if row.off is not None]
    yield f"Of {len(MODELS) * len(KINDS)} pairs {len(run)} were tried: {counts}, {len(bad)} differ or fail."
    if off:
        near = f"within 5 % of that on every rank of {sum(one <= NEAR for one in off)}"
        worst = f"where it is furthest off {mean(off):.1%} in the mean, {max(off):.1%} at most"
        yield f"Memory was measured of {len(off)}: planned, it is {near}; on the rank {worst}."
    if bad:
        yield ""
        yield from (f"- {row.model}, {row.kind}: {row.detail.splitlines()[0].partition(';')[0]}" for row in bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
