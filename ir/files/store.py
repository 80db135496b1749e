"""Results of earlier runs, kept on disk: a folder of entries, each known by a digest of all that it follows from.

    Store.get(key) -> value or None        Store.put(key, value)

An entry is one file of plain data of ours. It is written beside its place and then moved there, so that a reader finds
a whole one or none, whoever writes at the same time. What cannot be read is missing, and nothing is ever raised: a full
disk costs time, not an answer. When the folder grows beyond its limit, what was used longest ago is removed.

A key holds `stamp()`: the release and the sources of this package, the version of Python, and every package that is
installed, with when it was: one of the same version may have been built again. So entries of another state of any of
them are not found; they age out.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import meshwright

VARIABLE = "MESHWRIGHT_CACHE"
"""The environment variable that names another folder; or `off`, and nothing is kept."""
OFF = "off"
MOST_BYTES = 256 << 20
"""Of all entries together."""
SUFFIX = ".kept"
PLAIN = {
    "builtins": frozenset({"set", "frozenset", "complex", "slice", "range"}),
    "pathlib": frozenset({"PosixPath", "WindowsPath", "PurePosixPath"}),
    "collections": frozenset({"OrderedDict", "Counter"}),
}
"""What an entry may be made of, beside dataclasses and words of `meshwright.ir`: a file with anything else in it is not
read, and runs nothing."""


@dataclass(frozen=True, slots=True)
class Store:
    """The entries of one folder."""

    folder: Path
    most_bytes: int = MOST_BYTES

    def get(self, key: str) -> Any | None:
        """The value of a key; None where there is none."""
        path = self.path(key)
        try:
            value = _Reader(io.BytesIO(path.read_bytes())).load()
        except Exception:  # noqa: BLE001 - whatever is wrong with an entry, it is made again
            return None
        with suppress(OSError):
            os.utime(path)
        return value

    def put(self, key: str, value: object) -> None:
        """Keep a value, if the disk has room for it."""
        written = io.BytesIO()
        try:
            _Writer(written, protocol=5).dump(value)
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".part", delete=False) as file:
                file.write(written.getbuffer())
            Path(file.name).replace(self.path(key))
        except (OSError, pickle.PicklingError, TypeError, AttributeError, RecursionError):
            return
        self.bound()

    def path(self, key: str) -> Path:
        return self.folder / f"{key}{SUFFIX}"

    def entries(self) -> list[tuple[Path, os.stat_result]]:
        """The files of the folder that are ours, those that were used longest ago first."""
        found = []
        with suppress(OSError):
            for path in self.folder.iterdir():
                if path.suffix in (SUFFIX, ".part"):
                    with suppress(OSError):
                        found.append((path, path.stat()))
        return sorted(found, key=lambda pair: (pair[1].st_mtime_ns, pair[0].name))

    @property
    def nbytes(self) -> int:
        return sum(facts.st_size for _, facts in self.entries())

    def bound(self) -> None:
        """Remove what was used longest ago until the rest is within the limit."""
        entries = self.entries()
        left = sum(facts.st_size for _, facts in entries)
        for path, facts in entries:
            if left <= self.most_bytes:
                return
            left -= facts.st_size
            with suppress(OSError):
                path.unlink()

    def clear(self) -> int:
        """Remove every entry; returns how many there were."""
        entries = self.entries()
        for path, _ in entries:
            with suppress(OSError):
                path.unlink()
        return len(entries)


def usual() -> Store | None:
    """This user's store; None where nothing is to be kept."""
    said = os.environ.get(VARIABLE, "")
    if said == OFF:
        return None
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Store(Path(said) if said else Path(cache) / "meshwright" / "results")


def key_of(*parts: object) -> str:
    """A digest of parts that are told apart by their text."""
    return hashlib.sha256(repr((stamp(), *parts)).encode()).hexdigest()


@lru_cache(maxsize=1)
def stamp() -> str:
    """A digest of the programs that results follow from: this package, Python, and what is installed."""
    own = sorted(_sources(Path(meshwright.__file__).parent))
    folders = dict.fromkeys(path for path in sys.path if path.endswith(("site-packages", "dist-packages")))
    installed = sorted(one for folder in folders for one in _installed(folder))
    return hashlib.sha256(repr((meshwright.__version__, sys.version, own, installed)).encode()).hexdigest()


def _installed(folder: str) -> Iterator[tuple[str, int]]:
    """Every package in a folder, with its version and when it was installed."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".dist-info", ".egg-info")):
                yield entry.name, entry.stat().st_mtime_ns


def _sources(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Every source and table below a folder, with its size and when it was written."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _sources(Path(entry.path))
            elif entry.name.endswith((".py", ".json", ".toml", ".csv")):
                facts = entry.stat()
                yield entry.path, facts.st_size, facts.st_mtime_ns


def read_only(items: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    """A mapping that cannot be changed: what entries hold in its place is a dictionary."""
    return MappingProxyType(items)


class _Writer(pickle.Pickler):
    dispatch_table = {MappingProxyType: lambda mapping: (read_only, (dict(mapping),))}  # noqa: RUF012


class _Reader(pickle.Unpickler):
    """A reader of data of ours alone, so that no file can make it run anything else."""

    def find_class(self, module: str, name: str) -> Any:
        if name in PLAIN.get(module, ()):
            return super().find_class(module, name)
        if module.startswith("meshwright.ir.") and "." not in name:
            found = super().find_class(module, name)
            made_of_data = isinstance(found, type) and (is_dataclass(found) or issubclass(found, Enum))
            if found is read_only or (made_of_data and found.__module__ == module):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} holds no data of ours")
