"""`plan schema KIND`: what a kind of file may hold, as JSON Schema: the very tables that the files are read by.

A schema says what each key may be; what must hold between keys is said by the refusals (docs/errors.md), and how much
is taken on by docs/limits.md.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from importlib import import_module
from typing import Any

from meshwright.ir.files.schema import json_schema

DRAFT = "https://json-schema.org/draft/2020-12/schema"

TABLES = {
    "plan": ("meshwright.planner.plan.schema", "PlanTable"),
    "cluster": ("meshwright.cost_models.hardware.schema", "ClusterTable"),
    "matrix": ("meshwright.cost_models.hardware.schema", "MatrixTable"),
    "shape": ("meshwright.ir.frontends.shape", "Shape"),
    "config": ("meshwright.ir.frontends.hf_schema", "ConfigTable"),
    "configs": ("meshwright.planner.question.pin_schema", "LineTable"),
    "pins": ("meshwright.planner.question.pin_schema", "PinsTable"),
    "profile": ("meshwright.cost_models.measured.file", "MeasuredTable"),
    "question": ("meshwright.planner.cli.questions.table", "QuestionTable"),
    "log": ("meshwright.planner.answer.compare", "StepTable"),
}
"""Where the table of every kind stands; each is imported when it is asked for."""


def run(args: Namespace) -> int:
    """The verb."""
    sys.stdout.write(f"{json.dumps(schema_of(args.kind), indent=2)}\n")
    return 0


def schema_of(kind: str) -> dict[str, Any]:
    """The schema of a kind of file."""
    module, name = TABLES[kind]
    return {"$schema": DRAFT, **json_schema(getattr(import_module(module), name))}
