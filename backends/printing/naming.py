"""Names of printed functions."""

from __future__ import annotations

import re

from meshwright.backends.printing.functions import Function
from meshwright.ir.quoting import identifier


def function_names(name: str, function: Function, taken: set[str]) -> dict[str, str]:
    """Names for the functions of a body with this name, which nothing else in a script has."""
    inner = [one.path for one in function.all() if one.path]
    return {"": name} | {path: free(f"{name}_{identifier(path.replace('.', '_'))}", taken) for path in inner}


def free(name: str, taken: set[str]) -> str:
    """The name, or with a number if it is taken; it is then."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    taken.add(found)
    return found


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
