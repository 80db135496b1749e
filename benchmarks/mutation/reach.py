"""What every test enters and costs, found by running each test file once and remembered by the file's content.

A file of tests runs in a process of its own, with modules that note their blocks (`blocks.py`). What a fixture or a
cached helper of the tests enters counts for every test that uses its value; caches of the product are emptied before
every test. What is remembered stays of use when the product changes: blocks are found by their names, and where the
text of a module is another one, by the function.
"""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import json
import resource
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy
import pytest

from benchmarks.mutation import blocks, serving
from benchmarks.mutation.forking import Job, forked
from benchmarks.mutation.running import OPTIONS, settle

REPO = Path(__file__).parents[2]
ROOMS = ("ir", "cost_models", "backends", "calibrate", "planner")
FILE_CPU_S = 900.0
"""For one file of tests; the largest needs a third of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What the tests of one file entered: a row per test, a column per block of ``names``."""

    file: str
    tests: tuple[str, ...]
    seconds: tuple[float, ...]
    setups: tuple[tuple[int, ...], ...]
    """What each test needs set up: positions in ``setup_seconds``."""
    setup_seconds: tuple[float, ...]
    names: dict[str, int]
    entered: Any
    """Whether a test entered a block."""
    modules: dict[str, str]
    """Digests of the modules as they were."""


def module_name(path: Path) -> str:
    """``meshwright.ir.sharding.mesh`` of ``ir/sharding/mesh.py``."""
    parts = path.relative_to(REPO).with_suffix("").parts
    return ".".join(["meshwright", *(parts[:-1] if parts[-1] == "__init__" else parts)])


def product() -> dict[str, Path]:
    """The modules of the five rooms, by name."""
    return {module_name(path): path for room in ROOMS for path in sorted((REPO / room).rglob("*.py"))}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def reached(files: Iterable[Path], kept: Path, at_once: int, say: Callable[[str], None]) -> Iterator[Reached]:
    """What the tests of ``files`` enter; files that are not in ``kept`` as they stand are run."""
    files = list(files)
    fresh = [file for file in files if not _kept(kept, file).is_file()]
    if fresh:
        _run(fresh, kept, at_once, say)
    for file in files:
        if _kept(kept, file).is_file():
            yield _read(file, _kept(kept, file))


def _kept(kept: Path, file: Path) -> Path:
    return kept / f"{'.'.join(file.relative_to(REPO).with_suffix('').parts)}.{digest(file)}.npz"


def _run(files: list[Path], kept: Path, at_once: int, say: Callable[[str], None]) -> None:
    with TemporaryDirectory(prefix="mutation-") as name:
        folder, table, first = Path(name), list[str](), 0
        for module, path in product().items():
            tree = ast.parse(path.read_text(encoding="utf-8"))
            table += blocks.names(tree, module)
            serving.write(folder, module, compile(blocks.noting(tree, first), str(path), "exec", dont_inherit=True))
            first = len(table)
        jobs = (_job(file, folder, table, kept) for file in files)
        for done, (job, ended) in enumerate(forked(jobs, at_once), start=1):
            how = "" if ended.code == 0 else " out of time" if ended.out_of_time else f" ended with {ended.code}"
            say(f"[{done}/{len(files)}] {job.name}: {ended.cpu_s:.0f} s{how}")


def _job(file: Path, folder: Path, table: list[str], kept: Path) -> Job:
    def work() -> int:
        noted = folder / f"{file.stem}.reach"
        noted.write_bytes(bytes(len(table)))
        serving.serve(folder, noted)
        settle(folder)
        recorder = Recorder(numpy.frombuffer(getattr(builtins, serving.NOTED), dtype=numpy.uint8))
        recorder.watch_caches()
        code = pytest.main([*OPTIONS, str(file)], plugins=[recorder])
        recorder.save(_kept(kept, file), table)
        return 0 if code in (0, pytest.ExitCode.NO_TESTS_COLLECTED) else int(code)

    name = str(file.relative_to(REPO))
    kept.mkdir(parents=True, exist_ok=True)
    return Job(name=name, work=work, log=kept / f"{file.stem}.log", cpu_s=FILE_CPU_S, wall_s=10 * FILE_CPU_S)


@dataclass(slots=True)
class _Setup:
    """A value that tests share: what making it entered, and its seconds."""

    number: int
    entered: Any
    seconds: float


