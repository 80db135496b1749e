"""Meshwright: an automatic parallelism planner, built like a compiler.

This file is the public API, and nothing else. Its names are imported when they are first used, so that
``import meshwright`` costs nothing and never imports a framework.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwright.backends.jax_.parallel import Applied
    from meshwright.backends.torch_.parallel import Parallelized
    from meshwright.backends.torch_.verify.interpreted.rules import check_rule
    from meshwright.cost_models.hardware.cluster import Cluster
    from meshwright.cost_models.hardware.text import read_cluster
    from meshwright.ir.errors import MeshwrightError
    from meshwright.ir.rules.opaque import register_rule
    from meshwright.planner.answer.changed.scale import Scaling
    from meshwright.planner.answer.changed.what_if import WhatIf
    from meshwright.planner.answer.estimate import Estimate
    from meshwright.planner.api.asking import estimate, plan, scale, what_if
    from meshwright.planner.api.exchanging import settings
    from meshwright.planner.api.explaining import Explanation, explain
    from meshwright.planner.plan.file import load_plan, save_plan
    from meshwright.planner.plan.parallelize import jax_apply, parallelize
    from meshwright.planner.plan.types import Plan
    from meshwright.planner.question.inspection import Inspection, Workload, inspect

__version__ = "0.1.0"
__all__ = [
    "Applied",
    "Cluster",
    "Estimate",
    "Explanation",
    "Inspection",
    "MeshwrightError",
    "Parallelized",
    "Plan",
    "Scaling",
    "WhatIf",
    "Workload",
    "__version__",
    "check_rule",
    "estimate",
    "explain",
    "inspect",
    "jax_apply",
    "load_plan",
    "parallelize",
    "plan",
    "read_cluster",
    "register_rule",
    "save_plan",
    "scale",
    "settings",
    "what_if",
]

# Public name -> the module that defines it: one line here, one import above, one entry in __all__.
_HOME = {
    "MeshwrightError": "meshwright.ir.errors",
    "check_rule": "meshwright.backends.torch_.verify.interpreted.rules",
    "register_rule": "meshwright.ir.rules.opaque",
    "plan": "meshwright.planner.api.asking",
    "estimate": "meshwright.planner.api.asking",
    "what_if": "meshwright.planner.api.asking",
    "scale": "meshwright.planner.api.asking",
    "Scaling": "meshwright.planner.answer.changed.scale",
    "WhatIf": "meshwright.planner.answer.changed.what_if",
    "Estimate": "meshwright.planner.answer.estimate",
    "explain": "meshwright.planner.api.explaining",
    "settings": "meshwright.planner.api.exchanging",
    "Explanation": "meshwright.planner.api.explaining",
    "Plan": "meshwright.planner.plan.types",
    "load_plan": "meshwright.planner.plan.file",
    "save_plan": "meshwright.planner.plan.file",
    "Cluster": "meshwright.cost_models.hardware.cluster",
    "read_cluster": "meshwright.cost_models.hardware.text",
    "Inspection": "meshwright.planner.question.inspection",
    "Workload": "meshwright.planner.question.inspection",
    "inspect": "meshwright.planner.question.inspection",
    "Applied": "meshwright.backends.jax_.parallel",
    "jax_apply": "meshwright.planner.plan.parallelize",
    "Parallelized": "meshwright.backends.torch_.parallel",
    "parallelize": "meshwright.planner.plan.parallelize",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
