"""Names of functions and arguments in a script: the user's own, and unlike any other in it."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Collection, Iterable, Sequence

from meshwright.backends.printing import Function
from meshwright.backends.torch_.emit.printed.language.dialect import TERMS
from meshwright.backends.torch_.emit.printed.language.moves import NAMES
from meshwright.backends.torch_.emit.read.pipeline import FIRST, HANDED
from meshwright.backends.torch_.emit.write.frame.imports import names_in
from meshwright.ir.quoting import identifier, is_name, literal

FORWARD = "model_forward"
"""What the model's forward pass is called."""

RESERVED = frozenset(
    (
        *(*dir(builtins), *keyword.kwlist, *NAMES),
        *(FORWARD, "make_optimizer", FIRST, HANDED),
        *("self", "model", "mesh", "index", "block", "share", "others", TERMS),
        *("torch", "nn", "F", "dist", "funcol", "functools", "partial", "cast", "Any", "Callable", "Sequence"),
        *("Tensor", "DTensor", "DeviceMesh", "Replicate", "Shard", "Partial"),
    )
)
"""Names that scripts have for something else."""

GIVEN = frozenset(("target", "losses", "return_outputs"))
"""What a schedule's step is given by name, beside entries of the batch."""


def function_names(name: str, function: Function, taken: set[str]) -> dict[str, str]:
    """Names for the functions of a body with this name, which nothing else in a script has."""
    inner = [one.path for one in function.all() if one.path]
    return {"": name} | {path: free(f"{name}_{identifier(path.replace('.', '_'))}", taken) for path in inner}


def free(name: str, taken: set[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    taken.add(found)
    return found


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def call_of(path: str, arguments: Sequence[str]) -> str:
    parts = path.split(".")
    holder = f"self.{path}" if all(map(is_name, parts)) else f"self.get_submodule({literal(path)})"
    return f"{holder}({', '.join(arguments)})"


def axes_in(lines: Iterable[str], axes: Collection[str]) -> list[str]:
    """The names of mesh axes, and other keyword arguments, that lines read."""
    used = names_in("\n".join(lines))
    return [axis for axis in axes if axis in used]
