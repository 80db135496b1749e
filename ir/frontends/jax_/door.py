"""What the planner asks of JAX's front end (`meshwright.ir.frontends.door.FrontEnd`). JAX is imported for a file that
has imported it, and for no other."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from meshwright.ir.frontends.contract import EXTRAS, Factory
from meshwright.ir.frontends.folding.stacks import Stack
from meshwright.ir.frontends.foreign import blamed, is_library
from meshwright.ir.frontends.twin import Scale, Twin
from meshwright.ir.graph.calls import Calls
from meshwright.ir.graph.constants import Constant

if TYPE_CHECKING:
    from meshwright.ir.frontends.folding.captured import Captured
    from meshwright.ir.frontends.jax_.annotated import Sizes
    from meshwright.ir.frontends.jax_.source import JaxSource


def from_file(path: Path, dtype: str | None) -> None:
    """No file of numbers is read as a model of JAX."""


def from_factory(factory: Factory, time_limit_s: float, mesh: Sizes = ()) -> JaxSource | None:
    """The model of a factory, with the hooks beside it; None if it returns a model of torch after all."""
    if not _written_in_jax(factory.beside):
        return None
    from meshwright.ir.frontends.jax_.source import JaxSource, refused, source_of

    with blamed(factory.path):
        found = source_of(factory, time_limit_s, mesh)
    if isinstance(found, JaxSource):
        return found
    if _roots(found) & {"torch"}:
        return None
    raise refused(found, f"{factory.path}:{factory.name}")


def from_object(model: Any, hooks: Mapping[str, Any]) -> None:
    """A model of JAX comes as a file: its parameters have no shapes before it is given a batch."""


def capture_of(source: JaxSource, *, batch: int, seq: int, seed: int) -> Captured:
    """The fold of a model's training step."""
    from meshwright.ir.frontends.jax_.capture import capture

    return capture(source, batch=batch, seq=seq, seed=seed)


def calls_of(
    source: JaxSource,
    reference: str,
    *,
    batch: int,
    seq: int,
    constants: Mapping[str, Constant] | None,
    stacks: Sequence[Stack],
) -> Calls:
    """How the model of a reference is made and called. Raises `EmissionModel`."""
    from meshwright.ir.frontends.jax_.calls import calls_of as found

    return found(source, reference, batch=batch, seq=seq, constants=constants)


def twin_of(source: JaxSource, reference: str, scale: Scale) -> Twin:
    """The model's small twin."""
    from meshwright.ir.frontends.jax_.small.twin import twin_of as found

    return found(source, reference, scale)


def _written_in_jax(namespace: Mapping[str, Any]) -> bool:
    """Whether a file has anything of JAX, a module, a function, or a class that is made from one; or what it imports
    from a file that has."""
    if "jax" not in sys.modules:
        return False
    homes = {str(getattr(value, "__module__", "")): None for value in list(namespace.values())}
    files = [vars(sys.modules[home]) for home in homes if home in sys.modules and _is_users(sys.modules[home])]
    return any(_roots(value) & EXTRAS.keys() for one in (namespace, *files) for value in list(one.values()))


def _is_users(module: ModuleType) -> bool:
    return not is_library(getattr(module, "__file__", None) or "<")


def _roots(value: Any) -> set[str]:
    """The packages that an object is of."""
    names = [getattr(value, "__module__", None), getattr(value, "__name__", None)]
    names += [one.__module__ for one in (value if isinstance(value, type) else type(value)).__mro__]
    return {str(name).partition(".")[0] for name in names if isinstance(name, str)}
