"""`plan explain [PLAN]`: a saved plan in words; and why it is not another one."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from meshwright.ir.errors import PinValue
from meshwright.planner.answer.explain import pins_text, to_json, why_not
from meshwright.planner.answer.solve import Stop
from meshwright.planner.plan.file import load_plan
from meshwright.planner.plan.reload import reload
from meshwright.planner.question.module_pins import apart
from meshwright.planner.question.pins import parse


def run(args: Namespace) -> int:
    """The verb."""
    plain, modules = apart({"fix": [args.why_not] if args.why_not is not None else []})
    pins = parse(plain["fix"])
    if args.why_not is not None and not pins.to_json() and not modules:
        raise PinValue(place="--why-not", cause="it names no pin", fix="write tp=4, for instance")
    plan = load_plan(args.plan)
    again = reload(plan, args.model, args.cluster)
    args.progress.clear()
    for said in again.changed:
        print(f"warning: {said}; prices are made again", file=sys.stderr)  # noqa: T201
    verdict = None
    if args.why_not is not None:
        with Stop(None).watching() as stop:
            verdict = why_not(again, pins, stop, args.progress.told, modules)
    args.progress.clear()
    if args.json:
        sys.stdout.write(f"{json.dumps(to_json(again, pins, verdict, modules), indent=2, ensure_ascii=False)}\n")
        return 0
    from meshwright.planner.cli.views.plans.explain import show_explained

    show_explained(again, pins_text(pins, modules), verdict, args.detail)
    return 0