class Recorder:
    """Plugin of pytest that notes what every test enters, alone and by what is set up for it."""

    def __init__(self, noted: Any) -> None:
        self.noted = noted
        self.setups: list[_Setup] = []
        self.of_fixture: dict[int, _Setup] = {}
        self.used: dict[int, _Setup] = {}
        self.shared_s = 0.0
        self.rows: list[tuple[str, float, list[int], Any]] = []
        self.clearing: list[Callable[[], None]] = []
        self.failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        value, setup = yield from self._apart()
        self.of_fixture[id(fixturedef)] = setup
        return value

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        for clear in self.clearing:
            clear()
        self.used, self.shared_s = {}, 0.0
        self.noted[:] = 0
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Generator[None, Any, Any]:
        before = _cpu_s()
        try:
            return (yield)
        finally:
            took = _cpu_s() - before
            definitions = [one for many in item._fixtureinfo.name2fixturedefs.values() for one in many]
            for definition in definitions:
                if (setup := self.of_fixture.get(id(definition))) is not None:
                    self.used[setup.number] = setup
            entered = self.noted.copy()
            for setup in self.used.values():
                entered[setup.entered] = 1
            own = max(0.0, took - self.shared_s)
            self.rows.append((item.nodeid, own, sorted(self.used), numpy.flatnonzero(entered)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self.failed.add(report.nodeid)

    def watch_caches(self) -> None:
        """From now on caches of the product can be emptied, and those of tests say what they save."""
        real = functools.lru_cache

        def lru_cache(maxsize: Any = 128, typed: bool = False) -> Any:
            if callable(maxsize):
                return decorated(maxsize, 128, typed)
            return lambda function: decorated(function, maxsize, typed)

        def decorated(function: Any, maxsize: int | None, typed: bool) -> Any:
            room = (getattr(function, "__module__", None) or "").partition(".")[0]
            if room in ("tests", "benchmarks"):
                return self._shared(function, real(maxsize, typed))
            made = real(maxsize, typed)(function)
            if room == "meshwright":
                self.clearing.append(made.cache_clear)
            return made

        functools.lru_cache = lru_cache
        functools.cache = lru_cache(None)

    def _shared(self, function: Any, caching: Any) -> Any:
        def make(*args: Any, **words: Any) -> Any:
            running = self._apart()
            next(running)
            try:
                running.send(function(*args, **words))
            except StopIteration as stopped:
                self.shared_s += stopped.value[1].seconds
                return stopped.value
            raise AssertionError

        made = caching(make)

        @functools.wraps(function)
        def found(*args: Any, **words: Any) -> Any:
            value, setup = made(*args, **words)
            self.used[setup.number] = setup
            return value

        found.cache_clear = made.cache_clear  # type: ignore[attr-defined]
        found.cache_info = made.cache_info  # type: ignore[attr-defined]
        return found

    def _apart(self) -> Generator[None, Any, tuple[Any, _Setup]]:
        """Note what is done meanwhile apart from what the test did so far."""
        outside, before = self.noted.copy(), _cpu_s()
        self.noted[:] = 0
        try:
            value = yield
        finally:
            inside = numpy.flatnonzero(self.noted)
            self.noted[:] = outside
        setup = _Setup(len(self.setups), inside, _cpu_s() - before)
        self.setups.append(setup)
        return value, setup

    def save(self, to: Path, table: list[str]) -> None:
        rows = [row for row in self.rows if row[0] not in self.failed]
        columns = numpy.unique(numpy.concatenate([row[3] for row in rows])) if rows else numpy.zeros(0, dtype=int)
        entered = numpy.zeros((len(rows), len(columns)), dtype=bool)
        for at, row in enumerate(rows):
            entered[at, numpy.searchsorted(columns, row[3])] = True
        told = {
            "tests": [row[0] for row in rows],
            "seconds": [round(row[1], 4) for row in rows],
            "setups": [row[2] for row in rows],
            "setup_seconds": [round(setup.seconds, 4) for setup in self.setups],
            "modules": {module: digest(path) for module, path in product().items()},
        }
        temporary = to.with_suffix(".part.npz")
        numpy.savez_compressed(
            temporary,
            entered=numpy.packbits(entered, axis=1),
            names=numpy.array([table[column] for column in columns], dtype=str),
            told=numpy.array(json.dumps(told)),
        )
        for old in to.parent.glob(f"{to.name.split('.npz')[0].rsplit('.', 1)[0]}.*.npz"):
            if old != temporary:
                old.unlink()
        temporary.rename(to)


def _cpu_s() -> float:
    """CPU time so far, of processes that ended too."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _read(file: Path, kept: Path) -> Reached:
    with numpy.load(kept) as read:
        names = [str(name) for name in read["names"]]
        told = json.loads(str(read["told"]))
        packed = read["entered"]
    return Reached(
        file=str(file.relative_to(REPO)),
        tests=tuple(told["tests"]),
        seconds=tuple(told["seconds"]),
        setups=tuple(tuple(setup) for setup in told["setups"]),
        setup_seconds=tuple(told["setup_seconds"]),
        names={name: at for at, name in enumerate(names)},
        entered=numpy.unpackbits(packed, axis=1, count=len(names)).astype(bool) if names else packed,
        modules=told["modules"],
    )
