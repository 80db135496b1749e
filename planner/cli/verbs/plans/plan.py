"""`plan MODEL`: the fastest plan that fits, a proof of how good it is, and why it is the one.

    arguments -> Ask, Asked -> solve -> Plan -> plan.json, tables or JSON

With `--what-if` changed questions are answered beside it, and with `--scale` one at each of several sizes
(`planner.answer.changed`). Where nothing fits, what would help is tried out and told (`planner.answer.relax`). Ctrl-C
and `--time-limit` end the search early; what was found until then is told and written all the same, with the gap that
is proved by then. The JSON is documented in docs/plan.md.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from meshwright.ir.decisions.text import decisions_text
from meshwright.ir.errors import ChangeImpossible, UnknownStep, instead
from meshwright.ir.graph.fold import unfold
from meshwright.ir.graph.text import fold_text, graph_text
from meshwright.ir.program.program import Program
from meshwright.ir.program.text import program_text
from meshwright.ir.target.capabilities import ANY
from meshwright.planner.answer.changed.what_if import WhatIf, read_changed, what_ifs
from meshwright.planner.answer.exchanged.beside import beside, beside_to_json, found_of
from meshwright.planner.answer.kept import Question
from meshwright.planner.answer.relax import nothing_to_json, relax
from meshwright.planner.answer.remedies import refused
from meshwright.planner.answer.solve import Solved, Stop, solve, space_of
from meshwright.planner.cli.exits import GAP_TOO_WIDE, INTERRUPTED, NOTHING_FITS
from meshwright.planner.cli.output import check_plan, folder_of, made
from meshwright.planner.cli.verbs.plans.scaled import show_scaled
from meshwright.planner.exchange.taken import Taken
from meshwright.planner.plan.file import FILE, plan_to_json, save_plan
from meshwright.planner.plan.types import Plan
from meshwright.planner.question.ask import Ask, read_asked
from meshwright.planner.question.changed.changes import OPTION
from meshwright.planner.question.constraints import Asked
from meshwright.planner.question.pins import word
from meshwright.planner.question.pricing import LEAST_BATCH, Setting
from meshwright.planner.search.search import Found, Search
from meshwright.planner.space.declared import Space


def run(args: Namespace) -> int:
    """The verb."""
    started_s = time.monotonic()
    _known_step(args.dump_after)
    if args.scale is not None:
        return show_scaled(args)
    taken = Taken.of(args, args.beat) if args.beat is not None else None
    if taken:
        args = taken.args
        args.target = args.target or (None if taken.named else ANY.target)
    ask, request = read_asked(args)
    ask = taken.for_plan(ask) if taken else ask
    changes = read_changed(args, args.what_if)
    if changes and args.dump_after is not None:
        raise ChangeImpossible(
            place=f"{OPTION} {args.what_if[0]} --dump-after {args.dump_after}",
            cause="an artefact is of one question",
            fix="leave one of them out",
        )
    folder = made(folder_of(args.out)) if args.out is not None else None
    if folder is not None:
        check_plan(folder / FILE, ask.model, force=args.force)
    stop = Stop(None if args.time_limit is None else started_s + args.time_limit)
    with stop.loading():
        ask, setting = ask.loaded()
    theirs = found_of(taken, ask, setting) if taken else None  # what is wrong with it is known before the search
    if theirs:
        request = replace(request, tried=(theirs.config,))
    if args.dump_after in BEFORE:
        args.progress.clear()
        sys.stdout.write(f"{BEFORE[args.dump_after](ask, setting, request)}\n")
        return 0
    if args.dump_after is not None:
        with stop.watching():
            solved = solve(ask, setting, request, stop, args.progress.told, args.objective)
        if solved.best is None:
            return nothing_found(solved, args)
        args.progress.clear()
        sys.stdout.write(f"{AFTER[args.dump_after](solved)}\n")
        return 0
    question = Question.of(args, ask, setting, request)
    found = question.answer(stop, args.progress.told, limited=args.time_limit is not None)
    plan = found if isinstance(found, Plan) else None
    changed = what_ifs(args, changes, plan, setting, stop, args.progress.told)
    if isinstance(found, Solved):
        return nothing_found(found, args, changed)
    others = tuple(changed)
    args.progress.clear()
    written = save_plan(found, folder) if folder else None
    held = beside(taken, theirs, found, ask, setting) if taken and theirs else None
    if args.json:
        _print(plan_to_json(found) | ({"beat": beside_to_json(held)} if held else {}), others)
    else:
        from meshwright.planner.cli.views.plans.plan import SHOWN

        SHOWN[args.detail](found, written)
        if held:
            from meshwright.planner.cli.views.plans.exchange import show_beside

            show_beside(held, found)
        _show(others)
    if stop.interrupted:
        return INTERRUPTED
    too_wide = args.max_gap is not None and found.bounds.gap > args.max_gap
    return GAP_TOO_WIDE if too_wide else 0


def _print(told: dict[str, Any], others: Sequence[WhatIf]) -> None:
    """Print an answer as JSON, with what would change it where that was asked."""
    if others:
        told["what_if"] = [one.to_json() for one in others]
    sys.stdout.write(f"{json.dumps(told, indent=2, ensure_ascii=False)}\n")


def _show(others: Sequence[WhatIf]) -> None:
    """Print what would change an answer, below it."""
    if others:
        from meshwright.planner.cli.views.plans.what_if import show_what_ifs

        show_what_ifs(others)


def nothing_found(solved: Solved, args: Namespace, changed: Iterable[WhatIf] = ()) -> int:
    """Print why there is no plan and what would help, and what was asked otherwise; returns the exit code."""
    if (error := refused(solved, args.time_limit)) is not None:
        raise error
    args.progress.phase("nothing fits: trying what would help")
    nothing, others = relax(solved), tuple(changed)
    args.progress.clear()
    if args.json:
        _print(nothing_to_json(nothing), others)
    else:
        from meshwright.planner.cli.views.plans.nothing import show_nothing

        show_nothing(nothing)
        _show(others)
    return NOTHING_FITS


# Artefacts on the way ------------------------------------------------------------------------------------------------


def _space_text(space: Space) -> str:
    """The space in words: constraints, what is left out, and every kernel configuration."""
    lines = [f"space of {space.ranks} ranks, {space.global_batch} sequences, {space.layers} layers"]
    for word_, table in (("only", space.constraints.only), ("never", space.constraints.never)):
        lines += [f"  {word_} {name}={'|'.join(map(word, values))}" for name, values in table.items()]
    lines += [f"  without {what}" for what in space.truncated]
    lines += [f"  kernel configuration {config}" for config in space.bases()]
    return "\n".join(lines)


def _search_text(search: Search) -> str:
    """The search in words: what was looked at, and everything that was priced, in order."""
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
    "load": lambda ask, setting, request: graph_text(unfold(setting.folds.first(LEAST_BATCH).fold)),
    "fold": lambda ask, setting, request: fold_text(setting.folds.first(LEAST_BATCH).fold),
    "space": lambda ask, setting, request: _space_text(space_of(setting, ask.cluster, request.constraints)),
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
        raise UnknownStep(place=f"--dump-after {name}", cause="no such step", fix=instead(name, (*BEFORE, *AFTER)))
