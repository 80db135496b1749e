"""Names of functions and arguments in a script: the user's own, and unlike any other in it."""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Collection, Iterable, Sequence

from meshwright.backends.torch_.emit.printed.language.dialect import TERMS
from meshwright.backends.torch_.emit.printed.language.moves import NAMES
from meshwright.backends.torch_.emit.read.pipeline import FIRST, HANDED
from meshwright.backends.torch_.emit.write.frame.imports import IMPORTED, names_in
from meshwright.ir.quoting import is_name, literal

FORWARD = "model_forward"
"""What the model's forward pass is called."""

RESERVED = frozenset(
    (
        *(*dir(builtins), *keyword.kwlist, *NAMES, *IMPORTED),
        *(FORWARD, "make_optimizer", FIRST, HANDED),
        *("self", "model", "mesh", "index", "block", "share", "others", TERMS),
    )
)
"""Names that scripts have for something else."""

GIVEN = frozenset(("target", "losses", "return_outputs"))
"""What a schedule's step is given by name, beside entries of the batch."""


def call_of(path: str, arguments: Sequence[str]) -> str:
    parts = path.split(".")
    holder = f"self.{path}" if all(map(is_name, parts)) else f"self.get_submodule({literal(path)})"
    return f"{holder}({', '.join(arguments)})"


def axes_in(lines: Iterable[str], axes: Collection[str]) -> list[str]:
    """The names of mesh axes, and other keyword arguments, that lines read."""
    used = names_in("\n".join(lines))
    return [axis for axis in axes if axis in used]
