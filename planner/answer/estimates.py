"""Estimates of many configurations of one model on one cluster, ranked: the lines of `--configs FILE`.

Every line of the file is a JSON object: pins by name, and perhaps `global_batch`. All lines are read first; a line that
cannot be is reported with its number and stops no other. The model is captured, and written at every batch that is
needed, before processes are forked (`planner.answer.workers`), so that they only plan, lower and price.

Configurations that differ in pipeline, schedule or micro-batches have body plans in common, and those that differ in
storage or recomputation how operators are split. So they are handed out in batches of one `Config.compute`, sorted by
`Config.kind` (`Degrees.of_body` at one batch), next to those that differ from them in copies alone, which fix how many
stages there are and how many micro-batches run. All this within a `WINDOW` of lines, so that results, which are
printed in the order of the lines, do not wait for the end of the file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from meshwright.cost_models.hardware.cluster import suspicions
from meshwright.cost_models.hardware.quantity import Kind, weakest_kind
from meshwright.cost_models.prediction import Prediction
from meshwright.ir.errors import (
    ConfigsUnreadable,
    InternalError,
    MeshwrightError,
    PricingLost,
)
from meshwright.planner.answer.workers import shared_out
from meshwright.planner.question.ask import Ask, missing
from meshwright.planner.question.constraints import Constraints
from meshwright.planner.question.pin_schema import GLOBAL_BATCH_KEY, LINE, pins_of
from meshwright.planner.question.pins import Config, Pins, Value, fill

WINDOW = 2048
"""Lines among which configurations of one kind are brought together: some seconds' worth."""

MOST_TOGETHER = 32
"""Configurations that one process takes at a time: enough to make what they share once, few enough to end together."""

