"""A model as an earlier run saw it, where nothing that it follows from has changed.

    reference, dtype, mesh -> Remembered -> Captured, Calls: from the store, or else from the model itself

Loading a model imports its framework and executes the user's file, which takes longer than all that is asked of it
here. What was captured is plain data. So it is kept with the files that were read meanwhile (`watched`: the model's,
what it imports, configurations that it opens), each with a digest of its content, and is good as long as these, the
packages that are installed, and this package stay as they were. A file that reads the environment, or that registers
rules of operators, is loaded every time: what it would do is not to be seen in files.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import meshwright
from meshwright.ir.errors import MeshwrightError, ModelTimedOut, catalogue
from meshwright.ir.files.store import Store, key_of
from meshwright.ir.frontends.folding.captured import Captured
from meshwright.ir.frontends.folding.stacks import Stack
from meshwright.ir.frontends.twin import Scale, Twin
from meshwright.ir.graph.calls import Calls
from meshwright.ir.graph.constants import Constant
from meshwright.ir.rules.opaque import any_registered

MOST_FILES = 400
"""That a model follows from; one of more is loaded every time."""
MOST_FILE_BYTES = 16 << 20
"""Of a file that is read for its digest."""
ENVIRONMENT = (b"environ", b"getenv")
"""Words of sources that read what is in no file."""


class Loaded(Protocol):
    """A source that was loaded."""

    @property
    def framework(self) -> str:
        """The package of the model's framework."""

    @property
    def place(self) -> str:
        """The name of the model in errors."""

    @property
    def config(self) -> str:
        """The facts that the digest adds to parameter names and shapes."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a source without loading it, and the files that this follows from, with their digests."""

    framework: str
    place: str
    config: str
    files: tuple[tuple[str, str], ...]

    @property
    def current(self) -> bool:
        """Whether the files are as they were."""
        return all(digest_of(path) == digest for path, digest in self.files)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal of a model, as data."""

    code: str
    place: str
    cause: str
    fix: str

    def error(self) -> MeshwrightError:
        (kind,) = (one for one in catalogue() if one.code == self.code)
        return kind(place=self.place, cause=self.cause, fix=self.fix)


@dataclass(slots=True)
class Remembered:
    """A source that is loaded when something is asked that the store does not know.

    - `load` gives the source, in the dtype of the workload.
    """

    store: Store
    key: str
    load: Callable[[], Any]
    reader: Callable[[str], Any]
    """The front end of a framework, by its package."""
    facts: Facts | None
    own: Any = None
    read: set[str] = field(default_factory=set)

    @staticmethod
    def of(
        store: Store, load: Callable[[], Any], reader: Callable[[str], Any], reference: str, *parts: object
    ) -> Remembered:
        """The source that a reference names; `parts` are what else it depends on."""
        path, _, name = reference.partition(".py:")
        key = key_of("source", str(Path(path).absolute()), name, *parts)
        found = Remembered(store, key, load, reader, known(store, key))
        if found.facts is None:
            found.source()
        return found

    def source(self) -> Any:
        """The source itself, loaded."""
        if self.own is None:
            with watched(self.read):
                self.own = self.load()
        return self.own

    @property
    def framework(self) -> str:
        return self.facts.framework if self.facts else str(self.source().framework)

    @property
    def place(self) -> str:
        return self.facts.place if self.facts else str(self.source().place)

    @property
    def config(self) -> str:
        return self.facts.config if self.facts else str(self.source().config)

    @property
    def beside(self) -> Mapping[str, Any]:
        return self.source().beside  # type: ignore[no-any-return]

    @property
    def digest(self) -> str:
        """A digest of all that is known to decide what the model is; empty where it is loaded every time."""
        return "" if self.facts is None else key_of(self.key, self.facts)

    def in_dtype(self, dtype: str) -> Any:
        return self.source().in_dtype(dtype)

    def as_made(self) -> Remembered | None:
        key = key_of(self.key, "as made")
        found = Remembered(self.store, key, lambda: self.source().as_made(), self.reader, known(self.store, key))
        return found if found.facts or found.source() is not None else None

    # what a front end is asked

    def capture_of(self, source: Any, *, batch: int, seq: int, seed: int) -> Captured:
        """The fold of the model's training step."""

        def made() -> Any:
            return self._front_end.capture_of(self.source(), batch=batch, seq=seq, seed=seed)

        found: Captured = self.recalled(Captured, made, "captured", batch, seq, seed)
        return found

    def calls_of(
        self,
        source: Any,
        reference: str,
        *,
        batch: int,
        seq: int,
        constants: Mapping[str, Constant] | None,
        stacks: Sequence[Stack],
    ) -> Calls:
        """The calls of the model."""

        def made() -> Any:
            given = {"batch": batch, "seq": seq, "constants": constants, "stacks": stacks}
            return self._front_end.calls_of(self.source(), reference, **given)

        found: Calls = self.recalled(Calls, made, "calls", reference, batch, seq, constants, tuple(stacks))
        return found

    def twin_of(self, source: Any, reference: str, scale: Scale) -> Twin:
        """The model's small twin."""
        found: Twin = self._front_end.twin_of(self.source(), reference, scale)
        return found

    @property
    def _front_end(self) -> Any:
        return self.reader(self.framework)

    def recalled(self, kind: type[Any], made: Callable[[], Any], *asked: object) -> Any:
        """What the store has of an earlier run, or what is made now, which is kept then; so are refusals."""
        if self.facts is not None:
            found = self.store.get(key_of(self.key, self.facts, *asked))
            if isinstance(found, Refusal):
                raise found.error()
            if isinstance(found, kind):
                return found
        try:
            with watched(self.read):
                found = made()
        except ModelTimedOut:
            raise
        except MeshwrightError as error:
            self.keep(Refusal(error.code, error.place, error.cause, error.fix), *asked)
            raise
        self.keep(found, *asked)
        return found

    def keep(self, found: object, *asked: object) -> None:
        """Keep what was made, with what is known by now of the files that it follows from."""
        self.facts = self.facts_of(self.source())
        if self.facts is not None:
            self.store.put(self.key, self.facts)
            self.store.put(key_of(self.key, self.facts, *asked), found)

    def facts_of(self, source: Loaded) -> Facts | None:
        """The facts of a loaded source; None where files do not say all that decides what it is."""
        before = () if self.facts is None else (path for path, _ in self.facts.files)
        paths = sorted({*self.read, *before, *_imported()})
        if any_registered() or len(paths) > MOST_FILES:
            return None
        files = tuple((path, digest_of(path)) for path in paths)
        if any(digest == UNSEEN for _, digest in files) or any(map(_reads_environment, paths)):
            return None
        return Facts(source.framework, source.place, source.config, files)


