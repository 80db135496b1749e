"""Models as Python has them: by the name that the command line takes, as a factory, or as an existing module."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from os import PathLike, fspath
from types import FunctionType
from typing import Any

from meshwright.ir.errors import FactoryRaised
from meshwright.ir.frontends.contract import EXECUTED
from meshwright.ir.frontends.door import Source, load_made, load_object
from meshwright.ir.frontends.foreign import MAIN


def named(model: Any, hooks: Mapping[str, Any]) -> tuple[str, Source | None]:
    """The name of a model, and its source where it is not loaded by its name.

    A function of a file is loaded by its name, so that its plan can be loaded again anywhere. One of a notebook, or one
    that hooks are given for, is called as it stands.
    """
    if isinstance(model, str | PathLike):
        return fspath(model), None
    if not isinstance(model, FunctionType):
        return f"{type(model).__qualname__} in Python", load_object(model, **hooks)
    file = os.path.abspath(inspect.getsourcefile(model) or "")  # noqa: PTH100 - as it is called, whatever it links to
    if hooks or not file.endswith(".py"):
        return f"{model.__qualname__} in Python", load_made(model, "Python", hooks)
    if model.__module__.startswith(EXECUTED):
        raise FactoryRaised(
            place=file, cause="the file asks about its model while that is being loaded", fix=f"ask under {MAIN}"
        )
    return f"{file}:{model.__name__}", None
