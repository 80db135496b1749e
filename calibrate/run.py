"""A calibration: this machine measured for a target, and what was found written down.

    idle? -> cases -> those that are missing measured -> samples -> `Measured` -> the profile file

Samples stand beside the profile (`samples_of`), and what they have is not measured again: what was interrupted is taken
up, and a wider question adds to a narrower one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from meshwright.backends.door import Measurer, measurer
from meshwright.backends.measuring import Sample, Told
from meshwright.calibrate.cases import Asked, cases, expected_s
from meshwright.calibrate.fit import fitted, missing
from meshwright.calibrate.kept import this_machine
from meshwright.calibrate.machine import check_idle, launched, leading
from meshwright.calibrate.samples import Found, compacted, header, replaced, taken_up, whole
from meshwright.cost_models.measured.file import measured_text
from meshwright.cost_models.measured.measured import Identity, Measured

PATIENCE = 5.0
"""How many times the expected time ranks may take before they are ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A question to this machine."""

    asked: Asked
    target: str
    out: Path
    name: str
    force: bool = False

    @property
    def measured_by(self) -> Measurer:
        return measurer(self.target)

    @property
    def samples(self) -> Path:
        """The file of raw samples."""
        return self.out.with_name(f"{self.out.name}.samples.jsonl")

    def identity(self) -> Identity:
        return this_machine(self.target, self.asked.threads)

    @property
    def alone(self) -> bool:
        """Whether ranks are started for this, and not by a launcher."""
        return not launched()

    def found(self) -> Found:
        """The samples of whole cases by now."""
        return whole(self.samples.read_text(encoding="utf-8").split("\n")[1:], self.asked.hosts)

    def first_line(self) -> str:
        """What stands above the samples."""
        return header(self.identity(), self.asked.ranks, self.asked.hosts)

    def keep(self, sample: Sample) -> None:
        """Add a sample."""
        with self.samples.open("a", encoding="utf-8") as file:
            file.write(f"{sample.line()}\n")

    def write(self, measured: Measured) -> Measured:
        """Write the profile, in place of an earlier one at once."""
        replaced(self.out, measured_text(measured).splitlines())
        return measured

    def run(self, told: Told) -> Measured | None:
        """Measure what is missing, and write the profile; None on a rank that writes nothing."""
        forced = check_idle(force=self.force)
        if not self.alone:
            return self._joined(told, forced=forced)
        here, first = self.identity(), self.first_line()
        left = missing(cases(self.asked), taken_up(self.samples, first))
        if left:
            self.measured_by.measure(
                left,
                self.samples,
                ranks=self.asked.ranks,
                threads=self.asked.threads,
                budget_s=self.asked.budget_s,
                limit_s=PATIENCE * expected_s(left, self.asked),
                told=told,
            )
        return self._written(here, first, forced=forced)

    def _joined(self, told: Told, *, forced: bool) -> Measured | None:
        """The same as one of the ranks that a launcher started: the first one asks and writes."""
        leads, here, first = leading(), self.identity(), self.first_line()
        left = missing(cases(self.asked), taken_up(self.samples, first)) if leads else ()
        self.measured_by.measure_joined(
            left, self.samples, threads=self.asked.threads, budget_s=self.asked.budget_s, told=told
        )
        return self._written(here, first, forced=forced) if leads else None

    def _written(self, here: Identity, first: str, *, forced: bool) -> Measured:
        found = self.found()
        compacted(self.samples, first, found)
        return self.write(
            fitted(
                found,
                here,
                hosts=self.asked.hosts,
                name=self.name,
                made=time.strftime("%Y-%m-%d"),
                forced=forced,
                library=self.measured_by.LIBRARY,
                synchronous=True,
            )
        )
