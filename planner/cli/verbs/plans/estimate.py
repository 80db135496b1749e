"""`plan estimate`: what a configuration costs on a cluster; with `--configs`, many configurations, ranked."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from meshwright.ir.errors import PinsContradict, UnknownStep, instead
from meshwright.planner.answer.estimate import STEPS, estimate, to_json
from meshwright.planner.answer.estimates import Outcome, Pricer, in_order, read_lines
from meshwright.planner.cli.exits import NOTHING_FITS
from meshwright.planner.exchange.taken import Taken
from meshwright.planner.question.annotated import config_of, mesh_of
from meshwright.planner.question.ask import Ask, asked, missing
from meshwright.planner.question.pins import Config, fill
from meshwright.planner.question.pricing import Setting
from meshwright.planner.search.phases import TRACING


def run(args: Namespace) -> int:
    """The verb."""
    dump = _dump_step(args.dump_after)
    _of_one_kind(args)
    taken = Taken.of(args, args.from_) if args.from_ is not None else None
    args = taken.args if taken else args
    ask = asked(args)
    if args.configs is not None:
        return run_many(ask, args)
    pinned = ask.pins
    ask = taken.asked(ask) if taken else ask
    if ask.global_batch is None:
        raise missing("--global-batch", "256", "the sequences of one optimizer step")
    global_batch = ask.global_batch
    if args.annotated is not None:
        ask = replace(ask, annotated=mesh_of(args.annotated, ask.cluster.ranks))
        config = config_of(ask.pins, global_batch)
    else:
        config = fill(ask.pins, ranks=ask.cluster.ranks, global_batch=global_batch, place=args.from_ or "--fix")
        config.workable(Config.degrees)  # what degrees refuse, they refuse before the model is touched
    ask, setting = ask.loaded()
    args.progress.told(TRACING)
    if taken:
        ask, setting, config = taken.placed(ask, setting, pinned)
    config = setting.settled(config, global_batch)
    if dump is not None:
        args.progress.clear()
        sys.stdout.write(f"{dump(setting, config)}\n")
        return 0
    found = estimate(ask, setting, config)
    args.progress.clear()
    if args.json:
        sys.stdout.write(f"{json.dumps(to_json(found), indent=2)}\n")
    else:
        from meshwright.planner.cli.views.plans.estimate import show

        show(found)
    return NOTHING_FITS if args.check and not found.prediction.fits else 0


def _of_one_kind(args: Namespace) -> None:
    """Check that one thing is priced: pins, lines, a model's own shardings, or settings."""
    several = [name for name in ("annotated", "from_") if getattr(args, name) is not None]
    if args.configs is not None and several:
        option = several[0].strip("_")
        raise PinsContradict(place=f"--{option}", cause="--configs prices other plans", fix="leave one of the two out")
    if len(several) > 1:
        raise PinsContradict(place="--from", cause="--annotated prices another plan", fix="leave one of the two out")


def _dump_step(name: str | None) -> Callable[[Setting, Config], str] | None:
    if name is None:
        return None
    if name not in STEPS:
        raise UnknownStep(place=f"--dump-after {name}", cause="no such step", fix=instead(name, STEPS))
    return STEPS[name]


def run_many(ask: Ask, args: Namespace) -> int:
    """The verb with --configs: 0 if anything could be priced, else the exit code of the first refusal; with --check, 3
    if nothing fits."""
    lines = read_lines(Path(args.configs), ask)
    configs = [line.config for line in lines if line.config is not None]
    pricer = Pricer(ask, lines, as_json=args.json)
    if configs:
        pricer.warm(configs)
    outcomes: list[Outcome] = []
    progress = args.progress
    progress.counted(0, len(lines))
    with closing(pricer.outcomes(args.jobs)) as arriving:
        for index, outcome in enumerate(in_order(arriving)):
            outcomes.append(outcome)
            if outcome.text:
                progress.clear()
                sys.stdout.write(f"{outcome.text}\n")
                sys.stdout.flush()
            if outcome.error:
                progress.clear()
                sys.stderr.write(f"{args.configs}:{lines[index].number}: {outcome.error}\n")
            progress.counted(len(outcomes), len(lines))
    progress.clear()
    if not args.json:
        from meshwright.planner.cli.views.plans.estimate import show_ranked

        show_ranked(ask, [line.number for line in lines], outcomes, args.top)
    if all(outcome.error for outcome in outcomes):
        return outcomes[0].exit_code
    return NOTHING_FITS if args.check and not any(outcome.fits for outcome in outcomes) else 0
