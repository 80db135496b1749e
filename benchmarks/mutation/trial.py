"""One fault against its nearest tests: a forked process that runs them until the first fails."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Literal

import pytest

from benchmarks.mutation import serving
from benchmarks.mutation.blocks import owners
from benchmarks.mutation.forking import Ended, Job
from benchmarks.mutation.nearest import Nearest
from benchmarks.mutation.running import OPTIONS, settle
from benchmarks.mutation.sites import header, sites

Outcome = Literal["noticed", "out of time", "survived", "not reached", "broken"]

NOTICED, SURVIVED, BROKEN = 1, 0, 3
SLOWER = 4.0
"""A fault that makes its tests take so much longer, and half a minute, is noticed: nobody would wait."""
PATIENCE_S = 30.0
WALL = 8.0
"""Wall time for CPU time, on a machine that does other work too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A module with one fault, and what it says about itself."""

    module: str
    path: Path
    index: int
    kind: str
    function: str
    block: str
    line: int
    before: str
    after: str
    code: CodeType

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What it is, wherever in the file it stands."""
        return self.module, self.function, self.before, self.after


def mutant(module: str, path: Path, index: int) -> Mutant:
    """The module with the fault of this number."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    block = owners(tree, module)
    site = sites(tree)[index]
    before = header(site.statement)
    site.plant()
    dropped = site.kind in ("dropped call", "dropped term") and _gone(tree, site.statement)
    ast.fix_missing_locations(tree)
    return Mutant(
        module=module,
        path=path,
        index=index,
        kind=site.kind,
        function=site.function,
        block=block[site.statement],
        line=site.statement.lineno,
        before=before,
        after="pass" if dropped else header(site.statement),
        code=compile(tree, str(path), "exec", dont_inherit=True),
    )


def job(tried: Mutant, near: Nearest, folder: Path, *, planted: bool = True) -> Job:
    """What runs the tests of a fault; ``said`` reads what came of it."""

    def work() -> int:
        if planted:
            serving.write(folder, tried.module, tried.code)
        serving.serve(folder)
        settle(folder)
        for files in _batches(list(near.tests)):
            wanted = _Wanted({test: None for file in files for test in near.tests[file]}, files)
            code = pytest.main([*OPTIONS, "-x", *files], plugins=[wanted])
            if code in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED):
                (folder / "noticed").write_text(wanted.failed or "collection", encoding="utf-8")
                return NOTICED
            if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                return BROKEN
        return SURVIVED

    cpu_s = PATIENCE_S + SLOWER * near.seconds
    folder.mkdir(parents=True)
    return Job(name=str(folder), work=work, log=folder / "log", cpu_s=cpu_s, wall_s=WALL * cpu_s)


def said(ended: Ended, folder: Path) -> tuple[Outcome, str]:
    """The outcome, and the test that noticed."""
    if ended.out_of_time:
        return "out of time", ""
    if ended.code == SURVIVED:
        return "survived", ""
    # A process that died of its fault, by a signal, was noticed as well.
    if ended.code == NOTICED or ended.code is None:
        by = folder / "noticed"
        return "noticed", by.read_text(encoding="utf-8") if by.is_file() else "the process died"
    return "broken", ""


class _Wanted:
    """Plugin of pytest that runs only these tests, file by file, and knows which failed."""

    def __init__(self, tests: dict[str, None], files: list[str]) -> None:
        self.tests = tests
        self.files = {file: at for at, file in enumerate(files)}
        self.failed = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        kept = [item for item in items if item.nodeid in self.tests]
        items[:] = sorted(kept, key=lambda item: self.files[item.nodeid.partition("::")[0]])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid


def _batches(files: list[str]) -> Iterator[list[str]]:
    """Few files first: what is not needed is not collected."""
    size = 2
    while files:
        yield files[:size]
        files, size = files[size:], 2 * size


def _gone(tree: ast.Module, statement: ast.stmt) -> bool:
    return all(node is not statement for node in ast.walk(tree))
