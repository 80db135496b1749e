"""`plan MODEL`: the fastest plan that fits, a proof of how good it is, and why it is the one.

    arguments -> Ask, Asked -> solve -> Plan -> plan.json, tables or JSON

Where nothing fits, what would help is tried out and told (`planner.relax`). Ctrl-C and `--time-limit` end the search
early; what was found until then is told and written all the same, with the gap that is proved by then. The JSON is
documented in docs/plan.md.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from meshwright.ir.errors import (
    MeshwrightError,
    ModulePinUnmet,
    NoPlanInTime,
    PlanUnwritable,
    SpaceEmpty,
    UnknownStep,
)
from meshwright.ir.fold import unfold
from meshwright.ir.names.stages import too_many_stages
from meshwright.ir.plan_text import decisions_text
from meshwright.ir.program import Program
from meshwright.ir.program_text import program_text
from meshwright.ir.text import fold_text, graph_text
from meshwright.planner.emission import by_code
from meshwright.planner.estimate import NOTHING_FITS, Ask, missing
from meshwright.planner.estimate import asked as asked_of_estimate
from meshwright.planner.module_pins import OPTIONS, apart
from meshwright.planner.objective import check_objective
from meshwright.planner.output import check_plan, folder_of
from meshwright.planner.pins import Pins, parse, word
from meshwright.planner.plan_file import FILE, plan_text, plan_to_json
from meshwright.planner.plan_types import Plan
from meshwright.planner.pricing import LEAST_BATCH, Setting
from meshwright.planner.progress import Progress
from meshwright.planner.relax import Nothing, relax
from meshwright.planner.remedies import inexpressible, unwritten
from meshwright.planner.report import plan_of
from meshwright.planner.search import Found, Search
from meshwright.planner.solve import Solved, Stop, solve, space_of
from meshwright.planner.space import Space
from meshwright.planner.wishes import Asked, asked

GAP_TOO_WIDE = 4
INTERRUPTED = 130


def run(args: Namespace) -> int:
    """The verb."""
    started_s = time.monotonic()
    _known_step(args.dump_after)
    ask, wished = read_asked(args)
    folder = made(folder_of(args.out)) if args.out is not None else None
    if folder is not None:
        check_plan(folder / FILE, ask.model, force=args.force)
    stop = Stop(None if args.time_limit is None else started_s + args.time_limit)
    with stop.loading():
        setting = ask.setting()
    if args.dump_after in BEFORE:
        sys.stdout.write(f"{BEFORE[args.dump_after](ask, setting, wished)}\n")
        return 0
    with stop.watching(), Progress(sys.stderr) as progress:
        solved = solve(ask, setting, wished, stop, progress.told, args.objective)
    if solved.best is None:
        return nothing_found(solved, args)
    if args.dump_after is not None:
        sys.stdout.write(f"{AFTER[args.dump_after](solved)}\n")
        return 0
    plan = plan_of(solved, args.top)
    written = write(plan, folder) if folder else None
    if args.json:
        sys.stdout.write(f"{json.dumps(plan_to_json(plan), indent=2, ensure_ascii=False)}\n")
    else:
        from meshwright.planner.plan_view import show

        show(plan, written)
    if stop.interrupted:
        return INTERRUPTED
    too_wide = args.max_gap is not None and plan.bounds.gap > args.max_gap
    return GAP_TOO_WIDE if too_wide else 0


def read_asked(args: Namespace) -> tuple[Ask, Asked]:
    """Read the arguments; what contradicts itself is refused before the model is touched."""
    if args.global_batch is None:
        raise missing("--global-batch", "256", "the sequences of one optimizer step", "plan")
    plain, modules = apart({option: getattr(args, option) for option in OPTIONS})
    ask = asked_of_estimate(Namespace(**vars(args) | plain))
    given = parse(plain["fix"])
    wished = asked(given.over(Pins(mbs=args.micro_batch)), plain["allow"], plain["forbid"])
    check_objective(args.objective, ask.cluster)
    return ask, replace(wished, pins=wished.pins.over(ask.pins), operators=args.operators, modules=modules)


def made(folder: Path) -> Path:
    """A folder to write into, made if there is none: before the search, not after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from None
    return folder


def unwritable(place: Path, error: OSError) -> PlanUnwritable:
    """The refusal of a place."""
    return PlanUnwritable(place=f"--out {place}", cause=f"{error.strerror}".lower(), fix="name a directory to write to")


def write(plan: Plan, folder: Path) -> Path:
    """Write `plan.json` into a folder."""
    file = folder / FILE
    try:
        file.write_text(plan_text(plan), encoding="utf-8")
    except OSError as error:
        raise unwritable(file, error) from None
    return file


