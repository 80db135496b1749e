"""A model and its cells, asked in this process by the command line's own verbs; scripts are run in one launch.

What users would do, in order:

    write      the model, as users give it
    load       `plan inspect` or `plan MODEL` of the published size; or of its small twin,
    plan       `plan TWIN --cluster cpu:N --fix … --out DIR`
    emit, run  `plan verify DIR`: the same functions in the same order, but scripts of several cells share a launch
"""

from __future__ import annotations

import io
import os
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.registry.cells import (
    CELLS,
    INSPECT,
    LAYERS,
    PLAN,
    SEQ,
    TOKENS,
    TWIN,
    TWINS,
    inspected,
    of_twin,
    planned,
)
from benchmarks.registry.entries import Entry
from benchmarks.registry.hugging_face import NotBuilt
from benchmarks.registry.rows import OK, Row, of_error, of_exit, untold
from meshwright.backends.torch_.emit import Subject, emit
from meshwright.ir.errors import ForwardRaised, RanksFailed
from meshwright.ir.frontends.door import load_model, twin_of
from meshwright.ir.frontends.twin import Scale
from meshwright.planner.cli.exits import GAP_TOO_WIDE
from meshwright.planner.cli.main import main as plan
from meshwright.planner.plan.emitted import subject_of
from meshwright.planner.plan.file import load_plan
from meshwright.planner.plan.reload import reload

STEPS, LIMIT_S = 2, 120.0
"""Of a run; seconds of each cell, if nothing else is said."""
Told = Callable[[str, Sequence[str]], None]
"""Is called with a step and the cells that begin it."""


def nothing_told(step: str, cells: Sequence[str]) -> None:
    """For those who wait for the rows."""


