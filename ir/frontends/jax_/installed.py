"""Whether JAX is there, and whether a file is written in it. Nothing here imports it for models of torch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from meshwright.ir.errors import DependencyMissing

ROOTS = frozenset(("jax", "jaxlib", "flax", "equinox", "optax", "haiku"))
"""Packages that a file in JAX imports."""
EXTRA = "pip install 'meshwright[jax]'"


def written_in_jax(namespace: Mapping[str, Any]) -> bool:
    """Whether a file has anything of JAX: a module, a function, or a class that is made from one."""
    return "jax" in sys.modules and any(_root(value) & ROOTS for value in list(namespace.values()))


def _root(value: Any) -> set[str]:
    names = [getattr(value, "__module__", None), getattr(value, "__name__", None)]
    if isinstance(value, type):
        names += [one.__module__ for one in value.__mro__]
    return {str(name).partition(".")[0] for name in names if isinstance(name, str)}


def missing(error: ModuleNotFoundError, place: str) -> DependencyMissing | None:
    """What is said where a file imports a package of JAX that is not installed."""
    package = (error.name or "").partition(".")[0]
    if package not in ROOTS:
        return None
    return DependencyMissing(place=place, cause=f"the file imports {package}, which is not installed", fix=EXTRA)
