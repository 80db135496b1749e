"""An emitted script as a module."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from meshwright.backends.torch_.emit.write.script import HELPERS


def load(script: str) -> ModuleType:
    """Load a script with the second file beside it, which has one name in all folders, and is imported anew."""
    spec = importlib.util.spec_from_file_location("emitted", script)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(script)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their annotations up there
    folder = str(Path(script).resolve().parent)
    sys.modules.pop(HELPERS, None)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module