def ask(argv: Sequence[str]) -> tuple[int, str]:
    """The exit code of a command line, and what it said."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = plan(list(argv))
        except SystemExit as end:  # of argparse
            code = end.code if isinstance(end.code, int) else 2
    return code, err.getvalue() + ("" if code in (OK, GAP_TOO_WIDE) else out.getvalue())


def used_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@dataclass(frozen=True, slots=True)
class Asked:
    """A model that is being asked, in a folder of its own."""

    entry: Entry
    folder: Path
    told: Told = nothing_told
    limit_s: float = LIMIT_S
    """Seconds of each script of a launch."""

    def rows(self, cells: Sequence[str], *, together: bool = True) -> Iterator[Row]:
        """All cells of these; as soon as each is known."""
        self.told("write", cells)
        (self.folder / "published").mkdir(parents=True, exist_ok=True)
        try:
            with redirect_stderr(io.StringIO()):
                reference = self.entry.write(self.folder / "published")
        except NotBuilt as error:
            yield from (self.row(name, "none", step="write", said=str(error)) for name in cells)
            return
        for name, argv in ((INSPECT, inspected(reference)), (PLAN, planned(reference))):
            if name in cells:
                yield self.published(name, "load" if name == INSPECT else "plan", argv)
        if asked := [name for name in cells if name in TWINS or name == TWIN]:
            yield from self._of_twin(reference, asked, together)

    def published(self, name: str, step: str, argv: Sequence[str]) -> Row:
        """The row of a published size; in fp32 where the model's own code does not run in bf16, and then it says so."""
        row = self.timed(name, step, argv)
        if row.code != ForwardRaised.code:
            return row
        other = self.timed(name, step, [*argv, "--dtype", "fp32"])
        return row if other.code == row.code else replace(other, detail=f"in fp32, since in bf16: {row.said}")

    # Twins

    def _of_twin(self, reference: str, cells: Sequence[str], together: bool) -> Iterator[Row]:
        self.told("twin", cells)
        began, said = used_s(), io.StringIO()
        try:
            with redirect_stderr(said):
                small = twin(reference, self.folder / "twin")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            row = self.failed(TWIN, "twin", error, said.getvalue())
            yield from (replace(row, cell=name) for name in cells)
            return
        if TWIN in cells:
            yield replace(self.row(TWIN, "exact", step="twin"), cpu_s=round(used_s() - began, 2))
        yield from self.of(small, [name for name in cells if name in TWINS], together=together)

    def of(self, small: str, cells: Sequence[str], *, together: bool = True) -> Iterator[Row]:
        """The cells of a twin that is written."""
        made: list[Made] = []
        for name in cells:
            found = self.emitted(small, name)
            if isinstance(found, Row):
                yield found
            elif together:
                made.append(found)
            else:
                yield from compared([found], self.told)
        yield from compared(made, self.told)

    def emitted(self, small: str, name: str) -> Row | Made:
        """Plan and emit a cell of a twin; a row where that is refused, or fails."""
        out = self.folder / name
        began = used_s()
        row = self.timed(name, "plan", of_twin(CELLS[name], small, str(out)))
        if row.outcome != "exact":
            return row
        self.told("emit", [name])
        said = io.StringIO()
        try:
            with redirect_stderr(said), redirect_stdout(said):
                subject = subject_of(reload(load_plan(str(out))))
                emit(subject, out).write(out)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            return self.failed(name, "emit", error, said.getvalue())
        return Made(asked=self, name=name, subject=subject, script=out / "train.py", cpu_s=used_s() - began)

    def row(self, cell: str, outcome: str, **given: Any) -> Row:
        """A row of this model."""
        return Row(model=self.entry.name, cell=cell, family=self.entry.family, outcome=outcome, **given)

    def timed(self, cell: str, step: str, argv: Sequence[str]) -> Row:
        """The row of a command line."""
        self.told(step, [cell])
        began = used_s()
        code, said = ask(argv)
        row = of_exit(self.entry.name, cell, step, code, said)
        return replace(row, family=self.entry.family, cpu_s=round(used_s() - began, 2))

    def failed(self, cell: str, step: str, error: Exception, said: str) -> Row:
        """The row of an exception."""
        where = "".join(traceback.format_exception(error))
        row = of_error(self.entry.name, cell, step, error, f"{said}\n{where}")
        return replace(row, family=self.entry.family)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A cell whose script is written."""

    asked: Asked
    name: str
    subject: Subject
    script: Path
    cpu_s: float


def compared(made: Sequence[Made], told: Told = nothing_told) -> Iterator[Row]:
    """Run scripts in one launch, and compare. One that fails ends it: the others are launched again."""
    from meshwright.backends.torch_.verify.emitted import Job, verify

    if not made:
        return
    told("run", [one.name for one in made])
    began, said = used_s(), io.StringIO()
    try:
        with redirect_stderr(said):
            jobs = [Job.of(one.subject, one.script) for one in made]
            found = verify(jobs, steps=STEPS, limit_s=sum(one.asked.limit_s for one in made))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        guilty = [one for one in made if isinstance(error, RanksFailed) and error.place == str(one.script)]
        if len(made) == 1:
            guilty = list(made)
        for one in guilty:
            row = one.asked.failed(one.name, "run", error, said.getvalue())
            yield replace(row, cpu_s=round(one.cpu_s + (used_s() - began) / len(made), 2))
        if guilty:
            yield from compared([one for one in made if one not in guilty], told)
        else:
            for one in made:
                yield from compared([one], told)
        return
    share = (used_s() - began) / len(made)
    for one, verified in zip(made, found, strict=True):
        text = "\n".join([*filter(None, [verified.failed_in_fp64]), *verified.differences[:6]])
        outcome = "exact" if verified.exact else untold(verified.failed_in_fp64)
        row = one.asked.row(one.name, outcome, step="run", said=text.partition("\n")[0], detail=text)
        yield replace(row, cpu_s=round(one.cpu_s + share, 2))


def twin(reference: str, folder: Path) -> str:
    """Write the small twin of a model into a folder, and return its reference."""
    folder.mkdir(parents=True, exist_ok=True)
    made = twin_of(load_model(reference), reference, Scale(layers=LAYERS, seq=SEQ, tokens=TOKENS))
    for name, text in made.files(folder):
        (folder / name).write_text(text)
    if made.text is None:
        return made.reference
    return str(folder) if made.reference == "config.json" else str(folder / made.reference)


PLACES = re.compile(r"(?<![\w.-])/[\w./@+-]*/(?=[\w.-]+)")


def without_places(text: str) -> str:
    """A message without folders of this machine."""
    return PLACES.sub("", text)
