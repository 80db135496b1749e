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
    from meshwright.ir.errors import MeshwrightError
    from meshwright.ir.rules.opaque import register_rule
    from meshwright.planner.plan.parallelize import jax_apply, parallelize
    from meshwright.planner.question.inspection import Inspection, Workload, inspect

__version__ = "0.1.0"
__all__ = [
    "Applied",
    "Inspection",
    "MeshwrightError",
    "Parallelized",
    "Workload",
    "__version__",
    "check_rule",
    "inspect",
    "jax_apply",
    "parallelize",
    "register_rule",
]

# Public name -> the module that defines it: one line here, one import above, one entry in __all__.
_HOME = {
    "MeshwrightError": "meshwright.ir.errors",
    "check_rule": "meshwright.backends.torch_.verify.interpreted.rules",
    "register_rule": "meshwright.ir.rules.opaque",
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