def known(store: Store, key: str) -> Facts | None:
    """The facts that the store has of a source, if they still hold."""
    facts = store.get(key)
    return facts if isinstance(facts, Facts) and facts.current else None


# Files ----------------------------------------------------------------------------------------------------------------

ABSENT, UNSEEN = "absent", "unseen"


def digest_of(path: str) -> str:
    """A digest of a file's content; `ABSENT` where there is none, `UNSEEN` where it is no file, or a very long one."""
    try:
        if not os.path.isfile(path):  # noqa: PTH113
            return UNSEEN if os.path.exists(path) else ABSENT  # noqa: PTH110
        if os.path.getsize(path) > MOST_FILE_BYTES:  # noqa: PTH202
            return UNSEEN
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return UNSEEN


def _reads_environment(path: str) -> bool:
    if not path.endswith(".py") or not os.path.isfile(path):  # noqa: PTH113
        return False
    text = Path(path).read_bytes()
    return any(word in text for word in ENVIRONMENT)


_watching: list[set[str]] = []
"""The sets that what is read now is added to."""


@contextmanager
def watched(into: set[str]) -> Iterator[None]:
    """Add to a set the files of users' that are opened for reading in the meantime, whoever opens them."""
    _hook()
    _watching.append(into)
    try:
        yield
    finally:
        _watching.remove(into)


@lru_cache(maxsize=1)
def _hook() -> None:
    """Watch files being opened from now on: a hook stays until the process ends, and does nothing unless asked to."""
    sys.addaudithook(_opened)


def _opened(event: str, args: tuple[Any, ...]) -> None:
    if not _watching or event != "open" or not isinstance(args[0], str | bytes | os.PathLike):
        return
    mode, flags = args[1], args[2] or 0
    if (mode and set(mode) & set("wax+")) or flags & (os.O_WRONLY | os.O_RDWR):
        return
    path = _source_of(os.path.abspath(os.fsdecode(args[0])))  # noqa: PTH100
    if not path.startswith(_ours()):
        for into in _watching:
            into.add(path)


def _source_of(path: str) -> str:
    """The source of a compiled module, which is what was opened."""
    if path.endswith(".pyc") and os.path.basename(os.path.dirname(path)) == "__pycache__":  # noqa: PTH119, PTH120
        folder, name = os.path.dirname(os.path.dirname(path)), os.path.basename(path)  # noqa: PTH119, PTH120
        return os.path.join(folder, f"{name.partition('.')[0]}.py")  # noqa: PTH118
    return path


def _imported() -> Iterable[str]:
    """Modules of users' that were imported before anything was watched."""
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py") and not os.path.abspath(path).startswith(_ours()):  # noqa: PTH100
            yield os.path.abspath(path)  # noqa: PTH100


@lru_cache(maxsize=1)
def _ours() -> tuple[str, ...]:
    """Folders of what `meshwright.ir.files.store.stamp` stands for, or of no files that stay."""
    package = os.path.dirname(meshwright.__file__)  # noqa: PTH120
    rooms = [entry.path for entry in os.scandir(package) if entry.is_dir()]
    installed = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    folders = [package, *rooms, *installed, sys.prefix, sys.base_prefix, "/proc", "/sys", "/dev"]
    return tuple({f"{path.rstrip(os.sep)}{os.sep}" for one in folders for path in (one, os.path.realpath(one))})