def nothing_found(solved: Solved, args: Namespace) -> int:
    """What is said, and done, where there is no plan."""
    if not solved.complete:
        ended = "it was interrupted" if solved.stop.interrupted else f"--time-limit {args.time_limit:g} ended it"
        raise NoPlanInTime(
            place="plan, the search",
            cause=f"no plan that fits was found before {ended}{_passed_over(solved)}",
            fix="give it more time, or pin more of the plan",
        )
    if not solved.search.found and is_empty(solved.search.space):
        raise empty(solved)
    if (nothing_emitted := unwritten(solved)) is not None:
        raise nothing_emitted
    refusal = solved.search.refusal
    if refusal is not None and not solved.search.priced_any and not isinstance(refusal, ModulePinUnmet):
        raise inexpressible(solved, refusal)
    nothing = relax(solved)
    if args.json:
        sys.stdout.write(f"{json.dumps(nothing_to_json(nothing), indent=2, ensure_ascii=False)}\n")
    else:
        from meshwright.planner.plan_view import show_nothing

        show_nothing(nothing)
    return NOTHING_FITS


def _passed_over(solved: Solved) -> str:
    """What fits and is not emitted, in words."""
    passed = solved.search.emission.passed if solved.search.emission else []
    return f"; {len(passed)} that fit was passed over ({', '.join(by_code(passed))})" if passed else ""


def nothing_to_json(nothing: Nothing) -> dict[str, Any]:
    """What is said where nothing fits, as docs/plan.md describes it."""

    def shown(found: Found) -> dict[str, Any]:
        prediction = found.prediction
        return {
            "config": found.config.to_json(),
            "step_time_s": prediction.step_time_s,
            "peak_memory_bytes": prediction.peak_memory_bytes,
        }

    stage, short = nothing.short
    return {
        "fits": False,
        "nearest": shown(nothing.nearest) | {"short": {"stage": stage, "bytes": short}} if nothing.nearest else None,
        "relaxations": [{"kind": one.kind, "what": one.what, **shown(one.found)} for one in nothing.relaxations],
    }


def is_empty(space: Space) -> bool:
    """Whether nothing is as was asked for."""
    return not any(
        True for base in space.bases() for pipeline in space.pipelines(base) for _ in space.storages(pipeline)
    )


def empty(solved: Solved) -> MeshwrightError:
    """The refusal of wishes that nothing meets: what contradicts what, as far as taking back one of them shows it."""
    space, wished = solved.search.space, solved.asked
    stages = [number for number in wished.wishes.only.get("pp", ()) if isinstance(number, int)]
    if stages and min(stages) > max(space.layers, 1):
        return too_many_stages(min(stages), space.layers)
    alone = [name for name in wished.names if not is_empty(replace(space, wishes=wished.without(name).wishes))]
    return SpaceEmpty(
        place=f"plan, {wished.text or 'the space'}",
        cause=f"{space.ranks} ranks, {space.global_batch} sequences and {space.layers} layers cannot be shared out so",
        fix=f"take back what was asked of {' or '.join(alone)}" if alone else "take back more than one of them",
    )


# Artefacts on the way ------------------------------------------------------------------------------------------------


def _space_text(space: Space) -> str:
    """What is asked for, what is left out, and every base."""
    lines = [f"space of {space.ranks} ranks, {space.global_batch} sequences, {space.layers} layers"]
    for word_, table in (("only", space.wishes.only), ("never", space.wishes.never)):
        lines += [f"  {word_} {name}={'|'.join(map(word, values))}" for name, values in table.items()]
    lines += [f"  without {what}" for what in space.truncated]
    lines += [f"  base {config}" for config in space.bases()]
    return "\n".join(lines)


def _search_text(search: Search) -> str:
    """What was looked at, and everything that was priced, in order."""
    counts = " ".join(f"{name}={number}" for name, number in asdict(search.counts).items())
    lines = [f"search {counts}", f"  bounds {search.lower_s} {search.upper_s}"]
    lines += [f"  {one.step_s} {'fits' if one.fits else 'full'} {one.config}" for one in search.found.values()]
    return "\n".join(lines)


def _program(solved: Solved) -> Program:
    fold = solved.setting.fold(_best(solved).config)
    return solved.setting.lowered(fold, solved.decisions, solved.global_batch)


def _best(solved: Solved) -> Found:
    assert solved.best is not None
    return solved.best


BEFORE: Mapping[str, Callable[[Ask, Setting, Asked], str]] = {
    "load": lambda ask, setting, wished: graph_text(unfold(setting.folds.first(LEAST_BATCH).fold)),
    "fold": lambda ask, setting, wished: fold_text(setting.folds.first(LEAST_BATCH).fold),
    "space": lambda ask, setting, wished: _space_text(space_of(setting, ask.cluster, wished.wishes)),
}
AFTER: Mapping[str, Callable[[Solved], str]] = {
    "search": lambda solved: _search_text(solved.search),
    "decide": lambda solved: decisions_text(solved.decisions),
    "lower": lambda solved: program_text(_program(solved)),
    "evaluate": lambda solved: json.dumps(_best(solved).prediction.to_json(), indent=2),
}
"""What --dump-after can print, before and after the search, in the order of the data path."""


def _known_step(name: str | None) -> None:
    if name is not None and name not in (*BEFORE, *AFTER):
        raise UnknownStep(
            place=f"--dump-after {name}", cause="no such step", fix=f"use one of {', '.join((*BEFORE, *AFTER))}"
        )