TIME_LIMIT_S = 60.0
"""For one configuration; most take milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the file: a configuration, or the reason why it is none."""

    number: int
    global_batch: int = 0
    config: Config | None = None
    pins: Pins = field(default_factory=Pins)
    given: dict[str, Any] | None = None
    error: MeshwrightError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a line: its JSON text where that was asked for, and its row of the table."""

    text: str = ""
    exit_code: int = 0
    error: str = ""
    fits: bool = False
    step_time_s: float = 0.0
    tokens_per_s_per_gpu: float = 0.0
    mfu: float = 0.0
    peak_memory_bytes: float = 0.0
    config: Mapping[str, Value] = field(default_factory=dict)
    weakest: Kind = "assumed"


# Reading -------------------------------------------------------------------------------------------------------------


def read_lines(path: Path, ask: Ask) -> tuple[Line, ...]:
    """Every line that is not blank."""
    text = LINE.text(path)
    lines = tuple(_line(text, number, ask) for number, text in enumerate(text.split("\n"), 1) if text.strip())
    if not lines:
        raise ConfigsUnreadable(
            place=f"--configs {path}", cause="it holds no configuration", fix='write lines such as {"tp": 8, "pp": 4}'
        )
    return lines


def _line(text: str, number: int, ask: Ask) -> Line:
    given: dict[str, Any] | None = None
    try:
        place = f"line {number}"
        found = LINE.json(text, place)
        line = LINE.read(found, place)
        given = found
        batch = _global_batch(line, place, ask)
        pins = pins_of(line).over(ask.pins)
        config = fill(pins, ranks=ask.cluster.ranks, global_batch=batch, place=place)
    except MeshwrightError as error:
        return Line(number=number, given=given, error=error)
    return Line(number=number, global_batch=batch, config=config, pins=pins, given=given)


def _global_batch(line: Any, place: str, ask: Ask) -> int:
    batch: int | None = line.global_batch or ask.global_batch
    if batch is None:
        raise missing(
            "--global-batch", "256", f"the sequences of one optimizer step here, or {GLOBAL_BATCH_KEY} in {place}"
        )
    return batch


# Pricing -------------------------------------------------------------------------------------------------------------


class Pricer:
    """Prices lines by their index."""

    def __init__(self, ask: Ask, lines: Sequence[Line], *, as_json: bool) -> None:
        self.ask = ask
        self.lines = lines
        self.as_json = as_json
        self.refused: dict[int, MeshwrightError] = {}
        """Batches at which the model cannot be captured."""

    def warm(self, configs: Sequence[Config]) -> None:
        """Capture the model at every batch that is needed."""
        self.ask, self.setting = self.ask.loaded()
        for batch in dict.fromkeys(config.batch for config in configs):
            try:
                self.setting.folds.at(batch)
            except MeshwrightError as error:
                if self.setting.folds.captured is None:
                    raise
                self.refused[batch] = error
        cautions = self.setting.cautions() if any(config.microbatches > 1 for config in configs) else ()
        captured = self.setting.folds.first(configs[0].batch)
        for note in (*self.ask.notes, *suspicions(self.ask.cluster), *captured.notes, *cautions):
            sys.stderr.write(f"note: {note}\n")

    def outcomes(self, jobs: int) -> Generator[tuple[int, Outcome], None, None]:
        """The outcome of every line, as they come."""
        for index, line in enumerate(self.lines):
            if line.error is not None:
                yield index, self.failed(index, line.error)
        yield from shared_out(kinds(self.lines), self.price, self.lost, jobs=jobs, limit_s=TIME_LIMIT_S)

    def price(self, index: int) -> Outcome:
        line = self.lines[index]
        assert line.config is not None, "only these are handed out"
        try:
            if line.config.batch in self.refused:
                raise self.refused[line.config.batch]
            setting = replace(self.setting, constraints=Constraints.of(line.pins))
            config = setting.settled(line.config, line.global_batch)
            prediction = setting.predict(config, line.global_batch)
        except MeshwrightError as error:
            return self.failed(index, error)
        except Exception as error:  # noqa: BLE001 - a fault of ours in one configuration stops no other
            return self.failed(index, _internal(index, line, error))
        return self.priced(index, config, prediction)

    def priced(self, index: int, config: Config, prediction: Prediction) -> Outcome:
        text = ""
        if self.as_json:
            predicted = prediction.to_json()
            text = self.text(index, config.to_json(), {"predicted": predicted, "fits": prediction.fits})
        return Outcome(
            text=text,
            fits=prediction.fits,
            step_time_s=prediction.step_time_s,
            tokens_per_s_per_gpu=prediction.tokens_per_s_per_gpu,
            mfu=prediction.mfu,
            peak_memory_bytes=prediction.peak_memory_bytes,
            config=config.to_json(),
            weakest=weakest_kind(*(kind for _, kind in prediction.provenance)),
        )

    def failed(self, index: int, error: MeshwrightError) -> Outcome:
        line = self.lines[index]
        text = ""
        if self.as_json:
            config = line.config.to_json() if line.config is not None else line.given
            text = self.text(index, config, {"error": error.to_json()})
        return Outcome(text=text, exit_code=error.exit_code, error=str(error))

    def text(self, index: int, config: dict[str, Value] | None, result: dict[str, Any]) -> str:
        line = self.lines[index]
        head = {"index": index, "line": line.number, "global_batch": line.global_batch or None, "config": config}
        return json.dumps(head | result)

    def lost(self, index: int, why: str) -> Outcome:
        fix = "price it alone, without --configs, to see more; a plan on fewer ranks takes less time"
        return self.failed(index, PricingLost(place=f"line {self.lines[index].number}", cause=why, fix=fix))


def _internal(index: int, line: Line, error: Exception) -> InternalError:
    return InternalError(
        place=f"line {line.number}",
        cause=f"internal error: {type(error).__name__}: {error}",
        fix="price it alone, without --configs, with MESHWRIGHT_DEBUG=1, and report the traceback",
    )


def kinds(lines: Sequence[Line]) -> list[list[list[int]]]:
    """The indices to price, by window: batches of lines that split operators alike, those of one kind next to each
    other."""
    return [list(_batches(lines, range(len(lines))[start : start + WINDOW])) for start in range(0, len(lines), WINDOW)]


def _batches(lines: Sequence[Line], window: Iterable[int]) -> Iterator[list[int]]:
    configs = {index: config for index in window if (config := lines[index].config) is not None}
    together: dict[tuple[Value, ...], list[int]] = {}
    for index in sorted(configs, key=lambda index: _nearness(configs[index])):
        together.setdefault(configs[index].compute, []).append(index)
    for indices in together.values():
        yield from (indices[at : at + MOST_TOGETHER] for at in range(0, len(indices), MOST_TOGETHER))


def _nearness(config: Config) -> tuple[Value, ...]:
    """A sort key by which neighbours have the most in common: the kernel configuration and its ranks, then the number
    of copies, then the rest of their kind."""
    return config.tp * config.cp, config.mbs, *config.kind


def in_order(outcomes: Iterable[tuple[int, Outcome]]) -> Iterator[Outcome]:
    """Outcomes by index from 0, each as soon as the ones before it are there."""
    early: dict[int, Outcome] = {}
    expected = 0
    for index, outcome in outcomes:
        early[index] = outcome
        while expected in early:
            yield early.pop(expected)
            expected += 1
