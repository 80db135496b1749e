"""Modules from a folder of compiled code, in place of their files, in this process and in those that it starts.

``MUTATION_CODE`` names the folder: ``meshwright.ir.sharding.mesh`` comes from ``meshwright.ir.sharding.mesh.code`` if
that file is there. ``MUTATION_REACH`` names a file of one byte per block, shared by all processes, where the code of
``blocks.py`` notes what it enters. Python imports ``sitecustomize`` when it starts; ``serve`` writes one that is this
file, so it uses the standard library only.
"""

from __future__ import annotations

import builtins
import marshal
import mmap
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

CODE = "MUTATION_CODE"
REACH = "MUTATION_REACH"
NOTED = "__reach__"
"""Name of the array of blocks, in instrumented code."""


class _Loader(SourceFileLoader):
    """A module whose code was compiled before; its file is where it says, for tracebacks and `inspect`."""

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = marshal.loads(_file(fullname).read_bytes())
        return code


class _Finder:
    """Finds modules for which there is code in the folder, and leaves all others to those behind it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("meshwright.") or not _file(fullname).is_file():
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin)
        return spec


def serve(folder: Path, reach: Path | None = None) -> None:
    """Serve the code in ``folder`` from now on, here and in processes started from here."""
    os.environ[CODE] = str(folder)
    if reach is not None:
        os.environ[REACH] = str(reach)
    sys.path.append(str(folder))  # which some tests hand on instead
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    (folder / "sitecustomize.py").write_text(Path(__file__).read_text(encoding="utf-8") + "\ninstall()\n", "utf-8")
    install()


def install() -> None:
    """What a process does when it starts."""
    if CODE in os.environ:
        sys.meta_path.insert(0, _Finder())
    if REACH in os.environ:
        with Path(os.environ[REACH]).open("r+b") as file:
            setattr(builtins, NOTED, mmap.mmap(file.fileno(), 0))


def write(folder: Path, module: str, code: CodeType) -> None:
    (folder / f"{module}.code").write_bytes(marshal.dumps(code))


def _file(module: str) -> Path:
    return Path(os.environ[CODE]) / f"{module}.code"
